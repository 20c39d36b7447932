"""A run under way: chunks, reports, evaluations, checkpoints, and what to do when something goes wrong."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from rich.console import Console

from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .checkpoint import Checkpoints, Position, Saved, from_arrays, to_arrays
from .collect import BROKEN, TrainState
from .config import Config
from .distributed import process_group
from .guard import Signals
from .header import header
from .logs import Gallery, open_writer
from .loop import TrainStep, make_train_step
from .metrics import MetricsWriter
from .monitor import make_monitor
from .parallel import make_mesh, shard, to_host
from .patience import count_evaluation
from .plan import REPORTS, iterations_per_chunk, with_rates, without_host
from .progress import Progress
from .run import BEST, RunFolder
from .sections import CheckpointConfig
from .summary import History, Measure, exploitability_of, headline, joined, latest, summary, what_broke
from .switch import Stage, restart

CHECKPOINTS = 10
"""About how many checkpoints a run writes unless told otherwise."""

SECONDS_PER_CALL = 1.0
"""About how long a call of the compiled loop may take: a signal is answered between calls."""


class NotFiniteError(UserError):
    """A run ended because a loss, a gradient, an observation or a reward is not finite."""


class Desk(NamedTuple):
    """What is open while a run is under way: where it shows, reports and hears."""

    progress: Progress
    writer: MetricsWriter | None
    signals: Signals
    measure: Measure | None


@dataclasses.dataclass(eq=False)
class Session:
    """What goes on between the compiled calls of a run. `run` brings it to its end.

    Attributes:
        config, env, params, parts: what is run; a part is what lies between stepper switches.
        state: the train state.
        position: how far the run is.
        chunks: metrics of the iterations so far, in pieces.
        limit: iterations that the next call of the compiled loop may run.
        best: the learner's state of the best evaluation.
    """

    config: Config
    env: Environment
    params: EnvParams
    parts: Sequence[Stage]
    state: TrainState
    position: Position = dataclasses.field(default_factory=Position)
    chunks: list[History] = dataclasses.field(default_factory=list)
    best: PyTree | None = None
    folder: RunFolder | None = dataclasses.field(init=False, default=None)
    checkpoints: Checkpoints | None = dataclasses.field(init=False, default=None)

    def __post_init__(self):
        training = self.config.training
        self.chunk = iterations_per_chunk(training.iterations, training.iterations_per_chunk)
        tenth = -(-training.iterations // CHECKPOINTS)
        self.saves_every = self.config.checkpoint.every or -(-tenth // self.chunk) * self.chunk
        self.rolls_back = self.config.guard.on_nonfinite == "rollback"
        if self.config.out is None:
            usual, given = (each.model_dump() for each in (CheckpointConfig(), self.config.checkpoint))
            unread = [name for name in usual if given[name] != usual[name] and (name != "every" or not self.rolls_back)]
            if unread:
                raise UserError(f"checkpoint.{unread[0]} applies only with a run folder; set out, or leave it out")
        self._gallery = Gallery(self.config, self.env, self.params)
        if self.rolls_back and isinstance(self.env, HostEnvironment):
            raise UserError(f"guard.on_nonfinite=rollback: {self.env.name} is stepped on the host and cannot go back")
        self._steps: dict[tuple[int, float], TrainStep] = {}
        self.limit, self._calls = 1, 0
        self._monitor = None
        self._compiled: set[int] = set()
        self._started = time.monotonic()
        self._good: Saved | None = None
        self.group = process_group()
        count = self.config.devices.count
        self.mesh = None if count == 1 and self.group.size == 1 else make_mesh(count)
        self.state = self._laid_out(self.state)
        for part in range(len(self.parts)):
            self._step(part)  # what does not fit is refused before anything is written
            if self.rolls_back or self.config.plateau.patience is not None:
                with_rates(self.parts[part].agent, 0.5)

    def attach(self, folder: RunFolder) -> None:
        """Keep the run in a folder."""
        self.folder = folder
        self.checkpoints = Checkpoints(folder.path, keep=self.config.checkpoint.keep)

    def go_on(self, state: TrainState, saved: Saved, *, changed: bool) -> None:
        """Be where a run was when it was saved; with changed settings it no longer stands that it ended early."""
        self.state, self.position = self._laid_out(state), saved.position
        self.chunks = [saved.history] if saved.history else []
        self._started = time.monotonic() - saved.position.seconds
        if changed:
            self.position.stopped, self.position.waited = None, 0

    # -- the whole of it ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Go on to the end.

        Raises:
            NotFiniteError: something is not finite.
            UserError: a file cannot be written.
            KeyboardInterrupt, SystemExit: a signal ended it; it is saved.
        """
        with self.opened() as desk:
            while not self.over:
                self._stretch(desk)

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done."""
        return self.position.iteration >= self.config.training.iterations or self.position.stopped is not None

    @contextlib.contextmanager
    def opened(self, signals: Signals | None = None) -> Iterator[Desk]:
        """Everything that a run under way needs; with `signals`, of runs side by side, it shows no progress itself."""
        logs, training = self.config.logging, self.config.training
        with contextlib.ExitStack() as stack:
            if self.checkpoints is not None:
                stack.callback(self.checkpoints.close)
            steps = self._steps_per_iteration() * training.num_seeds
            done = self.position.iteration
            speaks = signals is None and self.group.primary
            if speaks and logs.verbose:
                self.introduce()
            shown = logs.progress if speaks else False
            progress = stack.enter_context(Progress(training.iterations, steps, done=done, enabled=shown))
            writer, measure = None, None
            if self.folder is not None:
                after = done * self._steps_per_iteration()
                writer = open_writer(self.config, self.params, self.folder.path, after, self.position.seconds)
                stack.enter_context(writer)
            if self.config.out is not None:
                signals = signals or stack.enter_context(Signals(progress.say, shared=self.group.size > 1))
                measure = self._exploitability()
            self._keep_good()
            yield Desk(progress, writer, signals or Signals(), measure)
            if writer is not None and self.over:
                writer.finish()

    def introduce(self) -> None:
        """Print what is run."""
        text = header(self.config, self.env, self.params, self.parts, self.state.agent)
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)

    def _stretch(self, desk: Desk) -> None:
        """Run to the next iteration at which something is due, and do what is."""
        self._enter_part()
        begun, started = self.position.iteration, time.perf_counter()
        if not self._advance(self.next_stop(), desk):
            self.recover(desk.progress)
            return
        self.settle(desk, begun, time.perf_counter() - started)
        if desk.signals.received is not None and self.position.iteration < self.config.training.iterations:
            desk.signals.finish(self.leave())

    def settle(self, desk: Desk, begun: int, seconds: float) -> None:
        """Do what is due where the run is, `seconds` after it was at iteration `begun`."""
        progress, writer, signals, measure = desk
        total, done = self.config.training.iterations, self.position.iteration
        report: dict[str, Any] = {}
        if done % self.chunk == 0 or done == total:
            report = self._summary()
            steps = self._steps_per_iteration() * self.config.training.num_seeds
            report["time/steps_per_second"] = (done - begun) * steps / seconds
            progress.update(done, *headline(report))
            if measure is not None and done * REPORTS // total > (done - self.chunk) * REPORTS // total:
                report["evaluation/exploitability"] = self.group.of_primary(lambda: measure(self._agent_state()))
        mean_return = None
        if self._due(self.config.evaluation.every):
            found = self._evaluate()
            mean_return = float(np.mean(found["evaluation/return"]))
            report |= found
        if writer is not None and report:
            writer.write(done * self._steps_per_iteration(), {**report, "time/iteration": done})
        logs, agent = self.config.logging, self.parts[self.position.part].agent
        if logs.histograms and report:
            self._gallery.histograms(writer, done * self._steps_per_iteration(), self._gathered(), agent)
        if logs.figures and (mean_return is not None or self.over):
            self._gallery.figures(writer, done * self._steps_per_iteration(), self._agent_state(), agent)
        if self._due(self.saves_every) or mean_return is not None or signals.received:
            self._keep_good()
            if self.config.out is not None:
                self.save(mean_return)

    def _due(self, every: int | None) -> bool:
        """Whether what happens every so many iterations, and at the end, happens now."""
        done = self.position.iteration
        return every is not None and (done % every == 0 or done == self.config.training.iterations)

    def leave(self) -> str:
        """Leave everything for a run that goes on; says where."""
        policy = self.final_form(self.state.agent)

        def keep() -> str:
            assert self.folder is not None
            assert self.checkpoints is not None
            self.checkpoints.wait()
            self.folder.write_state(policy)
            done, total = self.position.iteration, self.config.training.iterations
            return f"stopped at iteration {done} of {total}; saved in {self.folder.path}"

        return self.group.of_primary(keep)

    def _steps_per_iteration(self) -> int:
        return self.config.rollout.num_envs * self.config.rollout.num_steps

    def history(self) -> History:
        """Every metric by name, over iterations."""
        self.chunks = [joined(self.chunks)] if self.chunks else []
        return self.chunks[0] if self.chunks else {}

    def final_form(self, agent_state: PyTree) -> PyTree:
        """A learner's state as the last part of the run has it, on one device."""
        agent_state = self._on_one_device(agent_state)
        if self.position.part == len(self.parts) - 1:
            return agent_state
        return restart(self.parts[-1].agent, agent_state, self.env, self.params, self.config.training.num_seeds)

    def save(self, mean_return: float | None = None) -> None:
        """Write a checkpoint of where the run is; all processes of a run call it, and the first one writes."""
        self.position.seconds = time.monotonic() - self._started
        state = without_host(self._gathered(), self.env)
        if self.checkpoints is not None:
            settings = self.config.model_dump(mode="json")
            self.checkpoints.save(state, self.history(), self.position, settings, mean_return)

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _enter_part(self) -> None:
        """Change the stepper where the part of the run that is under way is over."""
        while self.position.iteration >= self.parts[self.position.part].end:
            self.position.part += 1
            part = self.parts[self.position.part]
            kept = restart(part.agent, self._agent_state(), self.env, self.params, self.config.training.num_seeds)
            planned = jnp.full(self.state.num_iterations.shape, part.end, self.state.num_iterations.dtype)
            self.state = self._laid_out(self.state._replace(agent=kept, num_iterations=planned))

    def _laid_out(self, state: TrainState) -> TrainState:
        """A train state over the run's devices."""
        return state if self.mesh is None else shard(state, self.mesh)

    def _gathered(self) -> TrainState:
        """The whole train state in this process, from the run's devices; all processes call it together."""
        self.group.wait()
        return self.state if self.mesh is None else to_host(self.state)

    def _on_one_device(self, agent_state: PyTree) -> PyTree:
        return agent_state if self.mesh is None else jax.tree.map(jnp.asarray, to_host(agent_state))

    def _agent_state(self) -> PyTree:
        """The learner's state, on one device."""
        return self._on_one_device(self.state.agent)

    def next_stop(self) -> int:
        """The next iteration at which something is due."""
        periods = [self.chunk, self.saves_every, self.config.evaluation.every or self.config.training.iterations]
        now = self.position.iteration
        return min(self.parts[self.position.part].end, *((now // period + 1) * period for period in periods))

    def _advance(self, end: int, desk: Desk) -> bool:
        """Run to `end`, or to the next signal; False where something was not finite."""
        position, part, signals = self.position, self.position.part, desk.signals
        step = self._step(part)
        if part not in self._compiled:
            desk.progress.compiling()
        self.group.wait()  # devices do not wait for what a process does between calls
        while position.iteration < end and signals.received is None:
            limit = min(self.limit, end - position.iteration)
            started = time.perf_counter()
            self.state, metrics = step(self.state, limit)
            rows = {name: np.moveaxis(np.asarray(m), -1, 0) for name, m in metrics.items()}
            seconds = time.perf_counter() - started
            finite = self.book(rows, seconds)
            if part not in self._compiled:
                self._compiled.add(part)
                desk.progress.compiled(position.iteration, seconds)
            elif position.iteration < end:  # there it is told with what is due
                desk.progress.update(position.iteration)
            self._agree(signals)
            if not finite:
                return False
        return True

    def _agree(self, signals: Signals) -> None:
        """All processes hear of a signal to one of them, and go by the first one's clock."""
        told = self.group.gather([signals.noted, self.limit])
        signals.agree([noted for noted, _ in told])
        self.limit = told[0][1]

    def book(self, rows: Mapping[str, np.ndarray], seconds: float) -> bool:
        """Count a call of the compiled loop, metrics `[iterations, ...]`; False where something was not finite."""
        ran = int((rows[BROKEN].reshape(rows[BROKEN].shape[0], -1).max(axis=1) >= 0).sum())
        self.chunks.append({name: values[:ran] for name, values in rows.items()})
        self.position.iteration += ran
        self._calls += 1
        if self._calls > 1:  # the first call compiles
            fits = int(SECONDS_PER_CALL / max(seconds / ran, 1e-9))
            self.limit = max(1, min(self.chunk, fits, 8 * self.limit))
        return not (rows[BROKEN] > 0).any()

    def _step(self, part: int) -> TrainStep:
        key = (part, self.position.rate_scale)
        if key not in self._steps:
            rollout, training = self.config.rollout, self.config.training
            self._steps[key] = make_train_step(
                self.env,
                self.params,
                with_rates(self.parts[part].agent, self.position.rate_scale),
                num_envs=rollout.num_envs,
                num_steps=rollout.num_steps,
                iterations=self.chunk,
                fresh_episodes=rollout.fresh_episodes,
                num_seeds=training.num_seeds,
                mesh=self.mesh,
            )
        return self._steps[key]

    def _summary(self) -> dict[str, Any]:
        """Means since the last report."""
        done = self.position.iteration
        return summary(latest(self.chunks, done - (done - 1) // self.chunk * self.chunk))

    def _exploitability(self):
        seeds = self.config.training.num_seeds
        return exploitability_of(self.env, self.params, self.parts[-1].agent, self.state.agent, seeds)

    def _evaluate(self) -> dict[str, np.ndarray]:
        """Score the policy, keep the best, and count towards smaller rates and an early end."""
        position, config = self.position, self.config
        if self._monitor is None:
            self._monitor = make_monitor(config, self.env, self.params, self.parts[-1].agent)
        monitor, state = self._monitor, self._agent_state()
        found = self.group.of_primary(lambda: monitor(state))
        returns = np.atleast_1d(np.asarray(found["evaluation/return"], float))
        better = count_evaluation(position, config, returns)
        if better.any():
            now = jax.tree.map(np.array, self.final_form(self.state.agent))
            several = config.training.num_seeds > 1
            self.best = now if self.best is None or not several else _of_seeds(better, now, self.best)
            if self.folder is not None:
                self.folder.write_state(self.best, BEST)
        rate = {"evaluation/rate_scale": np.array(position.rate_scale)} if config.plateau.patience is not None else {}
        return found | rate

    # -- when something is not finite ---------------------------------------------------------------------------------

    def _keep_good(self) -> None:
        """Where a rollback would lead to."""
        if self.rolls_back:
            self._good = Saved(to_arrays(self._gathered()), dict(self.history()), copy.deepcopy(self.position))

    def recover(self, progress: Progress) -> None:
        """Go back with smaller rates, or stop.

        Raises:
            NotFiniteError: names what is not finite, when and where.
        """
        what = what_broke(self.chunks[-1], self.position.iteration, self.config.training.seed)
        guard = self.config.guard
        if not self.rolls_back or self.position.rollbacks >= guard.max_rollbacks:
            tried = f", after {self.position.rollbacks} rollbacks with smaller rates" if self.rolls_back else ""
            raise NotFiniteError(
                f"{what}{tried}: try a lower agent.learning_rate, or look for rewards and observations of the "
                f"environment that are not finite{self.group.of_primary(self._kept)}"
            )
        assert self._good is not None
        like = jax.eval_shape(lambda: self.state)
        rollbacks, scale = self.position.rollbacks + 1, self.position.rate_scale * guard.factor
        kept = {"rollbacks": rollbacks, "rate_scale": scale, "best": self.position.best}
        self.position = dataclasses.replace(copy.deepcopy(self._good.position), **kept)
        self.state = self._laid_out(from_arrays(self._good.state, like))
        self.chunks = [self._good.history] if self._good.history else []
        said = f"{what}: back to iteration {self.position.iteration}, learning rates times {scale:g}"
        if self.group.primary:
            logging.getLogger(__name__).warning(said)
        progress.say(said)

    def _kept(self) -> str:
        if self.folder is None or self.checkpoints is None:
            return ""
        self.checkpoints.wait()
        there = self.checkpoints.iterations()
        more = (
            f", and a checkpoint of iteration {there[-1]}: equimorph train --resume {self.folder.path}" if there else ""
        )
        return f"; {self.folder.path} keeps the untrained policy, the metrics so far{more}"


def _of_seeds(chosen: np.ndarray, new: PyTree, old: PyTree) -> PyTree:
    def one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(chosen.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(one, new, old)

"""A run under way: chunks, reports, evaluations, checkpoints, and what to do when something goes wrong."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .checkpoint import Checkpoints, Position, Saved, from_arrays, to_arrays
from .config import Config
from .guard import Signals
from .loop import BROKEN, BROKEN_ENV, TrainState, TrainStep, make_train_step
from .metrics import MetricsWriter, Progress
from .monitor import make_monitor
from .parallel import make_mesh, shard, to_host
from .plan import REPORTS, iterations_per_chunk, with_rates, without_host
from .run import BEST, RunFolder
from .sections import CheckpointConfig
from .summary import History, Measure, exploitability_of, joined, summary
from .switch import Stage, restart

CHECKPOINTS = 10
"""About how many checkpoints a run writes unless told otherwise."""

SECONDS_PER_CALL = 1.0
"""About how long a call of the compiled loop may take: a signal is answered between calls."""


@dataclasses.dataclass(eq=False)
class Session:
    """What goes on between the compiled calls of a run. `run` brings it to its end.

    Attributes:
        config, env, params, parts: what is run; a part is what lies between stepper switches.
        state: the train state.
        position: how far the run is.
        chunks: metrics of the iterations so far, in pieces.
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
        if self.rolls_back and isinstance(self.env, HostEnvironment):
            raise UserError(f"guard.on_nonfinite=rollback: {self.env.name} is stepped on the host and cannot go back")
        self._steps: dict[tuple[int, float], TrainStep] = {}
        self._limit, self._calls = 1, 0
        self._monitor = None
        self._started = time.monotonic()
        self._good: Saved | None = None
        self.mesh = None if self.config.devices.count == 1 else make_mesh(self.config.devices.count)
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
            UserError: something is not finite, or a file cannot be written.
            KeyboardInterrupt, SystemExit: a signal ended it; it is saved.
        """
        logs, training = self.config.logging, self.config.training
        with contextlib.ExitStack() as stack:
            if self.checkpoints is not None:
                stack.callback(self.checkpoints.close)
            steps = self._steps_per_iteration() * training.num_seeds
            done = self.position.iteration
            progress = stack.enter_context(Progress(training.iterations, steps, done=done, enabled=logs.progress))
            writer, signals, measure = None, Signals(), None
            if self.folder is not None:
                after = done * self._steps_per_iteration()
                seconds = self.position.seconds
                writer = MetricsWriter(self.folder.path, tensorboard=logs.tensorboard, after=after, seconds=seconds)
                stack.enter_context(writer)
                signals = stack.enter_context(Signals(progress.say))
                measure = self._exploitability()
            self._keep_good()
            while self.position.iteration < training.iterations and self.position.stopped is None:
                self._stretch(progress, writer, signals, measure)

    def _stretch(
        self, progress: Progress, writer: MetricsWriter | None, signals: Signals, measure: Measure | None
    ) -> None:
        """Run to the next iteration at which something is due, and do what is."""
        total = self.config.training.iterations
        self._enter_part()
        begun, started = self.position.iteration, time.perf_counter()
        if not self._advance(self._next_stop(), signals):
            self._recover(progress)
            return
        seconds, done = time.perf_counter() - started, self.position.iteration
        report: dict[str, Any] = {}
        if done % self.chunk == 0 or done == total:
            report = self._summary()
            steps = self._steps_per_iteration() * self.config.training.num_seeds
            report["time/steps_per_second"] = (done - begun) * steps / seconds
            progress.update(done, _first(report.get("episode/score", report.get("episode/return"))))
            if measure is not None and done * REPORTS // total > (done - self.chunk) * REPORTS // total:
                report["evaluation/exploitability"] = measure(self.state.agent)
        mean_return = None
        if self._due(self.config.evaluation.every):
            found = self._evaluate()
            mean_return = float(np.mean(found["evaluation/return"]))
            report |= found
        if writer is not None and report:
            writer.write(done * self._steps_per_iteration(), {**report, "time/iteration": done})
        if self._due(self.saves_every) or mean_return is not None or signals.received:
            self._keep_good()
            if self.checkpoints is not None:
                self.save(mean_return)
        if signals.received is not None and done < total:
            self._break_off(signals)

    def _due(self, every: int | None) -> bool:
        """Whether what happens every so many iterations, and at the end, happens now."""
        done = self.position.iteration
        return every is not None and (done % every == 0 or done == self.config.training.iterations)

    def _break_off(self, signals: Signals) -> None:
        """Leave everything for a run that goes on, and end as the signal asks."""
        assert self.folder is not None
        assert self.checkpoints is not None
        self.checkpoints.wait()
        self.folder.write_state(self.final_form(self.state.agent))
        done, total = self.position.iteration, self.config.training.iterations
        signals.finish(f"stopped at iteration {done} of {total}; saved in {self.folder.path}")

    def _steps_per_iteration(self) -> int:
        return self.config.rollout.num_envs * self.config.rollout.num_steps

    def history(self) -> History:
        """Every metric by name, over iterations."""
        self.chunks = [joined(self.chunks)] if self.chunks else []
        return self.chunks[0] if self.chunks else {}

    def final_form(self, agent_state: PyTree) -> PyTree:
        """A learner's state as the last part of the run has it, on one device."""
        if self.mesh is not None:
            agent_state = jax.tree.map(jnp.asarray, to_host(agent_state))
        if self.position.part == len(self.parts) - 1:
            return agent_state
        return restart(self.parts[-1].agent, agent_state, self.env, self.params, self.config.training.num_seeds)

    def save(self, mean_return: float | None = None) -> None:
        """Write a checkpoint of where the run is."""
        assert self.checkpoints is not None
        self.position.seconds = time.monotonic() - self._started
        state = without_host(self.state, self.env)
        self.checkpoints.save(state, self.history(), self.position, self.config.model_dump(mode="json"), mean_return)

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _enter_part(self) -> None:
        """Change the stepper where the part of the run that is under way is over."""
        while self.position.iteration >= self.parts[self.position.part].end:
            self.position.part += 1
            part = self.parts[self.position.part]
            kept = restart(part.agent, self.state.agent, self.env, self.params, self.config.training.num_seeds)
            planned = jnp.full_like(self.state.num_iterations, part.end)
            self.state = self._laid_out(self.state._replace(agent=kept, num_iterations=planned))

    def _laid_out(self, state: TrainState) -> TrainState:
        """A train state over the run's devices."""
        return state if self.mesh is None else shard(state, self.mesh)

    def _next_stop(self) -> int:
        """The next iteration at which something is due."""
        periods = [self.chunk, self.saves_every, self.config.evaluation.every or self.config.training.iterations]
        now = self.position.iteration
        return min(self.parts[self.position.part].end, *((now // period + 1) * period for period in periods))

    def _advance(self, end: int, signals: Signals) -> bool:
        """Run to `end`, or to the next signal; False where something was not finite."""
        position, part = self.position, self.position.part
        step = self._step(part)
        while position.iteration < end and signals.received is None:
            limit = min(self._limit, end - position.iteration)
            started = time.perf_counter()
            self.state, metrics = step(self.state, limit)
            rows = {name: np.moveaxis(np.asarray(m), -1, 0) for name, m in metrics.items()}
            spent = time.perf_counter() - started
            ran = int((rows[BROKEN].reshape(rows[BROKEN].shape[0], -1).max(axis=1) >= 0).sum())
            self.chunks.append({name: values[:ran] for name, values in rows.items()})
            position.iteration += ran
            self._calls += 1
            if self._calls > 1:  # the first call compiles
                fits = int(SECONDS_PER_CALL / max(spent / ran, 1e-9))
                self._limit = max(1, min(self.chunk, fits, 8 * self._limit))
            if (rows[BROKEN] > 0).any():
                return False
        return True

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
        rows = done - (done - 1) // self.chunk * self.chunk
        pieces: list[History] = []
        for piece in reversed(self.chunks):  # the latest alone: a history is long
            pieces.insert(0, {name: values[-rows:] for name, values in piece.items()})
            rows -= len(pieces[0][BROKEN])
            if not rows:
                break
        names = self.chunks[-1]  # not those of an earlier stepper
        return summary({name: values for name, values in joined(pieces).items() if name in names})

    def _exploitability(self):
        seeds = self.config.training.num_seeds
        return exploitability_of(self.env, self.params, self.parts[-1].agent, self.state.agent, seeds)

    def _evaluate(self) -> dict[str, np.ndarray]:
        """Score the policy, keep the best, and count towards smaller rates and an early end."""
        position, config = self.position, self.config
        if self._monitor is None:
            self._monitor = make_monitor(config, self.env, self.params, self.parts[-1].agent)
        found = self._monitor(self.state.agent)
        returns = np.atleast_1d(np.asarray(found["evaluation/return"], float))
        old = np.array(position.best) if position.best else np.full_like(returns, -np.inf)
        better = returns > old
        if better.any():
            position.best = np.where(better, returns, old).tolist()
            now = jax.tree.map(np.array, self.final_form(self.state.agent))
            several = config.training.num_seeds > 1
            self.best = now if self.best is None or not several else _of_seeds(better, now, self.best)
            if self.folder is not None:
                self.folder.write_state(self.best, BEST)
        mean = float(returns.mean())
        gained = position.best_mean is None or mean > position.best_mean + config.stopping.least_gain
        position.best_mean = mean if gained or position.best_mean is None else position.best_mean
        position.waited = 0 if gained else position.waited + 1
        position.waited_to_reduce = 0 if gained else position.waited_to_reduce + 1
        plateau = config.plateau
        if plateau.patience is not None and position.waited_to_reduce >= plateau.patience:
            position.rate_scale = max(position.rate_scale * plateau.factor, plateau.least)
            position.waited_to_reduce = 0
        if config.stopping.patience is not None and position.waited >= config.stopping.patience:
            position.stopped = (
                f"no better return in {position.waited} evaluations, at iteration {position.iteration} of "
                f"{config.training.iterations}"
            )
        rate = {"evaluation/rate_scale": np.array(position.rate_scale)} if plateau.patience is not None else {}
        return found | rate

    # -- when something is not finite ---------------------------------------------------------------------------------

    def _keep_good(self) -> None:
        """Where a rollback would lead to."""
        if self.rolls_back:
            self._good = Saved(to_arrays(self.state), dict(self.history()), copy.deepcopy(self.position))

    def _recover(self, progress: Progress) -> None:
        """Go back with smaller rates, or stop.

        Raises:
            UserError: names what is not finite, when and where.
        """
        what = self._what_broke()
        guard = self.config.guard
        if not self.rolls_back or self.position.rollbacks >= guard.max_rollbacks:
            tried = f", after {self.position.rollbacks} rollbacks with smaller rates" if self.rolls_back else ""
            raise UserError(
                f"{what}{tried}: try a lower agent.learning_rate, or look for rewards and observations of the "
                f"environment that are not finite{self._kept()}"
            )
        assert self._good is not None
        like = jax.eval_shape(lambda: self.state)
        rollbacks, scale = self.position.rollbacks + 1, self.position.rate_scale * guard.factor
        kept = {"rollbacks": rollbacks, "rate_scale": scale, "best": self.position.best}
        self.position = dataclasses.replace(copy.deepcopy(self._good.position), **kept)
        self.state = self._laid_out(from_arrays(self._good.state, like))
        self.chunks = [self._good.history] if self._good.history else []
        said = f"{what}: back to iteration {self.position.iteration}, learning rates times {scale:g}"
        logging.getLogger(__name__).warning(said)
        progress.say(said)

    def _what_broke(self) -> str:
        last = {name: np.asarray(values[-1]) for name, values in self.chunks[-1].items()}
        names = [name for name, v in last.items() if name.startswith("loss/") and not np.isfinite(v).all()]
        where = np.atleast_1d(last[BROKEN_ENV])
        seed = int(np.argmax(np.atleast_1d(last[BROKEN]) > 0))
        said = f"{', '.join(names)} is not finite" if names else ""
        if where[seed] >= 0:
            also = " and " if said else ""
            said = f"{said}{also}an observation or reward of environment {where[seed]} is not finite"
        several = f" (seed {self.config.training.seed + seed})" if where.size > 1 else ""
        return f"{said} at iteration {self.position.iteration}{several}"

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


def _first(value: Any) -> float | None:
    """A single number for the progress bar: the mean over seeds."""
    return None if value is None else float(np.mean(value))

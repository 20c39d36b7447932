"""Runs that differ in numbers alone, trained side by side: one compiled call, a lane of it for each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..agents.agent import Agent
from ..agents.registry import is_solver
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.environment import Environment, EnvParams
from ..storage import structure
from .collect import TrainState
from .config import Config
from .guard import Signals
from .loop import ChunkSettings, run_chunk
from .progress import Progress
from .session import Desk, NotFiniteError, Session


def kind_of(config: Config, env: Environment, params: EnvParams, agent: Agent) -> Hashable | None:
    """What runs have in common that can be trained side by side: all but the values of arrays and the seed.

    Args:
        config: the run's settings.
        env, params, agent: as `build` makes them.

    Returns:
        The same for runs of one kind; None for a run that goes its own way: on the host, over several devices, by a
        solver, with other steppers later, or with an end, rates or rollbacks that depend on how it goes.
    """
    own_way = (
        isinstance(env, HostEnvironment)
        or is_solver(config.agent.name)
        or config.devices.count != 1
        or config.training.switch
        or config.stopping.patience is not None
        or config.plateau.patience is not None
        or config.guard.on_nonfinite == "rollback"
    )
    if own_way:
        return None
    dynamic, static = eqx.partition(agent.prepare(env, params), eqx.is_array)
    settings = config.model_dump(mode="json", exclude={"env": True, "agent": True, "out": True, "training": {"seed"}})
    numbers = (dynamic, params)
    shapes = (jax.tree.structure(numbers), *structure(numbers))
    return env, static, shapes, json.dumps(settings, sort_keys=True)


@dataclasses.dataclass(eq=False)
class Lanes:
    """Runs of one kind on their way together. `run` brings them to their end.

    Attributes:
        sessions: two or more, in the same iteration, each with a folder.
        on_failure: is told the number of a lane in which something is not finite, and what, when it ends.
        failed: the numbers of those lanes.
    """

    sessions: Sequence[Session]
    on_failure: Callable[[int, str], None]
    failed: set[int] = dataclasses.field(default_factory=set)

    def __post_init__(self):
        first = self.sessions[0]
        self.num_seeds = first.config.training.num_seeds
        self._compiled = False
        prepared = [one.parts[0].agent.prepare(one.env, one.params) for one in self.sessions]
        dynamic, static = zip(*(eqx.partition(agent, eqx.is_array) for agent in prepared), strict=True)
        each = [jax.tree.leaves(numbers) for numbers in zip(dynamic, [s.params for s in self.sessions], strict=True)]
        varied = tuple(any(not np.array_equal(a, b) for b in others) for a, *others in zip(*each, strict=True))
        self._numbers = [
            jnp.repeat(jnp.stack(column), self.num_seeds, axis=0) if varies else column[0]
            for column, varies in zip(zip(*each, strict=True), varied, strict=True)
        ]
        self._rebuild = jax.tree.structure((dynamic[0], first.params)).unflatten
        rollout = first.config.rollout
        self._settings = ChunkSettings(
            first.env, static[0], rollout.num_steps, first.chunk, rollout.fresh_episodes, seeds=True, varied=varied
        )
        join = jnp.concatenate if self.num_seeds > 1 else jnp.stack
        self._state: TrainState = jax.tree.map(lambda *leaves: join(leaves), *(s.state for s in self.sessions))

    @property
    def living(self) -> list[int]:
        """The lanes that go on, by their numbers."""
        return [lane for lane in range(len(self.sessions)) if lane not in self.failed]

    def run(self) -> None:
        """Go on to the end of all lanes. One in which something is not finite ends, and the others go on.

        Raises:
            UserError: a file cannot be written.
            KeyboardInterrupt, SystemExit: a signal ended it; every lane is saved.
        """
        first = self.sessions[0]
        rollout, training = first.config.rollout, first.config.training
        steps = rollout.num_envs * rollout.num_steps * training.num_seeds * len(self.sessions)
        done = first.position.iteration
        with contextlib.ExitStack() as stack:
            for session in self.sessions if first.config.logging.verbose else ():
                session.introduce()
            shown = Progress(training.iterations, steps, done=done, enabled=first.config.logging.progress)
            progress = stack.enter_context(shown)
            signals = stack.enter_context(Signals(progress.say))
            desks = [stack.enter_context(session.opened(signals)) for session in self.sessions]
            progress.compiling()
            while self.living and not self._lead.over:
                self._stretch(desks, signals, progress)

    @property
    def _lead(self) -> Session:
        return self.sessions[self.living[0]]

    def _stretch(self, desks: Sequence[Desk], signals: Signals, progress: Progress) -> None:
        """Run to the next iteration at which something is due, and do what is, lane by lane."""
        begun, started = self._lead.position.iteration, time.perf_counter()
        self._advance(self._lead.next_stop(), desks, signals, progress)
        seconds = time.perf_counter() - started
        for lane in self.living:
            session = self.sessions[lane]
            session.state = _lane(self._state, lane * self.num_seeds, count=self.num_seeds)
            session.settle(desks[lane], begun, seconds)
        if not self.living:
            return
        done, total = self._lead.position.iteration, self._lead.config.training.iterations
        progress.update(done)
        if signals.received is not None and done < total:
            for lane in self.living:
                self.sessions[lane].leave()
            signals.finish(f"stopped at iteration {done} of {total}, {len(self.living)} combinations side by side")

    def _advance(self, end: int, desks: Sequence[Desk], signals: Signals, progress: Progress) -> None:
        """Run to `end`, or to the next signal; lanes in which something is not finite end on the way."""
        dynamic, params = self._rebuild(self._numbers)
        while self.living and self._lead.position.iteration < end and signals.received is None:
            limit = min(self._lead.limit, end - self._lead.position.iteration)
            called = time.perf_counter()
            self._state, metrics = run_chunk(self._state, dynamic, params, np.int32(limit), settings=self._settings)
            rows = {name: np.moveaxis(np.asarray(m), -1, 0) for name, m in metrics.items()}
            seconds = time.perf_counter() - called
            broken = [lane for lane in self.living if not self.sessions[lane].book(self._of(rows, lane), seconds)]
            if not self._compiled:
                self._compiled = True
                progress.compiled(max(session.position.iteration for session in self.sessions), seconds)
            for lane in broken:
                try:
                    self.sessions[lane].recover(desks[lane].progress)
                except NotFiniteError as error:
                    self.failed.add(lane)
                    self.on_failure(lane, str(error))
            if broken and self.living:
                self._fill_up()
                dynamic, params = self._rebuild(self._numbers)

    def _of(self, rows: Mapping[str, np.ndarray], lane: int) -> dict[str, np.ndarray]:
        """One lane's part of metrics `[iterations, lanes * seeds]`."""
        first = lane * self.num_seeds
        mine = first if self.num_seeds == 1 else slice(first, first + self.num_seeds)
        return {name: values[:, mine] for name, values in rows.items()}

    def _fill_up(self) -> None:
        """Let lanes that ended do what the first living one does: the program stays the one that is compiled."""
        source = np.arange(len(self.sessions) * self.num_seeds).reshape(-1, self.num_seeds)
        source[list(self.failed)] = source[self.living[0]]
        self._state = jax.tree.map(lambda leaf: leaf[source.ravel()], self._state)
        varied = self._settings.varied or ()
        self._numbers = [
            leaf[source.ravel()] if varies else leaf for leaf, varies in zip(self._numbers, varied, strict=True)
        ]


@functools.partial(jax.jit, static_argnames="count")
def _lane(state: TrainState, first: int | Array, *, count: int) -> TrainState:
    """What belongs to one lane, as a run alone has it: without the axis of seeds where it has one."""

    def take(leaf: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(leaf, first, count) if count > 1 else leaf[first]

    return jax.tree.map(take, state)

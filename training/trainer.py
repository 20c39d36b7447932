"""Training as a whole: from a configuration to a trained policy and its record."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..envs.adapters.gymnasium_host import HostEnvironment
from ..errors import UserError
from ..storage import load_tree, structure
from .checkpoint import Checkpoints, Position, Saved, checksum, named_leaves, to_arrays, versions
from .collect import TrainState
from .compilation import use_compilation_cache
from .config import Config, build, parse, resolve
from .distributed import process_group
from .plan import first_state, resumed_state, without_host
from .resume import resumed_config
from .run import BEST, CONFIG, UNTRAINED, Run, RunFolder, check_run_folder, state_structure
from .session import Session
from .settings import apply_overrides, load_config, merge
from .summary import History, with_episode_means
from .switch import restart, stages


def train_from_config(config: Config | Mapping[str, Any]) -> tuple[TrainState, History]:
    """Run a configuration to its end; with `out` set, keep the run in that folder.

    Args:
        config: a `Config`, or nested settings that make one.

    Returns:
        The final train state, and every metric by name over iterations, `[iterations]`, or `[iterations, seeds]` with
        several. `episode/return` and its like are means over the episodes that ended in an iteration, NaN where none
        did.

    Raises:
        UserError: something does not fit, `out` is taken, or a loss is not finite.
    """
    if not isinstance(config, (Config, Mapping)):
        raise UserError(f"a configuration is a Config or nested settings, got {config!r}; load_config reads a file")
    state, history, _ = _train(config if isinstance(config, Config) else parse(config))
    return state, history


def train(
    env_id: str,
    agent: str = "mappo",
    *,
    iterations: int | None = None,
    seed: int | None = None,
    num_seeds: int | None = None,
    out: str | os.PathLike[str] | None = None,
    env: Mapping[str, Any] | None = None,
    rollout: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    switch: Sequence[Mapping[str, Any]] | None = None,
    progress: bool | None = None,
    verbose: bool = False,
    logging: Mapping[str, Any] | None = None,
    **hyperparameters: Any,
) -> Run:
    """Train an agent on an environment, by name.

    Args:
        env_id: any id that `make` takes. Gymnasium's environments are stepped on the host, which is slower.
        agent: "mappo", "reinforce", "deqn" or "pathwise", or a classical solver: a key of
            `equimorph.agents.classical.SOLVERS`.
        iterations, seed, num_seeds: of the run; None takes the preset's.
        out: the run folder; None keeps nothing on disk.
        env: further settings of the environment: `{"concept": "competitive", "params": {"eta": 0.2}}`.
        rollout: `num_envs`, `num_steps`, `fresh_episodes`.
        evaluation: `every` (iterations, during training), `num_episodes`, `horizon`, `seed`.
        switch: other steppers later in the run, `[{"at": 1000, "stepper": "lm"}]`.
        progress: show it, as a bar on a terminal and as plain lines elsewhere; None: only on a terminal.
        verbose: say first what is run: environment, agent, parameters, schedule in gradient steps.
        logging: `tensorboard`, `histograms`, `figures`, `wandb`.
        **hyperparameters: of the agent.

    Returns:
        The run of the first seed; `run.seeds` holds all of them.

    Raises:
        UserError: an unknown name, a value out of range, or a pair that does not fit.

    Example:
        >>> run = train("BrockMirman-v0", "deqn", iterations=2)
        >>> run.policy([0.0, 0.0]).shape
        (1,)
    """
    counts = {"iterations": iterations, "seed": seed, "num_seeds": num_seeds, "switch": switch}
    own = [(env, "id", "env_id"), (hyperparameters, "name", "agent")]
    own += [(logging, name, name) for name in ("progress", "verbose")]
    for given, key, where in own:
        if given and key in given:
            raise UserError(f"{key} = {given[key]!r} has no place here: it is train's argument {where}")
    flags: dict[str, Any] = {
        "env": dict(env or {}),
        "agent": dict(hyperparameters),
        "rollout": dict(rollout or {}),
        "evaluation": dict(evaluation or {}),
        "training": {name: value for name, value in counts.items() if value is not None},
        "logging": {**(logging or {}), "progress": progress, "verbose": verbose},
    }
    if out is not None:
        flags["out"] = os.fspath(out) if isinstance(out, os.PathLike) else out
    return _train(resolve(env_id, agent, flags))[2]


def resume(
    path: str | os.PathLike,
    *,
    checkpoint: int | None = None,
    changes: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
) -> Run:
    """Go on with a run that was interrupted, or make a finished one longer.

    On the same devices the result is that of the run that was never interrupted, bit for bit. Environments that are
    stepped on the host begin new episodes instead.

    Args:
        path: the run folder.
        checkpoint: the iteration to go on from; None takes the latest. Later ones are dropped.
        changes: nested settings that shall be different: `{"training": {"iterations": 400}}`, the agent's stepper,
            learning rate or schedule, and how the run is evaluated, saved, guarded and logged.
        sets: the same as `apply_overrides` takes them, on top.

    Returns:
        The run, with its whole history. One that is finished already is returned as it is.

    Raises:
        UserError: there is no run or no checkpoint, it is damaged, in use, or of another structure, or a change is
            none of those above: the first that differs is named.
    """

    def settings() -> dict[str, Any]:
        check_run_folder(path)
        return load_config(Path(path, CONFIG))

    group = process_group()
    with group.together():
        old = parse(group.of_primary(settings)).model_copy(update={"out": os.fspath(path)})
        new = parse(apply_overrides(merge(old.model_dump(), changes or {}), sets)).model_copy(update={"out": old.out})
        folder = RunFolder.reopen(path) if group.primary else None
        try:
            latest = group.of_primary(lambda: (Checkpoints(path).iterations() or [0])[-1])
            config = resumed_config(old, new, latest if checkpoint is None else checkpoint)
            return _train(config, folder=folder, at=checkpoint, before=old)[2]
        finally:
            if folder is not None:
                folder.release()


def _train(
    config: Config, *, folder: RunFolder | None = None, at: int | None = None, before: Config | None = None
) -> tuple[TrainState, History, Run]:
    """The run itself; files are written as it goes. A run that goes on had the settings `before`."""
    with process_group().together():
        started = start(config, folder=folder, at=at, before=before)
        try:
            started.session.run()
            return started.finish()
        finally:
            if before is None:
                started.release()


class Started(NamedTuple):
    """A run that is ready to go, or to go on.

    Attributes:
        session: what brings it to its end.
        folder: where it is kept.
        untrained: the learner's state before training.
    """

    session: Session
    folder: RunFolder | None
    untrained: PyTree

    @property
    def concept(self) -> str:
        """The equilibrium that its learner finds."""
        return self.session.parts[-1].agent.concept(self.session.env)

    def finish(self) -> tuple[TrainState, History, Run]:
        """Write what the run has come to, and hand it out."""
        session = self.session
        trained = session.final_form(session.state.agent)
        if self.folder is not None:
            self.folder.write_state(trained)
            stopped = session.position.stopped
            self.folder.write_info(session.config, self.concept, self.untrained, finished=True, stopped=stopped)
        history = with_episode_means(session.history())
        return session.state, history, self._runs(trained, history)

    def release(self) -> None:
        """Let others write into its folder."""
        if self.folder is not None:
            self.folder.release()

    def _runs(self, trained: PyTree, history: History) -> Run:
        """The run of every seed; the first one carries them all."""
        session = self.session
        config, count = session.config, session.config.training.num_seeds

        def one(index: int, seeds: Sequence[Run] = ()) -> Run:
            def pick(tree: PyTree) -> PyTree:
                return tree if count == 1 else jax.tree.map(lambda x: x[index], tree)

            mine = {name: values if count == 1 else values[:, index] for name, values in history.items()}
            return Run(
                path=None if config.out is None else Path(config.out),
                config=config,
                env=session.env,
                params=session.params,
                agent=session.parts[-1].agent,
                state=pick(trained),
                untrained_state=pick(self.untrained),
                info={"concept": self.concept},
                history=mine,
                seeds=tuple(seeds),
            )

        first = one(0)
        return one(0, [first, *(one(index) for index in range(1, count))])


def start(
    config: Config, *, folder: RunFolder | None = None, at: int | None = None, before: Config | None = None
) -> Started:
    """Bring a run to where it can go: everything is checked, and its folder says what it is.

    Of several processes the first one alone has the folder.

    Args:
        config: the run's settings.
        folder: that of a run to go on with. The caller releases it.
        at: the iteration of the checkpoint to go on from; None: the latest.
        before: the settings that the run in `folder` had; None begins a new one, where `config.out` says.
    """
    use_compilation_cache()
    env, params, first = build(config)
    parts = stages(config, env, params, first)
    group, state = process_group(), first_state(config, env, params, parts[0])
    if group.size > 1:
        begun = {"checksum": checksum(jax.tree.leaves(to_arrays(without_host(state, env))))}
        group.check_same(settings=config.model_dump(mode="json"), packages=versions(), first_state=begun)
    session = Session(config, env, params, parts, state)
    goes_on = before is not None
    if isinstance(env, HostEnvironment):
        logging.getLogger(__name__).warning("%s is stepped on the host, slower than the compiled loop", env.name)
    if not goes_on and config.out is not None and group.primary:
        folder = RunFolder.create(config.out)
    try:
        if before is not None:
            untrained = _go_on(session, folder, at, before)
        else:
            untrained = jax.tree.map(np.array, session.final_form(session.state.agent))
        started = Started(session, folder, untrained)
        if folder is not None:
            folder.write_config(config)
            folder.write_state(untrained, UNTRAINED)
            folder.write_info(config, started.concept, untrained, finished=False)
            if session.best is not None:
                folder.write_state(session.best, BEST)
            session.attach(folder)
    except BaseException:
        if folder is not None and not goes_on:
            folder.release()
        raise
    return started


def _go_on(session: Session, folder: RunFolder | None, at: int | None, before: Config) -> PyTree:
    """Bring a session to where its run was; returns the untrained learner. The first process reads for all."""
    env, params, parts, config = session.env, session.params, session.parts, session.config
    group, path = process_group(), Path(str(config.out))
    found = Checkpoints(path)
    if group.of_primary(lambda: bool(found.iterations())) or at is not None:
        position = Position(**group.of_primary(lambda: found.record(at)["position"]))
        fresh = first_state(config, env, params, parts[position.part])
        saved = _restored(found, at, fresh, position)
        state = resumed_state(saved, fresh, env, parts[position.part].end)
        session.go_on(state, saved, changed=config != before)

        def best_so_far() -> list[float]:
            best = session.position.best
            with contextlib.suppress(UserError):  # the latest may be why an earlier one was asked for
                latest = found.record()["position"]["best"]
                best = np.fmax(latest, best or latest).tolist()
            found.close()
            Checkpoints(path, keep=config.checkpoint.keep).drop_after(position.iteration)
            return best

        session.position.best = group.of_primary(best_so_far)
    old_agent = stages(before, env, params, build(before)[2])[-1].agent
    like = state_structure(before, env, params, old_agent)

    def carried(name: str) -> PyTree:
        leaves = group.arrays_of_primary(lambda: named_leaves(load_tree(path / name, like)))
        tree = jax.tree.unflatten(jax.tree.structure(like), leaves.values())
        wanted = state_structure(config, env, params, parts[-1].agent)
        if structure(tree) != structure(wanted):  # another stepper
            tree = restart(parts[-1].agent, tree, env, params, config.training.num_seeds)
        return jax.tree.map(np.array, tree)

    if group.of_primary((path / BEST).is_file) and session.position.best:
        session.best = carried(BEST)
    return carried(UNTRAINED)


def _restored(found: Checkpoints, at: int | None, fresh: TrainState, position: Position) -> Saved:
    """A checkpoint of a run that is at `position`, in every process."""
    group = process_group()
    if group.size == 1:
        return found.restore(at, fresh)

    def read() -> dict[str, np.ndarray]:
        saved = found.restore(at, fresh)
        return named_leaves(saved.state) | {f"history/{name}": values for name, values in saved.history.items()}

    arrays = group.arrays_of_primary(read)
    history = {name.removeprefix("history/"): x for name, x in arrays.items() if name.startswith("history/")}
    leaves = [x for name, x in arrays.items() if not name.startswith("history/")]
    return Saved(jax.tree.unflatten(jax.tree.structure(fresh), leaves), history, position)

"""Training as a whole: from a configuration to a trained policy and its record."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..envs.adapters.gymnasium_host import HostEnvironment
from ..errors import UserError
from ..storage import load_tree, structure
from .checkpoint import Checkpoints, Position
from .compilation import use_compilation_cache
from .config import Config, build, parse, resolve
from .loop import TrainState
from .plan import first_state, resumed_state
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
        progress: show it; None: only on a terminal.
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
    for given, key, where in ((env, "id", "env_id"), (hyperparameters, "name", "agent")):
        if given and key in given:
            raise UserError(f"{key} = {given[key]!r} has no place here: it is train's argument {where}")
    flags: dict[str, Any] = {
        "env": dict(env or {}),
        "agent": dict(hyperparameters),
        "rollout": dict(rollout or {}),
        "evaluation": dict(evaluation or {}),
        "training": {name: value for name, value in counts.items() if value is not None},
        "logging": {} if progress is None else {"progress": progress},
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
    check_run_folder(path)
    old = parse(load_config(Path(path, CONFIG))).model_copy(update={"out": os.fspath(path)})
    new = parse(apply_overrides(merge(old.model_dump(), changes or {}), sets)).model_copy(update={"out": old.out})
    folder = RunFolder.reopen(path)
    try:
        saved_at = checkpoint if checkpoint is not None else (Checkpoints(path).iterations() or [0])[-1]
        config = resumed_config(old, new, saved_at)
        return _train(config, folder=folder, at=checkpoint, before=old)[2]
    finally:
        folder.release()


def _train(
    config: Config, *, folder: RunFolder | None = None, at: int | None = None, before: Config | None = None
) -> tuple[TrainState, History, Run]:
    """The run itself; files are written as it goes. With `folder` it goes on there; its settings were `before`."""
    use_compilation_cache()
    env, params, first = build(config)
    parts = stages(config, env, params, first)
    agent = parts[-1].agent
    session = Session(config, env, params, parts, first_state(config, env, params, parts[0]))
    goes_on = folder is not None
    if isinstance(env, HostEnvironment):
        logging.getLogger(__name__).warning("%s is stepped on the host, slower than the compiled loop", env.name)
    if folder is None and config.out is not None:
        folder = RunFolder.create(config.out)
    try:
        concept = agent.concept(env)
        if goes_on:
            assert folder is not None
            assert before is not None
            untrained = _go_on(session, folder, at, before)
        else:
            untrained = jax.tree.map(np.array, session.final_form(session.state.agent))
        if folder is not None:
            folder.write_config(config)
            folder.write_state(untrained, UNTRAINED)
            folder.write_info(config, concept, untrained, finished=False)
            if session.best is not None:
                folder.write_state(session.best, BEST)
            session.attach(folder)
        session.run()
        if folder is not None:
            folder.write_state(session.final_form(session.state.agent))
            stopped = session.position.stopped
            folder.write_info(config, concept, untrained, finished=True, stopped=stopped)
    finally:
        if folder is not None and not goes_on:
            folder.release()
    history = with_episode_means(session.history())
    trained = session.final_form(session.state.agent)
    return session.state, history, _runs(config, env, params, agent, trained, untrained, concept, history)


def _go_on(session: Session, folder: RunFolder, at: int | None, before: Config) -> PyTree:
    """Bring a session to where its run was; returns the untrained learner."""
    env, params, parts, config = session.env, session.params, session.parts, session.config
    found = Checkpoints(folder.path)
    if found.iterations() or at is not None:
        position = Position(**found.record(at)["position"])
        fresh = first_state(config, env, params, parts[position.part])
        saved = found.restore(at, fresh)
        state = resumed_state(saved, fresh, env, parts[position.part].end)
        session.go_on(state, saved, changed=config != before)
        with contextlib.suppress(UserError):  # the latest may be why an earlier one was asked for
            latest = found.record()["position"]["best"]
            session.position.best = np.fmax(latest, session.position.best or latest).tolist()
        found.close()
        Checkpoints(folder.path, keep=config.checkpoint.keep).drop_after(position.iteration)
    old_agent = stages(before, env, params, build(before)[2])[-1].agent
    like = state_structure(before, env, params, old_agent)

    def carried(name: str) -> PyTree:
        tree = load_tree(folder.path / name, like)
        wanted = state_structure(config, env, params, parts[-1].agent)
        if structure(tree) != structure(wanted):  # another stepper
            tree = restart(parts[-1].agent, tree, env, params, config.training.num_seeds)
        return jax.tree.map(np.array, tree)

    if (folder.path / BEST).is_file() and session.position.best:
        session.best = carried(BEST)
    return carried(UNTRAINED)


def _runs(config, env, params, agent, trained: PyTree, untrained: PyTree, concept: str, history: History) -> Run:
    """The run of every seed; the first one carries them all."""
    count = config.training.num_seeds

    def one(index: int, seeds: Sequence[Run] = ()) -> Run:
        def pick(tree: PyTree) -> PyTree:
            return tree if count == 1 else jax.tree.map(lambda x: x[index], tree)

        mine = {name: values if count == 1 else values[:, index] for name, values in history.items()}
        return Run(
            path=None if config.out is None else Path(config.out),
            config=config,
            env=env,
            params=params,
            agent=agent,
            state=pick(trained),
            untrained_state=pick(untrained),
            info={"concept": concept},
            history=mine,
            seeds=tuple(seeds),
        )

    first = one(0)
    return one(0, [first, *(one(index) for index in range(1, count))])

"""Training as a whole: from a configuration to a trained policy and its record."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..agents.agent import Agent, Policy
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .compilation import use_compilation_cache
from .config import Config, build, parse, resolve
from .loop import TrainState, create_train_state, make_train_step
from .metrics import MetricsWriter, Progress
from .run import Run, RunFolder
from .switch import Stage, restart, stages

REPORTS = 40
"""About how many chunks a run has unless told otherwise, and at most how often a game's policy is measured."""

History = dict[str, np.ndarray]
Measure = Callable[[PyTree], np.ndarray]


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
        agent: "mappo", "reinforce" or "deqn", or a classical solver: a key of `equimorph.agents.classical.SOLVERS`.
        iterations, seed, num_seeds: of the run; None takes the preset's.
        out: the run folder; None keeps nothing on disk.
        env: further settings of the environment: `{"concept": "competitive", "params": {"eta": 0.2}}`.
        rollout: `num_envs`, `num_steps`, `fresh_episodes`.
        evaluation: `num_episodes`, `horizon`, `seed`.
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


def _train(config: Config) -> tuple[TrainState, History, Run]:
    """The run itself; files are written as it goes."""
    use_compilation_cache()
    env, params, first = build(config)
    parts = stages(config, env, params, first)
    agent = parts[-1].agent
    rollout, training = config.rollout, config.training
    chunk = iterations_per_chunk(math.gcd(*(part.end for part in parts)), training.iterations_per_chunk)
    counts = {"num_envs": rollout.num_envs, "num_seeds": training.num_seeds}
    steps = [
        make_train_step(
            env,
            params,
            part.agent,
            num_steps=rollout.num_steps,
            iterations=chunk,
            fresh_episodes=rollout.fresh_episodes,
            **counts,
        )
        for part in parts
    ]
    state = create_train_state(env, params, first, num_iterations=parts[0].end, seed=training.seed, **counts)
    folder = None if config.out is None else RunFolder.create(config.out)
    if isinstance(env, HostEnvironment):
        logging.getLogger(__name__).warning("%s is stepped on the host, slower than the compiled loop", env.name)
    start = state.agent if len(parts) == 1 else restart(agent, state.agent, env, params, training.num_seeds)
    untrained = jax.tree.map(np.asarray, start)
    concept = agent.concept(env)
    if folder is not None:
        folder.write_config(config)
        folder.write_state(untrained, untrained=True)
        folder.write_info(config, concept, untrained, finished=False)

    def next_part(state: TrainState, part: Stage) -> TrainState:
        kept = restart(part.agent, state.agent, env, params, training.num_seeds)
        planned = jnp.full_like(state.num_iterations, part.end)
        return state._replace(agent=kept, num_iterations=planned)

    measure = None if folder is None else exploitability_of(env, params, agent, state.agent, training.num_seeds)
    state, history = _run_chunks(list(zip(parts, steps, strict=True)), next_part, state, config, chunk, folder, measure)
    if folder is not None:
        folder.write_state(state.agent)
        folder.write_info(config, concept, state.agent, finished=True)
    runs = _runs(config, env, params, agent, state.agent, untrained, concept, history)
    return state, history, runs


def _run_chunks(
    parts, next_part, state: TrainState, config: Config, chunk: int, folder: RunFolder | None, measure: Measure | None
):
    """Call the compiled chunks until all iterations are done, and report after each."""
    steps = config.rollout.num_envs * config.rollout.num_steps
    iterations = config.training.iterations
    chunks: list[History] = []
    writer = None if folder is None else MetricsWriter(folder.path, tensorboard=config.logging.tensorboard)
    total = steps * config.training.num_seeds
    try:
        with Progress(iterations, total, enabled=config.logging.progress) as progress:
            for part, train_step in parts:
                if part.start:
                    state = next_part(state, part)
                for done in range(part.start + chunk, part.end + 1, chunk):
                    started = time.perf_counter()
                    state, metrics = train_step(state)
                    metrics = {name: np.moveaxis(np.asarray(m), -1, 0) for name, m in metrics.items()}
                    seconds = time.perf_counter() - started
                    chunks.append(_with_episode_means(metrics))
                    check_finite(metrics, done - chunk, folder)
                    report = summary(metrics)
                    progress.update(done, _first(report.get("episode/score", report.get("episode/return"))))
                    if writer is not None:
                        report |= {"time/steps_per_second": chunk * total / seconds, "time/iteration": done}
                        due = done * REPORTS // iterations > (done - chunk) * REPORTS // iterations
                        if measure is not None and due:
                            report["evaluation/exploitability"] = measure(state.agent)
                        writer.write(done * steps, report)
    finally:
        if writer is not None:
            writer.close()
    return state, _joined(chunks)


def exploitability_of(
    env: Environment, params: EnvParams, agent: Agent, state: PyTree, num_seeds: int = 1
) -> Measure | None:
    """How exploitable the policy in a learner's state is, in games that are played once and know their best responses.

    It is measured between chunks, by a program of its own that draws from no key of the run: nothing learnt changes. In
    other games a best response is a dynamic programme, which would cost a good part of the run: `evaluate` has it.

    Args:
        env, params, agent: the pair.
        state: a state of the agent; its shapes only are read.
        num_seeds: above 1, leaves have a leading axis of that length.

    Returns:
        From a state to the most that one player gains by its best deviation, in utility, one number a seed; None where
        it is not measured.
    """
    if not isinstance(env, Economy) or not env.one_shot:
        return None
    from .evaluation.games import is_game  # learners of residuals with it: only where they are needed

    if not is_game(env):
        return None

    def measure(state: PyTree) -> Any:
        return _most_gained(agent.policy(state), params, env=env, seeds=num_seeds > 1)

    return None if eqx.filter_eval_shape(measure, state) is None else lambda state: np.asarray(measure(state))


@eqx.filter_jit
def _most_gained(policy: Policy, params: EnvParams, *, env: Economy, seeds: bool) -> Array | None:
    """The largest gain of a player, of each seed's policy."""
    from .evaluation.rules import PolicyRule

    def one(policy: Policy) -> Array | None:
        decide = PolicyRule(policy).bind(env, params)
        gains = env.exploitability(lambda state: decide(state).action, params)
        return None if gains is None else gains.max()

    return eqx.filter_vmap(one)(policy) if seeds else one(policy)


def _joined(chunks: Sequence[History]) -> History:
    """Every metric over all iterations; NaN where a stepper has no such metric."""
    names = dict.fromkeys(name for chunk in chunks for name in chunk)
    like = {name: chunk[name] for name in names for chunk in chunks if name in chunk}
    absent = {name: np.full_like(values, np.nan, float) for name, values in like.items()}
    return {name: np.concatenate([chunk.get(name, absent[name]) for chunk in chunks]) for name in names}


def check_finite(metrics: Mapping[str, np.ndarray], before: int, folder: RunFolder | None) -> None:
    """Stop at the first loss that is not a number: nothing good comes after it.

    Raises:
        UserError: names the loss and the iteration.
    """
    bad = {name: ~np.isfinite(np.asarray(values)) for name, values in metrics.items() if name.startswith("loss/")}
    bad = {name: flags.reshape(flags.shape[0], -1).any(axis=1) for name, flags in bad.items()}
    broken = [(int(np.argmax(flags)), name) for name, flags in bad.items() if flags.any()]
    if broken:
        first, name = min(broken)
        kept = "" if folder is None else f"; {folder.path} keeps the untrained policy and the metrics so far"
        raise UserError(
            f"{name} is not finite at iteration {before + first + 1}: try a lower agent.learning_rate, or look for "
            f"rewards and observations of the environment that are not finite{kept}"
        )


def iterations_per_chunk(iterations: int, wanted: int | None) -> int:
    """How many iterations one compiled call runs: a divisor, so that nothing is compiled twice.

    Raises:
        UserError: `wanted` does not divide `iterations`; the message names what would.
    """
    small = [d for d in range(1, math.isqrt(iterations) + 1) if iterations % d == 0]
    divisors = sorted({*small, *(iterations // d for d in small)})
    if wanted is None:
        target = max(1.0, iterations / REPORTS)
        return min(divisors, key=lambda d: abs(math.log(d / target)))
    if wanted not in divisors:
        raise UserError(
            f"training.iterations_per_chunk = {wanted} does not divide training.iterations = {iterations}; it can be "
            f"{', '.join(map(str, divisors))}"
        )
    return wanted


def summary(metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One report of a chunk: means over its iterations `[K, ...]`, and over the episodes that ended in it.

    A value is a float, or one a seed; NaN where no episode has ended.
    """
    episodes = {name: values for name, values in metrics.items() if name.startswith("episode/")}
    report = {name: values.mean(axis=0) for name, values in metrics.items() if name not in episodes}
    return report | _episode_means({name: values.sum(axis=0) for name, values in episodes.items()})


def _with_episode_means(metrics: Mapping[str, np.ndarray]) -> History:
    episodes = {name: values for name, values in metrics.items() if name.startswith("episode/")}
    return {name: values for name, values in metrics.items() if name not in episodes} | _episode_means(episodes)


def _episode_means(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Means over finished episodes from their sums; NaN where none has finished."""
    finished = np.asarray(sums["episode/finished"], float)
    count = np.where(finished > 0, finished, np.nan)
    means = {name.removesuffix("_sum"): value / count for name, value in sums.items() if name.endswith("_sum")}
    return means | {"episode/finished": finished}


def _first(value: Any) -> float | None:
    """A single number for the progress bar: the mean over seeds."""
    return None if value is None else float(np.mean(value))


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

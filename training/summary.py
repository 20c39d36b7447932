"""What the iterations of a run come to: histories, reports, and how exploitable a game's policy is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, PyTree

from ..agents.agent import Agent, Policy
from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams
from .collect import BROKEN, BROKEN_ENV

History = dict[str, np.ndarray]
Measure = Callable[[PyTree], np.ndarray]


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


def joined(chunks: Sequence[History]) -> History:
    """Every metric over all iterations; NaN where a stepper has no such metric."""
    like = {name: values for chunk in reversed(chunks) for name, values in chunk.items()}

    def absent(name: str, length: int) -> np.ndarray:
        return np.full((length, *like[name].shape[1:]), np.nan)

    lengths = [len(next(iter(chunk.values()))) for chunk in chunks]
    pieces = list(zip(chunks, lengths, strict=True))
    names = dict.fromkeys(name for chunk in chunks for name in chunk)
    return {name: np.concatenate([c[name] if name in c else absent(name, n) for c, n in pieces]) for name in names}


def latest(chunks: Sequence[History], rows: int) -> History:
    """The metrics of the last so many iterations; only those that the last one has: not those of other steppers."""
    pieces: list[History] = []
    for piece in reversed(chunks):  # no further back: a history is long
        pieces.insert(0, {name: values[-rows:] for name, values in piece.items()})
        rows -= len(pieces[0][BROKEN])
        if not rows:
            break
    return {name: values for name, values in joined(pieces).items() if name in chunks[-1]}


def what_broke(metrics: Mapping[str, np.ndarray], iteration: int, first_seed: int) -> str:
    """What is not finite in the last of some iterations, in which environment and, of several, which seed."""
    last = {name: np.asarray(values[-1]) for name, values in metrics.items()}
    names = [name for name, v in last.items() if name.startswith("loss/") and not np.isfinite(v).all()]
    where = np.atleast_1d(last[BROKEN_ENV])
    seed = int(np.argmax(np.atleast_1d(last[BROKEN]) > 0))
    said = f"{', '.join(names)} is not finite" if names else ""
    if where[seed] >= 0:
        also = " and " if said else ""
        said = f"{said}{also}an observation or reward of environment {where[seed]} is not finite"
    several = f" (seed {first_seed + seed})" if where.size > 1 else ""
    return f"{said} at iteration {iteration}{several}"


def summary(metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One report of a chunk: means over its iterations `[K, ...]`, and over the episodes that ended in it.

    A value is a float, or one a seed; NaN where no episode has ended.
    """
    metrics = {name: values for name, values in metrics.items() if not name.startswith("check/")}
    episodes = {name: values for name, values in metrics.items() if name.startswith("episode/")}
    report = {name: values.mean(axis=0) for name, values in metrics.items() if name not in episodes}
    return report | _episode_means({name: values.sum(axis=0) for name, values in episodes.items()})


def headline(report: Mapping[str, Any]) -> tuple[float | None, str]:
    """How a run does, in one number and its name; a mean over seeds.

    It is the score or the return of episodes, None where none has ended; and of a learner of residuals, which has no
    `loss/policy`, the loss: the sum of its conditions.
    """
    losses = {name: x for name, x in report.items() if name.startswith("loss/") and name != "loss/grad_norm"}
    if losses and "loss/policy" not in losses:
        return float(np.mean(sum(losses.values()))), "loss"
    name = "score" if "episode/score" in report else "return"
    value = np.asarray(report.get(f"episode/{name}", np.nan), float)
    return (float(np.nanmean(value)) if np.isfinite(value).any() else None), name


def with_episode_means(metrics: Mapping[str, np.ndarray]) -> History:
    """A history as it is handed out: means over episodes for their sums, and without the loop's own checks."""
    metrics = {name: values for name, values in metrics.items() if not name.startswith("check/")}
    episodes = {name: values for name, values in metrics.items() if name.startswith("episode/")}
    return {name: values for name, values in metrics.items() if name not in episodes} | _episode_means(episodes)


def _episode_means(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Means over finished episodes from their sums; NaN where none has finished."""
    finished = np.asarray(sums["episode/finished"], float)
    count = np.where(finished > 0, finished, np.nan)
    means = {name.removesuffix("_sum"): value / count for name, value in sums.items() if name.endswith("_sum")}
    return means | {"episode/finished": finished}

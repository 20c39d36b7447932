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


def summary(metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One report of a chunk: means over its iterations `[K, ...]`, and over the episodes that ended in it.

    A value is a float, or one a seed; NaN where no episode has ended.
    """
    metrics = {name: values for name, values in metrics.items() if not name.startswith("check/")}
    episodes = {name: values for name, values in metrics.items() if name.startswith("episode/")}
    report = {name: values.mean(axis=0) for name, values in metrics.items() if name not in episodes}
    return report | _episode_means({name: values.sum(axis=0) for name, values in episodes.items()})


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

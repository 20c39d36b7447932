"""How well a law of motion for mean capital predicts what a policy does: den Haan's dynamic error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from ...envs.economy import Economy
from ...envs.environment import EnvParams
from ...envs.wrappers import innermost
from .rules import Rule

if TYPE_CHECKING:
    from .economies import Case

# solvers whose answer rests on a perceived law of motion for the state's `capital`, apart for each value of its `z`
WITH_LAW = ("krusell_smith",)
PERIODS, BURN = 5000, 500


def dynamic_error(case: Case) -> dict[str, Any] | None:
    """The error of the policy's own log-linear law of capital, fed its own forecasts (Den Haan 2010, JEDC 34).

    The law is fitted to one path of 5,000 periods and put to the test on another, the first 500 of each left out.

    Returns:
        `mean` and `max` of the absolute difference of log capital, and the law's `r_squared` in each aggregate state;
        None where the economy has no such law, or a path does not stay finite.
    """
    if case.env.solver not in WITH_LAW:
        return None
    from ...agents.classical.krusell_smith import den_haan_error, perceived_law

    fitted, tested = (
        [np.asarray(x)[BURN:] for x in _path(case.rule, jax.random.key(case.seed + k), case.params, env=case.env)]
        for k in range(2)
    )
    if not all(np.isfinite(capital).all() and (capital > 0).all() for capital, _ in (fitted, tested)):
        return None
    fit = perceived_law(fitted[0], fitted[1])
    mean, largest = den_haan_error(tested[0], tested[1], fit.law)
    return {"mean": float(mean), "max": float(largest), "r_squared": np.asarray(fit.r_squared).tolist()}


@eqx.filter_jit
def _path(rule: Rule, key: jax.Array, params: EnvParams, *, env: Economy):
    """Mean capital and the aggregate state along one path, `[T]` each."""
    decide = rule.bind(env, params)
    law = env.shocks(params)
    key_start, key_steps = jax.random.split(key)

    def step(state, key_step):
        shock = law.sample(key_step, state)
        following = env.transition(state, decide(state).action, shock, params).replace(time=state.time)
        world = innermost(state)
        return following, (world.capital, world.z)

    return jax.lax.scan(step, env.initial_state(key_start, params), jax.random.split(key_steps, PERIODS))[1]

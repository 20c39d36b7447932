"""A linear income tax with a lump-sum rebate, set by a planner who values the poor more.

Sheshinski (1972), "The optimal linear income tax", REStud 39; Piketty and Saez (2013), "Optimal labor income taxation",
Handbook of Public Economics 5, section 4.1: quasi-linear, isoelastic workers. Played once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from ...errors import UserError
from .. import spaces
from ..economy import Decision, Economy, Residuals
from ..environment import NON_NEGATIVE, POSITIVE, Domain, EnvParams, EnvState, Reference, canonical_params, parameter
from ..shocks import Discrete, no_shock

SKILLS = (0.5, 0.75, 1.0, 1.5, 2.5)
FLOOR = 1e-8


@struct.dataclass
class State(EnvState):
    """The tax rate in force: 0 at first, then the planner's."""

    tax: Float[Array, ""]


@struct.dataclass
class Params(EnvParams):
    """Calibration: five equally large groups."""

    skills: Float[Array, " G"] = parameter(1.0, POSITIVE, "wages n of equally large groups, [G]")
    aversion: float = parameter(1.0, NON_NEGATIVE, "inequality aversion: welfare weights are n^-aversion, of mean 1")
    elasticity: float = parameter(0.5, POSITIVE, "elasticity e of hours with respect to the net wage")
    max_steps_in_episode: int = parameter(1, Domain(1, open_low=False), "rounds; the first one terminates")


@dataclasses.dataclass(frozen=True)
class LinearTax(Economy):
    """Choose the tax rate t: a worker of wage n works h = (n (1 - t))^e and earns z = n h; revenue is shared equally.

    A worker's utility is `(1 - t) z + t mean(z) - h^(1 + 1/e) / (1 + 1/e)`, welfare its mean weighted by fixed weights
    g of mean 1. The best rate is `(1 - gb) / (1 - gb + e)`, gb = sum g z / sum z, which no rate changes.

    The agent is the planner; workers answer by their formula.

    Action: Box(0, 1), shape (1,), the tax rate, centred on 1/2. Observation: 0, there is nothing to see.
    """

    params_type: ClassVar[type[EnvParams]] = Params
    observation_size: ClassVar[int] = 1
    agent_role: ClassVar[str] = "planner"

    @property
    def one_shot(self) -> bool:
        """It is."""
        return True

    @property
    def default_params(self) -> EnvParams:
        """The default calibration, as arrays."""
        return canonical_params(Params(skills=jnp.array(SKILLS)))

    def check_params(self, params: Params) -> None:
        """Skills are a list, one wage for each group."""
        shape = np.shape(params.skills)
        if len(shape) != 1 or not shape[0]:
            raise UserError(
                f"{self.name}: skills has shape {list(shape)}; give a list of wages, one for each group, such as [1, 2]"
            )

    def agent_action_space(self, params: Params) -> spaces.Box:
        """The tax rate."""
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))

    def initial_state(self, key: Array, params: Params) -> State:
        """No tax."""
        return State(jnp.int32(0), jnp.zeros((), jnp.result_type(float)))

    def observation(self, state: State, params: Params) -> Float[Array, " 1"]:
        """Nothing."""
        return jnp.zeros((1,), jnp.result_type(float))

    def shocks(self, params: Params) -> Discrete:
        """None."""
        return no_shock()

    def transition(self, state: State, action: Array, shock: Array, params: Params) -> State:
        """The rate is in force."""
        return state.replace(tax=action[0])

    def reward(self, state: State, action: Array, params: Params) -> Float[Array, ""]:
        """Welfare: the workers' weighted mean utility."""
        return welfare(action[0], params)

    def reward_units(self, params: Params) -> tuple[Array, Array]:
        """Welfare and mean income without a tax."""
        none = jnp.zeros((), jnp.result_type(float))
        return welfare(none, params), income(none, params).mean()

    def floored(self, state: State, action: Array, params: Params) -> Array:
        """Whether the net-of-tax rate was held up."""
        return 1 - action[0] < FLOOR

    def expectation_terms(
        self,
        state: State,
        decision: Decision,
        next_state: State,
        next_decision: Decision,
        params: Params,
        *,
        next_policy: Callable[[State], Decision],
    ) -> Residuals:
        """None: nothing is expected."""
        return {}

    def conditions(self, state: State, decision: Decision, expected: Residuals, params: Params) -> Residuals:
        """`(1 - gb) (1 - t) - e t`: what a higher rate redistributes less what it costs, per unit of income."""
        t = decision.action[0]
        return {"tax": (1 - mean_weight(params)) * (1 - t) - params.elasticity * t}

    def steady_state(self, params: Params) -> tuple[State, Decision]:
        """The best rate in force."""
        best = best_rate(params)
        return State(jnp.int32(0), best), Decision(best[None])

    def definitions(self, state: State, action: Array, params: Params) -> dict[str, Array]:
        """Hours, incomes and utilities `[G]`, the lump sum that revenue pays for, and welfare."""
        z = income(action[0], params)
        return {
            "hours": z / params.skills,
            "income": z,
            "utility": utilities(action[0], params),
            "lump_sum": action[0] * z.mean(),
            "welfare": welfare(action[0], params),
        }

    def reference(self, params: Params) -> Reference:
        """The best rate and its welfare."""
        best = best_rate(params)
        return Reference(lambda state: best[None], lambda state: welfare(best, params), self.concept)


def income(t: Array, params: Params) -> Float[Array, " G"]:
    """z = n^(1 + e) (1 - t)^e."""
    return params.skills ** (1 + params.elasticity) * jnp.maximum(1 - t, FLOOR) ** params.elasticity


def utilities(t: Array, params: Params) -> Float[Array, " G"]:
    """Consumption less the disutility of hours, h^(1 + 1/e) / (1 + 1/e)."""
    z = income(t, params)
    power = 1 + 1 / params.elasticity
    return (1 - t) * z + t * z.mean() - (z / params.skills) ** power / power


def weights(params: Params) -> Float[Array, " G"]:
    """Fixed welfare weights, of mean 1."""
    g = params.skills**-params.aversion
    return g / g.mean()


def welfare(t: Array, params: Params) -> Float[Array, ""]:
    """Mean utility under the welfare weights."""
    return jnp.mean(weights(params) * utilities(t, params))


def mean_weight(params: Params) -> Float[Array, ""]:
    """gb: the welfare weights averaged by income, whose shares no tax rate changes."""
    z = income(jnp.zeros((), jnp.result_type(float)), params)
    return jnp.sum(weights(params) * z) / jnp.sum(z)


def best_rate(params: Params) -> Float[Array, ""]:
    """(1 - gb) / (1 - gb + e)."""
    gain = 1 - mean_weight(params)
    return gain / (gain + params.elasticity)


def laffer_rate(params: Params) -> Float[Array, ""]:
    """1 / (1 + e): the rate of the highest revenue."""
    return jnp.asarray(1 / (1 + params.elasticity))

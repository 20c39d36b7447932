"""Economies: one model, written once, for learners of rewards and learners of residuals.

Timing, for every economy: the state is beginning-of-period, the shock in it has been seen, the action is chosen,
utility is earned, and next period's shock leads to the next state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..errors import unknown
from . import spaces
from .environment import Environment, EnvParams, EnvState, canonical_params
from .pictures import draw_state
from .shocks import ShockLaw

Residuals = dict[str, Array]
"""Named arrays: terms inside an expectation, expectations, conditions, errors."""

REWARD_SCALES = ("consumption", "utility")
TEAM_CONCEPTS = ("planner", "cooperative")


class Decision(NamedTuple):
    """What a residual learner outputs in one state.

    Attributes:
        action: in the environment's own shape and units.
        auxiliary: multipliers and prices in the bounds of `Economy.auxiliary`, `[..]` or `[A, ..]`; None if there are
            none.
    """

    action: PyTree
    auxiliary: PyTree = None


@dataclasses.dataclass(frozen=True)
class Economy(Environment):
    """An environment with explicit shocks, a transition, and equilibrium conditions.

    A subclass is a frozen dataclass that defines `params_type`, `initial_state`, `observation`, `shocks`,
    `transition` and `reward`; with `expectation_terms` and `conditions` residual learners can solve it too. `step_env`,
    `reset_env` and `observe` are derived here and are not overridden.

    With several agents `reward` is `[A]`, each agent's own. A learner earns it as it is, except under the concepts of a
    team ("planner", "cooperative"), where all earn the mean.

    Attributes:
        concept: the equilibrium concept; decides which conditions hold, whose reward is earned and which reference
            scores.
        reward_scale: "consumption", a share of a fixed consumption, or "utility", raw.
    """

    params_type: ClassVar[type[EnvParams]]
    observation_size: ClassVar[int]
    concepts: ClassVar[tuple[str, ...]] = ("planner",)
    # The classical solver whose answer scores policies where `reference` has none; a key of `agents.classical.SOLVERS`.
    solver: ClassVar[str | None] = None
    # Conditions that are Fischer-Burmeister functions: complementarity, reported apart from Euler errors.
    complementarity: ClassVar[tuple[str, ...]] = ()

    concept: str = "planner"
    reward_scale: str = "consumption"

    # -- the economics ----------------------------------------------------------------------------------------------

    def initial_state(self, key: Array, params: EnvParams) -> EnvState:
        """A state to start an episode from, its `time` 0."""
        raise NotImplementedError

    def observation(self, state: EnvState, params: EnvParams) -> Float[Array, "..."]:
        """What an agent sees, centred and scaled by the economy itself, of order one; `[O]` or `[A, O]`."""
        raise NotImplementedError

    def shocks(self, params: EnvParams) -> ShockLaw:
        """The law of next period's shock."""
        raise NotImplementedError

    def transition(self, state: EnvState, action: PyTree, shock: Array, params: EnvParams) -> EnvState:
        """Next period's state: deterministic given the shock, without reset; `time` is not its business."""
        raise NotImplementedError

    def reward(self, state: EnvState, action: PyTree, params: EnvParams) -> Float[Array, "..."]:
        """Utility, raw; scalar or [A]."""
        raise NotImplementedError

    def reward_units(self, params: EnvParams) -> tuple[Any, Any]:
        """`(u, m)`: utility at a fixed consumption, and that consumption times its marginal utility.

        With `reward_scale="consumption"` the reward of a step is `(utility - u) / m`: a share of that consumption.
        Unless overridden `(0, 1)`, which leaves utility as it is.
        """
        return 0.0, 1.0

    def expectation_terms(
        self,
        state: EnvState,
        decision: Decision,
        next_state: EnvState,
        next_decision: Decision,
        params: EnvParams,
        *,
        next_policy: Callable[[EnvState], Decision],
    ) -> Residuals:
        """`{name: h}`: what stands inside the conditional expectation, at one realisation of the shock."""
        raise NotImplementedError

    def conditions(self, state: EnvState, decision: Decision, expected: Residuals, params: EnvParams) -> Residuals:
        """`{name: g}`: unit-free residuals given the expectations of `expectation_terms`.

        Affine in `expected` where the condition is smooth, so that a product of two independent estimates is unbiased.
        """
        raise NotImplementedError

    def euler_error(self, state: EnvState, decision: Decision, expected: Residuals, params: EnvParams) -> Residuals:
        """`{name: e}`: residuals in units of consumption, for reports only; empty where the economy has none."""
        return {}

    def steady_state(self, params: EnvParams) -> tuple[EnvState, Decision] | None:
        """A fixed point of the transition at the mean shock, or None."""
        return None

    def auxiliary(self, params: EnvParams) -> spaces.Box | None:
        """Multipliers and prices of one agent: extra outputs of a residual learner, never an action.

        Bounds that are both finite are reached by a sigmoid, a lower one alone by a softplus.
        """
        return None

    def slacks(self, state: EnvState, decision: Decision, params: EnvParams) -> Residuals:
        """`{name: y}`: unit-free distances from limits that bind in some states, 0 where they bind; for reports."""
        return {}

    def exploitability(self, policy: Callable[[EnvState], PyTree], params: EnvParams) -> Float[Array, " A"] | None:
        """What each player would gain by its best deviation while the others keep to `policy`, where that is known.

        In discounted utility from the economy's usual first state, not negative. None: no closed form or recursion is
        at hand, and a report trains a best response instead.

        Args:
            policy: from a state to the actions of all, `[A, ...]`.
            params: the parameters.
        """
        return None

    def definitions(self, state: EnvState, action: PyTree, params: EnvParams) -> dict[str, Array]:
        """Output, consumption, prices, shares: named quantities for reports."""
        return {}

    def effective_discount(self, state: EnvState, action: PyTree, params: EnvParams) -> Float[Array, ""]:
        """Expected discount of next period's utility relative to today's scale.

        Equal to beta unless utility has a trend; where its geometric mean along a path is 1 or more, the value of the
        policy is not finite.
        """
        return self.discount_factor(params)

    def consumption_equivalent(
        self, value: Float[Array, ""], reference: Float[Array, ""], params: EnvParams
    ) -> Float[Array, ""] | None:
        """Share of consumption one would give up for ever to have `reference` instead of `value`; None if undefined."""
        return None

    def floored(self, state: EnvState, action: PyTree, params: EnvParams) -> Bool[Array, ""]:
        """Whether consumption (or capital) had to be held up by the economy's floor."""
        return jnp.zeros((), bool)

    def flags(self, state: EnvState, action: PyTree, params: EnvParams) -> dict[str, Bool[Array, ""]]:
        """Further warnings of a step for `info`, such as "rationed"."""
        return {}

    @property
    def one_shot(self) -> bool:
        """Whether it is played once: the first step terminates, and nothing is discounted."""
        return False

    # -- derived ----------------------------------------------------------------------------------------------------

    def __post_init__(self):
        if self.reward_scale not in REWARD_SCALES:
            raise unknown(f"reward_scale of {self.name}", str(self.reward_scale), REWARD_SCALES)
        if self.concept not in self.concepts:
            raise unknown(f"concept of {self.name}", str(self.concept), self.concepts)

    @property
    def default_params(self) -> EnvParams:
        """The default calibration, as arrays."""
        return canonical_params(self.params_type())

    @property
    def capabilities(self) -> frozenset[str]:
        """What it offers: "economy", "differentiable", and "conditions" where the economy declares them."""
        declared = type(self).conditions is not Economy.conditions
        return super().capabilities | {"economy"} | ({"conditions"} if declared else set())

    def agent_observation_space(self, params: EnvParams) -> spaces.Box:
        """Unbounded reals of the economy's `observation_size`."""
        big = float(jnp.finfo(jnp.result_type(float)).max)
        return spaces.Box(-big, big, (self.observation_size,), jnp.result_type(float))

    def is_truncated(self, state: EnvState, params: EnvParams) -> Bool[Array, ""]:
        """At the time limit; never where it is played once and terminates anyway."""
        return jnp.zeros((), bool) if self.one_shot else super().is_truncated(state, params)

    def discount_factor(self, params: EnvParams) -> Float[Array, ""]:
        """The economy's own beta; 1 where it is played once."""
        return jnp.ones((), jnp.result_type(float)) if self.one_shot else params.beta

    def scaled_reward(self, utility: Array, params: EnvParams) -> Array:
        """`utility` in the units of `reward_scale`."""
        if self.reward_scale == "utility":
            return utility
        base, unit = self.reward_units(params)
        return (utility - base) / unit

    def earned(self, utility: Float[Array, "..."], params: EnvParams) -> Float[Array, "..."]:
        """What agents earn of everyone's `utility`, scalar or [A]: their own, or a team's mean."""
        if self.num_agents > 1 and self.concept in TEAM_CONCEPTS:
            return jnp.broadcast_to(utility.mean(), utility.shape)
        return utility

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: EnvParams) -> Float[Array, "..."]:
        """The observation of `state`; it needs no randomness."""
        return self.observation(state, params)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Array, EnvState]:
        """A first observation and state."""
        state = self.initial_state(key, params)
        return self.observation(state, params), state

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[Array, EnvState, Array, Array, dict[str, Array]]:
        """One period. Unless it is played once it never terminates: the time limit truncates.

        `info` has `utility` (raw), `action_clipped` (the action lay outside its bounds), `floored` and the economy's
        `flags`.
        """
        action, clipped = self.legal_action(action, params)
        shock = self.shocks(params).sample(key, state)
        next_state = self.transition(state, action, shock, params).replace(time=state.time + 1)
        utility = self.reward(state, action, params)
        info = {"utility": utility, "action_clipped": clipped, "floored": self.floored(state, action, params)}
        info |= self.flags(state, action, params)
        reward = self.scaled_reward(self.earned(utility, params), params)
        return self.observation(next_state, params), next_state, reward, jnp.full((), self.one_shot), info

    def render(self, state: EnvState, params: EnvParams) -> np.ndarray:
        """The state in its phase plane, or as bars where it has one quantity; what agents hold as bars; uint8[H, W, 3].

        Args:
            state: one state, or a path, leaves `[T, ...]`: drawn as a line, the last state is the present.
            params: the parameters.
        """
        steady = self.steady_state(params)
        path = np.ndim(state.time) == 1
        return draw_state(
            f"{self.name}, t = {int(np.ravel(state.time)[-1])}",
            {name: value if path else value[None] for name, value in _quantities(state).items()},
            None if steady is None else _quantities(steady[0]),
        )


def _quantities(state: EnvState) -> dict[str, np.ndarray]:
    """A state's named numbers, without the time."""
    leaves = {jax.tree_util.keystr(path).strip("."): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    keys = {name for name, leaf in leaves.items() if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)}
    return {name: np.asarray(leaf, float) for name, leaf in leaves.items() if name not in keys | {"time"}}

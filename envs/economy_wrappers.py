"""Economies around economies: what solves, scores and reports on economies takes them as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Float, PyTree

from . import spaces
from .economy import Decision, Economy, Residuals
from .environment import EnvParams, EnvState, Reference
from .shocks import Normal, ShockLaw
from .wrappers import Wrapper, on_inner


@dataclasses.dataclass(frozen=True)
class EconomyWrapper(Wrapper, Economy):
    """An economy that is `inner` in everything that a subclass leaves as it is.

    Its state has `inner`'s in it. A subclass says how: `core`, `wrap` and `following`, and `at` where parameters depend
    on the state.
    """

    inner: Economy  # pyright: ignore[reportGeneralTypeIssues]  # the fields before it are no arguments
    # As `inner`: neither is an argument.
    concept: str = dataclasses.field(init=False)
    reward_scale: str = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "reward_scale", self.inner.reward_scale)

    # -- what a subclass says -------------------------------------------------------------------------------------

    def core(self, state: EnvState) -> EnvState:
        """`inner`'s state, in the same period."""
        return state.inner.replace(time=state.time)

    def wrap(self, inner: EnvState, params: EnvParams) -> EnvState:
        """The state of a first period in which `inner` is in this one."""
        raise NotImplementedError

    def following(self, state: EnvState, inner: EnvState, params: EnvParams) -> EnvState:
        """The state after `state` in which `inner` is in this one."""
        raise NotImplementedError

    def solvable(self) -> Economy:
        """The economy that a classical solver solves in this one's place.

        Raises:
            UserError: there is none.
        """
        raise NotImplementedError

    # -- as inner -------------------------------------------------------------------------------------------------

    @property
    def params_type(self) -> type[EnvParams]:
        """As `inner`."""
        return self.inner.params_type

    @property
    def observation_size(self) -> int:
        """Length of one agent's flat observation."""
        return spaces.flat_size(self.agent_observation_space(self.default_params))

    @property
    def concepts(self) -> tuple[str, ...]:
        """As `inner`."""
        return self.inner.concepts

    @property
    def solver(self) -> str | None:
        """As `inner`."""
        return self.inner.solver

    @property
    def complementarity(self) -> tuple[str, ...]:
        """As `inner`."""
        return self.inner.complementarity

    @property
    def one_shot(self) -> bool:
        """As `inner`."""
        return self.inner.one_shot

    @property
    def capabilities(self) -> frozenset[str]:
        """As `inner`."""
        return self.inner.capabilities

    # A wrapper of any environment hands these on; an economy derives them from its own transition.

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: EnvParams) -> Float[Array, "..."]:
        return Economy.observe(self, key, state, action, params)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Array, EnvState]:
        return Economy.reset_env(self, key, params)

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[Array, EnvState, Array, Array, dict[str, Array]]:
        return Economy.step_env(self, key, state, action, params)

    def initial_state(self, key: Array, params: EnvParams) -> EnvState:
        return self.wrap(self.inner.initial_state(key, params), params)

    def observation(self, state: EnvState, params: EnvParams) -> Float[Array, "..."]:
        return self.inner.observation(self.core(state), self.at(state, params))

    def shocks(self, params: EnvParams) -> ShockLaw:
        """`inner`'s law, which reads `inner`'s state."""
        law = self.inner.shocks(self.usual(params))
        return law if isinstance(law, Normal) else WrappedShocks(law, params, self)

    def transition(self, state: EnvState, action: PyTree, shock: Array, params: EnvParams) -> EnvState:
        inner = self.inner.transition(self.core(state), action, shock, self.at(state, params))
        return self.following(state, inner, params)

    def reward(self, state: EnvState, action: PyTree, params: EnvParams) -> Float[Array, "..."]:
        return self.inner.reward(self.core(state), action, self.at(state, params))

    def reward_units(self, params: EnvParams) -> tuple[Any, Any]:
        return self.inner.reward_units(self.usual(params))

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
        # The states that `inner` asks about are other outcomes of the one that it plays in.
        near = state if self.one_shot else next_state
        return self.inner.expectation_terms(
            self.core(state),
            decision,
            self.core(next_state),
            next_decision,
            self.at(state, params),
            next_policy=lambda inner: next_policy(near.replace(inner=inner)),
        )

    def conditions(self, state: EnvState, decision: Decision, expected: Residuals, params: EnvParams) -> Residuals:
        return self.inner.conditions(self.core(state), decision, expected, self.at(state, params))

    def euler_error(self, state: EnvState, decision: Decision, expected: Residuals, params: EnvParams) -> Residuals:
        return self.inner.euler_error(self.core(state), decision, expected, self.at(state, params))

    def steady_state(self, params: EnvParams) -> tuple[EnvState, Decision] | None:
        found = self.inner.steady_state(self.usual(params))
        return None if found is None else (self.wrap(found[0], params), found[1])

    def auxiliary(self, params: EnvParams) -> spaces.Box | None:
        return self.inner.auxiliary(self.usual(params))

    def slacks(self, state: EnvState, decision: Decision, params: EnvParams) -> Residuals:
        return self.inner.slacks(self.core(state), decision, self.at(state, params))

    def exploitability(self, policy: Callable[[EnvState], PyTree], params: EnvParams) -> Float[Array, " A"] | None:
        return self.inner.exploitability(lambda inner: policy(self.wrap(inner, params)), self.usual(params))

    def definitions(self, state: EnvState, action: PyTree, params: EnvParams) -> dict[str, Array]:
        return self.inner.definitions(self.core(state), action, self.at(state, params))

    def effective_discount(self, state: EnvState, action: PyTree, params: EnvParams) -> Float[Array, ""]:
        return self.inner.effective_discount(self.core(state), action, self.at(state, params))

    def consumption_equivalent(
        self, value: Float[Array, ""], reference: Float[Array, ""], params: EnvParams
    ) -> Float[Array, ""] | None:
        return self.inner.consumption_equivalent(value, reference, params)

    def floored(self, state: EnvState, action: PyTree, params: EnvParams) -> Bool[Array, ""]:
        return self.inner.floored(self.core(state), action, self.at(state, params))

    def flags(self, state: EnvState, action: PyTree, params: EnvParams) -> dict[str, Bool[Array, ""]]:
        return self.inner.flags(self.core(state), action, self.at(state, params))

    def reference(self, params: EnvParams) -> Reference | None:
        found = self.inner.reference(params)
        return None if found is None else on_inner(found, self.core)


class WrappedShocks(ShockLaw):
    """The law of an economy inside a wrapper, as it is in the wrapper's states.

    Attributes:
        law: `inner`'s where no state is at hand: its rules are the same everywhere.
        params: the wrapper's parameters.
        env: the wrapper.
    """

    law: ShockLaw
    params: EnvParams
    env: EconomyWrapper = eqx.field(static=True)

    @property
    def rules(self) -> tuple[str, ...]:
        return self.law.rules

    def _in(self, state: EnvState) -> tuple[ShockLaw, EnvState]:
        return self.env.inner.shocks(self.env.at(state, self.params)), self.env.core(state)

    def sample(self, key: Array, state: EnvState) -> Array:
        law, inner = self._in(state)
        return law.sample(key, inner)

    def draws(self, key: Array, count: int, state: EnvState) -> Array:
        law, inner = self._in(state)
        return law.draws(key, count, inner)

    def nodes(self, rule: str, order: int, state: EnvState) -> tuple[Array, Float[Array, " J"]]:
        law, inner = self._in(state)
        return law.nodes(rule, order, inner)

    def check_rule(self, rule: str) -> None:
        self.law.check_rule(rule)

    def takes_order(self, rule: str) -> bool:
        return self.law.takes_order(rule)

    def finest(self) -> tuple[str, int]:
        return self.law.finest()

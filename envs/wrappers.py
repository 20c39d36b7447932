"""Environments around environments: another view of the same world."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..errors import UserError
from . import spaces
from .environment import Environment, EnvParams, EnvState, Reference


@struct.dataclass
class WrappedState(EnvState):
    """A state inside another that carries more.

    Attributes:
        inner: the state of the environment that is wrapped.
    """

    inner: Any


def innermost(state: EnvState) -> EnvState:
    """The state of the environment that all wrappers are around: what the world itself is in."""
    while isinstance(state, WrappedState):
        state = state.inner
    return state


def with_innermost(state: EnvState, inner: EnvState) -> EnvState:
    """`state` with another state of the environment that all wrappers are around."""
    return state.replace(inner=with_innermost(state.inner, inner)) if isinstance(state, WrappedState) else inner


@dataclasses.dataclass(frozen=True)
class Wrapper(Environment):
    """An environment that is `inner` in everything that a subclass leaves as it is."""

    inner: Environment

    def core(self, state: EnvState) -> EnvState:
        """`inner`'s state in `state`: the same one, where a subclass adds nothing to it."""
        return state

    def at(self, state: EnvState, params: EnvParams) -> EnvParams:
        """`inner`'s parameters in `state`: `params`, where a subclass does not change them."""
        return params

    def usual(self, params: EnvParams) -> EnvParams:
        """`inner`'s parameters where no state is at hand."""
        return params

    @property
    def agent_role(self) -> str:
        """As `inner`."""
        return self.inner.agent_role

    @property
    def exchangeable(self) -> bool:
        """As `inner`."""
        return self.inner.exchangeable

    @property
    def num_agents(self) -> int:
        """As `inner`."""
        return self.inner.num_agents

    @property
    def concept(self) -> str:
        """As `inner`."""
        return self.inner.concept

    @property
    def name(self) -> str:
        """Its own and `inner`'s."""
        return f"{type(self).__name__}({self.inner.name})"

    @property
    def default_params(self) -> EnvParams:
        """As `inner`."""
        return self.inner.default_params

    @property
    def supports_transition_gradients(self) -> bool:
        """As `inner`."""
        return self.inner.supports_transition_gradients

    @property
    def capabilities(self) -> frozenset[str]:
        """Of `inner`'s, what does not depend on the form of an action: "differentiable" and "score"."""
        return self.inner.capabilities & {"differentiable", "score"}

    @property
    def transition_gradients_enabled(self) -> bool:
        """As `inner`."""
        return self.inner.transition_gradients_enabled

    def with_transition_gradients(self):
        """The same around `inner` with them."""
        return dataclasses.replace(self, inner=self.inner.with_transition_gradients())

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        return self.inner.agent_action_space(self.usual(params))

    def agent_observation_space(self, params: EnvParams) -> spaces.Space:
        return self.inner.agent_observation_space(self.usual(params))

    def agent_mask(self, state: EnvState, params: EnvParams) -> Bool[Array, " A"]:
        return self.inner.agent_mask(self.core(state), self.at(state, params))

    def action_mask(self, state: EnvState, params: EnvParams) -> PyTree | None:
        return self.inner.action_mask(self.core(state), self.at(state, params))

    def world_state(self, state: EnvState, params: EnvParams) -> Float[Array, " S"]:
        return self.inner.world_state(self.core(state), self.at(state, params))

    def discount_factor(self, params: EnvParams) -> Float[Array, ""]:
        return self.inner.discount_factor(self.usual(params))

    def step_discount(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Float[Array, "..."]:
        return self.inner.step_discount(self.core(state), self.core(next_state), self.at(state, params))

    def centre(self, params: EnvParams) -> PyTree:
        return self.inner.centre(self.usual(params))

    def successor(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Int[Array, " A"]:
        return self.inner.successor(self.core(state), self.core(next_state), self.at(state, params))

    def inherits(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Int[Array, " A"]:
        return self.inner.inherits(self.core(state), self.core(next_state), self.at(state, params))

    def agent_roles(self, params: EnvParams) -> Int[np.ndarray, " A"] | None:
        return self.inner.agent_roles(self.usual(params))

    def check_params(self, params: EnvParams) -> None:
        self.inner.check_params(params)

    def score(self, state: EnvState, params: EnvParams) -> Float[Array, ""]:
        return self.inner.score(self.core(state), self.at(state, params))

    def render(self, state: EnvState, params: EnvParams):
        return self.inner.render(self.core(state), self.usual(params))

    def is_truncated(self, state: EnvState, params: EnvParams) -> Array:
        return self.inner.is_truncated(self.core(state), self.usual(params))

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: EnvParams) -> PyTree:
        return self.inner.observe(key, state, action, params)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[PyTree, EnvState]:
        return self.inner.reset_env(key, params)

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[PyTree, EnvState, Array, Array, dict]:
        return self.inner.step_env(key, state, action, params)


@dataclasses.dataclass(frozen=True)
class RescaleAction(Wrapper):
    """Actions in [-1, 1], mapped affinely onto `inner`'s bounds.

    For learners whose untrained action is 0: that is then the middle of the bounds, not their edge.

    Raises:
        UserError: `inner`'s action is not a Box.
    """

    def __post_init__(self):
        space = self.inner.agent_action_space(self.inner.default_params)
        if not isinstance(space, spaces.Box):
            raise UserError(f"RescaleAction needs an action that is a Box, and {self.inner.name} has {space!r}")

    def agent_action_space(self, params: EnvParams) -> spaces.Box:
        """A Box between -1 and 1."""
        space = self.inner.agent_action_space(params)
        return spaces.Box(-1.0, 1.0, space.shape, space.dtype)

    def centre(self, params: EnvParams) -> Array:
        """`inner`'s, in the new units."""
        space = self.inner.agent_action_space(params)
        return 2 * (self.inner.centre(params) - space.low) / (space.high - space.low) - 1

    def to_inner(self, action: Float[Array, "..."], params: EnvParams) -> Float[Array, "..."]:
        """The action in `inner`'s units."""
        space = self.inner.action_space(params)
        return space.low + (action + 1) / 2 * (space.high - space.low)

    def reference(self, params: EnvParams) -> Reference | None:
        """`inner`'s, in the new units."""
        found = self.inner.reference(params)
        if found is None:
            return None
        space = self.inner.action_space(params)

        def policy(state):
            return 2 * (found.policy(state) - space.low) / (space.high - space.low) - 1

        return found._replace(policy=policy)

    def step_env(
        self, key: Array, state: EnvState, action: Float[Array, "..."], params: EnvParams
    ) -> tuple[PyTree, EnvState, Array, Array, dict]:
        """`inner`'s step with the action in its units."""
        return self.inner.step_env(key, state, self.to_inner(jnp.asarray(action), params), params)


@dataclasses.dataclass(frozen=True)
class Pooled(Wrapper):
    """A population under one controller that sees the global view and gives all the same action.

    Observation: `inner.world_state`, `[S]`. Action: one agent's. Reward: the mean of the living, 0 where nobody lives.
    For learners that know a single agent.
    """

    @property
    def num_agents(self) -> int:
        """The controller."""
        return 1

    @property
    def concept(self) -> str:
        """One controller that earns the mean is a planner."""
        return "planner"

    def agent_observation_space(self, params: EnvParams) -> spaces.Box:
        """Reals, as many as the global view has."""
        shape = jax.eval_shape(self.reset_env, jax.random.key(0), params)[0].shape
        big = float(jnp.finfo(jnp.result_type(float)).max)
        return spaces.Box(-big, big, shape, jnp.result_type(float))

    def agent_mask(self, state: EnvState, params: EnvParams) -> Bool[Array, " 1"]:
        """The controller is always there."""
        return jnp.ones((1,), bool)

    def action_mask(self, state: EnvState, params: EnvParams) -> PyTree | None:
        """What all living agents may do."""
        mask = self.inner.action_mask(state, params)
        if mask is None:
            return None
        dead = ~self.inner.agent_mask(state, params)

        def of_all(legal: Bool[Array, "A ..."]) -> Bool[Array, "1 ..."]:
            return jnp.all(legal | dead.reshape(-1, *(1,) * (legal.ndim - 1)), axis=0, keepdims=True)

        return jax.tree.map(of_all, mask)

    def step_discount(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Float[Array, ""]:
        """The mean over agents."""
        return jnp.mean(self.inner.step_discount(state, next_state, params))

    def successor(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Int[Array, " 1"]:
        """Itself."""
        return jnp.zeros((1,), jnp.int32)

    def inherits(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Int[Array, " 1"]:
        """Its own memory."""
        return jnp.zeros((1,), jnp.int32)

    def agent_roles(self, params: EnvParams) -> None:
        """One controller has no roles."""
        return None

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: EnvParams) -> Float[Array, " S"]:
        """`inner`'s global view."""
        return self.inner.world_state(state, params)

    def world_state(self, state: EnvState, params: EnvParams) -> Float[Array, " S"]:
        """What the controller sees."""
        return self.inner.world_state(state, params)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Float[Array, " S"], EnvState]:
        """`inner`'s start, in the global view."""
        _, state = self.inner.reset_env(key, params)
        return self.inner.world_state(state, params), state

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[Float[Array, " S"], EnvState, Array, Array, dict]:
        """The same action for everybody."""
        agents = self.inner.num_agents
        everybody = jax.tree.map(lambda a: jnp.broadcast_to(a, (agents, *jnp.shape(a))), action)
        _, next_state, reward, terminated, info = self.inner.step_env(key, state, everybody, params)
        alive = self.inner.agent_mask(state, params)
        mean = jnp.where(alive, reward, 0).sum() / jnp.maximum(alive.sum(), 1)
        return self.inner.world_state(next_state, params), next_state, mean, terminated, info


def on_inner(reference: Reference, core: Any) -> Reference:
    """A known answer as functions of the states that `core` takes to those that it is for."""

    def through(function: Any) -> Any:
        return None if function is None else lambda state: function(core(state))

    policy, value, auxiliary = map(through, (reference.policy, reference.value, reference.auxiliary))
    return reference._replace(policy=policy, value=value, auxiliary=auxiliary)

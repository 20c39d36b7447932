"""gymnax's environments, in: one agent, the same dynamics, strongly typed states."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ...errors import UserError, unknown
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, canonical_params
from ..registry import override_params
from ._typed import ByConfiguration, hashable, strong


@dataclasses.dataclass(frozen=True, eq=False)
class GymnaxEnvironment(ByConfiguration, Environment):
    """Any gymnax 1.0 environment as one of ours, with a single agent.

    Dynamics, rewards, spaces and ends of episodes are `inner`'s. Two wrappers of equally configured environments are
    equal and share one compilation.

    Attributes:
        inner: a gymnax environment.
        id: the id it is known by.
    """

    inner: Any
    id: str

    @property
    def name(self) -> str:
        """The id it was made with."""
        return self.id

    def _configuration(self) -> tuple:
        settings = ((name, hashable(value)) for name, value in sorted(vars(self.inner).items()))
        return (self.id, type(self.inner), *settings)

    @property
    def default_params(self) -> EnvParams:
        """`inner`'s, as arrays."""
        return canonical_params(self.inner.default_params)

    @property
    def supports_transition_gradients(self) -> bool:
        """As `inner` says."""
        return self.inner.supports_transition_gradients

    @property
    def transition_gradients_enabled(self) -> bool:
        """As `inner` says."""
        return self.inner.transition_gradients_enabled

    def with_transition_gradients(self) -> GymnaxEnvironment:
        """A copy around `inner.with_transition_gradients()`, not equal to this one.

        Raises:
            ValueError: `inner`'s transitions are not differentiable.
        """
        return dataclasses.replace(self, inner=self.inner.with_transition_gradients())

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """`inner`'s."""
        return self.inner.action_space(params)

    def agent_observation_space(self, params: EnvParams) -> spaces.Space:
        """`inner`'s."""
        return self.inner.observation_space(params)

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: EnvParams) -> PyTree:
        """`inner`'s observation of `state`."""
        return strong(self.inner.observe(key, state, action, params))

    def reset_env(self, key: Array, params: EnvParams) -> tuple[PyTree, EnvState]:
        """`inner.reset_env`, strongly typed."""
        return strong(self.inner.reset_env(key, params))

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[PyTree, EnvState, Array, Array, dict]:
        """`inner.step_env`, with leaves of the types that `state` came with."""
        observation, next_state, reward, terminated, info = self.inner.step_env(key, state, action, params)
        next_state = jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), next_state, state)
        reward = jnp.asarray(reward).astype(jnp.result_type(float))
        return strong(observation), next_state, reward, jnp.asarray(terminated).astype(bool), strong(info)

    def is_truncated(self, state: EnvState, params: EnvParams) -> Array:
        """As `inner` says."""
        return jnp.asarray(self.inner.is_truncated(state, params)).astype(bool)


def make_gymnax(id: str, **overrides: Any) -> tuple[GymnaxEnvironment, EnvParams]:
    """`gymnax.make(id)` behind our contract.

    Args:
        id: one of `gymnax.registered_envs`.
        **overrides: constructor options and parameters of that environment.

    Raises:
        UserError: an unknown option or parameter.
    """
    if id not in gymnax.registered_envs:
        raise unknown("environment of gymnax's", id, gymnax.registered_envs)
    probe, defaults = gymnax.make(id)
    options = [name for name in inspect.signature(type(probe).__init__).parameters if name not in ("self", "kwargs")]
    chosen = {name: value for name, value in overrides.items() if name in options}
    inner = gymnax.make(id, **chosen)[0] if chosen else probe
    environment = GymnaxEnvironment(inner, id)
    values = {name: value for name, value in overrides.items() if name not in options}
    if not dataclasses.is_dataclass(defaults):
        raise UserError(f"{id}: its parameters are not a dataclass and cannot be overridden by name")
    return environment, override_params(id, environment.default_params, values, options)

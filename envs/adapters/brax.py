"""Brax's environments, in: one agent, the same physics, strongly typed states, a time limit that truncates."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from ...errors import unknown
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, canonical_params
from ..registry import override_params
from ._construct import construct, split_overrides
from ._optional import require
from ._typed import ByConfiguration, hashable, like, strong

TIME_LIMIT = 1000
"""Steps in an episode unless set; the usual length of Brax's benchmarks."""


@struct.dataclass
class BraxState(EnvState):
    """Steps since reset, and Brax's own state."""

    inner: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class BraxEnvironment(ByConfiguration, Environment):
    """A Brax environment without Brax's wrappers. Two made by the same name with the same options are equal.

    Actions lie in [-1, 1], which the environments themselves scale to their actuators. Brax's `done` is termination.
    Its physics keeps the precision that it was made under: for float64, make it under `jax.enable_x64`.

    Attributes:
        id: Brax's name of it, such as "ant".
        options: its constructor's keyword arguments.
        inner: a `brax.envs.Env`.
    """

    id: str
    options: dict[str, Any]
    inner: Any

    _supports_transition_gradients: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The id, with "brax:" in front."""
        return f"brax:{self.id}"

    def _configuration(self) -> tuple:
        return (self.id, type(self.inner), hashable(self.options))

    @property
    def default_params(self) -> EnvParams:
        """The time limit."""
        return canonical_params(EnvParams(max_steps_in_episode=TIME_LIMIT))

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """One number in [-1, 1] for each actuator."""
        return spaces.Box(-1.0, 1.0, (int(self.inner.action_size),), jnp.result_type(float))

    def agent_observation_space(self, params: EnvParams) -> spaces.Space:
        """Unbounded numbers: one array, or a Dict of them where Brax has one."""
        observation = jax.eval_shape(self.reset_env, jax.random.key(0), params)[0]
        boxes = jax.tree.map(lambda x: spaces.Box(-jnp.inf, jnp.inf, x.shape, x.dtype), observation)
        return spaces.Dict(boxes) if isinstance(boxes, dict) else boxes

    def observe(self, key: Array, state: BraxState, action: PyTree | None, params: EnvParams) -> PyTree:
        """What Brax's state shows."""
        return state.inner.obs

    def reset_env(self, key: Array, params: EnvParams) -> tuple[PyTree, BraxState]:
        """Brax's reset."""
        inner = strong(self.inner.reset(key))
        return inner.obs, BraxState(jnp.int32(0), inner)

    def step_env(
        self, key: Array, state: BraxState, action: PyTree, params: EnvParams
    ) -> tuple[PyTree, BraxState, Array, Array, dict]:
        """Brax's step, which draws nothing from `key`; its metrics are the info, beside `action_clipped`."""
        action, clipped = self.legal_action(action, params)
        before = jax.tree.map(lambda x: x, state.inner)  # a copy: some environments write into their state's metrics
        inner = like(self.inner.step(before, action), state.inner)
        info = {**inner.metrics, "action_clipped": clipped}
        return inner.obs, BraxState(state.time + 1, inner), inner.reward, inner.done > 0.5, info


def make_brax(name: str, **overrides: Any) -> tuple[BraxEnvironment, EnvParams]:
    """`brax.envs.get_environment(name)` behind our contract.

    Args:
        name: one of Brax's, such as "ant".
        **overrides: its constructor's options (`backend="spring"`), and `max_steps_in_episode`.

    Raises:
        UserError: Brax cannot be imported; an unknown name or option, or one that Brax refuses.
    """
    brax = require("brax.envs", "brax")
    if name not in brax._envs:
        raise unknown("environment of Brax's", name, brax._envs)
    id = f"brax:{name}"
    limit = EnvParams(max_steps_in_episode=TIME_LIMIT)
    options, values = split_overrides(id, brax._envs[name], limit, overrides)
    environment = BraxEnvironment(name, options, construct(id, lambda: brax.get_environment(name, **options)))
    return environment, override_params(id, environment.default_params, values, list(options))

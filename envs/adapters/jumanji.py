"""Jumanji's environments, in: one agent, the same transitions, observations as one vector."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from ...errors import UserError, unknown
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, canonical_params
from ..registry import override_params
from ._construct import construct, split_overrides
from ._optional import require
from ._typed import ByConfiguration, hashable, like, strong

TIME_LIMIT = 1000
"""Steps in an episode of an environment that has no `time_limit` of its own, unless set."""


@struct.dataclass
class JumanjiState(EnvState):
    """Steps since reset, Jumanji's own state with its key, and what its last time step said.

    Attributes:
        observation: as learners see it.
        action_mask: legal actions; None where Jumanji tells of none.
        terminated, cut: whether the episode ended there: for good, or by truncation.
    """

    inner: PyTree
    observation: Float[Array, " O"]
    action_mask: PyTree
    terminated: Bool[Array, ""]
    cut: Bool[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class JumanjiEnvironment(ByConfiguration, Environment):
    """A Jumanji environment. Two made by the same id with the same options are equal.

    The observation is every field of Jumanji's but `action_mask`, in their order, ravelled and joined as one vector.
    An action of several choices is one choice among their combinations, numbered as NumPy ravels them (`choices`),
    unless Jumanji masks each position by itself.
    A last time step with discount 0 is a termination, and so is Jumanji's own `time_limit`; with discount 1 it is a
    truncation. Randomness is in the state, which is seeded at reset: a step's key is not used.

    Attributes:
        id: Jumanji's, such as "Snake-v1".
        options: its constructor's keyword arguments.
        inner: a `jumanji.Environment`.
    """

    id: str
    options: dict[str, Any]
    inner: Any

    _supports_transition_gradients: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The id, with "jumanji:" in front."""
        return f"jumanji:{self.id}"

    def _configuration(self) -> tuple:
        return (self.id, type(self.inner), hashable(self.options))

    @property
    def default_params(self) -> EnvParams:
        """The time limit: Jumanji's own, or 1000 steps."""
        return canonical_params(EnvParams(max_steps_in_episode=int(getattr(self.inner, "time_limit", TIME_LIMIT))))

    @property
    def choices(self) -> tuple[int, ...] | None:
        """How many choices each position of Jumanji's action has; None where it is made of real numbers."""
        spec = self.inner.action_spec
        if not np.issubdtype(spec.dtype, np.integer):
            return None
        return tuple(int(most) + 1 for most in np.broadcast_to(spec.maximum, spec.shape).ravel())

    @functools.cached_property
    def combined(self) -> bool:
        """Whether an action is the number of a combination of choices: where no position has a mask of its own."""
        mask = getattr(self._shown(), "action_mask", None)
        return self.choices is not None and (mask is None or mask.shape == self.choices)

    def _shown(self) -> Any:
        """Shapes of Jumanji's observation."""
        return jax.eval_shape(self.inner.reset, jax.random.PRNGKey(0))[1].observation

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """Discrete; MultiDiscrete where positions have masks of their own; or a Box of real numbers."""
        spec, choices = self.inner.action_spec, self.choices
        if choices is not None:
            return spaces.Discrete(math.prod(choices)) if self.combined else spaces.MultiDiscrete(choices)
        dtype = jnp.result_type(float)
        low, high = (jnp.broadcast_to(jnp.asarray(end, dtype), spec.shape) for end in (spec.minimum, spec.maximum))
        return spaces.Box(low, high, tuple(spec.shape), dtype)

    def agent_observation_space(self, params: EnvParams) -> spaces.Space:
        """A Box of the length of the vector, with the bounds that Jumanji knows."""
        parts = list(_parts(self._shown(), self.inner.observation_spec))
        dtype = jnp.result_type(float)
        low, high = (
            np.concatenate([np.broadcast_to(getattr(spec, end, none), part.shape).ravel() for part, spec in parts])
            for end, none in (("minimum", -np.inf), ("maximum", np.inf))
        )
        return spaces.Box(jnp.asarray(low, dtype), jnp.asarray(high, dtype), low.shape, dtype)

    def observe(self, key: Array, state: JumanjiState, action: PyTree | None, params: EnvParams) -> Float[Array, " O"]:
        """What Jumanji's last time step showed."""
        return state.observation

    def action_mask(self, state: JumanjiState, params: EnvParams) -> PyTree | None:
        """Jumanji's: bool[1, n], or bool[1, positions, n]; None where it has none."""
        if state.action_mask is None:
            return None
        return jnp.ravel(state.action_mask)[None] if self.combined else state.action_mask[None]

    def reset_env(self, key: Array, params: EnvParams) -> tuple[PyTree, JumanjiState]:
        """Jumanji's reset. Its states hold keys as plain numbers, whichever kind is given."""
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        inner, shown = self.inner.reset(key)
        state = _state(jnp.int32(0), strong(inner), shown, jnp.asarray(False))
        return state.observation, state

    def step_env(
        self, key: Array, state: JumanjiState, action: PyTree, params: EnvParams
    ) -> tuple[PyTree, JumanjiState, Array, Array, dict]:
        """Jumanji's step; its extras are the info, beside `action_clipped`."""
        action, clipped = self.legal_action(action, params)
        spec, choices = self.inner.action_spec, self.choices
        if choices and self.combined:
            action = jnp.stack(jnp.unravel_index(action, choices)).reshape(spec.shape)
        inner, shown = self.inner.step(state.inner, jnp.asarray(action, spec.dtype))
        following = _state(state.time + 1, like(inner, state.inner), shown, shown.last())
        reward = jnp.asarray(shown.reward).astype(jnp.result_type(float))
        info = {**strong(shown.extras), "action_clipped": clipped}
        return following.observation, following, reward, following.terminated, info

    def is_truncated(self, state: JumanjiState, params: EnvParams) -> Array:
        """Where Jumanji truncated, or at the time limit, unless the episode ended for good just then."""
        return state.cut | ((state.time >= params.max_steps_in_episode) & ~state.terminated)


def make_jumanji(name: str, **overrides: Any) -> tuple[JumanjiEnvironment, EnvParams]:
    """`jumanji.make(name)` behind our contract.

    Args:
        name: one of Jumanji's ids, such as "Snake-v1".
        **overrides: its constructor's options, and `max_steps_in_episode`.

    Raises:
        UserError: Jumanji cannot be imported; an unknown id or option, or one that Jumanji refuses; or an environment
            with a reward for each of several agents.
    """
    jumanji = require("jumanji", "jumanji")
    if name not in jumanji.registered_environments():
        raise unknown("environment of Jumanji's", name, jumanji.registered_environments())
    id = f"jumanji:{name}"
    entry_point = jumanji.registration._REGISTRY[name].entry_point
    limit = EnvParams(max_steps_in_episode=TIME_LIMIT)
    options, values = split_overrides(id, jumanji.registration.load(entry_point), limit, overrides)
    inner = construct(id, lambda: jumanji.make(name, **options))
    if inner.reward_spec.shape:
        raise UserError(
            f"{id} pays each of its {inner.reward_spec.shape[0]} agents a reward of its own, and only environments "
            "with one reward can be brought in"
        )
    action = inner.action_spec
    if np.issubdtype(action.dtype, np.integer) and np.any(action.minimum != 0):
        raise UserError(f"{id} takes whole numbers from {action.minimum}; discrete actions are counted from 0")
    environment = JumanjiEnvironment(name, options, inner)
    return environment, override_params(id, environment.default_params, values, list(options))


def _state(time: Any, inner: PyTree, shown: Any, ended: Array) -> JumanjiState:
    """Our state after a time step of Jumanji's."""
    terminated = ended & (shown.discount == 0)
    mask = getattr(shown.observation, "action_mask", None)
    numbers = [jnp.ravel(part).astype(jnp.result_type(float)) for part, _ in _parts(shown.observation)]
    mask = None if mask is None else jnp.asarray(mask, bool)
    return JumanjiState(time, inner, jnp.concatenate(numbers), mask, terminated, ended & ~terminated)


def _parts(observation: Any, spec: Any = None) -> Iterator[tuple[Any, Any]]:
    """The arrays of an observation but its `action_mask`, in the order of its fields, each with its specification."""
    if hasattr(observation, "_fields"):
        names = observation._fields
    elif dataclasses.is_dataclass(observation):
        names = [field.name for field in dataclasses.fields(observation)]
    else:
        yield observation, spec
        return
    for name in names:
        if name != "action_mask":
            yield from _parts(getattr(observation, name), None if spec is None else spec[name])

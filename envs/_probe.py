"""What the rules of `checks` look at: one environment's types and a short rollout of a random policy, made once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from . import spaces
from .economy import Economy
from .environment import Environment, EnvParams, EnvState, canonical_params

NUM_ENVS, NUM_STEPS, SHORT_EPISODE = 3, 16, 5
TOLERANCE = 1e-4  # relative: two programs for the same mathematics differ by float32's rounding


class Probe:
    """One environment at one calibration. What rules share is computed when the first of them asks.

    Attributes:
        env: the environment.
        params: its parameters.
        key: a typed key.
    """

    def __init__(self, env: Environment, params: EnvParams, seed: int):
        self.env, self.params, self.key = env, params, jax.random.key(seed)
        self.legacy_key = jax.random.PRNGKey(seed)
        # Compiling is most of what a check costs; these programs run a few times, so they are not optimised.
        quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        self.reset = jax.jit(env.reset, compiler_options=quick)
        self.step = jax.jit(env.step, compiler_options=quick)
        self._rollout = jax.jit(lambda *args: rollout(env, *args), compiler_options=quick)
        self._keys = jax.random.split(self.key, (NUM_STEPS + 1, NUM_ENVS, 2))

    @cached_property
    def records(self) -> dict[str, PyTree]:
        """What `record_step` notes, `[T, N, ...]`."""
        return self._roll(self.params)

    @cached_property
    def short_records(self) -> dict[str, PyTree]:
        """The same with `short_params`."""
        return self._roll(self.short_params)

    @property
    def short_params(self) -> EnvParams:
        """The parameters with episodes of a few steps."""
        limit = jnp.asarray(self.short_limit, jnp.asarray(self.params.max_steps_in_episode).dtype)
        return self.params.replace(max_steps_in_episode=limit)

    @property
    def short_limit(self) -> int:
        """Longest episode in `short_records`."""
        return min(SHORT_EPISODE, int(self.params.max_steps_in_episode))

    def _roll(self, params: EnvParams) -> dict[str, PyTree]:
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * NUM_ENVS), params)
        starts = [self.reset(key, params)[1] for key in self._keys[0, :, 0]]
        records = self._rollout(self._keys[1:], jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts), stacked)
        return jax.tree.map(lambda leaf: leaf if is_key(leaf) else np.asarray(leaf), records)

    @cached_property
    def transition(self) -> tuple[EnvState, PyTree, EnvState]:
        """A state that the random policy reached, its action there, and the state that followed."""
        return at(tuple(self.records[name] for name in ("state", "action", "next_state")), -1, 0)

    def step_of(self, records: dict[str, Any], time: int, env: int) -> tuple[Array, EnvState, PyTree]:
        """Key, state and action of one step of a rollout, to be repeated without `vmap`."""
        state, action = at((records["state"], records["action"]), time, env)
        return self._keys[time + 1, env, 1], state, action

    def trace(self, key: Array | None = None) -> dict[str, PyTree]:
        """Shapes and types of what `describe` computes, in the precision of the moment, without compiling."""
        params = canonical_params(self.params)
        return jax.eval_shape(lambda k, p: describe(self.env, k, p), self.key if key is None else key, params)


def describe(env: Environment, key: Array, params: EnvParams) -> dict[str, PyTree]:
    """One reset, one step, and the contract's other arrays."""
    observation, state = env.reset_env(key, params)
    action = random_action(env, key, state, params)
    after, next_state, reward, terminated, info = env.step_env(key, state, action, params)
    return {
        "reset's observation": observation,
        "reset's state": state,
        "step's observation": after,
        "step's state": next_state,
        "reward": reward,
        "terminated": terminated,
        "info": info,
        "centre": env.centre(params),
        "discount_factor": env.discount_factor(params),
        "step_discount": env.step_discount(state, next_state, params),
        "world_state": env.world_state(state, params),
    }


def random_action(env: Environment, key: Array, state: EnvState, params: EnvParams) -> PyTree:
    """A draw from the action space, legal where the environment has one action mask."""
    space, mask = env.action_space(params), env.action_mask(state, params)
    if mask is None or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.sample(key)
    logits = jnp.where(mask if env.num_agents > 1 else mask[0], 0.0, -jnp.inf)
    return jax.random.categorical(key, logits).astype(space.dtype)


def rollout(env: Environment, keys: Array, states: EnvState, params: EnvParams) -> dict[str, PyTree]:
    """A random policy through episodes and resets, as a training loop steps: `step_env`, then `reset_env` if it ended.

    Args:
        env: the environment.
        keys: `[T, N, 2]`: a key for the action, a key for the step.
        states: to start from, leaves `[N, ...]`.
        params: leaves `[N, ...]`.

    Returns:
        What `record_step` notes, leaves `[T, N, ...]`.
    """

    def step(states: EnvState, keys: Array) -> tuple[EnvState, dict[str, PyTree]]:
        records = jax.vmap(lambda *args: record_step(env, *args))(keys, states, params)
        return records["state_after"], records

    return jax.lax.scan(step, states, keys)[1]


def record_step(env: Environment, keys: Array, state: EnvState, params: EnvParams) -> dict[str, PyTree]:
    """One step with its possible reset: what came of it, and what every method says about it."""
    action = random_action(env, keys[0], state, params)
    key_step, key_reset = jax.random.split(keys[1])  # as gymnax's `step` splits it
    final_observation, next_state, reward, terminated, info = env.step_env(key_step, state, action, params)
    truncated = env.is_truncated(next_state, params)
    fresh = env.reset_env(key_reset, params)
    pick = jnp.logical_or(terminated, truncated).reshape(())
    after = jax.tree.map(lambda new, old: jax.lax.select(pick, new, old), fresh, (final_observation, next_state))
    record = {
        "state": state,
        "action": action,
        "next_state": next_state,
        "observation_after": after[0],
        "state_after": after[1],
        "final_observation": final_observation,
        "observed": env.observe(key_step, next_state, action, params),
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "info": info,
        "agent_mask": env.agent_mask(state, params),
        "action_mask": env.action_mask(state, params),
        "successor": env.successor(state, next_state, params),
        "inherits": env.inherits(state, next_state, params),
        "world_state": env.world_state(next_state, params),
        "discount_factor": env.discount_factor(params),
        "step_discount": env.step_discount(state, next_state, params),
    }
    if isinstance(env, Economy):
        legal = env.legal_action(action, params)[0]
        shock = env.shocks(params).sample(key_step, state)
        record["predicted_state"] = env.transition(state, legal, shock, params).replace(time=next_state.time)
        utility = env.earned(env.reward(state, legal, params), params)
        record["predicted_reward"] = env.scaled_reward(utility, params)
    return record


def at(tree: PyTree, time: int, env: int) -> PyTree:
    """One entry of a rollout's records."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[time, env]), tree)


def gap(left: PyTree, right: PyTree) -> float:
    """Largest difference of two pytrees relative to one plus their size; infinite where only one is a number."""
    largest = 0.0
    for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        x, y = _numpy(x).astype(float), _numpy(y).astype(float)
        with np.errstate(invalid="ignore"):
            distance = np.abs(x - y) / (1 + np.abs(y))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
        largest = max(largest, float(np.max(distance, initial=0.0)))
    return largest


def finite(tree: PyTree) -> bool:
    """Whether every number of a pytree is finite."""
    return all(bool(np.all(np.isfinite(_numpy(leaf)))) for leaf in jax.tree.leaves(tree))


def is_float(leaf: Any) -> bool:
    """Whether an array has a floating type."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def kind(leaf: Any) -> str:
    """Type and shape of an array or of its description, with weak types said."""
    return f"{leaf.dtype}{list(leaf.shape)}{' (weakly typed)' if getattr(leaf, 'weak_type', False) else ''}"


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """`(path, leaf)` of every leaf."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def leaf_spaces(space: spaces.Space) -> Iterator[tuple[str, spaces.Space]]:
    """`(path, space)` of the spaces that a Dict or a Tuple is made of, in the order of a pytree's leaves."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = sorted(space.spaces.items()) if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for name, part in parts:
            yield from ((f"[{name!r}]{path}", inner) for path, inner in leaf_spaces(part))
    else:
        yield "", space


def bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest element of a space that is no Dict or Tuple."""
    if isinstance(space, spaces.Box):
        return np.asarray(space.low), np.asarray(space.high)
    return np.asarray(0), np.asarray(getattr(space, "nvec", getattr(space, "n", 0))) - 1


def outside(space: spaces.Space, value: PyTree, lead: int = 0) -> str | None:
    """What is wrong with `value` as an element of `space` behind `lead` batch axes, or None."""
    leaves, parts = jax.tree.leaves(value), list(leaf_spaces(space))
    if len(leaves) != len(parts):
        return f"{len(leaves)} arrays where the space has {len(parts)}"
    for (path, part), leaf in zip(parts, leaves, strict=True):
        if leaf.shape[lead:] != tuple(part.shape):
            return f"its shape{path} is {list(leaf.shape[lead:])}, the space's {list(part.shape)}"
        if is_float(leaf) != jnp.issubdtype(part.dtype, jnp.floating):
            return f"its type{path} is {leaf.dtype}, the space's {np.dtype(part.dtype)}"
        numbers, (low, high) = np.asarray(leaf), bounds(part)
        if not gap(numbers, np.clip(numbers, low, high)) <= TOLERANCE:
            return f"its values{path} run from {numbers.min():g} to {numbers.max():g}, the space is {part}"
    return None


def is_key(leaf: Any) -> bool:
    """Whether an array holds typed random keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _numpy(leaf: Any) -> np.ndarray:
    keys = isinstance(leaf, jax.Array) and is_key(leaf)
    return np.asarray(jax.random.key_data(leaf) if keys else leaf)

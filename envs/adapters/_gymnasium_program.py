"""An environment as compiled functions from words to words, shared by all equal environments.

The discipline of keys, which makes an episode a function of its seed: two words from NumPy's generator make the key of
an environment's stream (`stream`), and the resets and steps since then are counted from 0; `reset_env` or `step_env` of
call number c gets `fold_in(stream, c)`. (Splitting a key that is carried on would cost its random bits in every step,
also in those of an environment that has no use for them.)
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, Key, PyTree, UInt32

from ...errors import UserError
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, drop_agent_axis
from ._gymnasium_actions import empty_action
from ._gymnasium_packing import Packing, join
from ._typed import strong


class Carry(NamedTuple):
    """What an environment is between two calls: its stream, the calls so far, its state."""

    stream: Key[Array, ""]
    count: UInt32[Array, ""]
    state: Any


class Start(NamedTuple):
    """What a reset shows: an observation, and what is known of the state it is of."""

    observation: PyTree
    standing: dict[str, PyTree]


class Transition(NamedTuple):
    """What a step shows, before any reset. `events` is the info of the step, `standing` that of the state after it."""

    observation: PyTree
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    events: dict[str, PyTree]
    standing: dict[str, PyTree]


def draw_words(generator: np.random.Generator, shape: tuple[int, ...] = ()) -> np.ndarray:
    """The words that `stream` makes keys of, uint32[*shape, 2]."""
    return generator.integers(0, 2**32, (*shape, 2), np.uint32)


def stream(words: UInt32[Array, " 2"]) -> Key[Array, ""]:
    """The key of an environment's stream, of whatever kind JAX is set to."""
    return jax.random.fold_in(jax.random.key(words[0]), words[1])


def start(env: Environment, key: Key[Array, ""], params: EnvParams) -> tuple[EnvState, Start]:
    """`reset_env` with the key of this reset."""
    observation, state = env.reset_env(key, params)
    return state, Start(_of_the_space(env, observation, params), _standing(env, state, params))


def transition(
    env: Environment, key: Key[Array, ""], state: EnvState, action: PyTree, params: EnvParams
) -> tuple[EnvState, Transition]:
    """`step_env` with the key of this step. Several agents earn the mean of those who lived before it, 0 if none did.

    A continuous action is clipped into its bounds first; `events["action_clipped"]` tells.
    """
    space = env.action_space(params)
    clipped = None
    if _has_box(space):
        action, clipped = spaces.clip_to(space, action)
    observation, next_state, reward, terminated, info = env.step_env(key, state, action, params)
    if env.num_agents > 1:
        living = env.agent_mask(state, params)
        reward = jnp.where(living, reward, 0).sum() / jnp.maximum(living.sum(), 1)
    events = {name: value for name, value in info.items() if name not in _TOLD_OTHERWISE}
    events["discount"] = env.step_discount(state, next_state, params)
    if clipped is not None:
        events["action_clipped"] = clipped | events.get("action_clipped", False)
    shown = Transition(
        _of_the_space(env, observation, params),
        reward,
        terminated,
        env.is_truncated(next_state, params),
        events,
        _standing(env, next_state, params),
    )
    return next_state, strong(shown)


# gymnax's `step` puts these into its info; through this door the first two are returned, and no step hides the third.
_TOLD_OTHERWISE = ("terminated", "truncated", "final_observation")


def _standing(env: Environment, state: EnvState, params: EnvParams) -> dict[str, PyTree]:
    """`action_mask`, in the type that Gymnasium's `sample(mask)` takes, and `agent_mask`, where there are any."""
    known = {}
    mask = env.action_mask(state, params)
    if mask is not None:
        known["action_mask"] = jax.tree.map(lambda m: m.astype(jnp.int8), drop_agent_axis(env, mask))
    if env.num_agents > 1:
        known["agent_mask"] = env.agent_mask(state, params)
    return known


def _of_the_space(env: Environment, observation: PyTree, params: EnvParams) -> PyTree:
    """The observation in its space's types."""

    def cast(space, value):
        if isinstance(space, spaces.Dict):
            return {name: cast(inner, value[name]) for name, inner in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(cast(inner, part) for inner, part in zip(space.spaces, value, strict=True))
        return jnp.asarray(value, np.dtype(space.dtype))

    return cast(env.observation_space(params), observation)


def _has_box(space: spaces.Space) -> bool:
    inner = getattr(space, "spaces", ())
    inner = inner.values() if isinstance(inner, dict) else inner
    return isinstance(space, spaces.Box) or any(map(_has_box, inner))


class _Memory:
    """What is kept between two calls, `memory`, uint32 words: the carry, and after it what was shown last.

    A call costs by the array that goes in or comes out, so each takes and returns one, and the parameters are one, too.

    Args:
        env: the environment.
        params: the types of its parameters.
        carry: those of a carry.
        shown: those of a `Transition`.
    """

    def __init__(self, env: Environment, params: PyTree, carry: Carry, shown: Transition):
        self.env = env
        self.parameters, self._carry, self._shown = Packing(params), Packing(carry), Packing(shown)
        self.state = jax.jit(lambda memory: self.unpack(memory)[0].state)

    def empty(self) -> np.ndarray:
        """A memory before the first stream."""
        return np.zeros(self._carry.num_words + self._shown.num_words, np.uint32)

    def look(self, memory: Any, *, scalars: bool = False) -> Any:
        """What was shown last, a `Transition` on the host, the caller's own; `scalars` as `Packing.read` has it."""
        return self._shown.read(np.asarray(memory)[self._carry.num_words :].copy(), scalars=scalars)

    def unpack(self, memory: UInt32[Array, " words"]) -> tuple[Carry, Transition]:
        """Both halves, inside a compiled function."""
        split = self._carry.num_words
        return self._carry.unpack(memory[:split]), self._shown.unpack(memory[split:])

    def pack(self, carry: Carry, shown: Transition) -> UInt32[Array, " words"]:
        """A memory, inside a compiled function."""
        return join(self._carry.parts(carry) + self._shown.parts(shown))


class Program(_Memory):
    """The functions of one environment. Get it from `program`.

    Attributes:
        parameters: how parameters are packed.
        seed: `(memory, words uint32[2]) -> memory`, at the beginning of a new stream.
        reset: `(memory, parameters) -> memory`. Of what was shown, observation and standing are those of the start; all
            else is what it was.
        step: `(memory, action, parameters) -> memory`.
        state: `memory -> EnvState`.
    """

    def __init__(self, env: Environment, params: PyTree, action: PyTree):
        carry, _ = jax.eval_shape(functools.partial(_first, env), params)
        moved, shown = jax.eval_shape(functools.partial(_step, env), carry, action, params)
        _check_types(env, carry, moved, shown)
        super().__init__(env, params, carry, shown)
        self.seed, self.reset, self.step = jax.jit(self._seed), jax.jit(self._reset), jax.jit(self._step)

    def _seed(self, memory, words):
        old, shown = self.unpack(memory)
        return self.pack(Carry(stream(words), jnp.uint32(0), old.state), shown)

    def _reset(self, memory, params):
        old, shown = self.unpack(memory)
        carry, start = _reset(self.env, old, self.parameters.unpack(params))
        return self.pack(carry, shown._replace(**start._asdict()))

    def _step(self, memory, action, params):
        return self.pack(*_step(self.env, self.unpack(memory)[0], action, self.parameters.unpack(params)))


class VectorProgram(_Memory):
    """The functions of N equal environments at once. Get it from `vector_program`.

    Resets are computed for as many environments as need one, in one of two sizes K: `few`, and all. `rows`, int32[K +
    N], tells which: first the indices of those to reset, filled up with any, then for each environment where among
    these it is, or -1. All that the host has to say to a step is in one array, too.

    Attributes:
        parameters: how parameters are packed.
        few: the smaller size, N / 8.
        asked: how that array is packed: `asked[0]`, an action; `asked[K]`, `(action, rows)`.
        seed: `(memory, words uint32[N, 2], which bool[N]) -> memory`: those are at the beginning of new streams.
        reset: `(memory, rows, parameters) -> memory`, as `Program` has it in the rows that are meant.
        step: `(memory, asked, parameters) -> memory`.
        step_and_restart: the same with rows, by K. Those are reset in place of a step, as `reset` would: what is shown
            is their start, with reward 0, no flags and empty events. One call costs half of what two do.
        state: `memory -> EnvState`, batched.
    """

    def __init__(self, env: Environment, num_envs: int, params: PyTree, action: PyTree):
        one, _ = jax.eval_shape(functools.partial(_first, env), params)
        one_action = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), action)
        moved, shown = jax.eval_shape(functools.partial(_step, env), one, one_action, params)
        _check_types(env, one, moved, shown)
        super().__init__(env, params, _batch(one, num_envs), _batch(shown, num_envs))
        self._num_envs, self.few = num_envs, -(-num_envs // 8)
        rows = {size: jax.ShapeDtypeStruct((size + num_envs,), np.int32) for size in (self.few, num_envs)}
        self.asked = {size: Packing((action, which)) for size, which in rows.items()} | {0: Packing(action)}
        self._up = np.arange(num_envs, dtype=np.int32)
        self.seed, self.reset, self.step = jax.jit(self._seed), jax.jit(self._reset), jax.jit(self._step)
        self.step_and_restart = {size: jax.jit(functools.partial(self._step_and_restart, size)) for size in rows}

    def rows(self, index: np.ndarray) -> tuple[int, np.ndarray]:
        """K and `rows` for the environments in `index`."""
        count = len(index)
        size = self.few if count <= self.few else self._num_envs
        rows = np.empty(size + self._num_envs, np.int32)
        rows.fill(-1)
        rows[:count] = index
        rows[size:][index] = self._up[:count]
        return size, rows

    def _begin(self, old: Carry, rows: Int32[Array, " rows"], params: EnvParams) -> tuple[Array, Carry, Start]:
        """Which environments `rows` means; every environment's carry and start if it were reset, right for those."""
        chosen, place = rows[: -self._num_envs], rows[-self._num_envs :]
        take = lambda tree, index: jax.tree.map(lambda x: jnp.take(x, index, 0, mode="clip"), tree)  # noqa: E731
        begun = jax.vmap(functools.partial(_reset, self.env), (0, None))(take(old._replace(state=None), chosen), params)
        return place >= 0, *take(begun, place)

    def _seed(self, memory, words, which):
        old, shown = self.unpack(memory)
        new = Carry(jax.vmap(stream)(words), jnp.zeros_like(old.count), old.state)
        return self.pack(_where(which, new, old), shown)

    def _reset(self, memory, rows, params):
        old, shown = self.unpack(memory)
        which, new, start = self._begin(old, rows, self.parameters.unpack(params))
        start = shown._replace(**start._asdict())
        return self.pack(_where(which, new, old), _where(which, start, shown))

    def _step(self, memory, asked, params):
        action, params = self.asked[0].unpack(asked), self.parameters.unpack(params)
        return self.pack(*self._step_all(self.unpack(memory)[0], action, params))

    def _step_and_restart(self, size, memory, asked, params):
        (action, rows), params = self.asked[size].unpack(asked), self.parameters.unpack(params)
        old = self.unpack(memory)[0]
        which, new, start = self._begin(old, rows, params)
        # The step starts from the new states for no other reason than to come after the resets: see `join`.
        carry, shown = self._step_all(old._replace(state=_where(which, new.state, old.state)), action, params)
        silent = jax.tree.map(jnp.zeros_like, shown)._replace(**start._asdict())
        return self.pack(_where(which, new, carry), _where(which, silent, shown))

    def _step_all(self, old: Carry, action: PyTree, params: EnvParams) -> tuple[Carry, Transition]:
        return jax.vmap(functools.partial(_step, self.env), (0, 0, None))(old, action, params)


def _first(env: Environment, params: EnvParams) -> tuple[Carry, Start]:
    """Some first reset, for its types."""
    return _reset(env, Carry(stream(jnp.zeros(2, jnp.uint32)), jnp.uint32(0), None), params)


# Traced once, for its types, for one environment and for many.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _reset(env: Environment, carry: Carry, params: EnvParams) -> tuple[Carry, Start]:
    state, shown = start(env, jax.random.fold_in(carry.stream, carry.count), params)
    return Carry(carry.stream, carry.count + 1, state), shown


@functools.partial(jax.jit, static_argnums=0, inline=True)
def _step(env: Environment, carry: Carry, action: PyTree, params: EnvParams) -> tuple[Carry, Transition]:
    key = jax.random.fold_in(carry.stream, carry.count)
    state, shown = transition(env, key, carry.state, action, params)
    return Carry(carry.stream, carry.count + 1, state), shown


def _batch(tree: PyTree, size: int) -> PyTree:
    """The same types with a leading axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), tree)


def _where(condition: Bool[Array, " N"], chosen: PyTree, otherwise: PyTree) -> PyTree:
    """Leaf by leaf along the first axis."""

    def select(a, b):
        return jnp.where(condition.reshape(condition.shape + (1,) * (b.ndim - condition.ndim)), a, b)

    return jax.tree.map(select, chosen, otherwise)


def _check_types(env: Environment, carry: Carry, moved: Carry, shown: Transition) -> None:
    """Refuse a state whose types a step changes, and rewards and flags that are not one number a step."""
    after = jax.tree.leaves_with_path(moved.state)
    for (path, leaf), first in zip(after, jax.tree.leaves(carry.state), strict=True):
        if (leaf.shape, leaf.dtype) != (first.shape, first.dtype):
            types = [f"{x.dtype}{list(x.shape)}" for x in (first, leaf)]
            field = jax.tree_util.keystr(path)
            raise UserError(f"{env.name}: state{field} is {types[0]} after a reset and {types[1]} after a step")
    for name in ("reward", "terminated", "truncated"):
        shape = getattr(shown, name).shape
        if shape != ():
            raise UserError(f"{env.name}: {name} must be one number a step, got shape {shape}")


class _Types(NamedTuple):
    """Shapes and types of a pytree, hashable."""

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, tree: PyTree) -> _Types:
        leaves, treedef = jax.tree.flatten(jax.eval_shape(lambda x: x, tree))
        return cls(treedef, tuple(leaves))

    def tree(self) -> PyTree:
        return jax.tree.unflatten(self.treedef, self.leaves)


def program(env: Environment, params: EnvParams, action_space: gymnasium.Space) -> Program:
    """The compiled functions of `env`: the same object for equal environments and parameters of the same types."""
    return _program(env, _Types.of(params), _Types.of(empty_action(action_space)), *_setting())


def vector_program(env: Environment, params: EnvParams, action_space: gymnasium.Space, num_envs: int) -> VectorProgram:
    """The compiled functions of `num_envs` environments; `action_space` is that of all of them."""
    return _vector_program(env, num_envs, _Types.of(params), _Types.of(empty_action(action_space)), *_setting())


def _setting() -> tuple[Any, ...]:
    """What of JAX's configuration the types of a state depend on."""
    return jax.config.jax_enable_x64, jax.config.jax_default_prng_impl


@functools.lru_cache(maxsize=64)
def _program(env: Environment, params: _Types, action: _Types, *setting: Any) -> Program:
    return Program(env, params.tree(), action.tree())


@functools.lru_cache(maxsize=64)
def _vector_program(env: Environment, num_envs: int, params: _Types, action: _Types, *setting: Any) -> VectorProgram:
    return VectorProgram(env, num_envs, params.tree(), action.tree())

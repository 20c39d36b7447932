"""A window of observations: environments whose agents see what they saw before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from ..errors import UserError
from . import spaces
from .economy import Decision, Economy
from .economy_wrappers import EconomyWrapper
from .environment import Environment, EnvParams, EnvState, Reference, add_agent_axis, drop_agent_axis
from .shocks import Chain, Discrete, Lognormal, Normal, ShockLaw
from .wrappers import WrappedState, Wrapper, on_inner


@struct.dataclass
class WindowedState(WrappedState):
    """A state, and what each agent has seen.

    Attributes:
        rows: `[A, rows, F + 1]`, oldest first; the last feature is 1 where the row is filled.
    """

    rows: Float[Array, "A rows F1"]


class Windowed:
    """What environments with a window of observations share: `[W, F + 1]` of each agent, the newest row last.

    An observation of F numbers is a row, with a flag: 1, or 0 (the whole row) before the agent was there. A window
    follows its agent along `inherits` and is empty where a slot's holder is new, and after every reset.
    """

    window: int
    inner: Any

    def _check_window(self) -> None:
        check_window(self.window)
        if "host" in self.inner.capabilities:
            raise UserError(f"{self.inner.name} is stepped outside of JAX and takes no window; leave window out")
        if "distribution" in self.inner.capabilities:
            raise UserError(
                f"agents of {self.inner.name} are points of a histogram that nobody stays on, so a window would stay "
                "empty; use households='agents', or leave window out"
            )

    def agent_observation_space(self, params: EnvParams) -> spaces.Box:
        """Reals `[W, F + 1]`."""
        big = float(jnp.finfo(jnp.result_type(float)).max)
        features = spaces.flat_size(self.inner.agent_observation_space(params))
        return spaces.Box(-big, big, (self.window, features + 1), jnp.result_type(float))

    def _row(self, observation: PyTree) -> Float[Array, "A 1 F1"]:
        """`inner`'s observation as a filled row of each agent."""
        agents = self.inner.num_agents
        dtype = jnp.result_type(float)
        leaves = jax.tree.leaves(add_agent_axis(self.inner, observation))
        flat = [leaf.reshape(agents, 1, -1).astype(dtype) for leaf in leaves]
        return jnp.concatenate([*flat, jnp.ones((agents, 1, 1), dtype)], axis=-1)

    def _carried(
        self, rows: Float[Array, "A rows F1"], state: EnvState, next_state: EnvState, params: EnvParams
    ) -> Float[Array, "A rows F1"]:
        """Rows moved to the slots that their agents are in next; `inner`'s states."""
        source = self.inner.inherits(state, next_state, params)
        return jnp.where((source < 0)[:, None, None], 0, rows[jnp.maximum(source, 0)])


@dataclasses.dataclass(frozen=True)
class History(Windowed, Wrapper):
    """`inner`, whose agents see their last observations: see `Windowed`. Economies have `EconomyHistory`.

    Attributes:
        window: rows, W.

    Raises:
        UserError: a window below 1, or an environment whose agents cannot have one.
    """

    window: int

    def __post_init__(self):
        self._check_window()

    @property
    def capabilities(self) -> frozenset[str]:
        """As `inner`."""
        return self.inner.capabilities

    def core(self, state: EnvState) -> EnvState:
        return state.inner

    def event_log_prob(
        self, state: EnvState, action: PyTree, next_state: EnvState, params: EnvParams
    ) -> Float[Array, " A"]:
        """`inner`'s, where it has capability "events"."""
        inner: Any = self.inner
        return inner.event_log_prob(self.core(state), action, self.core(next_state), params)

    def reference(self, params: EnvParams) -> Reference | None:
        """`inner`'s."""
        found = self.inner.reference(params)
        return None if found is None else on_inner(found, self.core)

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: EnvParams) -> Float[Array, "..."]:
        """The window that is in the state."""
        return drop_agent_axis(self.inner, state.rows)

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Float[Array, "..."], EnvState]:
        """`inner`'s start, and a window with one row."""
        observation, state = self.inner.reset_env(key, params)
        row = self._row(observation)
        rows = jnp.pad(row, ((0, 0), (self.window - 1, 0), (0, 0)))
        return drop_agent_axis(self.inner, rows), WindowedState(state.time, state, rows)

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[Float[Array, "..."], EnvState, Array, Array, dict]:
        """`inner`'s step, and its observation on top of the window."""
        observation, following, reward, terminated, info = self.inner.step_env(key, state.inner, action, params)
        moved = self._carried(state.rows, state.inner, following, params)
        rows = jnp.concatenate([moved[:, 1:], self._row(observation)], axis=1)
        after = WindowedState(following.time, following, rows)
        return drop_agent_axis(self.inner, rows), after, reward, terminated, info


@dataclasses.dataclass(frozen=True)
class EconomyHistory(Windowed, EconomyWrapper):
    """An economy whose agents see their last observations: see `Windowed`.

    The newest row is made of the state, so that it moves with it; the state carries the rows before. In the steady
    state every row is filled in which its agent was there.

    Attributes:
        window: rows, W.

    Raises:
        UserError: a window below 1, or an economy whose agents cannot have one.
    """

    window: int

    def __post_init__(self):
        super().__post_init__()
        self._check_window()

    @property
    def name(self) -> str:
        """`inner`'s, marked."""
        return f"History({self.inner.name})"

    def observation(self, state: EnvState, params: EnvParams) -> Float[Array, "..."]:
        row = self._row(self.inner.observation(self.core(state), params))
        return drop_agent_axis(self.inner, jnp.concatenate([state.rows, row], axis=1))

    def wrap(self, inner: EnvState, params: EnvParams) -> EnvState:
        row = self._row(self.inner.observation(inner, params))
        return WindowedState(inner.time, inner, jnp.repeat(jnp.zeros_like(row), self.window - 1, axis=1))

    def following(self, state: EnvState, inner: EnvState, params: EnvParams) -> EnvState:
        seen = jnp.concatenate([state.rows, self._row(self.inner.observation(self.core(state), params))], axis=1)
        return state.replace(inner=inner, rows=self._carried(seen[:, 1:], self.core(state), inner, params))

    def shocks(self, params: EnvParams) -> ShockLaw:
        law = self.inner.shocks(params)
        if isinstance(law, (Normal, Lognormal, Discrete)):
            return law  # they read no state
        return Chain(law.transition, OfCore(self, law.index)) if isinstance(law, Chain) else super().shocks(params)

    def steady_state(self, params: EnvParams) -> tuple[EnvState, Decision] | None:
        found = self.inner.steady_state(params)
        if found is None:
            return None
        inner, decision = found

        def pushed(_: int, state: EnvState) -> EnvState:
            return self.following(state, inner, params)

        return jax.lax.fori_loop(0, self.window - 1, pushed, self.wrap(inner, params)), decision

    def exploitability(self, policy: Callable[[EnvState], PyTree], params: EnvParams) -> Float[Array, " A"] | None:
        """`inner`'s, where nothing came before that a policy could remember; otherwise None."""
        return super().exploitability(policy, params) if self.one_shot or self.window == 1 else None

    def solvable(self) -> Economy:
        """What solves `inner` solves this: the state is `inner`'s."""
        return self.inner.solvable() if isinstance(self.inner, EconomyWrapper) else self.inner


@dataclasses.dataclass(frozen=True)
class OfCore:
    """A function of `inner`'s state as one of a wrapper's; equal to another of the same."""

    env: EconomyWrapper
    function: Callable[[Any], Array]

    def __call__(self, state: EnvState) -> Array:
        return self.function(self.env.core(state))


def with_window(env: Environment, window: int) -> Environment:
    """The environment, its agents seeing their last `window` observations; an economy stays one.

    Raises:
        UserError: a window below 1, or an environment whose agents cannot have one.
    """
    check_window(window)
    return EconomyHistory(env, int(window)) if isinstance(env, Economy) else History(env, int(window))


def check_window(window: Any) -> None:
    """Raise `UserError` unless `window` is a whole number of at least 1."""
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
        raise UserError(f"window must be a whole number of at least 1, got {window!r}")


def window_of(env: Environment) -> int | None:
    """How many rows the observation of an environment is a window of; None where it is none."""
    if isinstance(env, Windowed):
        return env.window
    passes_on = isinstance(env, Wrapper) and type(env).observe is Wrapper.observe
    return window_of(env.inner) if passes_on else None

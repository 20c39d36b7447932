"""From what agents observe back to the state: a classical rule is a function of the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...envs.economies._households import SPREAD_LOG_K, HouseholdEconomy, State
from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState, add_agent_axis, drop_agent_axis
from ...envs.shocks import Chain
from ...errors import UserError
from .coordinates import SAMPLE, StateCoordinates, state_coordinates

ROUNDS, NEWTON_ROUNDS = (1, 4, 12, 36), 16
FRACTIONS = (1.0, 0.5, 0.125, 0.015625, 0.0)
FAITHFUL, ROUNDING = 1e-8, 1e-12


class StateOf(eqx.Module):
    """Solves `observation(state) = seen`; a chain's index is the one that fits best.

    By chord steps, which cost a product each and are exact where observations are linear in the coordinates; or by
    Newton's, shortened where a whole one would not help.

    Attributes:
        env: the economy.
        params: its parameters.
        states: coordinates of the state.
        chord: `[n, O]`, the pseudo-inverse of the observation's derivative at the template; None for Newton's steps.
        index: the discrete leaf of the state, `values` of which are tried; None without one.
        rounds: steps.
    """

    env: Economy = eqx.field(static=True)
    params: EnvParams
    states: StateCoordinates
    chord: np.ndarray | None
    index: str | None = eqx.field(static=True)
    values: int = eqx.field(static=True)
    rounds: int = eqx.field(static=True)

    def __call__(self, observation: PyTree) -> EnvState:
        """The state behind the observations of all agents, `[A, ...]`."""
        wanted = _flat(drop_agent_axis(self.env, observation))
        name = self.index
        if name is None:
            return self._fitted(wanted, self.states.template)[0]
        indices = jnp.arange(self.values, dtype=jnp.asarray(getattr(self.states.template, name)).dtype)

        def tried(index: Array) -> tuple[EnvState, Array]:
            return self._fitted(wanted, dataclasses.replace(self.states.template, **{name: index}))

        found, misfit = jax.vmap(tried)(indices)
        return jax.tree.map(lambda leaf: leaf[jnp.argmin(misfit)], found)

    def _fitted(self, wanted: Float[Array, " O"], template: EnvState) -> tuple[EnvState, Float[Array, ""]]:
        """The nearest state with the template's discrete leaves, and its squared misfit."""
        states = eqx.tree_at(lambda s: s.template, self.states, template)
        x = self.states(self.states.template)
        if self.chord is None:
            x = self._newton(states, x, wanted)
        else:
            chord = jnp.asarray(self.chord, x.dtype)
            for _ in range(self.rounds):
                x = x + chord @ (wanted - self._seen(states.state(x)))
        return states.state(x), self._misfit(states, x, wanted)

    def _newton(self, states: StateCoordinates, x: Float[Array, " n"], wanted: Float[Array, " O"]) -> Array:
        """Newton's steps from `x`.

        Derivatives of the result come from a last step alone, by the implicit function theorem: those of
        pseudo-inverses are not finite.
        """
        fractions = jnp.asarray(FRACTIONS, x.dtype)
        fixed = jax.lax.stop_gradient(wanted)

        def inverse(x: Array) -> Array:
            derivative = jax.jacfwd(lambda y: self._seen(states.state(y)))(x)
            return jax.lax.stop_gradient(jnp.linalg.pinv(derivative, rtol=float(jnp.finfo(x.dtype).eps) ** 0.5))

        def damped(_: int, x: Array) -> Array:
            step = inverse(x) @ (fixed - self._seen(states.state(x)))
            tried = x + fractions[:, None] * step
            return tried[jnp.argmin(jax.vmap(lambda y: self._misfit(states, y, fixed))(tried))]

        x = jax.lax.stop_gradient(jax.lax.fori_loop(0, self.rounds, damped, x))
        return x + inverse(x) @ (wanted - self._seen(states.state(x)))

    def _misfit(self, states: StateCoordinates, x: Float[Array, " n"], wanted: Float[Array, " O"]) -> Array:
        misfit = jnp.sum((wanted - self._seen(states.state(x))) ** 2)
        return jnp.where(jnp.isfinite(misfit), misfit, jnp.inf)

    def _seen(self, state: EnvState) -> Float[Array, " O"]:
        return _flat(self.env.observation(state, self.params))


class HouseholdsOf(eqx.Module):
    """The cross-section behind what households see: cash and own states one by one, and what they see of the others.

    Nobody sees the masses that mean assets are made of, and no policy depends on them otherwise: they are left equal.

    Attributes:
        env: the economy.
        params: its parameters.
    """

    env: HouseholdEconomy = eqx.field(static=True)
    params: EnvParams

    def __call__(self, observation: Float[Array, "A O"]) -> State:
        """The state behind the observations of all agents."""
        env, params = self.env, self.params
        means, count = env.means(params), observation.shape[0]
        log_cash, signal = observation[:, 0], observation[:, 1]
        own = jnp.argmin(jnp.abs(signal[:, None] - env.own_signal(params)), axis=1).astype(jnp.int32)
        z = jnp.zeros((), jnp.int32)
        if env.num_aggregate > 1:
            z = jnp.round((observation[0, -1] + 1) / 2 * (env.num_aggregate - 1)).astype(jnp.int32)
        seen = observation[0, 2] if env.prices_move else jnp.zeros((), observation.dtype)
        capital = means.assets * jnp.exp(SPREAD_LOG_K * seen)
        mass = jnp.full((count,), 1 / count, observation.dtype)
        state = State(time=jnp.int32(0), a=jnp.zeros_like(mass), own=own, mass=mass, capital=capital, z=z)
        budget = env.budget(state, params)
        cash = jnp.exp(log_cash) * (means.cash - params.amin) + params.amin
        return state.replace(a=(cash - budget.income) / budget.gross_return)


def state_of(env: Economy, params: EnvParams, policy: Callable[[EnvState], PyTree]) -> StateOf | HouseholdsOf:
    """The inverse of an economy's observation, as far as `policy` needs it.

    Raises:
        UserError: the observation does not tell the state that the policy depends on.
    """
    numbers = jax.device_get(params)
    seen = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(1), SAMPLE), params)
    wanted = jax.jit(jax.vmap(policy))(seen)

    def missed(found: StateOf | HouseholdsOf) -> float:
        """How far decisions in the states found are from those in the states seen; infinity where they are none."""

        def again(state: EnvState) -> PyTree:
            return policy(found(add_agent_axis(env, env.observation(state, params))))

        gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), jax.jit(jax.vmap(again))(seen), wanted)
        gap = float(np.max([float(gap) for gap in jax.tree.leaves(gaps)]))
        return gap if np.isfinite(gap) else np.inf

    best, least = None, np.inf
    for found in _candidates(env, params, numbers):
        gap = missed(found)
        if gap < ROUNDING:
            return found
        best, least = (found, gap) if gap < least else (best, least)
    if best is None or not least < FAITHFUL:
        raise UserError(
            f"{env.name}: its observations do not tell the state that the solution depends on, so a solver cannot act "
            "on them; score against it by equimorph.agents.classical.solve, or train with 'deqn' or 'mappo'"
        )
    return best


def check_discrete(env: Economy, params: EnvParams) -> None:
    """Refuse an economy whose discrete states `state_of` could not find, before anything is solved.

    Raises:
        UserError: it has such states.
    """
    if not isinstance(env, HouseholdEconomy):
        _index(env, params)


def _candidates(env: Economy, params: EnvParams, numbers: EnvParams):
    """Inverses to try, those that cost least to use first."""
    if isinstance(env, HouseholdEconomy):
        yield HouseholdsOf(env, numbers)
        return
    logs = state_coordinates(env, params, discrete=True)
    levels = dataclasses.replace(
        logs, names=tuple(name.removeprefix("log ") for name in logs.names), logs=(False,) * logs.size
    )
    index, values = _index(env, params)
    kinds = (logs, levels) if any(logs.logs) else (logs,)
    for rounds in ROUNDS:
        for states in kinds:
            derivative = jax.jit(jax.jacfwd(lambda x, states=states: _flat(env.observation(states.state(x), params))))
            chord = np.linalg.pinv(np.asarray(derivative(states(states.template))), rcond=1e-9)
            yield StateOf(env, numbers, states, chord, index, values, rounds)
    for states in kinds:
        yield StateOf(env, numbers, states, None, index, values, NEWTON_ROUNDS)


def _index(env: Economy, params: EnvParams) -> tuple[str | None, int]:
    """The one discrete leaf besides the time, and how many values it has."""
    template = jax.eval_shape(env.initial_state, jax.random.key(0), params)
    names = [
        field.name
        for field in dataclasses.fields(template)
        if field.name != "time" and not jnp.issubdtype(getattr(template, field.name).dtype, jnp.floating)
    ]
    if not names:
        return None, 0
    law = env.shocks(params)
    if len(names) > 1 or not isinstance(law, Chain) or getattr(template, names[0]).ndim:
        raise UserError(
            f"{env.name}: its discrete states ({', '.join(names)}) cannot be read off observations, so a solver cannot "
            "act on them; score against it by equimorph.agents.classical.solve"
        )
    return names[0], law.transition.shape[0]


def _flat(tree: PyTree) -> Float[Array, " O"]:
    leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves).astype(jnp.result_type(float))

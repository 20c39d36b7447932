"""From what agents observe back to the state: a classical rule is a function of the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState, drop_agent_axis
from ...envs.shocks import Chain
from ...errors import UserError
from .coordinates import SAMPLE, StateCoordinates, state_coordinates

ROUNDS = (1, 4, 12, 36)
FAITHFUL, ROUNDING = 1e-8, 1e-12


class StateOf(eqx.Module):
    """Solves `observation(state) = seen` by chord steps; a chain's index is the one that fits best.

    Attributes:
        env: the economy.
        params: its parameters.
        states: coordinates of the state.
        chord: `[n, O]`, the pseudo-inverse of the observation's derivative at the template.
        index: the discrete leaf of the state, `values` of which are tried; None without one.
        rounds: steps.
    """

    env: Economy = eqx.field(static=True)
    params: EnvParams
    states: StateCoordinates
    chord: np.ndarray
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
        chord = jnp.asarray(self.chord, x.dtype)
        for _ in range(self.rounds):
            x = x + chord @ (wanted - self._seen(states.state(x)))
        state = states.state(x)
        return state, jnp.sum((wanted - self._seen(state)) ** 2)

    def _seen(self, state: EnvState) -> Float[Array, " O"]:
        return _flat(self.env.observation(state, self.params))


def state_of(env: Economy, params: EnvParams, policy: Callable[[EnvState], PyTree]) -> StateOf:
    """The inverse of an economy's observation, as far as `policy` needs it.

    Raises:
        UserError: the observation does not tell the state that the policy depends on.
    """
    states = state_coordinates(env, params, discrete=True)
    index, values = _index(env, params, states.template)
    seen = jax.vmap(env.initial_state, (0, None))(jax.random.split(jax.random.key(1), SAMPLE), params)
    derivative = jax.jit(jax.jacfwd(lambda x: _flat(env.observation(states.state(x), params))))
    chord = np.linalg.pinv(np.asarray(derivative(states(states.template))), rcond=1e-9)
    numbers = jax.device_get(params)
    wanted = jax.jit(jax.vmap(policy))(seen)
    for rounds in ROUNDS:
        found = StateOf(env, numbers, states, chord, index, values, rounds)

        def again(state, found=found):
            observation = env.observation(state, params)
            observation = observation[None] if env.num_agents == 1 else observation
            return policy(found(observation))

        gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), jax.jit(jax.vmap(again))(seen), wanted)
        gap = max(float(gap) for gap in jax.tree.leaves(gaps))
        if gap < ROUNDING or (rounds == ROUNDS[-1] and gap < FAITHFUL):
            return found
    raise UserError(
        f"{env.name}: its observations do not tell the state that the solution depends on, so a solver cannot act on "
        "them; score against it by equimorph.agents.classical.solve, or train with 'deqn' or 'mappo'"
    )


def _index(env: Economy, params: EnvParams, template: EnvState) -> tuple[str | None, int]:
    """The one discrete leaf besides the time, and how many values it has."""
    names = [
        field.name
        for field in dataclasses.fields(template)
        if field.name != "time" and not jnp.issubdtype(jnp.asarray(getattr(template, field.name)).dtype, jnp.floating)
    ]
    if not names:
        return None, 0
    law = env.shocks(params)
    if len(names) > 1 or not isinstance(law, Chain) or jnp.ndim(getattr(template, names[0])):
        raise UserError(
            f"{env.name}: its discrete states ({', '.join(names)}) cannot be read off observations, so a solver cannot "
            "act on them; score against it by equimorph.agents.classical.solve"
        )
    return names[0], law.transition.shape[0]


def _flat(tree: PyTree) -> Float[Array, " O"]:
    leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves).astype(jnp.result_type(float))

"""An environment as two functions of two vectors, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis


class Differentiated:
    """Reward `[A]` and next state of one environment, by the state's coordinates `[n]` and the actions `[A, d]`.

    `noise` is a shock of an economy, and a key of any other environment.
    """

    def __init__(self, env: Environment, params: EnvParams, leaves: tuple[bool, ...], team: bool):
        # gymnax's own environments cut the gradient of a transition unless asked not to.
        self.env = env if env.transition_gradients_enabled else env.with_transition_gradients()
        self.params, self.leaves, self.team = params, leaves, team

    @property
    def usual_noise(self) -> Array:
        """A fixed key, so that a costate is a function of the state; an economy's reward reads none."""
        return jax.random.key(0)

    def split(self, state: EnvState) -> tuple[Float[Array, " n"], Callable[[Float[Array, " n"]], EnvState]]:
        """The coordinates that have costates, and the way back."""
        leaves, structure = jax.tree.flatten(state)
        x, unravel = ravel_pytree([leaf for leaf, chosen in zip(leaves, self.leaves, strict=True) if chosen])

        def rebuild(x: Float[Array, " n"]) -> EnvState:
            parts = iter(unravel(x))
            chosen = zip(leaves, self.leaves, strict=True)
            return jax.tree.unflatten(structure, [next(parts) if use else leaf for leaf, use in chosen])

        return x, rebuild

    def flat(self, action: PyTree) -> Float[Array, "A d"]:
        """Actions from the environment's own shape."""
        return add_agent_axis(self.env, jnp.asarray(action)).reshape(self.env.num_agents, -1)

    def shaped(self, action: Float[Array, "A d"]) -> Array:
        """Actions in the environment's own shape."""
        one = self.env.agent_action_space(self.params).shape
        return drop_agent_axis(self.env, action.reshape(self.env.num_agents, *one))

    def reward(self, state: EnvState, action: Float[Array, "A d"], noise: Array) -> Float[Array, " A"]:
        """What each agent earns, in the units of `step`."""
        env, params = self.env, self.params
        if isinstance(env, Economy):
            utility = env.earned(env.reward(state, self.shaped(action), params), params)
            return jnp.reshape(env.scaled_reward(utility, params), (env.num_agents,))
        own = jnp.reshape(env.step_env(noise, state, self.shaped(action), params)[2], (env.num_agents,))
        if not self.team:
            return own
        alive = env.agent_mask(state, params)
        return jnp.broadcast_to(jnp.where(alive, own, 0).sum() / jnp.maximum(alive.sum(), 1), own.shape)

    def step(self, state: EnvState, action: Float[Array, "A d"], noise: Array) -> tuple[EnvState, Float[Array, " A"]]:
        """The next state, and what its value is discounted by: nothing is left of it after termination."""
        env, params = self.env, self.params
        if isinstance(env, Economy):
            following = env.transition(state, self.shaped(action), noise, params).replace(time=state.time + 1)
            goes_on = jnp.ones((), jnp.result_type(float))
        else:
            _, following, _, terminated, _ = env.step_env(noise, state, self.shaped(action), params)
            goes_on = 1 - terminated.astype(jnp.result_type(float))
        discount = goes_on * env.step_discount(state, following, params)
        return following, jnp.broadcast_to(discount, (env.num_agents,))

    def reward_slopes(
        self, state: EnvState, action: Float[Array, "A d"], noise: Array
    ) -> tuple[Float[Array, "A n"], Float[Array, "A A d"]]:
        """Each agent's reward by the state, and by everyone's action."""
        x, rebuild = self.split(state)
        reward, pull = jax.vjp(lambda x, a: self.reward(rebuild(x), a, noise), x, action)
        return jax.vmap(pull)(jnp.eye(self.env.num_agents, dtype=reward.dtype))

    def transition_pullback(
        self, state: EnvState, action: Float[Array, "A d"], noise: Array, worth: Float[Array, "A n"]
    ) -> tuple[Float[Array, "A n"], Float[Array, "A A d"]]:
        """`worth . f_s` and `worth . f_a`, for each agent's worth of next period's coordinates."""
        x, rebuild = self.split(state)
        following, pull = jax.vjp(lambda x, a: self.split(self.step(rebuild(x), a, noise)[0])[0], x, action)
        return jax.vmap(pull)(worth.astype(following.dtype))

"""Best responses that are trained: one player learns while the others keep to a policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from ...agents.agent import Policy, View
from ...agents.mappo import MAPPO
from ...envs import spaces
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams, EnvState
from ...errors import UserError
from ..loop import BROKEN, create_train_state, make_train_step
from .rules import Rule
from .simulate import horizon_of

ITERATIONS, NUM_ENVS, NUM_STEPS = 150, 64, 64
PATHS = 1024
MOST_PLAYERS = 4


@struct.dataclass
class Params(EnvParams):
    """A game's parameters, the policy that the others keep to, and who is learning.

    Attributes:
        inner: the game's own.
        rule: a `Rule`, which decides for the others.
        player: the learner's slot, int scalar.
    """

    # Defaults only because gymnax's first field has one.
    inner: Any = None
    rule: Any = None
    player: Any = None


@dataclasses.dataclass(frozen=True)
class BestResponse(Environment):
    """A game as its player sees it who alone may change its mind: an environment of one agent."""

    inner: Economy

    @property
    def name(self) -> str:
        """The game's name, marked."""
        return f"BestResponse({self.inner.name})"

    def agent_action_space(self, params: Params) -> spaces.Space:
        return self.inner.agent_action_space(params.inner)

    def agent_observation_space(self, params: Params) -> spaces.Space:
        return self.inner.agent_observation_space(params.inner)

    def action_space(self, params: Params) -> spaces.Space:
        return self.agent_action_space(params)

    def observation_space(self, params: Params) -> spaces.Space:
        return self.agent_observation_space(params)

    def action_mask(self, state: EnvState, params: Params) -> PyTree | None:
        mask = self.inner.action_mask(state, params.inner)
        return None if mask is None else jax.tree.map(lambda m: m[params.player][None], mask)

    def discount_factor(self, params: Params) -> Float[Array, ""]:
        return self.inner.discount_factor(params.inner)

    def step_discount(self, state: EnvState, next_state: EnvState, params: Params) -> Float[Array, ""]:
        discount = self.inner.step_discount(state, next_state, params.inner)
        return jnp.broadcast_to(discount, (self.inner.num_agents,))[params.player]

    def centre(self, params: Params) -> PyTree:
        return self.inner.centre(params.inner)

    def observe(self, key: Array, state: EnvState, action: PyTree | None, params: Params) -> Array:
        return self.inner.observation(state, params.inner)[params.player]

    def is_truncated(self, state: EnvState, params: Params) -> Array:
        return self.inner.is_truncated(state, params.inner)

    def reset_env(self, key: Array, params: Params) -> tuple[Array, EnvState]:
        state = self.inner.initial_state(key, params.inner)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: Params
    ) -> tuple[Array, EnvState, Array, Array, dict]:
        """The game's step; the reward is the player's own utility, whatever the concept."""
        together = join(params.rule.bind(self.inner, params.inner)(state).action, action, params.player)
        _, following, _, terminated, info = self.inner.step_env(key, state, together, params.inner)
        reward = self.inner.scaled_reward(info["utility"], params.inner)[params.player]
        return self.observe(key, following, None, params), following, reward, terminated, {}


def join(actions: PyTree, own: PyTree, player: Int[Array, ""]) -> PyTree:
    """Everybody's actions `[A, ...]` with one player's replaced."""
    return jax.tree.map(lambda all_, one: all_.at[player].set(one), actions, own)


def train_best_responses(
    rule: Rule, env: Economy, params: EnvParams, seed: int
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    """Train a best response of each player (the first four) by MAPPO; compare it with the policy on equal shocks.

    Args:
        rule: what all play, and the others keep playing.
        env, params: the game.
        seed: of training and of the comparison.

    Returns:
        Each player's mean gain in discounted utility from the economy's first states, and its standard error.
    """
    game = BestResponse(env)
    agent = MAPPO(learning_rate=1e-3, schedule="linear", initial_std=_initial_std(env, params))
    found = []
    for player in range(min(env.num_agents, MOST_PLAYERS)):
        seen = Params(params.max_steps_in_episode, inner=params, rule=rule, player=jnp.int32(player))
        step = make_train_step(
            game,
            seen,
            agent,
            num_envs=NUM_ENVS,
            num_steps=NUM_STEPS,
            iterations=ITERATIONS,
            fresh_episodes=env.one_shot,
        )
        state = create_train_state(game, seen, agent, num_envs=NUM_ENVS, num_iterations=ITERATIONS, seed=seed + player)
        state, metrics = step(state)
        if np.any(np.asarray(metrics[BROKEN])):
            raise UserError(f"{env.name}: training a best response of player {player} met something that is not finite")
        steps = horizon_of(env, params, None)
        found.append(np.asarray(_gains(agent.policy(state.agent), seen, jax.random.key(seed), env=env, steps=steps)))
    gains = np.stack(found)
    return gains.mean(axis=1), gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1])


def _initial_std(env: Economy, params: EnvParams) -> float | None:
    return 0.2 if isinstance(env.agent_action_space(params), spaces.Box) else None


@eqx.filter_jit
def _gains(response: Policy, seen: Params, key: Array, *, env: Economy, steps: int) -> Float[Array, " N"]:
    """What the player gains on each path, under the same shocks."""
    params, player = seen.inner, seen.player
    game = BestResponse(env)
    decide = seen.rule.bind(env, params)

    def deviate(state: EnvState) -> PyTree:
        observation = game.observe(key, state, None, seen)[None]
        own = response(View(observation, jnp.ones((1,), bool), game.action_mask(state, seen)))
        return join(decide(state).action, own[0], player)

    def earn(state: EnvState, keys: Array, act) -> Float[Array, ""]:
        def step(carry, key_step):
            state, total, weight = carry
            action = env.legal_action(act(state), params)[0]
            _, following, _, _, info = env.step_env(key_step, state, action, params)
            discount = game.step_discount(state, following, seen)
            return (following, total + weight * info["utility"][player], weight * discount), None

        zero, one = jnp.zeros((), jnp.result_type(float)), jnp.ones((), jnp.result_type(float))
        return jax.lax.scan(step, (state, zero, one), keys)[0][1]

    def path(key: Array) -> Float[Array, ""]:
        key_start, key_steps = jax.random.split(key)
        state, keys = env.initial_state(key_start, params), jax.random.split(key_steps, steps)
        return earn(state, keys, deviate) - earn(state, keys, lambda s: decide(s).action)

    return jax.vmap(path)(jax.random.split(key, PATHS))

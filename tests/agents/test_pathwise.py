"""Pathwise gradients against slopes measured by other means, and what they are refused for."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import equimorph
from equimorph.agents import Pathwise
from equimorph.agents.agent import check_pair
from equimorph.envs import spaces
from equimorph.envs.environment import Environment, EnvParams, EnvState
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step

DISCOUNT, LIMIT, STEPS, ENVS = 0.8, 3, 5, 4
SGD = {"stepper": "sgd"}


@struct.dataclass
class WalkState(EnvState):
    place: jax.Array


@dataclasses.dataclass(frozen=True)
class Walk(Environment):
    """Two walkers and an empty slot, which earns NaN: x' = x + a + the walkers' mean, at a reward of -(x' - 1)^2.

    It goes on after its end, at `LIMIT`, and would still pay.
    """

    num_agents: int = 3
    concept: str = "cooperative"
    _supports_transition_gradients = True

    @property
    def default_params(self):
        return EnvParams(max_steps_in_episode=jnp.int32(LIMIT))

    def agent_action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))

    def agent_observation_space(self, params):
        return spaces.Box(-9.0, 9.0, (1,))

    def agent_mask(self, state, params):
        return jnp.array([True, True, False])

    def discount_factor(self, params):
        return jnp.asarray(DISCOUNT, jnp.result_type(float))

    def observe(self, key, state, action, params):
        return state.place[:, None]

    def reset_env(self, key, params):
        state = WalkState(jnp.int32(0), jax.random.normal(key, (3,)))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        place = state.place + action[:, 0] + state.place[:2].mean()
        following = WalkState(state.time + 1, place)
        reward = jnp.where(self.agent_mask(state, params), -((place - 1) ** 2), jnp.nan)
        over = following.time >= params.max_steps_in_episode
        return self.observe(key, following, None, params), following, reward, over, {}


def earned(weights, starts):
    """The mean discounted return, written out once more, in NumPy; `weights` are slope and offset before the squash."""
    total = 0.0
    for place in np.asarray(starts, float)[:, :2]:
        for step in range(LIMIT):
            place = place + np.tanh(weights[0] * place + weights[1]) + place.mean()
            total -= DISCOUNT**step * ((place - 1) ** 2).mean()
    return total / len(starts)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_update_is_the_slope_of_the_discounted_return(micro_batches):
    with jax.enable_x64(True):
        env, agent = Walk(), Pathwise(1.0, widths=(), stepper=SGD | {"max_norm": 1e9}, micro_batches=micro_batches)
        params = env.default_params
        state = create_train_state(env, params, agent, num_envs=ENVS, num_iterations=1)
        layer = lambda nets: (nets.network.layers[0].weight, nets.network.layers[0].bias)  # noqa: E731
        weights = np.array([-0.3, 0.2])
        nets = eqx.tree_at(layer, state.agent.nets, (jnp.full((1, 1), weights[0]), jnp.full((1,), weights[1])))
        starts = np.asarray(state.env_state.place)
        state = state._replace(agent=state.agent._replace(nets=nets))
        after, metrics = make_train_step(env, params, agent, num_envs=ENVS, num_steps=STEPS)(state)
        moved = np.array([float(leaf.squeeze()) for leaf in layer(after.agent.nets)]) - weights
        h = 1e-6 * np.eye(2)
        slope = [(earned(weights + d, starts) - earned(weights - d, starts)) / 2e-6 for d in h]
        np.testing.assert_allclose(moved, slope, rtol=1e-7)
        np.testing.assert_allclose(-metrics["loss/policy"], earned(weights, starts), rtol=1e-12)
        np.testing.assert_array_equal(metrics["policy/steps"], LIMIT)


@pytest.mark.parametrize(
    ("id", "options", "env_options", "message"),
    [
        ("CellCount-v0", {}, {}, "needs 'differentiable'"),
        ("Chemotaxis-v0", {"micro_batches": 3}, {}, "do not divide into 3 micro_batches"),
        ("Chemotaxis-v0", {}, {"max_steps_in_episode": 40}, "num_steps = 30 must be at least the time limit of 40"),
        ("FishWar-v0", {}, {"concept": "mpe"}, "finds the 'cooperative' solution of FishWar-v0"),
    ],
)
def test_what_does_not_fit_is_refused(id, options, env_options, message):
    env, params = equimorph.make(id, **env_options)
    with pytest.raises(UserError, match=message):
        check_pair(Pathwise(**options), env, params, 30, 4)


@pytest.mark.parametrize(
    ("options", "message"), [({"stepper": "gn"}, "residuals"), ({"gamma": 1.5}, "gamma"), ({"widths": (0,)}, "widths")]
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Pathwise(**options)


@pytest.mark.slow
@pytest.mark.extended
def test_cells_learn_to_climb_in_few_steps():
    run = equimorph.train("Chemotaxis-v0", "pathwise", iterations=20, progress=False)
    score = equimorph.evaluate(run, num_episodes=64)
    assert score["score"] > 0.9 > 0.4 > score["untrained"]["score"]

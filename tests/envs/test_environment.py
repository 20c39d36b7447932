"""The environment contract's defaults: masks, slots, discounts and the agent axis."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import equimorph
from equimorph.envs import Environment
from equimorph.envs.environment import (
    PROBABILITY,
    SHARE,
    Domain,
    EnvParams,
    EnvState,
    add_agent_axis,
    canonical_params,
    drop_agent_axis,
)
from equimorph.envs.spaces import Box, Discrete
from equimorph.errors import UserError


@struct.dataclass
class Positions(EnvState):
    x: jax.Array


@dataclasses.dataclass(frozen=True)
class Crowd(Environment):
    """Three agents on a line; slot 0's agent moves into slot 1, slot 1's into slot 2, slot 2's leaves."""

    num_agents: int = 3

    def agent_action_space(self, params):
        return Box(-1.0, 3.0, (2,), jnp.result_type(float))

    def agent_observation_space(self, params):
        return Box(-9.0, 9.0, (1,), jnp.result_type(float))

    @property
    def default_params(self):
        return canonical_params(EnvParams(max_steps_in_episode=4))

    def observe(self, key, state, action, params):
        return state.x[:, None]

    def reset_env(self, key, params):
        state = Positions(jnp.int32(0), jax.random.normal(key, (3,)))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        action, clipped = self.legal_action(action, params)
        state = state.replace(time=state.time + 1, x=jnp.roll(state.x, 1) + 0.1 * action[:, 0])
        return (
            self.observe(key, state, None, params),
            state,
            -(state.x**2),
            jnp.zeros((), bool),
            {"action_clipped": clipped},
        )

    def successor(self, state, next_state, params):
        return jnp.array([1, 2, -1], jnp.int32)


@pytest.fixture(scope="module")
def crowd():
    env = Crowd()
    return env, env.default_params, env.reset_env(jax.random.key(0), env.default_params)[1]


def test_a_population_keeps_the_contract():
    equimorph.check_environment(Crowd())


def test_memory_follows_the_person(crowd):
    env, params, state = crowd
    assert env.inherits(state, state, params).tolist() == [-1, 0, 1]


def test_spaces_are_stacked_over_agents(crowd):
    env, params, _ = crowd
    assert env.action_space().shape == env.action_space(params).shape == (3, 2)
    assert env.observation_space().shape == (3, 1)
    assert env.num_actions == 2


def test_defaults(crowd):
    env, params, state = crowd
    assert env.agent_mask(state, params).tolist() == [True] * 3
    assert env.action_mask(state, params) is None
    np.testing.assert_array_equal(env.world_state(state, params), state.x)
    assert env.step_discount(state, state, params) == env.discount_factor(params) == pytest.approx(0.99)
    np.testing.assert_array_equal(env.centre(params), [1.0, 1.0])
    assert env.reference(params) is None
    assert env.name == "Crowd-v0"
    with pytest.raises(NotImplementedError, match="Crowd-v0 has no score"):
        env.score(state, params)
    with pytest.raises(UserError, match="Crowd-v0 has no picture"):
        env.render(state, params)


def test_transition_gradients_are_always_on(crowd):
    env, params, state = crowd
    assert env.with_transition_gradients() is env
    assert env.capabilities == {"differentiable"}

    def moved(action):
        return env.step_env(jax.random.key(0), state, action, params)[1].x.sum()

    np.testing.assert_allclose(jax.grad(moved)(jnp.zeros((3, 2))), [[0.1, 0.0]] * 3, rtol=1e-6)


def test_an_illegal_action_is_clipped_and_flagged(crowd):
    env, params, _ = crowd
    legal, clipped = env.legal_action(jnp.full((3, 2), 5.0), params)
    np.testing.assert_array_equal(legal, 3.0)
    assert clipped


def test_the_agent_axis_at_the_edge(crowd):
    env, _, _ = crowd
    tree = {"a": jnp.zeros((3, 2))}
    assert add_agent_axis(env, tree)["a"].shape == drop_agent_axis(env, tree)["a"].shape == (3, 2)
    alone = Crowd(num_agents=1)
    assert add_agent_axis(alone, tree)["a"].shape == (1, 3, 2)
    assert drop_agent_axis(alone, add_agent_axis(alone, tree))["a"].shape == (3, 2)


def test_a_discrete_centre_is_an_action():
    @dataclasses.dataclass(frozen=True)
    class Chooser(Crowd):
        def agent_action_space(self, params):
            return Discrete(4)

    env = Chooser()
    assert env.action_space().contains(jnp.array([env.centre(env.default_params)] * 3))
    assert env.num_actions == 4


@pytest.mark.parametrize(
    ("domain", "inside", "outside", "text"),
    [
        (SHARE, [0.5], [0.0, 1.0, np.nan], "(0, 1)"),
        (PROBABILITY, [0.0, 1.0], [-0.1, np.inf], "[0, 1]"),
        (Domain(1, open_low=False), [1, 9.0, np.array([1, 2])], [0, np.inf, np.array([0, 2])], "[1, inf)"),
    ],
)
def test_domains(domain, inside, outside, text):
    assert str(domain) == text
    assert all(domain.contains(value) for value in inside)
    assert not any(domain.contains(value) for value in outside)


@pytest.mark.parametrize("wide", [False, True])
def test_parameters_take_the_precision_of_the_moment(wide):
    with jax.enable_x64(wide):
        _, params = equimorph.make("BrockMirman-v0")
        kinds = {leaf.dtype for leaf in jax.tree.leaves(params)}
        assert kinds == {jnp.result_type(float), jnp.result_type(int)}

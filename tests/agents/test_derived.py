"""Derived conditions: zero at answers known in closed form, not zero elsewhere, and trained to them from nothing."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from jaxtyping import Array

import equimorph
from equimorph.agents.classical import solve
from equimorph.agents.deqn.derived import make_derived
from equimorph.agents.policies.actor import Actor, flat_observation, observation_size
from equimorph.agents.policies.heads import make_head
from equimorph.envs import spaces
from equimorph.envs.economy import Economy
from equimorph.envs.environment import EnvParams, EnvState, add_agent_axis, drop_agent_axis
from equimorph.envs.shocks import no_shock
from equimorph.errors import UserError


def initial_states(env, params, count):
    return jax.vmap(lambda k: env.reset_env(k, params)[1])(jax.random.split(jax.random.key(3), count))


def at_nodes(derived, outputs, env, params, order=7):
    """The residuals of an economy, as a function of the state."""
    law = env.shocks(params)

    def residuals(state):
        nodes, weights = law.nodes(law.rules[0], order, state)
        return derived.residuals(outputs, state, nodes, weights, env, params)

    return residuals


# -- closed forms: B of V_i = A + B log x + ..., [A, n], or the gradient of the quadratic value ----------------


def brock_mirman(state, params):
    b = params.alpha / (1 - params.alpha * params.beta)
    return (b / state.k)[None, None]


def fish_war(state, params):
    return jnp.full((2, 1), 1 / ((1 - params.alpha * params.beta) * state.x))


CLOSED = [
    ("BrockMirman-v0", {}, brock_mirman),
    ("FishWar-v0", {}, fish_war),
    # Its strategies depend on the rival's quantity: only with rivals' reactions is the envelope condition zero.
    ("Cournot-v0", {"calibration": "adjustment"}, None),
]


@pytest.mark.parametrize(("id", "options", "costate"), CLOSED)
def test_zero_at_the_exact_policy_and_costate_and_nowhere_near(id, options, costate):
    with jax.enable_x64(True):
        env, params = equimorph.make(id, **options)
        derived = make_derived(env, params)
        known = solve(env, params)

        def exact(state):
            if costate is not None:
                return costate(state, params)
            slopes = jax.jacrev(lambda q: known.value(state.replace(q=q)))(state.q)
            return slopes / env.reward_units(params)[1]

        def outputs(action_off, costate_off):
            def at(state):
                action = known.policy(state) + action_off

                def costate_at(raw):
                    filled = jnp.full((env.num_agents, derived.size), raw)
                    return derived.costate(lambda _: (action, filled), state, env, params)

                zero, one = costate_at(0.0), costate_at(1.0)
                return action, (exact(state) * (1 + costate_off) - zero) / (one - zero)

            return at

        def worst(states, action_off, costate_off):
            residuals = at_nodes(derived, outputs(action_off, costate_off), env, params)
            return jax.tree.map(lambda g: jnp.abs(g).max(), jax.vmap(residuals)(states))

        states = initial_states(env, params, 8)
        worst = jax.jit(worst)
        assert all(size < 1e-10 for size in worst(states, 0.0, 0.0).values())
        assert worst(states, 0.01, 0.0)["foc"] > 1e-2
        assert worst(states, 0.0, 0.1)["foc"] > 1e-2
        # A costate that is wrong by a factor everywhere misses this period's reward.
        assert worst(states, 0.0, 0.1)["envelope"] > 1e-3


@pytest.mark.parametrize(("id", "options"), [("Cournot-v0", {}), ("Cournot-v0", {"concept": "cooperative"})])
def test_played_once_there_are_no_costates_and_the_reward_alone_decides(id, options):
    env, params = equimorph.make(id, **options)
    derived = make_derived(env, params)
    state = env.reset_env(jax.random.key(0), params)[1]
    known = env.reference(params).policy(state)

    def first_order(action):
        found = jax.jit(at_nodes(derived, lambda _: (action, jnp.zeros((2, 0))), env, params))(state)
        assert list(found) == ["foc"]
        return found["foc"]

    assert derived.size == 0
    assert np.abs(first_order(known)).max() < 1e-5
    # Below the answer a condition asks for more, and above for less.
    assert np.all(first_order(known - 0.2) < -1e-2)
    assert np.all(first_order(known + 0.2) > 1e-2)


# -- from nothing ----------------------------------------------------------------------------------------------


def network_outputs(net, head, env, params):
    def outputs(state):
        seen = add_agent_axis(env, env.observe(jax.random.key(0), state, None, params))
        out = net(flat_observation(seen, env.agent_mask(state, params)))
        return drop_agent_axis(env, head.mode(out[..., : head.size])), out[..., head.size :]

    return outputs


def trained_actions(env, params, seed, steps, rate=3e-3, batch=128):
    """Actions `[batch, ...]` of a network trained on the states it visits, a twentieth of them fresh in each step."""
    derived, head = make_derived(env, params), make_head(env, params)
    keys = jax.random.split(jax.random.key(seed), 2)
    size = head.size + derived.size
    net = Actor(keys[0], observation_size(env, params), size, None, (64, 64), "tanh")
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps, 1e-3))

    def begin(key):
        return jax.vmap(lambda k: env.reset_env(k, params)[1])(jax.random.split(key, batch))

    def loss(net, states):
        residuals = at_nodes(derived, network_outputs(net, head, env, params), env, params, order=5)
        return sum(jnp.mean(g**2) for g in jax.vmap(residuals)(states).values())

    def step(carry, key):
        net, moments, states = carry
        key_step, key_begin, key_which = jax.random.split(key, 3)
        updates, moments = optimiser.update(jax.grad(loss)(net, states), moments)
        net = optax.apply_updates(net, updates)
        act = network_outputs(net, head, env, params)
        ahead = jax.vmap(lambda k, s: env.step_env(k, s, act(s)[0], params)[1])
        following = ahead(jax.random.split(key_step, batch), states)
        fresh = jax.random.bernoulli(key_which, 0.05, (batch,))
        states = jax.tree.map(lambda new, old: jnp.where(fresh, new, old), begin(key_begin), following)
        return (net, moments, states), None

    @jax.jit
    def run(key):
        start = (net, optimiser.init(net), begin(key))
        (last, _, states), _ = jax.lax.scan(step, start, jax.random.split(key, steps))
        return jax.vmap(lambda s: network_outputs(last, head, env, params)(s)[0])(states)

    return np.asarray(run(keys[1]))


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("BrockMirman-v0", {}),
        pytest.param("FishWar-v0", {}, marks=pytest.mark.extended),
        pytest.param("FishWar-v0", {"concept": "cooperative"}, marks=pytest.mark.extended),
    ],
)
def test_training_finds_the_concepts_own_answer_from_reward_and_transition(id, options):
    env, params = equimorph.make(id, **options)
    known = float(np.ravel(env.reference(params).policy(None))[0])
    actions = trained_actions(env, params, seed=0, steps=500)
    # Untrained: 1/2 and 1/4. The Markov-perfect fraction is .397, the cooperative one .329.
    assert abs(actions.mean() - known) < 5e-3
    assert np.abs(actions - known).max() < 3e-2


# -- other environments ----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_transition_behind_step_env_gives_the_same_conditions_as_the_economy():
    """Key by key: an economy seen through a wrapper has no explicit shock, and its averages are over its own draws."""
    env, params = equimorph.make("BrockMirman-v0")
    wrapped = equimorph.envs.wrappers.RescaleAction(env)
    explicit, keyed = make_derived(env, params), make_derived(wrapped, params)
    state = env.reset_env(jax.random.key(1), params)[1]
    keys = jax.random.split(jax.random.key(2), 5)

    def outputs(state):
        return jnp.array([0.4]) + 0.1 * state.k, jnp.array([[0.1]]) + state.k

    draws = jax.vmap(lambda k: env.shocks(params).sample(k, state))(keys)

    def both(state):
        expected = explicit.residuals(outputs, state, draws, jnp.full((5,), 0.2), env, params)
        rescaled = keyed.keyed_residuals(lambda s: (2 * outputs(s)[0] - 1, outputs(s)[1]), state, keys, wrapped, params)
        return expected, rescaled

    expected, found = jax.jit(both)(state)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_a_pendulum_is_differentiated_although_gymnax_cuts_gradients():
    env, params = equimorph.make("Pendulum-v1")
    derived = make_derived(env, params)
    # The angle and its speed; the torque last applied is only drawn.
    assert derived.size == 2
    state = env.reset_env(jax.random.key(0), params)[1]
    keys = jax.random.split(jax.random.key(1), 1)
    action, slopes = jnp.array([0.5]), jnp.array([[0.3, -0.2]])
    found = jax.jit(lambda s: derived.keyed_residuals(lambda _: (action, slopes), s, keys, env, params))(state)

    def costate(s):
        now = jnp.array([-2 * s.theta, -0.2 * s.theta_dot])
        return now + derived.reward_unit * (slopes + derived.start)[0] / derived.state_unit

    gravity, dt = 3 * params.g / (2 * params.l) * jnp.cos(state.theta), params.dt
    speed = state.theta_dot + (3 * params.g / (2 * params.l) * jnp.sin(state.theta) + 3 * action[0]) * dt
    angle = state.theta + speed * dt
    turn, push = 0.99 * costate(state.replace(theta=angle, theta_dot=speed))
    later = jnp.array([turn + (turn * dt + push) * gravity * dt, turn * dt + push])
    later += jnp.array([-2 * state.theta, -0.2 * state.theta_dot])
    terms = jnp.stack([later, -costate(state)]) * derived.state_unit
    expected = terms.sum(0) / (jnp.abs(terms).sum(0) + 0.01 * derived.reward_unit)
    np.testing.assert_allclose(found["envelope"], expected, rtol=1e-4)


@struct.dataclass
class Wealth(EnvState):
    k: Array


@struct.dataclass
class CakeParams(EnvParams):
    beta: float = 0.9


@dataclasses.dataclass(frozen=True)
class Cake(Economy):
    """What is eaten is an amount: wealth is worth something only later, and reward says nothing of it."""

    params_type: ClassVar[type[EnvParams]] = CakeParams
    observation_size: ClassVar[int] = 1

    def agent_action_space(self, params):
        return spaces.Box(0.1, 1.0, (1,), jnp.result_type(float))

    def initial_state(self, key, params):
        return Wealth(jnp.int32(0), 5 + jax.random.uniform(key, (), jnp.result_type(float)))

    def observation(self, state, params):
        return state.k[None] / 5

    def shocks(self, params):
        return no_shock()

    def transition(self, state, action, shock, params):
        return state.replace(k=1.1 * (state.k - action[0]))

    def reward(self, state, action, params):
        return jnp.log(action[0])


def test_a_costate_that_no_reward_shows_starts_where_the_first_order_condition_puts_it():
    env = Cake()
    params = env.default_params
    derived = make_derived(env, params)
    state = env.reset_env(jax.random.key(0), params)[1]

    def outputs(state):
        return env.centre(params), jnp.zeros((1, 1))

    found = derived.costate(outputs, state, env, params)
    # 1 / c = beta R lambda at the centre c = .55; scaled by wealth, which differs from state to state by a tenth.
    np.testing.assert_allclose(found, 1 / (0.55 * 0.9 * 1.1), rtol=0.15)
    assert np.abs(at_nodes(derived, outputs, env, params)(state)["foc"]).max() < 0.1


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("CartPole-v1", {}, "Discrete"),
        ("BrockMirman-v0", {"concept": "competitive"}, "'competitive'.*conditions='economy', or concept='planner'"),
        ("OLG-v0", {}, "take as given"),
        ("Auction-v0", {}, "different parts of the state"),
        ("PointRobot-misc", {}, "zero in every state"),
    ],
)
def test_what_it_cannot_find_is_refused_by_name(id, options, message):
    with pytest.raises(UserError, match=message):
        make_derived(*equimorph.make(id, **options))

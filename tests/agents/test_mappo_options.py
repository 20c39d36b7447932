"""Options of MAPPO against answers that are known: expected values, rates of their own, noise that is planned."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import MAPPO
from equimorph.agents.agent import Context, check_pair
from equimorph.agents.mappo import ActorCritic
from equimorph.errors import UserError

from ..probes import Scripted, Table, busy_script, gather, script, table, update

ONE_STEP = {"epochs": 1, "minibatches": 1, "widths": (), "stepper": "sgd", "normalise_values": False}


def weighted(weight, bias):
    """Replace a linear critic by `weight . inputs + bias`, and the actor by the centre."""

    def replace(nets):
        row, at = jnp.asarray([weight], jnp.float32), jnp.asarray([bias], jnp.float32)
        zero = jax.tree.map(jnp.zeros_like, nets.actor.network)
        where = lambda n: (n.critic.layers[0].weight, n.critic.layers[0].bias, n.actor.network)  # noqa: E731
        return eqx.tree_at(where, nets, (row, at, zero))

    return replace


def value_of_the_centre(env, params):
    """Weights of log k and log z, as they are observed, in the value of saving half for ever; and its constant.

    V = B log k + D log z + A with B = alpha / (1 - alpha beta) and D = 1 / ((1 - alpha beta) (1 - beta rho)): by hand,
    from log c = log(1/2) + log y, log k' = log(1/2) + log y and log z' = rho log z.
    """
    alpha, beta, rho = (float(x) for x in (params.alpha, params.beta, params.rho))
    b, d = alpha / (1 - alpha * beta), 1 / ((1 - alpha * beta) * (1 - beta * rho))
    a = np.log(0.5) * (1 + beta * b) / (1 - beta)
    one = jax.tree.map(jnp.asarray, env.reset_env(jax.random.key(0), params)[1])
    at = lambda k, z: np.asarray(env.observation(one.replace(k=jnp.exp(k), z=jnp.exp(z)), params), float)  # noqa: E731
    origin = at(0.0, 0.0)
    slope = np.array([b / (at(1.0, 0.0) - origin)[0], d / (at(0.0, 1.0) - origin)[1]])
    return slope, a - slope @ origin, d


def squared_advantage(expectation, **options):
    """Mean squared one-step advantage in BrockMirman where the policy is the centre, and the critic its exact value."""
    env, params = equimorph.make("BrockMirman-v0", reward_scale="utility")
    weight, bias, d = value_of_the_centre(env, params)
    agent = MAPPO(**ONE_STEP, gae_lambda=0.0, initial_std=1e-5, expectation=expectation, **options)
    state, rollout = gather(env, params, agent, 50, 32, nets=weighted(weight, bias))
    _, metrics = update(env, params, agent, state.agent, rollout)
    noise = float(params.beta) * d * float(params.sigma)
    return 2 * float(metrics["loss/value"]), noise**2


@pytest.mark.slow
def test_an_exact_critic_leaves_nothing_of_the_shocks_noise():
    # With the exact value the advantage is beta D sigma eps, all of it noise; its expectation is 0 in every state.
    found, noise = squared_advantage(None)
    assert found == pytest.approx(noise, rel=0.15)  # of 1,600 squared normal numbers: four standard errors
    found, _ = squared_advantage("quadrature", rule="gauss_hermite", order=3)
    assert found < 1e-5 * noise


def slowly(env, params, rollout, weight, gamma):
    """The expected discounted value of next states of the first environment's transitions, node by node."""

    @jax.jit
    def one(state, action, node):
        after = env.transition(state, action, node, params)
        discount = env.step_discount(state, after, params) if gamma is None else gamma
        return env.observation(after, params), env.successor(state, after, params), discount

    expected = []
    for t in range(len(rollout.reward)):
        state, action = jax.tree.map(lambda x, t=t: np.asarray(x)[t, 0], (rollout.env_state, rollout.action))
        action = action[0] if env.num_agents == 1 else action
        law = env.shocks(params)
        total = np.zeros(env.num_agents)
        for node, chance in zip(*map(np.asarray, law.nodes(law.rules[0], 5, state)), strict=True):
            seen, slots, discount = map(np.asarray, one(state, action, node))
            value = seen.reshape(env.num_agents, -1).astype(float) @ weight + 0.5
            total += chance * discount * np.where(slots >= 0, value[slots], 0.0)
        expected.append(total)
    return np.stack(expected)


@pytest.mark.parametrize(
    ("env_id", "gamma"), [("BufferStock-v0", None), ("OLG-v0", 0.5)], ids=["discounts_vary", "generations_move"]
)
def test_expectations_follow_discounts_and_agents(env_id, gamma):
    env, params = equimorph.make(env_id)
    agent = MAPPO(**ONE_STEP, critic="local", expectation="quadrature", gamma=gamma)
    size = env.observation(env.initial_state(jax.random.key(0), params), params).shape[-1]
    weight = np.random.default_rng(0).normal(size=size)
    state, rollout = gather(env, params, agent, 3, 2, nets=weighted(weight, 0.5))
    expected = eqx.filter_jit(agent._expected)(state.agent, rollout, Context(env, params, jnp.int32(0), jnp.int32(1)))
    np.testing.assert_allclose(expected[:, 0], slowly(env, params, rollout, weight, gamma), rtol=2e-4, atol=2e-4)


def stepped(**options):
    env = Scripted()
    agent = MAPPO(**ONE_STEP, learning_rate=0.5, **options)
    state, rollout = gather(env, busy_script(), agent, 12, 4)
    return state.agent.nets, [update(env, busy_script(), agent, state.agent, rollout, i, 9)[0].nets for i in (0, 3)]


def test_actor_and_critic_move_at_rates_of_their_own():
    before, (plain, _) = stepped()
    _, (slow, _) = stepped(critic_learning_rate=0.05)
    _, (fast, _) = stepped(critic_learning_rate=2.0)
    moved = lambda after: jax.tree.map(lambda a, b: np.asarray(a - b), after, before)  # noqa: E731
    for other, ratio in ((slow, np.float32(0.1)), (fast, np.float32(4.0))):
        expected = moved(plain)
        expected = ActorCritic(expected.actor, jax.tree.map(ratio.__mul__, expected.critic))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6), moved(other), expected)
    assert np.abs(moved(plain).critic.layers[0].weight).max() > 1e-3
    _, (early, late) = stepped(critic_warmup=3)
    jax.tree.map(np.testing.assert_array_equal, early.actor, before.actor)
    for part in (early.critic, late.actor, late.critic):
        whole = plain.actor if part is late.actor else plain.critic
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), part, whole)


def test_noise_falls_as_planned():
    options = {"widths": (4,), "epochs": 2, "minibatches": 2, "initial_std": 0.5, "final_std": 0.02}
    agent = MAPPO(learning_rate=0.1, **options)
    env = Scripted()
    state, rollout = gather(env, busy_script(), agent, 12, 4)
    np.testing.assert_allclose(np.exp(state.agent.nets.actor.spread), 0.5, rtol=1e-6)
    after, metrics = update(env, busy_script(), agent, state.agent, rollout, iteration=0, num_iterations=4)
    assert metrics["policy/first_ratio_error"] < 1e-5
    np.testing.assert_allclose(np.exp(after.nets.actor.spread), 0.5**0.75 * 0.02**0.25, rtol=1e-5)
    after, _ = update(env, busy_script(), agent, state.agent, rollout, iteration=3, num_iterations=4)
    np.testing.assert_allclose(np.exp(after.nets.actor.spread), 0.02, rtol=1e-5)


def test_noise_that_is_planned_takes_no_part_in_the_gradient():
    numbers = {"epochs": 1, "minibatches": 1, "learning_rate": 1.0, "initial_std": 0.5, "final_std": 0.02}
    agent = MAPPO(**numbers, widths=(4,), normalise_values=False, stepper={"optimizer": "sgd", "max_norm": 0.01})
    state, rollout = gather(Scripted(), busy_script(), agent, 12, 4)
    after, _ = update(Scripted(), busy_script(), agent, state.agent, rollout, iteration=0, num_iterations=4)
    trained = lambda nets: (nets.actor.network, nets.critic)  # noqa: E731
    moved = jax.tree.map(lambda a, b: np.asarray(a - b), trained(after.nets), trained(state.agent.nets))
    # The limit on the gradient's norm is all used up by what is learned.
    assert np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(moved))) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expectation": "quadrture"}, "Did you mean 'quadrature'"),
        ({"rule": "monomial3"}, "rule = 'monomial3' does not apply without expectation"),
        ({"order": 3}, "order = 3 does not apply without expectation"),
        ({"expectation": "quadrature", "order": 0}, "order = 0"),
        ({"critic_learning_rate": -1.0}, "critic_learning_rate = -1"),
        ({"critic_warmup": -1}, "critic_warmup = -1"),
        ({"final_std": 0.0}, "final_std = 0"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        MAPPO(**arguments)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("CellCount-v0", {}, "no economy"),
        ("Auction-v0", {}, "played once"),
        ("KrusellSmith-v0", {}, "HouseholdShocks"),
        ("Growth-v0", {"rule": "exact"}, "Known: gauss_hermite"),
        ("BufferStock-v0", {"order": 3}, "order = 3 does not apply with rule='exact'"),
    ],
)
def test_expectations_that_cannot_be_taken_are_refused(env_id, options, message):
    env, params = equimorph.make(env_id)
    with pytest.raises(UserError, match=message):
        check_pair(MAPPO(expectation="quadrature", **options), env, params, 8, 8)


def test_planned_noise_needs_a_box():
    with pytest.raises(UserError, match=r"final_std = 0\.1 does not apply to Table-v0, whose actions are discrete"):
        check_pair(MAPPO(final_std=0.1), Table(), table(), 8, 8)
    check_pair(MAPPO(final_std=0.1), Scripted(), script(), 8, 8)

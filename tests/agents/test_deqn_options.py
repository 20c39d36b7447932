"""What the residual learner's options do, against published formulas and values worked out by hand."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import DEQN, classical
from equimorph.agents.agent import check_pair
from equimorph.agents.deqn import policy_decision, residuals
from equimorph.agents.deqn import states as sources
from equimorph.agents.deqn.expectations import draws_at, nodes_at
from equimorph.agents.deqn.losses import Balance, assemble, rebalance
from equimorph.agents.policies.heads import make_head
from equimorph.envs.economy import Decision
from equimorph.envs.shocks import Lognormal, Normal
from equimorph.errors import UserError

from ..probes import gather, update

ALPHA, BETA = 0.36, 0.96

# -- losses ---------------------------------------------------------------------------------------------------------


def test_losses_are_the_mean_squares_of_their_residuals():
    g = jnp.asarray([0.1, -0.4, 2.0, -3.0])
    importance, weights = jnp.asarray([1.0, 2.0, 0.5, 1.0]), jnp.asarray([3.0])
    for agent in (DEQN(), DEQN(loss="huber", huber_delta=0.5)):
        terms = assemble(agent, ("a",), {"a": g}, None, importance, weights)
        delta = 0.5 if agent.loss == "huber" else np.inf
        rho = [x**2 if abs(x) <= delta else 2 * delta * abs(x) - delta**2 for x in np.asarray(g, float)]
        by_hand = 3 * np.mean(np.asarray(importance) * rho)
        assert float(terms.losses["loss/a"]) == pytest.approx(by_hand, rel=1e-5)
        assert float(jnp.mean(terms.residuals["a"] ** 2)) == pytest.approx(by_hand, rel=1e-5)
    product = assemble(DEQN(expectation="all_in_one"), ("a",), {"a": g}, {"a": g[::-1]}, None, weights)
    assert product.residuals is None
    assert float(product.losses["loss/a"]) == pytest.approx(3 * float(jnp.mean(g * g[::-1])), rel=1e-5)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def test_relobralo_as_published():
    """Bischof and Kraus (2021), eq. 10 to 13, over four iterations, with every look-back and without any."""
    losses = np.array([[1.0, 4.0, 2.0], [0.5, 4.5, 1.0], [0.4, 1.0, 1.5], [0.1, 0.9, 0.3]])
    for lookback in (0.0, 1.0):
        agent = DEQN(adaptive="relobralo", temperature=0.7, adaptive_decay=0.9, lookback=lookback)
        balance = Balance(jnp.ones(3), jnp.ones(3), jnp.ones(3), jnp.zeros((), bool))
        weights = np.ones(3)
        for t, now in enumerate(losses):
            first, last = losses[0], losses[max(t - 1, 0)]
            history = weights if lookback == 1.0 else 3 * softmax(now / (0.7 * first))
            weights = 0.9 * history + 0.1 * 3 * softmax(now / (0.7 * last))
            balance = rebalance(agent, balance, jnp.asarray(now, jnp.float32), None, jax.random.key(t))
            np.testing.assert_allclose(balance.weights, weights, rtol=1e-5)


def test_annealing_as_published():
    """Wang, Teng and Perdikaris (2021), algorithm 1: the largest slope of the first loss over the mean of another's."""
    agent = DEQN(adaptive="annealing", adaptive_decay=0.25)
    gradients = {"w": jnp.asarray([[1.0, -8.0], [0.5, 0.5], [0.0, 0.0]]), "b": jnp.asarray([[2.0], [-2.0], [0.0]])}
    balance = Balance(jnp.asarray([1.0, 2.0, 5.0]), jnp.ones(3), jnp.ones(3), jnp.ones((), bool))
    found = rebalance(agent, balance, jnp.ones(3), gradients, jax.random.key(0)).weights
    # mean |grad| of the second is 1, so its weight moves to 8; the third has no slope and keeps its own.
    np.testing.assert_allclose(found, [1.0, 0.25 * 2 + 0.75 * 8, 5.0], rtol=1e-6)


# -- shocks ---------------------------------------------------------------------------------------------------------


def test_masked_and_growing_shocks_keep_their_mean():
    law = Lognormal(jnp.asarray([0.03, -0.1]), jnp.asarray([0.1, 0.3]))
    mean = np.exp(np.array([0.03, -0.1]) + np.array([0.1, 0.3]) ** 2 / 2)
    agent = DEQN(shock_mask=(True, False), curriculum=0.5, order=7)
    for size in (0.0, 0.4, 1.0):
        nodes, weights = nodes_at(agent, law, None, jnp.asarray(size))
        assert nodes.shape == (7, 2)
        np.testing.assert_allclose(weights @ nodes, mean, rtol=1e-6)
        np.testing.assert_allclose(nodes[:, 1], mean[1], rtol=1e-6)
        np.testing.assert_allclose(
            weights @ jnp.log(nodes[:, 0]) ** 2 - (weights @ jnp.log(nodes[:, 0])) ** 2,
            (0.1 * size) ** 2,
            rtol=1e-3,
            atol=1e-9,
        )
    whole, _ = nodes_at(DEQN(curriculum=0.5, order=3), law, None, jnp.asarray(1.0))
    np.testing.assert_allclose(whole, law.nodes("gauss_hermite", 3, None)[0], rtol=1e-6)


def test_antithetic_draws_come_in_pairs():
    agent = DEQN(expectation="all_in_one", antithetic=True, draws=6)
    draws = draws_at(agent, Normal(2), None, None, jax.random.key(0))
    np.testing.assert_allclose(draws[:3], -draws[3:])
    assert len(np.unique(np.asarray(draws))) == 12


def test_the_shocks_options_fit_the_law():
    growth = equimorph.make("Growth-v0")
    with pytest.raises(UserError, match=r"has 1 shocks, but shock_mask has 2"):
        check_pair(DEQN(batch_size=8, shock_mask=(True, False)), *growth, 8, 8)
    with pytest.raises(UserError, match="every shock off"):
        check_pair(DEQN(batch_size=8, shock_mask=(False,)), *growth, 8, 8)
    with pytest.raises(UserError, match=r"curriculum does not apply to Discrete shocks"):
        check_pair(DEQN(batch_size=8, curriculum=0.5), *equimorph.make("OLG-v0"), 8, 8)
    with pytest.raises(UserError, match=r"'outptu'.*Did you mean 'output'"):
        check_pair(DEQN(batch_size=8, bounds={"outptu": (0, 1)}), *growth, 8, 8)
    with pytest.raises(UserError, match=r"'eulr'.*Did you mean 'euler'"):
        check_pair(DEQN(batch_size=8, weights={"eulr": 2}), *growth, 8, 8)
    for share in ({"fresh_share": 0.001}, {"replay_size": 32, "replay_share": 0.0}):
        with pytest.raises(UserError, match=r"_share = .* of 64 states is none"):
            check_pair(DEQN(batch_size=8, **share), *growth, 8, 8)
    with pytest.raises(UserError, match="no steady state"):
        check_pair(DEQN(batch_size=8, steady_share=0.5), *equimorph.make("StochasticAK-v0"), 8, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 1.5}, "epochs = 1.5 must be a whole number"),
        ({"batch_size": True}, "batch_size = True must be a whole number"),
        ({"replay_size": 10**12}, "replay_size = 1000000000000 must be at most"),
        ({"widths": 8}, "widths = 8 must be a list"),
        ({"anchor": "value"}, "anchor = 'value' must be a list"),
        ({"anchor": ("value", "value")}, "names a term twice"),
        ({"learning_rate": "fast"}, "learning_rate = 'fast' must be a finite number"),
        ({"learning_rate": np.inf}, "learning_rate = inf must be a finite number"),
        ({"fresh_share": "half"}, "fresh_share = 'half' must be a finite number"),
        ({"shuffle": "no"}, "shuffle = 'no' must be True or False"),
        ({"activation": ["tanh"]}, r"activation = \['tanh'\] must be text"),
        ({"widths": (), "activation": "relu"}, "activation='relu' is that of hidden layers"),
        ({"expectation": "mc", "draws": 10**6}, "draws = 1000000 .* limit of 4096"),
        ({"curriculum": 0}, "curriculum = 0 must lie in"),
    ],
)
def test_options_of_another_kind_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        DEQN(**arguments)


def test_numbers_may_be_traced():
    rates = jax.vmap(lambda rate: DEQN(learning_rate=rate).learning_rate)(jnp.arange(3))
    np.testing.assert_array_equal(rates, [0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("Growth-v0", {"adaptive": "annealing"}, "adaptive = 'annealing' does not apply .* 'euler' alone"),
        ("Growth-v0", {"weights": {"euler": 0}}, r"weights are 0 for every term of Growth-v0 \(euler\)"),
        ("Growth-v0", {"learning_rate": [1e-3, 1e-2]}, r"learning_rate must be one number here, .* \(2,\)"),
        ("Growth-v0", {"replay_size": 2**31 - 1}, r"replay_size = 2147483647 .*12 bytes each.*at most 89 fit"),
        ("Growth-v0", {"replay_size": 8, "replay_share": 1}, "replay_share = 1 leaves no new state"),
        ("Growth-v0", {"rule": "monomial3", "order": 3}, r"fixed; use rule='gauss_hermite'"),
        ("Cournot-v0", {"expectation": "all_in_one"}, "expectation = 'all_in_one' .* hold no expectation"),
        ("Cournot-v0", {"next_policy": "stop"}, "next_policy = 'stop' .* hold no expectation"),
    ],
)
def test_options_that_would_do_nothing_are_refused(monkeypatch, id, options, message):
    with monkeypatch.context() as small:
        small.setattr(sources, "_host_memory", lambda: 2 * 12 * 89 + 1)
        small.setattr(sources.jax, "devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
        with pytest.raises(UserError, match=message):
            check_pair(DEQN(batch_size=8, **options), *equimorph.make(id), 8, 8)


def test_weights_may_be_0_and_move_where_there_are_two_terms():
    two = DEQN(batch_size=8, weights={"euler": 0}, bounds={"output": (0, 1)}, adaptive="relobralo", replay_size=89)
    check_pair(two, *equimorph.make("Growth-v0"), 8, 8)


# -- next period's policy -------------------------------------------------------------------------------------------


def test_where_the_gradient_goes():
    env, params = equimorph.make("BrockMirman-v0")
    here = env.initial_state(jax.random.key(0), params)
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 3, here)

    def slope(held):
        def residual(s):
            later = (lambda _: Decision(jnp.full((1,), 0.5))) if held else None
            return residuals(lambda _: Decision(s[None]), here, nodes, weights, env, params, next_decide=later)["euler"]

        return float(jax.grad(residual)(0.5))

    # alpha beta (1 - s) / (s (1 - s')) - 1: - alpha beta / s^2 with s' = s, twice that with s' held at 1/2.
    assert slope(False) == pytest.approx(-ALPHA * BETA / 0.25, rel=1e-4)
    assert slope(True) == pytest.approx(-2 * ALPHA * BETA / 0.25, rel=1e-4)


@pytest.mark.parametrize("next_policy", ["stop", "target"])
def test_an_update_with_next_periods_policy_held(next_policy):
    """One step of plain descent by hand: with a constant policy of bias b the residual is alpha beta / s - 1."""
    env, params = equimorph.make("BrockMirman-v0")
    rate = {"target_rate": 0.25} if next_policy == "target" else {}
    agent = DEQN(
        widths=(), batch_size=16, stepper="sgd", learning_rate=0.1, schedule="constant", next_policy=next_policy, **rate
    )
    state, rollout = gather(env, params, agent, 4, 4)
    zero = jax.tree.map(jnp.zeros_like, state.agent.nets)
    before = state.agent._replace(nets=zero, target=zero if next_policy == "target" else None)
    after, _ = update(env, params, agent, before, rollout)
    # d s / d b = 2 s (1 - s) = 1/2 at s = 1/2; d loss / d s = 2 g * (- alpha beta (1 - s') / (s^2 (1 - s')) ...)
    g, slope = 2 * ALPHA * BETA - 1, -2 * ALPHA * BETA / 0.25
    moved = -0.1 * 2 * g * slope * 0.5
    bias = after.nets.network.layers[-1].bias
    assert float(bias[0]) == pytest.approx(moved, rel=1e-4)
    if next_policy == "target":
        assert float(after.target.network.layers[-1].bias[0]) == pytest.approx(0.25 * moved, rel=1e-4)


# -- states ---------------------------------------------------------------------------------------------------------


def visited(env, params, count):
    return jax.vmap(lambda key: env.initial_state(key, params))(jax.random.split(jax.random.key(3), count))


def gathered(agent, seen, ring, env, params, key):
    size = len(seen.time)
    return sources.gather(agent, seen, ring, env, params, key, jnp.arange(size))


def test_sources_of_states():
    env, params = equimorph.make("Growth-v0")
    seen = visited(env, params, 400)
    seen = dataclasses.replace(seen, k=1 + 0.01 * (seen.k - 1))
    key = jax.random.key(1)
    box = gathered(DEQN(states="box", box_stretch=1.5), seen, None, env, params, key).states
    low, high = np.log([float(seen.k.min()), float(seen.k.max())])
    logs = np.log(np.asarray(box.k, float))
    half = (high - low) / 2
    assert np.abs(logs - (low + high) / 2).max() <= 1.5 * half * (1 + 1e-3)
    assert np.abs(logs - (low + high) / 2).max() > 1.3 * half
    mixed = gathered(DEQN(fresh_share=0.25, steady_share=0.25, steady_width=1e-4), seen, None, env, params, key).states
    distance = np.abs(np.asarray(mixed.k, float) - 1)
    assert (distance[:100] > 0.004).mean() > 0.8  # fresh draws lie within 30 %, the visited ones within .3 %
    assert distance[100:200].max() < 6e-4
    assert set(np.asarray(mixed.k[200:]).tolist()) <= set(np.asarray(seen.k).tolist())
    fresh = gathered(DEQN(states="fresh"), seen, None, env, params, key).states
    assert np.asarray(fresh.k).std() > 10 * np.asarray(seen.k).std()


def test_a_familys_parameters_are_no_states_to_stretch():
    env, params = equimorph.make("Growth-v0", inputs={"beta": (0.9, 0.99)})
    seen, key = visited(env, params, 40), jax.random.key(1)
    box = gathered(DEQN(states="box", box_stretch=1.5), seen, None, env, params, key).states
    np.testing.assert_array_equal(box.drawn, seen.drawn)
    assert not np.isin(box.inner.k, seen.inner.k).any()
    near = gathered(DEQN(steady_share=1.0), seen, None, env, params, key).states
    assert np.ptp(near.drawn) == 0
    assert np.ptp(near.inner.k) > 0


def test_a_ring_gives_by_priority_and_forgets_the_oldest():
    env, params = equimorph.make("Growth-v0")
    agent = DEQN(replay_size=4, replay_share=0.5, replay_exponent=1.0, replay_correction=1.0)
    ring = sources.empty_ring(agent, env, params)
    seen = visited(env, params, 4000)
    first = gathered(agent, seen, ring, env, params, jax.random.key(0))
    assert (np.asarray(first.slots) == 4).all()  # nothing is stored yet
    np.testing.assert_allclose(first.importance, 1)
    # Four states of known size, then one more: it takes the first one's place.
    few = jax.tree.map(lambda x: x[:4], seen)
    pool = sources.Pool(few, None, jnp.full(4, 4, jnp.int32))
    ring = sources.remember(ring, pool, jnp.asarray([1.0, 2.0, 3.0, 4.0]))
    fifth = jax.tree.map(lambda x: x[4:5], seen)
    ring = sources.remember(ring, sources.Pool(fifth, None, jnp.full(1, 4, jnp.int32)), jnp.asarray([6.0]))
    np.testing.assert_allclose(ring.states.k, np.asarray(seen.k)[[4, 1, 2, 3]])
    # Priorities 6, 2, 3, 4: drawn in that proportion, and weighted by the inverse, the rarest one 1.
    drawn = gathered(agent, seen, ring, env, params, jax.random.key(2))
    slots, importance = np.asarray(drawn.slots[2000:]), np.asarray(drawn.importance[2000:])
    shares = np.bincount(slots, minlength=4) / 2000
    np.testing.assert_allclose(shares, np.array([6, 2, 3, 4]) / 15, atol=0.04)
    for slot, priority in enumerate((6, 2, 3, 4)):
        np.testing.assert_allclose(importance[slots == slot], 2 / priority, rtol=1e-4)
        np.testing.assert_allclose(drawn.states.k[2000:][slots == slot], ring.states.k[slot])
    # Refreshed where it was drawn, by its new size.
    sizes = jnp.where(drawn.slots == 1, 9.0, 1.0)
    assert float(sources.remember(ring, drawn._replace(slots=drawn.slots.at[:2000].set(9)), sizes).priorities[1]) == (
        pytest.approx(9.0, rel=1e-5)
    )


# -- networks and starts --------------------------------------------------------------------------------------------


def test_what_is_prepared_is_prepared_once():
    env, params = equimorph.make("Growth-v0")
    agent = DEQN(linear_plus=True)
    first = agent.prepare(env, params).linear
    assert agent.prepare(env, params).linear is first
    other = agent.prepare(env, params.replace(gamma=jnp.float32(5.0))).linear
    assert np.abs(np.asarray(other.weight) - np.asarray(first.weight)).max() > 1e-3


def test_a_head_that_reaches_its_bounds():
    env, params = equimorph.make("BufferStock-v0")
    head = make_head(env, params, reach=True)
    np.testing.assert_allclose(head.mode(jnp.asarray([-9.0])), 0.0)
    np.testing.assert_allclose(head.mode(jnp.asarray([9.0])), 1.0)
    np.testing.assert_allclose(head.mode(jnp.zeros(1)), env.centre(params), rtol=1e-6)
    shares = jnp.asarray([[0.0], [0.3], [1.0]])
    np.testing.assert_allclose(head.mode(head.inverse(shares)), shares, atol=1e-6)
    assert float(jax.grad(lambda x: head.mode(x[None])[0])(-1.5)) > 0.05  # at the bound, and free to leave it
    assert float(make_head(env, params).mode(jnp.asarray([-2.0]))[0]) > 0


def test_a_network_starts_at_the_linear_rule():
    env, params = equimorph.make("Growth-v0")
    found = classical.solve(env, params)
    seen = visited(env, params, 200)
    near = dataclasses.replace(seen, k=1 + 0.2 * (seen.k - 1), z=seen.z**0.3)
    exact = np.asarray(jax.vmap(found.policy)(near))

    def gap(agent):
        agent = agent.prepare(env, params)
        decide = policy_decision(agent.policy(agent.init(jax.random.key(0), env, params)), env, params)
        return np.abs(np.asarray(jax.vmap(decide)(near).action) - exact).max()

    plain, warm, plus = gap(DEQN()), gap(DEQN(warm_start="linear")), gap(DEQN(linear_plus=True))
    assert warm < 0.2 * plain
    assert plus < 0.3 * plain

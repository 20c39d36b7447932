"""CellCount: what it pays, what its cells see and do, and an unbiased gradient where all outcomes can be listed."""

import functools
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs.tissues._cells import NEWBORN_RADIUS, close_packed
from equimorph.envs.tissues._forces import SoftRepulsion, stable_step
from equimorph.envs.tissues.cell_count import CellCount
from equimorph.errors import UserError

MODES = ["decision", "hazard"]


def make(mode="decision", **overrides):
    return equimorph.make("CellCount-v0", mode=mode, **{"capacity": 12, "target": 8.0} | overrides)


@functools.partial(jax.jit, static_argnames="env")
def step(env, key, state, action, params):
    return env.step_env(key, state, action, params)


@functools.partial(jax.jit, static_argnames="env")
def step_many(env, keys, state, action, params):
    return jax.vmap(env.step_env, (0, None, None, None))(keys, state, action, params)


def idle(env, params):
    return jax.tree.map(jnp.zeros_like, env.action_space(params).sample(jax.random.key(0)))


@pytest.mark.parametrize("mode", MODES)
def test_reset_and_step_have_equal_strong_types(mode):
    env, params = make(mode)
    first = jax.eval_shape(env.reset, jax.random.key(0), params)
    second = jax.eval_shape(env.step, jax.random.key(0), first[1], idle(env, params), params)[:2]
    for (path, one), (_, two) in zip(*(jax.tree_util.tree_leaves_with_path(x) for x in (first, second)), strict=True):
        assert (one.shape, one.dtype, one.weak_type) == (two.shape, two.dtype, two.weak_type), path
        assert not one.weak_type, path


def test_equal_environments_share_one_compilation_and_params_are_swept():
    one, params = make()
    other = CellCount(capacity=12)
    assert one == other
    assert hash(one) == hash(other)
    assert one not in (
        CellCount(capacity=13),
        CellCount(capacity=12, mode="hazard"),
        CellCount(capacity=12, substeps=4),
    )
    state = one.reset(jax.random.key(0), params)[1]
    step(one, jax.random.key(1), state, idle(one, params), params)
    compiled = step._cache_size()
    step(other, jax.random.key(1), state, idle(other, params), params.replace(target=params.target + 1))
    assert step._cache_size() == compiled
    swept = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *jnp.shape(x))), params)
    swept = swept.replace(kT=jnp.array([0.0, 0.01, 0.1]))
    _, states, *_ = jax.vmap(one.step, (None, None, None, 0))(jax.random.key(1), state, idle(one, params), swept)
    moved = jnp.abs(states.tissue.position - state.tissue.position).sum(axis=(1, 2))
    assert float(moved[0]) < float(moved[1]) < float(moved[2])


@pytest.mark.parametrize("mode", MODES)
def test_typed_and_legacy_keys(mode):
    env, params = make(mode)
    results = []
    for make_key in (jax.random.key, jax.random.PRNGKey):
        start = jax.eval_shape(env.reset, make_key(0), params)
        results.append((start, jax.eval_shape(env.step, make_key(0), start[1], idle(env, params), params)))
    assert results[0] == results[1]


@pytest.mark.parametrize("choice", [0, 1])
def test_decisions_are_executed_with_certainty(choice):
    """Each cell that says so divides exactly once a step, whatever the key, and no daughter does."""
    env, params = make()
    state = env.reset(jax.random.key(0), params)[1]
    action = jnp.zeros(12, jnp.int32).at[1].set(choice).at[2].set(choice).at[9].set(1)  # slot 9 is empty
    _, after, *_ = step_many(env, jax.random.split(jax.random.key(5), 500), state, action, params)
    assert np.all(np.asarray(after.tissue.alive.sum(axis=1)) == 4 + 2 * choice)
    mothers = np.asarray(jax.vmap(env.inherits, (None, 0, None))(state, after, params))[:, 4:6]
    assert np.all(mothers == ([1, 2] if choice else [-1, -1]))


@pytest.mark.parametrize("mode", MODES)
def test_rewards_telescope_to_the_final_error(mode):
    env, params = make(mode)
    horizon = int(params.max_steps_in_episode)
    observation, state = env.reset(jax.random.key(3), params)
    action = jnp.full((12, 1), 0.15) if mode == "hazard" else jnp.zeros(12, jnp.int32).at[0].set(1)
    total, start = 0.0, state
    for t in range(horizon):
        np.testing.assert_allclose(observation[0, -1], 1 - 2 * t / horizon, atol=1e-6)
        alive = np.asarray(state.tissue.alive)
        observation, state, reward, over, info = step(env, jax.random.key(t), state, action, params)
        assert np.all(np.asarray(reward)[~alive] == 0)
        assert np.ptp(np.asarray(reward)[alive]) == 0
        assert np.all(np.asarray(observation)[~np.asarray(state.tissue.alive)] == 0)
        assert bool(over) == (t + 1 == horizon)
        assert not bool(env.is_truncated(state, params))
        total += float(reward[0])
    assert not bool(info["overflow"])
    assert int(info["num_cells"]) > 4
    assert float(env.discount_factor(params)) == 1.0
    assert float(env.score(state, params)) == (int(info["num_cells"]) - 8) ** 2
    np.testing.assert_allclose(
        total, (float(env.score(start, params)) - float(env.score(state, params))) / 10, rtol=1e-5
    )


def test_overflow_scores_as_a_full_tissue():
    env, params = make()
    state = env.reset(jax.random.key(0), params.replace(founders=jnp.array(7)))[1]
    all_divide, five_divide = jnp.ones(12, jnp.int32), jnp.ones(12, jnp.int32).at[:2].set(0)
    _, after, _, over, info = step(env, jax.random.key(1), state, all_divide, params)
    assert bool(over)
    assert bool(info["overflow"])
    assert float(env.score(after, params)) == 16.0
    _, full, _, over, info = step(env, jax.random.key(1), state, five_divide, params)
    assert int(full.tissue.alive.sum()) == 12
    assert not bool(over)
    assert not bool(info["overflow"])


def test_observations_are_local_and_of_order_one():
    env, params = equimorph.make("CellCount-v0", mode="hazard")
    look = jax.jit(lambda tissue, params: env.masked_observation(env.sense(tissue, params), params))
    seen = []
    for cells in (4, 24, 48):
        state = env.reset(jax.random.key(1), params.replace(founders=jnp.array(cells)))[1]
        observation = env.observe(jax.random.key(0), state, None, params)
        far = state.tissue.set("position", jnp.where(state.tissue.alive[:, None], state.tissue.position + 30.0, 0.0))
        moved = look(far, params)
        np.testing.assert_allclose(moved, observation, atol=1e-4)
        assert float(jnp.abs(observation).max()) < 3
        assert np.all(np.asarray(observation[cells:]) == 0)
        seen.append(float(observation[:cells, 3].mean()))
        world = env.world_state(state, params)
        np.testing.assert_allclose(world[-3:], [cells / 64, 1.0, cells / 24 - 1], rtol=1e-5)
        np.testing.assert_allclose(world[:5], observation[:cells].mean(axis=0), rtol=1e-4, atol=1e-5)
    assert seen[0] < seen[1] < seen[2]
    assert abs(seen[1]) < 0.1, "the signal crosses zero at the target"


@pytest.mark.parametrize("mode", MODES)
def test_float64(mode):
    def run(key, params):
        _, state = env.reset_env(key, params)
        observation, after, reward, *_ = env.step_env(key, state, idle(env, params), params)
        score = env.event_log_prob(state, idle(env, params), after, params) if mode == "hazard" else reward
        floats = [x for x in jax.tree.leaves(after) if jnp.issubdtype(x.dtype, jnp.floating)]
        return observation, reward, score, env.world_state(after, params), floats

    with jax.enable_x64(True):
        env, params = make(mode)
        leaves = jax.tree.leaves(jax.eval_shape(run, jax.random.key(0), params))
    assert len(leaves) > 10
    assert {x.dtype for x in leaves} == {jnp.dtype("float64")}


# -- an unbiased gradient --------------------------------------------------------------------------------------------


def rates(weight, radius, remaining):
    """A memoryless rate that depends on what is the same for every key: size and time."""
    return 3.0 * jax.nn.sigmoid(weight[0] + weight[1] * radius + weight[2] * remaining)


def outcomes(chances, free):
    """`(divided, log-probability)` of all that can happen to cells who draw in turn while slots are free."""
    for divided in itertools.product([False, True], repeat=len(chances)):
        log_prob, left, kept = 0.0, free, []
        for p, event in zip(chances, divided, strict=True):
            if left > 0:
                log_prob = log_prob + jnp.log(p if event else 1 - p)
                kept.append(event)
                left -= event
            elif event:
                break  # cells without a slot: one outcome, not two
            else:
                kept.append(False)
        else:
            yield kept, log_prob


def exact_expectation(weight, params, capacity):
    """Expected return of two founders and two one-macro-step periods, every outcome listed."""
    newborn = -1.0  # radius as observed: 0 at full size, -1 after a division

    def chance(radius, remaining):
        return -jnp.expm1(-rates(weight, radius, remaining) * params.dt)

    total = 0.0
    for first, log_first in outcomes([chance(0.0, 1.0)] * 2, capacity - 2):
        radii = [newborn if event else 0.0 for event in first] + [newborn] * sum(first)
        for second, log_second in outcomes([chance(r, 0.0) for r in radii], capacity - len(radii)):
            n = len(radii) + sum(second)
            gain = -((n - params.target) ** 2 - (2 - params.target) ** 2) / 10
            total = total + jnp.exp(log_first + log_second) * gain
    return total


@pytest.mark.parametrize("capacity", [pytest.param(8, marks=pytest.mark.extended), 3])
def test_gradient_of_the_score_is_unbiased(capacity):
    """Capacity 8 holds every outcome; with 3 most episodes overflow, and what is dropped must not bias the score."""
    with jax.enable_x64(True):
        env, params = make("hazard", capacity=capacity, substeps=1, founders=2, target=3.0, max_steps_in_episode=2)
        params = params.replace(rate_max=jnp.array(3.0), dt=jnp.array(0.4))
        weight = jnp.array([0.2, 0.7, -0.4])
        truth = jax.grad(exact_expectation)(weight, params, capacity)

        def policy(weight, observation):
            return rates(weight, observation[:, 0], observation[:, -1])[:, None]

        def estimate(key):
            keys = jax.random.split(key, 3)
            observation, state = env.reset_env(keys[0], params)

            def scored(weight):
                seen, before, running, score, gain = observation, state, 1.0, 0.0, 0.0
                for k in keys[1:]:
                    action = jax.lax.stop_gradient(policy(weight, seen))
                    following, after, reward, over, _ = env.step_env(k, before, action, params)
                    log_prob = env.event_log_prob(before, policy(weight, seen), after, params)
                    score, gain = score + running * log_prob.sum(), gain + running * reward[0]
                    seen, before, running = following, after, running * (1.0 - over)
                return score * jax.lax.stop_gradient(gain)

            return jax.grad(scored)(weight)

        samples = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(11), 40_000))
        error = samples.std(axis=0) / np.sqrt(len(samples))
        assert np.all(np.asarray(error) < 0.2 * np.abs(np.asarray(truth)).max()), "too few samples to tell"
        np.testing.assert_array_less(np.abs(samples.mean(axis=0) - truth), 4 * error + 1e-12)


def test_secreted_signals_set_the_rate_at_which_cells_divide():
    """Where all secrete alike, a signal is as much as they do of the chemical that each makes at rate 1."""
    env, params = make("secretion", substeps=1, half=0.2, rate_min=0.05, rate_max=9.0, founders=5)
    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    seen = np.asarray(state.tissue.chemical[:, 0]) / (0.64 * 8.0)  # of what n* = 8 cells make

    def rate(a, b):
        return 0.05 + 8.95 * a**2 / (0.04 + a**2) * 0.04 / (0.04 + b**2)

    @jax.jit
    def both(key, action):
        _, after, *_ = env.step_env(key, state, action, params)
        return after, env.event_log_prob(state, action, after, params)

    levels = jnp.broadcast_to(jnp.array([0.9, 0.3]), (12, 2))
    drawn = [both(jax.random.key(k), levels) for k in range(20)]
    after, log_prob = next(each for each in drawn if 0 < each[0].events.divisions.sum() < 5)
    divided = np.asarray(after.events.divisions[:5], bool)
    p = -np.expm1(-rate(0.9 * seen[:5], 0.3 * seen[:5]) * 0.1)
    np.testing.assert_allclose(log_prob[:5], np.log(np.where(divided, p, 1 - p)), rtol=1e-4)
    assert np.all(np.asarray(log_prob[5:]) == 0)
    # one cell's inhibitor reaches all: with it alone nobody divides faster than the least
    write = jax.jit(lambda action: env.write_action(state.tissue, action, params).division_rate[:5])
    np.testing.assert_allclose(write(jnp.zeros((12, 2)).at[2, 1].set(1.0)), 0.05, rtol=1e-5)
    assert np.all(np.asarray(write(levels.at[2, 1].set(1.0))) < np.asarray(write(levels)))


# -- what is refused, and the picture --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mode": "hazzard"}, "Did you mean 'hazard'"),
        ({"dt": 0.3}, "dt = 0.3 must be below 0.1667"),
        ({"rate_min": 2.0}, "rate_min = 2 must be below rate_max"),
        ({"target": 65.0}, "target = 65 must not exceed the capacity"),
        ({"half": 0.2}, "half applies to mode='secretion'"),
        ({"targt": 20.0}, "Did you mean 'target'"),
    ],
)
def test_mistakes_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("CellCount-v0", **overrides)


def test_step_limit_is_that_of_a_sheet_of_newborns():
    """2 / lambda_max of the energy of 37 close-packed newborns: within a tenth of the bound, and above it."""
    with jax.enable_x64(True):
        # Just inside contact, where every spring is on.
        position = 2 * NEWBORN_RADIUS * (1 - 1e-9) * jnp.asarray(close_packed(37))
        tissue = SimpleNamespace(
            position=position, radius=jnp.full(37, NEWBORN_RADIUS), alive=jnp.ones(37, bool), displacement=jnp.subtract
        )
        energy = lambda x: SoftRepulsion().total_energy(x.reshape(37, 2), tissue)  # noqa: E731
        stiffest = np.linalg.eigvalsh(np.asarray(jax.jit(jax.hessian(energy))(position.ravel())))[-1]
    limit = stable_step(SoftRepulsion(), 2 * NEWBORN_RADIUS)
    assert limit < 2 / stiffest < 1.1 * limit


def test_capabilities_follow_the_mode():
    assert make("decision")[0].capabilities == {"score"}
    assert make("hazard")[0].capabilities == {"score", "events"}
    with pytest.raises(ValueError, match="transition gradients"):
        make("decision")[0].with_transition_gradients()


def test_picture_shows_the_living_cells():
    env, params = make()
    state = env.reset(jax.random.key(0), params)[1]
    picture = env.render(state, params)
    assert picture.shape == (256, 256, 3)
    assert picture.dtype == np.uint8
    covered = (picture < 255).any(axis=-1).mean()
    np.testing.assert_allclose(covered, 4 * np.pi * 0.25 / 64, rtol=0.05)
    empty = state.replace(tissue=state.tissue.set("alive", jnp.zeros(12, bool)))
    assert np.all(env.render(empty, params) == 255)


@pytest.mark.parametrize("shape", [(12, 2), (12,)])
def test_action_of_another_shape_is_refused(shape):
    env, params = make("hazard")
    state = env.reset(jax.random.key(0), params)[1]
    with pytest.raises(UserError, match=r"has shape \(12, 1\)"):
        env.step_env(jax.random.key(1), state, jnp.zeros(shape), params)


def test_rate_that_is_not_a_number_does_not_pass_for_no_division():
    env, params = make("hazard")
    state = env.reset(jax.random.key(0), params)[1]
    _, _, reward, _, info = step(env, jax.random.key(1), state, jnp.full((12, 1), jnp.nan), params)
    assert jnp.isnan(reward).all()
    assert info["action_clipped"]

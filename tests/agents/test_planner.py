"""Planners: values against distances, one spread against the other, what is drawn, what is learned, what is refused."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import MAPPO, REINFORCE
from equimorph.agents.agent import View, check_pair
from equimorph.agents.policies.conditional import ConditionalHead
from equimorph.agents.policies.planner import (
    DISCOUNT,
    Planner,
    distil,
    make_planner,
    passability_error,
    planner_head,
    propagate,
    random_squares,
    reached_from,
)
from equimorph.envs import grids
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step

SIDE = 9


@pytest.fixture(scope="module")
def patrol():
    """A small task, and what its cells see in four tissues, flat `[B, A, O]`, with its masks."""
    env, params = equimorph.make("ImmunePatrol-v0", size=8, num_cells=2)
    flat, state = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))(jax.random.split(jax.random.key(0), 4))
    return env, params, flat, jax.vmap(lambda s: env.action_mask(s, params))(state)


@pytest.fixture(scope="module")
def distilled(patrol):
    """A planner as learners start with, and the one that it was before."""
    env, _, flat, _ = patrol
    drawn = Planner(jax.random.key(1), env.sight, flat.shape[-1], (8,), "tanh")
    return drawn, jax.jit(lambda planner: distil(planner, jax.random.key(2), 500))(drawn)


def one_hot(place):
    return jnp.zeros((SIDE, SIDE)).at[place].set(1.0)


# -- value propagation -------------------------------------------------------------------------------------------------


def test_on_a_free_grid_value_is_the_discount_to_the_power_of_the_distance():
    value = propagate(jnp.ones((SIDE, SIDE)), one_hot((2, 3)), DISCOUNT, 2 * SIDE)
    for row, column in itertools.product(range(SIDE), range(SIDE)):
        assert float(value[row, column]) == pytest.approx(DISCOUNT ** (abs(row - 2) + abs(column - 3)), rel=1e-5)
    near = propagate(jnp.ones((SIDE, SIDE)), one_hot((2, 3)), DISCOUNT, 3)
    assert float(near[2, 6]) > 0
    assert float(near[2, 7]) == 0


def test_value_goes_around_walls_and_finds_the_best_of_all_paths():
    key_walls, key_cells = jax.random.split(jax.random.key(0))
    passable = jnp.where(jax.random.bernoulli(key_walls, 0.3, (SIDE, SIDE)), 0.0, 1.0).at[4, 4].set(1.0)
    value = np.asarray(propagate(passable, one_hot((4, 4)), DISCOUNT, 30))
    steps = np.asarray(grids.breadth_first(passable > 0, one_hot((4, 4)) > 0, 30))
    np.testing.assert_allclose(value, np.where(steps <= 30, DISCOUNT**steps, 0), rtol=1e-5)
    # with cells passable by halves: the best product over paths, by Bellman and Ford in plain Python
    passable = np.asarray(jax.random.uniform(key_cells, (4, 4)), float)
    best = dict.fromkeys(itertools.product(range(4), range(4)), 0.0) | {(1, 2): 1.0}
    for _ in range(16):
        for r, c in best:
            if (r, c) != (1, 2):
                around = [best.get((r + i, c + j), 0.0) for i, j in grids.MOVES[1:]]
                best[(r, c)] = DISCOUNT * passable[r, c] * max(around)
    found = propagate(jnp.asarray(passable, jnp.float32), jnp.zeros((4, 4)).at[1, 2].set(1.0), DISCOUNT, 16)
    np.testing.assert_allclose(found, np.array(list(best.values())).reshape(4, 4), rtol=1e-5)


def test_one_spread_from_the_start_is_every_goals_at_the_start_and_so_are_its_derivatives():
    passable = jax.random.uniform(jax.random.key(3), (SIDE, SIDE), minval=0.05, maxval=0.95)
    start = (4, 5)
    goals = jnp.eye(SIDE**2).reshape(SIDE, SIDE, -1)

    def by_goals(w):
        return propagate(w[..., None], goals, DISCOUNT, 40)[start]

    def from_start(w):
        return reached_from(w[..., None], one_hot(start)[..., None], DISCOUNT, 40).reshape(-1)

    np.testing.assert_allclose(from_start(passable), by_goals(passable), rtol=1e-5)
    weights = jax.random.normal(jax.random.key(4), (SIDE**2,))
    ours, wanted = (jax.grad(lambda w, f=f: f(w) @ weights)(passable) for f in (from_start, by_goals))
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)
    # on a free grid paths tie; a tie is shared, so that the slope along w = const is that of the distance
    level = lambda c: from_start(jnp.full((SIDE, SIDE), c))[0]  # noqa: E731
    assert float(jax.grad(level)(0.9)) == pytest.approx(9 * DISCOUNT**9 * 0.9**8, rel=1e-4)


def test_sharpness_makes_moves_of_values():
    value = propagate(jnp.ones((SIDE, SIDE)), one_hot((4, 7)), DISCOUNT, 2 * SIDE)  # three steps to the right of (4, 4)
    at = jnp.stack([value[4 + row, 4 + column] for row, column in grids.MOVES])
    entropy = lambda p: float(-(p * jnp.log(p)).sum())  # noqa: E731
    assert entropy(jax.nn.softmax(at)) == pytest.approx(1.606, abs=1e-3)
    assert entropy(jax.nn.softmax(at)) < math.log(5)
    sharp = jax.nn.softmax(50 * at)
    assert int(sharp.argmax()) == 4
    assert float(sharp[4]) >= 0.99


# -- the planner -------------------------------------------------------------------------------------------------------


def test_it_is_distilled_to_what_is_passable_and_moves_like_breadth_first_search(patrol, distilled):
    env, _, flat, _ = patrol
    drawn, planner = distilled
    squares, _ = random_squares(jax.random.key(7), env.sight, 500)
    assert float(passability_error(drawn, squares)) > 0.3
    assert float(passability_error(planner, squares)) < 0.02
    assert float(passability_error(planner, env.sight.squares(flat).reshape(-1, 3, SIDE, SIDE))) < 0.02
    for old, new in zip(*(jax.tree.leaves((p.goals, p.whole, p.log_sharpness)) for p in distilled), strict=True):
        assert (old == new).all()
    # among moves, one of the nearest to the goal is the likeliest, wherever a way leads there
    moves = np.asarray(planner(flat)[..., 9:]).reshape(-1, 9, 5)
    cells = np.asarray(env.sight.goals(flat)).reshape(-1, 9, 2)
    walls = np.asarray(env.sight.squares(flat)[..., 0, :, :]).reshape(-1, SIDE, SIDE) > 0.5
    checked = 0
    for each, k in itertools.product(range(len(cells)), range(9)):
        source = np.zeros((SIDE, SIDE), bool)
        source[tuple(cells[each, k])] = True
        if walls[each][tuple(cells[each, k])]:
            continue
        steps = np.asarray(grids.breadth_first(~walls[each], source, 12))
        reached = np.array([steps[4 + row, 4 + column] for row, column in grids.MOVES])
        if reached.min() <= 8:
            assert reached[moves[each, k].argmax()] == reached.min()
            checked += 1
    assert checked > 40


def test_every_part_of_it_is_reached_by_the_gradient(patrol, distilled):
    _, _, flat, mask = patrol
    head, (_, planner) = planner_head(), distilled

    def score(planner):
        output = planner(flat)
        action, _ = head.sample(jax.random.key(0), jax.lax.stop_gradient(output), None, mask)
        weights = jax.random.normal(jax.random.key(1), action["goal"].shape)
        return (weights * head.log_prob(action, output, None, mask)).sum()

    slopes = jax.grad(score)(planner)
    for path, leaf in jax.tree_util.tree_leaves_with_path(slopes):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path


def test_probabilities_are_those_of_the_goal_times_those_of_the_move_given_it():
    head, key = ConditionalHead("goal", "move", 3, 2), jax.random.key(0)
    output = jax.random.normal(key, (9,)) * 2
    goal, tables = np.asarray(output[:3], float), np.asarray(output[3:], float).reshape(3, 2)
    for legal, allowed in ((None, [True] * 3), ({"goal": jnp.array([True, False, True]), "move": None}, [1, 0, 1])):
        p = np.exp(goal) * np.array(allowed, float)
        p /= p.sum()
        q = np.exp(tables) / np.exp(tables).sum(axis=1, keepdims=True)
        joint = p[:, None] * q
        for a, b in itertools.product(range(3), range(2)):
            found = head.log_prob({"goal": jnp.int32(a), "move": jnp.int32(b)}, output, None, legal)
            assert float(jnp.exp(found)) == pytest.approx(joint[a, b], abs=1e-6)
        some = joint[joint > 0]
        assert float(head.entropy(output, None, legal)) == pytest.approx(-(some * np.log(some)).sum(), rel=1e-5)
        mode = head.mode(output, legal)
        assert int(mode["goal"]) == p.argmax()
        assert int(mode["move"]) == q[p.argmax()].argmax()
        drawn, raw = head.sample(key, jnp.tile(output, (4000, 1)), None, legal)
        assert all((drawn[name] == raw[name]).all() for name in drawn)
        counts = np.zeros((3, 2))
        np.add.at(counts, (np.asarray(drawn["goal"]), np.asarray(drawn["move"])), 1)
        assert np.abs(counts / 4000 - joint).max() < 4 * 0.5 / np.sqrt(4000)


def test_what_is_illegal_is_never_drawn(patrol, distilled):
    _, _, flat, mask = patrol
    _, planner = distilled
    head, output = planner_head(), planner(flat)
    for seed in range(20):
        action, _ = head.sample(jax.random.key(seed), output, None, mask)
        for name in ("goal", "move"):
            assert jnp.take_along_axis(mask[name], action[name][..., None], axis=-1).all()
    mode = head.mode(output, mask)
    assert jnp.take_along_axis(mask["move"], mode["move"][..., None], axis=-1).all()


# -- in learners' hands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MAPPO, REINFORCE])
def test_learners_take_it_by_name_and_move_all_of_it(patrol, kind):
    env, params, *_ = patrol
    agent = kind(network="planner", distil_steps=1, widths=(8,), learning_rate=1e-2)
    state = create_train_state(env, params, agent, num_envs=4, num_iterations=1)
    step = make_train_step(env, params, agent, num_envs=4, num_steps=8)
    before = jax.device_get(agent.policy(state.agent).actor)
    after, metrics = step(state)
    assert np.isfinite(metrics["policy/entropy"]).all()
    assert np.max(metrics.get("policy/first_ratio_error", 0.0)) < 1e-5
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(agent.policy(after.agent).actor), strict=True):
        assert np.isfinite(new).all()
        assert (old != new).any()


def test_what_is_refused(patrol):
    env, params, *_ = patrol
    fish, fish_params = equimorph.make("FishWar-v0")
    moves, moves_params = equimorph.make("ImmunePatrol-v0", goals=False)
    window, window_params = equimorph.make("ImmunePatrol-v0", window=2)
    for kind in (MAPPO, REINFORCE):
        for name, other, other_params in (
            ("FishWar", fish, fish_params),
            ("ImmunePatrol", moves, moves_params),
            ("ImmunePatrol", window, window_params),
        ):
            with pytest.raises(
                UserError, match=rf"network='planner' chooses a goal on the grid.*{name}.* does not offer"
            ):
                check_pair(kind(network="planner"), other, other_params, 8, 8)
        check_pair(kind(network="planner"), env, params, 8, 8)
        with pytest.raises(UserError, match=r"distil_steps = 5 does not apply with network='mlp'"):
            kind(distil_steps=5)
        with pytest.raises(UserError, match=r"distil_steps = -1 must lie in \[0, inf\]"):
            kind(network="planner", distil_steps=-1)
        with pytest.raises(UserError, match=r"network.*'planer'.*Did you mean 'planner'"):
            kind(network="planer")


def test_a_number_behind_what_is_seen_reaches_the_goals_alone(patrol):
    env, _, flat, _ = patrol
    longer = jnp.concatenate([flat, jnp.ones((*flat.shape[:-1], 2))], axis=-1)
    planner = make_planner(jax.random.key(0), env, longer.shape[-1], (8,), "tanh", 0)
    output, other = planner(longer), planner(longer.at[..., -1].set(0.0))
    assert (output[..., 9:] == other[..., 9:]).all()
    assert (output[..., :9] != other[..., :9]).any()
    policy = MAPPO(network="planner", distil_steps=0, agent_id=True, widths=(8,))
    state = policy.init(jax.random.key(0), env, env.default_params)
    action = policy.policy(state)(View(flat[0], jnp.ones(2, bool)), jax.random.key(1))
    assert action["goal"].shape == action["move"].shape == (2,)

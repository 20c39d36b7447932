"""ImmunePatrol: moves, collisions, contact and coverage by hand and by plain Python on whole episodes; what is seen."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import View
from equimorph.agents.classical.tissues import rule_agent
from equimorph.envs import grids
from equimorph.envs.checks import check_environment
from equimorph.envs.tissues.immune_patrol import STRIDE, ImmunePatrol, PatrolState
from equimorph.errors import UserError

STAY, UP, DOWN, LEFT, RIGHT = range(5)
STEPS = 48


def distances(free, source):
    """Steps over free cells to a source, by a queue."""
    found, queue = {source: 0}, collections.deque([source])
    while queue:
        row, column = queue.popleft()
        for place in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= place[0] < len(free) and 0 <= place[1] < len(free)
            if inside and free[place] and place not in found:
                found[place] = found[(row, column)] + 1
                queue.append(place)
    return found


def placed(free, positions, searched=None):
    """A state by hand: `free` in rows of text, '#' an obstacle."""
    free = np.array([[mark != "#" for mark in row] for row in free])
    position = jnp.asarray(positions, jnp.int32)
    been = np.zeros(free.shape, bool) if searched is None else searched
    been[tuple(np.asarray(positions).T)] = True
    known = np.broadcast_to(been, (len(positions), *free.shape))
    return PatrolState(jnp.int32(0), jnp.asarray(free), jnp.asarray(been), jnp.asarray(known), position, position)


@pytest.fixture(scope="module")
def small():
    """Three cells on a grid of 5 x 5 that choose moves alone, and one step there, compiled."""
    env, params = equimorph.make("ImmunePatrol-v0", goals=False, size=5, num_cells=3, view=3, contact=1)
    return env, params, jax.jit(lambda state, move: env.step_env(jax.random.key(0), state, jnp.asarray(move), params))


@pytest.fixture(scope="module")
def episodes():
    """Every state of eight episodes of the full task under random legal actions, as plain arrays `[N, T, ...]`."""
    env, params = equimorph.make("ImmunePatrol-v0")

    def episode(key):
        _, start = env.reset_env(key, params)

        def step(state, key):
            logits = jax.tree.map(lambda legal: jnp.where(legal, 0.0, -1e9), env.action_mask(state, params))
            action = jax.tree.map(lambda x: jax.random.categorical(key, x), logits)
            observation, following, reward, terminated, info = env.step_env(key, state, action, params)
            ends = terminated, env.is_truncated(following, params)
            return following, (
                state,
                action,
                following,
                observation,
                reward,
                info,
                ends,
                env.action_mask(state, params),
            )

        return jax.lax.scan(step, start, jax.random.split(key, STEPS))[1]

    return env, params, jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(3), 8)))


# -- one step by hand --------------------------------------------------------------------------------------------------


def test_coverage_contact_and_reward_by_hand(small):
    _, _, step = small
    state = placed([".....", ".#...", ".....", ".....", "....."], [(0, 0), (0, 1), (4, 4)])
    _, after, reward, terminated, info = step(state, [DOWN, RIGHT, STAY])
    assert after.position.tolist() == [[1, 0], [0, 2], [4, 4]]
    assert float(info["score"]) == pytest.approx(5 / 24)
    assert float(info["new_coverage"]) == pytest.approx(2 / 3)
    assert (float(info["reachable"]), float(info["collisions"])) == (0.0, 0.0)
    np.testing.assert_allclose(reward, 3 * 2 / 3)
    assert not terminated
    # back on known ground, the two are in contact again: one pair of three
    _, after, reward, _, info = step(after, [UP, LEFT, STAY])
    assert (float(info["new_coverage"]), float(info["reachable"])) == (0.0, pytest.approx(1 / 3))
    np.testing.assert_allclose(reward, 2 / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("positions", "moves", "after", "collided"),
    [
        ([(0, 0), (0, 2), (4, 4)], [RIGHT, LEFT, STAY], [(0, 0), (0, 2), (4, 4)], 2),  # both want one place
        ([(0, 0), (0, 1), (4, 4)], [RIGHT, LEFT, STAY], [(0, 0), (0, 1), (4, 4)], 2),  # they would swap
        ([(0, 0), (0, 1), (4, 4)], [RIGHT, STAY, STAY], [(0, 0), (0, 1), (4, 4)], 1),  # one who stays is run into
        ([(0, 0), (0, 1), (0, 2)], [RIGHT, RIGHT, RIGHT], [(0, 1), (0, 2), (0, 3)], 0),  # a train
        ([(0, 2), (0, 3), (0, 4)], [RIGHT, RIGHT, RIGHT], [(0, 2), (0, 3), (0, 4)], 3),  # a train into the edge
        ([(2, 0), (1, 0), (4, 4)], [UP, RIGHT, STAY], [(2, 0), (1, 0), (4, 4)], 2),  # into an obstacle, one behind
    ],
)
def test_collisions_by_hand(small, positions, moves, after, collided):
    _, _, step = small
    _, state, reward, _, info = step(placed([".....", ".#...", ".....", ".....", "....."], positions), moves)
    assert state.position.tolist() == [list(place) for place in after]
    assert float(info["collisions"]) == pytest.approx(collided / 3)
    wanted = 3 * float(info["new_coverage"]) + 2 * float(info["reachable"]) - 4 * collided / 3
    np.testing.assert_allclose(reward, wanted, rtol=1e-5, atol=1e-6)


def test_three_may_go_round_in_a_square_of_four():
    env, _ = equimorph.make("ImmunePatrol-v0", goals=False, size=4, num_cells=4, view=3)
    state = placed(["....", "....", "....", "...."], [(0, 0), (0, 1), (1, 1), (1, 0)])
    position, collided = env.moved(state, jnp.array([RIGHT, DOWN, LEFT, UP]))
    assert position.tolist() == [[0, 1], [1, 1], [1, 0], [0, 0]]
    assert not collided.any()


def test_knowledge_is_told_along_chains_of_contact(small):
    env, params, step = small
    state = placed(["....."] * 5, [(0, 0), (0, 1), (4, 4)])
    state = state.replace(known=jnp.zeros((3, 5, 5), bool).at[0, 2, 2].set(True).at[2, 3, 3].set(True))
    _, after, *_ = step(state, [STAY, STAY, STAY])
    assert after.known[:, 2, 2].tolist() == [True, True, False]
    assert after.known[:, 3, 3].tolist() == [False, False, True]
    chain = env.connected(jnp.array([(0, 0), (0, 1), (1, 2)]), params)
    assert bool(chain.all())


# -- whole episodes against plain Python -------------------------------------------------------------------------------


def test_a_tissue_is_connected_and_its_cells_start_together(episodes):
    env, params, (state, *_) = episodes
    shares = []
    for free, position in zip(state.free[:, 0], state.position[:, 0], strict=True):
        places = {tuple(place) for place in position.tolist()}
        assert len(places) == env.num_agents
        assert all(free[place] for place in places)
        assert len(distances(free, next(iter(places)))) == free.sum()
        assert np.abs(position - position[0]).max() <= 4
        shares.append(free.mean())
    assert 0.7 < np.mean(shares) < 0.85
    assert not (state.free[0, 0] == state.free[1, 0]).all()
    crowded = jax.vmap(lambda key: env.reset_env(key, params.replace(obstacles=jnp.float32(0.4)))[1].free)
    for free in np.asarray(crowded(jax.random.split(jax.random.key(0), 16))):
        assert free.mean() >= 0.5
        assert len(distances(free, tuple(np.argwhere(free)[0]))) == free.sum()


def test_rewards_scores_and_contact_of_whole_episodes(episodes):
    env, params, (state, action, following, _, reward, info, ends, _) = episodes
    assert not ends[0].any()
    assert (ends[1] == (np.arange(STEPS) == STEPS - 1)).all()
    for n, t in itertools.product(range(2), range(STEPS)):
        before, after = state.position[n, t], following.position[n, t]
        wanted = before + grids.MOVES[action["move"][n, t]]
        collided = (after != wanted).any(axis=1)
        assert len({tuple(place) for place in after.tolist()}) == env.num_agents
        assert info["collisions"][n, t] == pytest.approx(collided.mean())
        new = {tuple(place) for place in after.tolist() if not state.searched[n, t][tuple(place)]}
        root = list(range(env.num_agents))  # union and find
        for i, j in itertools.combinations(range(env.num_agents), 2):
            if np.abs(after[i] - after[j]).max() <= int(params.contact):
                root = [root[i] if r == root[j] else r for r in root]
        pairs = [root[i] == root[j] for i, j in itertools.combinations(range(env.num_agents), 2)]
        assert info["reachable"][n, t] == pytest.approx(np.mean(pairs))
        worth = 3 * len(new) / 4 + 2 * np.mean(pairs) - 4 * collided.mean()
        np.testing.assert_allclose(reward[n, t], worth, atol=1e-5)
        been = {tuple(place) for place in np.concatenate([state.position[n, : t + 1].reshape(-1, 2), after]).tolist()}
        assert info["score"][n, t] == pytest.approx(len(been) / state.free[n, 0].sum())
    assert info["collisions"].max() > 0
    assert 0 < info["reachable"].mean() < 1
    # what is known was searched, and what one has seen oneself is known
    assert (following.known <= following.searched[:, :, None]).all()
    assert (following.known.any(axis=2) == following.searched).all()


def test_masks_and_observations(episodes):
    env, _, (_, _, following, observation, *_, mask) = episodes
    state, size, view = following, env.size, env.view
    sight = env.sight
    assert observation.shape[-1] == sight.size + 6
    for n, t, a in itertools.product(range(2), (0, 20, 47), range(env.num_agents)):
        row, column = state.position[n, t, a]
        free, known = state.free[n, t], state.known[n, t, a]
        others = {tuple(p) for p in np.delete(state.position[n, t], a, axis=0).tolist()}
        seen = observation[n, t, a]
        walls, told, cells = np.asarray(sight.squares(seen))
        for i, j in itertools.product(range(sight.side), range(sight.side)):
            place = (row + i - view, column + j - view)
            inside = 0 <= place[0] < size and 0 <= place[1] < size
            assert walls[i, j] == (not inside or not free[place])
            assert told[i, j] == (inside and known[place])
            assert cells[i, j] == (inside and place in others)
        goals = np.clip([[row + STRIDE * i, column + STRIDE * j] for i, j in grids.COMPASS], 0, size - 1)
        assert (np.asarray(sight.goals(jnp.asarray(seen))) == goals - [row, column] + view).all()
        left_over = (free & ~known) / free.sum()
        ways = [left_over[:row], left_over[row + 1 :], left_over[:, :column], left_over[:, column + 1 :]]
        np.testing.assert_allclose(seen[-6:-2], [way.sum() for way in ways], atol=1e-6)
        mean = np.delete(state.position[n, t], a, axis=0).mean(axis=0)
        np.testing.assert_allclose(seen[-2:], (mean - [row, column]) / size, atol=1e-6)
        if t + 1 < STEPS:  # the mask was taken before the step
            assert (mask["goal"][n, t + 1, a] == [free[tuple(goal)] for goal in goals]).all()
            legal = [(row + i, column + j) for i, j in grids.MOVES]
            legal = [0 <= i < size and 0 <= j < size and free[i, j] for i, j in legal]
            assert (mask["move"][n, t + 1, a] == legal).all()
    assert not mask["move"].all()
    assert not mask["goal"].all()


# -- rules, options, pictures ------------------------------------------------------------------------------------------


def test_breadth_first_distances_are_those_of_a_queue():
    free = np.random.default_rng(0).random((9, 9)) > 0.3
    free[4, 4] = True
    source = np.zeros((9, 9), bool)
    source[4, 4] = True
    steps, found = np.asarray(grids.breadth_first(free, source, 40)), distances(free, (4, 4))
    for place in itertools.product(range(9), range(9)):
        assert steps[place] == found.get(place, 41)
    near = np.asarray(grids.breadth_first(free, source, 3))
    assert (near == np.where(steps <= 3, steps, 4)).all()


def test_the_breadth_first_patrol_searches_and_hardly_collides():
    env, params = equimorph.make("ImmunePatrol-v0")

    def played(name):
        agent = rule_agent(name, env, params)
        policy = agent.policy(agent.init(jax.random.key(0), env, params)._replace(begun=jnp.ones((), bool)))

        def episode(key):
            observation, state = env.reset_env(key, params)

            def step(carry, key):
                observation, state = carry
                view = View(observation, jnp.ones(4, bool), env.action_mask(state, params))
                observation, state, _, _, info = env.step_env(key, state, policy(view, key), params)
                return (observation, state), info

            return jax.lax.scan(step, (observation, state), jax.random.split(key, STEPS))[1]

        info = jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(5), 16)))
        return info["score"][:, -1].mean(), info["collisions"].mean()

    (patrol, bumps), (chance, chance_bumps) = played("breadth_first_patrol"), played("random")
    assert patrol > 0.9
    assert 0.2 < chance < 0.5
    assert bumps < 0.02 < chance_bumps
    with pytest.raises(UserError, match=r"CellCount-v0 has none"):
        rule_agent("breadth_first_patrol", *equimorph.make("CellCount-v0"))


def test_the_contract():
    check_environment(*equimorph.make("ImmunePatrol-v0", size=6, num_cells=2, view=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": 2}, "view must be a whole number of at least 3"),
        ({"num_cells": 1}, "num_cells must be a whole number of at least 2"),
        ({"size": 4, "num_cells": 9}, "num_cells = 9 must not exceed half of the grid of 16 cells"),
        ({"obstacles": 0.5}, r"obstacles = 0.5 must be finite and lie in \[0, 0.4\]"),
        ({"contacts": 3}, "Did you mean 'contact'"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("ImmunePatrol-v0", **options)


def test_a_picture_shows_obstacles_cells_and_goals():
    env = ImmunePatrol(size=4, num_cells=2, view=3)
    state = placed(["#...", "....", "....", "...."], [(1, 1), (3, 3)]).replace(goal=jnp.array([[1, 1], [0, 3]]))
    picture = env.render(state, env.default_params, size=64)
    assert picture.shape == (64, 64, 3)
    assert picture.dtype == np.uint8
    assert (picture[8, 8] == (70, 70, 78)).all()
    assert (picture[8, 24] == (250, 250, 248)).all()
    # the second one's goal is a ring of its colour around the middle of its place
    assert (picture[2, 56] == picture[56, 56]).all()
    assert not (picture[8, 56] == picture[56, 56]).all()
    assert not (picture[24, 24] == picture[56, 56]).all()

"""Lineages: the table against truth that is known, against the simulator's own reconstruction, and its picture."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_morph.physics.division import reconstruct_lineage

import equimorph
from equimorph.agents.agent import Policy
from equimorph.envs.wrappers import innermost
from equimorph.errors import UserError
from equimorph.training.lineage import RECORD, Lineage, lineage, lineage_of, recording, rows, summary
from equimorph.training.play import play
from equimorph.training.render import clones_of
from equimorph.training.run import Run


class Always(Policy):
    """The same action for everybody."""

    action: object

    def __call__(self, view, key=None):
        cells = view.agent_mask.shape[0]
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (cells, *jnp.shape(leaf))), self.action)


def run_in(env, params, action):
    """A run whose policy always plays the action."""
    agent = types.SimpleNamespace(policy=lambda state: state)
    config = types.SimpleNamespace(evaluation=types.SimpleNamespace(seed=3))
    return Run(None, config, env, params, agent, Always(action), Always(action), {})


def run_of(env_id, action, **overrides):
    """The same of an environment's id and parameters."""
    return run_in(*equimorph.make(env_id, **overrides), action)


@pytest.fixture
def certain():
    """Two cells, all of which divide in every macro-step, two a step, in two steps: 2, 4, 8, 16, 32."""
    options = {"founders": 2, "max_steps_in_episode": 2, "substeps": 2, "capacity": 32, "target": 8.0, "rate_max": 1e9}
    return run_of("CellCount-v0", jnp.full(1, 1e9), calibration="hazard", **options)


def test_everybody_divides(certain):
    tree = lineage(certain)
    assert [int(tree.alive_at(time).sum()) for time in range(tree.length + 1)] == [2, 4, 8, 16, 32]
    np.testing.assert_array_equal(np.bincount(tree.birth), [2, 2, 4, 8, 16])
    np.testing.assert_array_equal(np.bincount(tree.clone), [16, 16])
    # a cell that is there for k divisions has k daughters
    np.testing.assert_array_equal(np.bincount(tree.parent[2:], minlength=32), 4 - tree.birth)
    assert np.all(tree.birth[tree.parent[2:]] < tree.birth[2:])
    assert np.all(tree.clone[tree.parent[2:]] == tree.clone[2:])
    assert np.all(tree.death == -1)
    assert summary(tree) == "2 founders, 30 born, 0 died, 32 cells after 2 steps"


def test_deaths_and_slots_that_are_used_again():
    wound = {"founders": 6, "target": 6.0, "death_rate": 1.2, "wound_step": 2, "wound_radius": 0.9}
    action = {"divide": jnp.int32(1), "push": jnp.zeros(2)}
    run = run_of("WoundHealing-v0", action, **wound, max_steps_in_episode=8, capacity=16)
    (episode,) = play(run, env=recording(run.env))
    tree = lineage_of(episode)
    state, (born, mother, died) = innermost(episode.state), episode.info[RECORD]
    events, alive = state.events, state.tissue.alive
    steps, substeps, slots = born.shape
    assert len(set(tree.slot)) < len(tree.slot)

    # what macro-steps say is what the environment's own record says, step by step
    np.testing.assert_array_equal(born.sum(axis=(1, 2)), events.births[1:].sum(axis=1))
    np.testing.assert_array_equal(died.sum(axis=(1, 2)), events.deaths[1:].sum(axis=1))
    clones = clones_of(alive, events.ancestor)
    for t in range(steps + 1):
        here = np.flatnonzero(tree.alive_at(t * substeps))
        np.testing.assert_array_equal(np.sort(tree.slot[here]), np.flatnonzero(alive[t]))
        np.testing.assert_array_equal(tree.clone[here], clones[t, tree.slot[here]])

    # and the simulator rebuilds the same tree from them
    flat = [
        np.concatenate([np.zeros((1, slots), each.dtype), each.reshape(-1, slots)]) for each in (born, mother, died)
    ]
    nodes = reconstruct_lineage(flat[0], flat[1], alive[:1], flat[2])
    for name, ours, none in (
        ("parent", tree.parent, -1),
        ("birth_step", tree.birth, 0),
        ("death_step", tree.death, -1),
    ):
        np.testing.assert_array_equal(ours, [none if node[name] is None else node[name] for node in nodes])
    assert (tree.death >= 0).any()


def test_branches_do_not_cross():
    # the founder has daughters at 1 and 3; the first has two of her own, at 2 and 4
    tree = Lineage(
        np.array([-1, 0, 1, 0, 1]), np.array([0, 1, 2, 3, 4]), np.full(5, -1), np.zeros(5, int), np.arange(5), 5, 1
    )
    np.testing.assert_array_equal(rows(tree), [5, 3, 1, 4, 2])


def test_macro_steps_are_recorded_inside_wrappers():
    env, params = equimorph.make("CellCountPooled-v0", window=2)
    inside = recording(env)
    state = jax.eval_shape(inside.reset_env, jax.random.key(0), params)[1]
    info = jax.eval_shape(inside.step_env, jax.random.key(0), state, jnp.zeros(1), params)[4]
    assert {leaf.shape for leaf in info[RECORD]} == {(5, 64)}


def test_what_has_no_lineage_is_refused_and_a_tree_is_drawn(certain, tmp_path):
    with pytest.raises(UserError, match="Aggregation-v0 has no lineages: nobody divides in it"):
        lineage(run_of("Aggregation-v0", jnp.zeros(2), founders=2, capacity=2), tmp_path / "tree.png")
    with pytest.raises(UserError, match=r"'tree.gif' must end in one of .png, .svg, .pdf; try 'tree.png'"):
        lineage(None, "tree.gif")
    lineage(certain, tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").read_text().count("<path") > 32
    with pytest.raises(UserError, match="is there already"):
        lineage(certain, tmp_path / "tree.svg")

"""The loop: what it resets, repeats, vmaps and consumes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import DEQN, MAPPO
from equimorph.errors import UserError
from equimorph.training import loop
from equimorph.training.collect import collect
from equimorph.training.loop import create_train_state, make_train_step

from ..probes import Recorder, Scripted, Table, busy_script, script, small_mappo, table

SIZES = {"num_envs": 4, "num_steps": 12}


def start(env, params, agent, num_seeds=1, seed=0):
    return create_train_state(
        env, params, agent, num_envs=SIZES["num_envs"], num_iterations=1000, seed=seed, num_seeds=num_seeds
    )


def leaves(tree):
    """Leaves as numbers, keys too."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


def same(a, b):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def wandering():
    """Episodes of many lengths in three places, so that resets come at different times, and often none is due."""
    return table(
        reward=((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)),
        leads_to=((1, 2), (0, 2), (2, 0)),
        ends=((False, False), (False, True), (True, False)),
        start=(0.5, 0.25, 0.25),
        limit=6,
    )


@pytest.mark.parametrize(
    ("env", "params"), [(Table(), wandering()), (Scripted(), busy_script(limit=5))], ids=["table", "population"]
)
def test_a_lazy_reset_is_an_eager_one(env, params, monkeypatch):
    recorder = Recorder()
    state, key = start(env, params, recorder), jax.random.key(9)
    run = lambda: jax.jit(lambda s, k, p: collect(s, k, env, p, recorder, SIZES["num_steps"]))(state, key, params)  # noqa: E731
    lazy = run()

    def always(due, reset, stay):
        """Both branches, every time, and a select."""
        return jax.tree.map(lambda a, b: jnp.where(due, a, b), reset(), stay())

    monkeypatch.setattr(loop.jax.lax, "cond", always)
    eager = run()
    monkeypatch.undo()
    same(lazy, eager)
    done = np.asarray(lazy[1].terminated | lazy[1].truncated)
    assert 0 < done.any(axis=1).sum() < len(done)


def test_what_follows_an_end_is_a_reset():
    env, params, recorder = Table(), wandering(), Recorder()
    state, rollout, _ = collect(start(env, params, recorder), jax.random.key(9), env, params, recorder, 12)
    done = np.asarray(rollout.terminated | rollout.truncated)
    time, following = np.asarray(rollout.env_state.time), np.asarray(rollout.next_env_state.time)
    np.testing.assert_array_equal(time[1:][done[:-1]], 0)
    np.testing.assert_array_equal(time[1:][~done[:-1]], following[:-1][~done[:-1]])
    np.testing.assert_array_equal(following, time + 1)  # before the reset
    np.testing.assert_array_equal(rollout.memory[..., 0], time)
    places = np.asarray(rollout.next_env_state.place)
    np.testing.assert_array_equal(np.asarray(rollout.next_observation)[:, :, 0], np.eye(3)[places])
    np.testing.assert_array_equal(state.env_state.time == 0, done[-1])


def test_seeds_are_single_runs():
    env, params, agent = Scripted(), busy_script(), small_mappo()
    together = start(env, params, agent, num_seeds=2, seed=3)
    together, metrics = make_train_step(env, params, agent, iterations=5, num_seeds=2, **SIZES)(together)
    assert metrics["loss/value"].shape == (2, 5)
    for i in range(2):
        alone = start(env, params, agent, seed=3 + i)
        alone, expected = make_train_step(env, params, agent, iterations=5, **SIZES)(alone)
        mine = jax.tree.map(lambda x, i=i: x[i], (together, metrics))
        for x, y in zip(leaves(mine), leaves((alone, expected)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def test_a_reset_stays_conditional_under_seeds():
    env, params, recorder = Table(), wandering(), Recorder()

    def conditionals(num_seeds):
        state = start(env, params, recorder, num_seeds=num_seeds)
        train_step = make_train_step(env, params, recorder, num_seeds=num_seeds, **SIZES)
        return str(jax.make_jaxpr(train_step)(state)).count("= cond[")

    assert conditionals(1) == conditionals(3) == 1


def test_chunks_of_any_length_are_one_run():
    env, params, recorder = Table(), wandering(), Recorder()
    whole, metrics = make_train_step(env, params, recorder, iterations=4, **SIZES)(start(env, params, recorder))
    state, parts = start(env, params, recorder), []
    train_step = make_train_step(env, params, recorder, iterations=1, **SIZES)
    for _ in range(4):
        state, part = train_step(state)
        parts.append(part)
    same((whole, metrics), (state, jax.tree.map(lambda *x: np.concatenate([np.asarray(y) for y in x]), *parts)))
    assert state.iteration == 4
    assert state.agent["updates"] == 4


def test_a_learners_chunks_are_one_run_up_to_rounding():
    """Another length is another program, in which XLA may order a sum of the update differently."""
    env, params, agent = Scripted(), busy_script(), small_mappo()
    whole, metrics = make_train_step(env, params, agent, iterations=5, **SIZES)(start(env, params, agent))
    state, parts = start(env, params, agent), []
    train_step = make_train_step(env, params, agent, iterations=1, **SIZES)
    for _ in range(5):
        state, part = train_step(state)
        parts.append(part)
    joined = jax.tree.map(lambda *x: np.concatenate([np.asarray(y) for y in x]), *parts)
    np.testing.assert_array_equal(jax.random.key_data(whole.key), jax.random.key_data(state.key))
    for x, y in zip(leaves((whole, metrics)), leaves((state, joined)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def test_the_state_is_consumed():
    env, params, recorder = Table(), wandering(), Recorder()
    state = start(env, params, recorder)
    train_step = make_train_step(env, params, recorder, **SIZES)
    after, _ = train_step(state)
    with pytest.raises(UserError, match="consumed by an earlier call"):
        train_step(state)
    assert after.iteration == 1
    train_step(after)


def test_episodes_can_start_afresh():
    env, params, recorder = Scripted(), script(limit=5, label=1.0), Recorder()
    train_step = make_train_step(env, params, recorder, iterations=3, fresh_episodes=True, num_envs=4, num_steps=3)
    _, metrics = train_step(create_train_state(env, params, recorder, num_envs=4, num_iterations=3))
    states = metrics["record"]["env_state"]
    np.testing.assert_array_equal(states.time, np.broadcast_to(np.arange(3)[:, None], (3, 3, 4)))
    assert len(np.unique(states.label)) == 12
    np.testing.assert_array_equal(metrics["record"]["memory"][..., 0], states.time)
    assert (metrics["episode/finished"] == 0).all()


def test_a_population_trains():
    env, params, agent = Scripted(), busy_script(), small_mappo()
    state, metrics = make_train_step(env, params, agent, iterations=5, **SIZES)(start(env, params, agent))
    assert all(np.isfinite(leaf).all() for leaf in leaves((state, metrics)))
    assert state.observation.shape == (4, 3, 2)
    assert (metrics["episode/finished"] > 0).all()


@pytest.mark.parametrize("name", ["num_envs", "num_steps", "iterations", "num_seeds"])
def test_counts_are_whole_and_positive(name):
    counts = {"num_envs": 4, "num_steps": 2}
    for bad in (0, -1, 2.0, True):
        with pytest.raises(UserError, match=f"{name} must be a whole number of at least 1"):
            make_train_step(Table(), table(), Recorder(), **counts | {name: bad})
    for bad in (0, 1.5):
        with pytest.raises(UserError, match="num_iterations"):
            create_train_state(Table(), table(), Recorder(), num_envs=1, num_iterations=bad)


def test_what_does_not_fit_is_refused_before_tracing(monkeypatch):
    monkeypatch.setattr(loop, "run_chunk", None)
    env, params = equimorph.make("BrockMirman-v0")
    with pytest.raises(UserError, match="minibatches"):
        make_train_step(env, params, MAPPO(minibatches=7), **SIZES)
    with pytest.raises(UserError, match="batch_size"):
        make_train_step(env, params, DEQN(batch_size=7), **SIZES)

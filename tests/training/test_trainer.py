"""From a configuration to a run: histories, compilations, folders, seeds."""

import json

import jax
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError
from equimorph.training import loop
from equimorph.training.config import resolve
from equimorph.training.plan import iterations_per_chunk
from equimorph.training.summary import summary
from equimorph.training.trainer import train, train_from_config

SMALL = {"num_envs": 4, "num_steps": 8}


def small(agent="mappo", **training):
    return resolve("BrockMirman-v0", agent, {"rollout": SMALL, "training": training})


def test_history_has_a_number_for_every_iteration():
    state, history = train_from_config(small(iterations=12))
    assert int(state.iteration) == 12
    assert {len(values) for values in history.values()} == {12}
    assert np.isfinite(history["loss/policy"]).all()


def test_whole_run_is_one_compilation():
    """Chunks, another learning rate and another calibration reuse the one program."""
    settings = {"rollout": {"num_envs": 3, "num_steps": 7}, "training": {"iterations": 12, "iterations_per_chunk": 3}}
    before = loop.run_chunk._cache_size()
    for agent in ({"minibatches": 1}, {"minibatches": 1, "learning_rate": 1e-2}):
        for params in ({}, {"beta": 0.9}):
            train_from_config(
                resolve("BrockMirman-v0", "mappo", {**settings, "agent": agent, "env": {"params": params}})
            )
    assert loop.run_chunk._cache_size() - before == 1


def test_episode_means_are_over_finished_episodes_only():
    sums = {
        "loss/policy": np.array([1.0, 3.0]),
        "episode/finished": np.array([0, 4]),
        "episode/return_sum": np.array([0.0, 10.0]),
        "episode/length_sum": np.array([0, 40]),
    }
    report = summary(sums)
    assert report["loss/policy"] == 2.0
    assert report["episode/return"] == 2.5
    assert report["episode/length"] == 10.0
    nothing = summary({name: values[:1] for name, values in sums.items()})
    assert np.isnan(nothing["episode/return"])


@pytest.mark.parametrize(
    ("iterations", "expected"), [(1, 1), (40, 1), (400, 10), (1000, 25), (13, 1), (1040, 26), (10007, 250)]
)
def test_chunks_divide_the_run_where_a_number_near_does(iterations, expected):
    assert iterations_per_chunk(iterations, None) == expected


def test_the_last_chunk_may_be_shorter(tmp_path):
    """And a report is of its own iterations, though a checkpoint comes in between."""
    tree = small(iterations=5, iterations_per_chunk=3).model_dump()
    _, history = train_from_config(tree | {"out": str(tmp_path / "run"), "checkpoint": {"every": 2}})
    assert len(history["loss/policy"]) == 5
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["time"]["iteration"] for line in lines] == [3, 5]
    assert lines[1]["loss"]["policy"] == pytest.approx(history["loss/policy"][3:].mean(), rel=1e-6)


def test_run_folder_holds_the_policy_that_was_trained(tmp_path):
    out = tmp_path / "run"
    run = train("BrockMirman-v0", "deqn", iterations=2, out=str(out), rollout={"num_envs": 8, "num_steps": 16})
    loaded = equimorph.load(out)
    observation = np.zeros(2, np.float32)
    np.testing.assert_array_equal(loaded.policy(observation), run.policy(observation))
    assert not np.array_equal(jax.tree.leaves(loaded.state.nets)[0], jax.tree.leaves(loaded.untrained_state.nets)[0])
    info = json.loads((out / "run.json").read_text())
    assert info["finished"] is True
    assert info["concept"] == "planner"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [128, 256]
    assert {"loss", "policy", "time"} <= set(lines[0])


def test_seeds_are_side_by_side_and_each_is_its_own_run():
    runs = train("BrockMirman-v0", "mappo", iterations=3, num_seeds=2, seed=5, rollout=SMALL).seeds
    alone = train("BrockMirman-v0", "mappo", iterations=3, seed=6, rollout=SMALL)
    observation = np.array([0.5, -0.5], np.float32)
    assert runs[0].policy(observation) != runs[1].policy(observation)
    np.testing.assert_allclose(runs[1].policy(observation), alone.policy(observation), rtol=1e-4)
    assert runs[1].history["loss/value"].shape == (3,)


def test_competitive_concept_is_refused_for_a_learner_of_rewards():
    with pytest.raises(UserError, match=r"'planner'.*'competitive'"):
        train("BrockMirman-v0", "mappo", iterations=1, env={"concept": "competitive"})


def test_events_need_scored_events():
    with pytest.raises(UserError, match="events"):
        train("BrockMirman-v0", "reinforce", iterations=1, score="events")


def test_loss_that_is_not_finite_stops_the_run_and_is_named(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(UserError, match=r"loss/\w+ is not finite at iteration \d+.*keeps the untrained policy"):
        train("BrockMirman-v0", "mappo", iterations=8, learning_rate=1e30, rollout=SMALL, out=out)
    with pytest.raises(UserError, match="did not finish"):
        equimorph.load(out)


def test_state_made_for_other_numbers_is_refused():
    from equimorph.agents import MAPPO

    env, params = equimorph.make("BrockMirman-v0")
    state = loop.create_train_state(env, params, MAPPO(), num_envs=8, num_iterations=1)
    step = loop.make_train_step(env, params, MAPPO(), num_envs=16, num_steps=8)
    with pytest.raises(UserError, match=r"\(8,\).*\(16,\)"):
        step(state)


@pytest.mark.parametrize("setting", [{"env": {"id": "CellCount-v0"}}, {"name": "mappo"}])
def test_what_train_names_already_is_not_named_again(setting):
    with pytest.raises(UserError, match="train's argument"):
        train("BrockMirman-v0", "deqn", iterations=1, **setting)


def test_policy_of_another_environment_is_refused():
    run = train("BrockMirman-v0", "deqn", iterations=1, rollout={"num_envs": 16, "num_steps": 8})
    with pytest.raises(UserError, match="does not fit StochasticAK-v0"):
        run.changed(["env.id=StochasticAK-v0"])


def test_a_loop_of_ones_own_gives_the_high_levels_policy_bit_for_bit():
    """Though it is cut into other calls: in the compiled loop the number of iterations is no constant."""
    from equimorph.agents import MAPPO

    config = small(iterations=6, iterations_per_chunk=2)
    env, params = equimorph.make("BrockMirman-v0")
    agent = MAPPO(**config.agent.hyperparameters)
    state = loop.create_train_state(env, params, agent, num_envs=4, num_iterations=6)
    step = loop.make_train_step(env, params, agent, num_envs=4, num_steps=8, iterations=5)
    for limit in (1, 5):
        state, metrics = step(state, limit)
    assert metrics["check/broken"].tolist() == [0] * 5
    jax.tree.map(np.testing.assert_array_equal, state.agent, train_from_config(config)[0].agent)
    with pytest.raises(UserError, match="limit = 6 must not exceed the 5 iterations"):
        step(state, 6)

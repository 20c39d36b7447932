"""A policy in a file of its own: the same actions, without training's code, through the doors that others know."""

import json
import shutil
import subprocess
import sys

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest

import equimorph
from equimorph.agents import registry
from equimorph.errors import UserError
from equimorph.training.cli import main
from equimorph.training.presets import PRESETS
from equimorph.training.sections import AgentConfig


def trained(env_id="BrockMirman-v0", agent="reinforce", **more):
    settings = {"iterations": 2, "rollout": {"num_envs": 8, "num_steps": 4}, "progress": False}
    return equimorph.train(env_id, agent, **settings, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two seeds, in a folder, with options, parameters and hyperparameters of its own."""
    path = tmp_path_factory.mktemp("export") / "run"
    env = {"concept": "planner", "params": {"beta": 0.9, "eta": 0.1}}
    return trained(
        env=env, widths=[8, 4], unscored_tail=0, num_seeds=2, out=str(path), evaluation={"every": 1, "horizon": 5}
    )


def test_the_file_acts_as_the_run(run, tmp_path):
    seen = np.array([[0.3, 1.0], [-0.2, 0.9]])
    for options in ({}, {"untrained": True}):
        policy = equimorph.load_policy(equimorph.export(run, tmp_path / f"{len(options)}.eqx", **options))
        state = run.untrained_state if options else run.state
        expected = run.agent.policy(state)
        assert eqx.tree_equal(policy.policy, expected)
        assert policy.env == run.env
        assert float(policy.params.beta) == pytest.approx(0.9)
    assert isinstance(policy(seen), np.ndarray)
    with pytest.raises(UserError, match=r"agent_mask has shape \(2, 1\) here, got \(1,\)"):
        policy(seen, agent_mask=[True])
    with pytest.raises(UserError, match="key is one JAX key"):
        policy(seen[0], key=0)
    np.testing.assert_array_equal(equimorph.load_policy(tmp_path / "0.eqx")(seen), run.policy(seen))
    drawn = [policy(seen[0], key=jax.random.key(seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_any_seed_of_a_folder_and_its_best_policy(run, tmp_path, capsys):
    found = {}
    shutil.copy(run.path / "untrained.eqx", run.path / "best.eqx")  # the last one may well be the best
    for name, words in {"first": [], "second": ["--seed", "1"], "best": ["--best"]}.items():
        assert main(["export", str(run.path), "--to", str(tmp_path / name), *words]) == 0
        found[name] = equimorph.load_policy(tmp_path / name)([0.3, 1.0])
    assert f"policy: {tmp_path / 'best'}" in capsys.readouterr().out
    assert [found["first"], found["second"]] == [seed.policy([0.3, 1.0]) for seed in run.seeds]
    assert found["best"] == equimorph.load(run.path, best=True).policy([0.3, 1.0]) != found["first"]


def test_a_fresh_process_acts_in_gymnasium_without_training(run, tmp_path):
    path = equimorph.export(run, tmp_path / "policy.eqx")
    code = f"""
import sys
import gymnasium, equimorph
policy = equimorph.load_policy({str(path)!r})
env = gymnasium.make("equimorph/BrockMirman-v0", beta=0.9, eta=0.1)
observation, info = env.reset(seed=0)
for _ in range(3):
    action = policy(observation)
    assert env.action_space.contains(action), action
    observation, *_ = env.step(action)
print(float(action[0]), [name for name in sys.modules if name.startswith("equimorph.training")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    env = gymnasium.make("equimorph/BrockMirman-v0", beta=0.9, eta=0.1)
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        action = run.policy(observation)
        observation, *_ = env.step(action)
    assert done.stdout.split(maxsplit=1) == [str(float(action[0])), "[]\n"]


def test_discrete_actions_are_of_gymnasiums_space(tmp_path):
    policy = equimorph.load_policy(equimorph.export(trained("CartPole-v1", "ppo"), tmp_path / "pole.eqx"))
    env = equimorph.make("CartPole-v1", api="gymnasium")
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy(observation))


def test_a_memory_is_carried(tmp_path):
    run = trained("CartPole-v1", "mappo", network="gru", widths=[4, 4])
    policy = equimorph.load_policy(equimorph.export(run, tmp_path / "gru.eqx"))
    seen = [0.3, 1.0, 0.1, 0.2]
    with pytest.raises(UserError, match=r"has a memory.*policy\.act\(observation, memory\)"):
        policy(seen)
    memory = policy.initial_memory()
    assert memory.shape == (1, 4)
    once, _ = policy.act(seen, memory)
    twice, action = policy.act(seen, once)
    assert np.abs(np.asarray(twice - once)).max() > 1e-3
    assert action in (0, 1)
    both, actions = policy.act([seen, seen], policy.initial_memory(2))
    np.testing.assert_allclose(both, [once, once], rtol=1e-6)
    assert actions.shape == (2,)


def test_solvers_and_rules_are_exported_too(tmp_path):
    for env_id, agent in (("BrockMirman-v0", "closed_form"), ("CellCount-v0", "random")):
        run = trained(env_id, agent)
        policy = equimorph.load_policy(equimorph.export(run, tmp_path / agent))
        assert eqx.tree_equal(policy.policy, run.agent.policy(run.state))
    assert policy.about["agent"]["name"] == "random"


@pytest.mark.parametrize("pair", PRESETS, ids="-".join)
def test_hyperparameters_survive_json(pair):
    name, given = pair[1], PRESETS[pair].get("agent", {})
    config = AgentConfig(name=name, **given)
    back = json.loads(json.dumps(config.model_dump(mode="json")))
    del back["name"]
    learner = getattr(equimorph.agents, registry.AGENTS[name])
    assert eqx.tree_equal(learner(**back), learner(**config.hyperparameters))


def test_what_is_no_policy_is_refused(run, tmp_path):
    path = equimorph.export(run, tmp_path / "policy.eqx")
    whole = path.read_bytes()
    bad = tmp_path / "bad.eqx"

    def refused(content, match):
        bad.write_bytes(content)
        with pytest.raises(UserError, match=match):
            equimorph.load_policy(bad)

    head, _, payload = whole.partition(b"\n")
    header = json.loads(head)

    def renamed(**changes):
        return json.dumps(header | changes).encode() + b"\n" + payload

    refused(whole[:-7], "does not match its checksum")
    refused(b"\x80\x04\x95 a pickle", "its first line is not a header")
    refused(b"[" * 100_000 + b"\n", "its first line is not a header")
    refused(renamed(structure=5), "its first line is not a header")
    refused(renamed(format=2), "has format 2; this version of equimorph reads format 1")
    about = header["about"]
    elsewhere = about | {"environment": about["environment"] | {"id": "BrockMirmen-v0"}}
    refused(renamed(about=elsewhere), "BrockMirmen-v0'. Did you mean 'BrockMirman-v0'")
    refused(
        (run.path / "policy.eqx").read_bytes(), "a learner's state and not a policy; equimorph export RUN --to FILE"
    )
    options = about["agent"] | {"hyperparameters": {"x": 1}}
    refused(renamed(about=about | {"agent": options}), "is damaged, or of another version: .*'x'")
    with pytest.raises(UserError, match="is a folder"):
        equimorph.load_policy(run.path)
    with pytest.raises(UserError, match="cannot read"):
        equimorph.load_policy(tmp_path / "none")
    with jax.enable_x64(True), pytest.raises(UserError, match=r"another precision \(JAX_ENABLE_X64\)"):
        equimorph.load_policy(path)


def test_options_that_do_not_apply_are_refused(run, tmp_path, capsys):
    path = tmp_path / "policy.eqx"
    path.write_text("mine")
    for words, reason in (
        ([], "is there already; choose another name, or replace it with --force"),
        (["--force", "--best", "--untrained"], "best and untrained are two policies; choose one"),
        (["--force", "--seed", "5"], "has 2 seeds, counted from 0; there is no 5"),
    ):
        assert main(["export", str(run.path), "--to", str(path), *words]) == 2
        assert reason in capsys.readouterr().err
    with pytest.raises(UserError, match="best chooses within a run folder"):
        equimorph.export(run, tmp_path / "other", best=True)
    with pytest.raises(UserError, match=r"try '.*policy\.eqx'"):
        equimorph.export(run, tmp_path)
    assert path.read_text() == "mine"
    for name in ("untrained.eqx", "config.yaml"):
        before = (run.path / name).read_bytes()
        with pytest.raises(UserError, match="belongs to a run and is not replaced"):
            equimorph.export(run.path, run.path / name, force=True)
        assert (run.path / name).read_bytes() == before
    with pytest.raises(UserError, match="seed must be a whole number"):
        equimorph.export(run.path, tmp_path / "other", seed="0")  # pyright: ignore

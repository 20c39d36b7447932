"""The run folder: whole files, nothing overwritten, and a policy that comes back as it was."""

import json
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph import storage
from equimorph.envs.environment import Environment
from equimorph.errors import UserError
from equimorph.training.run import RunFolder, load

pytestmark = pytest.mark.usefixtures("learner")


def test_a_run_comes_back(written, learner, tmp_path):
    trained, untrained = written(tmp_path / "run")
    run = equimorph.load(tmp_path / "run")
    assert eqx.tree_equal(run.state, trained)
    assert eqx.tree_equal(run.untrained_state, untrained)
    assert run.env == equimorph.make("BrockMirman-v0")[0]
    assert float(run.params.beta) == pytest.approx(0.9)
    assert (run.config.env.id, run.concept, run.agent) == ("BrockMirman-v0", "planner", learner())


def test_run_json_says_what_made_it(written, tmp_path):
    trained, _ = written(tmp_path)
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["versions"]["jax"] == jax.__version__
    assert {key: info[key] for key in ("environment", "agent", "concept", "finished")} == {
        "environment": "BrockMirman-v0",
        "agent": "mappo",
        "concept": "planner",
        "finished": True,
    }
    assert info["structure"] == storage.fingerprint(trained)
    assert info["structure"] != storage.fingerprint({**trained, "step": 1.0 * trained["step"]})


def test_seeds_are_told_apart(written, tmp_path):
    trained, untrained = written(tmp_path, num_seeds=3)
    for seed in range(3):
        run = load(tmp_path, seed=seed)
        assert np.array_equal(run.state["weight"], trained["weight"][seed])
        assert np.array_equal(run.untrained_state["weight"], untrained["weight"][seed])
    with pytest.raises(UserError, match="has 3 seeds, counted from 0; there is no 3"):
        load(tmp_path, seed=3)
    for wrong in ("0", 1.5, True):
        with pytest.raises(UserError, match="seed must be a whole number"):
            load(tmp_path, seed=wrong)


def test_policy_acts_for_one_agent_and_in_batches(written, tmp_path):
    trained, _ = written(tmp_path)
    run = load(tmp_path)
    observation, _ = run.env.reset(jax.random.key(0), run.params)
    expected = observation @ trained["weight"] + 1
    assert run.policy(observation).shape == run.env.action_space(run.params).shape
    np.testing.assert_allclose(run.policy(np.asarray(observation, np.float64)), expected, rtol=1e-6)
    batch = np.stack([observation, 2 * observation])
    np.testing.assert_allclose(run.policy(batch)[1], 2 * observation @ trained["weight"] + 1, rtol=1e-6)


def test_policy_names_the_shape_that_it_expects(written, tmp_path):
    written(tmp_path)
    run = load(tmp_path)
    size = run.env.observation_space(run.params).shape[0]
    for wrong in (np.zeros(size + 1), np.zeros((2, size + 1)), np.zeros((2, 2, size)), 0.0):
        with pytest.raises(UserError, match=rf"has shape \({size},\), or a batch of that; got"):
            run.policy(wrong)
    with pytest.raises(UserError, match="got 'text'"):
        run.policy("text")


class Crowd(Environment):
    """Three agents that see two numbers each."""

    num_agents = 3

    @property
    def default_params(self):
        return None

    def reset(self, key, params=None):
        return jnp.zeros((3, 2)), None


def test_policy_keeps_the_axis_of_several_agents(written, tmp_path):
    written(tmp_path)
    run = load(tmp_path)
    state = {"weight": jnp.array([[1.0], [10.0]])}
    crowd = type(run)(run.path, run.config, Crowd(), None, run.agent, state, state, run.info)
    observation = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(crowd.policy(observation), observation @ state["weight"] + 3)
    mask = np.array([True, False, False])
    np.testing.assert_allclose(crowd.policy(observation, agent_mask=mask), observation @ state["weight"] + 1)
    batch = np.stack([observation, observation])
    masks = np.stack([mask, ~mask])
    legal = np.ones((2, 3, 4), bool)
    both = crowd.policy(batch, agent_mask=masks, action_mask=legal)
    np.testing.assert_allclose(both[1], observation @ state["weight"] + 2 + 12)


def test_nothing_is_overwritten(written, tmp_path):
    written(tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UserError, match="already holds a run; choose another one"):
        RunFolder.create(tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    (tmp_path / "other").mkdir()
    RunFolder.create(tmp_path / "other")
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(UserError, match="is not empty"):
        RunFolder.create(tmp_path / "other")
    with pytest.raises(UserError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "other" / "notes.txt")


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    storage.write_text(tmp_path / "file", "whole")
    with pytest.raises(OSError, match="disk full"):
        storage.write_atomically(tmp_path / "file", fail)
    assert (tmp_path / "file").read_text() == "whole"
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_missing_is_named(written, tmp_path):
    with pytest.raises(UserError, match="there is no run folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.yaml"):
        load(tmp_path)
    written(tmp_path / "run")
    for name in ("policy.eqx", "run.json"):
        content = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).unlink()
        with pytest.raises(UserError, match=rf"cannot read '.*{name}': No such file"):
            load(tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(content)
    load(tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-10], "does not match its checksum"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "does not match its checksum"),
        (lambda content: content[: content.index(b"\n")], "does not match its checksum"),
        (lambda content: content[:20], "its first line is not a header"),
        (lambda content: b"", "its first line is not a header"),
        (lambda content: content.replace(b'"format": 1', b'"format": 2'), "has format 2; this version"),
    ],
)
def test_a_damaged_policy_is_refused(written, tmp_path, damage, message):
    written(tmp_path)
    path = tmp_path / "policy.eqx"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"concept": 3}'])
def test_a_damaged_run_json_is_refused(written, tmp_path, text):
    written(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json' is damaged"):
        load(tmp_path)


def test_a_policy_of_another_structure_is_refused_by_its_first_difference(written, tmp_path):
    written(tmp_path)
    config = (tmp_path / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("name: mappo", "name: mappo\n  width: 2"))
    with pytest.raises(
        UserError, match=r"holds \['weight'\] float32\[\d+, 1\] where \['weight'\] float32\[\d+, 2\] is"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("saved", "expected", "message"),
    [
        ({"a": 0.0}, {"a": 0.0, "b": 0.0}, r"holds nothing where \['b'\] float32\[\] is expected"),
        ({"a": 0.0, "b": 0.0}, {"a": 0.0}, r"holds \['b'\] float32\[\] where nothing is expected"),
        ({"a": 0.0}, {"a": 0}, r"holds \['a'\] float32\[\] where \['a'\] int32\[\] is expected"),
    ],
)
def test_structures_are_compared_leaf_by_leaf(tmp_path, saved, expected, message):
    storage.save_tree(tmp_path / "tree", jax.tree.map(jnp.array, saved))
    with pytest.raises(UserError, match=message):
        storage.load_tree(tmp_path / "tree", jax.tree.map(jnp.array, expected))


def test_saved_json_is_strict(tmp_path):
    RunFolder.create(tmp_path).write_json("evaluation.json", {"score": float("nan"), "euler": {"mean": jnp.array(0.5)}})
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {"score": None, "euler": {"mean": 0.5}}

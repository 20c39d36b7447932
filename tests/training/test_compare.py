"""The comparison: the same budget for all, other libraries' policies scored as they are, and a table of it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import View
from equimorph.errors import UserError
from equimorph.training import compare
from equimorph.training.peers import PEERS, PeerPolicy, peer_env

SMALL = 64 * 64 * 2


@pytest.fixture(scope="module")
def brock_mirman():
    config = compare._budgeted("BrockMirman-v0", "mappo", SMALL)
    env, params = equimorph.make("BrockMirman-v0")
    return config, peer_env(env, params), params


def test_everybody_has_the_same_experience():
    for env_id, task in compare.TASKS.items():
        steps = {agent: compare._budgeted(env_id, agent, None) for agent in task.agents}
        counts = {agent: compare._rollout_size(c) * c.training.iterations for agent, c in steps.items()}
        budget = compare.shared_budget(steps["mappo"])
        assert budget.steps == counts["mappo"]
        # Others are rounded down to whole rollouts, and no learner gets more.
        assert all(0.95 * budget.steps <= count <= budget.steps for count in counts.values()), (env_id, counts)


def test_a_budget_below_one_rollout_is_refused():
    with pytest.raises(UserError, match=r"BrockMirman-v0: 100 steps do not pay for one rollout of \w+"):
        compare.compare_libraries(["BrockMirman-v0"], steps=100, peers=[])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env_ids": ["BrockMirmann-v0"]}, "Did you mean 'BrockMirman-v0'"),
        ({"peers": ["rejaxx"]}, "unknown peer 'rejaxx'. Did you mean 'rejax'"),
        ({"num_seeds": 0}, "num_seeds"),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        compare.compare_libraries(**settings)


def test_a_library_that_is_missing_is_named_and_left_out(monkeypatch):
    monkeypatch.setitem(PEERS, "sb3", PEERS["sb3"]._replace(modules=("not_a_library",)))
    lines = []
    monkeypatch.setattr(compare, "_compare_on", lambda env_id, steps, num_seeds, peers, report: list(peers))
    left = compare.compare_libraries(["CartPole-v1"], peers=["sb3"], report=lines.append)
    assert left == []
    assert "not_a_library is not installed" in lines[0]


@pytest.mark.extended
@pytest.mark.parametrize("name", list(PEERS))
def test_a_policy_that_came_back_is_the_librarys_own(name, brock_mirman, monkeypatch):
    pytest.importorskip(PEERS[name].modules[0])
    config, env, params = brock_mirman
    budget = compare.shared_budget(config)
    models = []
    if name == "rejax":
        learnt = PEERS[name].train(env, params, budget, 0)
    else:
        from equimorph.training import peers

        make = peers._stable_baselines
        monkeypatch.setattr(peers, "_stable_baselines", lambda *a: models.append(make(*a)) or models[0])
        learnt = PEERS[name].train(env, params, budget, 0)
    policy = PeerPolicy(jax.tree.map(jnp.asarray, learnt.arrays), learnt.function, env, params)
    observations = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    shares = [float(policy(View(jnp.asarray(o)[None], jnp.ones(1, bool)))[0, 0]) for o in observations]
    assert np.std(shares) > 0
    if models:
        theirs = (models[0].predict(observations, deterministic=True)[0][:, 0] + 1) / 2
        np.testing.assert_allclose(shares, np.clip(theirs, 0, 1), atol=1e-5)
    moved = jax.tree.map(
        lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), learnt.arrays, learnt.untrained
    )
    assert max(jax.tree.leaves(moved)) > 1e-4


def test_table_and_figure(tmp_path):
    rows = [
        compare.Row("BrockMirman-v0", "equimorph mappo", (0.02, 0.04), (7.0, 7.2), (20.0, 5.0), 1000),
        compare.Row("BrockMirman-v0", "SBX PPO", (0.5, 0.7), (7.0, 7.0), (30.0, 25.0), 1000),
        compare.Row("CartPole-v1", "SBX PPO", (500.0,), (9.0,), (30.0,), 2000),
    ]
    table = compare.comparison_table(rows).splitlines()
    assert table[0].split("  ")[0] == "BrockMirman-v0, 1,000 steps"
    assert table[1].split() == ["equimorph", "mappo", "0.03", "±", "0.01", "7.1", "20.0", "5.0", "200"]
    assert table[-1].split() == ["SBX", "PPO", "500", "±", "0", "9", "30.0", "-", "-"]
    path = compare.save_comparison(rows, tmp_path / "out")
    assert [row["learner"] for row in json.loads((path / compare.TABLE).read_text())] == [row.learner for row in rows]
    assert (path / compare.FIGURE).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="is there already"):
        compare.save_comparison(rows, path)


@pytest.mark.extended
def test_ours_and_theirs_stand_in_one_table():
    pytest.importorskip("rejax")
    rows = compare.compare_libraries(["BrockMirman-v0"], steps=SMALL * 4, num_seeds=1, peers=["rejax"])
    assert [row.learner for row in rows] == ["equimorph deqn", "equimorph mappo", "equimorph reinforce", "rejax PPO"]
    for row in rows:
        assert np.isfinite(row.scores).all()
        assert row.warm is None
    mappo = rows[1]
    assert mappo.scores[0] < 0.5 * mappo.untrained[0]

"""Stable-Baselines3 on our vector door: what it is told of ends of episodes, and what its PPO learns."""

import gymnasium
import numpy as np
import pytest

import equimorph
from equimorph.envs.economies.brock_mirman import BrockMirman
from equimorph.errors import UserError

stable_baselines3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")

from equimorph.envs.adapters.stable_baselines3 import StableBaselines3VecEnv  # noqa: E402


def vector(env_id, num_envs, **overrides):
    return equimorph.make(env_id, api="gymnasium", num_envs=num_envs, autoreset_mode="SameStep", **overrides)


def test_ends_of_episodes_are_told_apart():
    env = StableBaselines3VecEnv(vector("BrockMirman-v0", 3, max_steps_in_episode=4))
    env.seed(7)
    first = env.reset()
    twin = equimorph.make("BrockMirman-v0", api="gymnasium", max_steps_in_episode=4)
    observation, _ = twin.reset(seed=7)
    np.testing.assert_allclose(first[0], observation, rtol=1e-5)
    actions = np.full((3, 1), 0.3, np.float32)
    for step in range(4):
        observations, rewards, dones, infos = env.step(actions)
        expected, reward, _, truncated, _ = twin.step(actions[0])
        assert dones.tolist() == [truncated] * 3 == [step == 3] * 3
        np.testing.assert_allclose(rewards[0], reward, rtol=1e-6)
    # An economy never terminates: values go on from the last observation, which is not the one of the reset.
    assert all(info["TimeLimit.truncated"] for info in infos)
    np.testing.assert_allclose(infos[0]["terminal_observation"], expected, rtol=1e-4, atol=1e-6)
    assert np.abs(observations[0] - expected).max() > 1e-3


@pytest.mark.extended
def test_a_tissue_that_is_scored_is_not_truncated():
    env = StableBaselines3VecEnv(vector("CellCountPooled-v0", 2, max_steps_in_episode=1))
    env.reset()
    *_, dones, infos = env.step(np.zeros((2, 1), np.float32))
    assert dones.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False]


def test_another_way_of_resetting_is_refused():
    with pytest.raises(UserError, match=r"needs a vector environment with autoreset_mode SAME_STEP"):
        StableBaselines3VecEnv(equimorph.make("BrockMirman-v0", api="gymnasium", num_envs=2))


def test_monitor_counts_whole_episodes():
    from stable_baselines3.common.vec_env import VecMonitor

    env = VecMonitor(StableBaselines3VecEnv(vector("BrockMirman-v0", 2, max_steps_in_episode=3)))
    env.reset()
    total = 0.0
    for _ in range(3):
        _, rewards, _, infos = env.step(np.full((2, 1), 0.4, np.float32))
        total += rewards[0]
    assert infos[0]["episode"]["l"] == 3
    assert infos[0]["episode"]["r"] == pytest.approx(total, abs=1e-4)


@pytest.mark.extended
def test_ppo_learns_to_save():
    """Behind Gymnasium's RescaleAction; a saved share of s costs 1 - exp((1 - beta) (V(s) - V(alpha beta)))."""
    torch.set_num_threads(1)  # with several, threads of a small network wait for each other
    inner = vector("BrockMirman-v0", 64)
    env = gymnasium.wrappers.vector.RescaleAction(inner, np.float32(-1), np.float32(1))
    model = stable_baselines3.PPO(
        "MlpPolicy",
        StableBaselines3VecEnv(env),
        learning_rate=lambda remaining: 1e-3 * remaining,
        n_steps=64,
        batch_size=1024,
        n_epochs=4,
        gamma=0.96,
        policy_kwargs={"log_std_init": -1.6},
        seed=0,
        device="cpu",
    )

    def loss():
        """Share of consumption lost on the way the policy goes, from its own observations."""
        share = (model.predict(np.zeros((1, 2), np.float32), deterministic=True)[0][0, 0] + 1) / 2
        alpha, beta = 0.36, 0.96
        worth = lambda s: np.log(1 - s) + alpha * beta / (1 - alpha * beta) * np.log(s)  # noqa: E731
        return 1 - np.exp(worth(share) - worth(alpha * beta))

    assert isinstance(inner.unwrapped.env, BrockMirman)
    before = loss()
    model.learn(64 * 64 * 60)
    assert before > 0.06
    assert loss() <= 0.01

"""The vector door is so many single doors in one: Gymnasium's own vector environment of them tells the same."""

import copy
import dataclasses
import pickle

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

import equimorph
from equimorph.envs.adapters.gymnasium_vector import GymnasiumVectorEnv
from equimorph.envs.economies.brock_mirman import BrockMirman
from equimorph.errors import UserError

SHORT = {
    "CartPole-v1": {},
    "BrockMirman-v0": {"max_steps_in_episode": 4},
    "CellCount-v0": {"calibration": "hazard", "max_steps_in_episode": 3},
}

OF_ALL = AutoresetMode.NEXT_STEP


def make(env_id, num_envs, mode=AutoresetMode.NEXT_STEP, **options):
    return equimorph.make(env_id, api="gymnasium", num_envs=num_envs, autoreset_mode=mode, **options)


def same(mine, theirs, path="infos"):
    """The same entries with the same masks; numbers may differ in width and in the last digits."""
    if isinstance(theirs, dict):
        assert set(mine) == set(theirs), path
        for name in theirs:
            same(mine[name], theirs[name], f"{path}[{name!r}]")
    elif theirs.dtype == object:
        assert [x is None for x in mine] == [x is None for x in theirs], path
        for one, other in zip(mine, theirs, strict=True):
            if other is not None:
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=path)
    else:
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=path)


# -- the same as Gymnasium's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "mode"),
    [
        # The modes reset at other times, and the environments differ in what is inside a step: all of either once.
        pytest.param(env_id, mode, marks=[] if env_id == "CartPole-v1" or mode is OF_ALL else pytest.mark.extended)
        for env_id in SHORT
        for mode in AutoresetMode
    ],
)
def test_as_gymnasiums_own_vector_environment_of_single_ones(env_id, mode):
    num_envs, steps = (9, 90) if env_id == "CartPole-v1" else (3, 10)
    ours = make(env_id, num_envs, mode, **SHORT[env_id])
    theirs = SyncVectorEnv(
        [lambda: equimorph.make(env_id, api="gymnasium", **SHORT[env_id])] * num_envs, autoreset_mode=mode
    )
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    shown, expected = (envs.reset(seed=11) for envs in (ours, theirs))
    np.testing.assert_allclose(shown[0], expected[0], rtol=1e-5, atol=1e-6)
    same(shown[1], expected[1])
    ours.action_space.seed(1)
    ends = 0
    for _ in range(steps):
        actions = ours.action_space.sample()
        shown, expected = ours.step(actions), theirs.step(actions)
        for mine, other in zip(shown[:4], expected[:4], strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        infos = {name: value for name, value in shown[4].items() if "episode_statistics" not in name}
        same(infos, expected[4])
        ended = shown[2] | shown[3]
        ends += int(ended.sum())
        if mode is AutoresetMode.DISABLED and ended.any():
            shown, expected = (envs.reset(options={"reset_mask": ended.copy()}) for envs in (ours, theirs))
            np.testing.assert_allclose(shown[0], expected[0], rtol=1e-4, atol=1e-5)
            same(shown[1], expected[1])
    assert ends >= 2 * num_envs


def test_statistics_are_those_of_gymnasiums_wrapper():
    envs = wrappers.RecordEpisodeStatistics(make("CartPole-v1", 5))
    envs.reset(seed=0)
    envs.action_space.seed(0)
    ends = 0
    for _ in range(120):
        *_, terminated, truncated, infos = envs.step(envs.action_space.sample())
        ended = terminated | truncated
        assert ("episode_statistics" in infos) == ended.any()
        if ended.any():
            np.testing.assert_array_equal(infos["_episode_statistics"], ended)
            for name in ("r", "l"):
                np.testing.assert_array_equal(infos["episode_statistics"][name], infos["episode"][name])
            ends += int(ended.sum())
    assert ends > 10


@pytest.mark.parametrize("mode", AutoresetMode)
def test_statistics_add_up_in_every_mode(mode):
    envs = make("BrockMirman-v0", 2, mode, max_steps_in_episode=3)
    envs.reset(seed=0)
    total, told = np.zeros(2), []
    for _ in range(8):
        _, rewards, _, truncated, infos = envs.step([[0.3], [0.2]])
        total += rewards
        if truncated.any():
            told.append(infos["episode_statistics"]["l"].tolist())
            np.testing.assert_allclose(infos["episode_statistics"]["r"], total)
            total[:] = 0
            if mode is AutoresetMode.DISABLED:
                envs.reset()
    assert told == [[3, 3]] * 2


# -- sizes, types, seeds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 7, 4096])
def test_batches_of_any_size(num_envs):
    envs = make("CartPole-v1", num_envs)
    first, _ = envs.reset(seed=0)
    rng, seen = np.random.default_rng(0), 0
    for _ in range(40):
        observations, rewards, terminated, truncated, _ = envs.step(rng.integers(0, 2, num_envs))
        seen += int(terminated.sum())
        assert observations in envs.observation_space
        assert observations.flags.writeable
        observations[:] = 0  # the user's own
    assert (first.shape, first.dtype, rewards.dtype) == ((num_envs, 4), np.float32, np.float64)
    assert terminated.shape == truncated.shape == (num_envs,)
    assert seen >= num_envs / 2


def test_seeds_of_each_and_of_none():
    def start(seed):
        return make("CartPole-v1", 3).reset(seed=seed)[0]

    single = [equimorph.make("CartPole-v1", api="gymnasium").reset(seed=s)[0] for s in (7, 8, 9)]
    np.testing.assert_array_equal(start(7), single)
    np.testing.assert_array_equal(start([9, 7, 8]), [single[2], single[0], single[1]])
    unseeded = start(None)
    assert np.any(unseeded != start(None))
    assert len(np.unique(unseeded[:, 0])) == 3
    mixed = start([7, None, None])
    np.testing.assert_array_equal(mixed[0], single[0])
    assert np.any(mixed[1:] != start([7, None, None])[1:])
    envs = make("CartPole-v1", 3)
    envs.reset(seed=7)
    later = envs.reset()[0]
    envs.reset(seed=7)
    np.testing.assert_array_equal(envs.reset(seed=[None, 1, 1])[0][0], later[0])  # the stream of None carries on


def test_a_masked_reset_leaves_the_others_alone():
    envs, alone = make("BrockMirman-v0", 3, AutoresetMode.DISABLED), make("BrockMirman-v0", 3, AutoresetMode.DISABLED)
    actions = [[0.3]] * 3
    for each in (envs, alone):
        each.reset(seed=0)
        before = each.step(actions)[0]
    after, _ = envs.reset(options={"reset_mask": np.array([False, True, False])}, seed=5)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    np.testing.assert_allclose(after[1], equimorph.make("BrockMirman-v0", api="gymnasium").reset(seed=6)[0], rtol=1e-5)
    again, _ = envs.reset(options={"reset_mask": np.array([False, True, False])}, seed=5)
    np.testing.assert_array_equal(again, after)
    np.testing.assert_array_equal(envs.step(actions)[0][[0, 2]], alone.step(actions)[0][[0, 2]])


def test_what_was_returned_before_stays_as_it_was():
    envs = make("BrockMirman-v0", 3, AutoresetMode.SAME_STEP, max_steps_in_episode=2)
    envs.reset(seed=0)
    kept = []
    for _ in range(5):
        shown = envs.step([[0.3], [0.2], [0.4]])
        kept.append((shown, copy.deepcopy(shown)))
    last = kept[1][0][4]["final_obs"]
    untouched = last[1].copy()
    last[0][:] = 0
    np.testing.assert_array_equal(last[1], untouched)
    last[0][:] = kept[1][1][4]["final_obs"][0]
    for shown, copied in kept:
        same(shown[4], copied[4])
        for mine, before in zip(shown[:4], copied[:4], strict=True):
            np.testing.assert_array_equal(mine, before)


# -- making them -------------------------------------------------------------------------------------------------------


def test_make_vec_makes_them():
    envs = gymnasium.make_vec("equimorph/BrockMirman-v0", num_envs=5, beta=0.9, autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(envs, GymnasiumVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert float(envs.params.beta) == pytest.approx(0.9)
    assert gymnasium.make_vec(envs.spec).num_envs == 5
    assert gymnasium.make_vec("equimorph/BrockMirman-v0").metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert "autoreset_mode" not in GymnasiumVectorEnv.metadata


def test_gymnasiums_limit_is_the_environments_own():
    steps = {}
    for limit in (3, -1, None):
        envs = gymnasium.make_vec("equimorph/BrockMirman-v0", num_envs=2, max_episode_steps=limit)
        steps[limit] = int(envs.params.max_steps_in_episode)
    own = int(equimorph.make("BrockMirman-v0")[1].max_steps_in_episode)
    assert steps == {3: 3, -1: own, None: own}
    with pytest.raises(UserError, match="max_episode_steps=3 and max_steps_in_episode=4 name the same limit"):
        gymnasium.make_vec("equimorph/BrockMirman-v0", max_episode_steps=3, max_steps_in_episode=4)


def test_equal_vectors_share_one_compilation_whatever_their_mode():
    @dataclasses.dataclass(frozen=True)
    class Traced(BrockMirman):
        trace: list = dataclasses.field(default_factory=list, compare=False)

        def transition(self, state, action, shock, params):
            self.trace.append("step")
            return super().transition(state, action, shock, params)

        def initial_state(self, key, params):
            self.trace.append("reset")
            return super().initial_state(key, params)

    trace, counts = [], []
    params = BrockMirman().default_params.replace(max_steps_in_episode=jax.numpy.int32(3))
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        envs = GymnasiumVectorEnv(Traced(trace=trace), params, 4, autoreset_mode=mode)
        envs.reset(seed=0)
        for dtype in (np.float32, np.float64):
            envs.step(np.full((4, 1), 0.3, dtype))
        envs.reset(options={"params": {"beta": 0.9}})
        counts.append(len(trace))
    assert counts == counts[:1] * 3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))])
def test_copies_go_their_own_way(copied):
    envs = make("BrockMirman-v0", 3, max_steps_in_episode=3)
    envs.reset(seed=0)
    envs.step([[0.3]] * 3)
    twin = copied(envs)
    mask = {"reset_mask": np.array([True, False, False])}
    np.testing.assert_array_equal(twin.reset(options=mask)[0], envs.reset(options=mask)[0])
    for _ in range(4):
        for mine, theirs in zip(twin.step([[0.3]] * 3)[:4], envs.step([[0.3]] * 3)[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)


# -- wrappers and pictures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", SHORT)
def test_gymnasiums_wrappers_work(env_id):
    envs = make(env_id, 3, **SHORT[env_id])
    chain = [wrappers.RecordEpisodeStatistics, wrappers.NormalizeReward, wrappers.FlattenObservation]
    chain += [wrappers.NormalizeObservation, lambda e: wrappers.TransformReward(e, lambda r: r / 2)]
    if isinstance(envs.single_action_space, gymnasium.spaces.Box):
        chain += [lambda e: wrappers.RescaleAction(e, np.float32(-1), np.float32(1)), wrappers.ClipAction]
    size = gymnasium.spaces.flatdim(envs.single_observation_space)
    for wrapper in chain:
        envs = wrapper(envs)
    envs.reset(seed=0)
    recorded = 0
    for _ in range(60 if env_id == "CartPole-v1" else 6):
        observations, *_, infos = envs.step(envs.action_space.sample())
        recorded += int(infos.get("_episode", np.zeros(3)).sum())
    assert observations.shape == (3, size)
    assert np.all(np.isfinite(observations))
    assert recorded >= 3


@pytest.mark.extended
def test_pictures_and_a_video_of_all(tmp_path):
    envs = make("CellCount-v0", 2, render_mode="rgb_array", **SHORT["CellCount-v0"])
    filmed = wrappers.RecordVideo(envs, str(tmp_path / "videos"), episode_trigger=lambda episode: True)
    filmed.reset(seed=0)
    for _ in range(5):
        filmed.step(filmed.action_space.sample())
    env, params = equimorph.make("CellCount-v0", **SHORT["CellCount-v0"])
    frames = envs.render()
    assert len(frames) == 2
    for i, frame in enumerate(frames):
        np.testing.assert_array_equal(frame, env.render(jax.tree.map(lambda x, i=i: x[i], envs.state), params))
    assert np.any(frames[0] != frames[1])
    filmed.close()
    filmed.close()
    assert list((tmp_path / "videos").glob("*.mp4"))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs must be a whole number of at least 1, got 0"),
        ({"num_envs": True}, "num_envs must be a whole number of at least 1, got True"),
        ({"num_envs": 2, "autoreset_mode": "NexStep"}, "unknown autoreset_mode 'NexStep'. Did you mean 'NextStep'"),
        ({"num_envs": 2, "render_mode": "human"}, "unknown render_mode of BrockMirman-v0 'human'. Known: rgb_array"),
        ({"num_envs": 2, "bta": 0.9}, "Did you mean 'beta'"),
    ],
)
def test_what_cannot_be_made_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("BrockMirman-v0", api="gymnasium", **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": [1, 2]}, "3 environments need as many seeds, got 2"),
        ({"options": {"mask": 1}}, "unknown reset option of BrockMirman-v0 'mask'"),
        ({"options": {"reset_mask": np.ones(2, bool)}}, r"reset_mask must be bool\[3\], got bool\[2\]"),
        ({"options": {"reset_mask": np.ones(3)}}, r"reset_mask must be bool\[3\], got float64\[3\]"),
        ({"options": {"reset_mask": np.zeros(3, bool)}}, "reset_mask is false everywhere"),
        (
            {"options": {"reset_mask": np.arange(3) > 0, "params": {"beta": 0.9}}},
            "all environments share their parameters; leave reset_mask out",
        ),
    ],
)
def test_resets_that_do_not_fit_are_refused(arguments, message):
    envs = make("BrockMirman-v0", 3)
    envs.reset(seed=0)
    with pytest.raises(UserError, match=message):
        envs.reset(**arguments)


@pytest.mark.parametrize(
    ("env_id", "actions", "message"),
    [
        ("BrockMirman-v0", [[0.3], [np.nan], [0.3]], r"BrockMirman-v0: action\[1, 0\] is not a number"),
        ("BrockMirman-v0", [0.3, 0.3, 0.3], r"must have shape \(3, 1\), got \(3,\)"),
        ("CartPole-v1", [0, 1, 2], r"CartPole-v1: action\[2\] must be one of 0 to 1, got 2"),
        ("CartPole-v1", [0.0, 1.0, 1.0], "must be whole numbers, got type float64"),
        ("CartPole-v1", [0, 1], r"must have shape \(3,\), got \(2,\)"),
    ],
)
def test_actions_that_do_not_fit_are_refused(env_id, actions, message):
    envs = make(env_id, 3)
    envs.reset(seed=0)
    with pytest.raises(UserError, match=message):
        envs.step(actions)


def test_steps_without_an_episode_are_refused():
    envs = make("BrockMirman-v0", 3, AutoresetMode.DISABLED, max_steps_in_episode=2)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"no episode has begun; call reset\(\) before step"):
        envs.step([[0.3]] * 3)
    with pytest.raises(gymnasium.error.ResetNeeded, match="without reset_mask first"):
        envs.reset(options={"reset_mask": np.array([True, False, True])})
    envs.reset(seed=0)
    envs.step([[0.3]] * 3)
    envs.step([[0.3]] * 3)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"the episodes of 3 environments have ended"):
        envs.step([[0.3]] * 3)
    mask = np.array([True, False, True])
    options = {"reset_mask": mask}
    envs.reset(options=options)
    assert options["reset_mask"] is mask  # the caller's dict is left as it was
    with pytest.raises(
        gymnasium.error.ResetNeeded, match=r"the episodes of 1 environments have ended \(the first: \[1\]\)"
    ):
        envs.step([[0.3]] * 3)
    envs.reset(options={"reset_mask": ~mask})
    envs.step([[0.3]] * 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.reset(seed=1.5), "a seed must be a whole number of at least 0, or None, got 1.5"),
        (lambda env: env.reset(seed=["a", 1]), "a seed must be a whole number of at least 0, or None, got 'a'"),
        (lambda env: env.reset(seed=[1.5, 2]), "a seed must be a whole number of at least 0, or None, got 1.5"),
        (lambda env: env.reset(options=5), "options must be a dict, got 5"),
    ],
)
def test_wrong_arguments_of_reset_are_told_in_one_line(call, message):
    with pytest.raises(UserError, match=message):
        call(equimorph.make("BrockMirman-v0", api="gymnasium", num_envs=2, autoreset_mode="SAME_STEP"))

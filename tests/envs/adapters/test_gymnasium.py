"""The door to Gymnasium: its checkers pass, and an episode through it is the environment's, step by step."""

import copy
import dataclasses
import importlib.util
import pickle
import subprocess
import sys
import warnings

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.utils.env_checker import check_env
from jaxtyping import Array

import equimorph
from equimorph.envs import spaces
from equimorph.envs.adapters._gymnasium_program import draw_words, stream
from equimorph.envs.adapters.gymnasium import GymnasiumEnv
from equimorph.envs.environment import Environment, EnvParams, EnvState, canonical_params
from equimorph.errors import UserError

CASES = {
    **{env_id: (env_id, {}) for env_id in equimorph.list_envs()},
    "hazard": ("CellCount-v0", {"calibration": "hazard"}),
    "CartPole-v1": ("CartPole-v1", {}),
    "Pendulum-v1": ("Pendulum-v1", {}),
}
# One of each kind: one agent, several as one controller, one shot, a tissue, and two of gymnax's own.
KINDS = {"BrockMirman-v0", "KrusellSmith-v0", "Auction-v0", "CellCount-v0", "CartPole-v1", "Pendulum-v1"}
EVERY = [pytest.param(case, marks=[] if case in KINDS else pytest.mark.extended) for case in CASES]
# Advice on spaces, which are what they are: Gymnasium's own CartPole and Pendulum earn it too.
ADVICE = (
    "A Box observation space minimum value is -infinity",
    "A Box observation space maximum value is infinity",
    "For Box action spaces, we recommend using a symmetric and normalized space",
)


def make(case, **overrides):
    env_id, options = CASES[case]
    return equimorph.make(env_id, api="gymnasium", **options, **overrides)


@pytest.fixture
def only_advice():
    """Every warning is an error, but for Gymnasium's taste in spaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for advice in ADVICE:
            warnings.filterwarnings("ignore", message=f".*{advice}")
        yield


@dataclasses.dataclass(frozen=True)
class Counter(Environment):
    """Two agents count: what they see, earn and may do depends on the time, and the second dies at 2."""

    num_agents: int = 2
    trace: list = dataclasses.field(default_factory=list, compare=False)

    @property
    def default_params(self):
        return canonical_params(EnvParams(max_steps_in_episode=4))

    def agent_action_space(self, params):
        return spaces.Dict({"go": spaces.Discrete(3), "far": spaces.Box(-1.0, 1.0, (2,))})

    def agent_observation_space(self, params):
        return spaces.Dict({"time": spaces.Box(0.0, 9.0, ()), "half": spaces.Discrete(9)})

    def agent_mask(self, state, params):
        return jnp.arange(self.num_agents) < jnp.where(state.time < 2, self.num_agents, 1)

    def action_mask(self, state, params):
        return jnp.broadcast_to(jnp.arange(3) <= state.time, (self.num_agents, 3))

    def observe(self, key: Array, state, action, params):
        shape = () if self.num_agents == 1 else (self.num_agents,)
        return {
            "time": jnp.full(shape, state.time, jnp.result_type(float)),
            "half": jnp.full(shape, state.time // 2, jnp.int32),
        }

    def reset_env(self, key, params):
        self.trace.append("reset")
        state = EnvState(time=jnp.int32(0))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        self.trace.append("step")
        next_state = EnvState(time=state.time + 1)
        reward = jnp.arange(1.0, self.num_agents + 1) + action["far"].sum(-1)
        reward = reward[0] if self.num_agents == 1 else reward
        return (
            self.observe(key, next_state, action, params),
            next_state,
            reward,
            jnp.zeros((), bool),
            {"deep": {"x": 1.5}},
        )


def counter(**options):
    env = Counter(**options)
    return GymnasiumEnv(env, env.default_params)


# -- Gymnasium's own checkers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
def test_gymnasiums_checker_has_nothing_to_say(case, only_advice, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make(case)
    has_window = importlib.util.find_spec("pygame") is not None
    check_env(env, skip_render_check=not has_window)
    if env.metadata["render_modes"] and not has_window:
        picture = make(case, render_mode="rgb_array")
        picture.reset(seed=0)
        gymnasium.utils.passive_env_checker.env_render_passive_checker(picture)


@pytest.mark.parametrize("case", ["BrockMirman-v0", "hazard", "CartPole-v1"])
def test_stable_baselines_checker_has_nothing_to_say(case):
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_checker import check_env as check

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for advice in ("use a symmetric and normalized Box action space", "flatten the observation"):
            warnings.filterwarnings("ignore", message=rf"[\s\S]*[Ww]e recommend you to {advice}")
        check(make(case))


def test_gymnasium_makes_them_by_name_with_options_and_parameters():
    env = gymnasium.make("equimorph/BrockMirman-v0", beta=0.9, calibration="patient", max_steps_in_episode=50)
    assert isinstance(env.unwrapped, GymnasiumEnv)
    params = env.unwrapped.params
    assert (float(params.beta), float(params.rho), int(params.max_steps_in_episode)) == pytest.approx((0.9, 0.95, 50))
    again = gymnasium.make(env.spec)
    assert float(again.unwrapped.params.beta) == pytest.approx(0.9)
    with pytest.raises(UserError, match="Did you mean 'beta'"):
        gymnasium.make("equimorph/BrockMirman-v0", bta=0.9)


def test_a_fresh_process_finds_them_by_module_and_name(tmp_path):
    code = (
        "import gymnasium\n"
        "env = gymnasium.make('equimorph:equimorph/BrockMirman-v0')\n"
        "env.reset(seed=0); print(env.step(env.action_space.sample())[2:4])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "(False, False)", run.stderr


def test_double_precision(tmp_path):
    code = (
        "import jax; jax.config.update('jax_enable_x64', True)\n"
        "import numpy as np, equimorph\n"
        "env = equimorph.make('BrockMirman-v0', api='gymnasium')\n"
        "first, _ = env.reset(seed=0)\n"
        "second, reward, *_, info = env.step([1 / 3])\n"
        "assert env.action_space.dtype == env.observation_space.dtype == first.dtype == second.dtype == np.float64\n"
        "assert second.flags.writeable and second in env.observation_space\n"
        "assert reward != float(np.float32(reward)), reward\n"
        "many = equimorph.make('BrockMirman-v0', api='gymnasium', num_envs=2)\n"
        "assert many.reset(seed=0)[0].dtype == np.float64\n"
        "assert np.allclose(many.reset(seed=0)[0][0], first, rtol=1e-12)\n"
        "assert np.allclose(many.step([[1 / 3]] * 2)[0][0], second, rtol=1e-12)\n"
        "print('double')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "double", run.stderr


# -- the same episode --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "overrides", "end"),
    [
        ("CellCount-v0", {"calibration": "hazard"}, "terminated"),
        ("CartPole-v1", {}, "terminated"),
        ("CartPole-v1", {"max_steps_in_episode": 5}, "truncated"),
        ("BrockMirman-v0", {"max_steps_in_episode": 7}, "truncated"),
    ],
)
def test_an_episode_is_step_envs_with_the_documented_keys(env_id, overrides, end):
    door = equimorph.make(env_id, api="gymnasium", **overrides)
    env, params = equimorph.make(env_id, **overrides)
    step = jax.jit(env.step_env)
    observation, _ = door.reset(seed=3)
    root = stream(jnp.asarray(draw_words(gymnasium.utils.seeding.np_random(3)[0])))
    expected, state = env.reset_env(jax.random.fold_in(root, 0), params)
    np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-6)
    for t in range(1, 600):
        door.action_space.seed(t)
        action = door.action_space.sample()
        key = jax.random.fold_in(root, t)
        alive = np.asarray(env.agent_mask(state, params))
        expected, next_state, reward, terminated, info = step(key, state, action, params)
        truncated = bool(env.is_truncated(next_state, params))
        observation, earned, *flags, told = door.step(action)
        np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-6)
        assert earned == pytest.approx(float(np.mean(np.asarray(reward)[alive]) if reward.ndim else reward), rel=1e-5)
        assert flags == [bool(terminated), truncated]
        assert told["discount"] == pytest.approx(float(env.step_discount(state, next_state, params)))
        for name in set(info) - {"discount"}:
            np.testing.assert_allclose(told[name], info[name], rtol=1e-5)
        state = next_state
        for mine, theirs in zip(jax.tree.leaves(door.state), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        if any(flags):
            break
    assert flags == [end == "terminated", end == "truncated"]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"the episode has ended; call reset\(\) before step"):
        door.step(action)
    observation, _ = door.reset()  # the stream goes on
    expected, _ = env.reset_env(jax.random.fold_in(root, t + 1), params)
    np.testing.assert_allclose(observation, expected, rtol=1e-5, atol=1e-6)


def test_seeds_make_episodes_and_no_seed_makes_others():
    def start(seed=None):
        return make("CartPole-v1").reset(seed=seed)[0]

    np.testing.assert_array_equal(start(5), start(5))
    assert np.any(start(5) != start(6))
    assert np.any(start() != start())
    env = make("CartPole-v1")
    env.reset()
    env.np_random = np.random.default_rng(1)
    first = env.reset()[0]
    env.np_random = np.random.default_rng(1)
    np.testing.assert_array_equal(env.reset()[0], first)


# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EVERY)
def test_types_are_numpys_and_pythons(case):
    env = make(case)
    first, _ = env.reset(seed=0)
    second, reward, terminated, truncated, info = env.step(env.action_space.sample())
    for observation in (first, second):
        assert type(observation) is np.ndarray
        assert observation.dtype == env.observation_space.dtype
        assert observation.flags.writeable
        assert observation in env.observation_space
    second[:] = 0  # the user's own
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert not {"terminated", "truncated", "final_observation"} & set(info)
    assert {type(value) for value in info.values()} <= {float, int, bool, np.ndarray}


def test_several_agents_are_one_controller():
    env = counter()
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains({name: np.asarray(x) for name, x in observation.items()})
    np.testing.assert_array_equal(info["action_mask"], [[1, 0, 0]] * 2)
    np.testing.assert_array_equal(info["agent_mask"], [True, True])
    action = {"go": np.array([0, 2]), "far": [[0.5, 0.0], [-1.0, 0.0]]}
    rewards, masks = [], []
    for _ in range(4):
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        masks.append(info["agent_mask"].tolist())
    # 1 + 0.5 and 2 - 1; the second is dead from time 2 on, and the reward of a step is that of those alive before it
    assert rewards == [1.25, 1.25, 1.5, 1.5]
    assert masks == [[True, True], [True, False], [True, False], [True, False]]
    assert (terminated, truncated, info["deep"]) == (False, True, {"x": 1.5})
    np.testing.assert_array_equal(observation["time"], [4.0, 4.0])


def test_one_agents_spaces_of_every_kind_pass_the_checker(only_advice):
    env = counter(num_agents=1)
    observation, info = env.reset(seed=0)
    assert (type(observation["half"]), observation["time"].shape, observation["time"].dtype) == (int, (), np.float32)
    np.testing.assert_array_equal(info["action_mask"], [1, 0, 0])
    assert env.action_space["go"].sample(mask=info["action_mask"]) == 0
    env.spec = gymnasium.envs.registration.EnvSpec("equimorph/Counter-v0", entry_point=lambda: counter(num_agents=1))
    check_env(env)


# -- what goes in ------------------------------------------------------------------------------------------------------


def test_any_integer_is_a_choice_and_nothing_is_compiled_anew():
    env, compiled = make("CartPole-v1"), []
    listen = lambda event, *_, **__: compiled.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        env.reset(seed=0)
        env.step(0)
        jax.jit(lambda x: x + 1)(0)
        assert any("compile" in event for event in compiled)
        compiled.clear()
        shown = []
        for one in (1, np.int64(1), np.int8(1), np.uint16(1), np.array(1), jnp.int32(1)):
            env.reset(seed=0)
            shown.append(env.step(one)[0])
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not [event for event in compiled if "compile" in event or "trace" in event]
    for other in shown[1:]:
        np.testing.assert_array_equal(other, shown[0])


def test_equal_environments_share_one_compilation():
    trace = []
    one, two = (GymnasiumEnv(env, env.default_params) for env in (Counter(trace=trace), Counter(trace=trace)))
    shorter = GymnasiumEnv(Counter(trace=trace), Counter().default_params.replace(max_steps_in_episode=jnp.int32(2)))
    action = {"go": [0, 0], "far": np.zeros((2, 2))}
    one.reset(seed=0)
    one.step(action)
    traced = len(trace)
    for env in (two, shorter):
        env.reset(seed=0)
        env.step(action)
    assert shorter.step(action)[3]
    assert len(trace) == traced


def test_parameters_change_with_a_reset_and_stay():
    env = make("BrockMirman-v0")
    env.reset(seed=0)
    assert env.step([0.3])[4]["discount"] == pytest.approx(0.96)
    env.reset(options={"params": {"beta": 0.9}})
    assert env.step([0.3])[4]["discount"] == pytest.approx(0.9)
    env.reset()
    assert env.step([0.3])[4]["discount"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        ("BrockMirman-v0", {"parms": {}}, "unknown reset option of BrockMirman-v0 'parms'. Did you mean 'params'"),
        ("BrockMirman-v0", {"params": {"bta": 0.9}}, "Did you mean 'beta'"),
        ("BrockMirman-v0", {"params": {"beta": 1.5}}, "parameter beta = 1.5 must be finite and lie in"),
        ("BrockMirman-v0", {"params": {"beta": [0.8, 0.9]}}, r"parameter beta must have shape \(\), got \(2,\)"),
        ("BrockMirman-v0", {"params": 0.9}, "must be a dict of parameters by name, got 0.9"),
        ("hazard", {"params": {"rate_min": 0.8}}, "rate_min = 0.8 must be below rate_max = 0.7"),
        ("hazard", {"params": {"rate_max": 0.9}}, "rate_max=0.9 would make the action_space .* which is fixed"),
    ],
)
def test_options_that_do_not_fit_are_refused(case, options, message):
    env = make(case)
    before = env.params
    with pytest.raises(UserError, match=message) as caught:
        env.reset(options=options)
    assert "\n" not in str(caught.value)
    assert env.params is before


def test_what_is_missing_or_misplaced_is_said():
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"no episode has begun; call reset\(\) before step"):
        make("CartPole-v1").step(0)
    with pytest.raises(UserError, match="CartPole-v1 has no picture, so render_mode must be None, got 'rgb_array'"):
        make("CartPole-v1", render_mode="rgb_array")
    with pytest.raises(UserError, match="unknown render_mode of BrockMirman-v0 'rgb'"):
        make("BrockMirman-v0", render_mode="rgb")
    with pytest.raises(UserError, match="was made without a render_mode"):
        make("BrockMirman-v0").render()
    with pytest.raises(UserError, match="autoreset_mode is for vector environments"):
        make("BrockMirman-v0", autoreset_mode="NextStep")
    with pytest.raises(UserError, match=r"expected an equimorph\.envs\.Environment, got CartPole"):
        GymnasiumEnv(*gymnax.make("CartPole-v1"))
    env, params = equimorph.make("BrockMirman-v0")
    with pytest.raises(UserError, match=r"parameter beta must have shape \(\), got \(3,\)"):
        GymnasiumEnv(env, params.replace(beta=jnp.full(3, 0.9)))


def test_a_state_or_reward_of_another_type_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Drifting(Counter):
        def step_env(self, key, state, action, params):
            observation, state, *rest = super().step_env(key, state, action, params)
            return observation, state.replace(time=state.time.astype(float)), *rest

    with pytest.raises(UserError, match=r"state\.time is int32\[\] after a reset and float32\[\] after a step"):
        GymnasiumEnv(Drifting(), Drifting().default_params)

    @dataclasses.dataclass(frozen=True)
    class TwoRewards(Counter):
        num_agents: int = 1

        def step_env(self, key, state, action, params):
            observation, state, reward, *rest = super().step_env(key, state, action, params)
            return observation, state, jnp.stack([reward, reward]), *rest

    with pytest.raises(UserError, match=r"reward must be one number a step, got shape \(2,\)"):
        GymnasiumEnv(TwoRewards(), TwoRewards().default_params)


# -- wrappers, pictures, copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["BrockMirman-v0", "hazard", "CartPole-v1"])
def test_gymnasiums_wrappers_work(case):
    env = make(case)
    chain = [wrappers.RecordEpisodeStatistics, wrappers.NormalizeReward, wrappers.FlattenObservation]
    chain += [wrappers.NormalizeObservation, lambda e: wrappers.TransformReward(e, lambda r: r / 2)]
    if isinstance(env.action_space, gymnasium.spaces.Box):
        chain += [lambda e: wrappers.RescaleAction(e, np.float32(-1), np.float32(1)), wrappers.ClipAction]
    wrapped = wrappers.TimeLimit(env, 3)
    for wrapper in chain:
        wrapped = wrapper(wrapped)
    wrapped.reset(seed=0)
    for _ in range(3):
        observation, _, terminated, truncated, info = wrapped.step(wrapped.action_space.sample())
    assert (terminated, truncated, info["episode"]["l"]) == (False, True, 3)
    assert observation.shape == gymnasium.spaces.utils.flatten_space(env.observation_space).shape
    assert np.all(np.isfinite(observation))


def test_a_video_is_recorded(tmp_path):
    env = make("hazard", render_mode="rgb_array", max_steps_in_episode=2)
    with wrappers.RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda episode: True) as filmed:
        filmed.reset(seed=0)
        while not any(filmed.step(filmed.action_space.sample())[2:4]):
            pass
    assert (tmp_path / "videos" / "rl-video-episode-0.mp4").stat().st_size > 0


def test_pictures_follow_the_state():
    env = make("BrockMirman-v0", render_mode="rgb_array")
    with pytest.raises(gymnasium.error.ResetNeeded, match="no episode has begun"):
        env.render()
    env.reset(seed=0)
    before = env.render()
    env.step([0.9])
    inner, params = equimorph.make("BrockMirman-v0")
    np.testing.assert_array_equal(env.render(), inner.render(env.state, params))
    assert np.any(env.render() != before)
    assert env.metadata["render_modes"] == ["human", "rgb_array"]
    assert make("CartPole-v1").metadata["render_modes"] == []
    assert GymnasiumEnv.metadata == gymnasium.Env.metadata


def test_a_window_needs_pygame(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"pip install 'equimorph\[render\]'"):
        make("BrockMirman-v0", render_mode="human")


def test_a_window_shows_every_frame(monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make("hazard", render_mode="human")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert env.render() is None
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, env.env.render(env.state, env.params))
    env.close()
    env.close()
    assert not pygame.display.get_init()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_their_own_way(copied):
    env = make("hazard")
    env.reset(seed=0)
    action = env.action_space.high
    env.step(action)
    twin = copied(env)
    expected = [env.step(action)[0], env.step(action)[0]]
    for observation in expected:
        np.testing.assert_array_equal(twin.step(action)[0], observation)


@pytest.mark.slow  # two processes that import JAX
def test_gymnasiums_own_vector_environments_take_it():
    envs = gymnasium.make_vec("equimorph/BrockMirman-v0", num_envs=2, vectorization_mode="sync")
    expected = envs.reset(seed=0)[0]
    single = [make("BrockMirman-v0").reset(seed=s)[0] for s in (0, 1)]
    np.testing.assert_array_equal(expected, single)
    make_one = [lambda: gymnasium.make("equimorph:equimorph/BrockMirman-v0")] * 2
    others = gymnasium.vector.AsyncVectorEnv(make_one, context="spawn")
    try:
        np.testing.assert_array_equal(others.reset(seed=0)[0], expected)
        np.testing.assert_allclose(others.step([[0.3], [0.2]])[0], envs.step([[0.3], [0.2]])[0], rtol=1e-6)
    finally:
        others.close()

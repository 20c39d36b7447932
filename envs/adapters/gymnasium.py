"""Gymnasium, out: any environment as a `gymnasium.Env`, and what `gymnasium.make` and `make_vec` call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from ...errors import UserError
from ..catalog import NAMESPACE, is_foreign
from ..environment import Environment, EnvParams, EnvState
from ..registry import make
from ._gymnasium_actions import as_action
from ._gymnasium_common import (
    FRAMES_PER_SECOND,
    Door,
    ResetNeededError,
    as_arrays,
    check_render_mode,
    has_picture,
    has_shapeless,
    picture,
    split_options,
)
from ._gymnasium_program import draw_words, program
from ._gymnasium_window import Window
from .gymnasium_vector import GymnasiumVectorEnv


class GymnasiumEnv(gymnasium.Env):
    """An environment of ours behind Gymnasium's interface: NumPy in, NumPy out, compiled in between.

    Observations are writable arrays of the space's type, the reward a float, the flags bools. The step that ends an
    episode returns that episode's last observation, and the next call must be `reset`. Nothing else decides on the end:
    put no `TimeLimit` on top, but make the environment with another `max_steps_in_episode`.

    Several agents are one controller here: observation and action have the agent axis, `[A, ...]`, and the reward is
    the mean of what the living earned, 0 where nobody lived.

    A continuous action out of its bounds is clipped and `info["action_clipped"]` says so; NaN, a choice that does not
    exist, another shape or kind is refused. `info` holds what the environment tells of the step, as numbers and arrays,
    `discount` (of this transition), and, after a reset too, `action_mask` (int8, as `action_space.sample` takes it)
    and `agent_mask` (bool[A]), where the environment has them.

    `reset(seed=s)` makes what follows a function of `s` and the actions; a later reset without a seed carries on.
    `reset(options={"params": {"beta": 0.9}})` changes parameters from that episode on; none that would change a space.

    Args:
        env: the environment.
        params: its parameters.
        render_mode: None, "rgb_array" (`render()` returns uint8[H, W, 3]) or "human" (a window follows every step;
            needs pygame).

    Raises:
        UserError: any of what is refused above, in one line.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("equimorph/BrockMirman-v0", beta=0.9, max_steps_in_episode=50)
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step([0.3])
        >>> terminated, truncated, round(info["discount"], 3)
        (False, False, 0.9)
    """

    def __init__(self, env: Environment, params: EnvParams, render_mode: str | None = None):
        self._door = Door(env, params)
        self.action_space = self._door.action_space
        self.observation_space = self._door.observation_space
        modes = ["human", "rgb_array"] if has_picture(env) else []
        self.metadata = {"render_modes": modes, "render_fps": FRAMES_PER_SECOND}
        check_render_mode(env, render_mode, modes)
        self.render_mode = render_mode
        self._window = Window(env.name, FRAMES_PER_SECOND) if render_mode == "human" else None
        self._name = env.name
        self._shapeless = has_shapeless(self.observation_space)
        self._running: bool | None = None  # None before the first reset
        self._stream_of: np.random.Generator | None = None
        self._bind()
        self._memory: Any = self._program.empty()

    def _bind(self) -> None:
        self._program = program(self._door.env, self._door.params, self.action_space)
        self._send_params()

    def _send_params(self) -> None:
        self._params = jax.device_put(self._program.parameters.write(self._door.params))

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = ("_program", "_params", "_window")
        return {name: value for name, value in vars(self).items() if name not in rebuilt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._window = Window(self._name, FRAMES_PER_SECOND) if self.render_mode == "human" else None
        self._bind()

    @property
    def env(self) -> Environment:
        """The environment behind the door."""
        return self._door.env

    @property
    def params(self) -> EnvParams:
        """The parameters of the current episode."""
        return self._door.params

    @property
    def state(self) -> EnvState:
        """The environment's state.

        Raises:
            ResetNeededError: before the first reset.
        """
        if self._running is None:
            raise ResetNeededError(f"{self._name}: no episode has begun; call reset() first")
        return self._program.state(self._memory)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: begins a new stream of random numbers; None carries on with the present one.
            options: `{"params": {name: value}}`, for this episode and those after it.

        Returns:
            `(observation, info)`.

        Raises:
            UserError: an option or parameter that is unknown or unfit.
        """
        options = split_options(self._name, options, ("params",))
        if "params" in options:
            self._door.replace_params(options["params"])
            self._send_params()
        super().reset(seed=seed)
        if self._stream_of is not self.np_random:  # a seed makes a new generator, and so may the user
            self._stream_of = self.np_random
            self._memory = self._program.seed(self._memory, draw_words(self.np_random))
        self._memory = self._program.reset(self._memory, self._params)
        shown = self._program.look(self._memory, scalars=True)
        observation, info = shown.observation, shown.standing
        if self._shapeless:
            observation = as_arrays(self.observation_space, observation)
        self._running = True
        if self._window is not None:
            self._window.show(self._frame())
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One transition.

        Args:
            action: of `action_space`, in any integer type where it is discrete.

        Returns:
            `(observation, reward, terminated, truncated, info)`.

        Raises:
            UserError: an action that is refused.
            ResetNeededError: no episode is under way.
        """
        if not self._running:
            why = "no episode has begun" if self._running is None else "the episode has ended"
            raise ResetNeededError(f"{self._name}: {why}; call reset() before step()")
        action = as_action(self.action_space, action, self._name)
        self._memory = self._program.step(self._memory, action, self._params)
        shown = self._program.look(self._memory, scalars=True)
        observation, reward, terminated, truncated, info, standing = shown
        if self._shapeless:
            observation = as_arrays(self.observation_space, observation)
        self._running = not (terminated or truncated)
        info.update(standing)
        if self._window is not None:
            self._window.show(self._frame())
        return observation, reward, terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """The present state, uint8[H, W, 3]; in "human" mode it is in the window already, and None is returned.

        Raises:
            UserError: the environment was made without a render mode.
            ResetNeededError: before the first reset.
        """
        if self.render_mode is None:
            raise UserError(f"{self._name} was made without a render_mode; make it with render_mode='rgb_array'")
        if self._window is not None:
            self._window.show(self._frame())
            return None
        return self._frame()

    def _frame(self) -> np.ndarray:
        return picture(self._door.env, self.state, self._door.params)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()


def make_gymnasium(
    id: str,
    *,
    calibration: str | None = None,
    num_envs: int | None = None,
    render_mode: str | None = None,
    autoreset_mode: AutoresetMode | str | None = None,
    **overrides: Any,
) -> GymnasiumEnv | GymnasiumVectorEnv:
    """What `equimorph.make(id, api="gymnasium")` returns; no wrapper is around it.

    Args:
        id: any that `equimorph.make` knows.
        calibration: a named calibration.
        num_envs: as many environments in one; None is a single one.
        render_mode: see `GymnasiumEnv`.
        autoreset_mode: see `GymnasiumVectorEnv`; only with `num_envs`.
        **overrides: constructor options and parameters.

    Raises:
        UserError: what does not exist or does not fit, by name.

    Example:
        >>> make_gymnasium("CartPole-v1", num_envs=3).action_space
        MultiDiscrete([2 2 2])
    """
    kwargs: dict[str, Any] = dict(overrides)
    if calibration is not None:
        kwargs["calibration"] = calibration
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if num_envs is None:
        if autoreset_mode is not None:
            raise UserError("autoreset_mode is for vector environments; give num_envs as well, or leave it out")
        env = single_environment(id, **kwargs)
    else:
        if autoreset_mode is not None:
            kwargs["autoreset_mode"] = autoreset_mode
        env = vector_environment(num_envs, id, **kwargs)
        kwargs["num_envs"] = num_envs
    adapter = "equimorph.envs.adapters.gymnasium"
    env.spec = EnvSpec(
        f"{NAMESPACE}/{id if is_foreign(id) else id.rpartition(':')[2]}",
        entry_point=f"{adapter}:single_environment",
        vector_entry_point=f"{adapter}:vector_environment",
        order_enforce=False,
        disable_env_checker=True,
        kwargs={"env_id": id, **kwargs},
    )
    return env


def single_environment(
    env_id: str, *, calibration: str | None = None, render_mode: str | None = None, **overrides: Any
) -> GymnasiumEnv:
    """The entry point of `gymnasium.make("equimorph/" + env_id, ...)`; arguments as of `make_gymnasium`."""
    return GymnasiumEnv(*make(env_id, calibration=calibration, **overrides), render_mode=render_mode)


def vector_environment(
    num_envs: int,
    env_id: str,
    *,
    calibration: str | None = None,
    render_mode: str | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    max_episode_steps: int | None = None,
    **overrides: Any,
) -> GymnasiumVectorEnv:
    """The entry point of `gymnasium.make_vec("equimorph/" + env_id, ...)`; arguments as of `make_gymnasium`.

    `max_episode_steps`, which Gymnasium passes on, becomes the environment's own `max_steps_in_episode`; None and -1
    leave that as it is.

    Raises:
        UserError: both are given and differ.
    """
    if max_episode_steps not in (None, -1):
        own = overrides.setdefault("max_steps_in_episode", max_episode_steps)
        if own != max_episode_steps:
            raise UserError(
                f"{env_id}: max_episode_steps={max_episode_steps} and max_steps_in_episode={own} name the same limit; "
                "give one of them"
            )
    env, params = make(env_id, calibration=calibration, **overrides)
    return GymnasiumVectorEnv(env, params, num_envs, autoreset_mode=autoreset_mode, render_mode=render_mode)

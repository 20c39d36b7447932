"""Gymnasium, out: many equal environments as one `gymnasium.vector.VectorEnv`, compiled as one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from ...errors import UserError, unknown
from ..environment import Environment, EnvParams, EnvState
from ._gymnasium_actions import as_action
from ._gymnasium_common import (
    FRAMES_PER_SECOND,
    Door,
    ResetNeededError,
    check_render_mode,
    has_picture,
    picture,
    split_options,
)
from ._gymnasium_program import draw_words, vector_program


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv):
    """N equal environments behind Gymnasium's vector interface, NumPy in and NumPy out.

    Environment i behaves as a `GymnasiumEnv` of its own: with `reset(seed=s)` as one that was seeded with s + i. What
    `GymnasiumEnv` says of observations, rewards, actions and info holds here with a leading axis N; each entry of info
    has its mask, `_name`, bool[N], and is 0 where that is false. Parameters are shared by all.

    The step that ends an episode also tells its return and length, `info["episode_statistics"] = {"r": float[N],
    "l": int[N]}` with the mask `_episode_statistics`. (The key "episode" is `RecordEpisodeStatistics`' own.)

    Args:
        env: the environment.
        params: its parameters.
        num_envs: N.
        autoreset_mode: what follows the end of an episode, as Gymnasium defines it. NEXT_STEP: the next step resets
            that environment whatever its action, with reward 0. SAME_STEP: the same step resets it, and returns the new
            observation; `info["final_obs"]` and `info["final_info"]` hold what ended. DISABLED: nothing; the user calls
            `reset(options={"reset_mask": ended})`.
        render_mode: None or "rgb_array".

    Raises:
        UserError: what does not exist or does not fit, in one line.

    Example:
        >>> import equimorph
        >>> envs = equimorph.make("BrockMirman-v0", api="gymnasium", num_envs=3)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations, rewards, terminated, truncated, infos = envs.step([[0.3], [0.2], [0.4]])
        >>> observations.shape, rewards.shape, int(rewards.argmax())
        ((3, 2), (3,), 1)
    """

    def __init__(
        self,
        env: Environment,
        params: EnvParams,
        num_envs: int,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ):
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise UserError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
        self._door = Door(env, params)
        self._name = env.name
        self.num_envs = num_envs
        self.single_action_space = self._door.action_space
        self.single_observation_space = self._door.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        # A window that shows one of many would hide the others.
        modes = ["rgb_array"] if has_picture(env) else []
        self._mode = _mode(autoreset_mode)
        self.metadata = {"render_modes": modes, "render_fps": FRAMES_PER_SECOND, "autoreset_mode": self._mode}
        check_render_mode(env, render_mode, modes)
        self.render_mode = render_mode
        self._bind()
        self._memory: Any = self._program.empty()
        self._stream_of: np.random.Generator | None = None
        self._begun = False
        self._ended = np.zeros(num_envs, bool)
        self._over = self._ended.nonzero()[0]  # the same as indices
        # Of the running episodes; `_since` is when they began, counted in `_steps`.
        self._returns, self._since, self._steps = np.zeros(num_envs), np.zeros(num_envs, int), 0

    def _bind(self) -> None:
        self._program = vector_program(self._door.env, self._door.params, self.action_space, self.num_envs)
        self._send_params()

    def _send_params(self) -> None:
        self._params = jax.device_put(self._program.parameters.write(self._door.params))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_program", "_params")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind()

    @property
    def env(self) -> Environment:
        """The environment behind the door."""
        return self._door.env

    @property
    def params(self) -> EnvParams:
        """The parameters of all environments."""
        return self._door.params

    @property
    def state(self) -> EnvState:
        """The environments' states, batched.

        Raises:
            ResetNeededError: before the first reset.
        """
        if not self._begun:
            raise ResetNeededError(f"{self._name}: no episode has begun; call reset() first")
        return self._program.state(self._memory)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes.

        Args:
            seed: s begins the streams of s, s + 1, ...; a sequence has one seed for each environment, None where its
                present stream carries on.
            options: `{"reset_mask": bool[N]}`, the environments that are meant, all without it; `{"params": {name:
                value}}`, from these episodes on, for all.

        Returns:
            `(observations, infos)`; those of environments that are not meant are what they were.

        Raises:
            UserError: an option, parameter, mask or list of seeds that does not fit.
        """
        options = split_options(self._name, options, ("params", "reset_mask"))
        mask = self._reset_mask(options.get("reset_mask"))
        everyone = bool(mask.all())
        if not everyone and not self._begun:
            raise ResetNeededError(f"{self._name}: no episode has begun; call reset() without reset_mask first")
        if "params" in options:
            if not everyone:
                raise UserError(f"{self._name}: all environments share their parameters; leave reset_mask out")
            self._door.replace_params(options["params"])
            self._send_params()
        self._reseed(seed, mask)
        observation, standing = self._restart(mask.nonzero()[0])
        if not everyone:
            for leaf in jax.tree.leaves(standing):
                leaf[~mask] = 0
        self._begun = True
        self._ended = self._ended & ~mask
        self._over = self._ended.nonzero()[0]
        self._returns[mask], self._since[mask] = 0, self._steps
        return observation, _masked(standing, mask)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One transition of every environment.

        Args:
            actions: of `action_space`.

        Returns:
            `(observations, rewards float64[N], terminated bool[N], truncated bool[N], infos)`.

        Raises:
            UserError: an action that is refused.
            ResetNeededError: no episode has begun, or, where nobody resets, one has ended.
        """
        if not self._begun:
            raise ResetNeededError(f"{self._name}: no episode has begun; call reset() before step()")
        actions = as_action(self.action_space, actions, self._name)
        program, mode, was, idle = self._program, self._mode, self._ended, len(self._over)
        if not idle:
            self._memory = program.step(self._memory, program.asked[0].write(actions), self._params)
        elif mode is AutoresetMode.NEXT_STEP:
            size, rows = program.rows(self._over)
            asked = program.asked[size].write((actions, rows))
            self._memory = program.step_and_restart[size](self._memory, asked, self._params)
        else:
            first = self._over[:5].tolist()
            raise ResetNeededError(
                f"{self._name}: the episodes of {idle} environments have ended (the first: {first}); call "
                "reset(options={'reset_mask': terminated | truncated}) before step()"
            )
        observation, reward, terminated, truncated, events, standing = program.look(self._memory)
        ended = terminated | truncated
        over = ended.nonzero()[0]
        infos, told = self._count(reward, ended, over), ~was
        if len(over) and mode is AutoresetMode.SAME_STEP:
            infos |= _final(ended, over, observation, {**events, **standing})
            observation, standing = self._restart(over)
            for leaf in jax.tree.leaves(events):
                leaf[over] = 0
            told, idle = ~ended, len(over)
        else:
            self._ended, self._over = ended, over
        if idle < self.num_envs:
            infos |= _masked(events, told)
        if standing:
            infos |= _masked(standing, np.ones(self.num_envs, bool))
        return observation, reward.astype(np.float64), terminated, truncated, infos

    def _restart(self, index: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Reset some environments; the observations and the standing of all."""
        self._memory = self._program.reset(self._memory, self._program.rows(index)[1], self._params)
        shown = self._program.look(self._memory)
        return shown.observation, shown.standing

    def _count(self, reward: np.ndarray, ended: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Add a step to the running episodes, and tell of those that end with it."""
        self._steps += 1
        self._returns += reward
        if not len(over):
            return {}
        returns, lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, int)
        returns[over], lengths[over] = self._returns[over], self._steps - self._since[over]
        self._returns[over] = 0
        # The step that only resets is no step of an episode.
        self._since[over] = self._steps + (self._mode is AutoresetMode.NEXT_STEP)
        return {"episode_statistics": {"r": returns, "l": lengths}, "_episode_statistics": ended.copy()}

    def render(self) -> tuple[np.ndarray, ...]:
        """The present states, one uint8[H, W, 3] each.

        Raises:
            UserError: the environments were made without a render mode.
            ResetNeededError: before the first reset.
        """
        if self.render_mode is None:
            raise UserError(f"{self._name} was made without a render_mode; make it with render_mode='rgb_array'")
        state = self.state
        one = lambda i: jax.tree.map(lambda x: x[i], state)  # noqa: E731
        return tuple(picture(self._door.env, one(i), self._door.params) for i in range(self.num_envs))

    def _reset_mask(self, mask: Any) -> np.ndarray:
        if mask is None:
            return np.ones(self.num_envs, bool)
        array = np.array(mask)
        if array.dtype != bool or array.shape != (self.num_envs,):
            raise UserError(
                f"{self._name}: reset_mask must be bool[{self.num_envs}], got {array.dtype}{list(array.shape)}"
            )
        if not array.any():
            raise UserError(f"{self._name}: reset_mask is false everywhere; leave the reset out")
        return array

    def _reseed(self, seed: int | Sequence[int | None] | None, mask: np.ndarray) -> None:
        """Begin the streams that `seed` asks for in `mask`, and those of environments that have none."""
        if seed is None or isinstance(seed, (int, np.integer)):
            super().reset(seed=None if seed is None else int(seed))
            seeds: list[Any] = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = list(seed) if isinstance(seed, (Sequence, np.ndarray)) and not isinstance(seed, str) else [seed]
            wrong = [s for s in seeds if not (s is None or (isinstance(s, (int, np.integer)) and s >= 0))]
            if wrong:
                raise UserError(f"{self._name}: a seed must be a whole number of at least 0, or None, got {wrong[0]!r}")
            if len(seeds) != self.num_envs:
                raise UserError(f"{self._name}: {self.num_envs} environments need as many seeds, got {len(seeds)}")
        fresh = self._stream_of is not self.np_random  # never seeded, or the user has put another generator there
        self._stream_of = self.np_random
        which = mask & np.array([fresh or s is not None for s in seeds])
        if not which.any():
            return
        words = np.zeros((self.num_envs, 2), np.uint32)
        if fresh and None in seeds:
            words = draw_words(self.np_random, (self.num_envs,))
        for i in np.flatnonzero(which):
            if seeds[i] is not None:
                words[i] = draw_words(seeding.np_random(int(seeds[i]))[0])
        self._memory = self._program.seed(self._memory, words, which)


def _mode(mode: Any) -> AutoresetMode:
    """The mode, given as it is, by its value ("SameStep") or by its name ("SAME_STEP")."""
    if isinstance(mode, str) and mode in AutoresetMode.__members__:
        return AutoresetMode[mode]
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise unknown("autoreset_mode", str(mode), [known.value for known in AutoresetMode]) from None


def _masked(info: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Every entry beside the mask that says for which environments it holds."""
    told = {}
    for name, value in info.items():
        told[name] = _masked(value, mask) if isinstance(value, dict) else value
        told[f"_{name}"] = mask.copy()
    return told


def _final(ended: np.ndarray, over: np.ndarray, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
    """What the episodes that ended showed last, as Gymnasium's own vector environments tell it."""
    last = np.full(len(ended), None, object)
    leaves, treedef = jax.tree.flatten(jax.tree.map(lambda x: x[over], observation))
    for row, i in enumerate(over):
        last[i] = treedef.unflatten([leaf[row] for leaf in leaves])
    info = jax.tree.map(np.copy, info)
    for leaf in jax.tree.leaves(info):
        leaf[~ended] = 0
    told = _masked(info, ended)
    return {"final_obs": last, "_final_obs": ended.copy(), "final_info": told, "_final_info": ended.copy()}

"""Stable-Baselines3: our vector environments behind its `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from ...errors import UserError
from ._optional import require

vec_env: Any = require("stable_baselines3.common.vec_env", "compare")


class StableBaselines3VecEnv(vec_env.VecEnv):
    """A Gymnasium vector environment that resets within the step, as Stable-Baselines3 (and SBX) trains on it.

    One compiled call steps all environments, where `DummyVecEnv` calls each. The last observation of an episode is in
    `infos[i]["terminal_observation"]`, and `infos[i]["TimeLimit.truncated"]` tells whether it was cut off: with both,
    values are bootstrapped as they should be.

    Args:
        env: such as `equimorph.make(id, api="gymnasium", num_envs=8, autoreset_mode="SameStep")`, wrapped or not.

    Raises:
        UserError: the environment resets in another way, or Stable-Baselines3 is not installed.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv):
        make = "equimorph.make(id, api='gymnasium', num_envs=8, autoreset_mode='SameStep')"
        if not isinstance(env, gymnasium.vector.VectorEnv):
            raise UserError(f"expected a gymnasium.vector.VectorEnv, got {type(env).__name__}; see {make}")
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise UserError(
                f"Stable-Baselines3 needs a vector environment with autoreset_mode SAME_STEP, and this one has {mode}; "
                f"see {make}"
            )
        self.env = env
        self._actions: Any = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """First observations `[N, ...]`, from the seeds that `seed` set."""
        seeded = any(seed is not None for seed in self._seeds)
        observation, _ = self.env.reset(seed=list(self._seeds) if seeded else None)  # pyright: ignore
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        """Keep `[N, ...]` actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Observations, rewards, ends of episodes and infos."""
        observation, reward, terminated, truncated, found = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        done = terminated | truncated
        for i in np.flatnonzero(done):
            infos[i]["terminal_observation"] = found["final_obs"][i]
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return observation, np.asarray(reward, np.float32), done, infos

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each environment."""
        frames: Any = self.env.render()
        return list(frames) if frames is not None else [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the vector environment, once for each index: they share it."""
        return [getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: one compiled environment has no attributes of its parts."""
        raise UserError(f"cannot set {attr_name!r} of single environments: all of them are one; make it anew instead")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refused, for the same reason."""
        raise UserError(f"cannot call {method_name!r} of single environments: all of them are one")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether a wrapper is around them; wrappers of single environments cannot be."""
        return [False] * len(list(self._get_indices(indices)))

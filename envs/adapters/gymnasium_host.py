"""Gymnasium's environments, in: learners know their spaces; their steps happen on the host."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...errors import UserError, did_you_mean
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, canonical_params
from ..registry import override_params
from ._construct import MISTAKES, construct, split_overrides
from ._gymnasium_encoding import decode, encode, encoded_space, learnable_action_space, shapes
from ._typed import ByConfiguration, hashable

UNLIMITED = 2**31 - 1
"""`max_steps_in_episode` of an environment without a time limit."""


@struct.dataclass
class HostState(EnvState):
    """What is known here of an environment on the host: steps since reset, and what it last showed."""

    observation: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class HostEnvironment(ByConfiguration, Environment):
    """An environment of Gymnasium's, with a single agent, known to learners and stepped outside of JAX.

    Observations are what `encode` makes of Gymnasium's: a choice among n is one-hot, everything else as it is. Two made
    from the same id with the same arguments are equal. Action masks in `info` are not read.

    Attributes:
        id: Gymnasium's id.
        options: keyword arguments of `gymnasium.make`.
        observations, actions: Gymnasium's spaces.
        time_limit: steps until Gymnasium truncates, `UNLIMITED` where it does not.
    """

    id: str
    options: dict[str, Any]
    observations: gymnasium.Space
    actions: gymnasium.Space
    time_limit: int

    _supports_transition_gradients: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The id, with "gymnasium:" in front."""
        return f"gymnasium:{self.id}"

    def _configuration(self) -> tuple:
        return (self.id, hashable(self.options), str(self.observations), str(self.actions), self.time_limit)

    @property
    def default_params(self) -> EnvParams:
        """The time limit."""
        return canonical_params(EnvParams(max_steps_in_episode=self.time_limit))

    @property
    def capabilities(self) -> frozenset[str]:
        """That learners' rollouts are collected on the host."""
        return frozenset({"host"})

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """Gymnasium's, discrete actions counted from 0."""
        return learnable_action_space(self.name, self.actions)

    def agent_observation_space(self, params: EnvParams) -> spaces.Space:
        """What `encode` returns."""
        return encoded_space(self.name, self.observations)

    def encode(self, observation: Any) -> PyTree[np.ndarray]:
        """Gymnasium's observation as learners, and `Run.policy`, see it; with any batch axes in front."""
        return encode(self.observations, observation)

    def decode(self, action: Any) -> np.ndarray:
        """A learner's action as Gymnasium takes it; with any batch axes in front."""
        return decode(self.actions, action)

    def simulator(self, params: EnvParams, num_envs: int, seeds: Sequence[int]) -> Simulator:
        """`num_envs` of them, running.

        Args:
            params: with the time limit that they get.
            num_envs: N.
            seeds: one for each.
        """
        return Simulator(self, params, num_envs, seeds)

    def observe(self, key: Array, state: HostState, action: PyTree | None, params: EnvParams) -> PyTree:
        """What the environment last showed."""
        return state.observation

    def reset_env(self, key: Array, params: EnvParams) -> tuple[PyTree, HostState]:
        """Only described: traced, it has the shapes of a reset, from which learners size their networks.

        Raises:
            UserError: when called; compiled, when it runs.
        """
        if not isinstance(key, jax.core.Tracer):
            self._refuse()
        like = shapes(encoded_space(self.name, self.observations))
        observation = jax.pure_callback(self._refuse, like, vmap_method="broadcast_all")
        return observation, HostState(jnp.int32(0), observation)

    def reset(self, key: Array, params: EnvParams | None = None) -> tuple[PyTree, HostState]:
        """As `reset_env`, uncompiled, so that the refusal is the user's error and not a callback's."""
        return self.reset_env(key, self.default_params if params is None else params)

    def step_env(
        self, key: Array, state: HostState, action: PyTree, params: EnvParams
    ) -> tuple[PyTree, HostState, Array, Array, dict]:
        """Refused.

        Raises:
            UserError: always.
        """
        raise UserError(self._refusal())

    def _refuse(self) -> Any:
        raise UserError(self._refusal())

    def _refusal(self) -> str:
        return (
            f"{self.name} is stepped on the host, not in JAX; train it by equimorph.train and score it by "
            f"equimorph.evaluate, or step it by gymnasium.make({self.id!r})"
        )


class Outcome(NamedTuple):
    """One step of N environments on the host, before any reset.

    Attributes:
        observation: `[N, ...]`, an episode's last one where it ended.
        reward, terminated, truncated: `[N]`.
    """

    observation: PyTree
    reward: Float[np.ndarray, " N"]
    terminated: Bool[np.ndarray, " N"]
    truncated: Bool[np.ndarray, " N"]


class Simulator:
    """N environments on the host, stepped together; each begins anew in the step that ends its episode.

    Attributes:
        observation: `[N, ...]`, encoded, what learners act on next.
        time: `[N]`, steps since reset.
    """

    observation: PyTree
    time: Int[np.ndarray, " N"]

    def __init__(self, env: HostEnvironment, params: EnvParams, num_envs: int, seeds: Sequence[int]):
        self._env = env
        self._vector = construct(env.name, lambda: _vector(env, int(params.max_steps_in_episode), num_envs))
        self._begin([int(seed) for seed in seeds])

    def _begin(self, seeds: list[int] | None) -> None:
        observation, _ = self._vector.reset(seed=seeds)  # pyright: ignore[reportArgumentType] - a list is documented
        self.observation = self._env.encode(observation)
        self.time = np.zeros((self._vector.num_envs,), np.int32)

    def restart(self) -> None:
        """Fresh episodes everywhere; random streams go on."""
        self._begin(None)

    def step(self, action: np.ndarray) -> Outcome:
        """Take learners' actions, `[N, ...]`."""
        shown, reward, terminated, truncated, info = self._vector.step(self._env.decode(action))
        self.observation = self._env.encode(shown)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        done = terminated | truncated
        self.time = np.where(done, 0, self.time + 1).astype(np.int32)
        last = self.observation
        if done.any():
            last = jax.tree.map(np.array, last)
            for index in np.flatnonzero(done):
                ended = self._env.encode(info["final_obs"][index])
                jax.tree.map(lambda batch, one, i=index: batch.__setitem__(i, one), last, ended)
        return Outcome(last, np.asarray(reward, jnp.result_type(float)), terminated, truncated)

    def close(self) -> None:
        """Let the environments free what they hold."""
        self._vector.close()


def _vector(env: HostEnvironment, limit: int, num_envs: int) -> VectorEnv:
    """Gymnasium's vector environment that resets in the step that ends an episode, and keeps its last observation."""
    spec = gymnasium.registry[env.id]
    if spec.entry_point is not None:
        steps = -1 if limit == UNLIMITED else limit  # Gymnasium's -1 is none

        def one() -> gymnasium.Env:
            return gymnasium.make(spec, max_episode_steps=steps, **env.options)

        return SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return _vector_only(spec, env.options, limit, num_envs)


def _vector_only(spec: EnvSpec, options: dict[str, Any], limit: int, num_envs: int) -> VectorEnv:
    limits = {} if limit == UNLIMITED else {"max_episode_steps": limit}
    made = gymnasium.make_vec(spec, num_envs=num_envs, **limits, **options)
    mode = made.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.SAME_STEP:
        made.close()
        raise UserError(
            f"gymnasium:{spec.id} exists as a vector environment only, which resets in mode {mode}; it can be trained "
            "in mode AutoresetMode.SAME_STEP, which keeps each episode's last observation"
        )
    return made


def make_host(name: str, **overrides: Any) -> tuple[HostEnvironment, EnvParams]:
    """An environment of Gymnasium's that learners can be trained on.

    Args:
        name: an id of Gymnasium's, or "module:id" with a module that registers it.
        **overrides: keyword arguments of `gymnasium.make(name)`, and `max_steps_in_episode`, which is Gymnasium's
            `max_episode_steps`.

    Raises:
        UserError: an unknown id or option, an environment that cannot be made, or spaces that learners cannot take.
    """
    spec = _spec(name)
    id, limit = f"gymnasium:{spec.id}", spec.max_episode_steps
    overrides = _in_our_words(id, overrides)
    params = EnvParams(max_steps_in_episode=UNLIMITED if limit is None else limit)
    mistakes = (*MISTAKES, gymnasium.error.Error)
    creator: Any = spec.entry_point or spec.vector_entry_point
    if isinstance(creator, str):
        creator = construct(id, lambda: load_env_creator(creator), mistakes)
    options, values = split_overrides(id, creator, params, overrides, ["disable_env_checker"])

    def probe() -> tuple[gymnasium.Space, gymnasium.Space]:
        if spec.entry_point is None:
            several = _vector_only(spec, options, params.max_steps_in_episode, 1)
            several.close()
            return several.single_observation_space, several.single_action_space
        one = gymnasium.make(spec, **options)
        one.close()
        return one.observation_space, one.action_space

    observations, actions = construct(id, probe, mistakes)
    environment = HostEnvironment(spec.id, options, observations, actions, params.max_steps_in_episode)
    params = override_params(id, environment.default_params, values, list(options))
    for space in (environment.agent_observation_space, environment.agent_action_space):
        space(params)  # what learners cannot take is refused here
    return environment, params


def _in_our_words(id: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides with Gymnasium's name of the time limit replaced by ours."""
    if "max_episode_steps" not in overrides:
        return overrides
    if "max_steps_in_episode" in overrides:
        raise UserError(f"{id}: max_episode_steps and max_steps_in_episode are both set; keep max_steps_in_episode")
    rest = {name: value for name, value in overrides.items() if name != "max_episode_steps"}
    limit = overrides["max_episode_steps"]
    return rest | {"max_steps_in_episode": UNLIMITED if limit == -1 else limit}


def _spec(name: str) -> EnvSpec:
    """What Gymnasium has registered under an id.

    Raises:
        UserError: nothing, or the module cannot be imported.
    """
    module, _, id = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(f"cannot import {module!r}, which should register {id!r} with Gymnasium: {error}") from None
    try:
        return gymnasium.spec(id)
    except gymnasium.error.Error as error:
        found = " ".join(str(error).split())
        hint = "" if "`" in found else did_you_mean(id, gymnasium.registry)
        raise UserError(f"gymnasium:{name} is not known to Gymnasium: {found}{'.' if hint else ''}{hint}") from None

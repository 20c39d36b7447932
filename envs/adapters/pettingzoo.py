"""PettingZoo, out: our environments as parallel environments, their agents by name.

The turn-based interface is PettingZoo's own conversion:

    >>> import equimorph
    >>> from pettingzoo.utils import parallel_to_aec
    >>> aec = parallel_to_aec(equimorph.make("CellCount-v0", api="pettingzoo"))
"""

from __future__ import annotations

import copy
import functools
import re
import zlib
from typing import TYPE_CHECKING, Any

import gymnasium
import jax
import numpy as np
from gymnasium.utils import seeding
from jaxtyping import Array, Float, PyTree, UInt8

from ...errors import UserError, did_you_mean
from ..environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis
from ..registry import make
from ._agents import Roster, agent_name, split_info, to_element
from ._gymnasium_actions import as_action
from ._gymnasium_common import check_render_mode, has_picture, picture
from ._optional import require
from ._spaces import to_gymnasium

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv
else:
    ParallelEnv = require("pettingzoo", "pettingzoo").ParallelEnv

# Beyond this many names there is no list of them, as PettingZoo has it for environments that generate agents.
LONGEST_LIST = 100_000


class PettingZooEnv(ParallelEnv):
    """One of our environments as a PettingZoo parallel environment, NumPy in and out.

    An agent's name is its role, the slot it was born in and its generation there, "agent_3_1": a slot that is vacated
    and taken again has a new agent, and one that moves to another slot keeps its name. An agent that is gone is
    reported once more, with `terminated` and the observation that it saw last, and leaves `agents`. Those born into a
    step that ends the episode never act, and are not listed. Where everybody is gone before the end, `step({})` goes
    on.

    `infos` have what the environment tells (each agent its own entry where there is one per agent), and `action_mask`,
    int8, where some actions can be illegal. An action beyond a Box's bounds is the environment's to clip, and flagged
    in `action_clipped`; what an illegal one does is up to the environment.

    `reset` draws the key of an episode from a generator that `seed` makes: `key` is then split in two at the reset and
    at every step, and the second half goes to `reset_env` or `step_env`. Where a seed was given, the action spaces of
    those born in the episode are seeded too, so that sampling from them is reproducible.

    Args:
        env: the environment.
        params: its parameters.
        render_mode: "rgb_array", where the environment has a picture, or None.

    Attributes:
        env, params: as given.
        env_state: the environment's state; None before the first reset.
        key: what the next step splits; None before the first reset.
        agents: the living, in the order of their births.
        possible_agents: every name that an episode of `max_steps_in_episode` steps can bring forth. Missing, as
            PettingZoo has it for generated agents, where these are more than 100 000.
        state_space: of `state()`.

    Raises:
        UserError: a render mode that the environment does not have, or a space without a twin in Gymnasium.
    """

    def __init__(self, env: Environment, params: EnvParams, render_mode: str | None = None):
        modes = ["rgb_array"] if has_picture(env) else []
        check_render_mode(env, render_mode, modes)
        self.metadata = {"name": env.name, "render_modes": modes, "render_fps": 4, "is_parallelizable": True}
        self.env, self.params, self.render_mode = env, params, render_mode
        self.env_state: EnvState | None = None
        self.key: Array | None = None
        self.agents: list[str] = []
        self._roster: Roster | None = None
        self._observations: dict[str, Any] = {}
        self._over = False
        self._rng: np.random.Generator | None = None
        self._seed: int | None = None
        self._observation_space = to_gymnasium(env.agent_observation_space(params))
        self._action_space = to_gymnasium(env.agent_action_space(params))
        self._spaces: dict[tuple[str, str], gymnasium.Space] = {}
        # What dead slots do: something legal, so that it is not flagged as clipped.
        centre = jax.tree.map(np.asarray, env.centre(params))
        self._idle = jax.tree.map(lambda x: np.broadcast_to(x, (env.num_agents, *x.shape)), centre)
        self._generations = int(params.max_steps_in_episode) if _changes(env) else 1
        if env.num_agents * self._generations <= LONGEST_LIST:
            slots, generations = range(env.num_agents), range(self._generations)
            self.possible_agents = [
                agent_name(self.env.agent_role, slot, born) for born in generations for slot in slots
            ]
        size = jax.eval_shape(functools.partial(_world_at_reset, env=env), jax.random.key(0), params).shape
        self.state_space = gymnasium.spaces.Box(-np.inf, np.inf, size, np.float32)

    def observation_space(self, agent: str) -> gymnasium.Space:
        """The agent's own space, the same object at every call.

        Raises:
            UserError: a name that no agent can have.
        """
        return self._space("observation", agent, self._observation_space)

    def action_space(self, agent: str) -> gymnasium.Space:
        """The agent's own space, the same object at every call.

        Raises:
            UserError: a name that no agent can have.
        """
        return self._space("action", agent, self._action_space)

    def _space(self, what: str, agent: str, template: gymnasium.Space) -> gymnasium.Space:
        if (what, agent) not in self._spaces:
            parts = re.fullmatch(rf"{self.env.agent_role}_(\d+)_(\d+)", agent) if isinstance(agent, str) else None
            slot, generation = map(int, parts.groups()) if parts else (0, 0)
            possible = parts and slot < self.env.num_agents and generation < self._generations
            if not possible or agent != agent_name(self.env.agent_role, slot, generation):
                raise UserError(f"{self.env.name} has no agent {agent!r}.{self._hint(agent)}")
            self._spaces[what, agent] = copy.deepcopy(template)
        return self._spaces[what, agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode.

        Args:
            seed: of this episode and of those that follow; None goes on with the generator of the last seed, at first
                an unpredictable one.
            options: PettingZoo's; none is known here, and its own tests pass arbitrary ones. `params`, which
                Gymnasium's door knows, are refused.

        Returns:
            Observations and infos of the agents that begin.
        """
        if "params" in (options or {}):
            raise UserError(f"{self.env.name}: parameters are fixed here; make another environment with them")
        if seed is not None or self._rng is None:
            self._rng = seeding.np_random(seed)[0]
        self._seed = seed
        key = jax.random.key(self._rng.integers(2**32, dtype=np.uint32))
        (self.key, self.env_state), seen = _reset(key, self.params, env=self.env)
        seen = jax.device_get(seen)
        self._roster = Roster(self.env.agent_role, seen["alive"])
        self._over = False
        self.agents = list(self._roster.slots)
        self._observations = {agent: self._observation(seen, slot) for agent, slot in self._roster.slots.items()}
        infos = {agent: self._legal(seen, slot) for agent, slot in self._roster.slots.items()}
        return dict(self._observations), infos

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Let every living agent act once.

        Args:
            actions: one for each of `agents`, and for nobody else.

        Returns:
            Observations, rewards, terminations, truncations and infos, of those that acted and of newcomers.

        Raises:
            UserError: no episode is under way; an action is missing, of an agent that is not there, or not one of its
                action space.
        """
        roster = self._underway()
        action = self._joint(actions, roster.slots)
        (self.key, self.env_state), seen = _step(self.key, self.env_state, action, self.params, env=self.env)
        seen = jax.device_get(seen)
        terminated, truncated = bool(seen["terminated"]), bool(seen["truncated"])
        self._over = terminated or truncated
        before = roster.slots
        roster.advance(seen["successor"], seen["alive"], births=not self._over)
        after = roster.slots
        newborn = [agent for agent in after if agent not in before]
        if self._seed is not None:
            for agent in newborn:
                self.action_space(agent).seed(zlib.crc32(f"{self._seed} {agent}".encode()))
        everyone = [*before, *newborn]
        self._observations = {
            agent: self._observation(seen, after[agent]) if agent in after else copy.deepcopy(self._observations[agent])
            for agent in everyone
        }
        shared, own = split_info(seen["info"], self.env.num_agents)
        infos = {agent: dict(shared) for agent in everyone}
        for agent, slot in before.items():
            infos[agent].update(jax.tree.map(lambda x, slot=slot: np.array(x[slot])[()], own))
        for agent, slot in after.items():
            infos[agent].update(self._legal(seen, slot))
        self.agents = [] if self._over else list(after)
        rewards = {agent: float(seen["reward"][before[agent]]) if agent in before else 0.0 for agent in everyone}
        terminations = {agent: terminated or agent not in after for agent in everyone}
        truncations = {agent: truncated and agent in after for agent in everyone}
        return dict(self._observations), rewards, terminations, truncations, infos

    def state(self) -> Float[np.ndarray, " S"]:
        """What a centralised critic may see: the environment's `world_state`, float32.

        Raises:
            UserError: before the first reset.
        """
        self._begun()
        return np.array(_world(self.env_state, self.params, env=self.env), np.float32)

    def render(self) -> UInt8[np.ndarray, "H W 3"] | None:
        """The picture of the current state; None where no render mode was chosen.

        Raises:
            UserError: before the first reset.
        """
        if self.render_mode is None:
            return None
        self._begun()
        assert self.env_state is not None
        return picture(self.env, self.env_state, self.params)

    def close(self) -> None:
        """Nothing is held that must be released."""

    # -- one step -----------------------------------------------------------------------------------------------------

    def _begun(self) -> Roster:
        if self._roster is None:
            raise UserError(f"{self.env.name}: no episode has begun; call reset()")
        return self._roster

    def _underway(self) -> Roster:
        roster = self._begun()
        if self._over:
            raise UserError(f"{self.env.name}: the episode has ended; call reset()")
        return roster

    def _hint(self, agent: object) -> str:
        return did_you_mean(str(agent), self.agents)

    def _joint(self, actions: dict[str, Any], slots: dict[str, int]) -> PyTree:
        """The actions of the living in their slots, `[A, ...]`, with a legal one in every other slot."""
        for agent in actions:
            if agent not in slots:
                raise UserError(f"{self.env.name}: no agent {agent!r} is alive.{self._hint(agent)}")
        missing = [agent for agent in slots if agent not in actions]
        if missing:
            raise UserError(
                f"{self.env.name}: {len(missing)} of {len(slots)} living agents have no action, the first is "
                f"{missing[0]!r}; give one for each of env.agents"
            )
        joint = jax.tree.map(np.array, self._idle)
        for agent, slot in slots.items():
            parts = as_action(self._action_space, actions[agent], f"{self.env.name}, agent {agent!r}")
            for stacked, part in zip(jax.tree.leaves(joint), jax.tree.leaves(parts), strict=True):
                stacked[slot] = part
        return joint

    def _observation(self, seen: dict[str, PyTree], slot: int) -> Any:
        return to_element(self._observation_space, jax.tree.map(lambda x: x[slot], seen["observation"]))

    def _legal(self, seen: dict[str, PyTree], slot: int) -> dict[str, Any]:
        if seen["legal"] is None:
            return {}
        return {"action_mask": jax.tree.map(lambda x: x[slot].astype(np.int8), seen["legal"])}


def make_pettingzoo(
    id: str, *, calibration: str | None = None, render_mode: str | None = None, **overrides: Any
) -> PettingZooEnv:
    """What `make(id, api="pettingzoo")` builds.

    Args:
        id: as for `make`.
        calibration: a named calibration.
        render_mode: "rgb_array" or None.
        **overrides: constructor options and parameters.

    Raises:
        UserError: as `make` and `PettingZooEnv` do.
    """
    env, params = make(id, calibration=calibration, **overrides)
    return PettingZooEnv(env, params, render_mode)


def _changes(env: Environment) -> bool:
    """Whether agents can die or be born: whether the environment says anything about who is alive or goes where."""
    base = Environment
    return type(env).agent_mask is not base.agent_mask or type(env).successor is not base.successor


def _seen(observation: PyTree, state: EnvState, params: EnvParams, env: Environment) -> dict[str, PyTree]:
    return {
        "observation": add_agent_axis(env, observation),
        "alive": env.agent_mask(state, params),
        "legal": env.action_mask(state, params),
    }


@functools.partial(jax.jit, static_argnames="env")
def _reset(key: Array, params: EnvParams, *, env: Environment):
    """The next key and state, and what agents are told."""
    key, key_reset = jax.random.split(key)
    observation, state = env.reset_env(key_reset, params)
    return (key, state), _seen(observation, state, params, env)


@functools.partial(jax.jit, static_argnames="env")
def _step(key: Array, state: EnvState, action: PyTree, params: EnvParams, *, env: Environment):
    """The same after one transition, and what came of it."""
    key, key_step = jax.random.split(key)
    action = drop_agent_axis(env, action)
    observation, next_state, reward, terminated, info = env.step_env(key_step, state, action, params)
    told = {
        "reward": add_agent_axis(env, reward),
        "terminated": terminated,
        "truncated": env.is_truncated(next_state, params),
        "successor": env.successor(state, next_state, params),
        "info": info,
    }
    return (key, next_state), _seen(observation, next_state, params, env) | told


@functools.partial(jax.jit, static_argnames="env")
def _world(state: EnvState, params: EnvParams, *, env: Environment) -> Float[Array, " S"]:
    return env.world_state(state, params)


def _world_at_reset(key: Array, params: EnvParams, *, env: Environment) -> Float[Array, " S"]:
    return env.world_state(env.reset_env(key, params)[1], params)

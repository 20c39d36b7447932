"""JaxMARL, out: our environments as JaxMARL's, dicts of agents over the same pure functions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ...errors import UserError, did_you_mean
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis
from ..registry import make
from ._jaxmarl import import_jaxmarl
from ._typed import hashable

if TYPE_CHECKING:
    from jaxmarl.environments import spaces as jaxmarl_spaces
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv
else:
    MultiAgentEnv = import_jaxmarl("jaxmarl.environments.multi_agent_env").MultiAgentEnv
    jaxmarl_spaces = import_jaxmarl("jaxmarl.environments.spaces")

WORLD = "world_state"


class JaxMARLEnv(MultiAgentEnv):
    """One of our environments as JaxMARL's `MultiAgentEnv`, pure and jittable, at one calibration.

    Agents are slots: `agent_i` is slot i for ever, whoever holds it. Observations hold `world_state` too, the
    environment's own global view, float[S], as SMAX's do; `state_size` is S. `step` resets as JaxMARL does: the key is
    split in two, the first half goes to `step_env`, the second to `reset`.

    `dones[agent_i]` says that the agent which held the slot is gone after the step, or that the slot is empty: what
    follows in it, if anything, is another agent's life. All are done at an episode's end. `dones["__all__"]` is an end
    of either kind, since JaxMARL has no truncation; `infos["terminated"]` and `infos["truncated"]` tell which. Every
    scalar in `infos` is repeated for each agent, `[A]`, the shape that JaxMARL's learners reshape.

    Equal environments at equal parameters are equal, hash alike and share one compilation.

    Args:
        env: the environment.
        params: its parameters, concrete: they become constants of the compiled functions.

    Attributes:
        env, params: as given.
        num_agents, agents, observation_spaces, action_spaces: JaxMARL's.
        state_size: length of the world state.

    Raises:
        UserError: a space that JaxMARL does not have.
    """

    def __init__(self, env: Environment, params: EnvParams):
        super().__init__(env.num_agents)
        self.env, self.params = env, params
        action_space = env.agent_action_space(params)
        self.observation_spaces = dict.fromkeys(self.agents, to_jaxmarl(env.agent_observation_space(params)))
        self.action_spaces = dict.fromkeys(self.agents, to_jaxmarl(action_space))
        key = jax.random.key(0)
        self._action = jax.eval_shape(action_space.sample, key)
        self.state_size = jax.eval_shape(lambda k: env.world_state(env.reset_env(k, params)[1], params), key).shape[0]
        leaves, structure = jax.tree.flatten(params)
        self._identity = (env, structure, *map(hashable, leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaxMARLEnv) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def name(self) -> str:
        """The environment's id."""
        return self.env.name

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """All agents are of one class."""
        return {"agent": list(self.agents)}

    def world_state_size(self) -> int:
        """Length of the world state, as the wrappers of JaxMARL's MAPPO have it."""
        return self.state_size

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: Array) -> tuple[dict[str, PyTree], EnvState]:
        """Observations and state of a new episode: `env.reset_env(key, params)`."""
        observation, state = self.env.reset_env(key, self.params)
        return self._observations(observation, state), state

    @functools.partial(jax.jit, static_argnums=0)
    def step_env(
        self, key: Array, state: EnvState, actions: dict[str, PyTree]
    ) -> tuple[dict[str, PyTree], EnvState, dict[str, Array], dict[str, Array], dict[str, PyTree]]:
        """One transition without any reset: `env.step_env(key, ...)`.

        Args:
            key: random key.
            state: the environment's state.
            actions: each agent's, those of empty slots included; without effect there. Any shape of the right size.

        Returns:
            Observations, next state, rewards, dones and infos.

        Raises:
            UserError: an action is missing, of an unknown agent, of the wrong size, or not whole where it must be.
        """
        env, params = self.env, self.params
        action = drop_agent_axis(env, self._joint(actions))
        observation, next_state, reward, terminated, info = env.step_env(key, state, action, params)
        truncated = env.is_truncated(next_state, params)
        ended = terminated | truncated
        slots = jnp.arange(self.num_agents)
        before, after = env.agent_mask(state, params), env.agent_mask(next_state, params)
        gone = before & (env.successor(state, next_state, params) != slots)
        dones = self._by_agent(ended | gone | ~after) | {"__all__": ended}
        info = info | {"terminated": terminated, "truncated": truncated}
        infos = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_agents,)) if jnp.ndim(x) == 0 else x, info)
        rewards = self._by_agent(add_agent_axis(env, reward))
        return self._observations(observation, next_state), next_state, rewards, dones, infos

    @functools.partial(jax.jit, static_argnums=0)
    def get_obs(self, state: EnvState) -> dict[str, PyTree]:
        """Each agent's observation of `state`, and its world state."""
        return self._observations(self.env.observe(jax.random.key(0), state, None, self.params), state)

    @functools.partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: EnvState) -> dict[str, PyTree]:
        """Which actions each agent may take, bool[n]; an empty slot may take the first only, as SMAX's dead units.

        Actions that are not discrete are all available: true in the action's shape.
        """
        legal, space = self.env.action_mask(state, self.params), self.env.agent_action_space(self.params)
        if legal is None and isinstance(space, spaces.Discrete):
            legal = jnp.ones((self.num_agents, space.n), bool)
        if legal is None:
            return self._by_agent(jax.tree.map(lambda x: jnp.ones((self.num_agents, *x.shape), bool), self._action))
        alive = self.env.agent_mask(state, self.params)
        return self._by_agent(jax.tree.map(lambda x: _first_only_where(~alive, x), legal))

    @functools.partial(jax.jit, static_argnums=0)
    def get_world_state(self, state: EnvState) -> Float[Array, " S"]:
        """What a centralised critic may see."""
        return self.env.world_state(state, self.params)

    # -- stacked arrays and dicts -------------------------------------------------------------------------------------

    def _by_agent(self, stacked: PyTree) -> dict[str, PyTree]:
        """`[A, ...]` as a dict of agents."""
        return {agent: jax.tree.map(lambda x, i=i: x[i], stacked) for i, agent in enumerate(self.agents)}

    def _observations(self, observation: PyTree, state: EnvState) -> dict[str, PyTree]:
        by_agent = self._by_agent(add_agent_axis(self.env, observation))
        return by_agent | {WORLD: self.env.world_state(state, self.params)}

    def _joint(self, actions: dict[str, PyTree]) -> PyTree:
        """A dict of agents' actions as `[A, ...]`, in the types of the action space."""
        for agent in actions:
            if agent not in self.agents:
                raise UserError(f"{self.name} has no agent {agent!r}.{did_you_mean(str(agent), self.agents)}")
        if missing := [agent for agent in self.agents if agent not in actions]:
            raise UserError(
                f"{self.name}: {missing[0]!r} has no action; give one for each of env.agents, dead or alive"
            )
        return jax.tree.map(
            lambda *parts: jnp.stack(parts), *(self._read(agent, actions[agent]) for agent in self.agents)
        )

    def _read(self, agent: str, action: PyTree) -> PyTree:
        action = _plain(action)
        if jax.tree.structure(action) != jax.tree.structure(self._action):
            raise UserError(f"{self.name}: the action of {agent!r} must be built like {self._action}, got {action}")

        def convert(wanted: jax.ShapeDtypeStruct, given: Any) -> Array:
            given = jnp.asarray(given)
            whole = jnp.issubdtype(wanted.dtype, jnp.integer)
            if given.size != wanted.size or (whole and not jnp.issubdtype(given.dtype, jnp.integer)):
                raise UserError(
                    f"{self.name}: the action of {agent!r} must be {wanted.dtype}{list(wanted.shape)}, got "
                    f"{given.dtype}{list(given.shape)}"
                )
            return given.reshape(wanted.shape).astype(wanted.dtype)

        return jax.tree.map(convert, self._action, action)


def make_jaxmarl(id: str, *, calibration: str | None = None, **overrides: Any) -> JaxMARLEnv:
    """What `make(id, api="jaxmarl")` builds.

    Args:
        id: as for `make`.
        calibration: a named calibration.
        **overrides: constructor options and parameters.

    Raises:
        UserError: as `make` and `JaxMARLEnv` do.
    """
    return JaxMARLEnv(*make(id, calibration=calibration, **overrides))


def to_jaxmarl(space: spaces.Space) -> jaxmarl_spaces.Space:
    """JaxMARL's twin of a space.

    Raises:
        UserError: it has none.
    """
    if isinstance(space, spaces.Discrete):
        return jaxmarl_spaces.Discrete(int(space.n), space.dtype)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return jaxmarl_spaces.MultiDiscrete(space.nvec.tolist())
    if isinstance(space, spaces.Box):
        return jaxmarl_spaces.Box(space.low, space.high, tuple(space.shape), space.dtype)
    if isinstance(space, spaces.Dict):
        return jaxmarl_spaces.Dict({name: to_jaxmarl(inner) for name, inner in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return jaxmarl_spaces.Tuple([to_jaxmarl(inner) for inner in space.spaces])
    raise UserError(f"JaxMARL has no twin of {space!r}; discrete choices must lie in one row")


def _plain(action: Any) -> PyTree:
    """An action whose dicts are plain ones: JaxMARL's spaces draw ordered dicts, which are other trees to JAX."""
    if isinstance(action, Mapping):
        return {name: _plain(part) for name, part in action.items()}
    return tuple(map(_plain, action)) if isinstance(action, tuple) else action


def _first_only_where(flags: Bool[Array, " A"], legal: Bool[Array, "A ..."]) -> Bool[Array, "A ..."]:
    """`legal`, with only the first action left where a flag is set."""
    first = jnp.arange(legal.shape[-1]) == 0
    return jnp.where(flags.reshape(-1, *(1,) * (legal.ndim - 1)), first, legal)

"""JaxMARL's environments, in: its dicts of agents as one stacked axis, with our own resets and ends of episodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...errors import UserError, unknown
from .. import spaces
from ..environment import Environment, EnvParams, EnvState, add_agent_axis, canonical_params, drop_agent_axis
from ..registry import override_params
from ._construct import construct, constructor_options, split_overrides
from ._jaxmarl import import_jaxmarl
from ._jaxmarl_spaces import ActionLayout, action_layout, observation_bounds, pad_to
from ._typed import ByConfiguration, hashable, strong

if TYPE_CHECKING:
    import jaxmarl
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv
else:
    jaxmarl = import_jaxmarl()
    MultiAgentEnv = import_jaxmarl("jaxmarl.environments.multi_agent_env").MultiAgentEnv

LIBRARY = "jaxmarl"
# Of episodes whose environment has no time limit of its own; those that end by themselves do so before.
LONGEST = 1000
# Options that these constructors read from their **kwargs without naming them.
UNNAMED = {
    "SimpleMPE": (
        *("rad", "moveable", "silent", "collide", "mass", "accel", "max_speed"),
        *("u_noise", "c_noise", "damping", "contact_force", "contact_margin"),
    ),
}


@struct.dataclass
class JaxMARLState(EnvState):
    """JaxMARL's state, and what its step said about it.

    Attributes:
        inner: JaxMARL's state.
        observation: `[A, ...]`.
        alive: the agents that are not done.
        cut: the episode ended here because its time was up.
    """

    inner: PyTree
    observation: Float[Array, "A ..."]
    alive: Bool[Array, " A"]
    cut: Bool[Array, ""]


@dataclasses.dataclass(frozen=True, eq=False)
class JaxMARLEnvironment(ByConfiguration, Environment):
    """A JaxMARL environment as one of ours; the agent axis has the order of its `agents`.

    Observations are floats. Agents that see less than others have zeros behind; those that have fewer actions are
    masked, and `get_avail_actions` (Hanabi's `get_legal_moves`) is the mask where the environment has one. An agent
    that is done is dead: it stays so until the episode's end, and what JaxMARL goes on paying it (SMAX does) is not
    its reward here. Several agents are paid as JaxMARL pays each, so the concept is "nash".

    JaxMARL does not tell a time limit from an end. Where the environment has `max_steps` and its state counts steps,
    an end that would not have come with the clock at 0 is truncation: all of MPE's (whose episodes are `max_steps + 1`
    long, as JaxMARL counts), Overcooked's, SMAX's undecided battles. An end without a clock is termination, except
    where the state says `truncation` (MABrax). Telling them apart repeats JaxMARL's step where it has no `is_terminal`;
    XLA removes what the question does not need.

    Args:
        jaxmarl_id: JaxMARL's name, "MPE_simple_spread_v3".
        options: constructor arguments; two environments are equal when both are. SMAX's `scenario` may be a name,
            "2s3z".

    Raises:
        UserError: an unknown name, options that JaxMARL does not take, agents whose actions differ in kind, or an
            environment that is not a dict of agents.
    """

    jaxmarl_id: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_agents: int = dataclasses.field(init=False)
    concept: str = dataclasses.field(init=False)
    _inner: Any = dataclasses.field(init=False, repr=False)
    _agents: list = dataclasses.field(init=False, repr=False)
    _bounds: tuple = dataclasses.field(init=False, repr=False)
    _actions: ActionLayout = dataclasses.field(init=False, repr=False)
    _legal_moves: str | None = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        inner = construct(self.name, lambda: _make(self.jaxmarl_id, self.options), (Exception,))
        if getattr(inner, "auto_reset", False):
            raise UserError(
                f"{self.name} resets itself inside its step and loses the last observation; give auto_reset=False"
            )
        agents = list(inner.agents)
        shown = jax.eval_shape(inner.reset, jax.random.key(0))[0]
        if not isinstance(shown, Mapping) or not set(agents) <= set(shown):
            raise UserError(f"{self.name} does not give its observations as a dict of its agents, and cannot come in")
        if any(len(jax.tree.leaves(shown[agent])) != 1 for agent in agents):
            raise UserError(f"{self.name}: the observation of an agent is not one array")
        shapes = [tuple(shown[agent].shape) for agent in agents]
        own = {
            "num_agents": len(agents),
            "concept": "planner" if len(agents) == 1 else "nash",
            "_inner": inner,
            "_agents": agents,
            "_bounds": observation_bounds(self.name, [inner.observation_space(agent) for agent in agents], shapes),
            "_actions": action_layout(self.name, {agent: inner.action_space(agent) for agent in agents}),
            "_legal_moves": next((method for method in LEGAL if _overrides(inner, method)), None),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """The full id, "jaxmarl:MPE_simple_spread_v3"."""
        return f"{LIBRARY}:{self.jaxmarl_id}"

    @property
    def inner(self) -> MultiAgentEnv:
        """JaxMARL's environment."""
        return self._inner

    def _configuration(self) -> tuple:
        return (self.jaxmarl_id, hashable(self.options))

    @property
    def supports_transition_gradients(self) -> bool:
        """No: some of JaxMARL's transitions stop gradients and some do not."""
        return False

    @property
    def default_params(self) -> EnvParams:
        """`max_steps_in_episode`: as long as JaxMARL's own limit can last, 1000 where it has none."""
        limit = getattr(self._inner, "max_steps", None)
        return canonical_params(EnvParams(max_steps_in_episode=LONGEST if limit is None else int(limit) + 1))

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """The largest of the agents' action spaces."""
        return self._actions.space()

    def agent_observation_space(self, params: EnvParams) -> spaces.Box:
        """What holds every agent's observation."""
        low, high = self._bounds
        dtype = jnp.result_type(float)
        limit = np.finfo(dtype).max
        low, high = (jnp.asarray(np.clip(bound, -limit, limit), dtype) for bound in (low, high))
        return spaces.Box(low, high, low.shape, dtype)

    def agent_roles(self, params: EnvParams) -> Int[np.ndarray, " A"] | None:
        """By the agents' names without their numbers: "speaker_0" and "listener_0" are of two kinds."""
        kinds = [re.sub(r"[_-]?\d+$", "", agent) for agent in self._agents]
        return np.unique(kinds, return_inverse=True)[1] if len(set(kinds)) > 1 else None

    # -- dynamics -----------------------------------------------------------------------------------------------------

    def reset_env(self, key: Array, params: EnvParams) -> tuple[Float[Array, "..."], JaxMARLState]:
        """`inner.reset`, strongly typed."""
        shown, inner = self._inner.reset(key)
        alive = jnp.ones((self.num_agents,), bool)
        state = JaxMARLState(jnp.int32(0), _canonical(inner), self._stack(shown), alive, jnp.zeros((), bool))
        return drop_agent_axis(self, state.observation), state

    def step_env(
        self, key: Array, state: JaxMARLState, action: PyTree, params: EnvParams
    ) -> tuple[Float[Array, "..."], JaxMARLState, Float[Array, "..."], Bool[Array, ""], dict[str, PyTree]]:
        """`inner.step_env`, with leaves of the types that `state` came with; `info` is JaxMARL's.

        A continuous action beyond its bounds is clipped, and flagged in `info["action_clipped"]`.
        """
        action, clipped = self.legal_action(action, params)
        actions = self._actions.split(self._agents, add_agent_axis(self, action))
        shown, following, rewards, dones, info = self._inner.step_env(key, state.inner, actions)
        following = jax.tree.map(lambda new, old: jnp.asarray(new).astype(old.dtype), following, state.inner)
        over = jnp.asarray(dones["__all__"]).astype(bool).reshape(())
        terminated = over & self._ends_by_itself(key, state.inner, actions, following)
        done = jnp.stack([jnp.asarray(dones.get(agent, False)).astype(bool).reshape(()) for agent in self._agents])
        # An end that is everybody's says nothing about who is alive: the values of the living are still asked for.
        alive = state.alive & ~(done & ~(over & done.all()))
        reward = jnp.stack([jnp.asarray(rewards[agent]).reshape(()) for agent in self._agents])
        reward = jnp.where(state.alive, reward.astype(jnp.result_type(float)), 0.0)
        next_state = JaxMARLState(state.time + 1, following, self._stack(shown), alive, over & ~terminated)
        info = {**_canonical(dict(info)), "action_clipped": clipped}
        observation = drop_agent_axis(self, next_state.observation)
        return observation, next_state, drop_agent_axis(self, reward), terminated, info

    def _ends_by_itself(self, key: Array, inner: PyTree, actions: dict[str, Array], following: PyTree) -> Array:
        """Whether an episode that is over here would be over without its time limit."""
        if not hasattr(self._inner, "max_steps"):
            told = getattr(following, "info", None)
            cut = told.get("truncation") if isinstance(told, Mapping) else None
            return jnp.ones((), bool) if cut is None else ~jnp.asarray(cut).astype(bool).reshape(())
        if hasattr(self._inner, "is_terminal"):
            return jnp.asarray(self._inner.is_terminal(_rewound(following, "step", "done"))).astype(bool).reshape(())
        dones = self._inner.step_env(key, _rewound(inner, "step"), actions)[3]
        return jnp.asarray(dones["__all__"]).astype(bool).reshape(())

    def observe(self, key: Array, state: JaxMARLState, action: PyTree | None, params: EnvParams) -> Float[Array, "..."]:
        """The observation that came with `state`."""
        return drop_agent_axis(self, state.observation)

    def is_truncated(self, state: JaxMARLState, params: EnvParams) -> Bool[Array, ""]:
        """JaxMARL's time limit, or ours."""
        return state.cut | (state.time >= params.max_steps_in_episode)

    def agent_mask(self, state: JaxMARLState, params: EnvParams) -> Bool[Array, " A"]:
        """The agents that are not done."""
        return state.alive

    def action_mask(self, state: JaxMARLState, params: EnvParams) -> Bool[Array, "A n"] | None:
        """The actions that an agent has, and that the environment says are available."""
        choices = self._actions.choices
        if choices is None or (self._legal_moves is None and len(set(choices)) == 1):
            return None
        has = np.arange(max(choices)) < np.asarray(choices)[:, None]
        if self._legal_moves is None:
            return jnp.asarray(has)
        available = getattr(self._inner, self._legal_moves)(state.inner)
        rows = [pad_to(jnp.asarray(available[agent]).astype(bool), (max(choices),)) for agent in self._agents]
        return jnp.stack(rows) & has

    def world_state(self, state: JaxMARLState, params: EnvParams) -> Float[Array, " S"]:
        """`get_world_state`, flattened, where the environment has one; else the observations of the living."""
        if hasattr(self._inner, "get_world_state"):
            parts = jax.tree.leaves(self._inner.get_world_state(state.inner))
            return jnp.concatenate([jnp.ravel(part).astype(jnp.result_type(float)) for part in parts])
        alive = state.alive.reshape(-1, *(1,) * (state.observation.ndim - 1))
        return jnp.ravel(jnp.where(alive, state.observation, 0))

    def _stack(self, shown: Mapping[str, Array]) -> Float[Array, "A ..."]:
        shape = self._bounds[0].shape
        return jnp.stack([pad_to(jnp.asarray(shown[agent], jnp.result_type(float)), shape) for agent in self._agents])


LEGAL = ("get_avail_actions", "get_legal_moves")


def make_from_jaxmarl(name: str, **overrides: Any) -> tuple[JaxMARLEnvironment, EnvParams]:
    """What `make("jaxmarl:...")` builds.

    Args:
        name: JaxMARL's, such as "MPE_simple_spread_v3".
        **overrides: constructor arguments of that environment, and `max_steps_in_episode`.

    Raises:
        UserError: an unknown name or override, or one that JaxMARL refuses.
    """
    if name not in jaxmarl.registered_envs:
        raise unknown("JaxMARL environment", name, jaxmarl.registered_envs)
    id = f"{LIBRARY}:{name}"
    values = {key: value for key, value in overrides.items() if key == "max_steps_in_episode"}
    options = {key: value for key, value in overrides.items() if key not in values}
    if options:
        try:
            default = jaxmarl.make(name)
        except Exception:  # it has arguments without defaults, or cannot be made at all: its constructor will tell
            default = None
        if default is not None:
            split_overrides(id, type(default), EnvParams(), overrides, _unnamed(default))
    environment = JaxMARLEnvironment(name, options)
    return environment, override_params(id, environment.default_params, values, list(options))


def _make(name: str, options: Mapping[str, Any]) -> MultiAgentEnv:
    if isinstance(scenario := options.get("scenario"), str) and name.endswith("SMAX"):  # by name, as in SMAC
        known = import_jaxmarl("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
        if scenario not in known:
            raise unknown("SMAX scenario", scenario, known)
        options = {**options, "scenario": known[scenario]}
    return jaxmarl.make(name, **options)


def _unnamed(inner: MultiAgentEnv) -> list[str]:
    """Options that a constructor takes without naming them."""
    names = [name for parent in type(inner).__mro__ for name in UNNAMED.get(parent.__name__, ())]
    if hasattr(type(inner), "get_enemy_actions"):  # SMAX against a policy hands its **kwargs to SMAX
        names += constructor_options(type(vars(inner)["_env"]))[0]
    return names


def _overrides(inner: MultiAgentEnv, method: str) -> bool:
    """Whether the environment says which actions are available."""
    found = getattr(type(inner), method, None)
    return found is not None and found is not getattr(MultiAgentEnv, method, None)


def _rewound(state: PyTree, *names: str) -> PyTree:
    """The state at step 0: its clock is its own, or that of the state inside it."""
    if not hasattr(state, names[0]):
        return state.replace(state=_rewound(state.state, *names))
    return state.replace(**{name: jnp.zeros_like(getattr(state, name)) for name in names})


def _canonical(tree: PyTree) -> PyTree:
    """Strongly typed arrays, floats of the current width."""

    def cast(x: Array) -> Array:
        return x.astype(jnp.result_type(float)) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, strong(tree))

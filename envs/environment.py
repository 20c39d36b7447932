"""The environment contract: gymnax's base class plus an agent axis."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment as gymnax_environment
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..errors import UserError
from . import spaces
from .grids import GridSight
from .spaces import stack_space

EnvState = gymnax_environment.EnvState
EnvParams = gymnax_environment.EnvParams

CONCEPTS = ("planner", "competitive", "mpe", "cooperative", "nash")


class Domain(NamedTuple):
    """The values a parameter may take: an interval, its ends included or not."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = True
    open_high: bool = True

    def __str__(self) -> str:
        left = "(" if self.open_low else "["
        right = ")" if self.open_high else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def contains(self, value: Any) -> bool:
        """True when every entry of ``value`` is finite and inside the interval."""
        x = np.asarray(value, dtype=float)
        above = x > self.low if self.open_low else x >= self.low
        below = x < self.high if self.open_high else x <= self.high
        return bool(np.all(np.isfinite(x) & above & below))


REAL = Domain()
POSITIVE = Domain(low=0.0)
NON_NEGATIVE = Domain(low=0.0, open_low=False)
SHARE = Domain(0.0, 1.0)
PROBABILITY = Domain(0.0, 1.0, open_low=False, open_high=False)


def parameter(default: Any, domain: Domain = REAL, doc: str = "") -> Any:
    """A field of an environment's parameters, with the interval its value must lie in.

    Args:
        default: the value in the default calibration.
        domain: refused outside of it, by name, when an environment is made.
        doc: one line for ``equimorph info``, units included.
    """
    return struct.field(default=default, metadata={"domain": domain, "doc": doc})


def canonical_params(params: EnvParams) -> EnvParams:
    """The same parameters as strongly typed arrays of the current float and int width.

    Python numbers would be weakly typed: a state made by `reset` and one made by `step` could then differ in type.
    """

    def cast(leaf):
        dtype = np.asarray(leaf).dtype
        kind = bool if np.issubdtype(dtype, np.bool_) else int if np.issubdtype(dtype, np.integer) else float
        return jnp.array(leaf, dtype=jnp.result_type(kind))

    return jax.tree.map(cast, params)


def validate_params(params: EnvParams, name: str) -> None:
    """Raise `UserError` naming the first parameter that lies outside its domain.

    Args:
        params: the parameters of an environment; traced values are not checked.
        name: the environment's name, for the message.
    """
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if isinstance(value, jax.core.Tracer):
            continue
        domain = field.metadata.get("domain")
        if field.name == "max_steps_in_episode":
            domain = Domain(1, math.inf, open_low=False)
        if domain is None:
            continue
        if not domain.contains(value):
            shown = np.array2string(np.asarray(value, dtype=float), precision=6)
            raise UserError(f"{name}: parameter {field.name} = {shown} must be finite and lie in {domain}")


class Reference(NamedTuple):
    """A known answer that a policy is scored against.

    Attributes:
        policy: `(state) -> action`, in the environment's own units and shape.
        value: `(state) -> scalar or [A]`, expected discounted sum of the economy's `reward` (raw utility), or None.
        concept: the equilibrium concept it answers: one of `CONCEPTS`.
        tolerance: absolute error of `policy`; 0 where the answer is exact.
        auxiliary: `(state) -> multipliers and prices` that go with `policy`, or None.
    """

    policy: Any
    value: Any
    concept: str
    tolerance: float = 0.0
    auxiliary: Any = None


class Environment(gymnax_environment.Environment):
    """A gymnax 1.0 environment with a population of agents.

    Subclasses are frozen dataclasses whose fields are static (concept, sizes, names): two equal environments hash
    alike and share one compilation. Everything that can be swept is an array in `params`.

    With `num_agents == 1` nothing at the door has an agent axis. Above 1, observations, actions and rewards have
    shape `[A, ...]`. `terminated` means that the continuation value is zero; a time limit on an unending task is
    truncation. `agent_role` is what one agent is called where agents have names. `exchangeable` says that slots are
    reused by agents that come and go, so that a slot's number says nothing about who is in it.
    """

    num_agents: int = 1
    concept: str = "planner"
    agent_role: ClassVar[str] = "agent"
    exchangeable: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The environment's id."""
        return f"{type(self).__name__}-v0"

    # -- gymnax -----------------------------------------------------------------------------------------------------

    _supports_transition_gradients: ClassVar[bool] = True

    @property
    def transition_gradients_enabled(self) -> bool:
        """Always true where transitions are differentiable: nothing here stops a gradient."""
        return self.supports_transition_gradients

    def with_transition_gradients(self):
        """The environment itself: its transitions keep their gradients from the start.

        Raises:
            ValueError: the environment's transitions are not differentiable.
        """
        if not self.supports_transition_gradients:
            raise ValueError(f"{self.name} does not support transition gradients")
        return self

    @property
    def num_actions(self) -> int:
        """Number of discrete actions of one agent, or how many numbers its action is made of."""
        space = self.agent_action_space(self.default_params)
        return space.n if isinstance(space, spaces.Discrete) else spaces.flat_size(space)

    def legal_action(self, action: PyTree, params: EnvParams) -> tuple[PyTree, Bool[Array, ""]]:
        """The action clipped into the action space, and whether it had to be."""
        return spaces.clip_to(self.action_space(params), action)

    # -- the agent axis ---------------------------------------------------------------------------------------------

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """One agent's action space. Bounds are finite."""
        raise _missing(self, "agent_action_space(params), one agent's action space; action_space follows from it")

    def agent_observation_space(self, params: EnvParams) -> spaces.Space:
        """One agent's observation space."""
        raise _missing(self, "agent_observation_space(params), what one agent sees; observation_space follows from it")

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        """What `step` takes: one agent's space, stacked over agents when there are several."""
        return stack_space(self.agent_action_space(self.default_params if params is None else params), self.num_agents)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Space:
        """What `reset` and `step` return, stacked over agents when there are several."""
        params = self.default_params if params is None else params
        return stack_space(self.agent_observation_space(params), self.num_agents)

    def agent_mask(self, state: EnvState, params: EnvParams) -> Bool[Array, " A"]:
        """Which slots hold a living agent. Dead slots earn 0, act without effect and never enter a loss."""
        return jnp.ones((self.num_agents,), bool)

    def action_mask(self, state: EnvState, params: EnvParams) -> PyTree | None:
        """Legal discrete actions, or None when all are.

        bool[A, n] of a Discrete; bool[A, ..., n] of a MultiDiscrete with at most n choices at a position; of a Dict or
        a Tuple, one for each part, None for a part that has none.
        """
        return None

    def world_state(self, state: EnvState, params: EnvParams) -> Float[Array, " S"]:
        """What a centralised critic may see. By default every agent's observation, flattened."""
        return jnp.ravel(self.observe(jax.random.key(0), state, None, params))

    def discount_factor(self, params: EnvParams) -> Float[Array, ""]:
        """The environment's own discount, per step."""
        return jnp.array(0.99, jnp.result_type(float))

    def step_discount(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Float[Array, "..."]:
        """The discount of one transition, scalar or [A]; by default `discount_factor`."""
        return self.discount_factor(params)

    def centre(self, params: EnvParams) -> PyTree:
        """One agent's action for a zero network output: the middle of its bounds unless overridden."""
        return spaces.middle(self.agent_action_space(params))

    def successor(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Int[Array, " A"]:
        """The slot that holds this slot's agent next period; -1 when it is gone."""
        return jnp.arange(self.num_agents, dtype=jnp.int32)

    def inherits(self, state: EnvState, next_state: EnvState, params: EnvParams) -> Int[Array, " A"]:
        """The slot whose memory each slot takes over next period; -1 for a fresh one.

        By default the inverse of `successor`: each person keeps its own memory.
        """
        successor = self.successor(state, next_state, params)
        slots = jnp.arange(self.num_agents, dtype=jnp.int32)
        held_by = successor[None, :] == slots[:, None]
        return jnp.where(held_by.any(axis=1), jnp.argmax(held_by, axis=1).astype(jnp.int32), -1)

    def agent_roles(self, params: EnvParams) -> Int[np.ndarray, " A"] | None:
        """Who is of one kind: agents with equal numbers; None where all are.

        Fixed once the environment is made: it may not depend on values in `params`, which can be traced.
        """
        return None

    @property
    def grid_sight(self) -> GridSight | None:
        """Where an observation has the grid around its agent, whose action is a "goal" there and a "move"; or None."""
        return None

    def check_params(self, params: EnvParams) -> None:
        """Raise `UserError` where parameters that are each in their domain do not go together."""

    # -- what is known ----------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> frozenset[str]:
        """What this instance offers to learners, e.g. "conditions", "differentiable", "events", "score"."""
        return frozenset({"differentiable"} if self.transition_gradients_enabled else ())

    def reference(self, params: EnvParams) -> Reference | None:
        """The known answer at `params` under this environment's `concept`, or None."""
        return None

    def score(self, state: EnvState, params: EnvParams) -> Float[Array, ""]:
        """The task's score of an episode that ends in `state`; only with capability "score"."""
        raise NotImplementedError(f"{self.name} has no score of its own")

    def render(self, state: EnvState, params: EnvParams) -> np.ndarray:
        """A picture of `state`, uint8[H, W, 3].

        Raises:
            UserError: the environment has none.
        """
        raise UserError(f"{self.name} has no picture")


def _missing(environment: Environment, what: str) -> UserError:
    return UserError(f"{type(environment).__name__} must define {what}")


def add_agent_axis(environment: Environment, tree: PyTree) -> PyTree:
    """What comes out of the door, with the agent axis `[A, ...]` that the loop and the learners always see."""
    return jax.tree.map(lambda x: x[None], tree) if environment.num_agents == 1 else tree


def drop_agent_axis(environment: Environment, tree: PyTree) -> PyTree:
    """What learners hand over `[A, ...]`, in the shape the door takes."""
    return jax.tree.map(lambda x: x[0], tree) if environment.num_agents == 1 else tree

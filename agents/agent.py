"""The agent contract: what the loop asks of a learner, and what it hands over."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..envs.economy import Decision
from ..envs.environment import Environment, EnvParams, EnvState
from ..errors import UserError

LONGEST_MEMORY = 1 - 1e-6
"""The largest decay of a running mean: at 1 it would never learn anything."""


class View(NamedTuple):
    """What agents see of one environment; the agent axis is always there.

    Attributes:
        observation: `[A, ...]`.
        agent_mask: `[A]`, true where a living agent acts.
        action_mask: as `Environment.action_mask` gives it: true where an action is legal; None where all are.
    """

    observation: PyTree
    agent_mask: Bool[Array, " A"]
    action_mask: PyTree = None


class Rollout(NamedTuple):
    """Experience of T steps in N environments; every leaf starts with `[T, N]`.

    `env_state` and `next_env_state` are both from before any reset, and `next_observation` belongs to the latter. What
    an agent does not read is never stored: XLA removes it.
    """

    view: View
    action: PyTree
    reward: Float[Array, "T N A"]
    discount: Float[Array, "T N A"]
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]
    next_observation: PyTree
    env_state: EnvState
    next_env_state: EnvState
    successor: Int[Array, "T N A"]
    memory: PyTree
    extras: PyTree


class Context(eqx.Module):
    """What an update may know besides its own state.

    Attributes:
        env: the environment, static.
        params: its parameters.
        iteration: how many updates came before; int scalar.
        num_iterations: how many are planned, for schedules; int scalar.
    """

    env: Environment = eqx.field(static=True)
    params: EnvParams
    iteration: Int[Array, ""]
    num_iterations: Int[Array, ""]


class Policy(eqx.Module):
    """A trained (or untrained) policy, by itself: what evaluation, rendering and export use."""

    @abc.abstractmethod
    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        """Actions `[A, ...]` in one environment, in its units; sampled when a key is given, else deterministic."""

    def initial_memory(self, num_agents: int) -> PyTree:
        """What `act` is given at an episode's start, `[A, ...]`; `()` where nothing is remembered."""
        return ()

    def act(self, view: View, memory: PyTree, key: Array | None = None) -> tuple[PyTree, PyTree]:
        """The memory after a step, and the actions that a policy with a memory takes in it."""
        return memory, self(view, key)

    def decision(self, view: View) -> Decision:
        """The deterministic actions `[A, ...]`, with multipliers and prices where the policy has outputs for them."""
        return Decision(self(view))


class Agent(eqx.Module):
    """A learning rule: hyperparameters only.

    Numbers that can be swept are array leaves and vmap; what decides structure is static. The state that learning
    changes is one pytree of arrays made by `init`.
    """

    @abc.abstractmethod
    def required(self) -> frozenset[str]:
        """Capabilities of an environment that this configuration needs."""

    @abc.abstractmethod
    def concept(self, env: Environment) -> str:
        """The equilibrium concept that this learner finds in `env`."""

    @abc.abstractmethod
    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        """Raise `UserError` where this configuration does not fit; called once, before any tracing."""

    def prepare(self, env: Environment, params: EnvParams) -> Agent:
        """The agent with all that has to be computed on the host, once, before anything is compiled.

        Called with concrete parameters, after `check`; what it returns is used in this agent's place. Unless overridden
        it is the agent itself.
        """
        return self

    @abc.abstractmethod
    def init(self, key: Array, env: Environment, params: EnvParams) -> PyTree:
        """The initial agent state: networks, head, stepper state, baselines: arrays only."""

    @abc.abstractmethod
    def initial_memory(self, state: PyTree, env: Environment, params: EnvParams) -> PyTree:
        """Recurrent state of one environment, `[A, ...]`; `()` if there is none."""

    @abc.abstractmethod
    def act(
        self, state: PyTree, memory: PyTree, view: View, key: Array, *, explore: bool = True
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Memory, action `[A, ...]` and extras for the update, in one environment."""

    @abc.abstractmethod
    def update(self, state: PyTree, rollout: Rollout, context: Context, key: Array) -> tuple[PyTree, dict[str, Array]]:
        """The whole learning rule, pure: the next state and scalar metrics by name ("group/name")."""

    @abc.abstractmethod
    def policy(self, state: PyTree) -> Policy:
        """The policy inside `state`."""

    def gradient_steps(self, num_steps: int, num_envs: int) -> int | None:
        """Gradient steps of the policy in one update on T x N transitions; None, unless overridden: not counted."""
        return None

    def restart(self, state: PyTree, env: Environment, params: EnvParams) -> PyTree:
        """`state` of the same learner under another stepper, as a start for this one's: all but the stepper's own.

        Raises:
            UserError: it has no stepper.
        """
        raise UserError(f"{type(self).__name__} has no stepper that training.switch could change; leave it out")


def check_pair(agent: Agent, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
    """Refuse an agent and an environment that do not fit, before anything is traced.

    Raises:
        UserError: names what is missing or does not apply, and what would work.
    """
    name = type(agent).__name__
    missing = agent.required() - env.capabilities
    if missing:
        advice = _ADVICE[min(missing)]
        if "events" in missing:  # a tissue knows which of its options would give them a score
            advice = getattr(env, "no_events", advice)
        raise UserError(
            f"{name} needs {', '.join(sorted(map(repr, missing)))}, which {env.name} does not offer (it has "
            f"{', '.join(sorted(env.capabilities)) or 'none'}); {advice}"
        )
    found = agent.concept(env)
    if found != env.concept:
        raise UserError(
            f"{name} finds the {found!r} solution of {env.name}, because its own action moves the aggregate, but the "
            f"environment's concept is {env.concept!r}; use concept={found!r}, or agent 'deqn'"
        )
    agent.check(env, params, num_steps, num_envs)


_ADVICE = {
    "conditions": "use conditions='derived' where actions are continuous and it is differentiable, or train it with "
    "'mappo' or 'reinforce', which need rewards only",
    "differentiable": "train it with 'mappo' or 'reinforce', which need no derivatives",
    "events": "use score='actions'",
}


def reward_learner_concept(env: Environment) -> str:
    """What a learner of rewards finds: a single agent moves every aggregate itself: the planner's."""
    return "planner" if env.num_agents == 1 else env.concept


def check_followed(agent: Agent, env: Environment) -> None:
    """Refuse a learner of rewards where agents are points of a distribution: nobody's later rewards are followed."""
    if "distribution" in env.capabilities:
        raise UserError(
            f"{type(agent).__name__} learns from what each agent earns later, but agents of {env.name} are points of a "
            "histogram that nobody stays on; use households='agents', or agent 'deqn'"
        )


def scalar(value: Any) -> Float[Array, ""]:
    """A hyperparameter as a strongly typed array leaf, so that changing it recompiles nothing."""
    if isinstance(value, (bool, str)) or value is None:
        raise UserError(f"expected a number, got {value!r}")
    try:
        return jnp.asarray(value, jnp.result_type(float))
    except (TypeError, ValueError):
        raise UserError(f"expected a number, got {value!r}") from None


def check_applies(name: str, value: Any, applies: bool, why: str) -> None:
    """Raise `UserError` for an option that was set (is not None) where it would be ignored.

    Args:
        name: of the option.
        value: what it was set to; None where it was not.
        applies: whether it would be read.
        why: the rest of the sentence: with what it does not apply, and what to do.
    """
    if value is not None and not applies:
        raise UserError(f"{name} = {_shown(value)} does not apply {why}")


def check_range(name: str, value: Any, low: float, high: float = float("inf")) -> None:
    """Raise `UserError` unless `low <= value <= high` everywhere; traced values and None pass."""
    if value is None or isinstance(value, jax.core.Tracer):
        return
    array = np.asarray(value)
    if array.dtype == object or not bool(np.all((array >= low) & (array <= high))):
        raise UserError(f"{name} = {_shown(value)} must lie in [{low:g}, {high:g}]")


def _shown(value: Any) -> str:
    """A value as it was written, not as float32 holds it."""
    return f"{float(value):.6g}" if isinstance(value, jax.Array) and value.ndim == 0 else repr(value)

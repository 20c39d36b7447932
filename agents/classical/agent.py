"""Classical solvers as agents: the same policy, scored like any learner's."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ...envs.economy import Decision, Economy
from ...envs.economy_wrappers import EconomyWrapper
from ...envs.environment import Environment, EnvParams, EnvState, add_agent_axis
from ...envs.history import window_of
from ...errors import UserError
from ..agent import Agent, Context, Policy, Rollout, View
from ..policies.heads import make_auxiliary_head
from . import solve_with, solver, widen
from .inverse import HouseholdsOf, StateOf, check_discrete, state_of


class OfNewest(eqx.Module):
    """From a window of observations to the state behind the newest.

    Attributes:
        inverse: from one observation of each agent.
    """

    inverse: StateOf | HouseholdsOf

    @property
    def params(self) -> EnvParams:
        """Of the economy that was solved."""
        return self.inverse.params

    def __call__(self, observation: Float[Array, "A W F1"]) -> EnvState:
        return self.inverse(observation[:, -1, :-1])  # without the flag


class Solution(eqx.Module):
    """A solver's answer as a function of observations.

    Attributes:
        policy, auxiliary: the reference's functions of the state.
        state_of: from observations to the state.
    """

    policy: Any
    auxiliary: Any
    state_of: StateOf | HouseholdsOf | OfNewest


class Doubled(eqx.Module):
    """A pytree whose real leaves are each the sum of two of float32, so that a float32 run keeps float64's digits."""

    high: PyTree
    low: PyTree

    @classmethod
    def of(cls, tree: PyTree) -> Doubled:
        """Split every real leaf."""

        def low(leaf: np.ndarray) -> np.ndarray:
            rest = np.where(np.isfinite(leaf), leaf - leaf.astype(np.float32), 0.0)
            return rest.astype(np.float32)

        leaves = jax.tree.map(np.asarray, tree)
        high = jax.tree.map(lambda leaf: leaf.astype(np.float32) if _is_real(leaf) else leaf, leaves)
        return cls(high, jax.tree.map(lambda leaf: low(leaf) if _is_real(leaf) else leaf, leaves))

    def tree(self) -> PyTree:
        """The tree, in the precision of the day."""
        dtype = jnp.result_type(float)

        def whole(high: Array, low: Array) -> Array:
            if not jnp.issubdtype(high.dtype, jnp.floating):
                return high
            return jnp.asarray(high, dtype) + jnp.asarray(low, dtype)

        return jax.tree.map(whole, self.high, self.low)


class ClassicalState(NamedTuple):
    """The solution, and the decision of the environment's centre that is played until it counts as solved."""

    solution: Doubled
    centre: Decision
    solved: Bool[Array, ""]


class ClassicalPolicy(Policy):
    """Plays the solution; before the first update, the centre."""

    env: Economy = eqx.field(static=True)
    state: ClassicalState

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        return self.decision(view).action

    def decision(self, view: View) -> Decision:
        solution = self.state.solution.tree()
        state = solution.state_of(view.observation)
        auxiliary = None if solution.auxiliary is None else solution.auxiliary(state)
        found = add_agent_axis(self.env, Decision(solution.policy(state), auxiliary))
        centre = self.state.centre if auxiliary is not None else Decision(self.state.centre.action)

        def chosen(solved: Array, central: Array) -> Array:
            return jnp.where(self.state.solved, solved, central.astype(solved.dtype))

        return jax.tree.map(chosen, found, centre)


class Classical(Agent):
    """The answer of a solver. It is computed when the agent is made, by `classical_agent`; an update only puts it on.

    Attributes:
        solver: its name.
        env: what was solved.
        found: the equilibrium concept that was found.
        solution: the answer.
    """

    solver: str = eqx.field(static=True)
    env: Economy = eqx.field(static=True)
    found: str = eqx.field(static=True)
    solution: Doubled

    def required(self) -> frozenset[str]:
        return frozenset()

    def concept(self, env: Environment) -> str:
        return self.found

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        mine = self.solution.tree().state_of.params
        if env != self.env or not all(jax.tree.leaves(jax.tree.map(_near, mine, params))):
            raise UserError(
                f"{self.solver!r} solved {self.env.name} in another variant or calibration; make the agent anew by "
                f"classical_agent({self.solver!r}, env, params)"
            )

    def init(self, key: Array, env: Environment, params: EnvParams) -> ClassicalState:
        solution = jax.tree.map(jnp.asarray, self.solution)
        return ClassicalState(solution, central_decision(self.env, params), jnp.zeros((), bool))

    def initial_memory(self, state: PyTree, env: Environment, params: EnvParams) -> tuple:
        return ()

    def act(self, state: ClassicalState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        return memory, self.policy(state)(view), ()

    def update(self, state: ClassicalState, rollout: Rollout, context: Context, key: Array):
        return state._replace(solved=jnp.ones((), bool)), {}

    def policy(self, state: ClassicalState) -> ClassicalPolicy:
        return ClassicalPolicy(self.env, state)


def classical_agent(name: str, env: Environment, params: EnvParams, **options: Any) -> Classical:
    """Solve an economy, and make an agent of the answer.

    Args:
        name: of the solver, a key of `SOLVERS`.
        env, params: the economy, with concrete parameters.
        **options: of the solver.

    Raises:
        UserError: an unknown solver or option, a solver that does not fit, or observations that do not tell the state
            that the answer depends on.

    Example:
        >>> from equimorph import make
        >>> env, params = make("BrockMirman-v0")
        >>> classical_agent("closed_form", env, params).concept(env)
        'planner'
    """
    solver(name)
    solved = env.solvable() if isinstance(env, EconomyWrapper) else env
    if isinstance(solved, Economy):
        check_discrete(solved, params)
    reference = solve_with(name, solved, params, **options)
    assert isinstance(env, Economy)
    assert isinstance(solved, Economy)
    with jax.enable_x64(True):
        wide = jax.tree.map(jnp.asarray, widen(params))
        inverse = state_of(solved, wide, reference.policy)
    if window_of(env) is not None:
        inverse = OfNewest(inverse)
    solution = Solution(reference.policy, reference.auxiliary, inverse)
    return Classical(name, env, reference.concept, Doubled.of(solution))


def central_decision(env: Economy, params: EnvParams) -> Decision:
    """The centre of every agent's action and the auxiliary outputs of a zero network, `[A, ...]`."""
    head = make_auxiliary_head(env, params)
    auxiliary = None if head is None else head(jnp.zeros(head.size, jnp.result_type(float)))
    one = Decision(jax.tree.map(jnp.asarray, env.centre(params)), auxiliary)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (env.num_agents, *leaf.shape)), one)


def options_of(name: str) -> dict[str, Any]:
    """A solver's options and their annotations.

    Raises:
        UserError: there is no solver of that name.
    """
    return keyword_options(solver(name))


def keyword_options(function: Callable) -> dict[str, Any]:
    """A function's keyword-only arguments and their annotations."""
    hints = typing.get_type_hints(function)
    every = inspect.signature(function).parameters.values()
    return {each.name: hints[each.name] for each in every if each.kind is inspect.Parameter.KEYWORD_ONLY}


def _near(one: Any, other: Any) -> bool:
    """Equal, but for the digits that float32 drops."""
    return bool(np.allclose(one, other, rtol=1e-6, atol=0))


def _is_real(leaf: np.ndarray) -> bool:
    return np.issubdtype(leaf.dtype, np.floating)

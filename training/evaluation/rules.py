"""Policies and known answers as one thing: a map from a state to a decision, which passes through jit."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from ...agents.agent import Policy
from ...agents.deqn import policy_decision
from ...envs.economy import Decision, Economy
from ...envs.environment import EnvParams, EnvState, Reference

Decide = Callable[[EnvState], Decision]


class Rule(eqx.Module):
    """What decides in an economy. A pytree: a program compiled for one serves every other of its structure."""

    @abc.abstractmethod
    def bind(self, env: Economy, params: EnvParams) -> Decide:
        """The map from one state to the decision there, in the economy's own shapes."""


class PolicyRule(Rule):
    """A policy on what it observes."""

    policy: Policy

    def bind(self, env: Economy, params: EnvParams) -> Decide:
        return policy_decision(self.policy, env, params)


class ReferenceRule(Rule):
    """The known answer.

    Attributes:
        numeric: a solver's; None for the economy's closed form, which is made from the parameters where it is used.
    """

    numeric: Reference | None

    def bind(self, env: Economy, params: EnvParams) -> Decide:
        found = reference_of(env, params, self.numeric)
        assert found is not None

        def decide(state: EnvState) -> Decision:
            auxiliary = None if found.auxiliary is None else found.auxiliary(state)
            return Decision(found.policy(state), auxiliary)

        return decide


class Known(NamedTuple):
    """The known answer, and where it is from.

    Attributes:
        reference: the answer itself.
        numeric: the same where a solver found it, None where it is a closed form.
        source: "closed form", or the solver's name.
    """

    reference: Reference
    numeric: Reference | None
    source: str

    @property
    def rule(self) -> ReferenceRule:
        """The answer as a rule."""
        return ReferenceRule(self.numeric)


def known_answer(env: Economy, params: EnvParams) -> Known | None:
    """The economy's closed form, else its classical solver's answer, else None.

    Args:
        env, params: the economy; concrete, not traced.
    """
    closed = env.reference(params)
    if closed is not None:
        return Known(closed, None, "closed form")
    if env.solver is None:
        return None
    from ...agents import classical

    numeric = classical.solve(env, params)
    return None if numeric is None else Known(numeric, numeric, env.solver)


def reference_of(env: Economy, params: EnvParams, numeric: Reference | None) -> Reference | None:
    """The known answer inside a compiled program: the solver's where it is handed in, else the closed form."""
    return env.reference(params) if numeric is None else numeric


def supplies_auxiliary(rule: Rule, env: Economy, params: EnvParams) -> bool:
    """Whether decisions come with everything that the economy's conditions need."""
    if env.auxiliary(params) is None:
        return True

    def one(key) -> PyTree:
        return rule.bind(env, params)(env.initial_state(key, params)).auxiliary

    return eqx.filter_eval_shape(one, jax.random.key(0)) is not None

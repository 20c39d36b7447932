"""An economy's report: what each kind of evidence says, put together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ...agents.agent import Policy
from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState, Reference
from .episodes import stack
from .errors import BINDING, error_report, finite_part, measure
from .games import is_game, known_exploitability, trained_exploitability
from .rules import Known, PolicyRule, Rule, known_answer, reference_of, supplies_auxiliary
from .simulate import anchor_paths, horizon_of, paths

FEWEST_STATES = 20_000
Evaluation = dict[str, Any]


class Case(NamedTuple):
    """What every kind of evidence is about.

    Attributes:
        env, params: the economy, in float64.
        rule: the policy that is reported on.
        known: the known answer, if there is one.
        visited: states on the policy's paths `[S, ...]`, all finite.
        seed: of everything random.
    """

    env: Economy
    params: EnvParams
    rule: Rule
    known: Known | None
    visited: EnvState
    seed: int


def evaluate_economy(
    env: Economy,
    params: EnvParams,
    policies: list[Policy],
    num_episodes: int,
    horizon: int | None,
    seed: int,
    *,
    full: bool = False,
    exploitability: str = "known",
) -> list[Evaluation]:
    """Reports of policies of one structure against the economy's known answer, all on the same shocks.

    To be called in float64 (`jax.enable_x64(True)`), with parameters and policies of that width.

    Args:
        env, params, policies, num_episodes, horizon, seed, exploitability: as in `evaluate`.
        full: the full report of the first policy.
    """
    known = known_answer(env, params)
    reference, numeric = (None, None) if known is None else (known.reference, known.numeric)
    length = horizon_of(env, params, reference) if horizon is None else horizon
    visited_for = min(length, int(params.max_steps_in_episode))
    n = max(num_episodes, math.ceil(FEWEST_STATES / visited_for))
    key = jax.random.key(seed)
    ours = paths(stack(policies), params, key, numeric, env=env, n=n, steps=length, kept=visited_for)
    valued = reference is not None and reference.value is not None
    anchors = anchor_paths(params, key, numeric, env=env, n=n, steps=length) if valued else None
    evaluations = []
    for index, policy in enumerate(policies):
        one = jax.tree.map(lambda x, i=index: x[i], ours)
        visited, lost = finite_part(one["states"])
        case = Case(env, params, PolicyRule(policy), known, visited, seed)
        found = _report(case, one, anchors)
        if index == 0 and exploitability == "trained" and "exploitability" not in found:
            found |= trained_exploitability(case.rule, env, params, seed)
        if lost:
            found["states_not_finite"] = lost / jax.tree.leaves(one["states"])[0].shape[0]
        if full and index == 0:
            from .full import full_report

            found = full_report(case, found)
        evaluations.append(found)
    return evaluations


def _report(case: Case, ours: dict, anchors: Any) -> Evaluation:
    """One policy's report from its simulated paths."""
    env, params, known = case.env, case.params, case.known
    kept = ~ours["floored"] & jnp.isfinite(ours["value"])
    found: Evaluation = {"floored": float(1 - kept.mean())}
    if not env.one_shot:
        found["effective_discount"] = float(ours["effective_discount"])
    finite = _is_finite(env, ours) and bool(kept.any())
    if finite:
        found["return"] = float(ours["value"][kept].mean())
    if anchors is not None:
        best, uniform = anchors
        if finite:
            found |= _against_reference(env, params, ours, best, uniform, kept)
        elif not _is_finite(env, ours):
            found["welfare_loss"] = 1.0
    if known is not None:
        found["reference"] = {
            "concept": known.reference.concept,
            "source": known.source,
            "tolerance": float(known.reference.tolerance),
        }
        found |= _policy_errors(case, ours["states"], ours["actions"])
    measured = measure(case.rule, case.visited, env, params) if _any(case.visited) else None
    if measured is not None:
        period = np.asarray(case.visited.time)
        found |= error_report(measured, env, 2 * period > period.max())
    if known is not None and "binding" in found and supplies_auxiliary(known.rule, env, params):
        theirs = _slacks(known.rule, case.visited, params, env=env)
        for name, limit in found["binding"].items():
            limit["reference_share"] = float(jnp.mean(theirs[name] < BINDING))
    if is_game(env):
        found |= known_exploitability(case.rule, env, params) or {}
    return found


def _is_finite(env: Economy, ours: dict) -> bool:
    return env.one_shot or bool(ours["effective_discount"] < 1)


def _any(states: EnvState) -> bool:
    return jax.tree.leaves(states)[0].shape[0] > 0


def _against_reference(env: Economy, params, ours, best, uniform, kept) -> Evaluation:
    """Regret, welfare loss and score, paired path by path."""
    difference = (best["value"] - ours["value"])[kept]
    mean_best, mean_ours = best["value"][kept].mean(), ours["value"][kept].mean()
    error = difference.std() / jnp.sqrt(jnp.maximum(kept.sum() - 1, 1))
    found = {"regret": float(difference.mean()), "regret_se": float(error)}
    if env.consumption_equivalent(mean_ours, mean_best, params) is not None:
        loss, slope = jax.value_and_grad(env.consumption_equivalent)(mean_ours, mean_best, params)
        found |= {"welfare_loss": float(loss), "welfare_loss_se": float(jnp.abs(slope) * error)}
    scored = kept & jnp.isfinite(uniform["value"]) & ~uniform["floored"]
    if _is_finite(env, uniform) and bool(scored.any()):
        anchor = uniform["value"][scored].mean()
        found["score"] = float((ours["value"][scored].mean() - anchor) / (best["value"][scored].mean() - anchor))
    return found


def _policy_errors(case: Case, states: EnvState, actions: PyTree) -> Evaluation:
    """Largest differences from the reference, of actions and, where both have them, of multipliers and prices."""
    assert case.known is not None
    action, auxiliary = _differences(case.rule, states, actions, case.params, case.known.numeric, env=case.env)
    found = {"policy_error": float(np.max([np.max(gap) for gap in jax.tree.leaves(action)]))}
    if auxiliary is not None:
        found["auxiliary_error"] = float(np.max([np.max(gap) for gap in jax.tree.leaves(auxiliary)]))
    return found


@eqx.filter_jit
def _slacks(rule: Rule, states: EnvState, params: EnvParams, *, env: Economy) -> dict[str, Array]:
    decide = rule.bind(env, params)
    return jax.vmap(lambda state: env.slacks(state, decide(state), params))(states)


@eqx.filter_jit
def _differences(rule: Rule, states, actions: PyTree, params: EnvParams, numeric: Reference | None, *, env: Economy):
    reference = reference_of(env, params, numeric)
    assert reference is not None

    def gap(ours: Array, theirs: Array) -> Array:
        return jnp.max(jnp.abs(ours - theirs))

    action = jax.tree.map(gap, actions, jax.vmap(reference.policy)(states))
    ours = jax.vmap(lambda s: rule.bind(env, params)(s).auxiliary)(states)
    if ours is None or reference.auxiliary is None:
        return action, None
    return action, jax.tree.map(gap, ours, jax.vmap(reference.auxiliary)(states))

"""Scoring a policy: against the known answer, on the same shocks, in the units of its field."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..agents.agent import Policy, View
from ..agents.deqn import policy_decision
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams, EnvState, Reference, add_agent_axis, drop_agent_axis
from ..errors import UserError
from .conditions import euler_errors, expectation_nodes
from .config import EnvConfig, build_env
from .loop import check_count
from .run import Run, load

Act = Callable[[EnvState, Array], PyTree]
Evaluation = dict[str, Any]

TAIL = 1e-4
LONGEST = 2000
FEWEST_STATES = 20_000


def evaluate(
    run: Run | str | os.PathLike,
    *,
    num_episodes: int | None = None,
    horizon: int | None = None,
    seed: int | None = None,
) -> Evaluation:
    """Score a run's policy, with the untrained policy beside it.

    Economies are scored in float64. A policy and the reference face the same shocks, path by path, and the noise of
    the shocks themselves is taken out where the reference's value is exact (see `simulate`); beyond `horizon` both are
    worth the reference's value of the state they have come to. Other tasks are scored over whole episodes.

    Args:
        run: a `Run`, or its folder.
        num_episodes: paths, side by side; None takes the run's setting. An economy takes more where fewer would visit
            less than 20,000 states.
        horizon: steps in each; None takes the run's setting, or chooses: until less than 1e-4 of the value is left, or
            the environment's time limit (2000 where one of Gymnasium's has none).
        seed: of the shocks.

    Returns:
        What is defined for the environment, of:

        * `score`: the environment's own score of a finished episode (for CellCount the squared error), its standard
          deviation over episodes in `score_sd`. For an economy `(J - J_uniform) / (J_reference - J_uniform)`: 0 for
          uniformly random actions and 1 for the reference. Otherwise the return. Actions are deterministic;
          `score_sampled` and `return_sampled` are of sampled ones, as in training.
        * `return`: for an economy expected discounted utility; otherwise the mean undiscounted return of an episode.
        * `regret`: mean of (reference - policy) discounted utility, paired; its standard error in `regret_se`.
        * `welfare_loss`: the share of consumption one would give up for ever to have the reference instead;
          `welfare_loss_se`. A policy whose value is not finite has a loss of 1.
        * `policy_error`: largest absolute difference from the reference's action, over the states the policy visits in
          its first `max_steps_in_episode` periods.
        * `euler`: `mean`, `median`, `p90`, `p99`, `p999`, `max` of the absolute Euler error in units of consumption,
          with conditional expectations by quadrature at those states.
        * `floored`: share of paths on which consumption was held up by the economy's floor, or whose value is not a
          number; they are not scored.
        * `effective_discount`: the mean along the paths; 1 or more means that the policy's value is not finite.
        * `untrained`: the same for the policy before training.

    Raises:
        UserError: no run folder, a count below 1, or the environment's concept is not the one the run was trained for.
    """
    run = run if isinstance(run, Run) else load(run)
    settings = run.config.evaluation
    num_episodes = settings.num_episodes if num_episodes is None else num_episodes
    horizon = settings.horizon if horizon is None else horizon
    seed = settings.seed if seed is None else seed
    for name, value in (("num_episodes", num_episodes), ("horizon", horizon)):
        if value is not None:
            check_count(name, value)
    if isinstance(run.env, Economy):
        check_concept(run.env, run.params, run.concept)
    policies = [run.agent.policy(state) for state in (run.state, run.untrained_state)]
    trained, untrained = evaluate_policies(run.config.env, policies, num_episodes, horizon, seed)
    return trained | {"untrained": untrained}


def evaluate_policies(
    config: EnvConfig, policies: list[Policy], num_episodes: int, horizon: int | None, seed: int
) -> list[Evaluation]:
    """Reports of policies of one structure, side by side, as `evaluate` describes them.

    Args:
        config: the environment. Economies are made anew in float64.
        policies, num_episodes, horizon, seed: as in `evaluate`.
    """
    env, params = build_env(config)
    if isinstance(env, HostEnvironment):
        from .host import evaluate_on_host

        return evaluate_on_host(env, params, policies, num_episodes, horizon, seed)
    if not isinstance(env, Economy):
        return evaluate_episodes(env, params, policies, num_episodes, horizon, seed)
    with jax.enable_x64(True):
        env, params = build_env(config)
        policies = [jax.tree.map(_to_float64, policy) for policy in policies]
        return evaluate_economy(env, params, policies, num_episodes, horizon, seed)


def check_concept(env: Environment, params: EnvParams, concept: str) -> None:
    """Refuse to score a solution of one equilibrium concept against the answer of another.

    Raises:
        UserError: names both.
    """
    reference = env.reference(params)
    if reference is not None and reference.concept != concept:
        raise UserError(
            f"{env.name}: the policy was trained for the {concept!r} solution and cannot be scored against the "
            f"{reference.concept!r} one; evaluate it with concept={concept!r}"
        )


# -- tasks with episodes -----------------------------------------------------------------------------------------------


def evaluate_episodes(
    env: Environment, params: EnvParams, policies: list[Policy], num_episodes: int, horizon: int | None, seed: int
) -> list[Evaluation]:
    """Scores of policies of one structure over whole episodes, all on the same keys."""
    steps = int(params.max_steps_in_episode) if horizon is None else horizon
    run = functools.partial(
        _episodes, _stack(policies), params, jax.random.key(seed), env=env, n=num_episodes, steps=steps
    )
    greedy, sampled = (jax.tree.map(np.asarray, run(sample=sample)) for sample in (False, True))
    evaluations = []
    for index in range(len(policies)):
        returns, scores, finished = (values[index] for values in greedy)
        found = {"score": float(scores.mean()), "score_sd": float(scores.std()), "return": float(returns.mean())}
        found |= {"score_sampled": float(sampled[1][index].mean()), "return_sampled": float(sampled[0][index].mean())}
        evaluations.append(found | {"episodes": num_episodes, "finished": float(finished.mean())})
    return evaluations


@eqx.filter_jit
def _episodes(stacked: Policy, params: EnvParams, key: Array, *, env: Environment, n: int, steps: int, sample: bool):
    """Undiscounted returns, scores and whether the end was reached, `[P, N]`."""
    key_reset, key_steps = jax.random.split(key)
    start = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, n), params)[1]

    def simulate(policy):
        act = policy_action(policy, env, params, sample=sample)

        def step(carry, key_step):
            state, total, done = carry

            def one(k, s):
                _, following, reward, terminated, _ = env.step_env(k, s, act(s, jax.random.fold_in(k, 1)), params)
                alive = env.agent_mask(s, params)
                earned = jnp.where(alive, add_agent_axis(env, reward), 0).sum() / jnp.maximum(alive.sum(), 1)
                return following, earned, terminated | env.is_truncated(following, params)

            following, earned, ends = jax.vmap(one)(jax.random.split(key_step, n), state)
            state = jax.tree.map(
                lambda new, old: jnp.where(done.reshape(done.shape + (1,) * (new.ndim - 1)), old, new), following, state
            )
            return (state, total + jnp.where(done, 0, earned), done | ends), None

        carry = (start, jnp.zeros((n,), jnp.result_type(float)), jnp.zeros((n,), bool))
        (state, total, done), _ = jax.lax.scan(step, carry, jax.random.split(key_steps, steps))
        score = jax.vmap(env.score, (0, None))(state, params) if "score" in env.capabilities else total
        return total, score, done

    return jax.lax.map(simulate, stacked)


# -- economies ---------------------------------------------------------------------------------------------------------


def evaluate_economy(
    env: Economy, params: EnvParams, policies: list[Policy], num_episodes: int, horizon: int | None, seed: int
) -> list[Evaluation]:
    """Reports of policies of one structure against the economy's reference, all on the same shocks.

    To be called in float64 (`jax.enable_x64(True)`), with parameters and policies of that width.
    """
    reference = env.reference(params)
    length = _horizon(env, params, reference) if horizon is None else horizon
    visited_for = min(length, int(params.max_steps_in_episode))
    paths = max(num_episodes, math.ceil(FEWEST_STATES / visited_for))
    key = jax.random.key(seed)
    shape = {"env": env, "n": paths, "steps": length, "kept": visited_for}
    ours = _paths(_stack(policies), params, key, **shape)
    known = reference is not None and reference.value is not None
    anchors = _anchor_paths(params, key, **shape) if known else None
    evaluations = []
    for index, policy in enumerate(policies):
        one = jax.tree.map(lambda x, i=index: x[i], ours)
        evaluations.append(_report(env, params, policy, one, anchors, reference))
    return evaluations


def _report(env: Economy, params, policy, ours, anchors, reference: Reference | None) -> Evaluation:
    """One policy's report from its simulated paths."""
    kept = ~ours["floored"] & jnp.isfinite(ours["value"])
    found: Evaluation = {"floored": float(1 - kept.mean()), "effective_discount": float(ours["effective_discount"])}
    finite = bool(ours["effective_discount"] < 1) and bool(kept.any())
    if finite:
        found["return"] = float(ours["value"][kept].mean())
    if anchors is not None:
        best, uniform = anchors
        found |= _against_reference(env, params, ours, best, uniform, kept) if finite else {"welfare_loss": 1.0}
    if reference is not None:
        found["policy_error"] = _policy_error(ours["states"], ours["actions"], reference.policy)
    if env.auxiliary(params) is None and "conditions" in env.capabilities:
        errors = euler_errors(policy_decision(policy, env, params), ours["states"], env, params)
        if errors is not None:
            found["euler"] = quantiles(np.asarray(errors))
    return found


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
    if bool(uniform["effective_discount"] < 1) and bool(scored.any()):
        anchor = uniform["value"][scored].mean()
        found["score"] = float((ours["value"][scored].mean() - anchor) / (best["value"][scored].mean() - anchor))
    return found


def _horizon(env: Economy, params: EnvParams, reference: Reference | None) -> int:
    """Until less than `TAIL` of the value is left under the reference's effective discount."""
    state = env.initial_state(jax.random.key(0), params)
    action = drop_agent_axis(env, _centres(env, params)) if reference is None else reference.policy(state)
    discount = float(jnp.max(env.effective_discount(state, action, params)))
    if discount >= 1:
        return LONGEST
    return min(LONGEST, math.ceil(math.log(TAIL) / math.log(discount)))


def _centres(env: Environment, params: EnvParams) -> PyTree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (env.num_agents, *x.shape)), env.centre(params))


@eqx.filter_jit
def _paths(stacked: Policy, params: EnvParams, key: Array, *, env: Economy, n: int, steps: int, kept: int):
    """`simulate` for each of the stacked policies."""
    return jax.lax.map(lambda p: simulate(policy_action(p, env, params), params, key, env, n, steps, kept), stacked)


@eqx.filter_jit
def _anchor_paths(params: EnvParams, key: Array, *, env: Economy, n: int, steps: int, kept: int):
    """The same paths under the reference and under uniformly random actions."""
    reference = env.reference(params)
    assert reference is not None
    space = env.action_space(params)
    best = simulate(lambda s, k: reference.policy(s), params, key, env, n, steps, 1)
    uniform = simulate(lambda s, k: space.sample(jax.random.fold_in(k, 1)), params, key, env, n, steps, 1)
    return best, uniform


def simulate(act: Act, params: EnvParams, key: Array, env: Economy, n: int, steps: int, kept: int):
    """Follow a policy along `n` paths of `steps` periods, whatever the time limit.

    Shocks depend on `key` only, so policies can be compared path by path. Where the reference's value V* is known
    exactly, the shocks' own noise is taken out too: a path is worth `V*(s_0)` less the discounted sum of what each
    action gives up, `V*(s) - u(s, a) - beta E[V*(s')]`, which has the same mean (Kakade and Langford 2002, lemma 6.1).
    Where V* is known but not exactly, a path is worth its discounted utility plus V* of its last state.

    Returns:
        `value` of each path, `[N]`; `floored`, `[N]`; `effective_discount`, its mean; `states` and `actions` of the
        first `kept` periods, `[kept * N, ...]`.
    """
    reference = env.reference(params)
    worth = None if reference is None else reference.value
    exact = worth if reference is not None and reference.tolerance == 0 else None
    key_start, key_steps = jax.random.split(key)
    start = jax.vmap(env.initial_state, (0, None))(jax.random.split(key_start, n), params)
    dtype = jnp.result_type(float)

    def step(carry, key_step):
        state, total, weight, floored, growth = carry

        def one(k, s):
            action = env.legal_action(act(s, k), params)[0]
            _, following, _, _, info = env.step_env(k, s, action, params)
            discount = jnp.mean(env.step_discount(s, following, params))
            earned = info["utility"]
            if exact is not None:
                earned = earned + continuation(env, params, exact, s, action) - exact(s)
            effective = jnp.mean(env.effective_discount(s, action, params))
            return following, action, jnp.mean(earned), discount, info["floored"], effective

        following, action, earned, discount, held, effective = jax.vmap(one)(jax.random.split(key_step, n), state)
        carry = (following, total + weight * earned, weight * discount, floored | held, growth + effective.mean())
        return carry, (state, action)

    keys = jax.random.split(key_steps, steps)
    total = jnp.zeros((n,), dtype) if exact is None else per_path(exact, start)
    carry = (start, total, jnp.ones((n,), dtype), jnp.zeros((n,), bool), jnp.zeros((), dtype))
    carry, visited = jax.lax.scan(step, carry, keys[:kept])
    carry, _ = jax.lax.scan(lambda c, k: (step(c, k)[0], None), carry, keys[kept:])
    state, total, weight, floored, growth = carry
    if worth is not None and exact is None:
        total = total + weight * per_path(worth, state)
    states, actions = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), visited)
    result = {"value": total, "floored": floored, "effective_discount": growth / steps}
    return result | {"states": states, "actions": actions}


def continuation(env: Economy, params: EnvParams, worth, state: EnvState, action: PyTree) -> Float[Array, "..."]:
    """Discounted expected value of next period's state, by quadrature."""
    nodes, weights = expectation_nodes(env, params, state)

    def one(shock):
        following = env.transition(state, action, shock, params)
        return env.step_discount(state, following, params) * worth(following)

    return jnp.tensordot(weights, jax.vmap(one)(nodes), axes=1)


def per_path(worth, states: EnvState) -> Float[Array, " N"]:
    """The value of each state, averaged over agents where there are several."""
    values = jax.vmap(worth)(states)
    return values.reshape(values.shape[0], -1).mean(axis=-1)


def policy_action(policy: Policy, env: Environment, params: EnvParams, *, sample: bool = False) -> Act:
    """The policy as a map from a state and a key to the action that `step` takes: deterministic, or sampled."""

    def act(state: EnvState, key: Array) -> PyTree:
        observation = add_agent_axis(env, env.observe(key, state, None, params))
        view = View(observation, env.agent_mask(state, params), env.action_mask(state, params))
        return drop_agent_axis(env, policy(view, key if sample else None))

    return act


def _policy_error(states: EnvState, actions: PyTree, reference: Callable[[EnvState], PyTree]) -> float:
    wanted = jax.vmap(reference)(states)
    gaps = [np.abs(np.asarray(a - b)) for a, b in zip(jax.tree.leaves(actions), jax.tree.leaves(wanted), strict=True)]
    return float(np.max([gap.max() for gap in gaps]))


def quantiles(errors: np.ndarray) -> Mapping[str, float]:
    """Mean and quantiles of absolute errors, any shape."""
    levels = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = {"mean": float(np.mean(errors))}
    found |= {name: float(np.quantile(errors, level)) for name, level in levels.items()}
    return found | {"max": float(np.max(errors))}


def _stack(policies: list[Policy]) -> Policy:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)


def _to_float64(leaf: Array) -> Array:
    return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

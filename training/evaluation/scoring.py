"""Scoring a policy: against the known answer, on the same shocks, in the units of its field."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ...agents.agent import Policy
from ...envs.adapters.gymnasium_host import HostEnvironment
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams
from ...errors import UserError, unknown
from ..config import EnvConfig, build_env
from ..loop import check_count
from ..run import Run, load
from .economies import evaluate_economy
from .episodes import evaluate_episodes
from .games import is_game

Evaluation = dict[str, Any]

EXPLOITABILITY = ("known", "trained")


def evaluate(
    run: Run | str | os.PathLike,
    *,
    num_episodes: int | None = None,
    horizon: int | None = None,
    seed: int | None = None,
    full: bool = False,
    exploitability: str = "known",
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
        full: for an economy, add everything below "With `full`"; it takes some ten times as long.
        exploitability: "known", by the economy's own formula, where it has one; "trained": where it has none, a best
            response is trained for each player, which takes minutes.

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
          its first `max_steps_in_episode` periods; `auxiliary_error`, the same of multipliers and prices.
        * `reference`: what the known answer is: its `concept`, its `source` ("closed form" or a solver) and
          `tolerance`, the absolute error that its actions may have themselves.
        * `euler`: `mean`, `median`, `p90`, `p99`, `p999`, `max` of the absolute Euler error in units of consumption,
          with conditional expectations by quadrature at those states; and `not_finite`, their share, where some are
          not numbers. `euler_conditions` is the same for each condition. Absent where conditions need multipliers
          that the policy has no outputs for.
        * `residuals`: the same of every equilibrium condition, unit-free; `complementarity`: of those that are
          Fischer-Burmeister functions.
        * `binding`: of each limit, the `share` of cases in which it binds, the same in the second half of the paths
          (`late_share`), where first states matter little, and of the reference in the same states
          (`reference_share`); and Euler errors where it binds (`euler_binding`) and elsewhere (`euler_slack`).
        * `exploitability`: in a game, the most that one player gains by its best deviation while the others keep to
          the policy, in discounted utility; `gains`, of each player. Where a best response was trained, `gains_se`, and
          `best_response` is "trained": what it finds is a lower bound, and negative where it found nothing better.
        * `floored`: share of paths on which consumption was held up by the economy's floor, or whose value is not a
          number; they are not scored.
        * `effective_discount`: the mean along the paths; 1 or more means that the policy's value is not finite.
        * `untrained`: the same for the policy before training.

        With `full`, for the trained policy:

        * `euler_box`, `euler_sphere_0.01`, `euler_sphere_0.1`, `euler_sphere_1`, `euler_sphere_sd`: Euler errors away
          from the visited states (see `states.box` and `states.sphere`); conditions where there are no Euler errors.
        * `reference.euler`: the reference's own Euler errors at the visited states.
        * `stability`: `spectral_radius` of the closed loop at the policy's fixed point, with the point itself;
          `contraction`, the mean factor by which a small difference between two paths under common shocks grows in a
          period; and a long simulation: the share of paths that end (`not_finite`), that are held up (`floored`), that
          leave ten times the visited range (`left`), and whether it is `bounded`.
        * `solved`: whether residuals, stability and boundedness all pass; `verdict`, each of them, None where it could
          not be told.
        * `moments`: `mean`, `sd`, `autocorrelation` and `skewness` of utility and of the economy's definitions along
          the long simulation, each with a standard error over batches (`mean_se`, ...).
        * `responses`: to each shock, `deterministic` (from the fixed point) and `generalised`.
        * `dynamic_error`: for an economy with a perceived law of motion, den Haan's error of it.
        * `curves`: what the pictures of a report show (see `curves.curves`).
        * `absent`: what is not there, and why.

    Raises:
        UserError: no run folder, a count below 1, `full` of an environment that is no economy, or the environment's
            concept is not the one the run was trained for.
    """
    run = run if isinstance(run, Run) else load(run)
    settings = run.config.evaluation
    num_episodes = settings.num_episodes if num_episodes is None else num_episodes
    horizon = settings.horizon if horizon is None else horizon
    seed = settings.seed if seed is None else seed
    for name, value in (("num_episodes", num_episodes), ("horizon", horizon)):
        if value is not None:
            check_count(name, value)
    check_exploitability(exploitability, run.env)
    if full and not isinstance(run.env, Economy):
        raise UserError(
            f"full=True (--full) does not apply to {run.env.name}: errors off the path, stability and moments are of "
            "economies; leave it out"
        )
    if isinstance(run.env, Economy):
        check_concept(run.env, run.params, run.concept)
    policies = [run.agent.policy(state) for state in (run.state, run.untrained_state)]
    trained, untrained = evaluate_policies(
        run.config.env, policies, num_episodes, horizon, seed, full=full, exploitability=exploitability
    )
    return trained | {"untrained": untrained}


def evaluate_policies(
    config: EnvConfig,
    policies: list[Policy],
    num_episodes: int,
    horizon: int | None,
    seed: int,
    *,
    full: bool = False,
    exploitability: str = "known",
) -> list[Evaluation]:
    """Reports of policies of one structure, side by side, as `evaluate` describes them.

    Args:
        config: the environment. Economies are made anew in float64.
        policies, num_episodes, horizon, seed, exploitability: as in `evaluate`.
        full: the full report of the first policy.
    """
    env, params = build_env(config)
    if isinstance(env, HostEnvironment):
        from ..host import evaluate_on_host

        return evaluate_on_host(env, params, policies, num_episodes, horizon, seed)
    if not isinstance(env, Economy):
        return evaluate_episodes(env, params, policies, num_episodes, horizon, seed)
    with jax.enable_x64(True):
        env, params = build_env(config)
        policies = [to_float64(policy) for policy in policies]
        return evaluate_economy(
            env, params, policies, num_episodes, horizon, seed, full=full, exploitability=exploitability
        )


def check_concept(env: Environment, params: EnvParams, concept: str) -> None:
    """Refuse to score a solution of one equilibrium concept against the answer of another.

    Raises:
        UserError: names both.
    """
    reference = env.reference(params)
    # A solver's answer is of the environment's own concept, so it need not be computed to be compared.
    known = reference.concept if reference is not None else getattr(env, "solver", None) and env.concept
    if known and known != concept:
        raise UserError(
            f"{env.name}: the policy was trained for the {concept!r} solution and cannot be scored against the "
            f"{known!r} one; evaluate it with concept={concept!r}"
        )


def check_exploitability(exploitability: str, env: Environment) -> None:
    """Refuse a way of measuring exploitability that there is not, or a best response where nobody plays against others.

    Raises:
        UserError: names the ways there are, or says why it does not apply.
    """
    if exploitability not in EXPLOITABILITY:
        raise unknown("exploitability", str(exploitability), EXPLOITABILITY)
    if exploitability == "trained" and not (isinstance(env, Economy) and is_game(env)):
        raise UserError(
            f"exploitability='trained' does not apply to {env.name}: it is no game of several players; leave it out"
        )


def to_float64(policy: Policy) -> Policy:
    """The policy in double precision; integers stay as they are."""

    def cast(leaf: Array) -> Array:
        return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, policy)

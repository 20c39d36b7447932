"""What of MAPPO's options goes together, what of them an environment has a use for, and where schedules stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams
from ..errors import UserError, unknown
from .agent import LONGEST_MEMORY, check_applies, check_range
from .continuation import EXPECTATIONS
from .critics import CRITIC_NETWORKS, CRITICS, SHARING, ActorCritic, roles_of
from .options import check_types, number
from .policies.heads import Head, check_distribution
from .policies.networks import check_network
from .policies.planner import check_distil
from .self_play import OPPONENTS
from .steppers import SCHEDULES, check_policy_gradient, check_schedule, scheduled
from .surrogate import RATIOS, VALUE_LOSSES

if TYPE_CHECKING:
    from .mappo import MAPPO

VALUES = ("per_agent", "team_mean")
REWARDS = {"own": 0.0, "team": 1.0}
NORMALISED = ("batch", "minibatch")
UNITS = ("transitions", "rollouts")
ACTORS = ("mlp", "gru", "planner")
LEAST_STD = 1e-6
TEAM_CONCEPTS = ("planner", "cooperative")
"""Concepts of an economy in which all earn the team's mean."""
GAMES = ("nash", "mpe")
"""Concepts in which agents have opponents."""

NUMBERS = {
    "learning_rate": (0, float("inf")),
    "critic_learning_rate": (0, float("inf")),
    "critic_warmup": (0, float("inf")),
    "final_rate": (0, 1),
    "warmup": (0, float("inf")),
    "gamma": (0, 1),
    "gae_lambda": (0, 1),
    "order": (1, float("inf")),
    "clip": (0, float("inf")),
    "target_kl": (0, float("inf")),
    "entropy": (0, float("inf")),
    "entropy_final": (0, 1),
    "value_coefficient": (0, float("inf")),
    "final_std": (LEAST_STD, float("inf")),
    "huber_delta": (1e-6, float("inf")),
    "value_clip": (0, float("inf")),
    "value_decay": (0, LONGEST_MEMORY),
    "reward": (0, 1),
    "epochs": (1, float("inf")),
    "minibatches": (1, float("inf")),
    "chunk_length": (1, float("inf")),
    "snapshots": (2, float("inf")),
}
"""The range of each number."""


def reward_share(value: Any) -> Float[Array, ""] | None:
    """The share of the team's mean in a reward: 0 for "own", 1 for "team", or the number itself."""
    if isinstance(value, str):
        if value not in REWARDS:
            raise unknown("reward", value, REWARDS)
        value = REWARDS[value]
    return number(value)


def _share(agent: MAPPO) -> Float[np.ndarray, "..."] | None:
    """The team's share in rewards; None where it is not set, or traced."""
    traced = agent.reward is None or isinstance(agent.reward, jax.core.Tracer)
    return None if traced else np.asarray(agent.reward, float)


def check_options(agent: MAPPO) -> None:
    """Raise `UserError` for a number out of range, an unknown name, or an option that another leaves unread."""
    check_types(agent)
    for name, (low, high) in NUMBERS.items():
        check_range(name, getattr(agent, name), low, high)
    names: dict[str, Any] = {
        "value": VALUES,
        "ratio": RATIOS,
        "value_loss": VALUE_LOSSES,
        "critic": CRITICS,
        "critic_network": CRITIC_NETWORKS,
        "sharing": SHARING,
        "network": ACTORS,
        "minibatch_unit": UNITS,
        "opponents": OPPONENTS,
    }
    optional = {"expectation": EXPECTATIONS, "normalise_advantages": NORMALISED}
    for name, known in {**names, **optional}.items():
        given = getattr(agent, name)
        if not (given is None and name in optional) and given not in known:
            raise unknown(name, str(given), known)
    check_policy_gradient(agent.stepper)
    check_schedule(agent.schedule, agent.final_rate)
    check_network(agent.widths, agent.activation)
    check_distribution(agent.distribution)
    if agent.network == "gru" and not agent.widths:
        raise UserError("network='gru' needs at least one width, got (); network='mlp' goes without")
    check_distil(agent.network, agent.distil_steps)
    _check_entropy(agent)
    _check_pairs(agent)
    _check_opponents(agent)


def _check_entropy(agent: MAPPO) -> None:
    """The bonus's schedule: it needs a bonus to lower."""
    schedule = agent.entropy_schedule
    if schedule not in SCHEDULES:
        raise unknown("entropy_schedule", str(schedule), SCHEDULES)
    moves = schedule != "constant"
    check_applies("entropy_final", agent.entropy_final, moves, "with entropy_schedule='constant'; use 'linear'")
    nothing = not isinstance(agent.entropy, jax.core.Tracer) and bool(jnp.all(agent.entropy == 0))
    check_applies("entropy_schedule", schedule if moves else None, not nothing, "with entropy = 0; set entropy")


def _check_pairs(agent: MAPPO) -> None:
    """Options of which one leaves the other unread."""
    team = agent.value == "team_mean"
    for name, applies, why in (
        ("value_decay", agent.normalise_values, "with normalise_values=False; leave it out"),
        ("rule", agent.expectation is not None, "without expectation='quadrature'; leave it out"),
        ("order", agent.expectation is not None, "without expectation='quadrature'; leave it out"),
        (
            "chunk_length",
            agent.network == "gru",
            f"with network={agent.network!r}, which has no memory; use network='gru'",
        ),
        ("snapshots", agent.opponents == "average", "with opponents='current'; use opponents='average'"),
        ("huber_delta", agent.value_loss == "huber", "with value_loss='mse'; use value_loss='huber'"),
    ):
        check_applies(name, getattr(agent, name), applies, why)
    share = _share(agent)
    if team and share is not None and np.any(share != 1):
        raise UserError(
            f"reward = {float(share.min()):g} does not apply with value='team_mean', whose one advantage is of the "
            "team's mean reward; leave it out, or use value='per_agent'"
        )
    is_set = agent.critic_network == "set"
    if is_set and agent.critic != "global+local":
        raise UserError(
            f"critic_network='set' reads every agent's observation beside its own, not critic={agent.critic!r}; leave "
            "critic at 'global+local', or use critic_network='mlp'"
        )
    if is_set and not agent.widths:
        raise UserError("critic_network='set' needs at least one width, got (); critic_network='mlp' goes without")
    if agent.agent_id and agent.sharing == "per_agent":
        raise UserError(
            "agent_id=True does not apply with sharing='per_agent', where each agent has networks of its own; leave "
            "one of them out"
        )


def _check_opponents(agent: MAPPO) -> None:
    """What the average of past policies does not go with: a team, which has no opponents, and a memory."""
    share = _share(agent)
    for option, is_set, why in (
        ("value='team_mean'", agent.value == "team_mean", "whose team has no opponents"),
        ("ratio='joint'", agent.ratio == "joint", "whose team has no opponents"),
        ("reward='team'", share is not None and bool(np.any(share == 1)), "whose team has no opponents"),
        ("network='gru'", agent.network == "gru", "whose memory is the current policy's"),
    ):
        if agent.opponents == "average" and is_set:
            raise UserError(f"opponents='average' does not apply with {option}, {why}; leave one of them out")
    if agent.snapshots is not None and agent.snapshots % 2:
        raise UserError(f"snapshots = {agent.snapshots} must be even: neighbours make room in pairs")


def check_population(agent: MAPPO, env: Environment, params: EnvParams) -> None:
    """Refuse what an environment has no use for: options about several agents, roles or fixed slots, and a team.

    Raises:
        UserError: names the option, the reason and what works.
    """
    set_options = {
        "value": agent.value if agent.value != "per_agent" else None,
        "ratio": agent.ratio if agent.ratio != "per_agent" else None,
        "reward": agent.reward,
        "sharing": agent.sharing if agent.sharing != "shared" else None,
        "agent_id": agent.agent_id or None,
        "opponents": agent.opponents if agent.opponents != "current" else None,
        "critic_network": agent.critic_network if agent.critic_network != "mlp" else None,
    }
    if env.num_agents == 1:
        for name, value in set_options.items():
            check_applies(name, value, False, f"to {env.name}, which has one agent; leave it out")
    own = {"sharing": agent.sharing if agent.sharing == "per_agent" else None, "agent_id": set_options["agent_id"]}
    for name, value in own.items():
        check_applies(
            name, value, not env.exchangeable, f"to {env.name}, whose slots are reused by others; leave it out"
        )
    if agent.sharing == "per_role":
        roles = roles_of("per_role", env, params)
        if roles is None or max(roles) == 0:
            raise UserError(
                f"sharing='per_role' does not apply to {env.name}, whose agents all have one role; use "
                + ("sharing='shared'" if env.exchangeable else "sharing='shared' or 'per_agent'")
            )
    _check_concept(agent, env)
    check_applies(
        "opponents",
        set_options["opponents"],
        env.concept in GAMES and not env.exchangeable,
        f"to {env.name}, whose concept is {env.concept!r} and has no opponents; leave it out",
    )
    if agent.network == "gru" and (isinstance(env, Economy) or "host" in env.capabilities):
        raise UserError(
            f"network='gru' has a memory, and policies of {env.name} are scored without one; make it with "
            "make(id, window=8) (env.window=8) and use network='mlp'"
        )


def _check_concept(agent: MAPPO, env: Environment) -> None:
    """Refuse a team's objective where an economy is to be solved by agents that each look after themselves."""
    share = _share(agent)
    given = {
        "value='team_mean'": agent.value == "team_mean",
        "ratio='joint'": agent.ratio == "joint",
        "a reward with a share of the team's": share is not None and bool(np.any(share != 0)),
    }
    found = next((option for option, is_set in given.items() if is_set), None)
    if found is not None and isinstance(env, Economy) and env.concept not in TEAM_CONCEPTS:
        instead = "make it with concept='cooperative', or " if "cooperative" in env.concepts else ""
        raise UserError(
            f"{found} looks for what is best for all together, but the concept of {env.name} is {env.concept!r}; "
            f"{instead}leave it out"
        )


def check_division(agent: MAPPO, num_steps: int, num_envs: int) -> None:
    """Raise `UserError` where a rollout does not divide into the minibatches; the message says what does."""
    length = num_steps if agent.chunk_length is None else agent.chunk_length
    if agent.network == "gru" and num_steps % length:
        works = [n for n in range(1, min(num_steps, 64) + 1) if num_steps % n == 0]
        raise UserError(
            f"num_steps = {num_steps} does not divide into chunks of chunk_length = {length}; chunk_length can be "
            f"{', '.join(map(str, works))}"
        )
    if agent.network == "gru" and agent.minibatch_unit == "transitions":
        total = num_steps // length * num_envs
        what = f"num_steps / chunk_length x num_envs = {total} chunks"
    elif agent.minibatch_unit == "rollouts":
        total, what = num_envs, f"num_envs = {num_envs} rollouts"
    else:
        total = num_steps * num_envs
        what = f"num_steps x num_envs = {num_steps} x {num_envs} = {total} transitions"
    if total % agent.minibatches:
        works = [n for n in range(1, min(total, 64) + 1) if total % n == 0]
        raise UserError(
            f"{what} do not divide into {agent.minibatches} minibatches; minibatches can be "
            f"{', '.join(map(str, works))}"
        )


class Shares(NamedTuple):
    """The larger of two learning rates, `of`, and what share of it the actor's and the critic's are."""

    of: Float[Array, ""]
    actor: Float[Array, ""]
    critic: Float[Array, ""]


def learning_rates(agent: MAPPO, iteration: Array) -> Shares:
    """The rates of an iteration before any schedule; the actor's is 0 until the critic is warm."""
    slow = agent.learning_rate
    fast = slow if agent.critic_learning_rate is None else agent.critic_learning_rate
    largest = jnp.maximum(slow, fast)
    whole = jnp.where(largest > 0, largest, 1)
    moves = (iteration >= agent.critic_warmup).astype(largest.dtype)
    return Shares(largest, moves * slow / whole, fast / whole)


def part_of_the_way(
    before: ActorCritic, after: ActorCritic, actor: Float[Array, ""], critic: Float[Array, ""]
) -> ActorCritic:
    """Networks moved by a share of a step, the actor's and the critic's."""

    def moved(before: PyTree, after: PyTree, share: Float[Array, ""]) -> PyTree:
        return jax.tree.map(lambda old, new: old + share * (new - old), before, after)

    return ActorCritic(moved(before.actor, after.actor, actor), moved(before.critic, after.critic, critic))


def planned_spread(final_std: Float[Array, ""], head: Head, progress: Array) -> PyTree:
    """The log standard deviation after a share of the run."""
    end, share = jnp.log(final_std), jnp.clip(progress, 0, 1)
    return jax.tree.map(lambda start: (start + (end - start) * share).astype(start.dtype), head.spread())


def entropy_at(agent: MAPPO, count: Array, planned: Array) -> Float[Array, ""]:
    """The bonus's coefficient at a gradient step of the run."""
    final = 0.0 if agent.entropy_final is None else agent.entropy_final
    return scheduled(agent.entropy_schedule, agent.entropy, final, count, planned)

"""Log-probabilities of a fixed record under a live policy: what a score-function gradient differentiates."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..envs import spaces
from ..envs.environment import Environment, EnvParams, EnvState, drop_agent_axis
from ..errors import UserError
from .agent import Rollout
from .estimators import before_end
from .pieces import Parts
from .policies.actor import Actor, flat_observation
from .policies.heads import Head, SquashedGaussianHead
from .policies.planner import Planner

SCORES = ("actions", "events", "both", "trajectory")


class Sampled(NamedTuple):
    """Stored while acting: the pre-squash sample, and the standard normal noise it is made of, or None.

    Attributes:
        raw: as the head's `log_prob` takes it.
        noise: `raw = mean + std * noise`; only where the events' score reads it.
    """

    raw: PyTree
    noise: Float[Array, "A ..."] | None


class Record(NamedTuple):
    """What happened, fixed; leaves are `[T, N, ...]`, and None where the score does not read them.

    Attributes:
        inputs: flat observations, `[T, N, A, in]`.
        agent_mask: the living.
        action_mask: legal actions.
        sampled: what was sampled.
        before, after: states around each transition.
        action: as the environment took it; only where the events' trajectory reads it.
        first: whether the transition is of the rollout's first episode.
    """

    inputs: Float[Array, "T N A in"]
    agent_mask: Bool[Array, "T N A"]
    action_mask: PyTree
    sampled: Sampled | None
    before: EnvState | None
    after: EnvState | None
    action: PyTree
    first: Bool[Array, "T N"] | None


class Controller(eqx.Module):
    """A deterministic policy as `Tissue.closed_loop` takes it: observations `[A, O]` to actions `[A, ...]`."""

    nets: Actor | Planner
    head: Head

    def __call__(self, observation: Float[Array, "A O"]) -> PyTree:
        return self.head.mode(self.nets(observation))


def check_score(score: str, env: Environment, params: EnvParams, head: Head, samples: bool, num_steps: int) -> None:
    """Refuse a score of events where no gradient would go from them to the policy.

    Args:
        score: one of `SCORES`.
        env, params: the environment.
        head: of its actions.
        samples: whether the policy samples.
        num_steps: T.

    Raises:
        UserError: names what does not fit, and what works.
    """
    if score == "actions":
        return
    if not isinstance(env.agent_action_space(params), spaces.Box):
        raise UserError(f"{env.name}: score={score!r} differentiates through a continuous action; use score='actions'")
    if samples and not isinstance(head, SquashedGaussianHead):
        raise UserError(
            f"{env.name}: score={score!r} writes a sampled action as its mean and noise, which a "
            f"{type(head).__name__} does not allow; use score='actions'"
        )
    if score == "trajectory":
        _check_trajectory(env, params, num_steps)


def _check_trajectory(env: Environment, params: EnvParams, num_steps: int) -> None:
    """Refuse rollouts from which the simulator's own history cannot be rebuilt."""
    from ..envs.tissue import Tissue  # the simulator is imported where a tissue is used, and nowhere else

    if not isinstance(env, Tissue):
        raise UserError(
            f"{env.name}: score='trajectory' replays a tissue's simulator with the policy inside, and this is not a "
            "tissue itself; use score='events'"
        )
    horizons = np.unique(np.asarray(params.max_steps_in_episode))
    if (horizons != num_steps).any():
        shown = ", ".join(map(str, horizons))
        raise UserError(
            f"{env.name}: score='trajectory' replays whole episodes: num_steps = {num_steps} must be "
            f"max_steps_in_episode = {shown}, with fresh_episodes=True; or use score='events'"
        )


def record_of(score: str, rollout: Rollout) -> Record:
    """What a score reads of a rollout."""
    mask, events = rollout.view.agent_mask, score != "actions"
    record = Record(
        inputs=flat_observation(rollout.view.observation, mask),
        agent_mask=mask,
        action_mask=rollout.view.action_mask,
        sampled=rollout.extras if isinstance(rollout.extras, Sampled) else None,
        before=rollout.env_state if events else None,
        after=rollout.next_env_state if events else None,
        action=rollout.action if score == "trajectory" else None,
        first=before_end(rollout.terminated | rollout.truncated) if score == "trajectory" else None,
    )
    return jax.lax.stop_gradient(record)


def log_prob(
    score: str, nets: Actor | Planner, head: Head, output: Array, record: Record, env: Environment, params: EnvParams
) -> Float[Array, "T N K"]:
    """The score terms of T transitions: of each agent's, K = A; with "trajectory", of the environment's, K = 1.

    A sampled action has two scores, and the mean of the gradient is the same along either: that of the action, with
    what followed as data; and that of the events under it, with its noise as data. "both" is the mean of the two,
    since their sum would count everything twice.

    Args:
        score: one of `SCORES`.
        nets, head: the live policy.
        output: of the network at `record.inputs`.
        record: what happened.
        env, params: the environment.
    """
    if score == "trajectory":
        return _trajectory(Controller(nets, head), record, env, params)
    terms = []
    if score in ("actions", "both"):
        assert record.sampled is not None
        terms.append(head.log_prob(record.sampled.raw, output, nets.spread, record.action_mask))
    if score in ("events", "both"):
        terms.append(_events(_live_action(nets, head, output, record), record, env, params))
    return sum(terms[1:], terms[0]) / len(terms)


def _live_action(nets: Actor | Planner, head: Head, output: Array, record: Record) -> PyTree:
    """The action as a function of the policy, its noise fixed."""
    if record.sampled is None:
        return head.mode(output)
    noise = record.sampled.noise
    assert isinstance(head, SquashedGaussianHead)
    assert noise is not None
    return head.squash(output.reshape(noise.shape) + jnp.exp(nets.spread) * noise)


def _events(action: PyTree, record: Record, env: Any, params: EnvParams) -> Float[Array, "T N A"]:
    """Log-probability of each agent's recorded events, where its state was observed."""

    def one(action, before, after):
        found = env.event_log_prob(before, drop_agent_axis(env, action), after, params)
        return jnp.broadcast_to(found, (env.num_agents,))

    return jax.vmap(jax.vmap(one))(action, record.before, record.after)


def _trajectory(policy: Controller, record: Record, env: Any, params: EnvParams) -> Float[Array, "T N 1"]:
    """Log-probability of the first episode's macro-steps, replayed from its first state with the policy live."""

    def one(before, action, after, first):
        return env.trajectory_log_prob(policy, before, action, after, first, params)

    scores = jax.vmap(one, in_axes=1, out_axes=1)
    return scores(record.before, record.action, record.after, record.first)[..., None]


class Batch(NamedTuple):
    """All that a gradient needs, fixed; leaves `[T, N, ...]`.

    Attributes:
        record: what happened.
        weight: returns less their baselines, 0 where not scored.
        scored: transitions whose score is weighed.
        log_prob: score terms of the policy that acted; None where the batch is used once.
    """

    record: Record
    weight: Float[Array, "T N K"]
    scored: Bool[Array, "T N K"]
    log_prob: Float[Array, "T N K"] | None


def surrogate(score: Float[Array, "T N K"], batch: Batch, clip: Float[Array, ""] | float) -> Parts:
    """Sums over a batch of what is maximised, and of how far the policy went from the one that acted.

    Its gradient at the acting policy is that of the weighed score. Beyond it, where the batch holds that policy's
    terms, it is the clipped surrogate of Schulman et al. (2017, equation 7), with the weight as advantage.

    Args:
        score: terms of the live policy.
        batch: what they are terms of.
        clip: of the ratio of probabilities.
    """
    if score.shape != batch.weight.shape:
        raise ValueError(f"scores of shape {score.shape} and weights of shape {batch.weight.shape} must have one shape")
    if batch.log_prob is None:
        return Parts({"surrogate": jnp.where(batch.scored, score * batch.weight, 0).sum()}, {})
    change = jnp.where(batch.scored, score - batch.log_prob, 0)
    ratio = jnp.exp(change)
    limited = jnp.clip(ratio, 1 - clip, 1 + clip)
    sums = {
        "surrogate": jnp.minimum(ratio * batch.weight, limited * batch.weight).sum(),
        "kl": (ratio - 1 - change).sum(),
        "clipped": (jnp.abs(ratio - 1) > clip).sum().astype(ratio.dtype),
    }
    return Parts(sums, {"ratio_error": jnp.max(jnp.abs(ratio - 1))})

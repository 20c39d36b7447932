"""Estimators over rollouts: advantages, returns, baselines and masked statistics.

Shapes: T time, N environments, A agents. Ends of episodes are per environment, `[T, N]`; `successor` says where each
agent's own future is, and -1 that it has none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def follow(values: Float[Array, "N A"], successor: Int[Array, "N A"]) -> Float[Array, "N A"]:
    """Each agent's entry of next period's `values`: of the slot it moves to, 0 for one that is gone."""
    if values.shape[-1] == 1:
        moved = values
    else:
        moved = jnp.take_along_axis(values, jnp.maximum(successor, 0), axis=-1)
    return jnp.where(successor >= 0, moved, 0)


def generalised_advantage(
    reward: Float[Array, "T N A"],
    value: Float[Array, "T N A"],
    next_value: Float[Array, "T N A"],
    discount: Float[Array, "T N A"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    successor: Int[Array, "T N A"],
    gae_lambda: Float[Array, ""],
) -> Float[Array, "T N A"]:
    """Generalised advantage estimates (Schulman et al. 2016, equation 16), with credit that follows each agent.

    `next_value` is the value of the observation before any reset. A termination has continuation value zero; a
    truncation bootstraps from `next_value`; both cut the recursion. When both are set, termination wins.
    """
    alive = ~terminated[..., None]
    goes_on = ~(terminated | truncated)[..., None]

    def backward(carry, step):
        r, v, next_v, gamma, lives, continues, moves = step
        delta = r + gamma * jnp.where(lives, follow(next_v, moves), 0) - v
        advantage = delta + gamma * gae_lambda * jnp.where(continues, follow(carry, moves), 0)
        return advantage, advantage

    steps = (reward, value, next_value, discount, alive, goes_on, successor)
    return jax.lax.scan(backward, jnp.zeros_like(reward[0]), steps, reverse=True)[1]


def returns_to_go(
    reward: Float[Array, "T N A"],
    discount: Float[Array, "T N A"],
    done: Bool[Array, "T N"],
    successor: Int[Array, "T N A"],
) -> Float[Array, "T N A"]:
    """Discounted sum of an agent's own rewards from each step to the end of its episode or of the rollout."""

    def backward(carry, step):
        r, gamma, continues, moves = step
        total = r + gamma * jnp.where(continues, follow(carry, moves), 0)
        return total, total

    steps = (reward, discount, ~done[..., None], successor)
    return jax.lax.scan(backward, jnp.zeros_like(reward[0]), steps, reverse=True)[1]


def steps_to_end(terminated: Bool[Array, "T N"], truncated: Bool[Array, "T N"]) -> Int[Array, "T N"]:
    """How many transitions each one is before its episode is cut without having terminated; 0 at the cut itself.

    The rollout's last step counts as a cut. Transitions of an episode that terminates inside the rollout get T.
    """
    num_steps = terminated.shape[0]

    def backward(carry, step):
        ends, cut = step
        left = jnp.where(ends, num_steps, jnp.where(cut, 0, jnp.minimum(carry + 1, num_steps)))
        return left, left

    start = jnp.full(terminated.shape[1:], -1, jnp.int32)
    return jax.lax.scan(backward, start, (terminated, truncated), reverse=True)[1].astype(jnp.int32)


def masked_mean(x: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, ""]:
    """Mean over true entries; 0 when there is none. Entries outside the mask may be anything, NaN included."""
    if x.shape != mask.shape:
        raise ValueError(f"values of shape {x.shape} and a mask of shape {mask.shape} must have one shape")
    return jnp.where(mask, x, 0).sum() / jnp.maximum(mask.sum(), 1)


def normalise(x: Float[Array, "..."], mask: Bool[Array, "..."]) -> Float[Array, "..."]:
    """Zero mean and unit standard deviation over true entries, 0 elsewhere; one living entry gives 0."""
    mean = masked_mean(x, mask)
    variance = masked_mean((x - mean) ** 2, mask)
    return jnp.where(mask, (x - mean) / (jnp.sqrt(variance) + 1e-8), 0)


def before_end(done: Bool[Array, "T N"]) -> Bool[Array, "T N"]:
    """The transitions up to and with the first end in each environment's rollout: all of them where there is none."""
    ends = done.astype(jnp.int32)
    return jnp.cumsum(ends, axis=0) - ends == 0


def end_is_seen(done: Bool[Array, "T N"]) -> Bool[Array, "T N"]:
    """Whether a transition's episode comes to its end within the rollout."""
    return jax.lax.cummax(done.astype(jnp.int32), axis=0, reverse=True) > 0


def since_start(
    values: Float[Array, "T N A"], done: Bool[Array, "T N"], successor: Int[Array, "T N A"]
) -> Float[Array, "T N A"]:
    """Each agent's value at the first transition of its episode that the rollout holds, at all that follow."""
    rows = jnp.arange(values.shape[1])[:, None]

    def forward(carry, step):
        came, known = carry
        value, continues, moves = step
        first = jnp.where(known, came, value)
        stays = continues & (moves >= 0)
        slot = jnp.where(stays, moves, values.shape[-1])
        came = jnp.zeros_like(first).at[rows, slot].set(first, mode="drop")
        return (came, jnp.zeros_like(stays).at[rows, slot].set(True, mode="drop")), first

    start = (jnp.zeros_like(values[0]), jnp.zeros(values.shape[1:], bool))
    return jax.lax.scan(forward, start, (values, ~done[..., None], successor))[1]


def with_continuation(
    reward: Float[Array, "T N A"],
    next_value: Float[Array, "T N A"],
    discount: Float[Array, "T N A"],
    terminated: Bool[Array, "T N"],
    truncated: Bool[Array, "T N"],
    successor: Int[Array, "T N A"],
) -> Float[Array, "T N A"]:
    """Rewards with the discounted `next_value` of what a truncation or the rollout's end cut off.

    Returns to go of them are complete. When an episode is both terminated and truncated, termination wins.
    """
    cut = (truncated | jnp.zeros_like(truncated).at[-1].set(True)) & ~terminated
    return reward + jnp.where(cut[..., None], discount * jax.vmap(follow)(next_value, successor), 0)

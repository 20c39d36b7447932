"""Baselines: what is subtracted from a return, made of other data than that return.

Greensmith, Bartlett and Baxter (2004), "Variance reduction techniques for gradient estimates in reinforcement
learning"; Kool, van Hoof and Welling (2019), "Buy 4 REINFORCE samples, get a baseline for free!" (leave-one-out).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .estimators import masked_mean
from .pieces import Parts, put_together
from .policies.networks import MLP
from .steppers import Stepper, Terms
from .value_scale import ValueScale, rescaled

BASELINES = ("none", "constant", "running_mean", "running_mean_per_step", "leave_one_out", "value")
RUNNING = ("running_mean", "running_mean_per_step")
LONGEST_EPISODE = 100_000
"""Steps of an episode for which a mean is kept each."""


def leave_one_out(returns: Float[Array, "T N K"], mask: Bool[Array, "T N K"]) -> Float[Array, "T N 1"]:
    """Mean of the other environments' returns at the same step; 0 where there is none."""
    total = jnp.where(mask, returns, 0).sum(axis=(1, 2), keepdims=True)
    count = mask.sum(axis=(1, 2), keepdims=True)
    own_total = jnp.where(mask, returns, 0).sum(axis=2, keepdims=True)
    own_count = mask.sum(axis=2, keepdims=True)
    return (total - own_total) / jnp.maximum(count - own_count, 1)


class RunningMean(NamedTuple):
    """Exponentially weighted mean over batches of the mean return: `[]`, or `[S]` for each step of an episode.

    Attributes:
        mean: not yet debiased; it starts at zero.
        batches: how many batches it has seen, each step those that reached it.
    """

    mean: Float[Array, "*S"]
    batches: Int[Array, "*S"]

    def debiased(self, decay: Float[Array, ""] | float) -> Float[Array, "*S"]:
        """The mean of what was seen; 0 before anything was."""
        seen = 1 - decay ** self.batches.astype(self.mean.dtype)
        return self.mean / jnp.where(seen > 0, seen, 1)

    def followed(
        self,
        returns: Float[Array, "T N K"],
        mask: Bool[Array, "T N K"],
        time: Int[Array, "T N"] | None,
        decay: Float[Array, ""] | float,
    ) -> RunningMean:
        """The running mean with another batch in it.

        Args:
            returns, mask: the batch.
            time: step of the episode of each transition, below S; None for a mean over all.
            decay: of what was seen before.
        """
        if time is None:
            return RunningMean(decay * self.mean + (1 - decay) * masked_mean(returns, mask), self.batches + 1)
        none = jnp.zeros_like(self.mean)
        total = none.at[time].add(jnp.where(mask, returns, 0).sum(axis=-1))
        count = none.at[time].add(mask.sum(axis=-1).astype(none.dtype))
        mean = decay * self.mean + (1 - decay) * total / jnp.maximum(count, 1)
        reached = count > 0
        return RunningMean(jnp.where(reached, mean, self.mean), self.batches + reached)


class Value(NamedTuple):
    """A learned value of each agent's observation, in units of the returns' running mean and standard deviation."""

    critic: MLP
    stepper: PyTree
    scale: ValueScale

    def __call__(self, inputs: Float[Array, "*batch in"]) -> Float[Array, "*batch"]:
        """Values in units of the reward."""
        mean, std = self.scale.moments()
        return mean + std * self.critic(inputs)[..., 0]

    def knowing(
        self, returns: Float[Array, "T N A"], mask: Bool[Array, "T N A"], decay: Float[Array, ""] | float
    ) -> Value:
        """The same values of everything, in units that know another batch (van Hasselt et al. 2016, PopArt).

        What nothing has taught yet is not kept: the first batch's mean is a better value than 0.
        """
        scale = self.scale.following(returns, mask, decay)
        critic = rescaled(self.critic, self.scale.moments(), scale.moments())
        critic = jax.tree.map(lambda new, old: jnp.where(self.scale.weight > 0, new, old), critic, self.critic)
        return self._replace(critic=critic, scale=scale)


def per_agent(x: Float[Array, "T N K"], num_agents: int) -> Float[Array, "T N A"]:
    """What the environment's agents share, K = 1, for each of them."""
    return jnp.broadcast_to(x, (*x.shape[:-1], num_agents))


def untrained_value(key: Array, size_in: int, widths: tuple[int, ...], activation: str) -> Value:
    """An untrained value of flat observations of length `size_in`; its stepper's state is still to come."""
    zero = jnp.zeros((), jnp.result_type(float))
    return Value(MLP(key, size_in, 1, widths, activation, 1.0), (), ValueScale(zero, zero, zero))


def fitted(
    value: Value,
    batch: tuple[Float[Array, "T N A in"], Float[Array, "T N A"], Bool[Array, "T N A"]],
    stepper: Stepper,
    rate: Float[Array, ""],
    epochs: int,
    micro_batches: int,
) -> tuple[Value, Float[Array, ""]]:
    """The value after some gradient steps on its mean squared error, in its own units, and the mean of that error.

    Args:
        value: whose scale already knows the batch.
        batch: flat observations, returns and a mask of what counts.
        stepper, rate: of the steps.
        epochs: their number.
        micro_batches: parts of the environments that are gone through one at a time.
    """
    mean, std = value.scale.moments()
    count = jnp.maximum(batch[2].sum(), 1)

    def parts(critic, piece):
        inputs, returns, mask = piece
        error = critic(inputs)[..., 0] - (returns - mean) / std
        return Parts({"error": jnp.where(mask, error**2, 0).sum()}, {})

    def objective(critic):
        error = put_together(parts, critic, batch, micro_batches).sums["error"]
        return Terms({"loss/value": error / count}, None, {})

    def step(carry, _):
        critic, state = carry
        critic, state, terms = stepper.step(objective, critic, state, rate)
        return (critic, state), terms.losses["loss/value"]

    (critic, state), losses = jax.lax.scan(step, (value.critic, value.stepper), None, epochs)
    return value._replace(critic=critic, stepper=state), losses.mean()

"""What a stepper is: an objective in, new parameters out."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ...errors import UserError, unknown
from ..agent import check_applies


class Terms(NamedTuple):
    """What an objective returns.

    Attributes:
        losses: named scalars, their sum is minimised.
        residuals: named arrays, each `[B]` or `[B, ...]`, the means of whose squares are the losses; or None.
        aux: named scalars for metrics.
    """

    losses: dict[str, Float[Array, ""]]
    residuals: dict[str, Float[Array, "B ..."]] | None
    aux: dict[str, Array]


Objective = Callable[[PyTree], Terms]


class Separable(NamedTuple):
    """An objective whose residuals belong each to one item of a batch: their Jacobian costs no more than a gradient.

    Attributes:
        whole: the objective.
        one: parameters and one item to that item's part of `Terms.residuals`, without the batch axis.
        items: the batch, leaves `[B, ...]`.
    """

    whole: Objective
    one: Callable[[PyTree, PyTree], dict[str, Array]]
    items: PyTree

    def __call__(self, params: PyTree) -> Terms:
        return self.whole(params)


class Stepper(eqx.Module):
    """How parameters move. Families differ in the derivative they ask for, so a step takes the function itself.

    The attributes are what an agent needs in order to refuse, before anything is traced, what would not work.

    Attributes:
        name: what messages call it: the name that `make_stepper` knows it by.
        needs_residuals: whether the objective must give `Terms.residuals`.
        uses_rate: whether the learning rate is read; a stepper that measures its own step length does not.
        default_rate: the learning rate that suits any objective; None where it depends on the agent, or none is used.
    """

    name: eqx.AbstractVar[str]
    needs_residuals: eqx.AbstractVar[bool]
    uses_rate: eqx.AbstractVar[bool]
    default_rate: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def init(self, params: PyTree, num_terms: int | None = None) -> PyTree:
        """The stepper's own state: a pytree of arrays.

        Args:
            params: what will be trained.
            num_terms: how many `Terms.losses` the objective has; read where each has a state of its own ("mao").
        """

    @abc.abstractmethod
    def step(
        self, objective: Objective, params: PyTree, state: PyTree, rate: Float[Array, ""]
    ) -> tuple[PyTree, PyTree, Terms]:
        """One step at learning rate `rate`: new parameters and state, and the terms before the step."""


SCHEDULES = ("constant", "linear", "cosine")


def scheduled(
    schedule: str,
    rate: Float[Array, ""],
    final: Float[Array, ""] | float,
    count: Int[Array, ""],
    total: Int[Array, ""],
    warmup: int = 0,
) -> Float[Array, ""]:
    """The learning rate at gradient step `count` of `total`: from `rate` to `final * rate`, and there it stays.

    `schedule` is one of `SCHEDULES` (see `check_schedule`). Over the first `warmup` steps all of it grows linearly from
    `rate / warmup`.

    "linear" and "cosine" (Loshchilov and Hutter 2017) move along `count / total`; past the end they never pass `final`.
    """
    if warmup:
        rate = rate * jnp.minimum((count + 1) / warmup, 1.0).astype(rate.dtype)
    if schedule == "constant":
        return rate
    progress = jnp.clip(count / jnp.maximum(total, 1), 0.0, 1.0).astype(rate.dtype)
    if schedule == "linear":
        left = 1 - progress
    else:
        left = (1 + jnp.cos(jnp.pi * progress)) / 2
    return rate * (final + (1 - final) * left)


def check_schedule(schedule: str, final: Any) -> None:
    """Raise `UserError` for an unknown learning-rate schedule, or a final rate (not None) that it would not reach."""
    if schedule not in SCHEDULES:
        raise unknown("learning-rate schedule", str(schedule), SCHEDULES)
    moves = schedule != "constant"
    check_applies("final_rate", final, moves, "with schedule='constant'; use 'linear' or 'cosine'")


def check_rate(stepper: Stepper, learning_rate: Any, schedule: Any, final_rate: Any, warmup: int = 0) -> None:
    """Raise `UserError` for what was set of a learning rate's course where `stepper` would not read it.

    A rate, schedule or final rate is set when it is not None, a warm-up when it is not 0.
    """
    why = f"with stepper {stepper.name!r}, which measures its own step length; leave it out"
    given = {"learning_rate": learning_rate, "schedule": schedule, "final_rate": final_rate, "warmup": warmup or None}
    for option, value in given.items():
        check_applies(option, value, stepper.uses_rate, why)


def check_policy_gradient(stepper: Stepper) -> None:
    """Raise `UserError` for a stepper that an agent learning by a policy gradient cannot use.

    The loss of a policy gradient has the right slope where the batch was sampled and no meaning far from there, so a
    stepper that goes as far as this loss falls has nothing to measure.
    """
    instead = "use a gradient such as 'adam', a stepper per term such as 'pcgrad', or agent 'deqn'"
    if stepper.needs_residuals:
        raise UserError(f"stepper {stepper.name!r} needs residuals, which a policy gradient does not have; {instead}")
    if not stepper.uses_rate:
        raise UserError(
            f"stepper {stepper.name!r} searches for the least loss of one batch, but a policy gradient's loss means "
            f"something only near the policy that sampled it; {instead}"
        )


def is_number(value: Any) -> bool:
    """Whether a hyperparameter is a finite Python number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

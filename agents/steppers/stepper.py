"""What a stepper is: an objective in, new parameters out."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ...errors import UserError, unknown


class Terms(NamedTuple):
    """What an objective returns.

    Attributes:
        losses: named scalars, their sum is minimised.
        residuals: named `[B]` arrays whose squares make the losses, or None.
        aux: named scalars for metrics.
    """

    losses: dict[str, Float[Array, ""]]
    residuals: dict[str, Float[Array, " B"]] | None
    aux: dict[str, Array]


Objective = Callable[[PyTree], Terms]


class Stepper(eqx.Module):
    """How parameters move. Families differ in the derivative they ask for, so a step takes the function itself."""

    @abc.abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """The stepper's own state."""

    @abc.abstractmethod
    def step(
        self, objective: Objective, params: PyTree, state: PyTree, rate: Float[Array, ""]
    ) -> tuple[PyTree, PyTree, Terms]:
        """One step at learning rate `rate`: new parameters and state, and the terms before the step."""


SCHEDULES = ("constant", "linear", "cosine")


def scheduled(
    schedule: str, rate: Float[Array, ""], final: Float[Array, ""] | float, count: Int[Array, ""], total: Int[Array, ""]
) -> Float[Array, ""]:
    """The learning rate at gradient step `count` of `total`: from `rate` to `final * rate`, and there it stays.

    `schedule` is one of `SCHEDULES` (see `check_schedule`).

    "linear" and "cosine" (Loshchilov and Hutter 2017) move along `count / total`; past the end they never pass `final`.
    """
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
    if schedule == "constant" and final is not None:
        raise UserError(f"final_rate = {final} does not apply with schedule='constant'; use 'linear' or 'cosine'")

"""Action heads: from a network's unbounded outputs to actions in an environment's units.

A zero output is the environment's `centre`. The pre-squash sample is what rollouts store. Discrete, MultiDiscrete and
Box actions have heads of their own; that of a Dict or a Tuple, nested or not, is made of those of its parts.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...envs import spaces
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams
from ...errors import UserError, unknown
from ..agent import check_applies
from .box import REACH, BetaHead, BoxHead, ReachingHead, SquashedGaussianHead
from .composite import CompositeHead
from .discrete import CategoricalHead, MultiDiscreteHead
from .head import Head

INITIAL_STD = 0.5
DISTRIBUTIONS: dict[str, type[BoxHead]] = {"gaussian": SquashedGaussianHead, "beta": BetaHead}
WITH_HEADS = "Discrete, MultiDiscrete, Box, and a Dict or Tuple of them have one"


class AuxiliaryHead(eqx.Module):
    """Multipliers and prices, deterministic: a sigmoid between finite bounds, a softplus above a lower one alone.

    Attributes:
        low, high: bounds, of one agent's auxiliary outputs.
    """

    low: Float[Array, "..."]
    high: Float[Array, "..."]

    @property
    def size(self) -> int:
        """How many network outputs it takes."""
        return int(np.prod(self.low.shape, dtype=int))

    def __call__(self, output: Float[Array, "... size"]) -> Float[Array, "..."]:
        """From a network's unbounded outputs to the economy's units."""
        x = output.reshape(output.shape[:-1] + self.low.shape)
        width = jnp.where(jnp.isfinite(self.high), self.high - self.low, 1)
        return self.low + jnp.where(jnp.isfinite(self.high), width * jax.nn.sigmoid(x), jax.nn.softplus(x))

    def inverse(self, values: Float[Array, "..."]) -> Float[Array, "... size"]:
        """The outputs that give `values` (in the economy's units); infinite at a bound, and NaN beyond."""
        bounded, above = jnp.isfinite(self.high), values - self.low
        below = jnp.where(bounded, self.high - values, 1)
        # log(e^y - 1), written so that a large y does not overflow
        x = jnp.where(bounded, jnp.log(above) - jnp.log(below), above + jnp.log(-jnp.expm1(-above)))
        return x.reshape(*x.shape[: x.ndim - self.low.ndim], self.size)


def make_auxiliary_head(env: Environment, params: EnvParams) -> AuxiliaryHead | None:
    """The head of an economy's auxiliary outputs, or None where it has none.

    Raises:
        UserError: a lower bound that is not finite, or not below the upper one.
    """
    space = env.auxiliary(params) if isinstance(env, Economy) else None
    if space is None:
        return None
    dtype = jnp.result_type(float)
    low, high = (jnp.broadcast_to(jnp.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
    high = jnp.where(high >= jnp.finfo(dtype).max, jnp.inf, high)
    if not isinstance(low, jax.core.Tracer) and not bool(jnp.all(jnp.isfinite(low) & (low < high))):
        raise UserError(f"{env.name}: auxiliary outputs need finite lower bounds below their upper ones")
    return AuxiliaryHead(low, high)


def make_head(
    env: Environment,
    params: EnvParams,
    initial_std: float | None = None,
    *,
    reach: bool = False,
    distribution: str | None = None,
) -> Head:
    """The head of one agent of `env`.

    Args:
        env, params: the environment.
        initial_std: of a Box action before the squash; 0.5 unless set. For a Beta it is what gives the action about the
            same standard deviation, as `BetaHead` says.
        reach: a Box's bounds have to be reached, by a deterministic policy.
        distribution: of Box actions, "gaussian" (before the squash) or "beta"; gaussian unless set.

    Raises:
        UserError: an action space that no head serves, bounds that are not finite, a standard deviation that is not
            above 0, an unknown distribution, or an option that has no Box to apply to or does not go with `reach`.
    """
    if initial_std is not None and not initial_std > 0:
        raise UserError(f"initial_std = {initial_std} must be above 0")
    check_distribution(distribution)
    deterministic = "where bounds have to be reached, by a deterministic policy; leave it out"
    check_applies("distribution", distribution, not reach, deterministic)
    space = env.agent_action_space(params)
    boxes = _has_box(space)
    for name, value in (("initial_std", initial_std), ("distribution", distribution), ("reach", reach or None)):
        check_applies(name, value, boxes, f"to {env.name}, whose actions are discrete; leave it out")
    kind = ReachingHead if reach else DISTRIBUTIONS[distribution or "gaussian"]

    def of(centre: PyTree, part: Any) -> PyTree:
        return None if centre is None else centre[part]

    def build(space: spaces.Space, centre: PyTree, path: str) -> Head:
        if isinstance(space, spaces.Discrete):
            return CategoricalHead(space.n)
        if isinstance(space, spaces.MultiDiscrete):
            return MultiDiscreteHead(tuple(space.nvec.ravel().tolist()), tuple(space.shape))
        if isinstance(space, spaces.Box):
            return kind(*_place(env, space, centre, path, reach), initial_std or INITIAL_STD)
        if isinstance(space, spaces.Dict) and space.spaces:
            parts = sorted(space.spaces.items())
            return CompositeHead({key: build(part, of(centre, key), f"{path}[{key!r}]") for key, part in parts})
        if isinstance(space, spaces.Tuple) and space.spaces:
            parts = enumerate(space.spaces)
            return CompositeHead(tuple(build(part, of(centre, i), f"{path}[{i}]") for i, part in parts))
        raise UserError(f"{env.name}: no action head for a {type(space).__name__} space{path}; {WITH_HEADS}")

    return build(space, env.centre(params) if boxes else None, "")


def check_distribution(distribution: str | None) -> None:
    """Raise `UserError` for a distribution of Box actions that there is not; None passes."""
    if distribution is not None and distribution not in DISTRIBUTIONS:
        raise unknown("distribution", str(distribution), DISTRIBUTIONS)


def _has_box(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(map(_has_box, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, spaces.Box)


def _place(env: Environment, space: spaces.Box, centre: PyTree, path: str, reach: bool) -> tuple[Array, Array, Array]:
    """A Box's bounds, and the logit of the centre's position between them."""
    dtype = jnp.result_type(float)
    low, high = (jnp.broadcast_to(jnp.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
    _check_bounds(env, low, high, path)
    position = (jnp.asarray(centre, dtype) - low) / (high - low)
    if reach:
        position = (position + REACH) / (1 + 2 * REACH)
    return low, high, jax.scipy.special.logit(position)


def _check_bounds(env: Environment, low: Any, high: Any, path: str) -> None:
    if isinstance(low, jax.core.Tracer) or isinstance(high, jax.core.Tracer):
        return
    if not bool(jnp.all(jnp.isfinite(low) & jnp.isfinite(high) & (low < high))):
        raise UserError(f"{env.name}: a Box action space{path} needs finite bounds with low < high")

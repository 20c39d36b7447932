"""Action heads: from a network's unbounded outputs to actions in an environment's units.

A zero output is the environment's `centre`. The pre-squash sample is what rollouts store.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import distrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...envs import spaces
from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams
from ...errors import UserError

ILLEGAL = -1e9
INITIAL_STD = 0.5
REACH = 0.1
_GAUSS_X, _GAUSS_W = np.polynomial.hermite_e.hermegauss(5)
_GAUSS_W = _GAUSS_W / _GAUSS_W.sum()


class Head(eqx.Module):
    """How outputs become a distribution over one agent's actions; leading axes are batch."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """How many network outputs it takes."""

    @abc.abstractmethod
    def spread(self) -> PyTree:
        """The initial value of its own trainable leaf (log standard deviations), or None."""

    @abc.abstractmethod
    def mode(self, output: Array, mask: PyTree = None) -> PyTree:
        """The deterministic action."""

    @abc.abstractmethod
    def sample(self, key: Array, output: Array, spread: PyTree, mask: PyTree = None) -> tuple[PyTree, PyTree]:
        """An action, and the raw sample that `log_prob` takes."""

    @abc.abstractmethod
    def log_prob(self, raw: PyTree, output: Array, spread: PyTree, mask: PyTree = None) -> Float[Array, "..."]:
        """Log density, with respect to the environment's units, of the action made from `raw`."""

    @abc.abstractmethod
    def entropy(self, output: Array, spread: PyTree, mask: PyTree = None) -> Float[Array, "..."]:
        """Entropy of the action's distribution in the environment's units."""


class CategoricalHead(Head):
    """Discrete(n): the outputs are logits. An all-illegal row is uniform, finite, with zero gradient."""

    n: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.n

    def spread(self) -> None:
        return None

    def _distribution(self, output: Float[Array, "... n"], mask: Bool[Array, "... n"] | None):
        return distrax.Categorical(logits=output if mask is None else jnp.where(mask, output, ILLEGAL))

    def mode(self, output, mask=None) -> Int[Array, "..."]:
        return jnp.asarray(self._distribution(output, mask).mode(), jnp.int32)

    def sample(self, key, output, spread, mask=None):
        action = self._distribution(output, mask).sample(seed=key).astype(jnp.int32)
        return action, action

    def log_prob(self, raw, output, spread, mask=None):
        return self._distribution(output, mask).log_prob(raw)

    def entropy(self, output, spread, mask=None):
        return self._distribution(output, mask).entropy()


class SquashedGaussianHead(Head):
    """Box(low, high): a Gaussian through a logistic squash, `low + (high - low) sigmoid(2 x + offset)`.

    This is a tanh squash of x shifted so that x = 0 is `centre`. The log density has the Jacobian in softplus form, so
    that saturated actions stay finite (Haarnoja et al. 2018, appendix C).

    Attributes:
        low, high: bounds, of the action's shape.
        offset: logit of the centre's position between them.
        initial_std: of x, at the start.
    """

    low: Float[Array, "..."]
    high: Float[Array, "..."]
    offset: Float[Array, "..."]
    initial_std: float = eqx.field(static=True)

    @property
    def size(self) -> int:
        return int(np.prod(self.low.shape, dtype=int))

    def spread(self) -> Float[Array, "..."]:
        return jnp.full(self.low.shape, math.log(self.initial_std), self.low.dtype)

    def _shaped(self, output: Float[Array, "... size"]) -> Float[Array, "..."]:
        return output.reshape(output.shape[:-1] + self.low.shape)

    def _event_sum(self, x: Array) -> Array:
        return x.sum(axis=tuple(range(x.ndim - self.low.ndim, x.ndim)))

    def squash(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """From the unbounded x to the environment's units."""
        return self.low + (self.high - self.low) * jax.nn.sigmoid(2 * x + self.offset)

    def inverse(self, action: Float[Array, "..."]) -> Float[Array, "... size"]:
        """The outputs whose `mode` is `action` (in its own units); infinite at a bound, and NaN beyond."""
        x = (jnp.log(action - self.low) - jnp.log(self.high - action) - self.offset) / 2
        return x.reshape(*x.shape[: x.ndim - self.low.ndim], self.size)

    def _log_slope(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        u = 2 * x + self.offset
        return jnp.log(2 * (self.high - self.low)) - jax.nn.softplus(u) - jax.nn.softplus(-u)

    def mode(self, output, mask=None):
        return self.squash(self._shaped(output))

    def sample(self, key, output, spread, mask=None):
        raw = distrax.Normal(self._shaped(output), jnp.exp(spread)).sample(seed=key)
        return self.squash(raw), raw

    def log_prob(self, raw, output, spread, mask=None):
        normal = distrax.Normal(self._shaped(output), jnp.exp(spread))
        return self._event_sum(jnp.asarray(normal.log_prob(raw)) - self._log_slope(raw))

    def entropy(self, output, spread, mask=None):
        mean = self._shaped(output)
        x = jnp.asarray(_GAUSS_X, mean.dtype).reshape((-1,) + (1,) * mean.ndim)
        slopes = self._log_slope(mean + jnp.exp(spread) * x)
        correction = jnp.tensordot(jnp.asarray(_GAUSS_W, mean.dtype), slopes, axes=1)
        return self._event_sum(jnp.asarray(distrax.Normal(mean, jnp.exp(spread)).entropy()) + correction)


class ReachingHead(SquashedGaussianHead):
    """The same for a deterministic policy that has to reach its bounds, where limits bind in some states.

    The squash goes beyond the bounds by a tenth of their distance and is cut there. The cut lets gradients through, so
    that an action at its bound can leave it.
    """

    def squash(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        share = (1 + 2 * REACH) * jax.nn.sigmoid(2 * x + self.offset) - REACH
        share = share + jax.lax.stop_gradient(jnp.clip(share, 0, 1) - share)
        return self.low + (self.high - self.low) * share

    def inverse(self, action: Float[Array, "..."]) -> Float[Array, "... size"]:
        """Outputs whose `mode` is `action`: at a bound, the least that reach it."""
        share = ((action - self.low) / (self.high - self.low) + REACH) / (1 + 2 * REACH)
        x = (jax.scipy.special.logit(share) - self.offset) / 2
        return x.reshape(*x.shape[: x.ndim - self.low.ndim], self.size)

    def sample(self, key, output, spread, mask=None):
        raise NotImplementedError("a policy that reaches its bounds is deterministic")


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


def make_head(env: Environment, params: EnvParams, initial_std: float | None = None, *, reach: bool = False) -> Head:
    """The head of one agent of `env`.

    Args:
        env, params: the environment.
        initial_std: of a Box action before the squash; 0.5 unless set.
        reach: a Box's bounds have to be reached, by a deterministic policy.

    Raises:
        UserError: an action space that no head serves, bounds that are not finite, or a standard deviation that is
            not above 0 or has no Box to apply to.
    """
    space = env.agent_action_space(params)
    if initial_std is not None and not initial_std > 0:
        raise UserError(f"initial_std = {initial_std} must be above 0")
    if isinstance(space, spaces.Discrete):
        if initial_std is not None:
            raise UserError(f"initial_std = {initial_std} does not apply to {env.name}, whose actions are discrete")
        return CategoricalHead(space.n)
    if isinstance(space, spaces.Box):
        dtype = jnp.result_type(float)
        low, high = (jnp.broadcast_to(jnp.asarray(bound, dtype), space.shape) for bound in (space.low, space.high))
        _check_bounds(env, low, high)
        position = (jnp.asarray(env.centre(params), dtype) - low) / (high - low)
        if reach:
            position = (position + REACH) / (1 + 2 * REACH)
        kind = ReachingHead if reach else SquashedGaussianHead
        return kind(low, high, jax.scipy.special.logit(position), initial_std or INITIAL_STD)
    raise UserError(f"{env.name}: no action head for a {type(space).__name__} space; Discrete and Box have one")


def _check_bounds(env: Environment, low: Any, high: Any) -> None:
    if isinstance(low, jax.core.Tracer) or isinstance(high, jax.core.Tracer):
        return
    if not bool(jnp.all(jnp.isfinite(low) & jnp.isfinite(high) & (low < high))):
        raise UserError(f"{env.name}: a Box action space needs finite bounds with low < high")

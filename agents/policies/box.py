"""Heads of continuous actions between bounds: a squashed Gaussian, the same cut at its bounds, and a Beta."""

from __future__ import annotations

import math

import distrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...errors import UserError
from .head import Head, event_sum

REACH = 0.1
_GAUSS_X, _GAUSS_W = np.polynomial.hermite_e.hermegauss(5)
_GAUSS_W = _GAUSS_W / _GAUSS_W.sum()
_STIRLING = (-1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_STIRLING_FROM = 4.0
_EDGE = 12.0


class BoxHead(Head):
    """Box(low, high): a zero output's mode is `centre`, and outputs move it between the bounds.

    Attributes:
        low, high: bounds, of the action's shape.
        offset: logit of the centre's position between them.
        initial_std: at the start, of a Gaussian before the squash.
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
        return event_sum(x, self.low.ndim)

    def squash(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """From the unbounded x to the environment's units."""
        return self.low + (self.high - self.low) * jax.nn.sigmoid(2 * x + self.offset)

    def inverse(self, action: Float[Array, "..."]) -> Float[Array, "... size"]:
        """The outputs whose `mode` is `action` (in its own units); infinite at a bound, and NaN beyond."""
        x = (jnp.log(action - self.low) - jnp.log(self.high - action) - self.offset) / 2
        return x.reshape(*x.shape[: x.ndim - self.low.ndim], self.size)

    def mode(self, output, mask=None) -> Float[Array, "..."]:
        _no_mask(mask)
        return self.squash(self._shaped(output))


class SquashedGaussianHead(BoxHead):
    """Box(low, high): a Gaussian through a logistic squash, `low + (high - low) sigmoid(2 x + offset)`.

    This is a tanh squash of x shifted so that x = 0 is `centre`. The log density has the Jacobian in softplus form, so
    that saturated actions stay finite (Haarnoja et al. 2018, appendix C).
    """

    def _log_slope(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        u = 2 * x + self.offset
        return jnp.log(2 * (self.high - self.low)) - jax.nn.softplus(u) - jax.nn.softplus(-u)

    def sample(self, key, output, spread, mask=None):
        _no_mask(mask)
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


class BetaHead(BoxHead):
    """Box(low, high): a Beta distribution between the bounds.

    The action's position between its bounds is u ~ Beta(1 + k m, 1 + k (1 - m)), with the mode m = sigmoid(2 x +
    offset) of the output x and the concentration k. Both parameters are above 1, so that there is one peak (Chou et al.
    2017, "Improving stochastic policy gradients in continuous control with deep reinforcement learning using the Beta
    distribution", who let two softplus outputs be k m and k (1 - m)).

    k = 1 / (4 m (1 - m) s^2) with s = exp(spread), which starts from `initial_std`: a small s gives u the standard
    deviation that it has in `SquashedGaussianHead`, and the information about x in an action does not fade near a bound
    as it does with a k of its own. The raw sample is u.
    """

    def _parameters(self, output: Float[Array, "... size"], spread: Float[Array, "..."]) -> tuple[Array, ...]:
        """The mode's distance from the lower bound and from the upper one, k times each, and k."""
        logit = 2 * self._shaped(output) + self.offset
        # Closer to a bound float32 tells too few actions apart; gradients pass, so that a policy can come back.
        logit = logit + jax.lax.stop_gradient(jnp.clip(logit, -_EDGE, _EDGE) - logit)
        m, rest, scale = jax.nn.sigmoid(logit), jax.nn.sigmoid(-logit), jnp.exp(-2 * spread) / 4
        return m, rest, scale / rest, scale / m, scale / (m * rest)

    def sample(self, key, output, spread, mask=None):
        _no_mask(mask)
        _, _, above, below, _ = self._parameters(output, spread)
        raw = distrax.Beta(1 + above, 1 + below).sample(seed=key)
        edge = jnp.finfo(raw.dtype).eps
        raw = jnp.clip(raw, edge, 1 - edge)
        return self.low + (self.high - self.low) * raw, raw

    def log_prob(self, raw, output, spread, mask=None):
        m, rest, above, below, k = self._parameters(output, spread)
        peak = jnp.log1p(k) + _stirling_rest(k) - _stirling_rest(above) - _stirling_rest(below)
        # k times the divergence of (m, 1 - m) from (u, 1 - u): where k is large, the usual form, powers over a Beta
        # function, is a difference of numbers of the size of k, of which float32 leaves nothing.
        gap = jnp.where(m < rest, raw - m, rest - (1 - raw))
        fall = m * _log_ratio(raw, m, gap) + rest * _log_ratio(1 - raw, rest, -gap)
        return self._event_sum(peak + k * fall - jnp.log(self.high - self.low))

    def entropy(self, output, spread, mask=None):
        _, _, above, below, k = self._parameters(output, spread)

        def part(x: Array) -> Array:
            value, slope = jax.jvp(_stirling_rest, (x,), (x,))
            return value - slope

        share = part(above) + part(below) - part(k) + k / (1 + k) - jnp.log1p(k)
        return self._event_sum(share + jnp.log(self.high - self.low))


def _stirling_rest(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log Gamma(1 + x) - x log x + x, for x > 0: what Stirling's leading terms leave, of the size of log x."""
    large = x > _STIRLING_FROM
    small, big = jnp.where(large, _STIRLING_FROM, x), jnp.where(large, x, _STIRLING_FROM)
    series = jnp.polyval(jnp.asarray(_STIRLING, x.dtype), (1 / big) ** 2) / big
    exact = jax.scipy.special.gammaln(1 + small) - small * jnp.log(small) + small
    return jnp.where(large, jnp.log(2 * math.pi * big) / 2 + series, exact)


def _log_ratio(above: Array, below: Array, gap: Array) -> Array:
    """log(above / below), with `gap` their difference as exactly as it is known."""
    close = jnp.abs(gap) < below / 2
    return jnp.where(close, jnp.log1p(jnp.where(close, gap / below, 0)), jnp.log(above) - jnp.log(below))


def _no_mask(mask: PyTree) -> None:
    if mask is not None:
        raise UserError("a Box action has no action mask, its limits are its bounds; action_mask must be None there")

"""A linear rule written on what agents observe: where a policy network starts from, or stays near.

The rule of an economy is linear in the coordinates of its state. To first order around the steady state an agent's
outputs, before the squash of the head, are linear in its own observation too wherever that tells the state.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..envs.economy import Decision, Economy
from ..envs.environment import EnvParams, add_agent_axis
from ..errors import UserError
from .classical.log_linear import LinearRule, concrete, linearize
from .policies.actor import flat_observation
from .policies.heads import AuxiliaryHead, Head, SquashedGaussianHead

SAME_POINT = 1e-6
# Singular values below this share of the largest count as zero, and gaps below it as rounding.
ROUNDING = 1e-9


class LinearBase(eqx.Module):
    """bias + weight (observation - centre), one for each agent: a network's outputs under a linear rule.

    Its arrays are constants: whoever trains a network on top keeps them out of what is differentiated.

    Attributes:
        weight: `[A, out, O]`.
        bias: `[A, out]`, the outputs in the steady state.
        centre: `[A, O]`, the flat observations in the steady state.
    """

    weight: Float[Array, "A out O"]
    bias: Float[Array, "A out"]
    centre: Float[Array, "A O"]

    def __call__(self, observation: Float[Array, "... A O"]) -> Float[Array, "... A out"]:
        """Outputs for the head and, after those, for the auxiliary head; from flat observations."""
        # In full precision: the default of some accelerators has three digits, and a rule is good to more.
        precision = jax.lax.Precision.HIGHEST
        away = observation - self.centre
        return self.bias + jnp.einsum("...ai,aoi->...ao", away, self.weight, precision=precision)


def linear_base(
    env: Economy,
    params: EnvParams,
    head: Head,
    auxiliary_head: AuxiliaryHead | None = None,
    rule: LinearRule | None = None,
) -> LinearBase:
    """The linear rule in a network's units: `head.mode(base(observation))` is the rule to first order.

    By the chain rule at the steady state: with an agent's observation o(x), its decision y(x) of slopes dy/dx and its
    outputs u = head^-1(y), the weight is du/dy dy/dx (do/dx)^+, + the pseudo-inverse. It is exact where do/dx has full
    column rank; otherwise it must give du/dx all the same, or is refused.

    Args:
        env: an economy with a steady state.
        params: concrete parameters; the work is done in float64, the arrays are of the precision of the day.
        head, auxiliary_head: of the policy, made for `env`.
        rule: the rule; what `linearize` finds unless given.

    Raises:
        UserError: as `linearize`; or the rule is that of another calibration, the heads are not those of its decisions,
            a decision is at a limit in the steady state, or an agent's observation does not tell what its decision
            depends on.
    """
    wide = concrete(env, params)
    rule = linearize(env, params) if rule is None else rule
    if not isinstance(head, SquashedGaussianHead):
        raise UserError(f"{env.name}: {type(head).__name__} has no outputs of a linear rule; it needs a Box action")
    if (auxiliary_head is None) != (rule.decision.auxiliary is None):
        have, has = ("no" if part is None else "an" for part in (auxiliary_head, rule.decision.auxiliary))
        raise UserError(
            f"{env.name}: {have} auxiliary head for a linear rule with {has} auxiliary output; use make_auxiliary_head"
        )
    _check_interior(env, rule)
    with jax.enable_x64(True):
        wide = jax.tree.map(jnp.asarray, wide)
        _check_point(env, wide, rule)
        heads = jax.tree.map(_widest, (head, auxiliary_head))
        bias, slopes = _outputs(env, rule, *heads)
        centre, jacobian = _observed(env, wide, rule)
        weight = np.stack([_weight(env, rule, agent, slopes[agent], jacobian[agent]) for agent in range(len(bias))])
    dtype = jnp.result_type(float)
    return LinearBase(*(jnp.asarray(array, dtype) for array in (weight, bias, centre)))


def _check_interior(env: Economy, rule: LinearRule) -> None:
    """Raise `UserError` where a decision of the rule is at a bound in the steady state, which no output reaches."""
    at_bound = [name for name, kind in zip(rule.decisions.names, rule.decisions.kinds, strict=True) if kind == "level"]
    if at_bound:
        raise UserError(
            f"{env.name}: {', '.join(at_bound)} is at its limit in the steady state, and no finite network output "
            "gives that; leave out the linear rule"
        )


def _check_point(env: Economy, params: EnvParams, rule: LinearRule) -> None:
    """The rule is one of this economy, at this calibration's steady state."""
    found = env.steady_state(params)
    point = rule.steady_state, rule.decision
    if found is None or jax.tree.map(jnp.shape, found) != jax.tree.map(jnp.shape, point):
        raise UserError(f"{env.name}: the linear rule is another economy's; use linearize(env, params)")
    gaps = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b) / (1 + np.abs(b)))), found, point)
    if max(jax.tree.leaves(gaps)) > SAME_POINT:
        raise UserError(
            f"{env.name}: the linear rule is around the steady state of another calibration; use linearize(env, params)"
        )


def _outputs(
    env: Economy, rule: LinearRule, head: SquashedGaussianHead, auxiliary_head: AuxiliaryHead | None
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs in the steady state `[A, out]`, and their slopes by the states' coordinates `[A, out, n]`."""

    def outputs(values: Float[Array, " m"]) -> Float[Array, "A out"]:
        decision: Decision = add_agent_axis(env, rule.decisions.from_values(values))
        parts = [head.inverse(decision.action)]
        if auxiliary_head is not None:
            parts.append(auxiliary_head.inverse(decision.auxiliary))
        return jnp.concatenate(parts, axis=-1)

    values = rule.decisions.values(rule.decision)
    bias, by_value = jax.jit(lambda y: (outputs(y), jax.jacfwd(outputs)(y)))(values)
    return np.asarray(bias), np.asarray(by_value) @ rule.slopes


def _observed(env: Economy, params: EnvParams, rule: LinearRule) -> tuple[np.ndarray, np.ndarray]:
    """Flat observations in the steady state `[A, O]`, and their derivatives by the coordinates `[A, O, n]`."""

    def seen(x: Float[Array, " n"]) -> Float[Array, "A O"]:
        state = rule.states.state(x)
        return flat_observation(add_agent_axis(env, env.observation(state, params)), env.agent_mask(state, params))

    centre, jacobian = jax.jit(lambda x: (seen(x), jax.jacfwd(seen)(x)))(rule.states(rule.steady_state))
    return np.asarray(centre), np.asarray(jacobian)


def _weight(env: Economy, rule: LinearRule, agent: int, slopes: np.ndarray, jacobian: np.ndarray) -> np.ndarray:
    """One agent's weight `[out, O]`, from the slopes of outputs `[out, n]` and of observations `[O, n]`.

    Both in long-run standard deviations of the coordinates, so that what counts as zero depends on no unit.
    """
    spreads = np.where(rule.spreads > 0, rule.spreads, 1)
    inverse = np.linalg.pinv(jacobian * spreads, rcond=ROUNDING)
    weight = (slopes * spreads) @ inverse
    missed = np.abs(slopes * spreads - weight @ (jacobian * spreads))
    if np.max(missed) > ROUNDING**0.75 * max(1.0, float(np.max(np.abs(slopes * spreads)))):
        unseen = [rule.state_names[i] for i in np.flatnonzero(missed.max(axis=0) > 0.1 * missed.max())]
        who = "" if env.num_agents == 1 else f" of {env.agent_role} {agent}"
        raise UserError(
            f"{env.name}: to first order the observation{who} does not tell {', '.join(unseen)}, which its linear rule "
            "depends on, so the rule cannot be written on observations; leave it out"
        )
    return weight


def _widest(leaf: Array) -> Array:
    return jnp.asarray(np.asarray(leaf, np.float64))

"""Steps that linearise the residuals: Gauss-Newton, its matrix-free form, and Levenberg-Marquardt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ...errors import UserError, unknown
from ..agent import check_applies, check_range, scalar
from ..options import check_kind, number
from .stepper import Objective, Separable, Stepper, Terms

GAUSS_NEWTON = ("gn", "ign", "lm")
DAMPING = {"gn": 1e-6, "ign": 1e-6, "lm": 1e-2}
LEAST_DAMPING, MOST_DAMPING = 1e-8, 1e8
ITERATIONS = 100
TOLERANCE = 1e-4
ROWS = 64
"""How many rows or columns of a Jacobian are made at once, which bounds the memory of a large batch."""


class GaussNewtonState(NamedTuple):
    """What "lm" has made of its damping; nothing for the others, whose damping stays what it was set to."""

    damping: Float[Array, ""] | None


class Linear(NamedTuple):
    """Stacked residuals r `[M]` at parameters `[P]`, scaled so that r'r is the loss, and their Jacobian J both ways.

    Attributes:
        value: r.
        push: v `[P]` to J v.
        pull: w `[M]` to J' w.
        slope: J' r, half the gradient of the loss.
        rows: J itself `[M, P]`, where it is at hand.
    """

    value: Float[Array, " M"]
    push: Callable[[Float[Array, " P"]], Float[Array, " M"]]
    pull: Callable[[Float[Array, " M"]], Float[Array, " P"]]
    slope: Float[Array, " P"]
    rows: Float[Array, "M P"] | None = None


class GaussNewton(Stepper):
    """Minimise the sum over residuals of their mean squares, r'r, by `(J'J + damping I) step = -J'r`.

    "gn" solves it densely, by Cholesky: `[P, P]` where there are no more parameters than residuals, else the same step
    from the dual, `step = -J' (JJ' + damping I)^-1 r` with its `[M, M]`. "ign" solves it by conjugate gradients,
    without a matrix. Both move by the learning rate times the step, 1 by default. A step that is not finite is not
    taken, and "policy/step_accepted" is 0.

    "lm" (Levenberg 1944, Marquardt 1963) takes the dense step whole where the loss falls, and stays otherwise. The
    damping follows the gain ratio, the fall over the fall that the linear residuals promise: x 0.1 above 0.75, x 10
    below 0.25 or where the step was rejected, within [1e-8, 1e8]. It does not use the learning rate.

    Args:
        method: "gn", "ign" or "lm".
        damping: added to the diagonal, in the loss's units; for "lm" where it starts. 1e-6, or 1e-2 for "lm", unless
            set.
        iterations: at most, of conjugate gradients; 100 unless set. Only "ign".
        tolerance: at which they stop, relative to the norm of J'r; 1e-4 unless set. Only "ign".

    Raises:
        UserError: an unknown method, or an option that it would not read.
    """

    method: str = eqx.field(static=True)
    damping: Float[Array, ""]
    iterations: int = eqx.field(static=True)
    tolerance: Float[Array, ""]

    def __init__(
        self,
        method: str = "lm",
        damping: Any = None,
        iterations: int | None = None,
        tolerance: Any = None,
    ):
        if method not in GAUSS_NEWTON:
            raise unknown("Gauss-Newton method", str(method), GAUSS_NEWTON)
        for option, value in {"iterations": iterations, "tolerance": tolerance}.items():
            check_applies(option, value, method == "ign", f"with stepper {method!r}, which solves directly; use 'ign'")
        check_kind("iterations", iterations, (int, None))
        damping, tolerance = _single("damping", damping), _single("tolerance", tolerance)
        # "ign" divides by it
        check_range("damping", damping, {"gn": 0.0, "ign": 1e-12, "lm": LEAST_DAMPING}[method], MOST_DAMPING)
        check_range("iterations", iterations, 1)
        check_range("tolerance", tolerance, 0, 1)
        self.method = method
        self.damping = scalar(DAMPING[method]) if damping is None else damping
        self.iterations = ITERATIONS if iterations is None else iterations
        self.tolerance = scalar(TOLERANCE) if tolerance is None else tolerance

    @property
    def name(self) -> str:
        return self.method

    @property
    def needs_residuals(self) -> bool:
        return True

    @property
    def uses_rate(self) -> bool:
        return self.method != "lm"

    @property
    def default_rate(self) -> float | None:
        return 1.0 if self.uses_rate else None

    def init(self, params: PyTree, num_terms: int | None = None) -> GaussNewtonState:
        return GaussNewtonState(self.damping if self.method == "lm" else None)

    def step(
        self, objective: Objective, params: PyTree, state: GaussNewtonState, rate: Float[Array, ""]
    ) -> tuple[PyTree, GaussNewtonState, Terms]:
        flat, unravel = ravel_pytree(params)

        def residuals(x):
            terms = objective(unravel(x))
            return stacked(terms, self.method), terms

        if isinstance(objective, Separable) and self.method != "ign":
            value, terms = residuals(flat)
            linear = by_rows(value, _jacobian(objective, unravel, flat, [*(terms.residuals or {})]))
        else:
            value, push, terms = jax.linearize(residuals, flat, has_aux=True)
            transpose = jax.linear_transpose(push, flat)
            linear = Linear(value, push, lambda w: transpose(w)[0], transpose(value)[0])
        damping = self.damping if state.damping is None else state.damping
        solve = self._iterative if self.method == "ign" else dense
        step = solve(linear, damping.astype(flat.dtype))
        after = flat + (step if self.method == "lm" else rate.astype(flat.dtype) * step)
        if self.method == "lm":
            later = residuals(after)[0]
            accepted, next_damping = judge(linear, step, later @ later, damping)
            state = GaussNewtonState(next_damping)
        else:
            accepted = jnp.all(jnp.isfinite(after))
        metrics = {
            "loss/grad_norm": 2 * jnp.linalg.norm(linear.slope),
            "policy/step_accepted": accepted.astype(flat.dtype),
            "policy/damping": damping,
        }
        terms = terms._replace(aux={**terms.aux, **metrics})
        return unravel(jnp.where(accepted, after, flat)), state, terms

    def _iterative(self, linear: Linear, damping: Float[Array, ""]) -> Float[Array, " P"]:
        """The step by conjugate gradients, with the system divided by the damping and a right side of norm 1.

        No curvature is then below 1. lineax takes a direction whose curvature is below about 100 P machine epsilons for
        a breakdown, which in float32 would stop it on a network at curvatures that are healthy.
        """
        norm = jnp.linalg.norm(linear.slope)
        right = linear.slope / jnp.where(norm > 0, norm, 1)
        shape = jax.ShapeDtypeStruct(right.shape, right.dtype)
        operator = lx.FunctionLinearOperator(
            lambda v: linear.pull(linear.push(v)) / damping + v, shape, lx.positive_semidefinite_tag
        )
        tolerance: Any = self.tolerance.astype(right.dtype)
        solver = lx.CG(0.0, tolerance, norm=jnp.linalg.norm, max_steps=self.iterations)
        return -(norm / damping) * lx.linear_solve(operator, right, solver, throw=False).value


def _single(name: str, value: Any) -> Any:
    """One number as a strongly typed array, or None; `UserError` for anything else."""
    found = number(value)
    check_kind(name, found, (float, None))
    if isinstance(value, list | tuple):
        raise UserError(f"{name} = {value!r} must be a finite number")
    return found


def stacked(terms: Terms, method: str) -> Float[Array, " M"]:
    """All residuals in one vector whose squared norm is the loss.

    Raises:
        UserError: the objective gives none.
    """
    if not terms.residuals:
        raise UserError(f"stepper {method!r} needs residuals, and this objective gives none; use 'adam' or 'pcgrad'")
    return jnp.concatenate([jnp.ravel(r) / r.size**0.5 for r in terms.residuals.values()])


def by_rows(value: Float[Array, " M"], rows: Float[Array, "M P"]) -> Linear:
    """Residuals whose Jacobian is at hand."""
    return Linear(value, lambda v: rows @ v, lambda w: w @ rows, value @ rows, rows)


def _jacobian(
    objective: Separable, unravel: Callable, flat: Float[Array, " P"], names: list[str]
) -> Float[Array, "M P"]:
    """The Jacobian of `stacked`, item by item; terms in the order of `names`, which a pytree does not keep."""
    one = jax.jacrev(lambda x, item: objective.one(unravel(x), item))
    found = jax.vmap(lambda item: one(flat, item))(objective.items)
    parts = [found[name].reshape(-1, flat.size) for name in names]
    return jnp.concatenate([rows / rows.shape[0] ** 0.5 for rows in parts])


def dense(linear: Linear, damping: Float[Array, ""]) -> Float[Array, " P"]:
    """The damped step by Cholesky, from whichever of J'J and JJ' is smaller; not finite where that is singular."""
    rows, columns = linear.value.size, linear.slope.size
    dtype = linear.value.dtype
    if columns <= rows:
        if linear.rows is not None:
            return -_solve(linear.rows.T, damping, linear.slope)
        transposed = jax.lax.map(linear.push, jnp.eye(columns, dtype=dtype), batch_size=ROWS)
        return -_solve(transposed, damping, linear.slope)
    if linear.rows is not None:
        jacobian = linear.rows
    else:
        jacobian = jax.lax.map(linear.pull, jnp.eye(rows, dtype=dtype), batch_size=ROWS)
    return -linear.pull(_solve(jacobian, damping, linear.value))


def _solve(factor: Float[Array, "n m"], damping: Float[Array, ""], right: Float[Array, " n"]) -> Float[Array, " n"]:
    """`(F F' + damping I)^-1 right`."""
    matrix = factor @ factor.T + damping * jnp.eye(factor.shape[0], dtype=factor.dtype)
    operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
    return lx.linear_solve(operator, right, lx.Cholesky(), throw=False).value


def judge(
    linear: Linear, step: Float[Array, " P"], after: Float[Array, ""], damping: Float[Array, ""]
) -> tuple[Bool[Array, ""], Float[Array, ""]]:
    """Whether the loss fell, and the next damping by the gain ratio (Madsen, Nielsen and Tingleff 2004, sec. 3.2)."""
    before = linear.value @ linear.value
    promised = step @ (damping * step - linear.slope)
    gain = (before - after) / promised
    accepted = jnp.isfinite(after) & jnp.all(jnp.isfinite(step)) & (after < before)
    worse, better = ~accepted | (gain < 0.25), accepted & (gain > 0.75)
    factor = jnp.where(worse, 10.0, jnp.where(better, 0.1, 1.0))
    moved = jnp.clip(damping * factor, LEAST_DAMPING, MOST_DAMPING)
    return accepted, moved.astype(damping.dtype)

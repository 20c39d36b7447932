"""Classical solvers: what economists trust, to score learners with and to run as agents.

A solver is a function `(env, params, **options) -> Reference`, called with concrete parameters in float64 and inside
`jax.enable_x64(True)`. What it returns are `equinox` modules whose leaves are NumPy arrays of float64: they pass
through `jit`, and compute in the precision of the day.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ...envs.economy import Economy
from ...envs.economy_wrappers import EconomyWrapper
from ...envs.environment import Environment, EnvParams, EnvState, Reference
from ...envs.wrappers import innermost
from ...errors import UserError, unknown

Solver = Callable[..., Reference]

# name: "module:function", imported when first asked for
SOLVERS: dict[str, str] = {
    "closed_form": ".closed_form:closed_form",
    "log_linear": ".log_linear:log_linear",
    "chebyshev": ".chebyshev:chebyshev",
    "value_iteration": ".value_iteration:value_iteration",
    "capped_labor": ".capped_labor:capped_labor",
    "endogenous_grid": ".endogenous_grid:endogenous_grid",
    "irreversible": ".irreversible:irreversible",
    "aiyagari": ".aiyagari:aiyagari",
    "krusell_smith": ".krusell_smith:krusell_smith",
    "best_response": ".best_response:best_response_iteration",
    "lq_nash": ".lq_nash:lq_nash",
}

_solved: dict[Any, Reference] = {}


def solver(name: str) -> Solver:
    """The solver of that name.

    Raises:
        UserError: there is none; the message names the nearest.
    """
    if name not in SOLVERS:
        raise unknown("solver", str(name), SOLVERS)
    module, _, function = SOLVERS[name].partition(":")
    return getattr(importlib.import_module(module, __name__), function)


def solve(env: Environment, params: EnvParams) -> Reference | None:
    """The answer that scores policies: the economy's closed form, else what its `solver` computes, else None.

    A computed answer is kept, so that asking again for the same economy and the same calibration costs nothing.

    Args:
        env: the environment; only economies have solvers.
        params: concrete parameters. Those of float32 are read as the decimal numbers that they were written as.

    Raises:
        UserError: the economy names a solver that there is not, the solver does not fit, or parameters are traced.
    """
    known = env.reference(params)
    if known is not None or not isinstance(env, Economy) or env.solver is None:
        return known
    return solve_with(env.solver, env, params)


def solve_with(name: str, env: Environment, params: EnvParams, **options: Any) -> Reference:
    """The answer of a named solver, kept for the next time; inside wrappers the economy itself is solved.

    Args:
        name: a key of `SOLVERS`.
        env, params: the economy, as for `solve`.
        **options: of the solver.

    Raises:
        UserError: an unknown name, traced parameters, or a solver that does not fit the environment.
    """
    function = solver(name)
    if not isinstance(env, Economy):
        raise UserError(f"{name!r} solves economies, and {env.name} is none; train it with 'mappo' or 'reinforce'")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
        raise UserError(f"{env.name}: solver {name!r} needs the parameters' numbers; call it outside of jit and vmap")
    if isinstance(env, EconomyWrapper):
        return _on_innermost(solve_with(name, env.solvable(), params, **options))
    wide = widen(params)
    numbers = tuple((leaf.shape, leaf.astype(np.float64).tobytes()) for leaf in jax.tree.leaves(wide))
    key = (name, env, numbers, tuple(sorted(options.items())))
    if key not in _solved:
        with jax.enable_x64(True):
            _solved[key] = function(env, jax.tree.map(jax.numpy.asarray, wide), **options)
    return _solved[key]


class OfInnermost(eqx.Module):
    """A function of an economy's states as one of the states of wrappers around it."""

    function: Any

    def __call__(self, state: EnvState) -> Any:
        return self.function(innermost(state))


def _on_innermost(found: Reference) -> Reference:
    policy, value, auxiliary = (
        None if each is None else OfInnermost(each) for each in (found.policy, found.value, found.auxiliary)
    )
    return found._replace(policy=policy, value=value, auxiliary=auxiliary)


def widen(params: EnvParams) -> EnvParams:
    """The same parameters as NumPy arrays, reals in float64: 0.99 and not 0.9900000095."""

    def one(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        if not np.issubdtype(array.dtype, np.floating) or array.dtype == np.float64:
            return array
        # The shortest decimal number that float32 holds as this one is the one that was written.
        return np.array([float(str(x)) for x in array.ravel()], np.float64).reshape(array.shape)

    return jax.tree.map(one, params)

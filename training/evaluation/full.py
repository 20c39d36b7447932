"""The whole report of one policy, on top of its scores."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ...agents.classical.coordinates import StateCoordinates
from ...envs.environment import EnvState
from ..report import NEAR_STEADY_STATE
from .curves import curves
from .dynamics import dynamic_error
from .economies import Case, Evaluation
from .errors import measure, quantiles, together
from .longrun import long_run
from .responses import responses
from .stability import NO_REST_POINT, FixedPoint, contraction, fixed_point, fixed_point_report
from .states import MOST_COORDINATES, RADII, box, coordinates_of, packed, sphere

BOX_STATES, SPHERE_STATES = 4096, 1024
RESIDUAL_MEAN, RESIDUAL_MAX = 1e-3, 1e-2


def full_report(case: Case, found: Evaluation) -> Evaluation:
    """`found` with errors off the visited states, stability, moments, responses, and what is absent and why.

    Args:
        case: the policy and its economy.
        found: its scores.
    """
    absent: dict[str, str] = {}
    found = dict(found)
    coordinates = coordinates_of(case.visited)
    reference = reference_errors(case)
    if reference is not None:
        found["reference"] = found["reference"] | {"euler": reference}
    if not coordinates.size or not jax.tree.leaves(case.visited)[0].shape[0]:
        absent["stability"] = "the state has no real numbers" if not coordinates.size else "no visited state is finite"
        return _with_absent(case, found, absent)
    x = packed(coordinates, case.visited)
    point, why_no_point = fixed_point(case.rule, case.env, case.params, coordinates)
    if point is None:
        absent["spectral_radius"] = why_no_point
    found |= _errors_elsewhere(case, coordinates, x, point, absent)
    stability: dict[str, Any] = {} if point is None else fixed_point_report(point, coordinates)
    if not case.env.one_shot:
        factor, error = contraction(case.rule, case.visited, case.env, case.params, coordinates, case.seed)
        stability |= {"contraction": factor, "contraction_se": error}
    flags, moments = long_run(case.rule, case.env, case.params, coordinates, x, case.seed)
    found["stability"] = stability | flags
    if moments:
        found["moments"] = moments
    else:
        absent["moments"] = "fewer than two paths of the long simulation are finite and not held up by the floor"
    shown, why = responses(case.rule, case.env, case.params, point, case.visited, case.seed)
    if shown:
        found["responses"] = shown
    if why:
        absent["further responses" if shown else "responses"] = why
    extra = dynamic_error(case)
    if extra is not None:
        found["dynamic_error"] = extra
    found["curves"] = curves(case, coordinates, x, centre_of(coordinates, x, point, case))
    found["verdict"] = verdict(found, once=case.env.one_shot, lost=why_no_point == NO_REST_POINT)
    found["solved"] = all(passed is True for passed in found["verdict"].values())
    return _with_absent(case, found, absent)


def reference_errors(case: Case) -> dict[str, float] | None:
    """Quantiles of the known answer's own errors at the visited states; None where they are not defined."""
    if case.known is None or not jax.tree.leaves(case.visited)[0].shape[0]:
        return None
    measured = measure(case.known.rule, case.visited, case.env, case.params)
    return None if measured is None else quantiles(together(measured["euler"] or measured["residuals"]))


def centre_of(
    coordinates: StateCoordinates, x: Float[np.ndarray, "S D"], point: FixedPoint | None, case: Case
) -> np.ndarray:
    """Where spheres and slices are centred: the economy's steady state, else the policy's rest point, else the mean."""
    steady = case.env.steady_state(case.params)
    if steady is not None:
        return np.asarray(coordinates(steady[0]))
    return x.mean(axis=0) if point is None else point.x


def _errors_elsewhere(case: Case, coordinates: StateCoordinates, x, point, absent: dict[str, str]) -> Evaluation:
    """Errors in a box and on spheres."""
    if coordinates.size > MOST_COORDINATES:
        why = f"the state has {coordinates.size} coordinates; a box and spheres are for up to {MOST_COORDINATES}"
        absent["euler_box"] = absent["euler_sphere"] = why
        return {}
    if not (x.std(axis=0) > 0).any():
        absent["euler_box"] = absent["euler_sphere"] = "the state never moves"
        return {}
    centre = centre_of(coordinates, x, point, case)
    places: dict[str, EnvState] = {"box": box(coordinates, case.visited, BOX_STATES, case.seed)}
    kinds = [(f"sphere_{radius:g}", radius, False) for radius in RADII] + [("sphere_sd", 1.0, True)]
    for name, radius, sd in kinds:
        places[name] = sphere(coordinates, case.visited, centre, radius, SPHERE_STATES, case.seed, sd=sd)
    found = {}
    for name, states in places.items():
        measured = measure(case.rule, states, case.env, case.params)
        if measured is not None:
            found[f"euler_{name}"] = quantiles(together(measured["euler"] or measured["residuals"]))
    return found


def verdict(found: Evaluation, *, once: bool = False, lost: bool = False) -> dict[str, bool | None]:
    """Whether residuals are small (mean 1e-3, largest 1e-2), the closed loop stable, and the long simulation bounded.

    Stability is that of the fixed point, which has to lie within a tenth (in logs, where positive) of the economy's
    steady state: conditions hold as well along paths that accumulate for ever, and networks let those rest somewhere
    far away. Where the economy has no steady state, it is that of paths under common shocks. None: not to be told.

    Args:
        found: a full report.
        once: whether the economy is played once, where nothing can be unstable.
        lost: whether the policy has no rest point in an economy with a steady state.
    """
    errors = [found["euler"]] if "euler" in found else list(found.get("residuals", {}).values())
    errors += list(found.get("complementarity", {}).values())
    small: bool | None = None
    if errors:
        small = all(e["mean"] <= RESIDUAL_MEAN and e["max"] <= RESIDUAL_MAX and not e.get("not_finite") for e in errors)
    stability = found["stability"]
    radius = stability.get("spectral_radius", stability.get("contraction"))
    passed: dict[str, bool | None] = {"residuals": small}
    if not once:
        here = not lost and stability.get("from_steady_state", 0.0) <= NEAR_STEADY_STATE
        passed["stability"] = None if radius is None else bool(radius < 1 and here)
    return passed | {"bounded": bool(stability["bounded"])}


def _with_absent(case: Case, found: Evaluation, absent: dict[str, str]) -> Evaluation:
    """Add what else is not there, and why."""
    env = case.env
    if case.known is None:
        absent["reference"] = "no answer is known"
    elif "regret" not in found:
        value = case.known.reference.value
        absent["regret"] = "the known answer has no value" if value is None else "this policy's value is not finite"
    if "residuals" not in found:
        if "conditions" not in env.capabilities:
            absent["euler"] = "the economy declares no equilibrium conditions"
        elif env.auxiliary(case.params) is not None:
            absent["euler"] = "the conditions need multipliers or prices, which this policy has no outputs for"
    elif "euler" not in found:
        absent["euler"] = "the economy has no errors in units of consumption; residuals of its conditions are shown"
    if "binding" not in found:
        absent["binding"] = "the economy declares no limit that binds"
    if "exploitability" not in found:
        from .games import is_game

        absent["exploitability"] = (
            "the economy has no formula for it; exploitability='trained' trains best responses"
            if is_game(env)
            else "it is no game between several players"
        )
    found["absent"] = absent
    return found

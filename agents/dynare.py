"""Linear rules from Dynare and for Dynare: which of its variables are which of an economy's, and when.

The files are those of `dynare_files`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..envs.economy import Decision, Economy
from ..envs.environment import EnvParams, EnvState
from ..errors import UserError, did_you_mean, unknown
from .classical.coordinates import StateCoordinates, decision_coordinates, state_coordinates
from .classical.log_linear import LinearRule, concrete, rule_of_slopes
from .dynare_files import Solution, read_solution, write_solution

# What 15 digits and another solver's rounding leave apart.
AGREES = 1e-6
RANK = 1e-9
LAGGED = re.compile(r"\s*([A-Za-z_]\w*)\s*(\(\s*-1\s*\))?\s*")

Decides = Callable[[EnvState, dict[str, Array], EnvParams], Decision]


class DynareNames(NamedTuple):
    """Which of Dynare's variables are which of an economy's; what `read_dynare` takes and `write_dynare` returns.

    Attributes:
        states: from the state's entries ("k", "k[0]") to Dynare's variables in Dynare's notation: "k(-1)" for a stock
            that was decided last period, "z" for what this period's shock has already moved.
        decisions: from the decision's entries ("action", "action[0]", "auxiliary") to Dynare's variables; or a function
            `(state, variables, params) -> Decision` of the state, of Dynare's variables of this period in their own
            units, and of the parameters, in float64.
        logs: Dynare's variables that are logs of the economy's quantities.
    """

    states: Mapping[str, str]
    decisions: Mapping[str, str] | Decides
    logs: Collection[str] = ()


def read_dynare(
    env: Economy,
    params: EnvParams,
    files: str | Path | Mapping[str, str | Path],
    states: Mapping[str, str],
    decisions: Mapping[str, str] | Decides,
    logs: Collection[str] = (),
    names: Sequence[str] | None = None,
) -> LinearRule:
    """The linear rule that Dynare found, as a function of an economy's own state.

    Dynare's rule is a function of last period's states and of the shock, ours of the state x_t in which the shock has
    been seen. In Dynare's variables x_t = X s_{t-1} + U e_t: a row of X picks the lag of a stock, a row of [X U] is
    z's own rule. The slopes G solve G [X U] = [ghx ghu], where they can: for z = rho z(-1) + sigma e, z's slope is
    ghu / sigma, and ghx for z(-1) must be rho times that.

    Args:
        env: an economy with a steady state: the one that Dynare's model is.
        params: its parameters, concrete; the work is done in float64.
        files: a folder with the files that `dynare_files` describes, or a path for each, by their names without ".csv".
        states, decisions, logs: which variables are which, as in `DynareNames`; every entry once.
        names: in place of endo_names.csv.

    Returns:
        The rule. Its law of motion is the economy's own under it, and its roots are those of the law of motion only:
        Dynare's files do not have the others.

    Raises:
        UserError: a file is missing, not numbers, or of another shape; a name is unknown or missing; Dynare's steady
            state is not the economy's; its rule is no function of the states as named; or states move differently.

    Example:
        A model with capital (in levels) and log productivity, `k` and `lz`, and consumption `c`::

            read_dynare(
                env, params, "growth/", {"k": "k(-1)", "z": "lz"},
                lambda state, now, params: Decision(1 - now["c"][None] / env.cash(state, params)), logs=["lz"],
            )
    """
    wide = concrete(env, params)
    solution = read_solution(files, names)
    logs = frozenset(logs)
    for name in logs:
        solution.at(name)
    with jax.enable_x64(True):
        wide = jax.tree.map(jnp.asarray, wide)
        found = env.steady_state(wide)
        if found is None:
            raise UserError(
                f"{env.name} has no steady state, so no rule of Dynare's belongs to it; train it with 'deqn'"
            )
        steady, decision = found
        coordinates = state_coordinates(env, wide)
        moves = _state_rows(env, solution, coordinates, np.asarray(coordinates(steady)), states, logs)
        _check_rank(env, moves, states)
        slopes = _slopes(env, wide, solution, coordinates, (steady, decision), moves, decisions, logs)
        rule = rule_of_slopes(env, wide, slopes)
        _check_motion(env, rule, solution, moves)
    return rule


def write_dynare(rule: LinearRule, folder: str | Path, logs: Collection[str] = ()) -> DynareNames:
    """Write a linear rule as the files that Dynare's solution of the same model would make.

    Variables are the decision's entries and then the state's, with "_" where Dynare's names take no bracket. A state
    that no shock moves is dated as Dynare dates stocks, at the end of the period in which it is decided (unless what
    shocks move depends on it: then all are dated by when they are used). Shocks are those of the economy, each of
    variance 1 where its law is normal.

    Args:
        rule: of `linearize`.
        folder: is made where it is missing; its files are overwritten.
        logs: states, by their own names ("z"), to be written as logs; the others are in levels.

    Returns:
        The names with which `read_dynare` finds the rule again.

    Raises:
        UserError: a name in `logs` that is no state in logs, or two entries whose names fall together.
    """
    entries = [name.removeprefix("log ") for name in rule.state_names]
    in_logs = {entry for entry, name in zip(entries, rule.state_names, strict=True) if name.startswith("log ")}
    for name in logs:
        if name not in in_logs:
            raise unknown("state in logs", name, in_logs)
    state_names, decision_names = _identifiers(entries), _identifiers(rule.decision_names)
    names = (*decision_names, *state_names)
    if len(set(names)) < len(names):
        raise UserError(f"two of the variables {', '.join(names)} have one name in Dynare; rename the state's field")

    lagged, moves, after = _dated(rule)
    values = np.where(rule.states.logs, np.exp(rule.centre), rule.centre)
    as_logs = np.asarray([entry in logs for entry in entries])
    units = np.where(np.asarray(rule.states.logs) & ~as_logs, values, 1.0)  # of a variable by its coordinate
    n, m = rule.num_states, len(names) - rule.num_states
    scale = np.concatenate([1 / units, np.ones(moves.shape[1] - n)])
    rows = np.concatenate([rule.slopes @ moves, units[:, None] * np.where(lagged[:, None], after, moves)]) * scale
    levels = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(rule.decision)])
    # Decisions appear with a lead in equilibrium conditions, so that Dynare's own order has the states first.
    order = np.concatenate([np.arange(m, m + n), np.arange(m)])
    levels = np.concatenate([levels, np.where(as_logs, rule.centre, values)])
    write_solution(folder, Solution(names, levels, rows[:, :n], rows[:, n:], order[:n]), order)
    dated = [f"{name}(-1)" if lag else name for name, lag in zip(state_names, lagged, strict=True)]
    return DynareNames(
        dict(zip(entries, dated, strict=True)),
        dict(zip(rule.decision_names, decision_names, strict=True)),
        tuple(name for name, is_log in zip(state_names, as_logs, strict=True) if is_log),
    )


def _dated(rule: LinearRule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which states are stocks of last period `[n]`; today's and tomorrow's states by s_{t-1} and e_t, `[n, n + d]`.

    Tomorrow's are meant for stocks only, which next period's shock does not move.
    """
    lagged = np.all(rule.impact == 0, axis=1)
    if np.any(rule.transition[np.ix_(~lagged, lagged)] != 0):
        lagged = np.zeros_like(lagged)
    own = np.where(lagged[:, None], np.eye(rule.num_states), rule.transition)
    moves = np.concatenate([own, rule.impact], axis=1)
    return lagged, moves, rule.transition @ moves


def _identifiers(entries: Sequence[str]) -> tuple[str, ...]:
    """Names that Dynare takes: "k[0]" as "k_0"."""
    return tuple(re.sub(r"\W+", "_", entry).strip("_") for entry in entries)


def _check_named(env: Economy, kind: str, given: Collection[str], wanted: Sequence[str]) -> None:
    """Every entry is named once, and nothing else is."""
    for name in given:
        if name not in wanted:
            raise UserError(
                f"{env.name} has no {kind} {name!r}.{did_you_mean(name, wanted)} It has {', '.join(wanted)}"
            )
    missing = [name for name in wanted if name not in given]
    if missing:
        raise UserError(f"{env.name}: no variable of Dynare's is named for {kind} {', '.join(missing)}")


def _own(solution: Solution, name: str, logs: frozenset[str]) -> tuple[float, float]:
    """A variable's steady state in the economy's units, and that value's slope by Dynare's variable."""
    value = float(solution.steady[solution.at(name)])
    return (float(np.exp(value)), float(np.exp(value))) if name in logs else (value, 1.0)


def _check_steady(env: Economy, label: str, name: str, ours: float, theirs: float) -> None:
    if not abs(ours - theirs) <= AGREES * max(1.0, abs(ours)):
        raise UserError(
            f"{env.name}: {label} is {ours:.8g} in the steady state and {name} of Dynare's {theirs:.8g}; use the same "
            "parameters and units, name it in logs if it is one, and write all digits"
        )


def _state_rows(
    env: Economy,
    solution: Solution,
    coordinates: StateCoordinates,
    centre: np.ndarray,
    states: Mapping[str, str],
    logs: frozenset[str],
) -> np.ndarray:
    """[X U]: this period's coordinates by last period's states and this period's shocks, `[n, S + X]`."""
    entries = [name.removeprefix("log ") for name in coordinates.names]
    _check_named(env, "state", states, entries)
    rows = []
    for entry, is_log, x in zip(entries, coordinates.logs, centre, strict=True):
        match = LAGGED.fullmatch(states[entry])
        if match is None:
            raise UserError(f"{states[entry]!r} for state {entry} is no variable of Dynare's; write 'k' or 'k(-1)'")
        name, lag = match[1], match[2] is not None
        level, slope = _own(solution, name, logs)
        _check_steady(env, f"state {entry}", name, float(np.exp(x)) if is_log else float(x), level)
        row = solution.row(name)
        if lag:
            column = np.flatnonzero(solution.states == solution.at(name))
            if not column.size:
                known = ", ".join(solution.names[i] for i in solution.states)
                raise UserError(
                    f"{name}(-1) for state {entry}: {name} is no state of Dynare's model, whose are {known}"
                )
            row = np.eye(row.size)[column[0]]
        rows.append(row * slope / (level if is_log else 1.0))
    return np.stack(rows)


def _check_rank(env: Economy, moves: np.ndarray, states: Mapping[str, str]) -> None:
    lengths = np.linalg.norm(moves, axis=1, keepdims=True)
    rank = np.linalg.matrix_rank(moves / np.where(lengths > 0, lengths, 1), tol=RANK)
    if rank < len(moves):
        raise UserError(
            f"{env.name}: {', '.join(states.values())} move in {rank} directions only in Dynare's model, and no "
            f"rule by {len(moves)} states follows from it"
        )


def _slopes(
    env: Economy,
    params: EnvParams,
    solution: Solution,
    coordinates: StateCoordinates,
    point: tuple[EnvState, Decision],
    moves: np.ndarray,
    decisions: Mapping[str, str] | Decides,
    logs: frozenset[str],
) -> np.ndarray:
    """The decision's slopes by the coordinates, `[m, n]`."""
    steady, decision = point
    own = decision_coordinates(env, params, decision)
    if isinstance(decisions, Mapping):
        _check_named(env, "decision", decisions, own.names)
        used = tuple(dict.fromkeys(decisions[name] for name in own.names))
        picks = jnp.asarray([used.index(decisions[name]) for name in own.names])

        def decided(x: Array, variables: Array) -> Array:
            return variables[picks]
    else:
        used = solution.names

        def decided(x: Array, variables: Array) -> Array:
            made = decisions(coordinates.state(x), dict(zip(used, variables, strict=True)), params)
            if jax.tree.map(jnp.shape, made) != jax.tree.map(jnp.shape, decision):
                shapes = (jax.tree.map(jnp.shape, each) for each in (made, decision))
                raise UserError(f"{env.name}: decisions makes {next(shapes)}, where {next(shapes)} is expected")
            return own.values(made)

    values, units = zip(*(_own(solution, name, logs) for name in used), strict=True)
    arguments = coordinates(steady), jnp.asarray(values)
    for label, ours, theirs in zip(own.names, own.values(decision), decided(*arguments), strict=True):
        named = decisions[label] if isinstance(decisions, Mapping) else "what is made of the variables"
        _check_steady(env, label, named, float(ours), float(theirs))
    by_state, by_variable = map(np.asarray, jax.jacfwd(decided, argnums=(0, 1))(*arguments))
    read = np.flatnonzero(np.any(by_variable != 0, axis=0))
    rules = [_rule_of(env, used[i], solution.row(used[i]), moves) * units[i] for i in read]
    return by_state + by_variable[:, read] @ np.reshape(rules, (len(read), len(moves)))


def _rule_of(env: Economy, name: str, row: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """A variable's slopes by the coordinates, `[n]`, in Dynare's units."""
    found = np.linalg.lstsq(moves.T, row, rcond=None)[0]
    missed = float(np.max(np.abs(found @ moves - row)))
    if missed > AGREES * max(1.0, float(np.max(np.abs(row)))):
        raise UserError(
            f"{env.name}: {name} of Dynare's is no function of the states as named: its ghx and ghu miss one by "
            f"{missed:.2g}; name stocks k(-1) and what a shock has moved z, where ghx is rho times ghu / sigma"
        )
    return found


def _check_motion(env: Economy, rule: LinearRule, solution: Solution, moves: np.ndarray) -> None:
    """Expected coordinates of next period: by Dynare's rules, and by the economy's law of motion under the rule."""
    states = np.stack([solution.row(solution.names[i]) for i in solution.states])
    theirs = moves[:, : len(states)] @ states
    ours = rule.transition @ moves
    gaps = np.max(np.abs(ours - theirs), axis=1) / np.maximum(1.0, np.max(np.abs(ours), axis=1))
    worst = int(np.argmax(gaps))
    if gaps[worst] > AGREES:
        raise UserError(
            f"{env.name}: {rule.state_names[worst]} moves otherwise in Dynare's model, by {gaps[worst]:.2g} a unit; it "
            "is another model, calibration or timing"
        )

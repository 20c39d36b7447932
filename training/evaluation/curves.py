"""What the pictures of a report show: policies along each coordinate, errors over two, a simulated path."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...agents.classical.coordinates import StateCoordinates
from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState
from ...envs.wrappers import innermost
from .economies import Case
from .errors import by_state, measure
from .rules import Rule
from .states import box_bounds, levels, unpacked

SLICE_POINTS, MAP_POINTS, PATH_PERIODS = 101, 41, 200
MOST_SLICES, MOST_LINES, MOST_ENTRIES, MOST_SERIES = 6, 4, 6, 8


def curves(
    case: Case, coordinates: StateCoordinates, x: Float[np.ndarray, "S D"], centre: np.ndarray
) -> dict[str, Any]:
    """Numbers to plot, as plain lists.

    Args:
        case: the policy and its economy.
        coordinates, x: of the state, and of visited states.
        centre: where slices cross, `[D]`.

    Returns:
        * `slices`: along each coordinate that moves (the first six), the others at the centre: `along`, its values `x`,
          and `lines`, one for each value of a chain's index, with a `label`, the policy's `action` by entry and the
          `reference`'s.
        * `error_map`: log10 of the largest absolute error at each point of a grid over the first two coordinates,
          `errors[y][x]`; of a line where there is but one.
        * `path`: the policy's and the reference's definitions on the same shocks, from the centre.
    """
    low, high = box_bounds(coordinates, x)
    moving = _moving(x)
    centre = np.where(np.isfinite(centre), centre, x.mean(axis=0))
    likes = _likes(case.visited)
    found: dict[str, Any] = {"slices": policy_slices(case, coordinates, x, centre)}
    found["error_map"] = _error_map(case, coordinates, centre, low, high, moving[:2], likes[0][1]) if moving else None
    if not case.env.one_shot:
        start = unpacked(coordinates, centre[None], _repeat(likes[0][1], 1))
        found["path"] = _path(case, jax.tree.map(lambda leaf: leaf[0], start))
    return found


def policy_slices(
    case: Case, coordinates: StateCoordinates, x: Float[np.ndarray, "S D"], centre: np.ndarray
) -> list[dict[str, Any]]:
    """The `slices` of `curves` alone."""
    low, high = box_bounds(coordinates, x)
    centre = np.where(np.isfinite(centre), centre, x.mean(axis=0))
    likes, found = _likes(case.visited), []
    for d in _moving(x)[:MOST_SLICES]:
        points = np.broadcast_to(centre, (SLICE_POINTS, coordinates.size)).copy()
        points[:, d] = np.linspace(low[d], high[d], SLICE_POINTS)
        lines = [_line(case, coordinates, points, like) | {"label": label} for label, like in likes]
        along = levels(coordinates, points)[:, d]
        found.append({"along": coordinates.names[d], "x": along.tolist(), "lines": lines})
    return found


def _moving(x: Float[np.ndarray, "S D"]) -> list[int]:
    """The coordinates that are not the same in all states."""
    return [d for d in range(x.shape[1]) if x[:, d].std() > 1e-12]


def _likes(visited: EnvState) -> list[tuple[str, EnvState]]:
    """A visited state for each of the most frequent values of the state's integers (the time aside), with its label."""
    names, columns = [], []
    for path, leaf in jax.tree_util.tree_flatten_with_path(innermost(visited))[0]:
        name = jax.tree_util.keystr(path).lstrip(".")
        if jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.ndim == 1 and name != "time":
            names.append(name)
            columns.append(np.asarray(leaf))
    if not names:
        return [("", jax.tree.map(lambda leaf: leaf[0], visited))]
    rows, first, counts = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_counts=True)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:MOST_LINES])
    return [
        (
            ", ".join(f"{name} = {value}" for name, value in zip(names, rows[row], strict=True)),
            jax.tree.map(lambda leaf, i=int(first[row]): leaf[i], visited),
        )
        for row in chosen
    ]


def _repeat(state: EnvState, count: int) -> EnvState:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), state)


def _line(case: Case, coordinates: StateCoordinates, points: np.ndarray, like: EnvState) -> dict[str, Any]:
    """Actions along a line of points, by entry."""
    states = unpacked(coordinates, points, _repeat(like, len(points)))
    ours = _entries(_actions(case.rule, states, case.params, env=case.env))
    theirs = None
    if case.known is not None:
        theirs = _entries(_actions(case.known.rule, states, case.params, env=case.env))
    return {"action": ours, "reference": theirs}


@eqx.filter_jit
def _actions(rule: Rule, states: EnvState, params: EnvParams, *, env: Economy) -> PyTree:
    decide = rule.bind(env, params)
    return jax.vmap(lambda state: decide(state).action)(states)


def _entries(actions: PyTree) -> dict[str, list[float]]:
    """The first few entries of actions `[P, ...]`, each by its name."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(actions)[0]:
        values = np.asarray(leaf, float).reshape(leaf.shape[0], -1)
        base = "action" + jax.tree_util.keystr(path)
        for entry in range(values.shape[1]):
            found[base if values.shape[1] == 1 else f"{base}[{entry}]"] = values[:, entry].tolist()
    return dict(list(found.items())[:MOST_ENTRIES])


def _error_map(case: Case, coordinates, centre, low, high, axes: list[int], like: EnvState) -> dict[str, Any] | None:
    """The largest error at each point over two coordinates, or one."""
    ticks = [np.linspace(low[d], high[d], MAP_POINTS) for d in axes]
    grid = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1).reshape(-1, len(axes))
    points = np.broadcast_to(centre, (len(grid), coordinates.size)).copy()
    points[:, axes] = grid
    measured = measure(case.rule, unpacked(coordinates, points, _repeat(like, len(points))), case.env, case.params)
    if measured is None:
        return None
    errors = by_state(measured["euler"] or measured["residuals"])
    logs = np.log10(np.maximum(errors, 1e-18)).reshape([MAP_POINTS] * len(axes))
    values = levels(coordinates, points).reshape(*[MAP_POINTS] * len(axes), -1)
    found: dict[str, Any] = {"names": [coordinates.names[d] for d in axes], "errors": logs.T.tolist()}
    found["x"] = (values[:, 0, axes[0]] if len(axes) == 2 else values[:, axes[0]]).tolist()
    if len(axes) == 2:
        found["y"] = values[0, :, axes[1]].tolist()
    return found


def _path(case: Case, start: EnvState) -> dict[str, Any]:
    """Both paths on the same shocks, by name, the first few quantities."""
    key = jax.random.key(case.seed)
    ours = _follow(case.rule, start, key, case.params, env=case.env)
    theirs = None if case.known is None else _follow(case.known.rule, start, key, case.params, env=case.env)
    found = {}
    for name, values in ours.items():
        for entry in range(min(values.shape[1], MOST_ENTRIES)):
            label = name if values.shape[1] == 1 else f"{name}[{entry}]"
            found[label] = {"policy": np.asarray(values[:, entry]).tolist()}
            if theirs is not None:
                found[label]["reference"] = np.asarray(theirs[name][:, entry]).tolist()
    return dict(list(found.items())[:MOST_SERIES])


@eqx.filter_jit
def _follow(rule: Rule, start: EnvState, key, params: EnvParams, *, env: Economy) -> dict[str, Float[Array, "T K"]]:
    """Definitions along one path; the state's real numbers where the economy defines nothing."""
    decide = rule.bind(env, params)
    law = env.shocks(params)

    def shown(state: EnvState):
        values = env.definitions(state, decide(state).action, params)
        if not values:
            leaves = jax.tree_util.tree_flatten_with_path(innermost(state))[0]
            values = {
                jax.tree_util.keystr(path).lstrip("."): leaf
                for path, leaf in leaves
                if jnp.issubdtype(leaf.dtype, jnp.floating)
            }
        return {name: jnp.ravel(jnp.asarray(x, jnp.result_type(float))) for name, x in values.items()}

    def step(state, key_step):
        shock = law.sample(key_step, state)
        following = env.transition(state, decide(state).action, shock, params).replace(time=state.time)
        return following, shown(state)

    return jax.lax.scan(step, start, jax.random.split(key, PATH_PERIODS))[1]

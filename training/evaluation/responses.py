"""Impulse responses: from the fixed point without further shocks, and averaged over histories and future shocks."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState
from ...envs.shocks import Chain, Discrete, Normal, ShockLaw
from ...envs.wrappers import innermost
from .rules import Rule
from .stability import FixedPoint

PERIODS = 40
HISTORIES = 4096
MOST_SHOCKS = 6
MOST_ENTRIES = 8


def shock_labels(law: ShockLaw) -> list[str]:
    """The impulses of a law: one standard deviation of each normal shock; a switch to each state, or each value."""
    if isinstance(law, Normal):
        return [f"shock {j + 1}" if law.d > 1 else "shock" for j in range(min(law.d, MOST_SHOCKS))]
    if isinstance(law, Chain):
        return [f"switch to state {j}" for j in range(min(law.transition.shape[0], MOST_SHOCKS))]
    if isinstance(law, Discrete):
        return [f"value {j}" for j in range(min(law.values.shape[0], MOST_SHOCKS))]
    return []


def responses(
    rule: Rule, env: Economy, params: EnvParams, point: FixedPoint | None, visited: EnvState, seed: int
) -> tuple[dict[str, Any], str]:
    """Responses of the state and of the economy's definitions over 40 periods; in the first the shock is seen.

    Deterministic, for normal shocks: from the fixed point, a shock of one standard deviation and none after it.
    Generalised (Koop, Pesaran and Potter 1996, J. Econometrics 74): the mean over 4,096 visited states and future
    shocks of the path given the shock, less that of the path without that knowledge, both under the same other shocks.
    A chain's impulse is a switch to a given state.

    Returns:
        A label of each shock to its `deterministic` and `generalised` responses: a name to a list over periods, as a
        percentage where the baseline is positive and the unit is "%" in `units`, else in levels; `generalised_se` is
        the standard error of the mean. And the reason why there is nothing, or why something is left out.
    """
    if env.one_shot:
        return {}, "it is played once"
    law = env.shocks(params)
    if isinstance(law, Discrete) and law.values.shape[0] == 1:
        return {}, "nothing is random in it"
    labels = shock_labels(law)
    if not labels:
        return {}, f"shocks of the kind {type(law).__name__} have no single impulse"
    rng = np.random.default_rng(seed)
    index = rng.integers(0, jax.tree.leaves(visited)[0].shape[0], HISTORIES)
    histories = jax.tree.map(lambda x: x[index], visited)
    key = jax.random.key(seed)
    many = _generalised(rule, histories, key, params, env=env, count=len(labels))
    single = None
    if isinstance(law, Normal) and point is not None:
        single = _deterministic(rule, point.state, params, env=env, count=len(labels))
    found: dict[str, Any] = {}
    for j, label in enumerate(labels):
        base, moved, error = (_series(part, j) for part in many)
        percent = {name: bool(np.all(x > 0)) for name, x in base.items()}
        scale = {name: 100 / x if percent[name] else np.ones(1) for name, x in base.items()}
        found[label] = {
            "units": {name: "%" if yes else "level" for name, yes in percent.items()},
            "generalised": {name: ((moved[name] - x) * scale[name]).tolist() for name, x in base.items()},
            "generalised_se": {name: (error[name] * scale[name]).tolist() for name in base},
        }
        if single is not None:
            base, moved = _series(single[0]), _series(single[1], j)
            scale = {name: 100 / np.abs(x) if percent[name] else np.ones(1) for name, x in base.items()}
            found[label]["deterministic"] = {
                name: ((moved[name] - x) * scale[name]).tolist() for name, x in base.items()
            }
    size = _shock_count(law)
    return found, f"of {size} shocks the first {MOST_SHOCKS} are shown" if size > len(labels) else ""


def _shock_count(law: ShockLaw) -> int:
    if isinstance(law, Normal):
        return law.d
    return law.transition.shape[0] if isinstance(law, Chain) else law.values.shape[0]


def _series(paths: dict[str, Array], shock: int | None = None) -> dict[str, np.ndarray]:
    """Named paths `[H]`, of one shock where there are several; the entries of an array by their numbers."""
    found = {}
    for name, values in paths.items():
        path = np.asarray(values if shock is None else values[shock])
        for entry in range(path.shape[1]):
            found[name if path.shape[1] == 1 else f"{name}[{entry}]"] = path[:, entry]
    return found


def _shown(rule: Rule, env: Economy, params: EnvParams):
    """From a state to what is reported of it: its real numbers and the definitions, long ones by their mean."""
    decide = rule.bind(env, params)

    def shown(state: EnvState) -> dict[str, Array]:
        values = dict(env.definitions(state, decide(state).action, params))
        for path, leaf in jax.tree_util.tree_flatten_with_path(innermost(state))[0]:
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                values.setdefault(jax.tree_util.keystr(path).lstrip("."), leaf)
        values = {name: jnp.asarray(x, jnp.result_type(float)) for name, x in values.items()}
        return {name: jnp.ravel(x) if x.size <= MOST_ENTRIES else jnp.mean(x)[None] for name, x in values.items()}

    return decide, shown


@eqx.filter_jit
def _deterministic(rule: Rule, state: EnvState, params: EnvParams, *, env: Economy, count: int):
    """Paths without a shock `[H, ...]`, and after each of them `[J, H, ...]`."""
    decide, shown = _shown(rule, env, params)
    d = env.shocks(params).d

    def path(first: Float[Array, " d"]):
        def step(state, shock):
            following = env.transition(state, decide(state).action, shock, params).replace(time=state.time)
            return following, shown(following)

        shocks = jnp.zeros((PERIODS, d), first.dtype).at[0].set(first)
        return jax.lax.scan(step, state, shocks)[1]

    unit = jnp.eye(d, dtype=jnp.result_type(float))[:count]
    return path(jnp.zeros_like(unit[0])), jax.lax.map(path, unit)


@eqx.filter_jit
def _generalised(rule: Rule, histories: EnvState, key: Array, params: EnvParams, *, env: Economy, count: int):
    """Mean baseline, mean shocked path and the standard error of their difference, each `[J, H, ...]`."""
    decide, shown = _shown(rule, env, params)
    law = env.shocks(params)
    n = jax.tree.leaves(histories)[0].shape[0]
    keys = jax.random.split(key, (PERIODS, n))
    later = jax.vmap(env.transition, (0, 0, 0, None))

    def follow(state: EnvState, shock: PyTree):
        state = later(state, jax.vmap(lambda s: decide(s).action)(state), shock, params).replace(time=state.time)
        return state, jax.vmap(shown)(state)

    # Both paths see the same shocks after the first; of normal shocks, the same others with the first.
    drawn = jax.vmap(law.sample)(keys[0], histories)
    if isinstance(law, Normal):
        drawn = _balanced(jax.random.fold_in(key, 1), n, law.d)

    def one(j: Array):
        if isinstance(law, Normal):
            given = drawn.at[:, j].set(1.0)
        elif isinstance(law, Chain):
            given = jnp.full_like(drawn, j)
        else:
            given = jnp.broadcast_to(law.values[j], drawn.shape)

        def step(carry, keys_step):
            pair = []
            for state in carry:
                shock = jax.vmap(law.sample)(keys_step, state)
                pair.append(follow(state, shock))
            return tuple(state for state, _ in pair), _compare(*(seen for _, seen in pair))

        first = [follow(histories, shock) for shock in (drawn, given)]
        _, rest = jax.lax.scan(step, tuple(state for state, _ in first), keys[1:])
        start = _compare(*(seen for _, seen in first))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), start, rest)

    return jax.lax.map(one, jnp.arange(count))


def _balanced(key: Array, n: int, d: int) -> Float[Array, "n d"]:
    """Normal draws without the noise of their means: the midpoints of n equal parts, in random order."""
    levels = jax.scipy.special.ndtri((jnp.arange(n, dtype=jnp.result_type(float)) + 0.5) / n)
    return jnp.stack([jax.random.permutation(k, levels) for k in jax.random.split(key, d)], axis=1)


def _compare(base: dict[str, Array], moved: dict[str, Array]):
    gap = jax.tree.map(lambda a, b: jnp.std(b - a, axis=0) / jnp.sqrt(a.shape[0]), base, moved)
    return jax.tree.map(lambda x: x.mean(axis=0), base), jax.tree.map(lambda x: x.mean(axis=0), moved), gap

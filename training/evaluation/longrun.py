"""A long simulation, unclipped: whether it stays in bounds, and the moments of what it shows."""

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
from .rules import Rule

PATHS, PERIODS, BURN = 64, 5000, 500
ONE_SHOT_PATHS = 16_384
BATCHES = 64
FAR = 10.0
MOST_ENTRIES = 12

Sums = dict[str, np.ndarray]


def long_run(
    rule: Rule,
    env: Economy,
    params: EnvParams,
    coordinates: StateCoordinates,
    visited: Float[np.ndarray, "S D"],
    seed: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Follow a policy on 64 paths of 5,000 periods from the economy's first states, without clipping or resets.

    Args:
        rule, env, params: who decides, and where.
        coordinates: of the state.
        visited: the coordinates of visited states; leaving means to be further than ten times their range from their
            middle.
        seed: of starts and shocks.

    Returns:
        Shares of paths (`not_finite`, `floored`, `left`) and whether it is `bounded`; and the moments of the paths that
        are, empty where there are fewer than two.
    """
    low, high = visited.min(axis=0), visited.max(axis=0)
    reach = FAR * np.maximum(high - low, 1e-12 + 1e-9 * np.abs(high))
    middle = (low + high) / 2
    once = env.one_shot
    n, periods, burn = (ONE_SHOT_PATHS, 1, 0) if once else (PATHS, PERIODS, BURN)
    box = (middle - reach, middle + reach)
    flags, sums = _follow(
        rule, jax.random.key(seed), params, coordinates, box, env=env, n=n, periods=periods, burn=burn
    )
    broken, floored, left = (np.asarray(flag) for flag in flags)
    share = {"not_finite": float(broken.mean()), "floored": float(floored.mean()), "left": float(left.mean())}
    found = share | {"bounded": not any(share.values()), "paths": n, "periods": periods}
    good = ~broken & ~floored
    if good.sum() < 2:
        return found, {}
    with np.errstate(all="ignore"):  # an economy that explodes has moments that are not finite
        return found, _moments(jax.tree.map(lambda x: np.asarray(x)[good], sums), periods - burn)


@eqx.filter_jit
def _follow(
    rule: Rule,
    key: Array,
    params: EnvParams,
    coordinates: StateCoordinates,
    box: tuple[np.ndarray, np.ndarray],
    *,
    env: Economy,
    n: int,
    periods: int,
    burn: int,
):
    """Flags of each path `[N]`, and running sums of powers and of products with the period before, `[N, ...]`."""
    decide = rule.bind(env, params)
    law = env.shocks(params)
    key_start, key_steps = jax.random.split(key)
    start = jax.vmap(env.initial_state, (0, None))(jax.random.split(key_start, n), params)

    def shown(state: EnvState) -> dict[str, Array]:
        action = decide(state).action
        return {"utility": env.reward(state, action, params)} | env.definitions(state, action, params)

    def small(values: dict[str, Array]) -> dict[str, Array]:
        return {name: x if x.size <= MOST_ENTRIES else jnp.mean(x) for name, x in values.items()}

    # Sums are of differences from a constant near the mean, so that they do not cancel.
    base = jax.tree.map(lambda x: jnp.nan_to_num(jnp.nanmean(x, axis=0)), jax.vmap(lambda s: small(shown(s)))(start))
    low, high = map(jnp.asarray, box)

    def one(carry: tuple[EnvState, Any, PyTree, PyTree], key: Array, counts: Array):
        state, flags, before, sums = carry
        action = decide(state).action
        x = coordinates(state)
        broken, floored, left = flags
        finite = jnp.all(jnp.isfinite(x)) & jnp.all(jnp.isfinite(env.reward(state, action, params)))
        flags = (
            broken | ~finite,
            floored | env.floored(state, action, params),
            left | ~jnp.all((x >= low) & (x <= high)),
        )
        now = jax.tree.map(lambda y, m: y - m, small(shown(state)), base)
        new = jax.tree.map(lambda y, last: jnp.stack([y, y**2, y**3, y * last]), now, before)
        sums = jax.tree.map(lambda total, each: total + counts * each, sums, new)
        shock = law.sample(key, state)
        following = env.transition(state, action, shock, params).replace(time=state.time)
        return following, flags, now, sums

    def step(carry, inputs):
        key_step, counts = inputs
        keys = jax.random.split(key_step, n)
        return jax.vmap(one, (0, 0, None))(carry, keys, counts), None

    flags = tuple(jnp.zeros((n,), bool) for _ in range(3))
    zeros = jax.tree.map(lambda m: jnp.zeros((n, *m.shape), m.dtype), base)
    sums = jax.tree.map(lambda m: jnp.zeros((n, 4, *m.shape), m.dtype), base)
    counts = (jnp.arange(periods) >= burn).astype(jnp.result_type(float))
    (_, flags, _, sums), _ = jax.lax.scan(
        step, (start, flags, zeros, sums), (jax.random.split(key_steps, periods), counts)
    )
    shift = jax.tree.map(lambda m: jnp.broadcast_to(m, (n, *m.shape)), base)
    return flags, {"sums": sums, "shift": shift}


def _moments(collected: dict[str, Sums], length: int) -> dict[str, Any]:
    """Moments over all paths, with standard errors by leaving out one batch of paths at a time (the jackknife)."""
    found = {}
    for name, sums in collected["sums"].items():
        paths = sums.shape[0]
        batches = min(BATCHES, paths)
        groups = np.array_split(np.arange(paths), batches)
        parts = np.stack([sums[group].mean(axis=0) for group in groups]) / length
        weights = np.array([group.size for group in groups]) / paths
        whole = np.tensordot(weights, parts, axes=1)
        column = weights.reshape(-1, *(1,) * (parts.ndim - 1))
        without = (whole - column * parts) / (1 - column)
        shift = collected["shift"][name][0]
        values = _from_sums(whole, shift, length)
        spread = _from_sums(np.moveaxis(without, 1, 0), shift, length)
        errors = {key: np.sqrt((batches - 1) * np.var(each, axis=0)) for key, each in spread.items()}
        both = values | {f"{key}_se": error for key, error in errors.items()}
        for entry in np.ndindex(shift.shape):
            label = f"[{','.join(map(str, entry))}]" if entry else ""
            found[name + label] = {key: float(value[entry]) for key, value in both.items()}
    return found


def _from_sums(sums: np.ndarray, shift: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Mean, standard deviation, autocorrelation and skewness from mean powers `[4, ...]` about `shift`."""
    first, second, third, product = sums
    variance = np.maximum(second - first**2, 0.0)
    sd = np.sqrt(variance)
    # A standard deviation of a millionth is what rounding leaves of a constant.
    constant = variance <= 1e-12 * np.maximum(np.maximum(second, shift**2), 1e-300)
    safe = np.where(constant, 1.0, variance)
    moments = {"mean": first + shift, "sd": sd}
    if length > 1:
        moments["autocorrelation"] = np.where(constant, np.nan, (product - first**2) / safe)
    skewness = (third - 3 * first * second + 2 * first**3) / safe**1.5
    return moments | {"skewness": np.where(constant, np.nan, skewness)}

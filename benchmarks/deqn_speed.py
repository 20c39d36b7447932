"""Gradient steps a CPU second of DEQN in its loop, against a scan written by hand for one economy.

Growth-v0, calibration annual_log: two layers of 50, 128 states a step, 5 nodes, Adam, float32. The scan has the
economy's formulas inside, optax's Adam, and states drawn once before it starts: no environment, no simulation, no
metrics. Both are timed in pairs, in turn.

    python benchmarks/deqn_speed.py [--pairs 7] [--steps 4000]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import equimorph
from equimorph.agents import DEQN
from equimorph.training.loop import create_train_state, make_train_step

BATCH, WIDTH, T = 128, 50, 16
ALPHA, BETA, DELTA, RHO, SIGMA = 0.36, 0.99, 0.1, 0.9, 0.04


def by_hand(steps: int) -> Callable[[], Any]:
    """The scan: a call runs `steps` steps and goes on from where the last one ended."""
    x, w = np.polynomial.hermite_e.hermegauss(5)
    nodes, weights = jnp.asarray(SIGMA * x, jnp.float32), jnp.asarray(w / w.sum(), jnp.float32)
    steady = ((1 / BETA - 1 + DELTA) / ALPHA) ** (1 / (ALPHA - 1))
    share = steady / (steady**ALPHA + (1 - DELTA) * steady)
    offset = float(np.log(share / (1 - share)))
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, steps, 1e-3))

    def net(params, k, z):
        h = jnp.stack([jnp.log(k / steady) / 0.15, jnp.log(z) / 0.09], axis=-1)
        for weight, bias in params[:-1]:
            h = jnp.tanh(h @ weight + bias)
        weight, bias = params[-1]
        return jax.nn.sigmoid((h @ weight + bias)[..., 0] + offset)

    def loss(params, k, z):
        cash = z * k**ALPHA + (1 - DELTA) * k
        s = net(params, k, z)
        c, later = (1 - s) * cash, s * cash
        z_later = jnp.exp(RHO * jnp.log(z)[:, None] + nodes)
        k_later = jnp.broadcast_to(later[:, None], z_later.shape)
        cash_later = z_later * k_later**ALPHA + (1 - DELTA) * k_later
        c_later = (1 - net(params, k_later, z_later)) * cash_later
        gross = ALPHA * z_later * k_later ** (ALPHA - 1) + 1 - DELTA
        return jnp.mean((BETA * ((gross / c_later) @ weights) * c - 1) ** 2)

    def step(carry, states):
        params, moments = carry
        updates, moments = optimiser.update(jax.grad(loss)(params, *states), moments)
        return (optax.apply_updates(params, updates), moments), None

    keys = jax.random.split(jax.random.key(0), 5)
    sizes = (2, WIDTH, WIDTH, 1)
    params = [
        (jax.random.normal(k, (a, b)) / a**0.5, jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]
    k = steady * jnp.exp(0.1 * jax.random.normal(keys[3], (steps, BATCH)))
    z = jnp.exp(0.09 * jax.random.normal(keys[4], (steps, BATCH)))
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, (k, z))[0])
    carry = [(params, optimiser.init(params))]

    def go():
        carry[0] = jax.block_until_ready(run(carry[0]))

    return go


def in_the_loop(steps: int) -> Callable[[], Any]:
    """DEQN as anybody runs it."""
    env, params = equimorph.make("Growth-v0", calibration="annual_log")
    agent = DEQN(widths=(WIDTH, WIDTH), batch_size=BATCH, learning_rate=3e-3)
    iterations = steps // T
    run = make_train_step(env, params, agent, num_envs=BATCH, num_steps=T, iterations=iterations)
    state = [create_train_state(env, params, agent, num_envs=BATCH, num_iterations=iterations * 100)]

    def go():
        state[0] = jax.block_until_ready(run(state[0])[0])

    return go


def cpu_seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of the process, on all threads."""
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4000)
    arguments = parser.parse_args()
    ours, hand = in_the_loop(arguments.steps), by_hand(arguments.steps)
    for call in (ours, hand):
        call()
    pairs = np.array([(cpu_seconds(ours), cpu_seconds(hand)) for _ in range(arguments.pairs)])
    rates = arguments.steps / np.median(pairs, axis=0)
    ratios = pairs[:, 1] / pairs[:, 0]
    print(f"gradient steps a CPU second: DEQN in its loop {rates[0]:,.0f}, scan by hand {rates[1]:,.0f}")
    print(f"ratio {np.median(ratios):.2f} (pairs {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()

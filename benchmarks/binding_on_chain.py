"""How often Irreversible-v0's floor binds under DEQN's policy, beside the exact one: on its own path and on a chain.

The published share is of a chain of productivities within three standard deviations (Tauchen 1986), without the tails
in which the floor binds a little more often.

    python benchmarks/binding_on_chain.py [--seeds 3]
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

import equimorph
from equimorph.agents import classical
from equimorph.agents.deqn import policy_decision
from equimorph.training.evaluation.errors import BINDING
from equimorph.training.evaluation.scoring import to_float64

NODES, CAPITALS, ROUNDS = 121, 400, 600
PATHS, PERIODS, BURN = 64, 5000, 500


def on_chain(decide: Callable, env: Any, params: Any) -> float:
    """The share under the stationary distribution over `NODES` productivities and a histogram of capital."""
    z = jnp.linspace(-3, 3, NODES) * params.sigma / jnp.sqrt(1 - params.rho**2)
    upper = norm.cdf((z + (z[1] - z[0]) / 2 - params.rho * z[:, None]) / params.sigma)
    rows = jnp.diff(upper, axis=1, prepend=0)
    rows = rows.at[:, -1].add(1 - upper[:, -1])
    steady = env.steady_state(params)[0]
    k = jnp.linspace(0.7, 1.35, CAPITALS) * steady.k

    def move(k, z):
        state = steady.replace(k=k, z=jnp.exp(z))
        decision = decide(state)
        (slack,) = env.slacks(state, decision, params).values()
        return slack < BINDING, env.transition(state, decision.action, jnp.zeros(1), params).k

    binding, following = jax.vmap(jax.vmap(move, (None, 0)), (0, None))(k, z)
    lower = jnp.clip(jnp.searchsorted(k, following) - 1, 0, CAPITALS - 2)
    weight = (following - k[lower]) / (k[lower + 1] - k[lower])
    column = jnp.arange(NODES)

    def forward(_, mass):
        moved = jnp.zeros_like(mass).at[lower, column].add(mass * (1 - weight)).at[lower + 1, column].add(mass * weight)
        return moved @ rows

    mass = jax.lax.fori_loop(0, ROUNDS, forward, jnp.full((CAPITALS, NODES), 1 / (CAPITALS * NODES)))
    return jnp.sum(mass * binding)


def on_paths(decide: Callable, env: Any, params: Any) -> float:
    """The share over `PATHS` paths of `PERIODS` periods, the first `BURN` left out."""
    law = env.shocks(params)

    def path(key):
        def step(state, key):
            decision = decide(state)
            (slack,) = env.slacks(state, decision, params).values()
            following = env.transition(state, decision.action, law.sample(key, state), params)
            return following.replace(time=state.time), slack < BINDING

        return jax.lax.scan(step, env.steady_state(params)[0], jax.random.split(key, PERIODS))[1][BURN:]

    return jnp.mean(jax.vmap(path)(jax.random.split(jax.random.key(0), PATHS)))


def main() -> None:
    """Print a line for the exact policy, the untrained and each seed's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    runs = [equimorph.train("Irreversible-v0", "deqn", seed=seed, progress=False) for seed in range(seeds)]
    with jax.enable_x64(True):
        env, params = equimorph.make("Irreversible-v0")

        def line(name: str, decide: Callable) -> None:
            chain, path = (float(jax.jit(lambda f=f: f(decide, env, params))()) for f in (on_chain, on_paths))
            print(f"{name}: {chain:.2%} on the chain, {path:.2%} of periods", flush=True)

        answer = classical.solve(env, params)
        line("exact", lambda s: equimorph.envs.Decision(answer.policy(s), answer.auxiliary(s)))
        named = [("untrained", runs[0].untrained_state), *((f"seed {i}", run.state) for i, run in enumerate(runs))]
        for name, state in named:
            line(name, policy_decision(to_float64(runs[0].agent.policy(state)), env, params))


if __name__ == "__main__":
    main()

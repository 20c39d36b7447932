"""How fast each economy steps: steps per CPU second at 1024 environments, and each agent's share of them.

A compiled scan of `vmap(step_env)` under random actions, with resets where an episode ends, measured in turns with
BrockMirman-v0; the median of the paired ratios is printed beside the rate. An agent's steps are an environment's times
its number of agents. CPU seconds count every thread of this process.

    python benchmarks/economies.py [ID ...]
"""

import statistics
import sys
import time

import jax
import jax.numpy as jnp

import equimorph
from equimorph.envs.economy import Economy

NUM_ENVS = 1024
NUM_STEPS = 64
PAIRS = 9
SECONDS = 0.2
YARDSTICK = "BrockMirman-v0"


def runner(env, params):
    """A compiled run of so many steps, and its first carry."""
    space = env.action_space(params)

    def step(params, carry, key):
        state, total = carry
        key_act, key_step, key_reset = jax.random.split(key, 3)
        action = jax.vmap(space.sample)(jax.random.split(key_act, NUM_ENVS))
        keys = jax.random.split(key_step, NUM_ENVS)
        observation, state, reward, ended, _ = jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, action, params)
        done = ended | jax.vmap(env.is_truncated, (0, None))(state, params)

        def reset():
            fresh = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, NUM_ENVS), params)[1]
            where = lambda a, b: jnp.where(done.reshape(done.shape + (1,) * (a.ndim - 1)), a, b)  # noqa: E731
            return jax.tree.map(where, fresh, state)

        state = jax.lax.cond(done.any(), reset, lambda: state)
        return (state, total + reward.sum() + observation.sum()), None  # what is summed is computed

    @jax.jit
    def run(carry, key, params):
        return jax.lax.scan(lambda c, k: step(params, c, k), carry, jax.random.split(key, NUM_STEPS))[0]

    state = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), NUM_ENVS), params)[1]
    copies = jax.tree.map(jnp.array, params)
    return (lambda carry: run(carry, jax.random.key(1), copies)), (state, jnp.zeros(()))


def cpu_seconds(run, carry, calls):
    """CPU seconds of the process for so many calls."""
    started = time.process_time()
    for _ in range(calls):
        carry = run(carry)
    jax.block_until_ready(carry)
    return time.process_time() - started


def prepared(env_id):
    """Its run, its first carry, calls that take long enough to be measured, and its number of agents."""
    env, params = equimorph.make(env_id)
    run, carry = runner(env, params)
    carry = run(carry)
    calls = max(1, round(SECONDS / max(cpu_seconds(run, carry, 2) / 2, 1e-9)))
    return run, carry, calls, env.num_agents


def main(*env_ids: str) -> None:
    """Print a row for each economy."""
    ids = env_ids or [name for name in equimorph.list_envs() if isinstance(equimorph.make(name)[0], Economy)]
    yardstick = prepared(YARDSTICK)
    print(
        f"{'economy':<20}{'agents':>7}{'steps per CPU second':>22}{'agents steps':>16}{'an agent, of ' + YARDSTICK:>32}"
    )
    for env_id in ids:
        run, carry, calls, agents = prepared(env_id)
        ratios, rates = [], []
        for _ in range(PAIRS):
            theirs = cpu_seconds(*yardstick[:3]) / yardstick[2]
            ours = cpu_seconds(run, carry, calls) / calls
            ratios.append(agents * theirs / ours)
            rates.append(NUM_ENVS * NUM_STEPS / ours)
        rate = statistics.median(rates)
        print(
            f"{env_id:<20}{agents:>7}{rate:>22,.0f}{agents * rate:>16,.0f}{statistics.median(ratios):>32.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

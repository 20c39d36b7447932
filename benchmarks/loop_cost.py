"""What the loop adds to the environments it steps.

Environment steps per CPU second of the loop, with an agent that always takes the same action and learns nothing, over
those of a bare `scan` of `vmap(step_env)` with the same lazy reset. Both in this process, in turns; the median of the
paired ratios is printed.

    python benchmarks/loop_cost.py
"""

import functools
import statistics
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp

import equimorph
from equimorph.agents.agent import Agent, Policy
from equimorph.training.loop import create_train_state, make_train_step

ENVIRONMENTS = ("BrockMirman-v0", "CartPole-v1")
SIZES = (1, 256, 2048)
PAIRS = 61
SECONDS = 0.1


class Constant(Agent):
    """Always the environment's centre; its update returns the state it was given."""

    action: jax.Array

    def required(self):
        return frozenset()

    def concept(self, env):
        return env.concept

    def check(self, env, params, num_steps, num_envs):
        pass

    def init(self, key, env, params):
        return ()

    def initial_memory(self, state, env, params):
        return ()

    def act(self, state, memory, view, key, *, explore=True):
        return memory, self.action[None], ()

    def update(self, state, rollout, context, key):
        return state, {}

    def policy(self, state) -> Policy:
        raise NotImplementedError("a constant has no policy to hand out")


def bare(env, params, action, num_envs, num_steps):
    """The yardstick: steps, resets where they are due, rewards and ends (XLA would drop what nobody takes)."""

    def step(actions, params, carry, key):
        key_step, key_reset = jax.random.split(key)
        state, observation = carry
        keys = jax.random.split(key_step, num_envs)
        observation, state, reward, terminated, _ = jax.vmap(env.step_env, (0, 0, 0, None))(
            keys, state, actions, params
        )
        done = terminated | jax.vmap(env.is_truncated, (0, None))(state, params)

        def reset():
            fresh = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_reset, num_envs), params)
            where = lambda a, b: jnp.where(done.reshape(done.shape + (1,) * (a.ndim - 1)), a, b)  # noqa: E731
            return jax.tree.map(where, (fresh[1], fresh[0]), (state, observation))

        return jax.lax.cond(done.any(), reset, lambda: (state, observation)), (reward, done)

    @eqx.filter_jit(donate="all")
    def run(carry):
        (state, observation), key, action, params = carry
        key, key_steps = jax.random.split(key)
        one = functools.partial(step, jnp.broadcast_to(action, (num_envs, *action.shape)), params)
        after, earned = jax.lax.scan(one, (state, observation), jax.random.split(key_steps, num_steps))
        return (after, key, action, params), earned

    copies = jax.tree.map(jnp.array, (action, params))  # arguments, as in the loop: not constants for XLA to fold
    observation, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(jax.random.key(0), num_envs), params)
    return lambda carry: run(carry)[0], ((state, observation), jax.random.key(1), *copies)


def cpu_seconds(run, carry, calls):
    """CPU seconds of the process for so many calls, and where they lead."""
    started = time.process_time()
    for _ in range(calls):
        carry = run(carry)
    jax.block_until_ready(carry)
    return time.process_time() - started, carry


def compare(env_id: str, num_envs: int, num_steps: int) -> tuple[float, float]:
    """Median ratio of the loop's rate to the bare scan's, and the loop's environment steps per CPU second."""
    env, params = equimorph.make(env_id)
    action = jnp.asarray(env.centre(params))
    agent = Constant(action)
    state = create_train_state(env, params, agent, num_envs=num_envs, num_iterations=1)
    step = make_train_step(env, params, agent, num_envs=num_envs, num_steps=num_steps)
    runs = {"loop": (lambda s: step(s)[0], state), "bare": bare(env, params, action, num_envs, num_steps)}
    carries, calls = {}, {}
    for name, (run, carry) in runs.items():
        _, carry = cpu_seconds(run, carry, 2)
        seconds, carries[name] = cpu_seconds(run, carry, 3)
        calls[name] = max(1, round(SECONDS / (seconds / 3)))
    ratios, rates = [], []
    for pair in range(PAIRS):
        took = {}
        for name in ("loop", "bare") if pair % 2 else ("bare", "loop"):
            seconds, carries[name] = cpu_seconds(runs[name][0], carries[name], calls[name])
            took[name] = seconds / calls[name]
        ratios.append(took["bare"] / took["loop"])
        rates.append(num_envs * num_steps / took["loop"])
    return statistics.median(ratios), statistics.median(rates)


def main(steps_per_call: int = 2**18) -> None:
    """Print a row for each environment and size."""
    print(f"{'environment':<16}{'envs':>6}{'loop / bare':>13}{'loop, steps per CPU second':>29}")
    for env_id in ENVIRONMENTS:
        for num_envs in SIZES:
            ratio, rate = compare(env_id, num_envs, max(64, min(4096, steps_per_call // num_envs)))
            print(f"{env_id:<16}{num_envs:>6}{ratio:>13.2f}{rate:>29,.0f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

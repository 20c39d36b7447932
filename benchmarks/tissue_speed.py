"""How fast tissues are stepped, and in how much memory, beside the same physics stepped by the simulator's own means.

Environment steps per CPU second of the process, after compilation, of half-full tissues under random actions, 5
macro-steps each. "simulate" is `jax_morph.simulate` of the same growth, motion and division, vmapped, with the
simulator's `SoftSphere`, whose forces it differentiates: alone, and with the chemical brought up to date in each
macro-step, as its models do. All in this process, in turns; medians of paired ratios are printed. An environment's step
does more: it senses, observes, rewards and keeps the events.

    python benchmarks/tissue_speed.py [--rounds 5] [--seconds 1.0]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_morph
from jax_morph.physics import BrownianDynamics, Division, FreeScreenedDiffusion, SaturatingCellGrowth, SoftSphere

import equimorph
from equimorph.agents import REINFORCE
from equimorph.envs.tissues._cells import RADIUS
from equimorph.training.collect import collect
from equimorph.training.loop import create_train_state

CAPACITIES, BATCHES, MODES = (32, 64, 128), (64, 1024), ("decision", "hazard")
KNOWN = {32: 8000, 64: 2300, 128: 550}
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def repeated(step: Step, start: Any, length: int) -> Callable:
    """A compiled function: `length` times `step` from about the same start, each after the other."""

    @jax.jit
    def run(start, key, nudge):
        def one(carry, key):
            nudge, total = carry
            # A nudge too small to matter, without which XLA would take what is computed of the start out of the loop.
            tissue = start.set("position", start.position + 1e-6 * nudge)
            position, rest = step(tissue, key, start)
            return (position, total + rest), None

        return jax.lax.scan(one, (nudge, jnp.zeros(())), jax.random.split(key, length))[0]

    return lambda key: run(start.tissue if hasattr(start, "tissue") else start, key, jnp.zeros_like(first(start)))


def first(start: Any) -> Any:
    """Positions of the cells that a run starts from."""
    return (start.tissue if hasattr(start, "tissue") else start).position


def ours(env: Any, params: Any, states: Any, batch: int) -> Step:
    """An environment step of a batch under random actions."""
    space = env.action_space(params)

    def step(tissue, key, _):
        keys = jax.random.split(key, (2, batch))
        actions = jax.vmap(space.sample)(keys[0])
        here = states.replace(tissue=tissue)
        seen, after, reward, over, _ = jax.vmap(env.step_env, (0, 0, 0, None))(keys[1], here, actions, params)
        spent = [x.sum().astype(jnp.float32) for x in (seen, reward, over, *jax.tree.leaves(after.events))]
        return after.tissue.position, sum(spent)

    return step


def theirs(params: Any, batch: int, substeps: int, *, sensing: bool) -> tuple[Step, type]:
    """`substeps` macro-steps of a batch by the simulator, and the class of its states."""
    motion = BrownianDynamics(SoftSphere(), n_space_dim=2, kT=float(params.kT))
    steps: list = [SaturatingCellGrowth(max_radius=RADIUS), motion, Division(n_space_dim=2)]
    if sensing:
        chemical = FreeScreenedDiffusion(
            n_field_species=1, n_space_dim=2, diffusion=float(params.diffusion), degradation=float(params.degradation)
        )
        steps.insert(0, chemical)
    model = jax_morph.Model(steps)

    def step(tissue, key, _):
        keys = jax.random.split(key, batch)
        after = jax.vmap(lambda s, k: jax_morph.simulate(model, s, substeps, params.dt, k))(tissue, keys)
        return after.position, sum(jnp.sum(after[name]).astype(jnp.float32) for name in ("alive", "radius"))

    return step, jax_morph.build_state_from_model(model)


def rate(run: Callable, seconds: float, work: int) -> float:
    """Environment steps per CPU second, over at least so many seconds."""
    started, calls = time.process_time(), 0
    while time.process_time() - started < seconds:
        jax.block_until_ready(run(jax.random.key(calls)))
        calls += 1
    return calls * work / (time.process_time() - started)


def compare(mode: str, capacity: int, batch: int, rounds: int, seconds: float) -> tuple[float, float, float]:
    """Our rate, and how many times the simulator's it is, alone and with the chemical."""
    founders, length = capacity // 2, max(1, 2**18 // (batch * capacity**2))
    env, params = equimorph.make("CellCount-v0", mode=mode, capacity=capacity, founders=founders, target=founders)
    states = jax.jit(jax.vmap(env.reset_env, (0, None)))(jax.random.split(jax.random.key(0), batch), params)[1]
    runs = [repeated(ours(env, params, states, batch), states, length)]
    for sensing in (False, True):
        step, state_class = theirs(params, batch, env.substeps, sensing=sensing)
        empty = state_class.init_empty(capacity=capacity, n_space_dim=2, n_types=1)

        def filled(tissue, empty=empty):
            shared = {name: tissue[name] for name in empty.specs if name in tissue.specs}
            return empty.update(**shared).set("division_rate", jnp.full_like(tissue.division_rate, 0.35))

        runs.append(repeated(step, jax.vmap(filled)(states.tissue), length))
    for run in runs:
        jax.block_until_ready(run(jax.random.key(0)))
    rates = [[rate(run, seconds, batch * length) for run in runs] for _ in range(rounds)]
    median = lambda other: statistics.median(each[0] / each[other] for each in rates)  # noqa: E731
    return statistics.median(each[0] for each in rates), median(1), median(2)


def memory(capacity: int, batch: int) -> tuple[float, float, int]:
    """Temporary megabytes of a vmapped step and of the loop's collection of one, and its conditionals (the resets)."""
    env, params = equimorph.make("CellCount-v0", capacity=capacity, target=float(capacity // 2))
    agent = REINFORCE(widths=(32, 32))
    state = create_train_state(env, params, agent, num_envs=batch, num_iterations=1)
    keys, action = jax.random.split(jax.random.key(0), batch), jnp.zeros((batch, capacity), jnp.int32)
    step = jax.jit(jax.vmap(env.step_env, (0, 0, 0, None))).lower(keys, state.env_state, action, params).compile()

    def collected(state, key, params):
        after, rollout, _ = collect(state, key, env, params, agent, 4)
        return after, rollout.reward, rollout.view.observation, rollout.action

    loop = jax.jit(collected, donate_argnums=0).lower(state, jax.random.key(1), params).compile()
    size = lambda compiled: compiled.memory_analysis().temp_size_in_bytes / 2**20  # noqa: E731
    return size(step), size(loop), str(loop.as_text()).count(" conditional(")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--capacities", type=int, nargs="*", default=CAPACITIES)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES)
    arguments = parser.parse_args()
    step, loop, conditionals = memory(32, 1024)
    print(f"temporaries at capacity 32, batch 1024: step {step:.0f} MB, collection {loop:.0f} MB", flush=True)
    print(f"resets in the collection are under {conditionals} conditional(s)\n")
    head = ("steps / CPU s", "known", "x simulate", "x with chemical")
    print(f"{'mode':<10}{'cells':>6}{'batch':>7}{head[0]:>15}{head[1]:>7}{head[2]:>12}{head[3]:>17}")
    for capacity in arguments.capacities:
        for mode in arguments.modes:
            for batch in arguments.batches:
                steps, alone, sensed = compare(mode, capacity, batch, arguments.rounds, arguments.seconds)
                known = KNOWN.get(capacity, 0)
                print(
                    f"{mode:<10}{capacity:>6}{batch:>7}{steps:>15,.0f}{known:>7}{alone:>12.2f}{sensed:>17.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

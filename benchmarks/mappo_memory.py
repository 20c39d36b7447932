"""What an iteration of MAPPO keeps in memory: 128 steps of 1024 environments of 16 agents.

    python benchmarks/mappo_memory.py [env] [--compile]

Prints what XLA plans for the compiled iteration, and the most that the process has held after running it.
"""

import argparse
import resource
import time
from typing import Any

import jax

import equimorph
from equimorph.agents import MAPPO
from equimorph.training.loop import create_train_state, make_train_step

GIB = 1024**3
NUM_ENVS, NUM_STEPS = 1024, 128

# sixteen agents each
ENVS: dict[str, dict[str, Any]] = {
    "CellCount-v0": {"capacity": 16, "target": 12.0},
    "FishWar-v0": {"num_players": 16, "concept": "cooperative"},
}


def main() -> None:
    """Compile, print the plan, run once, print what the process held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", choices=list(ENVS), default="CellCount-v0")
    parser.add_argument("--compile", action="store_true", help="the plan alone")
    arguments = parser.parse_args()
    env, params = equimorph.make(arguments.env, **ENVS[arguments.env])
    agent, before = MAPPO(), held()
    state = create_train_state(env, params, agent, num_envs=NUM_ENVS, num_iterations=1)
    step = make_train_step(env, params, agent, num_envs=NUM_ENVS, num_steps=NUM_STEPS)
    compiled = jax.jit(step, donate_argnums=0).lower(state).compile()
    plan = compiled.memory_analysis()
    assert plan is not None, "this backend reports no plan"
    print(
        f"{env.name}, {env.num_agents} agents: XLA plans {plan.temp_size_in_bytes / GIB:.2f} GiB of temporaries, "
        f"{plan.argument_size_in_bytes / GIB:.3f} of arguments; process before {before:.2f}, compiled {held():.2f}",
        flush=True,
    )
    if not arguments.compile:
        started = time.process_time()
        jax.block_until_ready(compiled(state))
        print(f"after an iteration {held():.2f} GiB at most; {time.process_time() - started:.0f} CPU s", flush=True)


def held() -> float:
    """The most that the process has held so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


if __name__ == "__main__":
    main()

"""One economy, three learners, one loop: each is swapped in by its name.

Brock and Mirman's economy has a known answer: save alpha * beta = 0.3456 of output in every state. Beside each learner
stands its untrained policy, which saves about half.

    python examples/swap_agents.py [BrockMirman-v0]
"""

import sys
import time

import equimorph
from equimorph.training.report import evaluation_table

AGENTS = ("deqn", "mappo", "reinforce")


def main(env_id: str = "BrockMirman-v0") -> None:
    """Train every agent on `env_id` and print one table."""
    evaluations = {}
    for agent in AGENTS:
        started = time.process_time()
        run = equimorph.train(env_id, agent)
        evaluations[agent] = equimorph.evaluate(run)
        print(f"{agent}: trained and scored in {time.process_time() - started:.0f} CPU seconds", flush=True)
    print(f"\n{env_id}\n{evaluation_table(evaluations)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One learner, one economy, every expectation: error of the answer and what it costs.

StochasticAK-v0, calibration stress: the saved share is known, and the Euler equation's integrand depends on the shock,
so that a biased expectation moves the answer. Monte Carlo with few draws is refused; with 64 its bias is small.

    python examples/expectations.py [name ...]
"""

import sys
import time

import jax
import numpy as np

import equimorph
from equimorph.agents.deqn import policy_decision
from equimorph.training.report import align

EXPECTATIONS = {
    "gauss_hermite, 3 nodes": {"order": 3},
    "gauss_hermite, 5 nodes": {},
    "monomial3": {"rule": "monomial3"},
    "monomial5": {"rule": "monomial5"},
    "qmc, 32 points": {"rule": "qmc", "order": 32},
    "all in one, 2 x 4 draws": {"expectation": "all_in_one"},
    "all in one, antithetic": {"expectation": "all_in_one", "antithetic": True},
    "mc, 64 draws": {"expectation": "mc", "draws": 64},
    "mc, 64 antithetic": {"expectation": "mc", "draws": 64, "antithetic": True},
}


def row(name: str, options: dict) -> list[str]:
    """Train with one expectation; the mean saved share over first states, its error, and the CPU seconds."""
    started = time.process_time()
    run = equimorph.train(
        "StochasticAK-v0", "deqn", env={"calibration": "stress"}, iterations=500, progress=False, **options
    )
    seconds = time.process_time() - started
    env, params = run.env, run.params
    states = jax.vmap(lambda key: env.initial_state(key, params))(jax.random.split(jax.random.key(1), 512))
    known = float(np.ravel(jax.vmap(env.reference(params).policy)(states))[0])

    def error(state) -> float:
        decide = policy_decision(run.agent.policy(state), env, params)
        return float(np.mean(jax.vmap(decide)(states).action) - known)

    return [
        name,
        f"{known + error(run.state):.6f}",
        f"{error(run.state):+.1e}",
        f"{error(run.untrained_state):+.1e}",
        f"{seconds:.0f}",
    ]


def main(*names: str) -> None:
    """Train with every expectation, or those named, and print one table."""
    head = ["expectation", "saved share", "error", "untrained", "CPU s, compiling included"]
    print(align([head, *(row(name, EXPECTATIONS[name]) for name in names or EXPECTATIONS)]))


if __name__ == "__main__":
    main(*sys.argv[1:])

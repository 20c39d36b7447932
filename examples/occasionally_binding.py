"""A limit that binds in some states: investment that cannot be undone, with its multiplier.

python examples/occasionally_binding.py [--out binding.png]
"""

import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import equimorph
from equimorph.agents import classical
from equimorph.agents.deqn import policy_decision
from equimorph.training.report import log10


def main() -> None:
    """Train, say how often the limit binds and how large errors are there, and draw investment over productivity."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="binding.png")
    arguments = parser.parse_args()
    run = equimorph.train("Irreversible-v0", "deqn")
    env, params = run.env, run.params
    found = equimorph.evaluate(run)
    for name, report in (("trained", found), ("untrained", found["untrained"])):
        (limit,) = report["binding"].values()
        errors = report["euler"]
        print(
            f"{name}: binds in {100 * limit['share']:.1f} % of periods; log10 Euler error "
            f"mean {log10(errors['mean'])}, max {log10(errors['max'])}"
        )
    steady, _ = env.steady_state(params)
    z = np.linspace(-0.08, 0.08, 161)
    states = jax.vmap(lambda x: steady.replace(z=jax.numpy.exp(x)))(jax.numpy.asarray(z, jax.numpy.float32))
    solved = classical.solve(env, params)
    decide = policy_decision(run.agent.policy(run.state), env, params)
    figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    ours, known = jax.vmap(decide)(states), jax.vmap(solved.policy)(states)
    axes[0].plot(z, ours.action[:, 0], label="DEQN")
    axes[0].plot(z, known[:, 0], "--", label=f"{env.solver} solver")
    axes[0].set(xlabel="log productivity", ylabel="share of what may be invested above the limit")
    axes[1].plot(z, np.ravel(ours.auxiliary), label="DEQN")
    axes[1].plot(z, np.ravel(jax.vmap(solved.auxiliary)(states)), "--", label=f"{env.solver} solver")
    axes[1].set(xlabel="log productivity", ylabel="multiplier")
    axes[0].legend()
    figure.savefig(arguments.out)
    print(f"{arguments.out}: where the share is zero the limit binds, and its multiplier is not")


if __name__ == "__main__":
    main()

"""One network for a family of calibrations: how saving answers patience and risk aversion, without solving again.

In StochasticAK-v0 the best saved share of wealth is (beta E[R^(1-gamma)])^(1/gamma). A network that sees beta and gamma
learns it for all of them at once; the closed form is for the comparison only.

    python examples/comparative_statics.py [--out comparative_statics.png]
"""

import argparse
import dataclasses

import matplotlib.pyplot as plt
import numpy as np

import equimorph

BETA, GAMMA = (0.92, 0.97), (1.5, 4.0)
MU, SIGMA = 0.03, 0.1


def best(beta, gamma):
    """The best saved share, for a log return that is normal with mean MU and standard deviation SIGMA."""
    expected = np.exp((1 - gamma) * MU + (1 - gamma) ** 2 * SIGMA**2 / 2)
    return (beta * expected) ** (1 / gamma)


def saved(run, beta, gamma):
    """The network's share at wealth 1: it sees log wealth, then its inputs in [-1, 1]."""

    def scaled(x, bounds):
        return 2 * (x - bounds[0]) / (bounds[1] - bounds[0]) - 1

    seen = np.stack([np.zeros_like(beta), scaled(beta, BETA), scaled(gamma, GAMMA)], axis=-1)
    return np.asarray(run.policy(seen.reshape(-1, 3))).reshape(beta.shape)


def main(out: str) -> None:
    """Train, compare on a grid, and draw a line for each of a few gammas."""
    run = equimorph.train(
        "StochasticAK-v0",
        "deqn",
        env={"inputs": {"beta": BETA, "gamma": GAMMA}},
        iterations=1500,
    )
    betas, gammas = np.linspace(*BETA, 9), np.linspace(*GAMMA, 5)
    beta, gamma = np.meshgrid(betas, gammas)
    truth, share = best(beta, gamma), saved(run, beta, gamma)
    untrained = saved(dataclasses.replace(run, state=run.untrained_state), beta, gamma)
    print(f"best shares run from {truth.min():.4f} to {truth.max():.4f}")
    print(f"largest error of the network: {np.abs(share - truth).max():.1e}")
    print(f"and of the untrained one:     {np.abs(untrained - truth).max():.1e}")

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for row, colour in zip(range(len(gammas)), plt.get_cmap("viridis")(np.linspace(0, 0.9, len(gammas))), strict=True):
        axes.plot(betas, truth[row], color=colour, label=f"gamma = {gammas[row]:.2f}")
        axes.plot(betas, share[row], "o", color=colour, markersize=4)
    axes.set(xlabel="beta", ylabel="saved share of wealth", title="Closed form (lines) and one network (dots)")
    axes.legend()
    figure.savefig(out, dpi=150)
    print(f"picture: {out}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", default="comparative_statics.png", help="file of the picture")
    main(arguments.parse_args().out)

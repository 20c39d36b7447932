"""Two countries fish one stock: the Markov-perfect share, the cooperative one, and what rewards find, on one picture.

python examples/fish_war.py [--players 2] [--out fish_war.png]
"""

import argparse

import jax
import matplotlib.pyplot as plt
import numpy as np

import equimorph
from equimorph.agents.deqn import policy_decision

STOCKS = 60
CASES = [
    ("deqn", "mpe", "DEQN, own rewards (Markov perfect)"),
    ("deqn", "cooperative", "DEQN, the team's reward"),
    ("mappo", "mpe", "MAPPO, own rewards"),
]


def shares(run, state) -> tuple[np.ndarray, np.ndarray]:
    """Stocks, and the share of them that the first player takes."""
    env, params = run.env, run.params
    states = jax.vmap(lambda key: env.initial_state(key, params))(jax.random.split(jax.random.key(0), STOCKS))
    decide = policy_decision(run.agent.policy(state), env, params)
    order = np.argsort(states.x)
    return np.asarray(states.x)[order], np.asarray(jax.vmap(decide)(states).action)[order, 0, 0]


def main() -> None:
    """Train the three, print their shares beside the known ones, and draw them over the stock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--players", type=int, default=2)
    parser.add_argument("--out", default="fish_war.png")
    arguments = parser.parse_args()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for agent, concept, label in CASES:
        run = equimorph.train("FishWar-v0", agent, env={"concept": concept, "num_players": arguments.players})
        known = float(np.ravel(run.env.reference(run.params).policy(None))[0])
        stocks, taken = shares(run, run.state)
        untrained = shares(run, run.untrained_state)[1]
        print(f"{label}: share {taken.mean():.5f}, known {known:.5f}, untrained {untrained.mean():.3f}")
        (line,) = axes.plot(stocks, taken, label=label)
        axes.axhline(known, color=line.get_color(), linewidth=0.8, linestyle=":")
    axes.set(xlabel="stock", ylabel="share that one player takes")
    axes.legend()
    figure.savefig(arguments.out)
    print(f"{arguments.out}: dotted lines are the known shares")


if __name__ == "__main__":
    main()

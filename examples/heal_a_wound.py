"""A tissue that loses cells by chance, and then a disc of them at once: how far it recovers, over 64 episodes.

python examples/heal_a_wound.py

It printed, after 72 seconds of CPU, a mean overlap of 0.692 before the wound, 0.463 after it, 0.615 ten steps later and
0.662 at the end, and that 91 % of the tissues came back to 95 % of what they were. Untrained cells divide by the toss
of a coin, and outgrow their space before the wound: 0 throughout.
"""

import matplotlib.pyplot as plt
import numpy as np

import equimorph
from equimorph.envs.tissues.wound_healing import recovery_time
from equimorph.training.play import play

TISSUE = {"capacity": 40, "params": {"target": 20.0, "founders": 20, "wound_radius": 1.4}}
TRAINING = {"iterations": 80, "learning_rate": 3e-3, "progress": False}
EPISODES, PICTURE = 64, "heal_a_wound.png"


def overlaps(run, untrained: bool) -> np.ndarray:
    """Soft IoU of tissue and disc after each step, `[episodes, steps]`; 0 once growth went out of hand."""
    steps = int(run.params.max_steps_in_episode)
    curves = [episode.info["iou"] for episode in play(run, episodes=EPISODES, untrained=untrained, sampled=True)]
    return np.stack([np.pad(curve, (0, steps - len(curve))) for curve in curves])


def main() -> None:
    """Train, then print and draw the recovery of the trained and of the untrained policy."""
    run = equimorph.train("WoundHealing-v0", "mappo", env=TISSUE, **TRAINING)
    wound = int(run.params.wound_step)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for label, untrained in (("trained", False), ("untrained", True)):
        iou = overlaps(run, untrained)
        mean, low, high = iou.mean(axis=0), *np.quantile(iou, [0.1, 0.9], axis=0)
        print(f"{label}: overlap, mean (10 % to 90 % of episodes)")
        for step in (wound, wound + 1, wound + 5, wound + 10, iou.shape[1]):
            print(f"  after step {step:2d}: {mean[step - 1]:.3f} ({low[step - 1]:.3f} to {high[step - 1]:.3f})")
        times = [recovery_time(curve, wound) if curve[-1] > 0 else np.inf for curve in iou]
        print(f"  back at 95 % of what it was: {np.isfinite(times).mean():.0%} of episodes")
        axes.plot(np.arange(1, iou.shape[1] + 1), mean, label=label)
        axes.fill_between(np.arange(1, iou.shape[1] + 1), low, high, alpha=0.25, linewidth=0)
    axes.axvline(wound + 0.5, color="gray", linewidth=0.8, linestyle=":", label="wound")
    axes.set(xlabel="step", ylabel="soft IoU of tissue and disc", ylim=(0, 1))
    axes.legend()
    figure.savefig(PICTURE)
    print(f"{PICTURE}: mean, and the band of 80 % of {EPISODES} episodes")


if __name__ == "__main__":
    main()

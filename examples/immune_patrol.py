"""Immune cells search a tissue with obstacles, staying in contact: chance, a rule, and a team that learns where to go.

python examples/immune_patrol.py

It printed, after 68 seconds of CPU: random moves search 32.9 % of the tissue in 48 steps (return 94.5), a breadth-first
patrol 97.8 % (143.3), the planner before training 33.2 % (88.0) and after it 62.8 % (124.9).
"""

import equimorph

ENVIRONMENT, PICTURE = "ImmunePatrol-v0", "immune_patrol.png"
TRAINING = {"iterations": 16, "progress": False}


def main() -> None:
    """Train, compare how much of the tissue is searched, and draw an episode."""
    trained = equimorph.train(ENVIRONMENT, "mappo", **TRAINING)
    found = equimorph.evaluate(trained)
    rows = {
        "random moves": equimorph.evaluate(equimorph.train(ENVIRONMENT, "random")),
        "breadth-first patrol": equimorph.evaluate(equimorph.train(ENVIRONMENT, "breadth_first_patrol")),
        "planner, untrained": found["untrained"],
        "planner, trained": found,
    }
    print(f"{'48 steps of 4 cells':<24}{'searched':>10}{'return':>10}")
    for name, row in rows.items():
        print(f"{name:<24}{row['score_sampled']:>10.1%}{row['return_sampled']:>10.1f}")
    print("an episode:", equimorph.render(trained, PICTURE, sampled=True, force=True))


if __name__ == "__main__":
    main()

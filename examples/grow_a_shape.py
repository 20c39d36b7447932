"""A few founders learn to grow into an ellipse: overlap before and after, beside a rule, and a film of it.

python examples/grow_a_shape.py

It printed, after 110 seconds of CPU: soft IoU untrained 0.440, everybody divides into a disc 0.507, trained 0.722
(exploring 0.816); of the trained tissue's cells 28, 4, 7 and 3 descend from the four founders.
"""

import equimorph

ENVIRONMENT, ITERATIONS = "TargetShape-v0", 100
FILM, TREE = "grow_a_shape.gif", "grow_a_shape.png"


def main() -> None:
    """Train, compare, and draw an episode."""
    trained = equimorph.train(ENVIRONMENT, "mappo", iterations=ITERATIONS, progress=False)
    rule = equimorph.train(ENVIRONMENT, "disc_growth")
    found = equimorph.evaluate(trained)
    print(f"soft IoU, 1 is the silhouette: untrained {found['untrained']['score']:.3f}", end=", ")
    print(f"everybody divides into a disc {equimorph.evaluate(rule)['score']:.3f}", end=", ")
    print(f"trained {found['score']:.3f} (exploring {found['score_sampled']:.3f})")
    print("film:", equimorph.render(trained, FILM, colour="lineage", force=True))
    tree = equimorph.lineage(trained, TREE, force=True)
    for founder in range((tree.parent < 0).sum()):
        print(f"founder {founder}: {(tree.clone == founder).sum() - 1} descendants")


if __name__ == "__main__":
    main()

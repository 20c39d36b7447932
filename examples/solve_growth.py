"""Solve the stochastic growth model, from nothing to errors that can go into a paper.

python examples/solve_growth.py [--out growth.html]
"""

import argparse

import equimorph
from equimorph.agents import linearize
from equimorph.training.report import log10


def main() -> None:
    """Train, score, and write the page an economist quotes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="growth.html")
    arguments = parser.parse_args()
    env, params = equimorph.make("Growth-v0")
    rule = linearize(env, params)
    moduli = ", ".join(f"{root:.4f}" for root in rule.roots)
    print(f"{rule.num_stable} stable roots for {rule.num_states} states; moduli {moduli}")
    run = equimorph.train("Growth-v0", "deqn")
    found = equimorph.evaluate(run, full=True)
    for name, report in (("trained", found), ("untrained", found["untrained"])):
        errors = report["euler"]
        print(
            f"{name}: log10 Euler error mean {log10(errors['mean'])}, max {log10(errors['max'])}; welfare loss "
            f"{100 * report['welfare_loss']:.2g} % of consumption; policy error {report['policy_error']:.1e}"
        )
    print(f"solved: {found['solved']}")
    equimorph.write_report(run, arguments.out)
    print(f"{arguments.out} has the tables and the plots")


if __name__ == "__main__":
    main()

"""The command line that benchmarks of named rows share."""

import argparse
from collections.abc import Callable, Iterable, Sequence

from equimorph.training.report import align


def print_rows(
    doc: str | None, names: Iterable[str], head: Sequence[str], line: Callable[[str, int], Sequence[str]]
) -> None:
    """Print a line for each seed of each row that the command line names (all unless any), then the table."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*names, []], help="all unless named")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    lines = [head]
    for name in arguments.rows or names:
        for seed in range(arguments.seeds):
            lines.append(line(name, seed))
            print("  ".join(lines[-1]), flush=True)
    print("\n" + align(lines))

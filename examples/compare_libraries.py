"""Our learners beside Stable-Baselines3, SBX and rejax: same environments, same experience, same seeds.

Whatever is not installed (pip install 'equimorph[compare]') is named and left out. The same from a shell, with more to
choose: `equimorph compare-libraries --help`.

    python examples/compare_libraries.py [FOLDER]
"""

import sys

from equimorph.training.compare import check_folder, compare_libraries, comparison_table, save_comparison


def main(folder: str = "runs/compare-libraries") -> None:
    """Train everybody on the three environments, print the tables, and keep them with the figure in `folder`."""
    check_folder(folder)
    rows = compare_libraries(report=lambda line: print(line, flush=True))
    print(f"\n{comparison_table(rows)}\n")
    print(f"table and figure: {save_comparison(rows, folder)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

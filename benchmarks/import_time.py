"""How long the package takes to import, and `equimorph --help` to answer, over what everybody imports anyway.

Each is a fresh process; the median of the CPU seconds, and of their ratios to the yardstick taken in the same round.

    python benchmarks/import_time.py
"""

import resource
import statistics
import subprocess
import sys

ROUNDS = 5
YARDSTICK = "import jax, equinox, optax, gymnax"
PROGRAMS = {
    YARDSTICK: YARDSTICK,
    "import equimorph": "import equimorph",
    "equimorph.make('BrockMirman-v0')": "import equimorph; equimorph.make('BrockMirman-v0')",
    "equimorph --help": "from equimorph.training.cli import main; main(['--help'])",
}


def cpu_seconds(program: str) -> float:
    """User and system seconds of a fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a row for each program."""
    rounds = [{name: cpu_seconds(program) for name, program in PROGRAMS.items()} for _ in range(ROUNDS)]
    print(f"{'':<36}{'CPU s':>8}{'ratio':>8}")
    for name in PROGRAMS:
        seconds = statistics.median(r[name] for r in rounds)
        ratio = statistics.median(r[name] / r[YARDSTICK] for r in rounds)
        print(f"{name:<36}{seconds:>8.2f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()

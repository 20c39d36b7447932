"""`equimorph sweep` and `equimorph plot`."""

import argparse
from collections.abc import Sequence
from typing import Any

from ..errors import UserError


def add_sweep(commands: Any) -> None:
    """Add both commands to the command line's."""
    sweep = commands.add_parser("sweep", help="train every combination of some settings' values, in one table")
    sweep.add_argument("env", nargs="?", metavar="ENV", help="an environment's id, or module:id; may stand in the file")
    sweep.add_argument("--agent", metavar="NAME", help="a learner or a solver")
    sweep.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="KEY=A,B,...",
        help="values of a setting, such as agent.learning_rate=1e-3,3e-4; repeated: every value with every other",
    )
    sweep.add_argument("--zip", action="store_true", help="values side by side, first with first, instead")
    sweep.add_argument("--out", metavar="DIR", help="the sweep's folder; where it holds this sweep already, it goes on")
    sweep.add_argument("--resume", metavar="DIR", help="go on with the sweep in that folder")
    sweep.add_argument("--at-once", type=int, metavar="N", help="combinations trained side by side, at most")
    sweep.add_argument("--iterations", type=int, metavar="N", help="collect and update, N times")
    sweep.add_argument("--num-seeds", type=int, metavar="K", help="seeds of each combination")
    sweep.add_argument("--config", metavar="FILE", help="settings in YAML")
    sweep.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="of all combinations"
    )
    sweep.set_defaults(run=_sweep)

    plot = commands.add_parser("plot", help="a metric of runs over their training, with bands of quantiles over seeds")
    plot.add_argument("dirs", nargs="+", metavar="DIR", help="run folders, or sweeps'")
    plot.add_argument("--metric", metavar="NAME", help="such as evaluation/return; by default the score or return")
    plot.add_argument("--out", required=True, metavar="FILE", help=".png, .svg or .pdf")
    plot.add_argument("--steps", action="store_true", help="over environment steps, not iterations")
    plot.add_argument("--force", action="store_true", help="replace the file if it is there")
    plot.set_defaults(run=_plot)


def _sweep(args: argparse.Namespace) -> None:
    from .config import gather
    from .progress import lines_without_terminal
    from .sweep import AT_ONCE, resume_sweep, run_sweep

    told = {
        "at_once": AT_ONCE if args.at_once is None else args.at_once,
        "report": lambda line: print(line, flush=True),
    }
    if args.resume is not None:
        given = ("env", "agent", "over", "zip", "out", "iterations", "num_seeds", "config", "sets")
        if extra := [name for name in given if getattr(args, name)]:
            what = {"env": "ENV", "sets": "--set"}.get(extra[0], "--" + extra[0].replace("_", "-"))
            raise UserError(f"{what} does not apply with --resume: the sweep is the one in {args.resume!r}")
        with lines_without_terminal():
            found = resume_sweep(args.resume, **told)
    else:
        if args.out is None:
            raise UserError("a sweep needs a folder: give --out DIR")
        training = {"iterations": args.iterations, "num_seeds": args.num_seeds}
        flags = {"training": {key: value for key, value in training.items() if value is not None}}
        definition = {
            "base": gather(args.env, args.agent, flags, args.config, args.sets),
            "over": _parse_over(args.over),
            "zip": args.zip,
        }
        fixed = gather(args.env, args.agent, flags, None, args.sets)
        with lines_without_terminal():
            found = run_sweep(definition, args.out, fixed=fixed, **told)
    print(f"\n{found.table()}")
    for note in found.notes():
        print(note)
    print(f"\nsweep: {found.path}")


def _parse_over(texts: Sequence[str]) -> dict[str, Any]:
    """Lists of values by dotted name; each value is read as `--set` reads it."""
    from .settings import parse_yaml

    over: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"cannot read --over {text!r}; it is KEY=A,B,... such as agent.learning_rate=1e-3,3e-4")
        if key in over:
            raise UserError(f"{key} is swept twice; give all of its values in one list")
        over[key] = parse_yaml(f"[{values}]", f"the list of values of {key}")
    return over


def _plot(args: argparse.Namespace) -> None:
    from .bands import plot

    out = plot(args.dirs, args.metric, out=args.out, over="steps" if args.steps else "iterations", force=args.force)
    print(f"figure: {out}")

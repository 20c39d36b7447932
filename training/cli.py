"""The command line. Nothing heavy is imported until a command runs, so that `--help` is instant."""

import argparse
import datetime
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import UserError
from .cli_processes import add_processes, connected
from .cli_sweep import add_sweep

USER_MISTAKE = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one line, as all of ours are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    root = _Parser(prog="equimorph", description="Train and score learners on economies and growing tissues.")
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(dest="command", metavar="COMMAND")

    train = commands.add_parser("train", help="train a learner, score it, and keep the run")
    train.add_argument("env", nargs="?", metavar="ENV", help="an environment's id, or module:id; may stand in the file")
    train.add_argument(
        "--agent",
        metavar="NAME",
        help="mappo (ppo, ippo, team_episodes), reinforce, deqn or pathwise; or a solver: chebyshev, ...",
    )
    train.add_argument("--iterations", type=int, metavar="N", help="collect and update, N times")
    train.add_argument("--seed", type=int, metavar="S", help="the first seed")
    train.add_argument("--num-seeds", type=int, metavar="K", help="seeds trained side by side")
    train.add_argument("--out", metavar="DIR", help="the run folder; by default a new one in runs/")
    train.add_argument("--config", metavar="FILE", help="settings in YAML")
    train.add_argument("--resume", metavar="DIR", help="go on with the run in that folder, from its last checkpoint")
    train.add_argument("--verbose", action="store_true", help="say first what is run, with its schedule")
    train.add_argument("--checkpoint", type=int, metavar="N", help="with --resume: from the checkpoint of iteration N")
    add_processes(train)
    _add_sets(train)
    train.set_defaults(run=_train)

    begin = commands.add_parser("init-config", help="write a configuration file with every setting of a pair")
    begin.add_argument("--env", required=True, metavar="ENV", help="an environment's id")
    begin.add_argument("--agent", required=True, metavar="NAME", help="a learner or a solver")
    begin.add_argument("--out", metavar="FILE", help="where to; by default it is printed")
    begin.add_argument("--force", action="store_true", help="replace the file if it is there")
    begin.set_defaults(run=_init_config)

    evaluate = commands.add_parser("evaluate", help="score the policy of a run folder")
    evaluate.add_argument("dir", metavar="DIR", help="the run folder")
    evaluate.add_argument("--best", action="store_true", help="the policy that did best in evaluations of the training")
    evaluate.add_argument("--full", action="store_true", help="also errors off the path, stability, moments, responses")
    evaluate.add_argument("--report", metavar="FILE", help="write all of that as one page of HTML")
    evaluate.add_argument("--force", action="store_true", help="replace the page if it is there")
    evaluate.add_argument(
        "--exploitability", metavar="HOW", help="known, or trained: train best responses where needed"
    )
    _add_sets(evaluate)
    evaluate.set_defaults(run=_evaluate)

    runs = commands.add_parser("compare", help="score several runs on the same shocks, in one table")
    runs.add_argument("dirs", nargs="+", metavar="DIR", help="run folders of one environment")
    runs.set_defaults(run=_compare_runs)

    render = commands.add_parser("render", help="draw an episode of a run, as a film or a strip of pictures")
    render.add_argument("dir", metavar="DIR", help="the run folder")
    render.add_argument("--out", required=True, metavar="FILE", help=".gif, .mp4, or .png for a strip")
    render.add_argument("--colour", metavar="WHAT", help="of cells: age, chemical, lineage or type")
    render.add_argument("--episodes", type=int, default=1, metavar="N", help="one after another")
    _add_episode(render)
    render.set_defaults(run=_render)

    lineage = commands.add_parser("lineage", help="who is whose daughter in an episode of a growing tissue")
    lineage.add_argument("dir", metavar="DIR", help="the run folder")
    lineage.add_argument("--out", metavar="FILE", help="draw the tree: .png, .svg or .pdf")
    _add_episode(lineage)
    lineage.set_defaults(run=_lineage)

    export = commands.add_parser("export", help="write a run's policy into one file, which acts without training code")
    export.add_argument("dir", metavar="RUN", help="the run folder")
    export.add_argument("--to", required=True, metavar="FILE", help="such as policy.eqx")
    export.add_argument("--seed", type=int, metavar="K", help="which of the run's seeds, counted from 0")
    export.add_argument("--best", action="store_true", help="the policy that did best in evaluations of the training")
    export.add_argument("--untrained", action="store_true", help="the policy before training")
    export.add_argument("--force", action="store_true", help="replace the file if it is there")
    export.set_defaults(run=_export)

    compare = commands.add_parser("compare-libraries", help="our learners beside other libraries' PPO")
    compare.add_argument("--env", action="append", dest="envs", metavar="ENV", help="an environment; may be repeated")
    compare.add_argument("--library", action="append", dest="peers", metavar="NAME", help="sb3, sbx or rejax; repeated")
    compare.add_argument("--steps", type=int, metavar="N", help="environment steps of each training")
    compare.add_argument("--num-seeds", type=int, default=3, metavar="K", help="seeds, one after another")
    compare.add_argument("--out", metavar="DIR", help="where table and figure go; by default a new folder in runs/")
    compare.set_defaults(run=_compare)

    add_sweep(commands)
    commands.add_parser("list", help="the environments").set_defaults(run=_list)

    info = commands.add_parser("info", help="what an environment or an agent is, and what may be set")
    info.add_argument("name", metavar="ENV|AGENT", help="an environment's id or an agent's name")
    info.set_defaults(run=_info)
    return root


def _add_sets(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="such as env.params.beta=0.9"
    )


def _add_episode(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, metavar="S", help="of the episode; by default the evaluation's")
    command.add_argument("--horizon", type=int, metavar="N", help="follow an episode for at most N steps")
    command.add_argument("--untrained", action="store_true", help="the policy before training")
    command.add_argument("--sampled", action="store_true", help="draw actions as in training")
    command.add_argument("--force", action="store_true", help="replace the file if it is there")
    _add_sets(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the words after the program's name; None: the process's.

    Returns:
        The exit code: 0, or 2 for a mistake of the user's, which is told in one line, or 130 after SIGINT (SIGTERM
        exits with 143). Whatever else goes wrong is ours: it escapes with its traceback, and the interpreter exits
        with 1.
    """
    try:
        args = parser().parse_args(argv)
        if args.version:
            from .. import __version__

            print(f"equimorph {__version__}")
        elif args.command is None:
            raise UserError(
                "a command is missing: train, init-config, evaluate, export, render, lineage, compare, "
                "compare-libraries, sweep, plot, list or info (see equimorph --help)"
            )
        else:
            sys.path.append("")  # where a user's own modules are found: ENV may be module:id
            args.run(args)
    except UserError as error:
        print(f"equimorph: error: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_MISTAKE
    except KeyboardInterrupt as stopped:
        print(f"equimorph: {stopped or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _train(args: argparse.Namespace) -> None:
    if args.checkpoint is not None and args.resume is None:
        raise UserError("--checkpoint does not apply without --resume: a new run has none")
    if args.out is not None and args.resume is not None:
        raise UserError(f"--out does not apply with --resume: the run stays in {args.resume!r}")
    from .progress import lines_without_terminal

    with connected(args) as group, lines_without_terminal():
        _train_together(args, group)


def _train_together(args: argparse.Namespace, group: Any) -> None:
    from .config import resolve
    from .trainer import train_from_config

    training = {"iterations": args.iterations, "seed": args.seed, "num_seeds": args.num_seeds}
    flags: dict[str, Any] = {"training": {key: value for key, value in training.items() if value is not None}}
    if args.distributed:
        flags["devices"] = {"count": None}
    if args.verbose:
        flags["logging"] = {"verbose": True}
    if args.resume is not None:
        _resume(args, flags, group)
        return
    if args.out is not None:
        flags["out"] = args.out
    config = resolve(args.env, args.agent, flags, args.config, args.sets)
    if config.out is None:
        out = group.of_primary(lambda: str(_new_folder(f"{config.env.id}-{config.agent.name}")))
        config = config.model_copy(update={"out": out})
    train_from_config(config)
    group.of_primary(lambda: _tell_scores(Path(str(config.out))))


def _tell_scores(path: Path) -> None:
    """Print how the run in a folder scores, and where that is."""
    _score(path, ())
    print(f"\nrun folder: {path}")


def _init_config(args: argparse.Namespace) -> None:
    from ..storage import write_text
    from .init_config import init_config

    if args.force and args.out is None:
        raise UserError("--force does not apply without --out: nothing is replaced")
    if args.out is not None and Path(args.out).exists() and not args.force:
        raise UserError(f"{args.out!r} is there already; choose another name, or --force to replace it")
    text = init_config(args.env, args.agent)
    if args.out is None:
        print(text, end="")
        return
    write_text(args.out, text)
    print(f"configuration: {args.out}")


def _resume(args: argparse.Namespace, flags: Mapping[str, Any], group: Any) -> None:
    from .run import INFO, check_run_folder, read_info
    from .settings import load_config, merge
    from .trainer import resume

    path = Path(args.resume)

    def finished() -> bool:
        check_run_folder(args.resume)
        return bool((path / INFO).is_file() and read_info(path / INFO).get("finished"))

    was_finished = group.of_primary(finished)
    named = {"env": {"id": args.env} if args.env else {}, "agent": {"name": args.agent} if args.agent else {}}
    changes = merge(load_config(args.config) if args.config else {}, flags, named)
    run = resume(path, checkpoint=args.checkpoint, changes=changes, sets=args.sets)
    done = len(next(iter(run.history.values()))) if run.history else 0
    if was_finished and not changes["training"] and not args.sets and args.checkpoint is None and group.primary:
        print(f"the run in {args.resume} is finished, after {done} iterations; --iterations makes it longer\n")
    group.of_primary(lambda: _tell_scores(path))


def _new_folder(name: str) -> Path:
    """A folder in runs/ that is not there yet."""
    name = re.sub(r"[^\w.-]", "-", name)  # "brax:ant" is no folder's name everywhere
    stem = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    path, count = Path("runs", stem), 1
    while path.exists():
        count += 1
        path = Path("runs", f"{stem}-{count}")
    return path


def _evaluate(args: argparse.Namespace) -> None:
    if args.force and args.report is None:
        raise UserError("--force does not apply without --report: nothing else is replaced")
    options: dict[str, Any] = {} if args.exploitability is None else {"exploitability": args.exploitability}
    if args.full:
        options["full"] = True
    if args.report is not None:
        from .html_report import check_target

        check_target(args.report, force=args.force)
    run, evaluations = _score(Path(args.dir), args.sets, options, report=args.report is not None, best=args.best)
    if args.report is not None:
        from .html_report import page, save_page

        print(f"\nreport: {save_page(page(run, evaluations), args.report, force=args.force)}")


def _score(
    path: Path,
    sets: Sequence[str],
    options: Mapping[str, Any] | None = None,
    *,
    report: bool = False,
    best: bool = False,
) -> tuple[Any, dict[str, Mapping[str, Any]]]:
    """Score every seed of a run and print the table; keep it in the folder unless settings were changed.

    The whole report is of the first seed; a page (`report`) asks for it where there is one, of an economy. It has a
    file of its own, and leaves the scores that are there alone.
    """
    from ..envs.economy import Economy
    from .evaluation.scoring import evaluate
    from .report import evaluation_notes, evaluation_table, verdict_line
    from .run import EVALUATION, FULL, RunFolder, load

    which = {"best": True} if best else {}
    first = load(path, **which)
    num_seeds = first.config.training.num_seeds
    options = dict(options or {}) | ({"full": True} if report and isinstance(first.env, Economy) else {})
    runs, evaluations = [], {}
    for seed in range(num_seeds):
        run = load(path, seed=seed, **which)
        name = ("best" if best else "trained") if num_seeds == 1 else f"seed {run.config.training.seed + seed}"
        runs.append(run.changed(sets) if sets else run)
        evaluations[name] = evaluate(runs[-1], **(options if seed == 0 else {}))
    print(evaluation_table(evaluations))
    for note in evaluation_notes(evaluations):
        print(note)
    if verdict := verdict_line(next(iter(evaluations.values()))):
        print(verdict)
    if not sets and not best:
        content = {"seeds": list(evaluations.values())} if num_seeds > 1 else evaluations["trained"]
        RunFolder(path).write_json(FULL if options else EVALUATION, content)
    return runs[0], evaluations


def _episode(args: argparse.Namespace) -> dict[str, Any]:
    """What `_add_episode` asks for."""
    return {name: getattr(args, name) for name in ("seed", "horizon", "untrained", "sampled", "force")}


def _render(args: argparse.Namespace) -> None:
    from .render import FORMATS, check_output, render
    from .run import load

    check_output(args.out, FORMATS, force=args.force)
    run = load(args.dir).changed(args.sets)
    print(f"picture: {render(run, args.out, episodes=args.episodes, colour=args.colour, **_episode(args))}")


def _lineage(args: argparse.Namespace) -> None:
    from .lineage import lineage, summary
    from .run import load

    if args.force and args.out is None:
        raise UserError("--force does not apply without --out: nothing else is replaced")
    print(summary(lineage(load(args.dir).changed(args.sets), args.out, **_episode(args))))
    if args.out is not None:
        print(f"tree: {args.out}")


def _export(args: argparse.Namespace) -> None:
    from .export import export

    options = {name: getattr(args, name) for name in ("seed", "best", "untrained", "force")}
    print(f"policy: {export(args.dir, args.to, **options)}")


def _compare_runs(args: argparse.Namespace) -> None:
    from .compare_runs import compare_runs
    from .report import evaluation_notes, evaluation_table

    evaluations, notes = compare_runs(args.dirs)
    print(evaluation_table(evaluations))
    for note in [*notes, *evaluation_notes(evaluations)]:
        print(note)


def _compare(args: argparse.Namespace) -> None:
    from . import compare

    out = Path(args.out) if args.out is not None else _new_folder("compare-libraries")
    compare.check_folder(out)
    chosen = {"env_ids": args.envs, "peers": args.peers}
    rows = compare.compare_libraries(
        **{name: value for name, value in chosen.items() if value is not None},
        steps=args.steps,
        num_seeds=args.num_seeds,
        report=lambda line: print(line, flush=True),
    )
    print(f"\n{compare.comparison_table(rows)}\n\ntable and figure: {compare.save_comparison(rows, out)}")


def _list(args: argparse.Namespace) -> None:
    from ..envs.catalog import list_envs, spec

    ids = list_envs()
    width = max(map(len, ids))
    for env_id in ids:
        print(f"{env_id:<{width}}  {spec(env_id).summary}".rstrip())


def _info(args: argparse.Namespace) -> None:
    from ..agents.registry import agent_names
    from .describe import describe
    from .describe_agent import describe_agent

    print(describe_agent(args.name) if args.name in agent_names() else describe(args.name))

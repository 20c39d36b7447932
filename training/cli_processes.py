"""`equimorph train --distributed`: one of several processes that share a run."""

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import UserError

PLACES = {"coordinator": "--coordinator", "num_processes": "--num-processes", "process_id": "--process-id"}


def add_processes(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that several processes can share."""
    command.add_argument(
        "--distributed", action="store_true", help="this is one of several processes that share the run"
    )
    command.add_argument("--coordinator", metavar="HOST:PORT", help="with --distributed: where process 0 listens")
    command.add_argument("--num-processes", type=int, metavar="N", help="with --distributed: how many there are")
    command.add_argument("--process-id", type=int, metavar="I", help="with --distributed: which this is, from 0")


@contextlib.contextmanager
def connected(args: argparse.Namespace) -> Iterator[Any]:
    """The `ProcessGroup` that the options connect, before anything else of JAX: without them this process alone."""
    for name, option in PLACES.items():
        if getattr(args, name) is not None and not args.distributed:
            raise UserError(f"{option} does not apply without --distributed: this process trains alone")
    from .distributed import ending_at_once, initialize_distributed, process_group

    if args.distributed:
        initialize_distributed(**{name: getattr(args, name) for name in PLACES})
    group, own = process_group(), {*PLACES, "run"}
    with ending_at_once(), group.together():
        group.check_same(options={name: value for name, value in vars(args).items() if name not in own})
        yield group

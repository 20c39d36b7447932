"""A run's policy as one file, for whoever wants to act by it: `equimorph.load_policy` reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..agents.exported import KIND, save_policy
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..errors import UserError
from ..storage import read_about
from .checkpoint import versions
from .html_report import check_target
from .run import CONFIG, Run, load


def export(
    run: Run | str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    seed: int | None = None,
    best: bool = False,
    untrained: bool = False,
    force: bool = False,
) -> Path:
    """Write a run's policy into a file of its own: its networks, and which environment and learner they belong to.

    What only training needs (critics, steppers' states, replay) is left out.

    Args:
        run: a `Run`, or its folder.
        to: the file.
        seed: of a folder, which of the run's seeds, counted from 0; the first unless set.
        best: of a folder, the policy that did best in the evaluations during training.
        untrained: the policy before training.
        force: replace a file that is there.

    Returns:
        The file's path.

    Raises:
        UserError: something is in the way at `to`, an option does not apply, as for `load`, or the environment is one
            that is stepped on the host.

    Example:
        export("runs/saver", "saver.eqx", best=True)
    """
    _check_to(to, force=force)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise UserError(f"seed must be a whole number of at least 0, got {seed!r}")
    if best and untrained:
        raise UserError("best and untrained are two policies; choose one")
    if isinstance(run, Run):
        for name, value in (("seed", seed), ("best", best)):
            if value is not None and value is not False:
                raise UserError(f"{name} chooses within a run folder, and this is one loaded run; give {name} to load")
    else:
        run = load(run, seed=seed or 0, best=best)
    if isinstance(run.env, HostEnvironment):
        raise UserError(
            f"{run.config.env.id} is stepped on the host and cannot be made from a file alone; use "
            "equimorph.load(folder).policy"
        )
    policy = run.agent.policy(run.untrained_state if untrained else run.state)
    env, agent = (part.model_dump(mode="json") for part in (run.config.env, run.config.agent))
    about = {
        "environment": {
            "id": env.pop("id"),
            "calibration": env.pop("calibration"),
            "settings": env.pop("params") | env,
        },
        "agent": {"name": agent.pop("name"), "hyperparameters": agent},
        "concept": run.concept,
        "versions": versions(),
    }
    save_policy(to, policy, about)
    return Path(to)


def _check_to(to: Any, *, force: bool) -> None:
    """Refuse what is no file's name, what is in the way, and to replace a file that belongs to a run."""
    if not isinstance(to, str | os.PathLike) or "\0" in str(to):
        raise UserError(f"a policy needs a file's name, got {to!r}; try 'policy.eqx'")
    check_target(to, force=force, example="policy.eqx")
    if Path(to).exists() and Path(to).with_name(CONFIG).is_file():
        about = read_about(to) if Path(to).suffix == ".eqx" else {}
        if about.get("kind") != KIND:
            raise UserError(
                f"{os.fspath(to)!r} belongs to a run and is not replaced, even with --force; choose another name"
            )

"""Our learners beside other libraries' PPO: the same environments, experience and seeds, scored by one evaluation."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..agents.policies.heads import INITIAL_STD
from ..errors import UserError, unknown
from .config import Config, build, resolve
from .evaluation.scoring import Evaluation, evaluate, evaluate_policies
from .loop import check_count
from .peers import PEERS, Budget, Peer, PeerPolicy, peer_env
from .report import align
from .trainer import train

TABLE, FIGURE = "comparison.json", "comparison.png"


class Task(NamedTuple):
    """An environment that everybody is compared on.

    Attributes:
        measure: the key of `equimorph.evaluate` that counts.
        label: what it is, with its unit.
        scale: to that unit.
        agents: ours that take part.
    """

    measure: str
    label: str
    scale: float
    agents: tuple[str, ...]


TASKS = {
    "BrockMirman-v0": Task("welfare_loss", "loss of consumption, %", 100.0, ("deqn", "mappo", "reinforce")),
    "CellCountPooled-v0": Task("score", "squared error of the cell count", 1.0, ("mappo", "reinforce")),
    "CartPole-v1": Task("return", "return of an episode", 1.0, ("mappo", "reinforce")),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What one learner reached on one environment.

    Attributes:
        env_id, learner: who and where.
        scores, untrained: of each seed's policy, in the task's unit, after and before training.
        seconds: CPU seconds of the process for each seed; the first includes compilation.
        steps: environment steps of each.
    """

    env_id: str
    learner: str
    scores: tuple[float, ...]
    untrained: tuple[float, ...]
    seconds: tuple[float, ...]
    steps: int

    @property
    def warm(self) -> float | None:
        """Mean CPU seconds without compilation: of all seeds but the first."""
        return float(np.mean(self.seconds[1:])) if len(self.seconds) > 1 else None


def compare_libraries(
    env_ids: Sequence[str] = tuple(TASKS),
    *,
    steps: int | None = None,
    num_seeds: int = 3,
    peers: Sequence[str] = tuple(PEERS),
    report: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Train our learners and other libraries' PPO, and score all of them.

    Every PPO has the same rollouts, minibatches, learning rate, discount, networks and number of environment steps;
    what else a library sets, its defaults set. Peers see continuous actions in [-1, 1]. Seeds run one after another;
    compiled programs are not taken from the disk, so that the first seed shows what compiling costs.

    Args:
        env_ids: of `TASKS`.
        steps: environment steps of each training, rounded down to whole rollouts; None takes our preset's.
        num_seeds: seeds 0, 1, ...; with one there is no figure without compilation.
        peers: of `PEERS`; one that is not installed is named in `report` and left out.
        report: gets a line for each learner that is done or left out.

    Raises:
        UserError: an unknown environment or peer, or a budget that is too small for one rollout.
    """
    for env_id in env_ids:
        if env_id not in TASKS:
            raise unknown("environment of the comparison", env_id, TASKS)
    for name in peers:
        if name not in PEERS:
            raise unknown("peer", name, PEERS)
    check_count("num_seeds", num_seeds)
    there = []
    for peer in (PEERS[name] for name in peers):
        if missing := peer.missing():
            report(f"{peer.name} is left out: {', '.join(missing)} is not installed (pip install 'equimorph[compare]')")
        else:
            there.append(peer)
    cached = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        return [row for env_id in env_ids for row in _compare_on(env_id, steps, num_seeds, there, report)]
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)


def _compare_on(env_id: str, steps: int | None, num_seeds: int, peers: Sequence[Peer], report) -> list[Row]:
    """The rows of one environment."""
    task = TASKS[env_id]
    rows = []
    configs = {agent: _budgeted(env_id, agent, steps) for agent in task.agents}
    budget = shared_budget(configs["mappo"])
    for agent, config in configs.items():
        rows.append(_ours(task, f"equimorph {agent}", config, num_seeds))
        report(_done(rows[-1]))
    for peer in peers:
        rows.append(_theirs(task, peer, configs["mappo"], budget, num_seeds))
        report(_done(rows[-1]))
    return rows


def _done(row: Row) -> str:
    return f"{row.env_id}: {row.learner} took {sum(row.seconds):.0f} CPU seconds for {len(row.seconds)} seeds"


def _budgeted(env_id: str, agent: str, steps: int | None) -> Config:
    """The preset of a pair with as many whole rollouts as the budget pays for."""
    if steps is None:
        ppo = resolve(env_id, "mappo")
        steps = _rollout_size(ppo) * ppo.training.iterations
    config = resolve(env_id, agent)
    iterations = steps // _rollout_size(config)
    if iterations < 1:
        raise UserError(
            f"{env_id}: {steps} steps do not pay for one rollout of {agent}, which takes {_rollout_size(config)}"
        )
    return resolve(env_id, agent, {"training": {"iterations": iterations}})


def _rollout_size(config: Config) -> int:
    return config.rollout.num_envs * config.rollout.num_steps


def shared_budget(config: Config) -> Budget:
    """What our PPO's configuration means to another library's."""
    env, params, agent = build(config)
    return Budget(
        num_envs=config.rollout.num_envs,
        num_steps=config.rollout.num_steps,
        iterations=config.training.iterations,
        epochs=agent.epochs,
        minibatches=agent.minibatches,
        learning_rate=float(agent.learning_rate),
        anneal=agent.schedule == "linear",
        gamma=float(env.discount_factor(params) if agent.gamma is None else agent.gamma),
        gae_lambda=float(agent.gae_lambda),
        clip=float(agent.clip),
        entropy=float(agent.entropy),
        initial_std=INITIAL_STD if agent.initial_std is None else agent.initial_std,
        widths=tuple(agent.widths),
    )


def _ours(task: Task, name: str, config: Config, num_seeds: int) -> Row:
    found, seconds = [], []
    for seed in range(num_seeds):
        started = time.process_time()
        run = train(config.env.id, config.agent.name, iterations=config.training.iterations, seed=seed, progress=False)
        seconds.append(time.process_time() - started)
        found.append(evaluate(run))
    untrained = [evaluation["untrained"] for evaluation in found]
    return _row(task, name, config, found, untrained, seconds)


def _theirs(task: Task, peer: Peer, config: Config, budget: Budget, num_seeds: int) -> Row:
    env, params, _ = build(config)
    seen = peer_env(env, params)
    learnt, seconds = [], []
    for seed in range(num_seeds):
        started = time.process_time()
        learnt.append(peer.train(seen, params, budget, seed))
        seconds.append(time.process_time() - started)
    # Policies that are scored together have one structure: the first seed's function serves them all.
    function = learnt[0].function
    arrays = [one.arrays for one in learnt] + [one.untrained for one in learnt]
    policies: list[Any] = [PeerPolicy(jax.tree.map(jax.numpy.asarray, each), function, seen, params) for each in arrays]
    settings = config.evaluation
    scored = evaluate_policies(config.env, policies, settings.num_episodes, settings.horizon, settings.seed)
    return _row(task, peer.name, config, scored[:num_seeds], scored[num_seeds:], seconds)


def _row(
    task: Task, name: str, config: Config, found: list[Evaluation], untrained: list[Evaluation], seconds: list[float]
) -> Row:
    scores, before = (tuple(task.scale * each[task.measure] for each in group) for group in (found, untrained))
    steps = _rollout_size(config) * config.training.iterations
    return Row(config.env.id, name, scores, before, tuple(seconds), steps)


def comparison_table(rows: Sequence[Row]) -> str:
    """A table for each environment: score and untrained score (mean over seeds ± standard deviation), CPU seconds."""
    blocks = []
    for env_id in dict.fromkeys(row.env_id for row in rows):
        here = [row for row in rows if row.env_id == env_id]
        head = [
            f"{env_id}, {here[0].steps:,} steps",
            TASKS[env_id].label,
            "untrained",
            "CPU s with compilation",
            "without",
            "steps per CPU s",
        ]
        blocks.append(align([head, *map(_cells, here)]))
    return "\n\n".join(blocks)


def _cells(row: Row) -> list[str]:
    warm = row.warm
    return [
        row.learner,
        f"{np.mean(row.scores):.3g} ± {np.std(row.scores):.1g}",
        f"{np.mean(row.untrained):.3g}",
        f"{row.seconds[0]:.1f}",
        "-" if warm is None else f"{warm:.1f}",
        "-" if warm is None else f"{row.steps / warm:,.0f}",
    ]


def comparison_figure(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Score against CPU seconds, a panel for each environment, as a picture file.

    Filled marks are without compilation, open ones with it; the dashed line is the untrained policy of the first row.
    """
    from matplotlib.figure import Figure

    env_ids = list(dict.fromkeys(row.env_id for row in rows))
    learners = list(dict.fromkeys(row.learner for row in rows))
    figure = Figure(figsize=(4.2 * len(env_ids), 4.2), dpi=120, layout="constrained")
    handles: dict[str, Any] = {}
    for axis, env_id in zip(figure.subplots(1, len(env_ids), squeeze=False)[0], env_ids, strict=True):
        here = [row for row in rows if row.env_id == env_id]
        for row in here:
            look = {"color": f"C{learners.index(row.learner)}", "marker": "osD^vP"[learners.index(row.learner) % 6]}
            mean = float(np.mean(row.scores))
            first, warm = row.seconds[0], row.warm
            axis.plot([first], [mean], markerfacecolor="none", linestyle="none", **look)
            if warm is not None:
                axis.plot([warm, first], [mean, mean], color=look["color"], linewidth=0.8)
                low, high = mean - min(row.scores), max(row.scores) - mean
                handles[row.learner] = axis.errorbar(
                    [warm], [mean], yerr=[[low], [high]], linestyle="none", capsize=3, **look
                )
        axis.axhline(float(np.mean(here[0].untrained)), color="grey", linestyle="--", linewidth=1)
        axis.set(
            xscale="log", xlabel="CPU seconds", ylabel=TASKS[env_id].label, title=f"{env_id}, {here[0].steps:,} steps"
        )
        if env_id != "CartPole-v1":
            axis.set_yscale("log")
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    figure.savefig(path)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse, before hours of training, a folder whose comparison would be overwritten.

    Raises:
        UserError: names the file that is there.
    """
    if (Path(folder) / TABLE).exists():
        raise UserError(f"{Path(folder) / TABLE} is there already; choose another folder")


def save_comparison(rows: Sequence[Row], folder: str | os.PathLike[str]) -> Path:
    """Write the table's numbers and the figure into a folder.

    Returns:
        The folder.

    Raises:
        UserError: the folder has a comparison already, or cannot be written.
    """
    check_folder(folder)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / TABLE).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")
        comparison_figure(rows, path / FIGURE)
    except OSError as error:
        raise UserError(f"cannot write into {path}: {error.strerror}") from None
    return path

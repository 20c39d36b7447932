"""What `logging` asks for: refused where it does not apply, and opened where a run begins."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import PyTree

from ..agents.agent import Agent
from ..envs.environment import Environment, EnvParams
from ..errors import UserError
from .collect import TrainState
from .config import Config, dump_config
from .distributions import distributions
from .header import settings_of
from .live_figures import check_figures, make_figures
from .metrics import MetricsWriter
from .wandb_log import WandbLog, check_wandb


def check_logging(config: Config, env: Environment, params: EnvParams) -> None:
    """Refuse what would show nowhere, before anything is written.

    Raises:
        UserError: names the setting, and what it needs.
    """
    logs = config.logging
    wanted = [name for name in ("histograms", "figures", "wandb") if getattr(logs, name)]
    if wanted and config.out is None:
        raise UserError(f"logging.{wanted[0]} applies only with a run folder; set out, or leave it out")
    if logs.wandb:
        check_wandb(logs.wandb)
    if wanted and not (logs.tensorboard or logs.wandb):
        raise UserError(
            f"logging.{wanted[0]} needs somewhere to show: leave logging.tensorboard on, or set logging.wandb"
        )
    if logs.figures:
        check_figures(env, params)


def open_writer(config: Config, params: EnvParams, path: Path, after: int, seconds: float) -> MetricsWriter:
    """Where a run's reports go.

    Args:
        config: the run's.
        params: of its environment.
        path: its folder.
        after: environment steps that are done.
        seconds: wall-clock time that it has taken.
    """
    logs = config.logging
    wandb = WandbLog(path, logs.wandb, config.model_dump(mode="json")) if logs.wandb else None
    writer = MetricsWriter(path, tensorboard=logs.tensorboard, after=after, seconds=seconds, wandb=wandb)
    if logs.tensorboard:
        writer.begin(settings_of(config, params), dump_config(config))
    return writer


class Gallery:
    """Histograms and figures of a run under way. In processes without a writer nothing is drawn.

    Args:
        config, env, params: of the run.

    Raises:
        UserError: as for `check_logging`.
    """

    def __init__(self, config: Config, env: Environment, params: EnvParams):
        check_logging(config, env, params)
        self._config, self._env, self._params = config, env, params
        self._draw = None

    def histograms(self, writer: MetricsWriter | None, step: int, state: TrainState, agent: Agent) -> None:
        """Show what a train state holds, after `step` environment steps."""
        if writer is not None:
            several = self._config.training.num_seeds > 1
            writer.histograms(step, distributions(state, self._env, self._params, agent, several))

    def figures(self, writer: MetricsWriter | None, step: int, agent_state: PyTree, agent: Agent) -> None:
        """Show what a learner's policy does."""
        if writer is not None:
            self._draw = self._draw or make_figures(self._config, self._env, self._params, agent)
            writer.images(step, self._draw(agent_state))

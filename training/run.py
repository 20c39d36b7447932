"""The run folder: what a run leaves behind, and how it is used again.

config.yaml      every setting
metrics.jsonl    what was reported on the way; TensorBoard events beside it
policy.eqx       the trained learner's state
best.eqx         the same where evaluations during the training were best
untrained.eqx    the same before training
run.json         what produced it, and whether it finished
evaluation.json  how it scored
full.json        the whole report, where one was asked for
checkpoints      what the run can go on from
"""

import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array, PyTree

from ..agents.exported import TrainedPolicy
from ..errors import UserError
from ..storage import fingerprint, load_tree, save_tree, structure, write_text
from .checkpoint import Checkpoints, versions
from .config import Config, build, build_env, dump_config, parse
from .guard import LOCK, FolderLock
from .metrics import plain
from .settings import apply_overrides, load_config
from .switch import stages

CONFIG, INFO, TRAINED, UNTRAINED, BEST, EVALUATION, FULL = (
    "config.yaml",
    "run.json",
    "policy.eqx",
    "untrained.eqx",
    "best.eqx",
    "evaluation.json",
    "full.json",
)


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run folder that is being written. Every file in it is whole at any moment.

    Attributes:
        path: the folder.
        lock: keeps others out of it.
    """

    path: Path
    lock: FolderLock | None = None

    @classmethod
    def create(cls, path: str | os.PathLike) -> "RunFolder":
        """Make a new folder; an empty one is taken over.

        Raises:
            UserError: there is something at `path` already, or the folder cannot be made. Nothing is ever overwritten.
        """
        if not os.fspath(path) or "\0" in str(path):
            raise UserError(f"a run folder needs a name, got {os.fspath(path)!r}")
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            taken = any(file.name != LOCK for file in path.iterdir())
            tempfile.TemporaryFile(dir=path).close()
        except OSError as error:
            raise UserError(f"cannot make the run folder {os.fspath(path)!r}: {error.strerror}") from None
        if taken:
            what = "already holds a run" if (path / CONFIG).exists() else "is not empty"
            more = f"; to go on with it, equimorph train --resume {path}" if (path / CONFIG).exists() else ""
            raise UserError(
                f"the run folder {os.fspath(path)!r} {what}; choose another one, nothing is overwritten{more}"
            )
        return cls(path, FolderLock(path))

    @classmethod
    def reopen(cls, path: str | os.PathLike) -> "RunFolder":
        """Take a run's folder to go on with it.

        Raises:
            UserError: there is no run, another process is at it, or it cannot be written to.
        """
        check_run_folder(path)
        return cls(Path(path), FolderLock(path))

    def release(self) -> None:
        """Let others write."""
        if self.lock is not None:
            self.lock.release()

    def write_config(self, config: Config) -> None:
        """Write every setting."""
        write_text(self.path / CONFIG, dump_config(config))

    def write_state(self, state: PyTree[Array], name: str = TRAINED) -> None:
        """Write a learner's state, with a leading axis over seeds where there are several, as `TRAINED` or another."""
        save_tree(self.path / name, state)

    def write_info(
        self, config: Config, concept: str, state: PyTree[Array], *, finished: bool, stopped: str | None = None
    ) -> None:
        """Write what the run is, what produced it, whether it finished, and why if that was early."""
        info = {
            "environment": config.env.id,
            "concept": concept,
            "agent": config.agent.name,
            "num_seeds": config.training.num_seeds,
            "finished": finished,
            "stopped": stopped,
            "structure": fingerprint(state),
            "versions": versions(),
        }
        self.write_json(INFO, info)

    def write_json(self, name: str, content: Any) -> None:
        """Write strict JSON: numbers that are not finite become null."""
        write_text(self.path / name, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that was loaded from its folder.

    Attributes:
        path: the folder.
        config: its settings.
        env: the environment.
        params: its parameters.
        agent: the learner (hyperparameters).
        state: the trained learner's state, of one seed.
        untrained_state: the same before training.
        info: what `run.json` says.
        history: metrics by name over iterations, where the run has just been trained.
        seeds: the runs of all seeds, this one included, where it has just been trained.
    """

    path: Path | None
    config: Config
    env: Any
    params: Any
    agent: Any
    state: PyTree[Array]
    untrained_state: PyTree[Array]
    info: Mapping[str, Any]
    history: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    seeds: tuple["Run", ...] = dataclasses.field(default=(), repr=False)

    @property
    def concept(self) -> str:
        """The equilibrium concept that the run was trained for."""
        return self.info["concept"]

    def policy(self, observation: PyTree, *, agent_mask: Any = None, action_mask: Any = None) -> PyTree[Array]:
        """The trained policy's action: deterministic, in the environment's own units.

        Args:
            observation: what `env.reset` and `env.step` return, `[O]` for one agent and `[A, O]` for several; NumPy or
                JAX. A batch has one more axis in front.
            agent_mask: which slots hold a living agent, bool[A]; None: all. With a batch, `[batch, A]`.
            action_mask: legal discrete actions, as the environment's `action_mask` gives them; None: all. With a batch,
                one more axis in front.

        Returns:
            The action that `env.step` takes, as NumPy arrays, with the batch's axis in front where there is one.

        Raises:
            UserError: the observation is of another shape (the message names the expected one), or the policy has a
                memory: `acting.act` carries it.
        """
        return self.acting(observation, agent_mask=agent_mask, action_mask=action_mask)

    @functools.cached_property
    def acting(self) -> TrainedPolicy:
        """The trained policy by itself: it can also draw its actions, and carry a memory."""
        return TrainedPolicy(self.env, self.params, self.agent.policy(self.state), self.config.env.id)

    def changed(self, sets: Sequence[str]) -> "Run":
        """The same policy in a changed environment, or with another evaluation.

        Args:
            sets: overrides such as "env.params.beta=0.9", of `env` and `evaluation` only.

        Raises:
            UserError: an override names something else, something unknown, or a value out of range.
        """
        for override in [sets] if isinstance(sets, str) else sets:
            if override.split("=")[0].strip().split(".")[0] not in ("env", "evaluation"):
                raise UserError(f"cannot set {override!r} of a finished run; only env and evaluation may change")
        config = parse(apply_overrides(self.config.model_dump(), [sets] if isinstance(sets, str) else sets))
        env, params = build_env(config.env)
        like = jax.eval_shape(lambda key: self.agent.init(key, env, params), jax.random.key(0))
        if structure(like) != structure(self.state):
            raise UserError(
                f"the policy of this run was trained on {self.config.env.id} and does not fit {config.env.id} as "
                "changed: its observations or actions are of another shape"
            )
        return dataclasses.replace(self, config=config, env=env, params=params)


def check_run_folder(path: str | os.PathLike) -> None:
    """Raise `UserError` unless `path` is the folder of a run."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a run folder is named by its path, got {type(path).__name__}")
    if not Path(path).is_dir():
        raise UserError(f"there is no run folder {os.fspath(path)!r}")
    if not Path(path, CONFIG).is_file():
        raise UserError(f"{os.fspath(path)!r} is not a run folder: it has no {CONFIG}")


def load(path: str | os.PathLike, *, seed: int = 0, best: bool = False) -> Run:
    """Open a run folder.

    Args:
        path: the folder that a run was written to.
        seed: which of the run's seeds, counted from 0.
        best: the policy that did best in the evaluations during training, instead of the last one.

    Raises:
        UserError: the run did not finish; the folder or one of its files is missing, damaged, or does not fit the
            rest; there is no such seed; or `best` of a run without evaluations.
    """
    check_run_folder(path)
    path = Path(path)
    config = parse(load_config(path / CONFIG))
    info = read_info(path / INFO)
    if not info.get("finished") and not (path / TRAINED).is_file():
        there = Checkpoints(path).iterations()
        advice = (
            f"go on with it: equimorph train --resume {path} (it has a checkpoint of iteration {there[-1]})"
            if there
            else "train it again into another folder, or delete this one first"
        )
        raise UserError(f"the run in {os.fspath(path)!r} did not finish: it has no trained policy; {advice}")
    if best and not (path / BEST).is_file():
        raise UserError(
            f"the run in {os.fspath(path)!r} has no best policy: it was not evaluated while it was trained "
            "(evaluation.every); leave best out"
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UserError(f"seed must be a whole number, which of the run's seeds, got {seed!r}")
    if not 0 <= seed < config.training.num_seeds:
        raise UserError(
            f"{os.fspath(path)!r} has {config.training.num_seeds} seeds, counted from 0; there is no {seed}"
        )
    env, params, agent = build(config)
    agent = stages(config, env, params, agent)[-1].agent
    like = state_structure(config, env, params, agent)
    state, untrained_state = (load_tree(path / name, like) for name in (BEST if best else TRAINED, UNTRAINED))
    if config.training.num_seeds > 1:
        state, untrained_state = jax.tree.map(lambda leaf: leaf[seed], (state, untrained_state))
    return Run(path, config, env, params, agent, state, untrained_state, info)


def state_structure(config: Config, env: Any, params: Any, agent: Any) -> PyTree[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of what `RunFolder.write_state` writes; nothing is computed."""
    keys = jax.random.split(jax.random.key(0), config.training.num_seeds)
    if config.training.num_seeds > 1:
        return jax.eval_shape(jax.vmap(lambda key: agent.init(key, env, params)), keys)
    return jax.eval_shape(lambda key: agent.init(key, env, params), keys[0])


def read_info(path: Path) -> dict[str, Any]:
    """What `RunFolder.write_info` wrote; raises `UserError` where it is missing or damaged."""
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {os.fspath(path)!r}: {error.strerror}; did the run finish?") from None
    except ValueError:
        raise UserError(f"{os.fspath(path)!r} is damaged: it is not JSON") from None
    if not isinstance(info, dict) or not isinstance(info.get("concept"), str):
        raise UserError(f"{os.fspath(path)!r} is damaged: it does not name the run's concept")
    return info

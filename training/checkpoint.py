"""Checkpoints: the whole state of a run, kept with Orbax, whole or absent.

Beside every state stands a record in JSON: how far the run is, the structure of the state, the versions that wrote it
and its configuration. Nothing that is read is ever executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..errors import UserError
from ..storage import check_structure, fingerprint, structure
from .distributed import process_group
from .metrics import plain

FORMAT = 1
FOLDER = "checkpoints"
_MANAGERS = itertools.count()
PACKAGES = ("equimorph", "jax", "equinox", "optax", "distrax", "gymnax", "jax-morph")


@dataclasses.dataclass
class Position:
    """How far a run is, beyond what is in its train state.

    Attributes:
        iteration: iterations done.
        part: the part of the run, of those between stepper switches.
        rate_scale: what learning rates are multiplied with.
        best: the best return of an evaluation, one a seed; empty before the first.
        best_mean: the best mean over seeds.
        waited, waited_to_reduce: evaluations since it improved, and since that or the last reduction of the rate.
        rollbacks: times the run went back after something was not finite.
        seconds: wall-clock time spent.
        stopped: why it ended early.
    """

    iteration: int = 0
    part: int = 0
    rate_scale: float = 1.0
    best: list[float] = dataclasses.field(default_factory=list)
    best_mean: float | None = None
    waited: int = 0
    waited_to_reduce: int = 0
    rollbacks: int = 0
    seconds: float = 0.0
    stopped: str | None = None


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint that was read.

    Attributes:
        state: the train state, NumPy arrays.
        history: every metric by name, over iterations.
        position: how far the run was.
    """

    state: PyTree
    history: dict[str, np.ndarray]
    position: Position


def versions() -> dict[str, str]:
    """The packages that a run depends on."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def to_arrays(tree: PyTree) -> PyTree:
    """A copy of a pytree on the host: keys as their integers, everything else as it is."""
    return jax.tree.map(lambda leaf: np.array(_data(leaf)), tree)


def from_arrays(tree: PyTree, like: PyTree) -> PyTree:
    """`to_arrays` undone; `like` says which leaves are keys."""

    def one(leaf: np.ndarray, like: Any) -> jax.Array:
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(leaf))
        return jnp.asarray(leaf)

    return jax.tree.map(one, tree, like)


def _data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


class Checkpoints:
    """The checkpoints of a run folder.

    Args:
        path: the run folder.
        keep: how many of the latest are kept, and one more: that of the best evaluation. None: only to read.
    """

    def __init__(self, path: str | os.PathLike, keep: int | None = None):
        self._path = Path(path, FOLDER).absolute()
        self._keep = keep

    @functools.cached_property
    def _manager(self) -> Any:
        # Late: it takes a second.
        import orbax.checkpoint as ocp
        from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

        logging.getLogger("absl").setLevel(logging.ERROR)  # it tells of every file
        best = BestN(get_metric_fn=lambda metrics: metrics["return"], n=1, keep_checkpoints_without_metrics=False)
        own: dict[str, Any] = {}
        if process_group().size > 1:  # this process writes and reads for all: Orbax shall wait for none of the others
            self._path.mkdir(exist_ok=True)
            prefix = f"equimorph{next(_MANAGERS)}"
            only = ocp.options.MultiprocessingOptions(active_processes={0}, barrier_sync_key_prefix=prefix)
            own = {"create": False, "multiprocessing_options": only}
        options = ocp.CheckpointManagerOptions(
            **own,
            preservation_policy=AnyPreservationPolicy([LatestN(self._keep), best]) if self._keep else None,
            read_only=self._keep is None,
            cleanup_tmp_directories=self._keep is not None,
        )
        return ocp.CheckpointManager(self._path, options=options)

    def iterations(self) -> list[int]:
        """Where there are whole checkpoints, in iterations, ascending."""
        if not self._path.is_dir():
            return []
        return sorted(int(step) for step in self._manager.all_steps(read=True))

    def save(
        self,
        state: PyTree,
        history: Mapping[str, np.ndarray],
        position: Position,
        config: Mapping[str, Any],
        mean_return: float | None = None,
    ) -> None:
        """Keep a state. It is copied before this returns, and written while the run goes on.

        Args:
            state: the train state.
            history: every metric by name, over iterations.
            position: how far the run is.
            config: every setting.
            mean_return: of the evaluation of this state, where there was one.

        Raises:
            UserError: it, or the one before it, cannot be written.
        """
        import orbax.checkpoint as ocp

        arrays = [*jax.tree.leaves(to_arrays(state)), *(np.asarray(values) for values in history.values())]
        record = {
            "format": FORMAT,
            "position": dataclasses.asdict(position),
            "structure": structure(state),
            "fingerprint": fingerprint(state),
            "history": [[name, str(values.dtype), list(np.shape(values))] for name, values in history.items()],
            "checksum": checksum(arrays),
            "versions": versions(),
            "config": config,
        }
        content = {"state": ocp.args.StandardSave(_named(arrays)), "record": ocp.args.JsonSave(plain(record))}
        metrics = None if mean_return is None or not np.isfinite(mean_return) else {"return": float(mean_return)}
        with _writing(self._path):
            self._manager.save(position.iteration, args=ocp.args.Composite(**content), metrics=metrics, force=True)

    def drop_after(self, iteration: int) -> None:
        """Delete what was saved later than an iteration: the run goes on from there, and comes by again."""
        for step in self.iterations():
            if step > iteration:
                self._manager.delete(step)
        self.close()

    def wait(self) -> None:
        """Return when everything is written.

        Raises:
            UserError: it cannot be.
        """
        if "_manager" in self.__dict__:
            with _writing(self._path):
                self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait, and end the threads that write."""
        self.wait()
        if "_manager" in self.__dict__:
            self._manager.close()
            del self.__dict__["_manager"]

    def record(self, iteration: int | None = None) -> dict[str, Any]:
        """The record of a checkpoint; of the latest unless told.

        Raises:
            UserError: there is none, or it is damaged or of a newer version.
        """
        import orbax.checkpoint as ocp

        there = self.iterations()
        iteration = self._chosen(iteration, there)
        try:
            found = self._manager.restore(iteration, args=ocp.args.Composite(record=ocp.args.JsonRestore()))
            record = found["record"]
            version = record["format"]
        except Exception as error:  # whatever a broken file makes of Orbax, it is a broken file
            raise self._damaged(iteration, error) from error
        if version != FORMAT:
            raise UserError(
                f"checkpoint {iteration} in {os.fspath(self._path)!r} has format {version}; this version of equimorph "
                f"reads format {FORMAT}: it was written by equimorph {record.get('versions', {}).get('equimorph')}"
            )
        return record

    def restore(self, iteration: int | None, like: PyTree) -> Saved:
        """Read a checkpoint; the latest unless told.

        Args:
            iteration: which.
            like: the train state that is expected, arrays or `jax.ShapeDtypeStruct`.

        Raises:
            UserError: as `record`, or its state has another structure: the first leaf that differs is named.
        """
        import orbax.checkpoint as ocp

        iteration = self._chosen(iteration, self.iterations())
        record = self.record(iteration)
        check_structure(f"{self._path}/{iteration}", record["structure"], structure(like))
        leaves, tree = jax.tree.flatten(jax.eval_shape(lambda t: jax.tree.map(_data, t), like))
        wanted = [np.empty(leaf.shape, leaf.dtype) for leaf in leaves]
        wanted += [np.empty(shape, dtype) for _, dtype, shape in record["history"]]
        try:
            content = {"state": ocp.args.StandardRestore(_named(wanted))}
            found = self._manager.restore(iteration, args=ocp.args.Composite(**content))["state"]
            arrays = [found.get(f"{index:05d}", empty) for index, empty in enumerate(wanted)]
            if checksum(arrays) != record["checksum"]:
                raise ValueError("its content does not match its checksum")
        except Exception as error:
            raise self._damaged(iteration, error) from error
        state = jax.tree.unflatten(tree, arrays[: len(leaves)])
        names = [name for name, _, _ in record["history"]]
        history = dict(zip(names, arrays[len(leaves) :], strict=True))
        return Saved(state, history, Position(**record["position"]))

    def _chosen(self, iteration: int | None, there: Sequence[int]) -> int:
        if not there:
            raise UserError(
                f"there is no checkpoint in {os.fspath(self._path)!r}: nothing was saved before the run ended"
            )
        if iteration is not None and iteration not in there:
            known = ", ".join(map(str, there))
            raise UserError(f"there is no checkpoint {iteration} in {os.fspath(self._path)!r}; there are {known}")
        return there[-1] if iteration is None else iteration

    def _damaged(self, iteration: int, error: Exception) -> UserError:
        others = [step for step in self.iterations() if step != iteration]
        advice = f"go on from another with --checkpoint {others[-1]}" if others else "there is no other"
        reason = str(error).partition("\n")[0][:120]
        return UserError(f"checkpoint {iteration} in {os.fspath(self._path)!r} is damaged ({reason}); {advice}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a checkpoint is written, told in one line."""
    try:
        yield
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0][:160]
        raise UserError(
            f"cannot write a checkpoint into {os.fspath(path)!r}: {reason}; earlier ones are as they were"
        ) from error


def named_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """A pytree's arrays by their number."""
    return {f"{index:05d}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}


def _named(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays by their number; empty ones are left out, which Orbax does not take."""
    return {name: array for name, array in named_leaves(list(arrays)).items() if array.size}


def checksum(arrays: Sequence[np.ndarray]) -> int:
    """CRC-32 of the bytes of arrays, one after another."""
    total = 0
    for array in arrays:
        total = zlib.crc32(array.tobytes(), total)
    return total

"""Several processes as one run: how they are connected, and what they tell each other.

Nothing of environments is imported here: gymnax computes when it is imported, and after that it is too late.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from ..errors import UserError

LATE = (
    "several processes must be connected before JAX first computes, which it does when environments are imported: call "
    "initialize_distributed first"
)
PATIENCE_MS = 1000
"""How long a process waits for a message before it looks whether another one failed."""
PIECE = 2**25
"""Bytes of a message that are sent at once."""

T = TypeVar("T")


def initialize_distributed(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Connect this process with the run's others; every process calls it, before anything else of JAX.

    Processors exchange through gloo, GPUs through NCCL. Under SLURM and Open MPI all three come from the cluster; under
    Kubernetes too, where its Python client is installed. The environment variables JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID stand in for what is not given.

    Args:
        coordinator: "host:port" of the first process.
        num_processes: how many there are.
        process_id: which one this is, from 0.

    Raises:
        UserError: JAX has computed already, something is neither given nor found, or the others do not answer.
    """
    _check_coordinator("coordinator", coordinator)
    _check_coordinator("the environment variable JAX_COORDINATOR_ADDRESS", os.environ.get("JAX_COORDINATOR_ADDRESS"))
    num_processes = _from_environment("JAX_NUM_PROCESSES", num_processes)
    process_id = _from_environment("JAX_PROCESS_ID", process_id)
    process_group.cache_clear()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM to itself
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        if "before" in reason or "once" in reason:
            raise UserError(LATE) from None
        raise UserError(
            f"cannot connect the processes: {reason.rstrip('.')}; start them with srun or mpirun, or say "
            'coordinator="host:port", num_processes and process_id'
        ) from None


def _check_coordinator(name: str, given: str | None) -> None:
    """JAX waits for minutes at a port that does not exist."""
    if given is None:
        return
    host, _, port = given.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"{name} must be host:port with a port from 1 to 65535, got {given!r}")


def _from_environment(name: str, given: int | None) -> int | None:
    text = os.environ.get(name)
    if given is not None or text is None:
        return given
    if not text.isdecimal():
        raise UserError(f"the environment variable {name} must be a whole number of at least 0, got {text!r}")
    return int(text)


def is_primary() -> bool:
    """Whether this process is the one that writes files and reports."""
    return jax.process_index() == 0


class ProcessGroup:
    """The processes that share a run, and what they tell each other between compiled calls.

    All of them make the same calls in the same order. Messages go through the coordinator and not through devices: an
    exchange of devices fails where one process is more than 30 seconds late (gloo), here the others wait as long as it
    takes, and hear within about a second when one has failed. Alone, every call returns what it is given.

    Attributes:
        size: how many processes there are.
        rank: which one this is, from 0.
    """

    def __init__(self):
        from jax._src.distributed import global_state  # JAX has no public access to its coordinator's messages

        self._client: Any = global_state.client
        self.size = global_state.num_processes if self._client is not None else 1
        self.rank = global_state.process_id if self._client is not None else 0
        self._run, self._count, self._inside = 0, 0, False
        self._old: list[str] = []

    @property
    def primary(self) -> bool:
        """Whether this is the process that owns files and speaks."""
        return self.rank == 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Within it what ends one process ends all, and they leave it together.

        Raises:
            UserError: another process raised it, with the same message.
            RuntimeError: another process failed otherwise; it says how.
        """
        if self.size == 1 or self._inside:
            yield
            return
        self._inside, self._run, self._count, self._old = True, self._run + 1, 0, []
        try:
            yield
            self.wait()
        except BaseException as error:
            self._tell(error)
            if isinstance(error, jax.errors.JaxRuntimeError):  # an exchange that another process did not come to
                self._listen()
            raise
        finally:
            self._inside = False

    def wait(self) -> None:
        """Return when every process is here."""
        self.gather(None)

    def gather(self, value: Any) -> list[Any]:
        """What every process says, by rank: anything that JSON holds, NaN and infinities included."""
        if self.size == 1:
            return [value]
        key = self._next_key()
        if not self.primary:
            self._send(f"{key}/{self.rank}", _packed(value))
            return json.loads(self._receive(key))
        values = [value, *(json.loads(self._receive(f"{key}/{rank}")) for rank in range(1, self.size))]
        for old in self._old:  # every process is past them
            self._client.key_value_delete(old)
        self._old = []
        self._publish(key, _packed(values))
        return values

    def of_primary(self, make: Callable[[], T]) -> T:
        """What the primary makes, in every process; `make` is called there alone.

        Args:
            make: returns what JSON holds, or arrays, which others receive as nested lists.
        """
        if self.size == 1:
            return make()
        key = self._next_key()
        if not self.primary:
            return json.loads(self._receive(key))
        value = make()
        self._publish(key, _packed(value))
        return value

    def arrays_of_primary(self, make: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Arrays by name that the primary makes, bit for bit, in every process; `make` is called there alone."""
        if self.size == 1:
            return dict(make())
        key = self._next_key()
        if not self.primary:
            with np.load(io.BytesIO(self._receive(key)), allow_pickle=False) as found:
                return dict(found)
        arrays, payload = dict(make()), io.BytesIO()
        np.savez(payload, **arrays)  # pyright: ignore[reportArgumentType]
        self._publish(key, payload.getvalue())
        return arrays

    def check_same(self, **told: Mapping[str, Any]) -> None:
        """Raise `UserError` in every process unless all say the same; the first that differs is named."""
        if self.size == 1:
            return
        from .resume import differences, setting

        first, *others = self.gather(told)
        for rank, other in enumerate(others, 1):
            for kind in first:
                name = next(differences(first[kind], other[kind]), None)
                if name is not None:
                    a, b = (setting(tree[kind], name) for tree in (first, other))
                    raise UserError(
                        f"the processes of a run must have the same {kind}: {name} is {a!r} in process 0 and {b!r} in "
                        f"process {rank}"
                    )

    # -- messages -----------------------------------------------------------------------------------------------------

    def _next_key(self) -> str:
        self._count += 1
        return f"equimorph/{self._run}/{self._count}"

    def _publish(self, key: str, content: bytes) -> None:
        self._send(key, content)
        self._old.append(key)

    def _send(self, key: str, content: bytes) -> None:
        pieces = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
        for index, piece in enumerate(pieces[1:], 1):
            self._client.key_value_set_bytes(f"{key}/piece{index}", piece)
        self._client.key_value_set_bytes(key, len(pieces).to_bytes(8, "big") + pieces[0])

    def _receive(self, key: str) -> bytes:
        head = self._poll(key)
        more = (self._poll(f"{key}/piece{index}") for index in range(1, int.from_bytes(head[:8], "big")))
        return b"".join((head[8:], *more))

    def _poll(self, key: str) -> bytes:
        while True:
            try:
                return self._client.blocking_key_value_get_bytes(key, PATIENCE_MS)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            self._listen()

    # -- failures -----------------------------------------------------------------------------------------------------

    def _tell(self, error: BaseException) -> None:
        """Let the others know; the first to tell is heard."""
        kind = UserError if isinstance(error, UserError) else type(error)
        failed = {"rank": self.rank, "kind": kind.__name__, "text": str(error)}
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"equimorph/{self._run}/failed", json.dumps(failed))

    def _listen(self) -> None:
        """Raise what another process failed with, if one did."""
        try:
            failed = json.loads(self._client.key_value_try_get(f"equimorph/{self._run}/failed"))
        except jax.errors.JaxRuntimeError:
            return
        if failed["rank"] == self.rank:
            return
        kind, text = failed["kind"], failed["text"]
        for known in (UserError, KeyboardInterrupt):
            if kind == known.__name__:
                raise known(text) from None
        if kind == "SystemExit" and text.isdecimal():
            raise SystemExit(int(text)) from None
        raise RuntimeError(f"process {failed['rank']} ended with {kind}: {text}") from None


@functools.cache
def process_group() -> ProcessGroup:
    """The processes that this one was connected with; itself alone where it was not."""
    return ProcessGroup()


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """For programs of several processes: an error that is nobody's mistake ends this one without waiting for others.

    JAX lets a process wait for all others before it ends, which would wait in turn for what this one does not send.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or process_group().size == 1:
            raise
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _packed(value: Any) -> bytes:
    return json.dumps(value, default=lambda array: np.asarray(array).tolist()).encode()

"""Several processes as one run: how they are connected.

Nothing of environments is imported here: gymnax computes when it is imported, and after that it is too late.
"""

from __future__ import annotations

import os

import jax

from ..errors import UserError

LATE = (
    "several processes must be connected before JAX first computes, which it does when environments are imported: call "
    "initialize_distributed first"
)


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
    num_processes = _from_environment("JAX_NUM_PROCESSES", num_processes)
    process_id = _from_environment("JAX_PROCESS_ID", process_id)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
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

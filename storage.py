"""Files that are whole or absent: atomic writes, and pytrees of arrays with their structure and checksum."""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
import jax
from jaxtyping import PyTree

from .errors import UserError

FORMAT = 1


def write_atomically(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that a reader, or a crash, meets the old one or the new one and nothing between.

    Args:
        path: the file.
        write: fills an open binary file.

    Raises:
        UserError: the folder cannot be written to.
    """
    path = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise UserError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's files are private; a run folder is to be read by whom it concerns
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def structure(tree: PyTree) -> list[str]:
    """One line a leaf: where it is, its dtype and its shape. Works on arrays and on `jax.ShapeDtypeStruct`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves]


def fingerprint(tree: PyTree) -> str:
    """A short hash of `structure`."""
    return hashlib.sha256("\n".join(structure(tree)).encode()).hexdigest()[:16]


def save_tree(path: str | os.PathLike, tree: PyTree, about: Mapping[str, Any] | None = None) -> None:
    """Write a pytree of arrays: one line of JSON (structure, checksum), then equinox's serialised leaves.

    Args:
        path: the file.
        tree: of arrays.
        about: what `read_about` shall find, of JSON's types.
    """
    payload = io.BytesIO()
    eqx.tree_serialise_leaves(payload, tree)
    digest = hashlib.sha256(payload.getvalue()).hexdigest()
    header = {"format": FORMAT, "sha256": digest, "structure": structure(tree), "about": dict(about or {})}

    def write(file: BinaryIO) -> None:
        file.write(json.dumps(header).encode() + b"\n")
        file.write(payload.getvalue())

    write_atomically(path, write)


def load_tree(path: str | os.PathLike, like: PyTree) -> PyTree:
    """Read what `save_tree` wrote.

    Args:
        path: the file.
        like: a pytree of arrays or of `jax.ShapeDtypeStruct` with the structure that is expected.

    Raises:
        UserError: the file is missing, truncated, corrupt, or holds another structure; the first leaf that differs
            is named.
    """
    header, payload = _read(path)
    check_structure(path, header["structure"], structure(like))
    return eqx.tree_deserialise_leaves(io.BytesIO(payload), like)


def read_about(path: str | os.PathLike) -> dict[str, Any]:
    """What `save_tree` was told about the arrays; empty where that was nothing.

    Raises:
        UserError: the file is missing, truncated or corrupt.
    """
    return _read(path)[0].get("about", {})


def _read(path: str | os.PathLike) -> tuple[dict[str, Any], bytes]:
    """A file's header, and its content, which the header's checksum fits."""
    try:
        head, newline, payload = Path(path).read_bytes().partition(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from None
    try:
        header = json.loads(head)
        lines, digest, version = header["structure"], header["sha256"], header["format"]
        if not isinstance(lines, list):
            raise TypeError("structure")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{os.fspath(path)!r} is damaged: its first line is not a header of saved arrays") from None
    if version != FORMAT:
        raise UserError(f"{os.fspath(path)!r} has format {version}; this version of equimorph reads format {FORMAT}")
    if not newline or hashlib.sha256(payload).hexdigest() != digest:
        raise UserError(f"{os.fspath(path)!r} is damaged: its content does not match its checksum (truncated?)")
    return header, payload


def check_structure(path: str | os.PathLike, saved: list[Any], expected: list[str]) -> None:
    """Raise `UserError` unless two structures are equal; the first leaf that differs is named."""
    if saved == expected:
        return
    pairs = zip([*saved, *["nothing"] * len(expected)], [*expected, *["nothing"] * len(saved)], strict=False)
    there, here = next((a, b) for a, b in pairs if a != b)
    raise UserError(
        f"{os.fspath(path)!r} does not fit its configuration: it holds {there} where {here} is expected "
        "(another version, another precision (JAX_ENABLE_X64), or an edited config.yaml?)"
    )

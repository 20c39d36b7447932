"""The files of Dynare's first-order solution.

Dynare (Adjemian et al., "Dynare: reference manual", section "Typology and ordering of variables" and `stoch_simul`)
solves for y_t = ys + ghx (s_{t-1} - s_ss) + ghu e_t: its states s are the endogenous variables that appear with a lag.
The files, one a matrix, without headers; E endogenous variables, S states, X shocks:

    endo_names.csv     E names, one a line, in the order of their declaration (`M_.endo_names`)
    ys.csv             E numbers in one column or row, the steady state, in the order of declaration (`oo_.dr.ys`)
    order_var.csv      E whole numbers from 1, in one column or row: the declared variable of each row of ghx and ghu
                       (`oo_.dr.order_var`); or inv_order_var.csv, its inverse
    state_var.csv      S whole numbers from 1, in one column or row: the declared variable of each column of ghx
                       (`oo_.dr.state_var`)
    ghx.csv            E lines of S numbers (`oo_.dr.ghx`)
    ghu.csv            E lines of X numbers, the shocks in the order of declaration (`oo_.dr.ghu`)

In MATLAB `writematrix(oo_.dr.ghx, 'ghx.csv')` writes 15 digits, and `writecell(M_.endo_names, 'endo_names.csv')` the
names; in Octave give `dlmwrite` a 'precision' of 15, because its default keeps 5. Models in blocks (`model(block)`),
whose rows are ordered otherwise, are not meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import UserError, unknown

FILES = ("endo_names", "ys", "ghx", "ghu", "order_var", "inv_order_var", "state_var")


class Solution(NamedTuple):
    """Dynare's first-order solution, rows in the order of declaration.

    Attributes:
        names: of the E endogenous variables.
        steady: `[E]`, their steady state.
        ghx, ghu: `[E, S]` and `[E, X]`, what last period's states and this period's shocks do to them.
        states: `[S]`, which variable each column of ghx is.
    """

    names: tuple[str, ...]
    steady: np.ndarray
    ghx: np.ndarray
    ghu: np.ndarray
    states: np.ndarray

    def row(self, name: str) -> np.ndarray:
        """What moves a variable: `[S + X]`, last period's states and this period's shocks."""
        return np.concatenate([self.ghx[self.at(name)], self.ghu[self.at(name)]])

    def at(self, name: str) -> int:
        """The position of a variable."""
        if name not in self.names:
            raise unknown("variable of Dynare's", name, self.names)
        return self.names.index(name)


def read_solution(files: str | Path | Mapping[str, str | Path], names: Sequence[str] | None = None) -> Solution:
    """The matrices of the files, checked against each other.

    Args:
        files: a folder, or a path for each file by its name without ".csv".
        names: in place of endo_names.csv.

    Raises:
        UserError: a file is missing, is no table of finite numbers, or does not fit the others.
    """
    if isinstance(files, Mapping):
        for name in files:
            if name not in FILES:
                raise unknown("file of Dynare's", str(name), FILES)
        paths = {name: Path(path) for name, path in files.items()}
    else:
        paths = {name: Path(files) / f"{name}.csv" for name in FILES}

    def text(name: str) -> str:
        if name not in paths:
            raise UserError(f"no path for Dynare's {name}; add it, or give a folder with {name}.csv")
        try:
            return paths[name].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"Dynare's {name} cannot be read from {paths[name]} ({_short(error)})") from None

    if names is None:
        names = [part.strip(" \t\"'") for part in re.split(r"[\n,]", text("endo_names")) if part.strip()]
    if len(set(names)) < len(names):
        raise UserError("Dynare's endo_names has a name twice; every variable has its own")
    size = len(names)
    steady = _matrix("ys", text("ys")).ravel()
    _check_shape("ys", steady.shape, (size,), f"one number for each of {size} names")
    order_file = "order_var" if _given(paths, "order_var") or not _given(paths, "inv_order_var") else "inv_order_var"
    order = _positions(order_file, text(order_file), size)
    if not np.array_equal(np.sort(order), np.arange(size)):
        raise UserError(f"Dynare's {order_file} must have each of 1 to {size} once")
    by_row = order if order_file == "order_var" else np.argsort(order)
    states = _positions("state_var", text("state_var"), size)
    if len(set(states.tolist())) < states.size:
        raise UserError("Dynare's state_var has a variable twice")
    ghx, ghu = _matrix("ghx", text("ghx")), _matrix("ghu", text("ghu"))
    _check_shape("ghx", ghx.shape, (size, states.size), f"{size} variables by {states.size} states of state_var")
    _check_shape("ghu", ghu.shape, (size, ghu.shape[1]), f"{size} variables by its shocks")
    rows = np.argsort(by_row)
    return Solution(tuple(names), steady, ghx[rows], ghu[rows], states)


def _given(paths: Mapping[str, Path], name: str) -> bool:
    return name in paths and paths[name].exists()


def _matrix(name: str, text: str) -> np.ndarray:
    """Numbers separated by commas, one row a line."""
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    if not rows:
        raise UserError(f"Dynare's {name} is empty")
    try:
        matrix = np.asarray([[float(entry) for entry in row] for row in rows])
    except ValueError as error:
        raise UserError(
            f"Dynare's {name} is no table of numbers ({_short(error)}); write it without a header"
        ) from None
    if not np.all(np.isfinite(matrix)):
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        raise UserError(f"Dynare's {name} has {matrix[row, column]} in row {row + 1}, column {column + 1}")
    return matrix


def _positions(name: str, text: str, size: int) -> np.ndarray:
    """Whole numbers from 1, as positions from 0."""
    found = _matrix(name, text).ravel()
    if np.any(found != np.round(found)) or np.any((found < 1) | (found > size)):
        raise UserError(f"Dynare's {name} must have whole numbers from 1 to {size}, the number of names")
    return found.astype(int) - 1


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...], meaning: str) -> None:
    if found != wanted:
        shapes = (" x ".join(map(str, shape)) for shape in (found, wanted))
        raise UserError(f"Dynare's {name} is {next(shapes)} where {next(shapes)} is expected, {meaning}")


def _short(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]


def write_solution(folder: str | Path, solution: Solution, order: np.ndarray) -> None:
    """Write the files of a solution.

    Args:
        folder: is made where it is missing; its files are overwritten.
        solution: the matrices.
        order: `[E]`, which variable each row of the written ghx and ghu is.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "endo_names.csv").write_text("\n".join(solution.names) + "\n", encoding="utf-8")
    matrices = {
        "ys": solution.steady[:, None],
        "ghx": solution.ghx[order],
        "ghu": solution.ghu[order],
        "order_var": 1 + order[:, None],
        "inv_order_var": 1 + np.argsort(order)[:, None],
        "state_var": 1 + solution.states[:, None],
    }
    for name, matrix in matrices.items():
        kind = "%d" if matrix.dtype.kind == "i" else "%.17g"
        np.savetxt(folder / f"{name}.csv", matrix, fmt=kind, delimiter=",")

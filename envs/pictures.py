"""Pictures of states, uint8[H, W, 3]. Matplotlib is imported when the first is drawn.

Its axes take most of a frame's time, so that panels are drawn straight onto the figure.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

INCHES, DOTS = 4.0, 100
BAR, EDGE, LINE, STEADY = "#4c72b0", "#1f2d3d", "#dd8452", "#55a868"
MOST_BARS, MOST_PANELS = 64, 2
LEFT, WIDTH = 0.17, 0.76
GOLDEN = (np.sqrt(5) - 1) / 2


class CellStyle(NamedTuple):
    """What pictures of cells are drawn with in place of their own choice; None leaves them that.

    Attributes:
        colours: of the cells, 0 to 255.
        view: middle and half side of the square that is shown, where nothing is drawn under the cells.
        gone: where cells died, drawn as rings.
    """

    colours: Float[np.ndarray, "A 3"] | None = None
    view: tuple[Float[np.ndarray, " 2"], float] | None = None
    gone: Float[np.ndarray, "K 2"] | None = None


OWN_STYLE = CellStyle()


def clone_colours(number: int) -> Float[np.ndarray, "N 3"]:
    """As many colours, 0 to 255, each far from the one before: hues in steps of the golden section."""
    hues = [(0.58 + k * GOLDEN) % 1 for k in range(number)]
    return 255 * np.array([colorsys.hsv_to_rgb(hue, 0.6, 0.85) for hue in hues]).reshape(-1, 3)


class Coordinate(NamedTuple):
    """What one axis of the plane shows: its name, the path `[T]`, and the steady state, if any."""

    name: str
    path: np.ndarray
    steady: float | None


def draw_state(
    title: str, quantities: Mapping[str, Float[np.ndarray, "T ..."]], steady: Mapping[str, np.ndarray] | None
) -> np.ndarray:
    """A state, or the path to it: two coordinates in their plane, and arrays as bars.

    The coordinates are the first two quantities, an array by its mean; of a single pair its two entries. A single
    quantity is shown as bars, its path over time. The steady state is a green cross, the path an orange line, the
    present a blue point.

    Args:
        title: above the picture.
        quantities: name to numbers, a path's time first; `T` is 1 for a state alone.
        steady: the same names in the steady state, without time, or None.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # a figure of its own: pyplot would keep every frame open

    paths = {name: np.reshape(value, (len(value), -1)) for name, value in quantities.items()}
    fixed = {name: np.ravel(value) for name, value in (steady or {}).items()}
    fixed = {name: value for name, value in fixed.items() if name in paths and value.size == paths[name].shape[1]}
    plane = _coordinates(paths, fixed)
    several = [name for name, path in paths.items() if 1 < path.shape[1] <= MOST_BARS][:MOST_PANELS]
    bars = several if plane or several else list(paths)[:1]
    height = 0.2 if plane else 0.9 / max(len(bars), 1)
    figure = Figure(figsize=(INCHES, INCHES), dpi=DOTS)
    figure.text(0.5, 0.955, title, ha="center", fontsize=11)
    if plane:
        bottom = height * len(bars) + 0.12
        _draw_plane(figure, (bottom, 0.93 - bottom), *plane)
    for row, name in enumerate(reversed(bars)):
        _draw_bars(figure, (0.06 + row * height, height - 0.12), name, paths[name][-1], fixed.get(name))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def _coordinates(
    paths: Mapping[str, np.ndarray], steady: Mapping[str, np.ndarray]
) -> tuple[Coordinate, Coordinate] | None:
    """What the plane's axes show, or None where there is no plane."""
    names = list(paths)[:2]
    if len(names) == 1 and paths[names[0]].shape[1] == 2:
        name, base = names[0], steady.get(names[0])
        first, second = (
            Coordinate(f"{name} {i + 1}", paths[name][:, i], None if base is None else float(base[i])) for i in (0, 1)
        )
        return first, second
    found = [
        Coordinate(
            name if paths[name].shape[1] == 1 else f"mean {name}",
            paths[name].mean(axis=1),
            float(steady[name].mean()) if name in steady else None,
        )
        for name in names
    ]
    if len(found) == 2:
        return found[0], found[1]
    if found and len(found[0].path) > 1:
        return Coordinate("t", np.arange(len(found[0].path), dtype=float), None), found[0]
    return None


def _draw_plane(figure: Any, place: tuple[float, float], x: Coordinate, y: Coordinate) -> None:
    """A path through two coordinates, its last point, and the steady state where both have one."""
    bottom, height = place
    (left_end, right_end), (low, high) = (_limits(each.path, each.steady) for each in (x, y))
    _frame(figure, place, (left_end, right_end))
    figure.text(LEFT + WIDTH / 2, bottom - 0.08, x.name, ha="center", fontsize=9)
    figure.text(0.02, bottom + height / 2 + 0.05, y.name, fontsize=9, rotation="vertical")
    for share in (0, 0.5, 1):
        at = bottom + share * height
        figure.text(LEFT - 0.01, at, f"{low + share * (high - low):.4g}", ha="right", va="center", fontsize=8)

    def line(xs: Any, ys: Any, **style: Any) -> None:
        across = LEFT + WIDTH * (np.asarray(xs) - left_end) / (right_end - left_end)
        _add_line(figure, across, bottom + height * (np.asarray(ys) - low) / (high - low), **style)

    line(x.path, y.path, color=LINE, linewidth=1)
    if x.steady is not None and y.steady is not None:
        line([x.steady], [y.steady], color=STEADY, marker="+", markersize=14, markeredgewidth=2)
    line(x.path[-1:], y.path[-1:], color=BAR, marker="o", markersize=7)


def _draw_bars(figure: Any, place: tuple[float, float], name: str, value: np.ndarray, base: np.ndarray | None) -> None:
    """Numbers as bars, the first on top: percent away from the steady state where there is one, else levels."""
    from matplotlib.patches import Rectangle

    bottom, height = place
    relative = base is not None and bool(np.all(base != 0))
    bars = 100 * (value / base - 1) if relative else value
    reach = _doubling(np.abs(bars[np.isfinite(bars)]).max(initial=0.0), 25.0 if relative else 0.5)
    low = -reach if relative or np.any(bars < 0) else 0.0
    zero, step = LEFT - WIDTH * low / (reach - low), height / bars.size
    for index, bar in enumerate(np.where(np.isfinite(bars), bars, 0.0)):
        corner = (zero, bottom + height - (index + 0.9) * step)
        figure.add_artist(Rectangle(corner, WIDTH * bar / (reach - low), 0.8 * step, color=BAR, linewidth=0))
    _frame(figure, place, (low, reach))
    _add_line(figure, [zero, zero], [bottom, bottom + height], color=EDGE, linewidth=1)
    shown = f"{value[0]:.4g}" if value.size == 1 else f"mean {value.mean():.4g}"
    unit = "% from steady state" if relative else "level"
    figure.text(LEFT, bottom + height + 0.015, f"{name} = {shown} ({unit})", fontsize=9)


def _frame(figure: Any, place: tuple[float, float], ends: tuple[float, float]) -> None:
    """A panel's border, and what its horizontal axis reads at the ends and in the middle."""
    from matplotlib.patches import Rectangle

    bottom, height = place
    figure.add_artist(Rectangle((LEFT, bottom), WIDTH, height, fill=False, color=EDGE, linewidth=1))
    for share in (0, 0.5, 1):
        number = f"{ends[0] + share * (ends[1] - ends[0]):.4g}"
        figure.text(LEFT + share * WIDTH, bottom - 0.012, number, ha="center", va="top", fontsize=8)


def _add_line(figure: Any, x: Any, y: Any, **style: Any) -> None:
    from matplotlib.lines import Line2D

    figure.add_artist(Line2D(x, y, **style))


def _limits(values: np.ndarray, base: float | None) -> tuple[float, float]:
    """An axis around the steady state, or from 0, that grows by doubling: it stands still from frame to frame."""
    finite = values[np.isfinite(values)]
    if base is None:
        reach = _doubling(np.abs(finite).max(initial=0.0), 0.5)
        return (0.0, reach) if np.all(finite >= 0) else (-reach, reach)
    reach = _doubling(np.abs(finite - base).max(initial=0.0), abs(base) / 16 or 0.5)
    return base - reach, base + reach


def _doubling(size: float, least: float) -> float:
    """`least`, doubled until `size` stays clear of it."""
    return least * 2.0 ** np.ceil(np.log2(max(1.05 * size / least, 1.0)))

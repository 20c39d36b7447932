"""Pictures of states, uint8[H, W, 3]. Matplotlib is imported when the first is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

INCHES, DOTS = 4.0, 100
BAR, EDGE = "#4c72b0", "#1f2d3d"


def draw_levels(title: str, levels: Mapping[str, Any], steady: Mapping[str, Any] | None) -> np.ndarray:
    """Quantities as bars: percent away from their steady state where there is one, else their levels.

    Args:
        title: above the picture.
        levels: name to a scalar, or to an array whose entries get thin bars of their own.
        steady: the same names in the steady state, or None.
    """
    figure = _figure()
    rows = [(name, np.ravel(np.asarray(value, dtype=float))) for name, value in levels.items()]
    axes = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    for axis, (name, value) in zip(axes, rows, strict=True):
        base = None if steady is None else np.ravel(np.asarray(steady[name], dtype=float))
        relative = base is not None and base.shape == value.shape and bool(np.all(base != 0))
        bars = 100 * (value / base - 1) if relative else value
        axis.barh(np.arange(bars.size), bars, color=BAR, height=0.8)
        # A scale that grows by doubling stands still from frame to frame, and shows every size.
        finite = np.abs(bars[np.isfinite(bars)])
        reach = 2.0 ** np.ceil(np.log2(max(float(finite.max(initial=0.0)), 25.0 if relative else 0.5)))
        axis.set_xlim(-reach, reach)
        axis.axvline(0, color=EDGE, linewidth=1)
        axis.set_yticks([])
        shown = f"{value[0]:.4g}" if value.size == 1 else f"mean {value.mean():.4g}"
        unit = "% from steady state" if relative else "level"
        axis.set_title(f"{name} = {shown} ({unit})", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
    figure.suptitle(title, fontsize=11)
    return _pixels(figure)


def _figure() -> Any:
    """A figure of its own: pyplot would keep every frame open."""
    from matplotlib.figure import Figure

    return Figure(figsize=(INCHES, INCHES), dpi=DOTS, layout="constrained")


def _pixels(figure: Any) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]

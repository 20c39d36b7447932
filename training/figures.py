"""The pictures of a report, as SVG in data URIs (nothing to load from elsewhere), and of a run under way, as pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

OURS, KNOWN, SOFT = "#1f5a8c", "#c0552d", "#9db4c8"
COLOURS = ("#1f5a8c", "#3b8f6e", "#7a5195", "#b8862b", "#5b6770", "#a33b5c")
WIDTH, HEIGHT = 3.1, 2.4


def policy_figure(slices: Sequence[Mapping[str, Any]]) -> str:
    """`policy_curves` in a report."""
    return _data_uri(policy_curves(slices))


def policy_curves(slices: Sequence[Mapping[str, Any]]) -> Any:
    """Actions along each coordinate: the policy solid, the reference dashed; a colour for each entry and line."""
    figure, axes = _panels(len(slices))
    for axis, cut in zip(axes, slices, strict=True):
        style = 0
        for line in cut["lines"]:
            for name, values in line["action"].items():
                colour = COLOURS[style % len(COLOURS)]
                label = ", ".join(part for part in (name, line["label"]) if part)
                axis.plot(cut["x"], np.array(values, float), color=colour, linewidth=1.6, label=label)
                if line["reference"] is not None and name in line["reference"]:
                    known = np.array(line["reference"][name], float)
                    axis.plot(cut["x"], known, color=KNOWN, linestyle="--", linewidth=1.1)
                style += 1
        axis.set_xlabel(cut["along"])
        if style > 1:
            axis.legend(fontsize=6, frameon=False)
    axes[0].set_ylabel("action")
    return figure


def population_curves(counts: Sequence[np.ndarray]) -> Any:
    """The number of living cells over the steps of episodes, a thin line each, and their mean."""
    figure, (axis,) = _panels(1, width=4.6, height=3.2)
    for cells in counts:
        axis.plot(cells, color=SOFT, linewidth=0.8)
    longest = np.full((len(counts), max(len(cells) for cells in counts)), np.nan)
    for row, cells in zip(longest, counts, strict=True):
        row[: len(cells)] = cells
    axis.plot(np.nanmean(longest, axis=0), color=OURS, linewidth=1.6)
    axis.set_xlabel("step")
    axis.set_ylim(bottom=0)
    axis.set_ylabel("living cells")
    return figure


def pixels(figure: Any) -> UInt8[np.ndarray, "H W 3"]:
    """A figure as it is seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def error_figure(found: Mapping[str, Any]) -> str:
    """log10 errors over two coordinates as a map, or over one as a line."""
    figure, (axis,) = _panels(1, width=4.6, height=3.2)
    axis.set_xlabel(found["names"][0])
    errors = np.array(found["errors"], float)
    if "y" in found:
        mesh = axis.pcolormesh(found["x"], found["y"], errors, cmap="viridis", shading="nearest", rasterized=True)
        axis.set_ylabel(found["names"][1])
        figure.colorbar(mesh, ax=axis, label="log10 error")
    else:
        axis.plot(found["x"], errors, color=OURS)
        axis.set_ylabel("log10 error")
    return _data_uri(figure)


def path_figure(path: Mapping[str, Mapping[str, Any]]) -> str:
    """One simulated path: the policy solid, the reference dashed, on the same shocks."""
    figure, axes = _panels(len(path))
    for axis, (name, series) in zip(axes, path.items(), strict=True):
        axis.plot(np.array(series["policy"], float), color=OURS, linewidth=1.2)
        if "reference" in series:
            axis.plot(np.array(series["reference"], float), color=KNOWN, linestyle="--", linewidth=0.9)
        axis.set_title(name, fontsize=8)
        axis.set_xlabel("period")
    return _data_uri(figure)


def response_figure(response: Mapping[str, Any]) -> str:
    """Responses to one shock: generalised solid with two standard errors, deterministic dashed."""
    names = list(response["generalised"])[:9]
    figure, axes = _panels(len(names))
    for axis, name in zip(axes, names, strict=True):
        mean, error = (np.array(response[key][name], float) for key in ("generalised", "generalised_se"))
        periods = np.arange(1, len(mean) + 1)
        axis.fill_between(periods, mean - 2 * error, mean + 2 * error, color=SOFT, linewidth=0)
        axis.plot(periods, mean, color=OURS, linewidth=1.4)
        if "deterministic" in response:
            axis.plot(
                periods, np.array(response["deterministic"][name], float), color=KNOWN, linestyle="--", linewidth=1.1
            )
        axis.axhline(0, color="#888888", linewidth=0.6)
        axis.set_title(f"{name}, {response['units'][name]}", fontsize=8)
        axis.set_xlabel("periods after")
    return _data_uri(figure)


def _panels(count: int, width: float = WIDTH, height: float = HEIGHT) -> tuple[Any, list[Any]]:
    """A figure of its own (pyplot would keep it open) with `count` panels, three in a row."""
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axis in axes[count:]:
        axis.set_visible(False)
    for axis in axes:
        axis.tick_params(labelsize=7)
        axis.xaxis.label.set_size(8)
        axis.yaxis.label.set_size(8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes[:count]


def _data_uri(figure: Any) -> str:
    """The figure as the address of an image; the same figure gives the same text."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "equimorph", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"

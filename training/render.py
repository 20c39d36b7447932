"""Episodes of a run as moving pictures, or as a strip of them."""

from __future__ import annotations

import importlib.util
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, UInt8

from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams
from ..envs.pictures import CellStyle, clone_colours
from ..envs.wrappers import Wrapper, innermost
from ..errors import UserError, unknown
from ..storage import write_atomically
from .html_report import check_target
from .play import Episode, play
from .run import Run, load

FORMATS = (".gif", ".mp4", ".png")
COLOURS = ("age", "chemical", "lineage", "type")
STRIP = 6
"""Pictures in a strip, at most."""
SHOWN_AFTER_DEATH = 3
"""Steps for which the place where a cell died stays marked."""
LAST_FRAME_SECONDS = 1.5
TYPES = np.array([[70, 110, 200], [200, 80, 70], [85, 160, 105], [180, 140, 60], [125, 85, 155], [90, 105, 115]], float)

Frame = UInt8[np.ndarray, "H W 3"]


def render(
    run: Run | str | os.PathLike,
    out: str | os.PathLike,
    *,
    episodes: int = 1,
    seed: int | None = None,
    horizon: int | None = None,
    untrained: bool = False,
    sampled: bool = False,
    colour: str | None = None,
    fps: float = 5.0,
    force: bool = False,
) -> Path:
    """Play a run's policy and draw every step.

    Economies are drawn with the path behind them. Cells lie still in one view for the whole episode, over what their
    environment draws under them; rings mark where cells died in the last three steps.

    Args:
        run: a `Run`, or its folder.
        out: the file. ".gif" and ".mp4" (which needs moviepy) move; ".png" is a strip of up to six steps, from the
            first to the last, a row for each episode.
        episodes: how many, one after another.
        seed: of the episodes; None takes the run's evaluation's.
        horizon: the longest that an episode is followed; None: to its end.
        untrained: the policy before training.
        sampled: draw actions as in training, instead of the policy's best.
        colour: of cells, "age" (lighter the longer ago a cell divided), "chemical" (what it senses, from violet, low,
            to yellow), "lineage" (by the founder it descends from) or "type"; None: as the environment draws them.
        fps: steps a second of what moves.
        force: replace a file that is there.

    Returns:
        The file's path.

    Raises:
        UserError: another format, something in the way at `out`, an environment without a picture, or an option that
            does not apply to it.

    Example:
        render(equimorph.train("TargetShape-v0"), "shape.gif", colour="lineage")
    """
    target = check_output(out, FORMATS, force=force)
    if target.suffix == ".mp4" and importlib.util.find_spec("moviepy") is None:
        raise UserError(f"{os.fspath(out)!r} needs moviepy: pip install 'equimorph[render]'; or write a .gif")
    if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps <= 50:
        raise UserError(f"fps must be above 0 and at most 50, got {fps!r}")
    run = run if isinstance(run, Run) else load(run)
    check_picture(run.env, run.params, colour)
    played = play(run, episodes=episodes, seed=seed, horizon=horizon, untrained=untrained, sampled=sampled)
    films = [frames(run.env, run.params, episode, colour) for episode in played]
    content = encoded(films, target.suffix, fps)
    write_atomically(target, lambda file: file.write(content))
    return target


def check_output(path: str | os.PathLike, formats: Sequence[str], *, force: bool) -> Path:
    """The path, refused before anything is computed where nothing could be written.

    Raises:
        UserError: its ending is not among `formats`, its folder is missing, or there is something at it.
    """
    target = Path(path)
    if target.suffix not in formats:
        nearest = (target.stem or "picture") + formats[0]
        raise UserError(f"{os.fspath(path)!r} must end in one of {', '.join(formats)}; try {nearest!r}")
    check_target(target, force=force)
    return target


def check_picture(env: Environment, params: EnvParams, colour: str | None) -> None:
    """Refuse an environment without a picture, and a colour that its cells do not have.

    Raises:
        UserError: names the colours there are.
    """
    if type(unwrapped(env)).render is Environment.render:
        raise UserError(f"{env.name} has no picture; economies and tissues have one")
    if colour is None:
        return
    if colour not in COLOURS:
        raise unknown("colour", str(colour), COLOURS)
    state = jax.eval_shape(env.reset_env, jax.random.key(0), params)[1]
    state = innermost(state)
    if not holds_cells(state):
        raise UserError(f"colour={colour!r} (--colour) does not apply to {env.name}: it has no cells; leave it out")
    offered = colours_of(state)
    if colour not in offered:
        nearest = f"these do: {', '.join(offered)}" if offered else "leave it out"
        raise UserError(f"colour={colour!r} (--colour) does not apply to the cells of {env.name}; {nearest}")


def unwrapped(env: Environment) -> Environment:
    """The environment that all wrappers are around."""
    return unwrapped(env.inner) if isinstance(env, Wrapper) else env


def holds_cells(state: Any) -> bool:
    """Whether an innermost state is a tissue's."""
    from ..envs.tissue import TissueState

    return isinstance(state, TissueState)


def colours_of(state: Any) -> tuple[str, ...]:
    """By what the cells in an innermost state can be coloured; nothing where it holds no cells."""
    if not holds_cells(state):
        return ()
    fields = state.tissue.specs
    there = {
        "age": "division_age" in fields,
        "chemical": "chemical" in fields,
        "lineage": "mother" in fields,
        "type": state.tissue.celltype.shape[-1] > 1,
    }
    return tuple(name for name, is_there in there.items() if is_there)


# -- the frames ----------------------------------------------------------------------------------------------------


def frames(
    env: Environment,
    params: EnvParams,
    episode: Episode,
    colour: str | None = None,
    shown: Sequence[int] | None = None,
) -> list[Frame]:
    """A picture of every state of an episode.

    Args:
        env: the environment.
        params: concrete parameters.
        episode: that was played in it.
        colour: as for `render`.
        shown: the steps that are drawn, from 0; None: all.
    """
    shown = range(len(episode.reward) + 1) if shown is None else shown
    states = [jax.tree.map(lambda leaf, t=t: leaf[t], episode.state) for t in shown]
    core = innermost(episode.state)
    if holds_cells(core):
        while isinstance(env, Wrapper):
            env, params = env.inner, env.usual(params)
        tissue: Any = env
        styles = cell_styles(core, colour)
        return [
            captioned(
                tissue.render(innermost(state), params, style=styles[t]),
                f"step {t}, {int(core.tissue.alive[t].sum())} cells",
            )
            for t, state in zip(shown, states, strict=True)
        ]
    if type(unwrapped(env)).render is Economy.render:  # it draws paths
        states = [jax.tree.map(lambda leaf, t=t: leaf[: t + 1], episode.state) for t in shown]
    return [np.asarray(env.render(state, params)) for state in states]


def cell_styles(states: Any, colour: str | None) -> list[CellStyle]:
    """How each frame of a tissue is drawn: the same view in all, colours that mean the same, and rings for the dead.

    Args:
        states: a `TissueState`, leaves `[T + 1, ...]`.
        colour: as for `render`.
    """
    tissue, events = states.tissue, states.events
    alive, place = np.asarray(tissue.alive), np.asarray(tissue.position)[..., :2]  # pictures look along z
    living = place[alive] if alive.any() else np.zeros((1, 2))
    low, high = living.min(axis=0), living.max(axis=0)
    view = ((low + high) / 2, max(4.0, float((high - low).max()) / 2 + 1.0))
    died = [np.zeros((0, 2))]
    died += [place[t - 1][alive[t - 1] & ~np.asarray(events.kept[t])] for t in range(1, len(alive))]
    colours = [None] * len(alive) if colour is None else cell_colours(states, colour)
    return [
        CellStyle(colours[t], view, np.concatenate(died[max(0, t + 1 - SHOWN_AFTER_DEATH) : t + 1]))
        for t in range(len(alive))
    ]


def cell_colours(states: Any, colour: str) -> Float[np.ndarray, "T1 A 3"]:
    """Colours 0 to 255 of all slots in all frames."""
    from matplotlib import colormaps

    from ..envs.tissues._cells import by_age

    tissue = states.tissue
    if colour == "age":
        return np.stack([by_age(jax.tree.map(lambda leaf, t=t: leaf[t], tissue)) for t in range(len(tissue.alive))])
    if colour == "type":
        return TYPES[np.argmax(tissue.celltype, axis=-1) % len(TYPES)]
    if colour == "lineage":
        clones = clones_of(np.asarray(tissue.alive), np.asarray(states.events.ancestor))
        return clone_colours(clones.max() + 1)[clones]
    sensed = np.asarray(tissue.chemical, float)
    sensed = sensed.reshape(*sensed.shape[:2], -1).sum(axis=-1)
    low, high = sensed[tissue.alive].min(), sensed[tissue.alive].max()
    return 255 * colormaps["viridis"]((sensed - low) / max(high - low, 1e-9))[..., :3]


def clones_of(alive: np.ndarray, ancestor: np.ndarray) -> np.ndarray:
    """The founder, counted in the order of slots, from whom each slot's cell descends, int`[T + 1, A]`.

    Args:
        alive: bool`[T + 1, A]`.
        ancestor: `Events.ancestor`, int`[T + 1, A]`; that of reset is not read.

    Returns:
        0 for slots that never held a cell.
    """
    clones = [np.maximum(np.cumsum(alive[0]) - 1, 0)]
    for source in ancestor[1:]:
        clones.append(clones[-1][source])
    return np.stack(clones)


# -- files ---------------------------------------------------------------------------------------------------------


def captioned(frame: Frame, text: str) -> Frame:
    """The picture with a line of text in its corner."""
    from PIL import Image, ImageDraw

    image = Image.fromarray(np.asarray(frame))
    ImageDraw.Draw(image).text((6, 4), text, fill=(60, 60, 60))
    return np.asarray(image)


def encoded(films: Sequence[Sequence[Frame]], suffix: str, fps: float) -> bytes:
    """A file's content, of episodes one after another, or below one another in a strip."""
    if suffix == ".mp4":
        return as_mp4([frame for film in films for frame in film], fps)
    from PIL import Image

    buffer = io.BytesIO()
    if suffix == ".png":
        Image.fromarray(strip(films)).save(buffer, "PNG")
        return buffer.getvalue()
    images = [Image.fromarray(frame) for film in films for frame in film]
    durations = [
        1000 * (LAST_FRAME_SECONDS if t == len(film) - 1 else 1 / fps) for film in films for t in range(len(film))
    ]
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return buffer.getvalue()


def strip(films: Sequence[Sequence[Frame]]) -> Frame:
    """A row for each episode, of steps evenly spaced from the first to the last."""
    gap = 4
    rows = []
    for film in films:
        chosen = np.unique(np.linspace(0, len(film) - 1, min(STRIP, len(film))).round().astype(int))
        rows.append(np.concatenate([padded(film[t], gap, gap) for t in chosen], axis=1))
    width = max(row.shape[1] for row in rows)
    return np.concatenate([padded(row, 0, width - row.shape[1]) for row in rows])[:-gap, :-gap]


def padded(frame: Frame, below: int, beside: int) -> Frame:
    """The picture with a light margin below and to its right."""
    return np.pad(frame, ((0, below), (0, beside), (0, 0)), constant_values=225)


def as_mp4(images: Sequence[Frame], fps: float) -> bytes:
    """H.264, whose pictures have even sides."""
    from moviepy import ImageSequenceClip

    held = [*images, *[images[-1]] * int(fps * LAST_FRAME_SECONDS)]
    even = [frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in held]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        clip = ImageSequenceClip(even, fps=fps)
        clip.write_videofile(os.fspath(path), codec="libx264", audio=False, logger=None)
        clip.close()
        return path.read_bytes()

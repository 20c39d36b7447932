"""Who is whose daughter: the lineage tree of an episode of a growing tissue."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..envs.environment import Environment, EnvParams, EnvState
from ..envs.pictures import clone_colours
from ..envs.wrappers import Wrapper, innermost
from ..errors import UserError
from ..storage import write_atomically
from .play import Episode, play
from .render import check_output, colours_of
from .run import Run, load

FORMATS = (".png", ".svg", ".pdf")
RECORD = "macro_steps"
INCHES_PER_CELL, LOWEST, HIGHEST = 0.11, 2.5, 24.0


@dataclasses.dataclass(frozen=True, eq=False)
class Lineage:
    """The cells of an episode as a table, in the order of their births; founders come first, in the order of slots.

    A cell that divides goes on as the mother and gains a daughter. Times are macro-steps, counted from 1.

    Attributes:
        parent: the mother's row; -1 for a founder.
        birth: when a cell was born; 0 for a founder.
        death: when it died; -1 where it lived at the end.
        clone: the row of the founder from whom it descends.
        slot: where in the simulator's capacity it lived; slots are used again.
        length: macro-steps of the episode.
        substeps: macro-steps in a step of the environment.
    """

    parent: Int[np.ndarray, " N"]
    birth: Int[np.ndarray, " N"]
    death: Int[np.ndarray, " N"]
    clone: Int[np.ndarray, " N"]
    slot: Int[np.ndarray, " N"]
    length: int
    substeps: int

    def alive_at(self, macro_step: int) -> Bool[np.ndarray, " N"]:
        """Which cells were there after a macro-step; 0 is reset."""
        return (self.birth <= macro_step) & ((self.death < 0) | (self.death > macro_step))


def lineage(
    run: Run | str | os.PathLike,
    out: str | os.PathLike | None = None,
    *,
    seed: int | None = None,
    horizon: int | None = None,
    untrained: bool = False,
    sampled: bool = False,
    force: bool = False,
) -> Lineage:
    """The lineage tree of an episode that is played with a run's policy.

    `state.events` tells from which cell of the step's start a cell descends, not by which daughters: several divisions
    can follow one another within a step. Every macro-step is therefore run a second time, and read, as it is played.

    Args:
        run: a `Run`, or its folder.
        out: where to draw the tree, ".png", ".svg" or ".pdf"; None draws nothing.
        seed: of the episode; None takes the run's evaluation's.
        horizon: the longest that it is followed; None: to its end.
        untrained: the policy before training.
        sampled: draw actions as in training, instead of the policy's best.
        force: replace a file that is there.

    Raises:
        UserError: cells that do not divide, another format, or something in the way at `out`.

    Example:
        tree = lineage(equimorph.train("CellCount-v0"), "tree.png")
        np.bincount(tree.clone)  # how many descend from each founder
    """
    target = None if out is None else check_output(out, FORMATS, force=force)
    run = run if isinstance(run, Run) else load(run)
    state = innermost(jax.eval_shape(run.env.reset_env, jax.random.key(0), run.params)[1])
    if "lineage" not in colours_of(state):
        raise UserError(f"{run.env.name} has no lineages: nobody divides in it; tissues that grow have one")
    how = {"seed": seed, "horizon": horizon, "untrained": untrained, "sampled": sampled}
    (episode,) = play(run, **how, env=recording(run.env))
    tree = lineage_of(episode)
    if target is not None:
        content = drawn(tree, f"{run.env.name}: {summary(tree)}", target.suffix)
        write_atomically(target, lambda file: file.write(content))
    return tree


def summary(tree: Lineage) -> str:
    """Founders, births, deaths and survivors, in one line."""
    founders, born, died = (int(np.sum(flag)) for flag in (tree.parent < 0, tree.parent >= 0, tree.death >= 0))
    left = int(tree.alive_at(tree.length).sum())
    return f"{founders} founders, {born} born, {died} died, {left} cells after {tree.length // tree.substeps} steps"


# -- the record ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Recorded(Wrapper):
    """A tissue whose `info` has every macro-step: who was born, of which mother, and who died, each `[substeps, A]`."""

    def step_env(
        self, key: Array, state: EnvState, action: PyTree, params: EnvParams
    ) -> tuple[PyTree, EnvState, Array, Array, dict]:
        """`inner`'s step, and its macro-steps with the same keys."""
        tissue: Any = self.inner
        never = jnp.zeros(tissue.capacity, bool)
        model = tissue.model(params)

        def macro_step(before, key):
            after = model(before, dt=params.dt, key=key)
            died = after.death > 0.5 if "death" in after.specs else never
            return after, (after.born > 0.5, after.mother, died)

        written = tissue.write_action(innermost(state).tissue, tissue.legal_action(action, params)[0], params)
        record = jax.lax.scan(macro_step, written, jax.random.split(key, tissue.substeps))[1]
        observation, following, reward, over, info = tissue.step_env(key, state, action, params)
        return observation, following, reward, over, info | {RECORD: record}


def recording(env: Environment) -> Environment:
    """The same environment, `Recorded` inside all wrappers."""
    return dataclasses.replace(env, inner=recording(env.inner)) if isinstance(env, Wrapper) else Recorded(env)


def lineage_of(episode: Episode) -> Lineage:
    """The table of an episode that was played in a `recording` environment."""
    born, mother, died = episode.info[RECORD]  # [T, substeps, A]
    steps, substeps, slots = born.shape
    founders = np.flatnonzero(innermost(episode.state).tissue.alive[0])
    parent, birth, death, slot = [-1] * len(founders), [0] * len(founders), [-1] * len(founders), founders.tolist()
    holder = dict(zip(founders.tolist(), range(len(founders)), strict=True))
    flat = (each.reshape(steps * substeps, slots) for each in (born, mother, died))
    for time, (newborn, mothers, dead) in enumerate(zip(*flat, strict=True), start=1):
        daughters = np.flatnonzero(newborn).tolist()
        # a slot is free only once nobody is in it: no daughter takes the place of another's mother
        for place in daughters:
            parent.append(holder[int(mothers[place])])
            birth.append(time)
            death.append(-1)
            slot.append(place)
        holder |= {place: len(slot) - len(daughters) + k for k, place in enumerate(daughters)}
        for place in np.flatnonzero(dead).tolist():
            death[holder.pop(place)] = time
    clone = list(range(len(founders)))
    for above in parent[len(founders) :]:
        clone.append(clone[above])
    columns = (np.array(column, int) for column in (parent, birth, death, clone, slot))
    return Lineage(*columns, length=steps * substeps, substeps=substeps)


# -- the picture ---------------------------------------------------------------------------------------------------


def rows(tree: Lineage) -> Float[np.ndarray, " N"]:
    """Heights at which no branch crosses another: below a cell its daughters, the youngest first, each with hers."""
    daughters: list[list[int]] = [[] for _ in tree.parent]
    for cell, above in enumerate(tree.parent):
        if above >= 0:
            daughters[above].append(cell)
    waiting, order = [int(cell) for cell in np.flatnonzero(tree.parent < 0)[::-1]], []
    while waiting:
        order.append(waiting.pop())
        waiting += daughters[order[-1]]  # the youngest is popped first
    height = np.empty(len(order))
    height[order] = np.arange(len(order), 0, -1)
    return height


def drawn(tree: Lineage, title: str, suffix: str) -> bytes:
    """The tree over time: a line for each cell's life, a branch for each birth, a cross for each death."""
    from matplotlib.figure import Figure

    height, colours = rows(tree), clone_colours(int(np.sum(tree.parent < 0))) / 255
    births, ends = tree.birth / tree.substeps, np.where(tree.death < 0, tree.length, tree.death) / tree.substeps
    inches = np.clip(INCHES_PER_CELL * len(height), LOWEST, HIGHEST) + 1
    figure = Figure(figsize=(6.0, inches), layout="constrained")
    axes = figure.subplots()
    colour = [tuple(colours[clone]) for clone in tree.clone]
    axes.hlines(height, births, ends, colors=colour, linewidth=1.6)
    branches = np.flatnonzero(tree.parent >= 0)
    above, shades = height[tree.parent[branches]], [colour[cell] for cell in branches]
    axes.vlines(births[branches], height[branches], above, colors=shades, linewidth=1.0)
    dead = np.flatnonzero(tree.death >= 0)
    axes.scatter(ends[dead], height[dead], marker="x", s=24, color="#333333", zorder=3)
    axes.set(xlabel="step", yticks=[], xlim=(-0.1, tree.length / tree.substeps + 0.1))
    axes.set_title(title, fontsize=8)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix[1:], dpi=150)
    return buffer.getvalue()

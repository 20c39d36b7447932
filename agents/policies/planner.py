"""A planner on a grid: the value of a goal spreads over what can be passed, and the move follows it.

Nardelli et al. (2019), "Value propagation networks", whose maximum over neighbours is discounted by what a small
convolution thinks of a cell; here it starts from distances that breadth-first search has found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ...envs.environment import Environment
from ...envs.grids import COMPASS, MOVES, GridSight, breadth_first, most, neighbours
from ...errors import UserError
from ..agent import check_applies, check_range
from .actor import POLICY_GAIN
from .conditional import ConditionalHead
from .networks import MLP, Linear

DISCOUNT = 0.85
"""g, of value from cell to cell."""
SHARPNESS = 50.0
"""The inverse temperature of moves before it is learned."""
FILTERS = 8
DISTIL_STEPS = 500
DISTIL_GRIDS = 16
DISTIL_RATE = 5e-2
MOST_OBSTACLES = 0.4


def propagate(
    passable: Float[Array, "S S *batch"], goal: Float[Array, "S S *batch"], discount: float, sweeps: int
) -> Float[Array, "S S *batch"]:
    """V <- max(r, g w max over the 4 neighbours of V), from V = r, `sweeps` times.

    Where w is 1, V is g to the power of the number of steps to the goal.

    Args:
        passable: w, between 0 and 1.
        goal: r, 1 in the goal; the batch axes of both broadcast.
        discount: g.
        sweeps: the longest way over which value spreads.
    """
    kept = discount * passable

    def sweep(value: Array, _: None) -> tuple[Array, None]:
        return jnp.maximum(goal, kept * most(neighbours(value, 0))), None

    start = jnp.broadcast_to(goal, jnp.broadcast_shapes(passable.shape, goal.shape))
    return jax.lax.scan(sweep, start, None, length=sweeps)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def reached_from(
    passable: Float[Array, "S S *batch"], start: Float[Array, "S S *batch"], discount: float, sweeps: int
) -> Float[Array, "S S *batch"]:
    """What `propagate` gives the start for a goal in each cell.

    That is the product of g w along the best path from the start, without the last cell: P <- max(s, max over the 4
    neighbours of g w P). One spread for each place that a move leads to replaces one for each goal. Its derivative
    follows the best paths back, tied ones in equal shares, without the sweeps' own in memory; paths longer than
    `sweeps` have none.

    Args:
        passable: w, between 0 and 1.
        start: s, 1 where paths begin, and not differentiated; the batch axes of both broadcast.
        discount: g.
        sweeps: the longest path.
    """
    kept = discount * passable

    def sweep(value: Array, _: None) -> tuple[Array, None]:
        return jnp.maximum(start, most(neighbours(kept * value, 0))), None

    first = jnp.broadcast_to(start, jnp.broadcast_shapes(kept.shape, start.shape))
    return jax.lax.scan(sweep, first, None, length=sweeps)[0]


def _reached_forward(passable: Array, start: Array, discount: float, sweeps: int) -> tuple[Array, tuple]:
    value = jnp.asarray(reached_from(passable, start, discount, sweeps))
    return value, (passable, start, value)


def _reached_backward(discount: float, sweeps: int, kept: tuple, cotangent: Array) -> tuple[Array, Array]:
    passable, start, value = kept
    passed = discount * passable * value
    # where a path begins nothing is taken from a neighbour; 2 is no value that is passed
    taken = jnp.where(start > 0, 2.0, value)
    ties = sum((there == taken).astype(value.dtype) for there in neighbours(passed, 0))
    share, followed = 1 / jnp.maximum(ties, 1), [there == passed for there in neighbours(taken, 2.0)]

    def sweep(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        arriving, total = carry
        parts = zip(followed, neighbours(arriving * share, 0), strict=True)
        back = sum(jnp.where(follows, there, 0) for follows, there in parts)
        return (back * discount * passable, total + back), None

    (_, total), _ = jax.lax.scan(sweep, (cotangent, jnp.zeros_like(value)), None, length=sweeps)
    slope = discount * value * total
    broadcast = tuple(k for k in range(slope.ndim) if k >= passable.ndim or passable.shape[k] != slope.shape[k])
    return slope.sum(axis=broadcast, keepdims=True), jnp.zeros_like(start)


reached_from.defvjp(_reached_forward, _reached_backward)


class Planner(eqx.Module):
    """Trainable part of a planning policy: logits of nine goals, and of five moves towards each of them.

    A convolution of 3 x 3 cells and a layer on top say how passable each cell in view is, w; value spreads from each
    goal over them, and the logits of moves are V where they lead times a learned inverse temperature. A goal's
    logit is the sum of what two networks say: one that the nine goals share, of the 3 x 3 cells around it, those around
    where its move leads (on average over moves), its direction, and all of an observation that stands behind the
    squares; and one of the whole observation.

    Attributes:
        filters, readout: from 3 x 3 cells of all planes to w.
        goals: from what belongs to a goal to its part of the logit.
        whole: from a flat observation to theirs.
        log_sharpness: of the inverse temperature.
        spread: None: the head has no leaf of its own.

    Args:
        key: for the initial weights.
        sight: where observations have the grid.
        size_in: length of a flat observation.
        widths, activation: of the networks for the goals.
    """

    filters: Linear
    readout: Linear
    goals: MLP
    whole: MLP
    log_sharpness: Float[Array, ""]
    spread: PyTree
    sight: GridSight = eqx.field(static=True)

    def __init__(self, key: Array, sight: GridSight, size_in: int, widths: Sequence[int], activation: str):
        key_filters, key_readout, key_goals, key_whole = jax.random.split(key, 4)
        self.filters = Linear(key_filters, 9 * sight.planes, FILTERS, math.sqrt(2.0))
        self.readout = Linear(key_readout, FILTERS, 1, 1.0)
        behind = size_in - sight.planes * sight.side**2
        self.goals = MLP(key_goals, 18 * sight.planes + len(COMPASS) + behind, 1, widths, activation, POLICY_GAIN)
        self.whole = MLP(key_whole, size_in, len(COMPASS), widths, activation, POLICY_GAIN)
        self.log_sharpness = jnp.asarray(math.log(SHARPNESS), jnp.result_type(float))
        self.spread = None
        self.sight = sight

    def passable(self, squares: Float[Array, "*batch P S S"]) -> Float[Array, "*batch S S"]:
        """w of every cell in view, between 0 and 1."""
        return self._passable(_patches(squares))

    def _passable(self, patches: Float[Array, "*batch S S P9"]) -> Float[Array, "*batch S S"]:
        return jax.nn.sigmoid(self.readout(jnp.tanh(self.filters(patches)))[..., 0])

    def values(
        self, passable: Float[Array, "*batch S S"], goals: Int[Array, "*batch 9 2"]
    ) -> Float[Array, "*batch 9 5"]:
        """V of each place that a move leads to, for each goal."""
        middle, side = self.sight.radius, self.sight.side
        starts = np.zeros((side, side, len(MOVES)), bool)
        starts[middle + MOVES[:, 0], middle + MOVES[:, 1], np.arange(len(MOVES))] = True
        starts = starts.reshape(side, side, *(1,) * (passable.ndim - 2), -1)
        # Space goes first: sweeps then move whole batches about.
        kept = jnp.moveaxis(passable, (-2, -1), (0, 1))[..., None]
        value = reached_from(kept, jnp.asarray(starts, passable.dtype), DISCOUNT, self.sweeps)
        value = jnp.moveaxis(jnp.asarray(value), (0, 1), (-2, -1)).reshape(*passable.shape[:-2], len(MOVES), -1)
        cells = goals[..., 0] * side + goals[..., 1]
        return jnp.swapaxes(jnp.take_along_axis(value, cells[..., None, :], axis=-1), -1, -2)

    @property
    def sweeps(self) -> int:
        """The longest way that is planned: three times as far as one sees."""
        return 3 * self.sight.radius

    def __call__(self, inputs: Float[Array, "*batch in"]) -> Float[Array, "*batch 54"]:
        squares, goals, side = self.sight.squares(inputs), self.sight.goals(inputs), self.sight.side
        patches = _patches(squares)
        moves = jnp.exp(self.log_sharpness) * self.values(self._passable(patches), goals)
        flat = patches.reshape(*patches.shape[:-3], side**2, -1)
        there = jnp.take_along_axis(flat, (goals[..., 0] * side + goals[..., 1])[..., None], axis=-2)
        steps = flat[..., (self.sight.radius + MOVES) @ np.array([side, 1]), :]
        first = jax.nn.softmax(jax.lax.stop_gradient(moves), axis=-1) @ steps
        which = jnp.broadcast_to(jnp.eye(len(COMPASS), dtype=inputs.dtype), (*there.shape[:-1], len(COMPASS)))
        behind = inputs[..., None, self.sight.planes * side**2 :]
        behind = jnp.broadcast_to(behind, (*there.shape[:-1], behind.shape[-1]))
        logits = self.goals(jnp.concatenate([there, first, which, behind], axis=-1))[..., 0] + self.whole(inputs)
        return jnp.concatenate([logits, moves.reshape(*moves.shape[:-2], -1)], axis=-1)


def _patches(squares: Float[Array, "*batch P S S"]) -> Float[Array, "*batch S S P9"]:
    """The 3 x 3 cells of all planes around each cell; 0 beyond what is seen."""
    side = squares.shape[-1]
    last = jnp.moveaxis(squares, -3, -1)
    padded = jnp.pad(last, [(0, 0)] * (last.ndim - 3) + [(1, 1), (1, 1), (0, 0)])
    shifted = [padded[..., i : i + side, j : j + side, :] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


def planner_head() -> ConditionalHead:
    """The head of a goal and a move towards it."""
    return ConditionalHead("goal", "move", len(COMPASS), len(MOVES))


def check_planner(network: str, distil_steps: int | None, env: Environment) -> None:
    """Raise `UserError` for a planner where agents walk on no grid, and for its option where there is no planner."""
    check_distil(network, distil_steps)
    if network == "planner":
        sight_of(env)


def check_distil(network: str, distil_steps: int | None) -> None:
    """Raise `UserError` for steps of distillation that are negative, or that nothing would take."""
    check_range("distil_steps", distil_steps, 0)
    applies = network == "planner"
    check_applies(
        "distil_steps", distil_steps, applies, f"with network={network!r}; use network='planner', or leave it out"
    )


def sight_of(env: Environment) -> GridSight:
    """Where the environment's observations have the grid.

    Raises:
        UserError: its agents walk on none, or do not choose goals there.
    """
    if env.grid_sight is None:
        raise UserError(
            f"network='planner' chooses a goal on the grid around an agent and a move towards it, and {env.name} does "
            "not offer them; use network='mlp', or ImmunePatrol-v0 with goals=True and without a window"
        )
    return env.grid_sight


def make_planner(
    key: Array, env: Environment, size_in: int, widths: Sequence[int], activation: str, distil_steps: int | None
) -> Planner:
    """A planner that knows its way: drawn, then distilled.

    Args:
        key: for the initial weights and the grids.
        env: the environment.
        size_in: length of a flat observation, the agent's number included where it is seen.
        widths, activation: of the network for the goals.
        distil_steps: 500 unless set; 0: it is not distilled.
    """
    key_weights, key_grids = jax.random.split(key)
    planner = Planner(key_weights, sight_of(env), size_in, widths, activation)
    return distil(planner, key_grids, DISTIL_STEPS if distil_steps is None else distil_steps)


def distil(planner: Planner, key: Array, steps: int) -> Planner:
    """The planner after supervised steps that fit its values to distances, so that w is nearly 1 where one can walk.

    Every step draws squares whose cells are obstacles with a probability between 0 and 0.4, with anything in the other
    planes, and a goal in each. The loss is the squared error of V against g to the power of the breadth-first distance
    (0 in obstacles and where no way leads), plus the cross-entropy of w against what is free: V alone does not tell
    apart small values of w. It changes the convolution and nothing else.

    Args:
        planner: to start from.
        key: for the grids.
        steps: Adam's.
    """
    if steps == 0:
        return planner
    adam = optax.adam(optax.cosine_decay_schedule(DISTIL_RATE, steps))
    start: PyTree = (planner.filters, planner.readout)

    def step(carry: PyTree, key: Array) -> tuple[PyTree, None]:
        parts, state = carry
        drawn = random_squares(key, planner.sight)
        gradient = jax.grad(lambda p: distil_loss(_with(planner, p), *drawn))(parts)
        updates, state = adam.update(gradient, state)
        return (optax.apply_updates(parts, updates), state), None

    (parts, _), _ = jax.lax.scan(step, (start, adam.init(start)), jax.random.split(key, steps))
    return _with(planner, parts)


def _with(planner: Planner, parts: Any) -> Planner:
    return eqx.tree_at(lambda p: (p.filters, p.readout), planner, parts)


def random_squares(
    key: Array, sight: GridSight, count: int = DISTIL_GRIDS
) -> tuple[Float[Array, "B P S S"], Bool[Array, "B S S"]]:
    """Squares as an agent may see them, and a goal in a free cell of each (of any, where none is)."""
    key_share, key_planes, key_goal = jax.random.split(key, 3)
    share = jax.random.uniform(key_share, (count, sight.planes, 1, 1)).at[:, 0].multiply(MOST_OBSTACLES)
    planes = jax.random.bernoulli(key_planes, share, (count, sight.planes, sight.side, sight.side))
    free = ~planes[:, 0].reshape(count, -1)
    goal = jax.random.categorical(key_goal, jnp.where(free, 0.0, -1e9))
    goal = jax.nn.one_hot(goal, sight.side**2, dtype=bool).reshape(count, sight.side, sight.side)
    return planes.astype(jnp.result_type(float)), goal


def distil_loss(planner: Planner, squares: Float[Array, "B P S S"], goal: Bool[Array, "B S S"]) -> Float[Array, ""]:
    """As `distil` says."""
    spatial = lambda x: jnp.moveaxis(x, 0, -1)  # noqa: E731
    passable, sweeps = planner.passable(squares), planner.sweeps
    free = squares[:, 0] < 0.5
    steps = breadth_first(spatial(free), spatial(goal), sweeps)
    wanted = jnp.where(steps <= sweeps, DISCOUNT**steps, 0.0)
    value = propagate(spatial(passable), spatial(goal).astype(passable.dtype), DISCOUNT, sweeps)
    edge = jnp.finfo(passable.dtype).eps
    known = jnp.clip(jnp.where(free, passable, 1 - passable), edge, 1)
    return jnp.mean((value - wanted) ** 2) - jnp.mean(jnp.log(known))


def passability_error(planner: Planner, squares: Float[Array, "B P S S"]) -> Float[Array, ""]:
    """The largest distance of w from 1 where a cell is free and 0 where it is not."""
    return jnp.max(jnp.abs(planner.passable(squares) - (1 - squares[:, 0])))

"""Immune cells that search a tissue with obstacles together, and are to stay in contact; a grid, without physics."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt8

from ...errors import UserError
from .. import spaces
from ..environment import (
    NON_NEGATIVE,
    SHARE,
    Domain,
    Environment,
    EnvParams,
    EnvState,
    canonical_params,
    parameter,
)
from ..grids import COMPASS, MOVES, GridSight, largest_component
from ..pictures import clone_colours

STRIDE = 3
PLANES = 3  # obstacles, what is known to be searched, other cells
FREE, SEARCHED, OBSTACLE, RIM = (250, 250, 248), (205, 228, 200), (70, 70, 78), (40, 40, 40)


@struct.dataclass
class PatrolState(EnvState):
    """A tissue and the cells in it.

    Attributes:
        free: where a cell can be.
        searched: where one has been.
        known: what each knows of that.
        position: row and column of each.
        goal: where each was heading in the last step; its own place where it says nothing of goals.
    """

    free: Bool[Array, "H W"]
    searched: Bool[Array, "H W"]
    known: Bool[Array, "A H W"]
    position: Int[Array, "A 2"]
    goal: Int[Array, "A 2"]


@struct.dataclass
class Params(EnvParams):
    """The tissue, who can talk to whom, and what counts."""

    obstacles: float = parameter(
        0.2, Domain(0.0, 0.4, open_low=False, open_high=False), "share of the grid that is drawn as obstacles"
    )
    contact: int = parameter(4, Domain(1, open_low=False), "rows and columns over which two cells are in contact")
    coverage_weight: float = parameter(3.0, NON_NEGATIVE, "worth of a cell of tissue newly searched, per immune cell")
    reachable_weight: float = parameter(2.0, NON_NEGATIVE, "worth of a step in which all are connected by contacts")
    collision_weight: float = parameter(4.0, NON_NEGATIVE, "cost of a step in which all collide")
    discount: float = parameter(0.98, SHARE, "discount per step")
    max_steps_in_episode: int = parameter(48, Domain(1, open_low=False), "moves until the episode is cut off")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImmunePatrol(Environment):
    """Immune cells walk on a grid of `size` x `size` with obstacles, each searching the cell of tissue where it is.

    Obstacles are drawn anew for each episode, every cell of the grid with probability `obstacles`; what is cut off from
    the largest connected part is closed too, so that all that is free can be reached. (Where that part has less than
    half of the grid, there are no obstacles at all.) The cells start on the free places nearest to one drawn at random.

    Each chooses a `goal`, Discrete(9), and a `move`, Discrete(5): stay, up, down, left, right. Goals lie `STRIDE` rows
    and columns away in the eight directions of the compass (row by row, the fifth is here), nearer where the grid ends.
    The move alone acts; the goal is what a planner moves towards, and is drawn. With `goals=False` there is only the
    move. Moves into obstacles or over the edge and goals in obstacles are illegal by `action_mask`.

    All move at once. A move collides where it leads into an obstacle, over the edge, to where another cell stays or
    moves as well, or swaps two cells; who collides stays. Every step is worth to every cell

        coverage_weight * C / A + reachable_weight * R - collision_weight * K / A,

    with C the cells of tissue searched for the first time, K the collisions, A the number of immune cells, and R the
    share of pairs of them that are connected by a chain of contacts. Two are in contact where neither their rows nor
    their columns are more than `contact` apart. The start is searched and pays nothing. The task does not end: it is
    truncated, and discounts. `score` is the share of the free tissue that was searched.

    After each move the cells that are connected tell each other what they know to be searched. An observation has the
    square of `2 view + 1` cells a side around the cell in three planes: obstacles (1, beyond the edge too), what it
    knows to be searched, and other cells (1). Then the distances to the edge (see `GridSight`), the shares of all free
    tissue that lie above, below, left and right of it and that it does not know to be searched, and the way to the mean
    position of the others, in units of `size`. The world state has free, searched and occupied cells.

    Attributes:
        size: rows and columns of the grid.
        num_cells: immune cells, A.
        view: how far a cell sees along rows and columns.
        goals: actions have a goal.
    """

    size: int = 12
    num_cells: int = 4
    view: int = 4
    goals: bool = True
    num_agents: int = dataclasses.field(init=False)
    concept: str = dataclasses.field(init=False, default="cooperative")

    agent_role: ClassVar[str] = "cell"
    _supports_transition_gradients: ClassVar[bool] = False

    def __post_init__(self):
        for name, least in (("size", 4), ("num_cells", 2), ("view", STRIDE)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{self.name}: {name} must be a whole number of at least {least}, got {value!r}")
        if 2 * self.num_cells > self.size**2:
            raise UserError(
                f"{self.name}: num_cells = {self.num_cells} must not exceed half of the grid of {self.size**2} cells"
            )
        object.__setattr__(self, "num_agents", self.num_cells)

    @property
    def default_params(self) -> EnvParams:
        """The default parameters, as arrays."""
        return canonical_params(Params())

    @property
    def capabilities(self) -> frozenset[str]:
        """A "score"."""
        return super().capabilities | {"score"}

    @property
    def sight(self) -> GridSight:
        """Where observations have the grid."""
        return GridSight(self.view, PLANES, STRIDE)

    @property
    def grid_sight(self) -> GridSight | None:
        """The same, where actions are a goal and a move, which is what a planner chooses."""
        return self.sight if self.goals else None

    def agent_action_space(self, params: EnvParams) -> spaces.Space:
        """A goal and a move, or a move."""
        move = spaces.Discrete(len(MOVES))
        return spaces.Dict({"goal": spaces.Discrete(len(COMPASS)), "move": move}) if self.goals else move

    def agent_observation_space(self, params: EnvParams) -> spaces.Box:
        """Planes, distances to the edge, what is left to search, and where the others are."""
        return spaces.Box(-1.0, 1.0, (self.sight.size + 6,), jnp.result_type(float))

    def discount_factor(self, params: Params) -> Float[Array, ""]:
        """The task's own, since it does not end."""
        return jnp.asarray(params.discount)

    # -- the walk ---------------------------------------------------------------------------------------------------

    def reset_env(self, key: Array, params: Params) -> tuple[Float[Array, "A O"], PatrolState]:
        """A tissue, and the cells next to each other in it."""
        key_free, key_start, key_order = jax.random.split(key, 3)
        shape = (self.size, self.size)
        free = largest_component(~jax.random.bernoulli(key_free, params.obstacles, shape))
        free = jnp.where(2 * free.sum() < self.size**2, jnp.ones_like(free), free)
        start = jax.random.categorical(key_start, jnp.where(free.ravel(), 0.0, -jnp.inf))
        row, column = jnp.indices(shape)
        away = (row - start // self.size) ** 2 + (column - start % self.size) ** 2
        among_equals = jax.random.uniform(key_order, shape)
        order = jnp.argsort(jnp.where(free, away + among_equals, jnp.inf).ravel())[: self.num_cells]
        position = jnp.stack([order // self.size, order % self.size], axis=-1).astype(jnp.int32)
        searched = jnp.zeros(shape, bool).at[position[:, 0], position[:, 1]].set(True)
        known = jnp.broadcast_to(searched, (self.num_cells, *shape))
        state = PatrolState(jnp.int32(0), free, searched, known, position, position)
        return self.observe(key, state, None, params), state

    def step_env(
        self, key: Array, state: PatrolState, action: PyTree, params: Params
    ) -> tuple[Float[Array, "A O"], PatrolState, Float[Array, " A"], Bool[Array, ""], dict[str, Array]]:
        """Move all, and let those in contact talk.

        `info` has `score`, `reachable` (R), `collisions` (K / A), `new_coverage` (C / A) and `action_clipped` (an
        action lay outside its space; an illegal move is none that does).
        """
        action, clipped = self.legal_action(action, params)
        goal, move = (action["goal"], action["move"]) if self.goals else (None, action)
        position, collided = self.moved(state, move)
        rows, columns = position.T
        searched = state.searched.at[rows, columns].set(True)
        connected = self.connected(position, params)
        known = state.known.at[jnp.arange(self.num_cells), rows, columns].set(True)
        known = jnp.any(connected[:, :, None, None] & known[None], axis=1)
        goal = position if goal is None else self.goal_cells(state.position)[jnp.arange(self.num_cells), goal]
        next_state = PatrolState(state.time + 1, state.free, searched, known, position, goal)
        dtype = jnp.result_type(float)
        new = (searched.sum() - state.searched.sum()).astype(dtype) / self.num_cells
        reachable, collisions = reachable_share(connected), collided.mean(dtype=dtype)
        reward = (
            params.coverage_weight * new + params.reachable_weight * reachable - params.collision_weight * collisions
        )
        info = {
            "score": self.score(next_state, params),
            "reachable": reachable,
            "collisions": collisions,
            "new_coverage": new,
            "action_clipped": clipped,
        }
        observation = self.observe(key, next_state, action, params)
        return observation, next_state, jnp.broadcast_to(reward, (self.num_cells,)), jnp.zeros((), bool), info

    def moved(self, state: PatrolState, move: Int[Array, " A"]) -> tuple[Int[Array, "A 2"], Bool[Array, " A"]]:
        """Where the cells are after their moves, and whose move collided."""
        at = state.position[:, 0] * self.size + state.position[:, 1]
        target = state.position + jnp.asarray(MOVES, jnp.int32)[move]
        wanted, legal = (
            jnp.where(move == 0, at, target[:, 0] * self.size + target[:, 1]),
            self._open(state.free, target),
        )
        others = ~jnp.eye(self.num_cells, dtype=bool)

        def stop(_: int, stopped: Bool[Array, " A"]) -> Bool[Array, " A"]:
            going = ~stopped & (wanted != at)
            to = jnp.where(going, wanted, at)
            one_place = to[:, None] == to[None, :]
            swap = (to[:, None] == at[None, :]) & (at[:, None] == to[None, :])
            return stopped | (going & jnp.any(others & (one_place | swap), axis=1))

        # One that is stopped can stop the one behind it, and so on through all of them.
        collided = jax.lax.fori_loop(0, self.num_cells, stop, ~legal & (move != 0))
        return jnp.where(collided[:, None] | (move == 0)[:, None], state.position, target), collided

    def connected(self, position: Int[Array, "A 2"], params: Params) -> Bool[Array, "A A"]:
        """Which cells are joined by a chain of contacts; each with itself."""
        apart = jnp.abs(position[:, None] - position[None]).max(axis=-1)
        joined = apart <= params.contact
        for _ in range(int(np.ceil(np.log2(self.num_cells)))):
            joined = jnp.any(joined[:, :, None] & joined[None], axis=1)
        return joined

    def goal_cells(self, position: Int[Array, "A 2"]) -> Int[Array, "A 9 2"]:
        """Row and column of the goal in each direction."""
        return jnp.clip(position[:, None] + STRIDE * jnp.asarray(COMPASS, jnp.int32), 0, self.size - 1)

    def _open(self, free: Bool[Array, "H W"], place: Int[Array, "... 2"]) -> Bool[Array, "..."]:
        """Whether a place is on the grid and free."""
        inside = jnp.all((place >= 0) & (place < self.size), axis=-1)
        row, column = jnp.moveaxis(jnp.clip(place, 0, self.size - 1), -1, 0)
        return inside & free[row, column]

    # -- what is seen -----------------------------------------------------------------------------------------------

    def action_mask(self, state: PatrolState, params: EnvParams) -> PyTree:
        """Moves to places that are free, whoever is there, and goals in them."""
        move = self._open(state.free, state.position[:, None] + jnp.asarray(MOVES, jnp.int32))
        return {"goal": self._open(state.free, self.goal_cells(state.position)), "move": move} if self.goals else move

    def observe(self, key: Array, state: PatrolState, action: PyTree | None, params: EnvParams) -> Float[Array, "A O"]:
        """The observation of `state`, see the class; it needs no randomness."""
        side, dtype = self.sight.side, jnp.result_type(float)
        taken = jnp.zeros_like(state.free).at[state.position[:, 0], state.position[:, 1]].set(True)
        blocked, around = (
            jnp.pad(x, self.view, constant_values=edge) for x, edge in ((~state.free, True), (taken, False))
        )
        known = jnp.pad(state.known, ((0, 0), (self.view, self.view), (self.view, self.view)))

        def of(known: Bool[Array, "H2 W2"], position: Int[Array, " 2"]) -> Float[Array, " P*S*S"]:
            planes = jnp.stack(
                [jax.lax.dynamic_slice(x, tuple(position), (side, side)) for x in (blocked, known, around)]
            )
            return planes.at[2, self.view, self.view].set(False).astype(dtype).ravel()

        planes, place = jax.vmap(of)(known, state.position), state.position.astype(dtype)
        room = jnp.stack([place[:, 0], self.size - 1 - place[:, 0], place[:, 1], self.size - 1 - place[:, 1]], axis=-1)
        away = (place.sum(axis=0) - self.num_cells * place) / ((self.num_cells - 1) * self.size)
        return jnp.concatenate([planes, jnp.minimum(room / STRIDE, 1), self._unsearched(state), away], axis=-1)

    def _unsearched(self, state: PatrolState) -> Float[Array, "A 4"]:
        """Shares of the free tissue above, below, left and right that each does not know to be searched."""
        dtype = jnp.result_type(float)
        left_over = (state.free & ~state.known).astype(dtype) / jnp.maximum(state.free.sum(), 1)
        index, (row, column) = jnp.arange(self.size), state.position.T[..., None]
        by_row, by_column = left_over.sum(axis=2), left_over.sum(axis=1)
        ways = ((by_row, index < row), (by_row, index > row), (by_column, index < column), (by_column, index > column))
        return jnp.stack([jnp.where(there, share, 0).sum(axis=1) for share, there in ways], axis=-1)

    def world_state(self, state: PatrolState, params: EnvParams) -> Float[Array, " S"]:
        """Which cells of the grid are free, searched and occupied."""
        taken = jnp.zeros_like(state.free).at[state.position[:, 0], state.position[:, 1]].set(True)
        return jnp.stack([state.free, state.searched, taken]).ravel().astype(jnp.result_type(float))

    def is_truncated(self, state: PatrolState, params: EnvParams) -> Bool[Array, ""]:
        """At the time limit."""
        return jnp.asarray(state.time >= params.max_steps_in_episode)

    def score(self, state: PatrolState, params: EnvParams) -> Float[Array, ""]:
        """Share of the free tissue that was searched, from 0 to 1: higher is better."""
        return state.searched.sum().astype(jnp.result_type(float)) / state.free.sum()

    def render(self, state: PatrolState, params: EnvParams, size: int = 256) -> UInt8[np.ndarray, "H W 3"]:
        """Obstacles dark, searched tissue green, cells as discs, and where each is heading as a ring of its colour."""
        scale = max(size // self.size, 4)
        free, searched = np.asarray(state.free), np.asarray(state.searched)
        ground = np.where(free[..., None], FREE, OBSTACLE)
        image = np.where((searched & free)[..., None], SEARCHED, ground).astype(float)
        image = np.kron(image, np.ones((scale, scale, 1)))
        image[::scale], image[:, ::scale] = 0.9 * image[::scale], 0.9 * image[:, ::scale]
        rows, columns = np.indices(image.shape[:2]) + 0.5
        for colour, goal, place in zip(
            clone_colours(self.num_cells), np.asarray(state.goal), np.asarray(state.position), strict=True
        ):
            there = np.hypot(rows - (goal[0] + 0.5) * scale, columns - (goal[1] + 0.5) * scale) / scale
            image[(there > 0.3) & (there < 0.42)] = colour
            here = np.hypot(rows - (place[0] + 0.5) * scale, columns - (place[1] + 0.5) * scale) / scale
            image[here < 0.4] = RIM
            image[here < 0.34] = colour
        return image.astype(np.uint8)


def reachable_share(connected: Bool[Array, "A A"]) -> Float[Array, ""]:
    """The share of ordered pairs of different cells that are connected."""
    number = connected.shape[0]
    return (connected.sum() - number).astype(jnp.result_type(float)) / (number * (number - 1))

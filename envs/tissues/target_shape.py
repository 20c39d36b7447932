"""Growth to a silhouette: a few founders are to fill an ellipse, an L or a V, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree, UInt8

from ...errors import unknown
from .. import spaces
from ..environment import NON_NEGATIVE, POSITIVE, Domain, parameter
from ..tissue import Tissue, TissueParams, TissueState
from ._cells import CERTAIN, NEWBORN_RADIUS, RADIUS, crowding, found, own_state, real_numbers
from ._forces import SoftRepulsion
from ._sensing import HALF_WIDTH, PIXELS, inside, occupancy, raster_points, soft_iou
from ._steps import (
    DIVISION_AXIS,
    DIVISION_RATE,
    PUSH,
    BaseState,
    BrownianDynamics,
    Division,
    DivisionClock,
    ExternalForce,
    Model,
    PairwisePotential,
    SaturatingCellGrowth,
    SpendDivision,
    StateFieldSpec,
)

SHAPES = ("ellipse", "L", "V")
AREA_PER_CELL = float(np.sqrt(3) / 2)  # of close-packed cells, in squared diameters
WORTH = 10.0  # of a full overlap, so that rewards are of order one
# Of an L and a V with arms of width 1 and length 4: areas, and how far the centroid lies from the corner.
ELL_AREA, ELL_CENTRE = 7.0, 9.5 / 7
VEE_AREA, VEE_CENTRE = 8.614, 1.912


@struct.dataclass
class Params(TissueParams):
    """The task and its physics."""

    target_cells: float = parameter(28.0, POSITIVE, "area of the silhouette, in close-packed cells")
    orientation: float = parameter(3.0, NON_NEGATIVE, "how much a chosen axis outweighs chance in a daughter's place")
    max_push: float = parameter(0.5, NON_NEGATIVE, "largest force of a cell, in repulsion energies per diameter")
    max_steps_in_episode: int = parameter(8, Domain(1, open_low=False), "decisions until the tissue is scored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetShape(Tissue):
    """Cells divide, along an axis of their choice, and push; the tissue is worth its overlap with a silhouette.

    The overlap is the soft IoU on a raster of 24 x 24 pixels over a square of 12 cell diameters around the origin: with
    s the share of a pixel that cells cover and t that which the silhouette covers, sum min(s, t) / sum max(s, t). The
    silhouette is a 5:2 ellipse along x, an L or a V, its centroid at the origin.

    The action is a Dict: `divide`, Discrete(2), executed with certainty by the first macro-step; `axis`, Box(-1, 1),
    shape (2,), of which the direction counts; `push`, Box(-1, 1), shape (2,), in units of `max_push`. The reward is
    10 times the gain in overlap.

    Observation of a cell: radius; time since its last division; density of its neighbours; the direction into the
    tissue (2); its position relative to the origin, which this task alone tells (2, in half widths); the share of time
    left.

    Known: the best disc overlaps the 5:2 ellipse by 0.56.
    """

    capacity: int = 48
    shape: str = "ellipse"

    params_type: ClassVar[type[TissueParams]] = Params
    interaction: ClassVar[PairwisePotential | None] = SoftRepulsion()
    smallest_diameter: ClassVar[float] = 2 * NEWBORN_RADIUS
    ports: ClassVar[tuple[StateFieldSpec, ...]] = (DIVISION_RATE, DIVISION_AXIS, PUSH)

    def __post_init__(self):
        super().__post_init__()
        if self.shape not in SHAPES:
            raise unknown(f"shape of {self.name}", str(self.shape), SHAPES)

    # -- the tissue -------------------------------------------------------------------------------------------------

    def build_physics(self) -> Model:
        """Growth back to full size, jitter, repulsion and the cells' own force, then division."""
        growth, motion = SaturatingCellGrowth(max_radius=RADIUS), BrownianDynamics(self.interaction, n_space_dim=2)
        division = Division(n_space_dim=2, orientation_snr=0.0)
        return Model([growth, motion, division, DivisionClock(), SpendDivision(), ExternalForce()])

    def bind(self, physics: Model, params: Params) -> Model:
        """The jitter's thermal energy, and how strictly an axis is followed."""
        return eqx.tree_at(
            lambda model: (model.steps[1].kT, model.steps[2].orientation_snr), physics, (params.kT, params.orientation)
        )

    def initial_tissue(self, key: Array, empty: BaseState, params: Params) -> BaseState:
        """Full-grown founders, close-packed around the origin but for their noise."""
        return found(key, empty, params)

    def agent_action_space(self, params: Params) -> spaces.Dict:
        """A decision, an axis and a force."""
        vector = spaces.Box(-1.0, 1.0, (2,), jnp.result_type(float))
        return spaces.Dict({"axis": vector, "divide": spaces.Discrete(2), "push": vector})

    def agent_observation_space(self, params: Params) -> spaces.Box:
        """Eight real numbers."""
        return real_numbers(8)

    def write_action(self, tissue: BaseState, action: PyTree, params: Params) -> BaseState:
        """A rate that makes the decision certain, the axis and the force."""
        dtype = tissue.division_rate.dtype
        return tissue.update(
            division_rate=jnp.where(action["divide"] == 1, CERTAIN, 0.0).astype(dtype),
            division_axis=action["axis"].astype(dtype),
            push=(params.max_push * action["push"]).astype(dtype),
        )

    def local_observation(self, tissue: BaseState, params: Params) -> Float[Array, "A 8"]:
        """Size, recency, density, the way inward, position and remaining time; see the class."""
        density, inward = crowding(tissue)
        remaining = jnp.broadcast_to(2 * self.remaining_time(tissue, params) - 1, density.shape)
        place = tissue.position.T / HALF_WIDTH
        return jnp.stack([*own_state(tissue), density / 2 - 1, *inward.T / 2, *place, remaining], axis=-1)

    # -- the task ---------------------------------------------------------------------------------------------------

    def silhouette(self, params: Params) -> Float[Array, " P"]:
        """How much of each pixel the silhouette covers."""
        area = params.target_cells * AREA_PER_CELL
        return inside(DISTANCES[self.shape](raster_points(), jnp.asarray(area)))

    def potential(self, tissue: BaseState, params: Params) -> Float[Array, ""]:
        """10 times the overlap."""
        return WORTH * soft_iou(occupancy(tissue), self.silhouette(params))

    def score(self, state: TissueState, params: Params) -> Float[Array, ""]:
        """Soft IoU with the silhouette, between 0 and 1: higher is better."""
        return soft_iou(occupancy(state.tissue), self.silhouette(params))

    def ground(self, params: Params, size: int) -> UInt8[np.ndarray, "S S 3"]:
        """The silhouette."""
        shape = np.asarray(self.silhouette(params)).reshape(PIXELS, PIXELS)[::-1]
        pixel = np.arange(size) * PIXELS // size
        shade = shape[pixel][:, pixel, None]
        return (255 - shade * np.array([70.0, 40.0, 110.0])).astype(np.uint8)


def ellipse_distance(points: Float[Array, "P 2"], area: Array) -> Float[Array, " P"]:
    """Of a 5:2 ellipse along x, to first order around its edge: f (f - 1) / |grad f| with f^2 = (x/a)^2 + (y/b)^2."""
    unit = jnp.sqrt(area / (10 * jnp.pi))
    axes = unit * jnp.array([5.0, 2.0], points.dtype)
    level = jnp.sqrt(jnp.sum((points / axes) ** 2, axis=1))
    return level * (level - 1) / jnp.sqrt(jnp.sum((points / axes**2) ** 2, axis=1))


def ell_distance(points: Float[Array, "P 2"], area: Array) -> Float[Array, " P"]:
    """Of two bars that meet in a corner, four times as long as wide."""
    width = jnp.sqrt(area / ELL_AREA)
    x, y = (points / width + ELL_CENTRE).T

    def bar(across, along):
        beyond = jnp.stack([jnp.abs(across - 0.5) - 0.5, jnp.abs(along - 2) - 2])
        return jnp.linalg.norm(jnp.maximum(beyond, 0), axis=0) + jnp.minimum(jnp.max(beyond, axis=0), 0)

    return width * jnp.minimum(bar(x, y), bar(y, x))


def vee_distance(points: Float[Array, "P 2"], area: Array) -> Float[Array, " P"]:
    """Of two rounded bars at 60 degrees, each four times as long as wide."""
    width = jnp.sqrt(area / VEE_AREA)
    x, y = jnp.abs(points[:, 0]) / width, points[:, 1] / width + VEE_CENTRE
    along = jnp.clip(x * 0.5 + y * np.sqrt(0.75), 0.0, 4.0)
    return width * (jnp.hypot(x - along * 0.5, y - along * np.sqrt(0.75)) - 0.5)


DISTANCES = {"ellipse": ellipse_distance, "L": ell_distance, "V": vee_distance}

"""Pair forces written out, and the longest macro-step that explicit mechanics can take with a potential.

The simulator differentiates a sum over all pairs. The forces here are the same numbers from a formula, at a half to two
thirds of the time. Energies and pressures stay the simulator's own, from which tests take the truth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ._steps import BaseState, Morse, PairwisePotential, SoftSphere, geometry

# Stiffness is looked at from contact to an overlap of 2 %, about what growing tissues come to.
SPACINGS = (1 - 1e-9, 0.98)
WAVES = 48  # points on each side of the zone of wave vectors


class Pairs(NamedTuple):
    """All pairs of cells, [i, j]: what j does to i.

    Attributes:
        offsets: of the displacement i - j, one array a coordinate: with a last axis of two XLA's CPU loops do not
            vectorise, at five times the cost.
        square: its squared length.
        contact: sum of the radii.
        apart: two living cells that are not at one point, where there is no direction, and no force.
    """

    offsets: list[Float[Array, "A A"]]
    square: Float[Array, "A A"]
    contact: Float[Array, "A A"]
    apart: Bool[Array, "A A"]


def pairs(state: BaseState) -> Pairs:
    """Displacements and contacts of all pairs."""
    displacement = geometry.pairwise_displacements(state.position, state.displacement)
    offsets = [displacement[..., k] for k in range(state.position.shape[1])]
    square = functools.reduce(jnp.add, [offset**2 for offset in offsets])
    contact = state.radius[:, None] + state.radius[None, :]
    return Pairs(offsets, square, contact, (square > 0) & state.alive[:, None] & state.alive[None, :])


def summed_forces(state: BaseState, reach: float, push: Callable[[Array, Array], Array]) -> Float[Array, "A D"]:
    """Force on every cell, 0 for dead ones.

    Args:
        state: where the cells are.
        reach: in contact distances; beyond it there is no force.
        push: `(distance, contact) -> -dU/dr`, positive where cells repel.
    """
    all_pairs = pairs(state)
    near = all_pairs.apart & (all_pairs.square < (reach * all_pairs.contact) ** 2)
    distance, contact = jnp.sqrt(jnp.where(near, all_pairs.square, 1.0)), jnp.where(near, all_pairs.contact, 1.0)
    strength = jnp.where(near, push(distance, contact) / distance, 0.0)
    return jnp.stack([jnp.sum(strength * offset, axis=1) for offset in all_pairs.offsets], axis=-1)


class SoftRepulsion(SoftSphere):
    """`SoftSphere` with its force written out.

    For contact distance sigma = r_i + r_j the pair energy is (epsilon / 2) (1 - r / sigma)^2 inside contact, so the
    force on i is (epsilon / sigma) (1 - r / sigma) along the unit vector from j to i. `epsilon` must be a scalar.
    """

    def forces(self, state: BaseState) -> Float[Array, "A D"]:
        """Force on every cell; 0 for dead ones."""
        return summed_forces(state, 1.0, lambda r, sigma: jnp.asarray(self.epsilon) * (sigma - r) / sigma**2)


class MorseAdhesion(Morse):
    """`Morse` with its force written out: cells repel inside contact and adhere outside it.

    With e = exp(-alpha (r - sigma)), S the simulator's cutoff between r_on and r_off, and x, a, b the squares of r,
    r_on and r_off, where S = (b - x)^2 (b + 2 x - 3 a) / (b - a)^3:

        -dU/dr = -epsilon (2 alpha e (1 - e) S + ((1 - e)^2 - 1) S'),     S' = -12 r (b - x) (x - a) / (b - a)^3.

    `epsilon` and `alpha` must be scalars.
    """

    def forces(self, state: BaseState) -> Float[Array, "A D"]:
        """Force on every cell; 0 for dead ones."""
        epsilon, alpha = jnp.asarray(self.epsilon), jnp.asarray(self.alpha)

        def push(r, sigma):
            decay = jnp.exp(-alpha * (r - sigma))
            x, a, b = r**2, (self.r_onset_frac * sigma) ** 2, (self.r_cutoff_frac * sigma) ** 2
            fading = x > a
            cutoff = jnp.where(fading, (b - x) ** 2 * (b + 2 * x - 3 * a) / (b - a) ** 3, 1.0)
            slope = jnp.where(fading, -12 * r * (b - x) * (x - a) / (b - a) ** 3, 0.0)
            return -epsilon * (2 * alpha * decay * (1 - decay) * cutoff + ((1 - decay) ** 2 - 1) * slope)

        return summed_forces(state, self.r_cutoff_frac, push)


@functools.lru_cache(maxsize=64)
def stable_step(potential: PairwisePotential, diameter: float, reach: float = 2.5) -> float:
    """The macro-step below which explicit overdamped mechanics is stable: 2 / lambda_max, at drag 1.

    lambda_max is the largest eigenvalue of the energy's second derivatives for an endless close-packed sheet of equal
    cells, from contact to an overlap of 2 %, whichever is stiffer. For the wave vector k it is the larger eigenvalue of

        D(k) = sum over lattice sites R of (1 - cos k.R) (U'' n n' + U' / R (1 - n n')),   n = R / |R|.

    Above it a tissue scatters without an error.

    Args:
        potential: with plain numbers as parameters.
        diameter: of the cells, the stiffest of which are the smallest.
        reach: in diameters; no pair further apart interacts.

    Returns:
        The bound, in units of time; infinity where nothing is stiff.
    """
    stiffest = max(_stiffest_mode(potential, diameter, spacing * diameter, reach) for spacing in SPACINGS)
    return 2 / stiffest if stiffest > 0 else float("inf")


def _stiffest_mode(potential: PairwisePotential, diameter: float, spacing: float, reach: float) -> float:
    steps = np.arange(-4, 5)
    a, b = np.meshgrid(steps, steps)
    sites = spacing * np.stack([a + b / 2, b * np.sqrt(3) / 2], axis=-1).reshape(-1, 2)
    length = np.hypot(*sites.T)
    sites = sites[(length > 0) & (length < reach * diameter)]
    length = np.hypot(*sites.T)
    slope, curvature = _derivatives(potential, diameter, length)
    direction = sites / length[:, None]
    along = direction[:, :, None] * direction[:, None, :]
    stiffness = curvature[:, None, None] * along + (slope / length)[:, None, None] * (np.eye(2) - along)
    # Wave vectors of the reciprocal lattice's unit cell.
    lattice = spacing * np.array([[1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    share = np.stack(np.meshgrid(*[np.arange(WAVES) / WAVES] * 2), axis=-1).reshape(-1, 2)
    waves = 2 * np.pi * share @ np.linalg.inv(lattice).T
    modes = np.einsum("kr,rij->kij", 1 - np.cos(waves @ sites.T), stiffness)
    return float(np.linalg.eigvalsh(modes).max())


def _derivatives(potential: PairwisePotential, diameter: float, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """U' and U'' at distances r between two cells of one diameter."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        two = SimpleNamespace(radius=jnp.full(2, diameter / 2), position=jnp.zeros((2, 2)))
        numbers = [each[0, 1] for each in potential.pair_params(two)]  # pyright: ignore[reportArgumentType]

        def energy(x):
            return potential.pair_energy(x, *numbers)

        slopes = jax.jit(lambda x: (jax.vmap(jax.grad(energy))(x), jax.vmap(jax.grad(jax.grad(energy)))(x)))
        first, second = slopes(jnp.asarray(r))
        return np.asarray(first), np.asarray(second)

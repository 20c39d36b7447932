"""Best responses in turn: a Markov-perfect equilibrium as the profile from which nobody wants to move."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...envs.economies._common_pool import CommonPool, Response, best_response
from ...envs.economies.fish_war import FLOOR, MOST, FishWar, State
from ...envs.economy import Economy
from ...envs.environment import EnvParams, Reference
from ...errors import UserError
from ._interpolation import PiecewiseLinear
from .coordinates import what_works

TOLERANCE = 1e-6
CLOSE = 1e-8
DEGREE = 6


class Profile(eqx.Module):
    """What each player asks for, as a function of the log stock.

    Attributes:
        asked: fractions on a grid, `[A, n]`.
    """

    asked: PiecewiseLinear

    def __call__(self, state: State) -> Float[Array, "A 1"]:
        """The players' actions."""
        return self.asked(jnp.log(state.x))[:, None]


class Worth(eqx.Module):
    """Each player's value, `slope log x` plus a function on the grid.

    Attributes:
        slope: 1 / (1 - alpha beta).
        rest: `[A, n]`.
    """

    slope: np.ndarray
    rest: PiecewiseLinear

    def __call__(self, state: State) -> Float[Array, " A"]:
        """Values of a state."""
        log_x = jnp.log(state.x)
        return jnp.asarray(self.slope) * log_x + self.rest(log_x)


def best_response_iteration(env: Economy, params: EnvParams, *, start: float = 0.5, rounds: int = 300) -> Reference:
    """Let the players of `FishWar` answer each other in turn until nobody moves.

    Each answer is its best policy as a function of the stock, by dynamic programming against what the others do at
    present, smoothed to a polynomial in the log stock: an answer depends on the slopes of the others' policies, which
    would otherwise amplify rounding from round to round. Nobody asks for more than the others leave: where all are
    rationed there is another equilibrium, in which everyone asks for everything. In this game that settles on the
    Markov-perfect equilibrium from any start.

    Args:
        env, params: the economy, under the concept "mpe".
        start: what everyone together asks for at first, a fraction of the stock; 1/2 unless set.
        rounds: at most.

    Returns:
        Policies and values on a grid of log stocks, with a tolerance of 1e-6.

    Raises:
        UserError: another economy or concept, a start outside (0, 1), or no rest within `rounds`.
    """
    if not isinstance(env, FishWar):
        raise UserError(
            f"{env.name}: 'best_response' plays FishWar-v0 only; {what_works(env, params, 'best_response')}"
        )
    if env.concept != "mpe":
        raise UserError(
            f"{env.name}: best responses lead to the 'mpe' solution, not to {env.concept!r}; use concept='mpe'"
        )
    if not 0 < start < 1:
        raise UserError(f"{env.name}: start = {start} must lie in (0, 1), a fraction of the stock")
    pool = CommonPool(params, MOST, FLOOR)
    basis = np.polynomial.chebyshev.chebvander(np.linspace(-1, 1, pool.grid.size), DEGREE)
    smooth = jnp.asarray(basis @ np.linalg.pinv(basis))

    @jax.jit
    def play(asked):
        def answer(asked, player):
            response: Response = best_response(pool, asked.sum(0) - asked[player], rationing=False)
            return asked.at[player].set(smooth @ response.asked), response.value

        return jax.lax.scan(answer, asked, jnp.arange(env.num_players))

    asked = jnp.full((env.num_players, pool.grid.size), start / env.num_players)
    for _ in range(rounds):
        after, values = play(asked)
        moved = float(jnp.max(jnp.abs(after - asked)))
        asked = after
        if moved < CLOSE:
            break
    else:
        raise UserError(f"{env.name}: after {rounds} rounds of best responses fractions still move by {moved:.1e}")
    grid = np.asarray(pool.grid)
    slope = np.asarray(1 / (1 - params.alpha * params.beta))
    return Reference(
        Profile(PiecewiseLinear(grid, np.asarray(asked))),
        Worth(slope, PiecewiseLinear(grid, np.asarray(values))),
        "mpe",
        TOLERANCE,
    )

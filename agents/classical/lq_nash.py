"""Linear-quadratic games: the feedback Nash equilibrium by coupled Riccati recursions, and the joint optimum by one.

Basar and Olsder (1999), "Dynamic noncooperative game theory", section 6.2.2: backward from no future at all, every
player's best control against the others' is linear in the state, and its value quadratic.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...envs.economies.cournot import Params, State
from ...envs.economies.cournot_adjustment import STEP, CournotAdjustment, LinearQuadratic
from ...envs.economy import TEAM_CONCEPTS, Economy
from ...envs.environment import EnvParams, Reference
from ...errors import UserError
from .coordinates import what_works

TOLERANCE = 1e-9
CLOSE = 1e-13
HORIZON = 200


class LinearPolicy(eqx.Module):
    """u = -F s with s = (1, q).

    Attributes:
        feedback: F, `[A, A + 1]`.
    """

    feedback: np.ndarray

    def __call__(self, state: State) -> Float[Array, "A 1"]:
        """The firms' changes of quantity."""
        return -(jnp.asarray(self.feedback) @ _extended(state.q))[:, None]


class QuadraticValue(eqx.Module):
    """V_i = s' P_i s.

    Attributes:
        matrices: P, symmetric, `[A, A + 1, A + 1]`.
    """

    matrices: np.ndarray

    def __call__(self, state: State) -> Float[Array, " A"]:
        """Each firm's value."""
        s = _extended(state.q)
        return jnp.einsum("i,aij,j->a", s, self.matrices, s)


class RivalsCost(eqx.Module):
    """The auxiliary outputs that go with the equilibrium: `-discount dV_i(q')/dq_j`, over a, for every rival j of i.

    Attributes:
        policy: of the firms.
        slopes: `-2 discount P_i / a`, `[A, A + 1, A + 1]`.
        rivals: the others of each, `[A, A - 1]`.
    """

    policy: LinearPolicy
    slopes: np.ndarray
    rivals: np.ndarray

    def __call__(self, state: State) -> Float[Array, "A rivals"]:
        """What each rival's output next period costs each firm."""
        following = _extended(state.q + self.policy(state)[:, 0])
        return jnp.take_along_axis((self.slopes @ following)[:, 1:], self.rivals, axis=1)


def lq_nash(env: Economy, params: EnvParams, *, rounds: int = 100_000) -> Reference:
    """The equilibrium of Cournot-v0 with dynamics="adjustment", or its joint optimum under "cooperative".

    Args:
        env, params: the economy.
        rounds: of the recursion, at most.

    Raises:
        UserError: another economy; no convergence; or an equilibrium that reaches the bounds of actions, where it is
            no longer linear.
    """
    if not isinstance(env, CournotAdjustment):
        raise UserError(
            f"{env.name}: 'lq_nash' solves linear-quadratic games only, Cournot-v0 with dynamics='adjustment'; "
            f"{what_works(env, params, 'lq_nash')}"
        )
    assert isinstance(params, Params)
    beta, a, b = (float(getattr(params, name)) for name in ("beta", "a", "b"))
    team = env.concept in TEAM_CONCEPTS
    feedback, matrices = solve_game(env.linear_quadratic(params), beta, team=team, rounds=rounds, name=env.name)
    _check_bounds(env, feedback, 2 * float(env.typical_quantity(params)), STEP * a / b)
    policy = LinearPolicy(feedback)
    auxiliary = None if team else RivalsCost(policy, -2 * beta / a * matrices, env.rivals)
    return Reference(policy, QuadraticValue(matrices), env.concept, TOLERANCE, auxiliary)


def solve_game(
    game: LinearQuadratic, beta: float, *, team: bool, rounds: int, name: str = "the game"
) -> tuple[np.ndarray, np.ndarray]:
    """Feedback F of u = -F s, `[N, n]`, and the players' value matrices, `[N, n, n]`.

    Args:
        game: its matrices.
        beta: discount factor per period.
        team: whether all maximise the sum of payoffs together.
        rounds: at most.
        name: of the game, for messages.

    Raises:
        UserError: the recursion does not converge.
    """
    n, players = game.control.shape
    values, feedback = np.zeros((players, n, n)), np.zeros((players, n))
    for _ in range(rounds):
        # What is maximised, in (s, u): this period's payoff and the discounted value of A s + B u.
        joint = np.hstack([game.transition, game.control])
        total = game.payoff + beta * joint.T @ values @ joint
        if team:
            rows = total.sum(axis=0)[n:]
        else:
            rows = total[np.arange(players), n + np.arange(players)]
        after = np.linalg.solve(rows[:, n:], rows[:, :n])
        closed = np.vstack([np.eye(n), -after])
        values_after = closed.T @ total @ closed
        moved = max(
            np.abs(after - feedback).max(),
            np.abs(values_after / (1 + np.abs(values)) - values / (1 + np.abs(values))).max(),
        )
        values, feedback = values_after, after
        if moved < CLOSE:
            return feedback, values
    raise UserError(f"{name}: the Riccati recursion still moves by {moved:.1e} after {rounds} rounds; lower beta")


def _check_bounds(env: CournotAdjustment, feedback: np.ndarray, highest: float, step: float) -> None:
    """Raise `UserError` unless the linear policy keeps to the bounds of actions wherever it leads.

    First quantities fill the box from 0 to `highest`, whose images under a linear policy are the hulls of the images
    of its corners.
    """
    n = env.num_firms
    q = np.stack(np.meshgrid(*[[0.0, highest]] * n, indexing="ij"), axis=-1).reshape(-1, n)
    largest = 0.0
    for _ in range(HORIZON):
        changes = -np.hstack([np.ones((len(q), 1)), q]) @ feedback.T
        largest, q = max(largest, np.abs(changes).max()), q + changes
    if not largest <= step:
        raise UserError(
            f"{env.name}: in the linear solution firms would change quantities by up to {largest:.3g}, beyond the "
            f"bounds of {step:.3g}; raise gamma"
        )


def _extended(q: Float[Array, " A"]) -> Float[Array, " n"]:
    return jnp.concatenate([jnp.ones_like(q[:1]), q])

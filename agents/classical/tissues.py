"""Rules for tissues that nothing was learnt for: what a learner has to beat, as agents.

A rule reads what the cells see and nothing else, so that it plays wherever a learner does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from scipy import stats

from ...envs.environment import Environment, EnvParams
from ...envs.grids import HERE, MOVES, GridSight, breadth_first, neighbours
from ...envs.history import window_of
from ...errors import UserError, unknown
from ..agent import Agent, Context, Policy, Rollout, View
from ..policies.heads import make_head
from .agent import keyword_options


class Rule(eqx.Module):
    """Actions `[A, ...]` from what is seen; a rule that draws uses the key where one is given."""

    def __call__(self, view: View, key: Array | None) -> PyTree:
        raise NotImplementedError


class RandomRule(Rule):
    """Uniform draws from the action space, of legal choices where the environment tells; without a key, the centre.

    Attributes:
        env, params: whose actions.
    """

    env: Environment = eqx.field(static=True)
    params: EnvParams

    def __call__(self, view: View, key: Array | None) -> PyTree:
        if key is None:
            return central(self.env, self.params)
        space = self.env.agent_action_space(self.params)
        if view.action_mask is not None:
            head = make_head(self.env, self.params)  # outputs of 0 are a uniform draw of what is discrete
            return head.sample(key, jnp.zeros((self.env.num_agents, head.size)), head.spread(), view.action_mask)[0]
        return jax.vmap(space.sample)(jax.random.split(key, self.env.num_agents))


class ConstantHazard(Rule):
    """One division rate for every cell, always.

    Attributes:
        rate: per unit of time.
    """

    rate: Float[Array, ""]

    def __call__(self, view: View, key: Array | None) -> PyTree:
        return jnp.broadcast_to(self.rate, (view.agent_mask.shape[0], 1))


class DiscGrowth(Rule):
    """Every cell divides in the first rounds, wherever chance puts the daughter, and then none: a disc.

    Attributes:
        rounds: how many.
        steps: decisions in an episode.
    """

    rounds: Float[Array, ""]
    steps: Float[Array, ""]

    def __call__(self, view: View, key: Array | None) -> PyTree:
        elapsed = (1 - view.observation[:, -1]) / 2 * self.steps  # the last thing seen is the time that is left
        nothing = jnp.zeros((elapsed.shape[0], 2), elapsed.dtype)
        divide = (jnp.round(elapsed) < self.rounds).astype(jnp.int32)
        return {"axis": nothing, "divide": divide, "push": nothing}


class GradientClimbing(Rule):
    """A cell turns towards where it smells more, as fast as it may, and swims unless that lies behind it.

    Attributes:
        turn: the largest turn of one step, radians.
    """

    turn: Float[Array, ""]

    def __call__(self, view: View, key: Array | None) -> PyTree:
        ahead, left = view.observation[:, 1], view.observation[:, 2]
        level = (jnp.abs(ahead) + jnp.abs(left)) == 0
        angle = jnp.arctan2(left, jnp.where(level, 1.0, ahead))
        # On average over the step, the heading is what a constant turn has made of it half way.
        speed = jnp.clip(jnp.cos(angle - jnp.clip(angle, -self.turn, self.turn) / 2), 0.0, 1.0)
        speed = jnp.where(level, 0.0, speed)
        return jnp.stack([speed, jnp.clip(angle / self.turn, -1.0, 1.0)], axis=-1)


class BreadthFirstPatrol(Rule):
    """Each cell takes a shortest way to the nearest tissue in view that it does not know to be searched.

    Where there is none it walks towards the side of its view behind which most is left. Ways lead around other cells,
    and a cell does not step next to one in sight that stands above it, or left of it in its row: of two that want one
    place, one gives way.

    Attributes:
        sight: where observations have the grid.
        goals: whether actions have a goal, which is then here.
    """

    sight: GridSight = eqx.field(static=True)
    goals: bool = eqx.field(static=True)

    def __call__(self, view: View, key: Array | None) -> PyTree:
        middle, seen = self.sight.radius, view.observation
        walls, known, others = jnp.moveaxis(self.sight.squares(seen), 1, 0) > 0.5
        row, column = jnp.indices(walls.shape[1:])
        ahead = others & ((row < middle) | ((row == middle) & (column < middle)))
        near = jax.vmap(lambda x: functools.reduce(jnp.logical_or, neighbours(x, False)))(ahead)
        step = (jnp.abs(row - middle) + jnp.abs(column - middle)) == 1
        free = ~walls & ~others & ~(near & step)
        left_over = seen[:, self.sight.size : self.sight.size + 4]
        last = 2 * middle
        sides = jnp.stack([row == 0, row == last, column == 0, column == last])[jnp.argmax(left_over, axis=1)]
        unknown_yet = free & ~known
        steps = self._steps(free, unknown_yet)
        found = steps[:, middle, middle] <= self._far
        steps = jnp.where(found[:, None, None], steps, self._steps(free, sides & free))
        around = jnp.stack([steps[:, middle + r, middle + c] for r, c in MOVES[1:]], axis=-1)
        way_on = around.min(axis=-1) <= self._far
        move = jnp.where(way_on, 1 + jnp.argmin(around, axis=-1), 0).astype(jnp.int32)
        return {"goal": jnp.full_like(move, HERE), "move": move} if self.goals else move

    @property
    def _far(self) -> int:
        """The longest way that is looked for."""
        return 4 * self.sight.radius

    def _steps(self, free: Bool[Array, "A S S"], source: Bool[Array, "A S S"]) -> Int[Array, "A S S"]:
        last = lambda x: jnp.moveaxis(x, 0, -1)  # noqa: E731
        return jnp.moveaxis(breadth_first(last(free), last(source), self._far), -1, 0)


def central(env: Environment, params: EnvParams) -> PyTree:
    """The centre of every agent's action, `[A, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (env.num_agents, *jnp.shape(x))), env.centre(params))


def random_rule(env: Environment, params: EnvParams) -> Rule:
    """Actions drawn uniformly from the action space."""
    return RandomRule(env, params)


def constant_hazard(env: Environment, params: EnvParams, *, rate: float | None = None) -> Rule:
    """The best constant division rate for CellCount in hazard mode, from the exact law of the number of cells.

    Args:
        env, params: the environment.
        rate: per unit of time; None takes the rate that minimises the expected squared error.

    Raises:
        UserError: another environment or mode, or a rate out of bounds.
    """
    from ...envs.tissues.cell_count import CellCount

    if not isinstance(env, CellCount) or env.mode != "hazard":
        raise UserError(f"'constant_hazard' sets the rates of CellCount-v0 with mode='hazard', not of {env.name}")
    low, high = float(np.min(params.rate_min)), float(np.max(params.rate_max))
    if rate is None:
        rates = np.linspace(low, high, 141)
        rate = float(rates[np.argmin([squared_error(env, params, each) for each in rates])])
    elif not low <= rate <= high:
        raise UserError(f"'constant_hazard': rate = {rate:g} must lie between {low:g} and {high:g}")
    return ConstantHazard(jnp.asarray(rate, jnp.result_type(float)))


def squared_error(env: Environment, params: EnvParams, rate: float) -> float:
    """Expected (n - n*)^2 of CellCount at a constant rate, by the exact law of n.

    From n cells, the births of a macro-step are binomial, each with p = 1 - exp(-rate dt); a step of the environment
    whose births find no slot ends the episode with a full tissue.

    Args:
        env: the environment.
        params: concrete parameters.
        rate: per unit of time.
    """
    capacity = env.num_agents
    substeps: int = getattr(env, "substeps", 1)
    p = -np.expm1(-rate * float(params.dt))
    cells = np.arange(capacity + 1)
    births = stats.binom.pmf(cells[None, :] - cells[:, None], cells[:, None], p)  # [n, n']: from n to n' cells
    births[:, -1] += 1 - births.sum(axis=1)
    law = np.zeros(capacity + 1)
    law[int(params.founders)] = 1.0
    for _ in range(substeps * int(params.max_steps_in_episode)):
        law = law @ births
    return float(law @ (cells - float(params.target)) ** 2)


def disc_growth(env: Environment, params: EnvParams) -> Rule:
    """Rounds of division of all cells until their number is nearest to the silhouette's, for TargetShape."""
    from ...envs.tissues.target_shape import TargetShape

    if not isinstance(env, TargetShape):
        raise UserError(f"'disc_growth' fills the silhouettes of TargetShape-v0, and {env.name} has none")
    rounds = np.arange(int(params.max_steps_in_episode) + 1)
    reached = float(params.founders) * 2.0**rounds
    fits = np.where(reached <= env.capacity, np.abs(reached - float(params.target_cells)), np.inf)
    dtype = jnp.result_type(float)
    return DiscGrowth(jnp.asarray(np.argmin(fits), dtype), jnp.asarray(params.max_steps_in_episode, dtype))


def gradient_climbing(env: Environment, params: EnvParams) -> Rule:
    """Turn towards where it smells more and swim, for Chemotaxis and Aggregation."""
    from ...envs.tissues._motile import Motile

    if not isinstance(env, Motile):
        raise UserError(f"'gradient_climbing' steers the cells of Chemotaxis-v0 and Aggregation-v0, not of {env.name}")
    return GradientClimbing(jnp.asarray(params.max_turn * params.dt * env.substeps))


def breadth_first_patrol(env: Environment, params: EnvParams) -> Rule:
    """The shortest way to what is not searched yet, for ImmunePatrol."""
    from ...envs.tissues.immune_patrol import ImmunePatrol

    if not isinstance(env, ImmunePatrol):
        raise UserError(f"'breadth_first_patrol' walks on the grid of ImmunePatrol-v0, and {env.name} has none")
    return BreadthFirstPatrol(env.sight, env.goals)


RULES: dict[str, Callable[..., Rule]] = {
    "random": random_rule,
    "constant_hazard": constant_hazard,
    "disc_growth": disc_growth,
    "gradient_climbing": gradient_climbing,
    "breadth_first_patrol": breadth_first_patrol,
}
"""Rules by name: `(env, params, **options) -> Rule`."""


class RuleState(NamedTuple):
    """The rule, and what is played until the first update: the centre of every action."""

    rule: Rule
    centre: PyTree
    begun: Bool[Array, ""]


class RulePolicy(Policy):
    """Plays the rule; before the first update, the centre."""

    state: RuleState

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        played = self.state.rule(view, key)
        return jax.tree.map(
            lambda ours, centre: jnp.where(self.state.begun, ours, centre.astype(ours.dtype)), played, self.state.centre
        )


class RuleAgent(Agent):
    """A rule as an agent; an update only puts it on. Made by `rule_agent`.

    Attributes:
        name: of the rule.
        env: what it was made for.
        rule: it.
    """

    name: str = eqx.field(static=True)
    env: Environment = eqx.field(static=True)
    rule: Rule

    def required(self) -> frozenset[str]:
        return frozenset()

    def concept(self, env: Environment) -> str:
        return env.concept

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        if env != self.env:
            raise UserError(
                f"{self.name!r} was made for {self.env.name} in another variant; make the agent anew by "
                f"rule_agent({self.name!r}, env, params)"
            )

    def init(self, key: Array, env: Environment, params: EnvParams) -> RuleState:
        rule = jax.tree.map(jnp.asarray, self.rule)
        return RuleState(rule, central(env, params), jnp.zeros((), bool))

    def initial_memory(self, state: PyTree, env: Environment, params: EnvParams) -> tuple:
        return ()

    def act(self, state: RuleState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        return memory, self.policy(state)(view, key if explore else None), ()

    def update(self, state: RuleState, rollout: Rollout, context: Context, key: Array):
        return state._replace(begun=jnp.ones((), bool)), {}

    def policy(self, state: RuleState) -> RulePolicy:
        return RulePolicy(state)


def rule_agent(name: str, env: Environment, params: EnvParams, **options: Any) -> RuleAgent:
    """An agent that plays a rule.

    Args:
        name: a key of `RULES`.
        env, params: the environment, with concrete parameters.
        **options: of the rule.

    Raises:
        UserError: an unknown rule or option, or one that does not fit the environment.

    Example:
        >>> from equimorph import make
        >>> env, params = make("CellCount-v0", calibration="hazard")
        >>> round(float(rule_agent("constant_hazard", env, params).rule.rate), 3)
        0.33
    """
    if name not in RULES:
        raise unknown("rule", str(name), RULES)
    known = rule_options(name)
    for option in options:
        if option not in known:
            raise (
                unknown(f"option of {name!r}", option, known)
                if known
                else UserError(f"{name!r} takes no options, got {option!r}; leave it out")
            )
    if window_of(env) is not None:
        raise UserError(f"{name!r} reads one observation, and {env.name} shows a window of them; leave window out")
    return RuleAgent(name, env, RULES[name](env, params, **options))


def rule_options(name: str) -> dict[str, Any]:
    """A rule's options and their annotations.

    Raises:
        UserError: there is no rule of that name.
    """
    if name not in RULES:
        raise unknown("rule", str(name), RULES)
    return keyword_options(RULES[name])

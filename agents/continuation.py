"""What the next state is worth in expectation over its shock: noise that a learner of rewards need not see.

A critic V makes a martingale of the values that were come to: V(s') less its expectation given what was done. Taken off
the rewards it changes no advantage's mean, whatever V is, and leaves the less noise the better V is. Henderson and
Glynn (2002), "Approximating martingales for variance reduction in Markov process simulation", Mathematics of Operations
Research 27; in PPO, Dai and Gluzman (2022), "Queueing network controls via deep reinforcement learning", Stochastic
Systems 12.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..envs.economy import Economy
from ..envs.economy_wrappers import WrappedShocks
from ..envs.environment import Environment, EnvParams, EnvState
from ..envs.quadrature import DEFAULT_ORDER
from ..envs.shocks import Chain, Discrete, Lognormal, Mixture, Normal, ShockLaw
from ..errors import UserError
from .agent import check_applies

EXPECTATIONS = ("quadrature",)

JOINT = (Normal, Lognormal, Discrete, Chain, Mixture)
"""Laws whose nodes integrate over everything that happens at once."""

Worth = Callable[[EnvState], Float[Array, "*batch A"]]
"""From states, with any batch axes, to what they are worth to each agent there."""


def check_expectation(env: Environment, params: EnvParams, rule: str | None, order: int | None) -> None:
    """Refuse an environment whose shocks have no law to integrate over, and a rule that does not fit it.

    Raises:
        UserError: names what is missing, and what works.
    """
    if not isinstance(env, Economy):
        raise UserError(f"{env.name} is no economy with a law of shocks: leave expectation out")
    if env.one_shot:
        raise UserError(f"{env.name} is played once and nothing comes after it: leave expectation out")
    law = env.shocks(params)
    inner = law.law if isinstance(law, WrappedShocks) else law
    if not isinstance(inner, JOINT):
        raise UserError(
            f"{env.name}: nodes of {type(inner).__name__} are each agent's own and not joint, so values of what all "
            "hold cannot be integrated: leave expectation out"
        )
    chosen = law.rules[0] if rule is None else rule
    law.check_rule(chosen)
    check_applies("order", order, law.takes_order(chosen), f"with rule={chosen!r}, whose nodes are fixed")
    nodes_at(law, rule, order, env.initial_state(jax.random.key(0), params))


def nodes_at(law: ShockLaw, rule: str | None, order: int | None, state: EnvState) -> tuple[Array, Float[Array, " J"]]:
    """Nodes `[J, ...]` and weights `[J]` of next period's shock; the law's usual rule and order where None."""
    chosen = law.rules[0] if rule is None else rule
    return law.nodes(chosen, DEFAULT_ORDER.get(chosen, 5) if order is None else order, state)


def expected_continuation(
    worth: Callable[[EnvState, EnvState], Float[Array, "T N A"]],
    env: Economy,
    params: EnvParams,
    state: EnvState,
    action: PyTree,
    rule: str | None,
    order: int | None,
) -> Float[Array, "T N A"]:
    """Conditional expectation of `worth(state, next_state)` given what was done in each state.

    The nodes are gone through one after another, so that no more is held than for one next state.

    Args:
        worth: of a batch of transitions to each agent, discounted.
        env, params: the economy.
        state, action: `[T, N, ...]`, the action as `step` takes it.
        rule, order: of the quadrature; None takes the law's usual.
    """
    law = env.shocks(params)
    shape = jax.tree.leaves(state)[0].shape[:2]
    flat_state, flat_action = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (state, action))
    one = jax.tree.map(lambda x: x[0], flat_state)
    count = jax.eval_shape(lambda s: nodes_at(law, rule, order, s), one)[1].shape[0]

    def following(s: EnvState, a: PyTree, j: Array) -> tuple[EnvState, Array]:
        nodes, weights = nodes_at(law, rule, order, s)
        legal = env.legal_action(a, params)[0]
        return env.transition(s, legal, nodes[j], params).replace(time=s.time + 1), weights[j]

    def add(total: Array, j: Array) -> tuple[Array, None]:
        after, weight = jax.vmap(following, (0, 0, None))(flat_state, flat_action, j)
        after, weight = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (after, weight))
        return total + weight[..., None] * worth(state, after), None

    zero = jnp.zeros((*shape, env.num_agents), jnp.result_type(float))
    return jax.lax.scan(add, zero, jnp.arange(count))[0]

"""Conditional expectations as reports take them."""

from __future__ import annotations

from jaxtyping import Array, Float

from ..envs.economy import Economy
from ..envs.environment import EnvParams, EnvState


def expectation_nodes(env: Economy, params: EnvParams, state: EnvState) -> tuple[Array, Float[Array, " J"]]:
    """Nodes and weights of next period's shock for a report, by the most accurate rule within 256 nodes.

    For normal shocks the product Gauss rule with the largest odd order up to 11 that fits (11 nodes a dimension up to
    two, 5 in three, 3 in four and five), else the monomial rule of degree 5; a chain's row and discrete
    values exactly; other laws by their first rule with order 11.
    """
    law = env.shocks(params)
    return law.nodes(*law.finest(), state)

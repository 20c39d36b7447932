"""What the residual learner computes on the host before anything is compiled, once for each environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams
from ...errors import UserError
from ..policies.heads import make_auxiliary_head

if TYPE_CHECKING:
    from .agent import DEQN

_found: dict[Any, Any] = {}


def derived_of(env: Environment, params: EnvParams) -> Any:
    """The derived conditions; see `make_derived`, also for what it raises."""
    from .derived import make_derived

    return _once("derived", env, params, lambda: make_derived(env, params))


def linear_of(agent: DEQN, env: Environment, params: EnvParams) -> Any:
    """The linear rule in the units of the network's outputs; see `linear_base`, also for what it raises.

    Raises:
        UserError: the environment is no economy.
    """
    from ..linear import linear_base

    if not isinstance(env, Economy):
        raise UserError(f"{env.name} is no economy and has no linear rule; leave linear_plus and the like out")
    head = agent.head(env, params)

    def make() -> Any:
        base = linear_base(env, params, head, make_auxiliary_head(env, params))
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.result_type(float)), base)

    return _once(type(head), env, params, make)


def _once(what: Any, env: Environment, params: EnvParams, make: Callable[[], Any]) -> Any:
    """What `make` returns, kept for the same environment, parameters and precision; not where they are traced."""
    leaves = jax.tree.leaves(params)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return make()
    numbers = tuple(np.asarray(leaf).tobytes() for leaf in leaves)
    key = (what, env, jnp.result_type(float), numbers)
    if key not in _found:
        _found[key] = make()
    return _found[key]

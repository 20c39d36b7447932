"""The economy's own closed form, as a solver."""

from __future__ import annotations

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from ...envs.economy import Economy
from ...envs.environment import EnvParams, EnvState, Reference
from ...errors import UserError
from .coordinates import what_works


class Known(eqx.Module):
    """One function of an economy's `reference`, with the parameters it depends on.

    Attributes:
        env: the economy.
        params: its parameters.
        part: "policy", "value" or "auxiliary".
    """

    env: Economy = eqx.field(static=True)
    params: EnvParams
    part: str = eqx.field(static=True)

    def __call__(self, state: EnvState) -> PyTree | Float[Array, "..."]:
        reference = self.env.reference(self.params)
        assert reference is not None
        return getattr(reference, self.part)(state)


def closed_form(env: Economy, params: EnvParams) -> Reference:
    """What `env.reference` knows.

    Raises:
        UserError: it knows nothing.
    """
    found = env.reference(params)
    if found is None:
        raise UserError(f"{env.name} has no closed form for these settings; {what_works(env, params, 'closed_form')}")
    numbers = jax.device_get(params)
    policy, value, auxiliary = (
        None if getattr(found, part) is None else Known(env, numbers, part) for part in ("policy", "value", "auxiliary")
    )
    return Reference(policy, value, found.concept, found.tolerance, auxiliary)

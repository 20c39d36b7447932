"""What a player gains by deviating alone."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array

from ...envs.economy import Economy
from ...envs.environment import EnvParams
from .rules import Rule

GAMES = ("mpe", "nash", "cooperative")


def is_game(env: Economy) -> bool:
    """Whether several players move what each other earns."""
    return env.num_agents > 1 and env.concept in GAMES


def known_exploitability(rule: Rule, env: Economy, params: EnvParams) -> dict[str, Any] | None:
    """Gains by the economy's own formula; None where it has none."""
    gains = _known(rule, params, env=env)
    if gains is None:
        return None
    gains = np.asarray(gains, float)
    return {"exploitability": float(gains.max()), "gains": gains.tolist(), "best_response": "known"}


@eqx.filter_jit
def _known(rule: Rule, params: EnvParams, *, env: Economy) -> Array | None:
    decide = rule.bind(env, params)
    return env.exploitability(lambda state: decide(state).action, params)


def trained_exploitability(rule: Rule, env: Economy, params: EnvParams, seed: int) -> dict[str, Any]:
    """Gains of best responses that are trained; see `best_response`."""
    from .best_response import train_best_responses

    gains, errors = train_best_responses(rule, env, params, seed)
    return {
        "exploitability": float(gains.max()),
        "gains": gains.tolist(),
        "gains_se": errors.tolist(),
        "best_response": "trained",
    }

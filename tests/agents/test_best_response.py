"""Best responses in turn against the closed form that they should settle on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical.best_response import best_response_iteration
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("players", "start"), [(2, 0.98), (3, 0.02)])
def test_best_responses_settle_on_the_equilibrium(players, start):
    env, params = equimorph.make("FishWar-v0", num_players=players)
    found, exact = best_response_iteration(env, params, start=start), env.reference(params)
    assert found.concept == "mpe"
    for stock in (0.2, 0.6, 1.0):
        state = env.steady_state(params)[0].replace(x=jnp.array(stock))
        assert float(jnp.abs(found.policy(state) - exact.policy(state)).max()) < found.tolerance
        np.testing.assert_allclose(found.value(state), exact.value(state), atol=2e-5)
    nodes, weights = env.shocks(params).nodes("gauss_hermite", 5, state)
    euler = residuals(lambda s: Decision(found.policy(s)), state, nodes, weights, env, params)["euler"]
    assert float(jnp.abs(euler).max()) < 1e-5


def test_what_it_cannot_solve():
    env, params = equimorph.make("FishWar-v0", concept="cooperative")
    with pytest.raises(UserError, match="lead to the 'mpe' solution, not to 'cooperative'"):
        best_response_iteration(env, params)
    with pytest.raises(UserError, match="plays FishWar-v0 only"):
        best_response_iteration(*equimorph.make("BrockMirman-v0"))
    env, params = equimorph.make("FishWar-v0")
    with pytest.raises(UserError, match=r"start = 1\.0 must lie in"):
        best_response_iteration(env, params, start=1.0)
    with pytest.raises(UserError, match="after 1 rounds of best responses"):
        best_response_iteration(env, params, rounds=1)

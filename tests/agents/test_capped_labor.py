"""The solver of the economy with a cap on labour: its Euler errors and its value, with the kink in the integral."""

import jax
import jax.numpy as jnp
import pytest

import equimorph
from equimorph.agents.classical import solve, solve_with
from equimorph.agents.deqn import residuals
from equimorph.envs import Decision
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
@pytest.mark.extended
def test_a_cap_at_mean_labor_binds_half_of_the_time():
    env, params = equimorph.make("RBCLabor-v0", calibration="capped")
    answer = solve(env, params)
    assert answer.tolerance < 2e-7

    def step(state, key):
        action = answer.policy(state)
        return env.transition(state, action, jax.random.normal(key, (1,)), params), (state, action)

    keys = jax.random.split(jax.random.key(0), 20_000)
    states, actions = jax.jit(lambda: jax.lax.scan(step, env.steady_state(params)[0], keys)[1])()
    binds = actions[:, 1] >= params.cap
    assert 1 / 3 < float(binds.mean()) < 2 / 3
    # A plain sum over evenly spaced shocks: Gauss-Hermite nodes would miss the kink.
    shocks = jnp.linspace(-7, 7, 141)[:, None]
    weights = jnp.exp(-(shocks[:, 0] ** 2) / 2)
    states = jax.tree.map(lambda leaf: leaf[::40], states)

    def one(state):
        decide = lambda s: Decision(answer.policy(s))  # noqa: E731
        found = residuals(decide, state, shocks, weights / weights.sum(), env, params)
        return found["euler"], found["intratemporal"]

    euler, intratemporal = jax.jit(jax.vmap(one))(states)
    assert float(jnp.abs(euler).max()) < 1e-6
    assert float(jnp.abs(intratemporal).max()) < 2e-6

    def value_gap(state):
        action = answer.policy(state)
        after = jax.vmap(lambda shock: answer.value(env.transition(state, action, shock, params)))(shocks)
        recursion = env.reward(state, action, params) + params.beta * (weights / weights.sum()) @ after
        return recursion - answer.value(state)

    assert float(jnp.abs(jax.jit(jax.vmap(value_gap))(states)).max()) < 1e-6


def test_other_economies_are_refused():
    env, params = equimorph.make("RBCLabor-v0")
    with pytest.raises(UserError, match="labor_cap='mean'; use its solver, 'chebyshev'"):
        solve_with("capped_labor", env, params)

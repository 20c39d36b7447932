"""The Riccati solver by deviations and simulation; QuantEcon's numbers are in tests/envs/test_cournot.py."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.classical.lq_nash import lq_nash
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def solved(**overrides):
    env, params = equimorph.make("Cournot-v0", **{"calibration": "adjustment", **overrides})
    return env, params, lq_nash(env, params)


def worth(env, params, feedback, q):
    """Discounted payoffs of linear policies, by simulation."""
    q, total = np.array(q, float), 0.0
    a, b, gamma, beta = (float(getattr(params, name)) for name in ("a", "b", "gamma", "beta"))
    for t in range(900):
        u = -feedback @ np.append(1.0, q)
        total = total + beta**t * ((a - b * q.sum() - np.asarray(params.c)) * q - gamma * u**2)
        q = q + u
    return total


@pytest.mark.parametrize("overrides", [{}, {"num_firms": 3, "c": [0.0, 0.5, 1.0]}])
def test_no_firm_gains_by_another_linear_policy(overrides):
    env, params, reference = solved(**overrides)
    feedback, q = reference.policy.feedback, np.linspace(0.5, 2.5, env.num_firms)
    state = env.initial_state(jax.random.key(0), params).replace(q=jnp.asarray(q))
    best = worth(env, params, feedback, q)
    np.testing.assert_allclose(best, reference.value(state), atol=1e-8)
    for entry in range(env.num_firms + 1):
        for change in (-0.01, 0.01):
            other = feedback.copy()
            other[0, entry] += change
            loss = best[0] - worth(env, params, other, q)[0]
            assert 0 < loss < 0.5


def test_joint_optimum():
    """All change alike, the joint profit rests at the monopolist's, and no common change of policy raises the sum."""
    env, params, reference = solved(concept="cooperative")
    feedback, q = reference.policy.feedback, np.array([0.5, 2.5])
    np.testing.assert_allclose(feedback[0], feedback[1], atol=1e-12)
    total = -feedback[0, 0] / feedback[0, 1]
    assert total == pytest.approx(2.5, abs=1e-9)  # a / 2 b: price 5, not the equilibrium's 2.79
    best = worth(env, params, feedback, q)
    state = env.initial_state(jax.random.key(0), params).replace(q=jnp.asarray(q))
    np.testing.assert_allclose(best, reference.value(state), atol=1e-8)
    for change in (-0.01, 0.01):
        for row, entry in ((0, 0), (0, 1), (1, 2)):
            other = feedback.copy()
            other[row, entry] += change
            assert worth(env, params, other, q).sum() < best.sum()
    assert best.sum() > worth(env, params, solved()[2].policy.feedback, q).sum()


def test_answers_pass_through_jit_in_either_precision():
    reference = solved()[2]
    for wide in (True, False):
        with jax.enable_x64(wide):
            env, params = equimorph.make("Cournot-v0", calibration="adjustment")
            state = env.initial_state(jax.random.key(0), params)
            run = eqx.filter_jit(lambda r, s: (r.policy(s), r.value(s), r.auxiliary(s)))
            action, value, auxiliary = run(reference, state)
            assert [x.shape for x in (action, value, auxiliary)] == [(2, 1), (2,), (2, 1)]
            assert bool(jnp.all(auxiliary > 0))


def test_what_it_cannot_solve():
    with pytest.raises(UserError, match="'lq_nash' solves linear-quadratic games only"):
        lq_nash(*equimorph.make("FishWar-v0"))
    with pytest.raises(UserError, match=r"beyond the bounds of 1\.25; raise gamma"):
        solved(gamma=0.5)
    env, params = equimorph.make("Cournot-v0", calibration="adjustment")
    with pytest.raises(UserError, match=r"still moves by .* after 3 rounds"):
        lq_nash(env, params, rounds=3)

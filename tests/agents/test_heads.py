"""Heads against numbers that owe nothing to them: integrals, samples, bounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.agents.policies.heads import CategoricalHead, SquashedGaussianHead, make_head
from equimorph.envs import spaces
from equimorph.errors import UserError

from ..probes import Scripted, Table, script, table


def head_of(low, high, centre, initial_std=0.5):
    low, high, centre = (np.atleast_1d(np.asarray(x, np.float32)) for x in (low, high, centre))
    offset = np.log((centre - low) / (high - centre))
    return SquashedGaussianHead(*map(jnp.asarray, (low, high, offset)), initial_std)


@pytest.mark.parametrize(
    ("low", "high", "centre", "output", "std"),
    [(-1, 3, 1, 0.0, 0.5), (0, 1, 0.5, 0.8, 0.2), (0.8, 1, 0.96, -0.5, 0.7), (0, 1, 0.1, -0.3, 1.0)],
)
def test_the_density_integrates_to_one(low, high, centre, output, std):
    head = head_of(low, high, centre)
    raw = np.linspace(output - 9 * std, output + 9 * std, 20001, dtype=np.float32)[:, None]
    density = np.exp(np.asarray(head.log_prob(raw, np.float32([output]), np.log(np.float32([std]))), float))
    # The actions are computed by the squash; the density is per unit of action.
    action = low + (high - low) / (1 + np.exp(-(2 * raw[:, 0].astype(float) + float(head.offset[0]))))
    assert np.trapezoid(density, action) == pytest.approx(1, abs=1e-4)
    mean = np.trapezoid(density * action, action)
    draws, _ = head.sample(jax.random.key(0), np.full((20000, 1), output, np.float32), np.log(np.float32([std])))
    assert float(draws.mean()) == pytest.approx(mean, abs=5 * float(draws.std()) / np.sqrt(20000))


@pytest.mark.parametrize("std", [0.05, 0.5, 1.0])
def test_entropy_against_samples(std):
    head = head_of([-1.0, 0.0], [3.0, 1.0], [1.0, 0.2])
    output, spread = np.float32([0.3, -0.6]), np.log(np.float32([std, 0.7 * std]))
    _, raw = head.sample(jax.random.key(1), np.tile(output, (40000, 1)), spread)
    surprise = -np.asarray(head.log_prob(raw, output, spread), float)
    error = surprise.std() / np.sqrt(len(surprise))
    assert float(head.entropy(output, spread)) == pytest.approx(surprise.mean(), abs=4 * error + 0.02 * std)


def test_saturated_actions_stay_finite():
    head = head_of(0.0, 1.0, 0.5)

    def log_prob(output, raw):
        return head.log_prob(raw, output, head.spread())

    for extreme in (-200.0, 200.0):
        raw, output = np.float32([extreme]), np.float32([extreme / 2])
        assert np.isfinite(log_prob(output, raw))
        assert np.isfinite(jax.grad(log_prob)(output, raw)).all()
        action = float(head.squash(raw)[0])
        assert 0 <= action <= 1


@dataclasses.dataclass(frozen=True)
class OffCentre(Scripted):
    def centre(self, params):
        return jnp.array([0.0, 2.8])


@pytest.mark.parametrize("env", [Scripted(), OffCentre(), Table()], ids=["box", "off_centre", "discrete"])
def test_a_zero_output_is_the_centre(env):
    params = env.default_params
    head = make_head(env, params)
    mode = head.mode(jnp.zeros(head.size))
    np.testing.assert_allclose(mode, env.centre(params), atol=1e-6)


def test_an_off_centre_box():
    head = head_of(0.8, 1.0, 0.85)
    assert float(head.mode(jnp.zeros(1))[0]) == pytest.approx(0.85)
    outputs = np.linspace(-5, 5, 11, dtype=np.float32)[:, None]
    assert (np.diff(head.mode(outputs)[:, 0]) > 0).all()


def test_illegal_actions_are_never_sampled():
    head = CategoricalHead(3)
    mask = np.array([[True, False, True], [False, True, False]])
    logits = np.float32([[0.0, 50.0, 1.0], [9.0, 0.0, 9.0]])
    draws, raw = jax.vmap(lambda key: head.sample(key, logits, None, mask))(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_array_equal(draws, raw)
    assert set(draws[:, 0].tolist()) == {0, 2}
    assert set(draws[:, 1].tolist()) == {1}
    assert head.mode(logits, mask).tolist() == [2, 1]
    np.testing.assert_allclose(
        np.exp(head.log_prob(np.array([2, 1]), logits, None, mask)), [np.e / (1 + np.e), 1], rtol=1e-5
    )
    by_hand = np.log(1 + np.e) - np.e / (1 + np.e)
    np.testing.assert_allclose(head.entropy(logits, None, mask), [by_hand, 0], atol=1e-5)


def test_an_all_illegal_row_is_finite_without_gradient():
    head, mask = CategoricalHead(3), np.zeros((1, 3), bool)

    def scores(logits):
        log_prob = head.log_prob(np.array([1]), logits, None, mask)
        return (log_prob + head.entropy(logits, None, mask)).sum()

    logits = np.float32([[3.0, -2.0, 500.0]])
    assert np.isfinite(scores(logits))
    assert jax.grad(scores)(logits).tolist() == [[0, 0, 0]]


def test_spaces_without_a_head_are_refused():
    @dataclasses.dataclass(frozen=True)
    class Unbounded(Scripted):
        def agent_action_space(self, params):
            return spaces.Box(-jnp.inf, 1.0, (2,))

    @dataclasses.dataclass(frozen=True)
    class Many(Table):
        def agent_action_space(self, params):
            return spaces.MultiDiscrete([2, 2])

    with pytest.raises(UserError, match="finite bounds"):
        make_head(Unbounded(), script())
    with pytest.raises(UserError, match="MultiDiscrete"):
        make_head(Many(), table())

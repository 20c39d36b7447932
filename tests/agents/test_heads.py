"""Heads against numbers that owe nothing to them: integrals, samples, bounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from equimorph.agents.policies.heads import BetaHead, CategoricalHead, SquashedGaussianHead, make_head
from equimorph.envs import spaces
from equimorph.errors import UserError

from ..probes import Scripted, Table, table


def head_of(low, high, centre, initial_std=0.5, kind=SquashedGaussianHead):
    low, high, centre = (np.atleast_1d(np.asarray(x, np.float32)) for x in (low, high, centre))
    offset = np.log((centre - low) / (high - centre))
    return kind(*map(jnp.asarray, (low, high, offset)), initial_std)


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


@pytest.mark.parametrize(
    ("env", "distribution"),
    [(Scripted(), None), (OffCentre(), "gaussian"), (OffCentre(), "beta"), (Table(), None)],
    ids=["box", "off_centre", "beta", "discrete"],
)
def test_a_zero_output_is_the_centre(env, distribution):
    params = env.default_params
    head = make_head(env, params, distribution=distribution)
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


# -- Beta --------------------------------------------------------------------------------------------------------------

BETAS = [
    (-1, 3, 1, 0.0, 0.5),
    (0, 1, 0.5, 0.8, 0.2),
    (0.8, 1, 0.96, -0.5, 0.05),
    (0, 1, 0.1, 2, 0.01),
    (0, 1, 0.9, 1, 9),
]

log_prob = jax.jit(lambda head, *args: head.log_prob(*args))
entropy = jax.jit(lambda head, *args: head.entropy(*args))
sample = jax.jit(lambda head, *args: head.sample(*args))


def beta_of(low, high, centre, output, std):
    """SciPy's Beta with the mode of the output and the concentration that belongs to it."""
    c = (centre - low) / (high - low)
    mode = 1 / (1 + (1 - c) / c * np.exp(-2 * output))
    concentration = 1 / (4 * mode * (1 - mode) * std**2)
    return scipy.stats.beta(1 + concentration * mode, 1 + concentration * (1 - mode), low, high - low)


@pytest.mark.parametrize("case", BETAS)
def test_beta_against_scipy(case):
    low, high, centre, output, std = case
    head, known = head_of(low, high, centre, kind=BetaHead), beta_of(*map(float, case))
    outputs, spread = np.full((4001, 1), output, np.float32), np.log(np.float32([std]))
    action = known.ppf(np.linspace(0.001, 0.999, 4001))
    raw = ((action - low) / (high - low)).astype(np.float32)
    density = np.asarray(log_prob(head, raw[:, None], outputs, spread), float)
    np.testing.assert_allclose(density, known.logpdf(low + (high - low) * raw.astype(float)), atol=1e-3)
    assert np.trapezoid(np.exp(density), action) == pytest.approx(0.998, abs=1e-4)
    found = np.asarray(entropy(head, outputs, spread), float)[0]
    assert found == pytest.approx(float(known.entropy()), abs=1e-4)
    draws, raw = sample(head, jax.random.key(0), outputs, spread)
    assert scipy.stats.kstest(np.asarray(draws[:, 0], float), known.cdf).pvalue > 1e-3
    surprise = -np.asarray(log_prob(head, raw, outputs, spread), float)
    assert found == pytest.approx(surprise.mean(), abs=5 * surprise.std() / np.sqrt(4001))


def test_gradients_of_beta_against_differences_of_scipys():
    head = head_of(-1, 3, 0, kind=BetaHead)
    x, s, action, step = 0.4, np.log(0.3), 0.5, 1e-5
    known = lambda x, s: beta_of(-1.0, 3.0, 0.0, x, np.exp(s))  # noqa: E731

    @jax.jit
    def ours(outputs, spread):
        raw = jnp.asarray([(action + 1) / 4])
        return head.log_prob(raw, outputs, spread), head.entropy(outputs, spread)

    slopes = jax.jacrev(ours, (0, 1))(jnp.array([x]), jnp.array([s]))
    for found, theirs in zip(
        slopes, (lambda *xs: known(*xs).logpdf(action), lambda *xs: known(*xs).entropy()), strict=True
    ):
        by_output = (theirs(x + step, s) - theirs(x - step, s)) / (2 * step)
        by_spread = (theirs(x, s + step) - theirs(x, s - step)) / (2 * step)
        np.testing.assert_allclose(np.ravel(found), (by_output, by_spread), rtol=1e-3)


@pytest.mark.parametrize(
    ("centre", "output", "std", "within"),
    [(0.5, 0.0, 0.05, 0.01), (0.2, -1.0, 0.05, 0.01), (0.5, 0.0, 0.5, 0.1), (0.2, 0.0, 0.5, 0.15)],
)
def test_beta_starts_as_wide_as_the_gaussian(centre, output, std, within):
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    gaussian = 1 / (1 + (1 - centre) / centre * np.exp(-2 * (output + std * nodes)))
    wide = np.sqrt(weights @ gaussian**2 - (weights @ gaussian) ** 2)
    head = head_of(0, 1, centre, 0.5, BetaHead)
    spread = head_of(0, 1, centre, std, BetaHead).spread()
    assert np.exp(spread) == pytest.approx(std)
    *_, above, below, _ = head._parameters(np.float32([output]), spread)
    assert scipy.stats.beta(1 + float(above[0]), 1 + float(below[0])).std() == pytest.approx(wide, rel=within)


@jax.jit
def graded(head, raw, output, spread):
    score = lambda output, spread: head.log_prob(raw, output, spread) + head.entropy(output, spread)  # noqa: E731
    return jax.value_and_grad(score, (0, 1))(output, spread)


@pytest.mark.parametrize("spread", [-12.0, 0.0, 12.0])
def test_saturated_betas_stay_finite(spread):
    head = head_of([0.0, -1.0], [1.0, 5.0], [0.5, 0.0], kind=BetaHead)
    edge = np.finfo(np.float32).eps
    for extreme in (-200.0, 200.0):
        output, spreads = np.full(2, extreme, np.float32), np.full(2, spread, np.float32)
        action, raw = sample(head, jax.random.key(3), output, spreads)
        assert ((raw > 0) & (raw < 1) & (action >= head.low) & (action <= head.high)).all()
        for at in (raw, np.full(2, edge, np.float32), np.full(2, 1 - edge, np.float32)):
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(graded(head, at, output, spreads)))


# -- refusals ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Of(Table):
    """The table with another action space."""

    space: spaces.Space | None = None

    def agent_action_space(self, params):
        return self.space

    def centre(self, params):
        return spaces.middle(self.space)


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (spaces.Box(-1.0, 1.0, ()), {"distribution": "betta"}, r"unknown distribution 'betta'\. Did you mean 'beta'"),
        (spaces.Box(-1.0, 1.0, ()), {"distribution": "beta", "reach": True}, "distribution = 'beta' does not apply"),
        (spaces.Discrete(2), {"distribution": "beta"}, "'beta' does not apply to Of-v0, whose actions are discrete"),
        (spaces.MultiDiscrete([2]), {"initial_std": 0.1}, "initial_std = 0.1 does not apply to Of-v0"),
        (spaces.Tuple([spaces.Discrete(2)]), {"reach": True}, "reach = True does not apply"),
        (spaces.Tuple([]), {}, "no action head for a Tuple space; Discrete, MultiDiscrete, Box"),
        (spaces.Dict({"a": spaces.Space()}), {}, r"no action head for a Space space\['a'\]"),
        (spaces.Dict({"a": spaces.Box(0.0, jnp.inf, ())}), {}, r"Box action space\['a'\] needs finite bounds"),
        (spaces.Box(-jnp.inf, 1.0, (2,)), {}, "finite bounds"),
        (spaces.Box(0.0, 1.0, (2,)), {"initial_std": 0.0}, "must be above 0"),
    ],
)
def test_what_has_no_head_is_refused(space, options, message):
    with pytest.raises(UserError, match=message) as error:
        make_head(Of(space=space), table(), **options)
    assert "\n" not in str(error.value)

"""Integration rules against the moments of the normal distribution, and what is refused for having too many nodes."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

import equimorph
from equimorph.agents import DEQN
from equimorph.agents.agent import check_pair
from equimorph.agents.deqn.expectations import nodes_at
from equimorph.envs import quadrature
from equimorph.envs.economies.stochastic_ak import StochasticAK
from equimorph.envs.shocks import Normal
from equimorph.errors import UserError
from equimorph.training.conditions import expectation_nodes


def moment(powers):
    """E[prod eps_i^p_i]: products of double factorials, 0 where a power is odd."""
    return float(np.prod([0 if p % 2 else math.prod(range(p - 1, 0, -2)) for p in powers]))


def worst(rule, d, order, degree):
    """The largest error of a rule over all monomials of exactly this total degree."""
    nodes, weights = quadrature.normal_nodes(rule, d, order)
    powers = [np.bincount(c, minlength=d) for c in itertools.combinations_with_replacement(range(d), degree)]
    return max(abs(float(weights @ np.prod(nodes**p, axis=1)) - moment(p)) for p in powers)


@pytest.mark.parametrize("d", range(1, 7))
@pytest.mark.parametrize(("rule", "exact"), [("monomial3", 3), ("monomial5", 5)])
def test_monomial_rules_are_exact_up_to_their_degree_and_no_further(rule, exact, d):
    assert len(quadrature.normal_nodes(rule, d, 0)[1]) == {"monomial3": 2 * d, "monomial5": 2 * d**2 + 1}[rule]
    for degree in range(exact + 1):
        assert worst(rule, d, 0, degree) < 1e-12
    assert worst(rule, d, 0, exact + 1) > 0.5


@pytest.mark.parametrize(("d", "order"), [(1, 7), (2, 3), (3, 2)])
def test_gauss_hermite_is_exact_in_each_variable(d, order):
    nodes, weights = quadrature.normal_nodes("gauss_hermite", d, order)
    for powers in itertools.product(range(2 * order), repeat=d):
        wanted = moment(powers)
        assert float(weights @ np.prod(nodes ** np.array(powers), axis=1)) == pytest.approx(
            wanted, abs=1e-9 + 1e-12 * wanted
        )
    assert moment([2 * order]) - float(weights @ nodes[:, 0] ** (2 * order)) > 0.5


@pytest.mark.parametrize("d", [1, 3, 8])
def test_quasi_random_points_converge_on_a_lognormal_mean(d):
    def error(order):
        nodes, weights = quadrature.normal_nodes("qmc", d, order)
        return abs(float(weights @ np.exp(nodes.sum(axis=1) / math.sqrt(d) - 0.5)) - 1)

    coarse, fine = error(64), error(4096)
    assert fine < coarse / 4
    assert fine < 0.004  # independent draws would miss by sqrt((e - 1) / 4096) = 0.02
    for degree in range(4):
        assert worst("qmc", d, 256, degree) < 1e-9


@pytest.mark.parametrize(
    ("rule", "d", "order", "needs", "fits"),
    [
        (
            "gauss_hermite",
            6,
            5,
            "15625",
            "order 4 (4096 nodes), rule='monomial3' (12), rule='monomial5' (73), rule='qmc'",
        ),
        ("gauss_hermite", 13, 2, "8192", "use rule='monomial3' (26), rule='monomial5' (339), rule='qmc'"),
        ("monomial5", 60, 0, "7201", "use rule='monomial3' (120), rule='qmc'"),
        ("monomial3", 3000, 0, "6000", "use rule='qmc' with order up to 4096"),
        ("qmc", 2, 5000, "5000", "rule='qmc' with order up to 4096"),
    ],
)
def test_too_many_nodes_name_what_would_fit(rule, d, order, needs, fits):
    with pytest.raises(UserError) as error:
        Normal(d).nodes(rule, order, None)
    message = str(error.value)
    assert f"{rule}" in message
    assert f"needs {needs} nodes, above the limit of 4096: use " in message
    assert fits in message
    assert message.endswith("or DEQN's expectation='all_in_one'")
    for name in ("monomial3", "monomial5"):
        if f"rule={name!r}" in message:
            Normal(d).nodes(name, 0, None)


def test_the_order_named_in_the_message_is_the_largest_that_fits():
    for d in (2, 3, 4, 6):
        largest = int(4096 ** (1 / d) + 1e-9)
        with pytest.raises(UserError, match=f"use order {largest} "):
            quadrature.normal_nodes("gauss_hermite", d, largest + 1)
        quadrature.normal_nodes("gauss_hermite", d, largest)


@dataclasses.dataclass(frozen=True)
class Many(StochasticAK):
    """A return with further shocks that nobody reads."""

    d: int = 1

    def shocks(self, params):
        return Normal(self.d)


@pytest.mark.parametrize(
    ("d", "nodes", "exact"),
    [(1, 11, 21), (2, 121, 21), (3, 125, 9), (4, 81, 5), (5, 243, 5), (7, 99, 5), (8, 129, 5)],
)
def test_reports_take_the_most_accurate_rule_that_fits(d, nodes, exact):
    env = Many(d=d)
    found, weights = expectation_nodes(env, env.default_params, None)
    assert found.shape == (nodes, d)
    with jax.enable_x64(True):
        found, weights = expectation_nodes(env, env.default_params, None)
        even = exact - exact % 2
        assert float(weights @ found[:, -1] ** even) == pytest.approx(moment([even]), rel=1e-10)
        assert abs(float(weights @ found[:, -1] ** (even + 2)) - moment([even + 2])) > 0.5


def test_deep_equilibrium_nets_take_every_rule_and_refuse_an_order_that_has_no_effect():
    env, params = equimorph.make("StochasticAK-v0")
    many = Many(d=6)
    for options in ({}, {"rule": "monomial3"}, {"rule": "monomial5"}, {"rule": "qmc"}, {"rule": "qmc", "order": 64}):
        check_pair(DEQN(batch_size=8, **options), env, params, 8, 8)
    for rule in ("monomial3", "monomial5"):
        check_pair(DEQN(batch_size=8, rule=rule), many, params, 8, 8)
        with pytest.raises(UserError, match=f"order = 3 does not apply with rule='{rule}'"):
            check_pair(DEQN(batch_size=8, rule=rule, order=3), env, params, 8, 8)
    with pytest.raises(UserError, match=r"15625 nodes.*rule='monomial5' \(73\)"):
        check_pair(DEQN(batch_size=8), many, params, 8, 8)


def test_the_rule_decides_the_nodes_of_training():
    law = Normal(2)
    shapes = {
        (rule, order): nodes_at(DEQN(rule=rule, order=order), law, None, None)[0].shape
        for rule, order in ((None, None), ("gauss_hermite", 3), ("monomial3", None), ("qmc", None), ("qmc", 10))
    }
    assert [shape[0] for shape in shapes.values()] == [25, 9, 4, 256, 10]

"""TypeBalance: Polya's urn without feedback, and balance with it."""

from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.errors import UserError

from .tissue_play import check_played, play


def urn(founders, divisions):
    """The mean imbalance of a fair coin's founders whose cells divide with equal chance, and its mean square."""
    law, cells = {k: comb(founders, k) / 2**founders for k in range(founders + 1)}, founders
    for _ in range(divisions):
        after = dict.fromkeys(range(cells + 2), 0.0)
        for k, share in law.items():
            after[k + 1] += share * k / cells
            after[k] += share * (cells - k) / cells
        law, cells = after, cells + 1
    return tuple(sum(share * abs(2 * k - cells) ** power for k, share in law.items()) for power in (1, 2))


def minority(weights, observation, key):
    """The rarer type divides, by `weights` of preference; the chemicals say which it is."""
    rare = observation[:, 5] < 0
    propensity = jnp.where(rare, 1.0, 1.0 - weights)
    return jnp.stack([propensity, jnp.ones_like(propensity)], axis=-1)


@pytest.mark.extended
def test_without_feedback_it_is_polyas_urn_and_with_it_types_are_balanced():
    env, params = equimorph.make("TypeBalance-v0", capacity=8, substeps=1, founders=2, max_steps_in_episode=4)
    keys = jax.random.split(jax.random.key(2), 2000)
    blind, seeing = (play(env, params, minority, jnp.array(w), keys, 4) for w in (0.0, 0.99))
    for played in (blind, seeing):
        check_played(played, lambda score: -score)
        np.testing.assert_array_equal(played.info["num_cells"][:, -1], 6)
    mean, square = urn(2, 4)
    assert blind.info["score"][:, -1].mean() == pytest.approx(mean, abs=4 * np.sqrt((square - mean**2) / 2000))
    mixed = blind.before.tissue.celltype[:, 0, :2].sum(axis=1).min(axis=1) == 1  # founders of both types
    assert 0.4 < mixed.mean() < 0.6
    # Odd numbers are at most one apart; an error of a hundredth remains.
    assert seeing.info["score"][mixed, -1].mean() < 0.2 < blind.info["score"][mixed, -1].mean()


def test_the_default_law_is_what_the_docstring_says():
    assert urn(8, 24)[0] == pytest.approx(11.8, abs=0.05)


def test_secretion_leaves_no_scored_events():
    env, params = equimorph.make("TypeBalance-v0")
    assert env.capabilities == {"score"}
    assert equimorph.make("TypeBalance-v0", calibration="silent")[0].capabilities == {"score", "events"}
    with pytest.raises(UserError, match="secreting=False"):
        env.event_log_prob(None, None, None, params)

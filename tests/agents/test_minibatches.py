"""Random orders of a rollout's transitions: each of them once, environments and periods well mixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.agents.minibatches import shuffled, turned_order


def test_an_order_takes_every_state_once_and_environments_evenly():
    order = np.asarray(turned_order(jax.random.key(0), 6, 10)).reshape(6, 10)
    assert sorted(order.ravel().tolist()) == list(range(60))
    assert all(len(set(row % 10)) == 10 for row in order)
    assert all(len(set(row // 10)) > 1 for row in order)
    other = np.asarray(turned_order(jax.random.key(1), 6, 10)).reshape(6, 10)
    assert (order != other).mean() > 0.8


@pytest.mark.parametrize(("num_steps", "num_envs", "minibatches"), [(12, 5, 4), (30, 2, 5), (24, 1, 3), (1, 12, 4)])
def test_minibatches_keep_every_transition_once_and_whole(num_steps, num_envs, minibatches):
    size = num_steps * num_envs
    batch = {"a": jnp.arange(size), "b": jnp.arange(size)[:, None] * 10}
    cut = shuffled(jax.random.key(0), batch, num_steps, num_envs, minibatches)
    assert cut["a"].shape == (minibatches, size // minibatches)
    np.testing.assert_array_equal(cut["b"][..., 0], cut["a"] * 10)
    assert sorted(cut["a"].ravel().tolist()) == list(range(size))
    for row in np.asarray(cut["a"]):
        counts = np.bincount(row % num_envs, minlength=num_envs)
        assert counts.max() - counts.min() <= 1


def test_neighbours_in_time_are_no_likelier_to_be_in_one_minibatch_than_others():
    # Of two environments and ten periods a minibatch takes five rows: two periods of one environment are together in
    # (5 - 1) / (10 - 1) of the epochs' minibatches, whether they follow each other or not.
    keys = jax.random.split(jax.random.key(2), 4000)
    first = np.asarray(jax.vmap(lambda key: shuffled(key, jnp.arange(20), 10, 2, 2))(keys))[:, 0]
    member = np.zeros((4000, 20))
    np.put_along_axis(member, first, 1.0, axis=1)
    together = (member.T @ member / 2000)[::2, ::2]
    others = together[~np.eye(10, dtype=bool)]
    np.testing.assert_allclose(others, 4 / 9, atol=5 * np.sqrt(2 / 9 * 7 / 9 / 4000) * 2)

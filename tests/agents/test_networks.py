"""How networks start."""

import jax
import numpy as np
import pytest

from equimorph.agents.policies.actor import Actor
from equimorph.agents.policies.networks import ACTIVATIONS, MLP, check_network
from equimorph.errors import UserError


def gains(network):
    """The two ends of each layer's singular values: one number where the matrix is orthogonal."""
    singular = [np.linalg.svd(layer.weight, compute_uv=False) for layer in network.layers]
    return [(values.min(), values.max()) for values in singular]


def test_orthogonal_initialisation():
    actor = Actor(jax.random.key(0), 3, 2, None, (8, 5), "tanh")
    critic = MLP(jax.random.key(0), 3, 1, (8, 5), "tanh", 1.0)
    root = np.sqrt(2)
    np.testing.assert_allclose(gains(actor.network), [[root, root], [root, root], [0.01, 0.01]], rtol=1e-5)
    np.testing.assert_allclose(gains(critic), [[root, root], [root, root], [1, 1]], rtol=1e-5)
    assert all((layer.bias == 0).all() for layer in critic.layers)
    assert not np.allclose(actor.network.layers[0].weight[:, 0], actor.network.layers[0].weight[:, 1])


def test_a_network_is_layers_and_nonlinearities():
    network = MLP(jax.random.key(1), 3, 2, (4,), "relu", 1.0)
    x = np.float32([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    first, last = network.layers
    by_hand = np.maximum(x @ np.asarray(first.weight).T + first.bias, 0) @ np.asarray(last.weight).T + last.bias
    np.testing.assert_allclose(network(x), by_hand, rtol=1e-5, atol=1e-6)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(network))
    assert [leaf.shape for leaf in jax.tree.leaves(network)] == [(4, 3), (4,), (2, 4), (2,)]


def test_mistakes_are_named():
    for activation in ACTIVATIONS:
        check_network((4, 4), activation)
    check_network((), "tanh")
    with pytest.raises(UserError, match="Did you mean 'silu'"):
        check_network((4,), "sliu")
    for widths in ((0,), (4, -1), (True,), (2.5,)):
        with pytest.raises(UserError, match="whole numbers of at least 1"):
            check_network(widths, "tanh")

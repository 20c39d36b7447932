"""How networks start, and what they read of a window."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.agents.policies.actor import Actor
from equimorph.agents.policies.networks import ACTIVATIONS, KINDS, MLP, Transformer, check_network, make_network
from equimorph.errors import UserError

WINDOW = (5, 4)


def gains(network):
    """The two ends of each layer's singular values: one number where the matrix is orthogonal."""
    singular = [np.linalg.svd(layer.weight, compute_uv=False) for layer in network.layers]
    return [(values.min(), values.max()) for values in singular]


def windows(seed, filled):
    """Flat windows `[2, W * F]` whose last `filled` rows are there; garbage in the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, *WINDOW))
    x[..., -1] = np.arange(WINDOW[0]) >= WINDOW[0] - filled
    return jnp.asarray(x.reshape(2, -1), jnp.result_type(float))


def test_orthogonal_initialisation():
    actor = Actor(jax.random.key(0), 3, 2, None, (8, 5), "tanh")
    critic = MLP(jax.random.key(0), 3, 1, (8, 5), "tanh", 1.0)
    root = np.sqrt(2)
    np.testing.assert_allclose(gains(actor.network), [[root, root], [root, root], [0.01, 0.01]], rtol=1e-5)
    np.testing.assert_allclose(gains(critic), [[root, root], [root, root], [1, 1]], rtol=1e-5)
    assert all((layer.bias == 0).all() for layer in critic.layers)
    assert not np.allclose(actor.network.layers[0].weight[:, 0], actor.network.layers[0].weight[:, 1])


def test_seeds_side_by_side_draw_what_each_draws_alone_one_factorisation_at_a_time():
    """XLA's batched QR on a CPU of two threads may wait for ever."""
    keys = jax.random.split(jax.random.key(0), 6).reshape(3, 2)

    def make(key):
        return MLP(key, 3, 2, (5,), "tanh", 0.1)

    together = jax.vmap(jax.vmap(make))
    for path, weights in jax.tree.leaves_with_path(together(keys)):
        alone = dict(jax.tree.leaves_with_path(make(keys[2, 1])))[path]
        np.testing.assert_array_equal(weights[2, 1], alone)
    text = jax.jit(together).lower(keys).as_text()
    assert set(re.findall(r'geqrf.*num_batch_dims = "(\d)"', text)) == {"0"}


def test_a_network_is_layers_and_nonlinearities():
    network = MLP(jax.random.key(1), 3, 2, (4,), "relu", 1.0)
    x = np.float32([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    first, last = network.layers
    by_hand = np.maximum(x @ np.asarray(first.weight).T + first.bias, 0) @ np.asarray(last.weight).T + last.bias
    np.testing.assert_allclose(network(x), by_hand, rtol=1e-5, atol=1e-6)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(network))
    assert [leaf.shape for leaf in jax.tree.leaves(network)] == [(4, 3), (4,), (2, 4), (2,)]


def test_a_residual_layer_adds_to_what_it_is_given():
    network = make_network("residual", jax.random.key(1), (3,), 2, (4, 4), "relu", 1.0)
    x = np.float32([0.5, -1.0, 2.0])
    weights = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]
    h = np.maximum(weights[0][0] @ x + weights[0][1], 0)
    h = h + np.maximum(weights[1][0] @ h + weights[1][1], 0)
    np.testing.assert_allclose(network(x), weights[2][0] @ h + weights[2][1], rtol=1e-5)


@functools.cache
def made(kind, causal=True):
    """A network over a window, whose output has no gain."""
    if not causal:
        return Transformer(jax.random.key(2), WINDOW, 2, (8, 8), "relu", 0.0, causal=False)
    return make_network(kind, jax.random.key(2), WINDOW, 2, (8, 8), "relu", 0.0)


@functools.cache
def moved(kind, causal=True):
    """The same with every leaf moved, so that biases are not zero."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: x + np.asarray(0.3 * rng.normal(size=x.shape), x.dtype), made(kind, causal))


apply = jax.jit(lambda network, x: network(x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_layer(layer):
    weight, bias = np.asarray(layer.weight, float), np.asarray(layer.bias, float)
    return lambda v: v @ weight.T + bias


def test_a_gru_is_the_papers_recursion_over_the_filled_rows():
    network, x = moved("gru"), windows(0, 3)
    wr, wz, wn = map(numpy_layer, network.from_input)
    ur, uz, un = map(numpy_layer, network.from_state)
    h = np.zeros((2, 8))
    for row in np.moveaxis(np.asarray(x, float).reshape(2, *WINDOW)[:, -3:, :-1], 1, 0):
        r, z = sigmoid(wr(row) + ur(h)), sigmoid(wz(row) + uz(h))
        h = (1 - z) * np.tanh(wn(row) + r * un(h)) + z * h
    dense, out = map(numpy_layer, network.dense.layers)
    np.testing.assert_allclose(apply(network, x), out(np.maximum(dense(h), 0)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_a_transformer_is_attention_over_the_filled_rows(causal):
    network, x, filled = moved("transformer", causal), windows(1, 3), 3

    def norm(layer, v):
        v = v - v.mean(-1, keepdims=True)
        v = v / np.sqrt((v**2).mean(-1, keepdims=True) + 1e-6)
        return v * np.asarray(layer.gain, float) + np.asarray(layer.shift, float)

    def attend(layers, v):
        q, k, u, out = map(numpy_layer, layers)
        heads = []
        for part in range(4):  # of 2 numbers each
            own = slice(2 * part, 2 * part + 2)
            scores = np.exp(q(v)[:, own] @ k(v)[:, own].T / np.sqrt(2))
            scores = np.tril(scores) if causal else scores
            heads.append(scores / scores.sum(-1, keepdims=True) @ u(v)[:, own])
        return out(np.concatenate(heads, -1))

    for one, found in zip(np.asarray(x, float).reshape(2, *WINDOW), apply(network, x), strict=True):
        h = numpy_layer(network.embedding)(one[-filled:, :-1]) + np.asarray(network.position, float)[-filled:]
        for block in network.blocks:
            h = h + attend(block.attention, norm(block.norms[0], h))
            into, out = map(numpy_layer, block.dense)
            h = h + out(np.maximum(into(norm(block.norms[1], h)), 0))
        np.testing.assert_allclose(found, numpy_layer(network.out)(norm(network.norm, h[-1])), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_rows_that_are_not_filled_do_not_matter(kind):
    network, rows = moved(kind), np.array(windows(2, 3)).reshape(2, *WINDOW)
    other = rows.copy()
    other[:, :2, :-1] = np.nan  # garbage of the worst kind
    np.testing.assert_array_equal(apply(network, rows.reshape(2, -1)), apply(network, other.reshape(2, -1)))
    slopes = jax.jit(jax.grad(lambda both: (both[0](both[1]) ** 2).sum()))((network, other.reshape(2, -1)))
    slope = np.asarray(slopes[1]).reshape(2, *WINDOW)
    assert (slope[:, :2] == 0).all()
    assert (np.abs(slope[:, 2:, :-1]).max(axis=-1) > 1e-6).all()  # every filled row does
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(slopes[0]))  # and every leaf


@pytest.mark.parametrize("kind", KINDS)
def test_policies_start_at_their_centre_with_any_batch_axes(kind):
    x = np.stack([windows(seed, 5) for seed in range(3)])  # [3, 2, W F]
    assert (apply(made(kind), x) == 0).all()
    out = apply(moved(kind), x)
    assert out.shape == (3, 2, 2)
    np.testing.assert_allclose(out[2], apply(moved(kind), x[2]), rtol=1e-4, atol=1e-5)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(made(kind)))


def test_mistakes_are_named():
    for activation in ACTIVATIONS:
        check_network((4, 4), activation)
    check_network((), "tanh")
    with pytest.raises(UserError, match="Did you mean 'silu'"):
        check_network((4,), "sliu")
    for widths in ((0,), (4, -1), (True,), (2.5,)):
        with pytest.raises(UserError, match="whole numbers of at least 1"):
            check_network(widths, "tanh")
    for kind, widths, activation, shape, message in (
        ("transfomer", (8,), "tanh", None, "Did you mean 'transformer'"),
        ("gru", (), "tanh", None, r"needs at least one width.*network='mlp'"),
        ("residual", (8, 4), "tanh", None, r"must be equal, got \(8, 4\).*\(8, 8\)"),
        ("transformer", (6, 6), "tanh", None, r"multiples of 4, got 6; use 8"),
        ("gru", (8,), "relu", None, r"activation='relu'.*has none; add one, widths=\(8, 8\)"),
        ("gru", (8, 8), "relu", (3,), r"make\(id, window=8\).*network='mlp'"),
        ("transformer", (8, 8), "relu", (3,), r"make\(id, window=8\).*network='mlp'"),
    ):
        with pytest.raises(UserError, match=message):
            check_network(widths, activation, kind, shape)
    check_network((8, 8), "relu", "gru", WINDOW)


def test_inputs_of_another_length_are_refused():
    network = make_network("mlp", jax.random.key(0), (3,), 2, (4,), "tanh", 1.0)
    with pytest.raises(UserError, match="a network of 3 inputs was given 2"):
        network(jnp.zeros((5, 2)))

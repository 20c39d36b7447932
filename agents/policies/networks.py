"""Networks whose only leaves are arrays: everything else is static, so that a scan can carry them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...errors import UserError, unknown

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
}

HEADS = 4
INITIAL_POSITION = 0.02
HIDDEN = -1e9  # score of what is not attended to; finite, so that a row that sees nothing is a number


class Linear(eqx.Module):
    """`weight @ x + bias`, with an orthogonal weight of the given gain and zero bias (Saxe et al. 2014)."""

    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]

    def __init__(self, key: Array, size_in: int, size_out: int, gain: float):
        dtype = jnp.result_type(float)
        # One after another under vmap: XLA's batched factorisations wait for each other's threads, at times for ever.
        draw = jax.custom_batching.sequential_vmap(
            lambda key: jax.nn.initializers.orthogonal(gain)(key, (size_out, size_in), dtype)
        )
        self.weight = draw(key)
        self.bias = jnp.zeros((size_out,), dtype)

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        if x.shape[-1:] != self.weight.shape[-1:]:
            raise UserError(
                f"a network of {self.weight.shape[-1]} inputs was given {x.shape[-1] if x.ndim else 'a lone number'}: "
                "observations and agent_mask must have the shapes of the environment that it was made for"
            )
        return x @ self.weight.T + self.bias


class MLP(eqx.Module):
    """A multilayer perceptron on the last axis; any leading axes are batch.

    Args:
        key: for the initial weights: orthogonal, gain sqrt 2 inside and `out_gain` at the output.
        size_in: length of the last axis of the input.
        size_out: length of the last axis of the output.
        widths: hidden sizes; none gives a linear map.
        activation: a name in `ACTIVATIONS`.
        out_gain: small for a policy, so that it starts at its centre.
    """

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, key: Array, size_in: int, size_out: int, widths: Sequence[int], activation: str, out_gain: float
    ):
        sizes = (size_in, *widths, size_out)
        gains = [math.sqrt(2.0)] * len(widths) + [out_gain]
        keys = jax.random.split(key, len(gains))
        self.layers = tuple(
            Linear(k, a, b, gain) for k, a, b, gain in zip(keys, sizes[:-1], sizes[1:], gains, strict=True)
        )
        self.activation = activation

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        nonlinearity = ACTIVATIONS[self.activation]
        for layer in self.layers[:-1]:
            x = nonlinearity(layer(x))
        return self.layers[-1](x)


class ResidualMLP(eqx.Module):
    """An MLP whose hidden layers but the first add to what they are given: `h + activation(W h + b)`.

    Layers, arguments and initial weights are those of `MLP`; all widths are one (He et al. 2016, "Deep residual
    learning").
    """

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)

    def __init__(
        self, key: Array, size_in: int, size_out: int, widths: Sequence[int], activation: str, out_gain: float
    ):
        self.layers = MLP(key, size_in, size_out, widths, activation, out_gain).layers
        self.activation = activation

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        nonlinearity = ACTIVATIONS[self.activation]
        first, *hidden, last = self.layers
        h = nonlinearity(first(x))
        for layer in hidden:
            h = h + nonlinearity(layer(h))
        return last(h)


Layers = tuple[Linear, ...]


def gru_layers(keys: Sequence[Array], size_in: int, size: int) -> tuple[Layers, Layers]:
    """A gated recurrent unit's layers of reset, update and candidate: from the input, and from the state.

    Args:
        keys: six, for orthogonal weights: gain sqrt 2 from the input, 1 from the state.
        size_in, size: of the input and of the state.
    """
    from_input = tuple(Linear(k, size_in, size, math.sqrt(2.0)) for k in keys[:3])
    return from_input, tuple(Linear(k, size, size, 1.0) for k in keys[3:])


def gru_step(
    from_input: Layers, from_state: Layers, h: Float[Array, "... H"], x: Float[Array, "... F"]
) -> Float[Array, "... H"]:
    """The state of a gated recurrent unit after one more input (Cho et al. 2014, arXiv:1406.1078)."""
    r_in, z_in, n_in = (layer(x) for layer in from_input)
    r_state, z_state, n_state = (layer(h) for layer in from_state)
    r, z = jax.nn.sigmoid(r_in + r_state), jax.nn.sigmoid(z_in + z_state)
    return (1 - z) * jnp.tanh(n_in + r * n_state) + z * h


class GRU(eqx.Module):
    """A gated recurrent unit over a window of observations, and an MLP on the state that it ends in.

    For each filled row x, oldest first (Cho et al. 2014, arXiv:1406.1078):
    r, z = sigmoid(W x + U h + b), n = tanh(W x + b + r (U h + c)), h <- (1 - z) n + z h. Rows that are not filled leave
    h as it is; it starts at 0.

    Args:
        key: for the initial weights: orthogonal, gain sqrt 2 from the input, 1 from the state.
        window: `(W, F)`; the last of the F features says whether the row is filled.
        size_out: length of the last axis of the output.
        widths: the state's size, then those of dense layers.
        activation: of the dense layers.
        out_gain: of the output layer.
    """

    window: tuple[int, int] = eqx.field(static=True)
    from_input: tuple[Linear, ...]
    from_state: tuple[Linear, ...]
    dense: MLP

    def __init__(
        self,
        key: Array,
        window: tuple[int, int],
        size_out: int,
        widths: Sequence[int],
        activation: str,
        out_gain: float,
    ):
        *keys, key_dense = jax.random.split(key, 7)
        self.window = window
        self.from_input, self.from_state = gru_layers(keys, window[1] - 1, widths[0])
        self.dense = MLP(key_dense, widths[0], size_out, widths[1:], activation, out_gain)

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        rows, filled = _rows(x, self.window)

        def step(h: Float[Array, "... H"], inputs: tuple[Array, Array]):
            row, is_filled = inputs
            return jnp.where(is_filled[..., None], gru_step(self.from_input, self.from_state, h, row), h), None

        start = jnp.zeros((*x.shape[:-1], self.from_state[0].bias.shape[0]), rows.dtype)
        h, _ = jax.lax.scan(step, start, (jnp.moveaxis(rows, -2, 0), jnp.moveaxis(filled, -1, 0)))
        return self.dense(h)


class Norm(eqx.Module):
    """Layer normalisation of the last axis (Ba et al. 2016, arXiv:1607.06450), with a gain and a shift."""

    gain: Float[Array, " size"]
    shift: Float[Array, " size"]

    def __init__(self, size: int):
        self.gain = jnp.ones((size,), jnp.result_type(float))
        self.shift = jnp.zeros((size,), jnp.result_type(float))

    def __call__(self, x: Float[Array, "... size"]) -> Float[Array, "... size"]:
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6) * self.gain + self.shift


class Block(eqx.Module):
    """One layer of a transformer: attention, then a dense layer, each added to what it is given its norm of.

    Args:
        key: for the initial weights: orthogonal, gain 1, and sqrt 2 into the nonlinearity.
        size: of a row.
    """

    norms: tuple[Norm, Norm]
    attention: tuple[Linear, Linear, Linear, Linear]
    dense: tuple[Linear, Linear]

    def __init__(self, key: Array, size: int):
        keys = jax.random.split(key, 6)
        self.norms = (Norm(size), Norm(size))
        query, of, value, out = (Linear(k, size, size, 1.0) for k in keys[:4])
        self.attention = (query, of, value, out)
        self.dense = (Linear(keys[4], size, 2 * size, math.sqrt(2.0)), Linear(keys[5], 2 * size, size, 1.0))

    def __call__(
        self, x: Float[Array, "... W size"], seen: Bool[Array, "... W W"], activation: str
    ) -> Float[Array, "... W size"]:
        """`seen[i, j]`: row i attends to row j."""
        x = x + self._attend(self.norms[0](x), seen)
        into, out = self.dense
        return x + out(ACTIVATIONS[activation](into(self.norms[1](x))))

    def _attend(self, x: Float[Array, "... W size"], seen: Bool[Array, "... W W"]) -> Float[Array, "... W size"]:
        q, k, v = (layer(x).reshape(*x.shape[:-1], HEADS, -1) for layer in self.attention[:3])
        scores = jnp.einsum("...ihd,...jhd->...hij", q, k) / math.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(seen[..., None, :, :], scores, HIDDEN), axis=-1)
        return self.attention[3](jnp.einsum("...hij,...jhd->...ihd", weights, v).reshape(x.shape))


class Transformer(eqx.Module):
    """Attention over a window of observations, read off at the newest row (Vaswani et al. 2017, arXiv:1706.03762).

    Rows are embedded linearly, with a learned position each. Rows that are not filled are attended to by none.

    Args:
        key: for the initial weights.
        window: `(W, F)`; the last of the F features says whether the row is filled.
        size_out: length of the last axis of the output.
        widths: one entry a layer: the size of a row, the same in all, a multiple of `HEADS`.
        activation: of the dense layers, twice as wide.
        out_gain: of the output layer.
        causal: whether a row attends to itself and older ones only.
    """

    window: tuple[int, int] = eqx.field(static=True)
    embedding: Linear
    position: Float[Array, "W size"]
    blocks: tuple[Block, ...]
    norm: Norm
    out: Linear
    activation: str = eqx.field(static=True)
    causal: bool = eqx.field(static=True)

    def __init__(
        self,
        key: Array,
        window: tuple[int, int],
        size_out: int,
        widths: Sequence[int],
        activation: str,
        out_gain: float,
        causal: bool = True,
    ):
        key_in, key_position, key_out, *keys = jax.random.split(key, 3 + len(widths))
        size = widths[0]
        self.window = window
        self.embedding = Linear(key_in, window[1] - 1, size, math.sqrt(2.0))
        self.position = INITIAL_POSITION * jax.random.normal(key_position, (window[0], size), jnp.result_type(float))
        self.blocks = tuple(Block(k, size) for k in keys)
        self.norm = Norm(size)
        self.out = Linear(key_out, size, size_out, out_gain)
        self.activation = activation
        self.causal = causal

    def __call__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        rows, filled = _rows(x, self.window)
        length = self.window[0]
        seen = jnp.broadcast_to(filled[..., None, :], (*filled.shape, length))  # [row, attended row]
        if self.causal:
            seen = seen & jnp.tril(jnp.ones((length, length), bool))
        h = self.embedding(rows) + self.position
        for block in self.blocks:
            h = block(h, seen, self.activation)
        return self.out(self.norm(h[..., -1, :]))


Network = MLP | ResidualMLP | GRU | Transformer

FLAT = {"mlp": MLP, "residual": ResidualMLP}
RECURRENT = {"gru": GRU, "transformer": Transformer}
KINDS = (*FLAT, *RECURRENT)


def make_network(
    kind: str,
    key: Array,
    shape_in: Sequence[int],
    size_out: int,
    widths: Sequence[int],
    activation: str,
    out_gain: float,
) -> Network:
    """A network on flat inputs: the last axis is an observation of shape `shape_in`, flattened; others are batch.

    Args:
        kind: "mlp"; "residual", an MLP whose hidden layers add to what they are given; "gru" or "transformer", over a
            window `(W, F)` of observations, the newest last, whose last feature is 1 where the row is filled. Rows that
            are not filled do not matter.
        key: for the initial weights.
        shape_in: of one observation.
        size_out: length of the output.
        widths: hidden sizes; of "gru" the state's and then those of dense layers; of "transformer" one a layer.
        activation: a name in `ACTIVATIONS`.
        out_gain: of the output layer; small for a policy, so that it starts at its centre.

    Raises:
        UserError: as `check_network`.
    """
    check_network(widths, activation, kind, shape_in)
    if kind in FLAT:
        return FLAT[kind](key, math.prod(shape_in), size_out, widths, activation, out_gain)
    length, features = shape_in
    return RECURRENT[kind](key, (length, features), size_out, widths, activation, out_gain)


def check_network(
    widths: Sequence[int], activation: str, kind: str = "mlp", observation_shape: Sequence[int] | None = None
) -> None:
    """Raise `UserError` for a network that cannot be built, or that would not read an option.

    Args:
        widths, activation, kind: as in `make_network`.
        observation_shape: of one observation, two axes for a window; None where it is not known yet.
    """
    if kind not in KINDS:
        raise unknown("network", str(kind), KINDS)
    if activation not in ACTIVATIONS:
        raise unknown("activation", str(activation), ACTIVATIONS)
    widths = tuple(widths)
    if any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in widths):
        raise UserError(f"hidden widths must be whole numbers of at least 1, got {widths}")
    if not widths and kind == "mlp" and activation != "tanh":
        raise UserError(
            f"activation={activation!r} is that of hidden layers, and widths=() has none; leave activation out"
        )
    if kind == "mlp":
        return
    if not widths:
        raise UserError(f"network={kind!r} needs at least one width, got (); network='mlp' goes without")
    if kind in ("residual", "transformer") and len(set(widths)) > 1:
        raise UserError(
            f"network={kind!r} adds layers to each other, so widths must be equal, got {widths}; set {widths[:1]} "
            f"as often as there are to be layers, such as {widths[:1] * len(widths)}"
        )
    if kind == "transformer" and widths[0] % HEADS:
        raise UserError(
            f"network='transformer' has {HEADS} heads, so widths must be multiples of {HEADS}, got {widths[0]}; "
            f"use {-(-widths[0] // HEADS) * HEADS}"
        )
    if kind == "gru" and len(widths) == 1 and activation != "tanh":
        raise UserError(
            f"activation={activation!r} is that of dense layers, and network='gru' with widths={widths} has none; add "
            f"one, widths={widths * 2}, or leave activation out"
        )
    if kind in RECURRENT and observation_shape is not None and len(observation_shape) != 2:
        raise UserError(
            f"network={kind!r} reads a window of observations, and this environment shows the last one alone; make it "
            "with make(id, window=8) (env.window=8), or use network='mlp'"
        )


def _rows(x: Float[Array, "... in"], window: tuple[int, int]) -> tuple[Float[Array, "... W F"], Bool[Array, "... W"]]:
    """The rows of a flat window without their flag, zero where they are not filled; and which are."""
    rows = x.reshape(*x.shape[:-1], *window)
    filled = rows[..., -1] > 0.5
    return jnp.where(filled[..., None], rows[..., :-1], 0), filled

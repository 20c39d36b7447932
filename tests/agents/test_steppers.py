"""Steppers against optax's own optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equimorph.agents.steppers import Gradient, Terms, make_stepper, scheduled
from equimorph.errors import UserError

START = {"a": np.float32([1.0, -2.0, 0.5]), "b": np.float32([[3.0], [0.1]])}
RATE = 0.03


def loss(weights):
    return (weights["a"] ** 4).sum() + (weights["b"][0, 0] - weights["a"][1]) ** 2 + jnp.sin(weights["b"]).sum()


def objective(weights):
    return Terms({"loss/x": loss(weights) - 1, "loss/y": jnp.float32(1.0)}, None, {"seen": weights["a"][0]})


def trajectory(stepper, steps=5):
    """Weights after each step; and the last step's terms."""

    def step(carry, _):
        weights, state = carry
        weights, state, terms = stepper.step(objective, weights, state, jnp.float32(RATE))
        return (weights, state), (weights, terms)

    start = jax.tree.map(jnp.asarray, START)
    return jax.jit(lambda: jax.lax.scan(step, (start, stepper.init(start)), None, steps)[1])()


def optax_trajectory(tx, steps=5):
    def step(carry, _):
        weights, state = carry
        updates, state = tx.update(jax.grad(loss)(weights), state, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, state), weights

    start = jax.tree.map(jnp.asarray, START)
    return jax.jit(lambda: jax.lax.scan(step, (start, tx.init(start)), None, steps)[1])()


@pytest.mark.parametrize(
    ("stepper", "tx"),
    [
        ("adam", optax.adam(RATE)),
        ("adamw", optax.adamw(RATE)),
        ("sgd", optax.sgd(RATE)),
        ("momentum", optax.sgd(RATE, momentum=0.9)),
        ("rmsprop", optax.rmsprop(RATE)),
        ("lion", optax.lion(RATE, weight_decay=0.0)),
        ({"optimizer": "adam", "weight_decay": 0.1}, optax.adamw(RATE, weight_decay=0.1)),
        ({"optimizer": "adam", "max_norm": 2.0}, optax.chain(optax.clip_by_global_norm(2.0), optax.adam(RATE))),
        (Gradient(optax.scale_by_adam(b1=0.5)), optax.adam(RATE, b1=0.5)),
    ],
    ids=["adam", "adamw", "sgd", "momentum", "rmsprop", "lion", "decay", "limit", "own"],
)
def test_the_steps_are_optaxs(stepper, tx):
    found, expected = trajectory(make_stepper(stepper))[0], optax_trajectory(tx)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6), found, expected)


def test_weight_decay_is_decoupled():
    # Where the gradient is zero, Adam would turn an L2 penalty into a full step; decoupled, it is rate times decay.
    stepper = Gradient("adam", weight_decay=0.5)
    weights = jnp.float32([4.0])
    zero = lambda w: Terms({"x": 0 * w.sum()}, None, {})  # noqa: E731
    after, *_ = stepper.step(zero, weights, stepper.init(weights), jnp.float32(0.1))
    assert float(after[0]) == pytest.approx(4 * (1 - 0.1 * 0.5))


def test_terms_are_from_before_the_step():
    _, terms = trajectory(make_stepper("sgd"), steps=2)
    assert terms.losses["loss/x"][0] == pytest.approx(float(loss(START)) - 1, rel=1e-5)
    assert terms.aux["seen"][0] == 1
    assert terms.aux["loss/grad_norm"][0] == pytest.approx(float(optax.tree.norm(jax.grad(loss)(START))), rel=1e-5)


def test_equal_steppers_share_a_compilation():
    assert Gradient("adam", max_norm=0.5) == make_stepper({"optimizer": "adam"}, max_norm=0.5)
    assert hash(Gradient("adam")) == hash(Gradient("adam"))
    assert Gradient("adam") != Gradient("adam", max_norm=0.5)
    assert make_stepper("adam", max_norm=0.5).max_norm == 0.5
    assert make_stepper({"max_norm": None}, max_norm=0.5).max_norm is None


def test_what_already_descends_is_refused():
    for tx in (optax.adam(1e-3), optax.sgd(0.1), optax.chain(optax.clip(1.0), optax.adam(1e-3))):
        with pytest.raises(UserError, match=r"scale_by_adam\(\) instead of optax.adam"):
            Gradient(tx)
    with pytest.raises(UserError, match="function"):
        Gradient(optax.adam)
    with pytest.raises(UserError, match="Did you mean 'adam'"):
        Gradient("adm")
    for limit in (0.0, -1.0):
        with pytest.raises(UserError, match="max_norm"):
            Gradient("adam", max_norm=limit)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_schedules(name):
    at = [0, 5, 10, 11, 1000]
    rates = [float(scheduled(name, jnp.float32(2.0), jnp.float32(0.1), jnp.int32(n), jnp.int32(10))) for n in at]
    expected = {"constant": [2] * 5, "linear": [2, 1.1, 0.2, 0.2, 0.2], "cosine": [2, 1.1, 0.2, 0.2, 0.2]}[name]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)

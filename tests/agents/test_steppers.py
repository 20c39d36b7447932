"""Steppers against optax's own optimizers, and what all families share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equimorph.agents import MAPPO, REINFORCE
from equimorph.agents.steppers import STEPPERS, Gradient, Terms, check_rate, make_stepper, scheduled
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
        ("nadam", optax.nadam(RATE)),
        ("radam", optax.radam(RATE)),
        ("adabelief", optax.adabelief(RATE)),
        ("muon", optax.contrib.muon(RATE, consistent_rms=0.2)),
        ({"optimizer": "adam", "weight_decay": 0.1}, optax.adamw(RATE, weight_decay=0.1)),
        ({"optimizer": "adam", "max_norm": 2.0}, optax.chain(optax.clip_by_global_norm(2.0), optax.adam(RATE))),
        (Gradient(optax.scale_by_adam(b1=0.5)), optax.adam(RATE, b1=0.5)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_steps_are_optaxs(stepper, tx):
    found, expected = trajectory(make_stepper(stepper))[0], optax_trajectory(tx)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=3e-6), found, expected)


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


# -- line searches ---------------------------------------------------------------------------------------------------

MATRIX = np.random.default_rng(0).normal(size=(12, 12))
HESSIAN = MATRIX @ MATRIX.T / 12 + np.eye(12)
LOWEST = np.random.default_rng(1).normal(size=12)


def quadratic(x, lowest=LOWEST):
    gap = x - jnp.asarray(lowest, x.dtype)
    return Terms({"quadratic": gap @ jnp.asarray(HESSIAN, x.dtype) @ gap / 2}, None, {})


def test_lbfgs_is_optaxs_and_finds_the_lowest_point():
    with jax.enable_x64(True):
        tx, start = optax.lbfgs(), jnp.zeros(12)

        def mine(carry, _):
            params, state, _ = make_stepper("lbfgs").step(quadratic, *carry, jnp.asarray(jnp.nan))
            return (params, state), params

        def theirs(carry, _):
            params, state = carry
            loss = lambda x: quadratic(x).losses["quadratic"]  # noqa: E731
            value, grad = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=loss)
            return (params + updates, state), params + updates

        state = make_stepper("lbfgs").init(start)
        found, expected = jax.jit(
            lambda: (
                jax.lax.scan(mine, (start, state), None, 25)[1],
                jax.lax.scan(theirs, (start, tx.init(start)), None, 25)[1],
            )
        )()
        np.testing.assert_allclose(found, expected, atol=1e-7)
        np.testing.assert_allclose(found[-1], LOWEST, atol=1e-6)


def test_curvature_is_measured_on_one_minibatch():
    # Two minibatches with one Hessian and far apart lowest points: the difference of their gradients is no curvature.
    stepper, x = make_stepper("lbfgs"), jnp.zeros(12)
    step = jax.jit(lambda lowest, *carry: stepper.step(lambda p: quadratic(p, lowest), *carry, jnp.float32(1))[:2])
    state = stepper.init(x)
    for sign in (1, -1, 1, -1):
        before = x
        x, state = step(sign * np.float32(LOWEST), x, state)
    assert float(jnp.abs(x - before).max()) > 0.01
    memory = state.inner.memory
    for moved, change in zip(memory.diff_params_memory[:3], memory.diff_updates_memory[:3], strict=True):
        assert float(jnp.abs(moved).max()) > 0.01
        np.testing.assert_allclose(change, HESSIAN @ moved, atol=1e-4)


def test_a_failed_search_moves_nothing():
    start = jnp.float32([1.0, 2.0])
    cliff = lambda x: Terms({"x": jnp.where((x == start).all(), x.sum(), jnp.nan)}, None, {})  # noqa: E731
    stepper = make_stepper("lbfgs")
    after, state, terms = jax.jit(lambda: stepper.step(cliff, start, stepper.init(start), jnp.float32(1)))()
    np.testing.assert_array_equal(after, start)
    assert float(terms.losses["x"]) == 3
    assert int(state.inner.memory.count) == 0
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.inner.memory))


def test_an_own_line_search_is_known_for_one():
    search = Gradient(optax.lbfgs())
    assert not search.uses_rate
    assert Gradient(optax.scale_by_polyak()).uses_rate
    with pytest.raises(UserError, match="goes uphill"):
        Gradient(optax.scale_by_zoom_linesearch(5))


# -- all families ----------------------------------------------------------------------------------------------------

FAMILIES = ["adam", "lbfgs", "pcgrad", "mao", "gn", "ign", "lm"]


def bent(x):
    residuals = {"a": x["a"] ** 2 - 1 + x["b"].sum(), "b": 2 * x["b"].ravel() - x["a"][:2]}
    return Terms({f"loss/{name}": jnp.mean(r**2) for name, r in residuals.items()}, residuals, {})


@pytest.mark.parametrize("name", FAMILIES)
def test_one_program_for_every_rate_and_a_vector_of_seeds(name):
    stepper, traced = make_stepper(name), []

    @jax.jit
    def path(start, rate):
        traced.append(1)

        def step(carry, _):
            params, state, terms = stepper.step(bent, *carry, rate)
            return (params, state), terms

        one = lambda start: jax.lax.scan(step, (start, stepper.init(start, num_terms=2)), None, 3)  # noqa: E731
        return jax.vmap(one)(start)

    start = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x), jnp.asarray(x) / 3]), START)
    ((at_once, _), terms) = path(start, jnp.float32(0.1))
    ((other, _), _) = path(start, jnp.float32(0.02))
    ((swapped, _), _) = path(jax.tree.map(lambda x: x[::-1], start), jnp.float32(0.1))
    assert len(traced) == 1
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[::-1], y, rtol=1e-4, atol=1e-5), at_once, swapped)
    assert (float(jnp.abs(at_once["a"] - other["a"]).max()) > 1e-3) == stepper.uses_rate
    total = sum(terms.losses.values())
    assert (total[:, -1] < total[:, 0]).all()
    assert stepper.needs_residuals == (name in ("gn", "ign", "lm"))
    assert stepper.name == name


def test_every_name_makes_a_stepper_of_that_name():
    for name, options in STEPPERS.items():
        assert make_stepper(name, max_norm=0.5).name == name
        settings = {"optimizer": "sgd", "max_norm": 0.1, "weight_decay": 0.2}
        settings |= {"damping": 0.3, "iterations": 7, "tolerance": 0.4}
        made = make_stepper({"stepper": name, **{option: settings[option] for option in options}})
        for option in set(options) - {"optimizer"}:
            at = getattr(made, "inner", made)
            assert float(getattr(at, option)) == pytest.approx(settings[option])
    assert make_stepper("pcgrad", max_norm=0.5).inner.max_norm == 0.5
    assert make_stepper({"stepper": "pcgrad", "optimizer": "lion"}).inner == Gradient("lion")
    assert make_stepper({"optimizer": "lbfgs"}) == make_stepper("lbfgs") == Gradient("lbfgs")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("pcgrd", "unknown stepper 'pcgrd'. Did you mean 'pcgrad'"),
        ({"stepper": "lm", "dampin": 1.0}, "Did you mean 'damping'"),
        ({"stepper": "lm", "max_norm": 1.0}, "max_norm does not apply with stepper 'lm', which has damping"),
        ({"stepper": "adam", "optimizer": "sgd"}, "optimizer does not apply with stepper 'adam'"),
        ({"stepper": "lbfgs", "weight_decay": 1.0}, "weight_decay does not apply with stepper 'lbfgs'.*has no options"),
        ({"optimizer": "lm"}, "'lm' is no optimizer but a stepper of its own; write stepper='lm'"),
        ({"optimizer": "adamm"}, "unknown optimizer 'adamm'. Did you mean 'adam'"),
        (3, "name, a mapping or a Stepper, got 3"),
        ({"stepper": "lm", "damping": [1.0, 2.0]}, r"damping = \[1.0, 2.0\] must be a finite number"),
        ({"stepper": "ign", "tolerance": "low"}, "tolerance = 'low' must be a finite number"),
        ({"stepper": "ign", "iterations": 10**12}, "iterations = 1000000000000 must be at most"),
    ],
)
def test_a_stepper_that_cannot_be_made_is_refused(value, message):
    with pytest.raises(UserError, match=message):
        make_stepper(value)


def test_options_that_a_stepper_would_not_read_are_refused():
    with pytest.raises(UserError, match=r"max_norm = 1\.0 does not apply with stepper 'lbfgs'"):
        Gradient("lbfgs", max_norm=1.0)
    for name in ("lm", "lbfgs"):
        check_rate(make_stepper(name), None, None, None)
        for given in ((0.1, None, None), (None, "cosine", None), (None, None, 0.1), (None, None, None, 5)):
            with pytest.raises(UserError, match=f"does not apply with stepper '{name}', which measures its own"):
                check_rate(make_stepper(name), *given)
    for name in ("adam", "pcgrad", "mao", "gn", "ign"):
        check_rate(make_stepper(name), 0.1, "cosine", 0.1)


@pytest.mark.parametrize("agent", [MAPPO, REINFORCE])
def test_a_policy_gradient_refuses_what_it_cannot_use(agent):
    for name in ("gn", "ign", "lm"):
        with pytest.raises(UserError, match=f"stepper '{name}' needs residuals, which a policy gradient does not have"):
            agent(stepper=name)
    for stepper in ("lbfgs", Gradient(optax.lbfgs())):
        with pytest.raises(UserError, match="only near the policy that sampled it"):
            agent(stepper=stepper)
    for name in ("pcgrad", "mao"):
        assert agent(stepper=name).stepper.name == name

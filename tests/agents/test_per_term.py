"""PCGrad and multi-adaptive optimisation against their algorithms in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.agents.steppers import PerTerm, Terms
from equimorph.agents.steppers.per_term import SEED, random_orders
from equimorph.errors import UserError

TARGETS = np.random.default_rng(0).normal(size=(4, 6)) * np.array([[1.0], [30.0], [0.1], [3.0]])
START = {"a": np.linspace(-1, 1, 4), "b": np.array([[0.3, -0.2]])}
RATE = 0.05


def losses(params):
    """Four that disagree, of different sizes; in numpy or JAX."""
    flat = jnp.concatenate([params["a"], params["b"][0]])
    gaps = flat - jnp.asarray(TARGETS)
    return [gaps[0] @ gaps[0] / 2, jnp.cosh(gaps[1] / 20).sum(), (gaps[2] ** 4).sum(), gaps[3] @ gaps[3] / 2]


CALLS = []


def objective(params):
    CALLS.append(1)
    return Terms({f"loss/{9 - i}": value for i, value in enumerate(losses(params))}, None, {})


def path(stepper, steps):
    """Parameters after each step, and metrics; the objective is evaluated once, for all its losses."""

    def step(carry, _):
        *carry, terms = stepper.step(objective, *carry, jnp.asarray(RATE))
        return carry, (carry[0], terms.aux)

    start = jax.tree.map(jnp.asarray, START)
    CALLS.clear()
    after, aux = jax.jit(lambda: jax.lax.scan(step, [start, stepper.init(start, num_terms=4)], None, steps)[1])()
    assert len(CALLS) == 1
    return np.concatenate([after["a"], after["b"][:, 0]], axis=1), aux


@jax.jit
def jacobian(flat):
    return jax.jacrev(lambda x: jnp.stack(losses({"a": x[:4], "b": x[None, 4:]})))(flat)


def gradients(flat):
    return np.array(jacobian(flat))


def start_by_hand():
    return np.concatenate([START["a"], START["b"][0]])


def test_pcgrad_is_the_algorithm():
    with jax.enable_x64(True):
        found, aux = path(PerTerm("pcgrad", "sgd"), 6)
        x, key, conflicts = start_by_hand(), jax.random.key(SEED), []
        for step in range(6):
            key, key_orders = jax.random.split(key)
            orders = np.asarray(random_orders(key_orders, 4))
            original = gradients(x)
            changed = original.copy()
            for i in range(4):
                for j in orders[i]:
                    if j != i and changed[i] @ original[j] < 0:
                        changed[i] -= (changed[i] @ original[j]) / (original[j] @ original[j]) * original[j]
            x = x - RATE * changed.mean(axis=0)
            conflicts.append((original @ original.T < 0).sum() / 12)
            np.testing.assert_allclose(found[step], x, rtol=1e-10)
        np.testing.assert_allclose(aux["policy/conflicts"], conflicts)
        assert min(conflicts) > 0


def test_two_conflicting_gradients_by_hand():
    # (1, 0) and (-1, 1): each loses its part along the other, which leaves (1/2, 1/2) and (0, 1)
    two = lambda x: Terms({"p": x[0], "q": x[1] - x[0]}, None, {})  # noqa: E731
    for limit, expected in ((None, [-0.25, -0.75]), (0.1, [-0.1 / 10**0.5, -0.3 / 10**0.5])):
        stepper = PerTerm("pcgrad", "sgd", max_norm=limit)
        step = jax.jit(lambda x, stepper=stepper: stepper.step(two, x, stepper.init(x), jnp.float32(1)))
        after, _, terms = step(jnp.zeros(2))
        np.testing.assert_allclose(after, expected, rtol=1e-6)
        assert float(terms.aux["loss/grad_norm"]) == pytest.approx(10**0.5 / 4)


def test_orders_are_random_and_each_loss_has_its_own():
    orders = np.asarray(jax.vmap(lambda k: random_orders(k, 3))(jax.random.split(jax.random.key(5), 300)))
    np.testing.assert_array_equal(np.sort(orders, axis=-1), np.broadcast_to(np.arange(3), orders.shape))
    for row in range(3):
        met, counts = np.unique(orders[:, row], axis=0, return_counts=True)
        assert len(met) == 6
        assert counts.min() > 20
    assert (orders[:, 0] != orders[:, 1]).any()


def test_mao_is_the_mean_of_the_losses_own_adam_steps():
    with jax.enable_x64(True):
        found, _ = path(PerTerm("mao", weight_decay=0.1), 6)
        x, first, second = start_by_hand(), np.zeros((4, 6)), np.zeros((4, 6))
        for step in range(6):
            gradient = gradients(x)
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            unbiased = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
            each = unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
            x = x - RATE * (each.mean(axis=0) + 0.1 * x)
            np.testing.assert_allclose(found[step], x, rtol=1e-9)


def test_mao_limits_each_losss_gradient():
    # At a limit far below Adam's epsilon the step is proportional to the limited gradients, not to their sizes.
    two = lambda x: Terms({"p": 5 * x[0], "q": 1000 * x[1]}, None, {})  # noqa: E731
    stepper = PerTerm("mao", max_norm=1e-12)
    step = jax.jit(lambda x: stepper.step(two, x, stepper.init(x, num_terms=2), jnp.float32(1)))
    after, *_ = step(jnp.zeros(2))
    np.testing.assert_allclose(after, [-0.5e-4, -0.5e-4], rtol=1e-3)


def test_what_does_not_apply_is_refused():
    for arguments, message in (
        ({"method": "pcgra"}, "Did you mean 'pcgrad'"),
        ({"method": "mao", "optimizer": "sgd"}, "optimizer = 'sgd' does not apply with 'mao'"),
        ({"method": "pcgrad", "optimizer": "lbfgs"}, "'lbfgs' does not apply with stepper 'pcgrad'"),
        ({"method": "pcgrad", "optimizer": "adm"}, "Did you mean 'adam'"),
        ({"method": "mao", "max_norm": 0.0}, "max_norm = 0.0"),
    ):
        with pytest.raises(UserError, match=message):
            PerTerm(**arguments)
    with pytest.raises(UserError, match="'mao' has moments for each loss"):
        PerTerm("mao").init(jnp.zeros(2))
    two = lambda x: Terms({"p": x[0], "q": x[1]}, None, {})  # noqa: E731
    x, stepper = jnp.zeros(2), PerTerm("mao")
    with pytest.raises(ValueError, match="state is of 3 losses, the objective has 2"):
        stepper.step(two, x, stepper.init(x, num_terms=3), jnp.float32(1))

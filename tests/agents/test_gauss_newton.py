"""The Gauss-Newton family on least squares whose answers numpy gives, and against its textbook algorithm in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.agents.steppers import GaussNewton, Separable, Terms, make_stepper
from equimorph.errors import UserError


def terms_of(residuals):
    return Terms({f"loss/{name}": jnp.mean(r**2) for name, r in residuals.items()}, residuals, {})


def run(stepper, objective, start, steps, rate=1.0):
    """Parameters and the metrics of each step."""

    def step(carry, _):
        *carry, terms = stepper.step(objective, *carry, jnp.asarray(rate))
        return carry, (carry[0], terms.losses, terms.aux)

    start = jax.tree.map(jnp.asarray, start)
    return jax.jit(lambda: jax.lax.scan(step, [start, stepper.init(start)], None, steps)[1])()


def least_squares(rows, columns, seed=0):
    """Two named residuals of different length, linear in a nested pytree; and the matrix and right side of r'r."""
    rng = np.random.default_rng(seed)
    matrix, right = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    cut = rows // 3

    def objective(params):
        flat = jnp.concatenate([params["u"], params["v"][0].ravel()])
        r = jnp.asarray(matrix) @ flat - jnp.asarray(right)
        return terms_of({"first": r[:cut], "second": r[cut:].reshape(-1, 2)})

    scale = np.r_[np.full(cut, cut), np.full(rows - cut, rows - cut)] ** -0.5
    start = rng.normal(size=columns)
    return objective, {"u": start[:3], "v": (start[3:].reshape(-1, 1),)}, scale[:, None] * matrix, scale * right, start


@pytest.mark.parametrize(("rows", "columns"), [(30, 8), (12, 40)], ids=["primal", "dual"])
def test_one_step_solves_linear_least_squares(rows, columns):
    with jax.enable_x64(True):
        objective, start, matrix, right, flat = least_squares(rows, columns)
        step = np.linalg.lstsq(matrix, right - matrix @ flat, rcond=None)[0]
        for stepper in (GaussNewton("gn", damping=1e-14), GaussNewton("ign", damping=1e-12, tolerance=1e-14)):
            after, losses, aux = run(stepper, objective, start, 1)
            found = np.r_[after["u"][0], after["v"][0][0].ravel()]
            np.testing.assert_allclose(found, flat + step, atol=1e-12 if stepper.name == "gn" else 1e-10)
            loss = lambda p: sum(objective(p).losses.values())  # noqa: E731
            slope = jax.tree.leaves(jax.grad(loss)(jax.tree.map(jnp.asarray, start)))
            assert float(aux["loss/grad_norm"][0]) == pytest.approx(np.sqrt(sum(float((g**2).sum()) for g in slope)))
            assert sum(float(x[0]) for x in losses.values()) == pytest.approx(((matrix @ flat - right) ** 2).sum())
        half = run(GaussNewton("gn", damping=1e-14), objective, start, 1, rate=0.5)[0]
        np.testing.assert_allclose(half["u"][0], flat[:3] + step[:3] / 2, atol=1e-12)


def network(params, x):
    return jnp.tanh(x[:, None] * params["w"] + params["b"]) @ params["out"]


def test_conjugate_gradients_agree_with_the_dense_solution():
    with jax.enable_x64(True):
        width, rng = 20, np.random.default_rng(1)
        start = {name: rng.normal(size=width) for name in ("w", "b", "out")}
        x = jnp.linspace(-1, 1, 24)
        objective = lambda p: terms_of({"fit": network(p, x) - jnp.sin(3 * x)})  # noqa: E731
        exact = run(GaussNewton("gn", damping=1e-3), objective, start, 3)[0]
        inexact = run(GaussNewton("ign", damping=1e-3, tolerance=1e-12, iterations=400), objective, start, 3)[0]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), exact, inexact)
        loose = run(GaussNewton("ign", damping=1e-3, iterations=2), objective, start, 3)[0]
        assert float(jnp.abs(loose["out"] - exact["out"]).max()) > 1e-3


def test_conjugate_gradients_in_float32_go_on_where_curvature_is_small():
    rng = np.random.default_rng(2)
    matrix, right = 0.01 * rng.normal(size=(6, 3000)), rng.normal(size=6)
    objective = lambda p: terms_of({"r": jnp.float32(matrix) @ p - jnp.float32(right)})  # noqa: E731
    found, _, aux = run(GaussNewton("ign", damping=1e-5), objective, np.zeros(3000, np.float32), 1)
    scaled, at = matrix / np.sqrt(6), right / np.sqrt(6)
    expected = scaled.T @ np.linalg.solve(scaled @ scaled.T + 1e-5 * np.eye(6), at)
    assert float(aux["policy/step_accepted"][0]) == 1
    np.testing.assert_allclose(found[0], expected, atol=1e-3 * np.abs(expected).max())


def rosenbrock(x):
    """Two of them side by side, in (x0, x2) and (x1, x3)."""
    return {"valley": 10 * (x[2:] - x[:2] ** 2), "one": 1 - x[:2]}


def rosenbrock_by_hand(x):
    """Scaled residuals and their Jacobian."""
    r = np.r_[10 * (x[2:] - x[:2] ** 2), 1 - x[:2]]
    eye, zero = np.eye(2), np.zeros((2, 2))
    jacobian = np.block([[-20 * x[:2] * eye, 10 * eye], [-eye, zero]])
    return r / np.sqrt(2), jacobian / np.sqrt(2)


def levenberg_marquardt(x, lam, steps, keep):
    """The algorithm, one step after another; `keep` are the rows of the residuals that count."""
    path = []
    for _ in range(steps):
        r, jacobian = (a[keep] for a in rosenbrock_by_hand(x))
        step = -np.linalg.solve(jacobian.T @ jacobian + lam * np.eye(len(x)), jacobian.T @ r)
        after = rosenbrock_by_hand(x + step)[0][keep]
        gain = (r @ r - after @ after) / (r @ r - ((r + jacobian @ step) ** 2).sum())
        accepted = after @ after < r @ r
        if gain > 0.75:
            lam /= 10
        elif gain < 0.25 or not accepted:
            lam *= 10
        lam = min(max(lam, 1e-8), 1e8)
        x = x + step if accepted else x
        path.append((x, lam, accepted))
    return [np.array(column) for column in zip(*path, strict=True)]


@pytest.mark.parametrize(("names", "steps"), [(("valley", "one"), 24), (("valley",), 3)], ids=["primal", "dual"])
def test_levenberg_marquardt_is_the_algorithm(names, steps):
    start = np.array([-1.2, -0.5, 1.0, 0.3])
    with jax.enable_x64(True):
        objective = lambda x: terms_of({name: r for name, r in rosenbrock(x).items() if name in names})  # noqa: E731
        found, losses, aux = run(GaussNewton("lm", damping=1e-6), objective, start, 60)
        path, damping, accepted = levenberg_marquardt(start, 1e-6, steps, slice(0, 2 * len(names)))
        np.testing.assert_allclose(found[:steps], path, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(aux["policy/damping"][1 : steps + 1], damping, rtol=1e-9)
        np.testing.assert_array_equal(aux["policy/step_accepted"][:steps], accepted)
        total = sum(losses.values())
        assert (np.diff(total) <= 0).all()
        assert float(total[-1]) < 1e-20
        if len(names) == 2:
            assert 0 < accepted.sum() < steps
            assert damping[:6].max() == pytest.approx(1)
            assert damping[6:].max() == pytest.approx(10)
            np.testing.assert_allclose(found[-1], 1, atol=1e-10)


def test_levenberg_marquardt_converges_in_float32():
    found, *_ = run(GaussNewton("lm"), lambda x: terms_of(rosenbrock(x)), np.float32([-1.2, -0.5, 1.0, 0.3]), 60)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[-1], 1, atol=1e-3)


def test_a_step_out_of_the_domain_is_rejected():
    # From e^2, the Gauss-Newton step on log x leads to e^2 (1 - 2): the logarithm is not a number there.
    objective = lambda x: terms_of({"log": jnp.log(x)})  # noqa: E731
    start = np.float32([np.exp(2)])
    found, _, aux = run(GaussNewton("lm"), objective, start, 30)
    assert aux["policy/step_accepted"][0] == 0
    assert found[0, 0] == start[0]
    assert aux["policy/damping"][1] == pytest.approx(10 * aux["policy/damping"][0])
    assert float(found[-1, 0]) == pytest.approx(1, abs=1e-5)
    for name in ("gn", "ign"):
        found, _, aux = run(GaussNewton(name), objective, np.float32([-1.0]), 3)
        np.testing.assert_array_equal(found, -1)
        np.testing.assert_array_equal(aux["policy/step_accepted"], 0)


def test_a_singular_system_moves_nothing():
    objective = lambda x: terms_of({"r": jnp.stack([x[0] - 1, x[0] + 1, 2 * x[0]])})  # noqa: E731
    start = np.float32([3.0, 4.0])
    found, _, aux = run(GaussNewton("gn", damping=0.0), objective, start, 1)
    np.testing.assert_array_equal(found[0], start)
    assert aux["policy/step_accepted"][0] == 0
    found, *_ = run(GaussNewton("gn"), objective, start, 1)
    np.testing.assert_allclose(found[0], [0, 4], atol=1e-4)


@pytest.mark.parametrize("name", ["gn", "ign", "lm"])
def test_residuals_are_asked_for_by_name(name):
    stepper = make_stepper(name)
    x = jnp.ones(2)
    with pytest.raises(UserError, match=rf"'{name}' needs residuals"):
        stepper.step(lambda p: Terms({"loss": p.sum()}, None, {}), x, stepper.init(x), jnp.float32(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "lmm"}, "Did you mean 'lm'"),
        ({"method": "lm", "iterations": 5}, "iterations = 5 does not apply with stepper 'lm'"),
        ({"method": "gn", "tolerance": 0.1}, "tolerance = 0.1 does not apply with stepper 'gn'"),
        ({"method": "ign", "iterations": 0}, "iterations = 0"),
        ({"method": "ign", "iterations": 2.5}, "iterations = 2.5 must be a whole number"),
        ({"method": "ign", "damping": 0.0}, "damping = 0 must lie in"),
        ({"method": "gn", "damping": -1.0}, "damping = -1 must lie in"),
        ({"method": "lm", "damping": 1e-9}, "damping = 1e-09 must lie in"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        GaussNewton(**arguments)


@pytest.mark.parametrize("rows", [3, 40])
def test_item_by_item_is_the_same_step(rows):
    """With more parameters than residuals, and with fewer; names out of order, and of different length."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        items = {
            "a": jnp.asarray(rng.normal(size=(rows, 5)), float),
            "b": jnp.asarray(rng.normal(size=rows), float),
        }

        def one(x, item):
            return {"z": jnp.tanh(item["a"] @ x) - item["b"], "m": jnp.stack([item["b"] * x[0], x[1] ** 2])}

        def whole(x):
            found = jax.vmap(lambda item: one(x, item))(items)
            return terms_of({name: found[name] for name in ("z", "m")})

        start = rng.normal(size=5)
        for name in ("gn", "lm"):
            plain, *_ = run(GaussNewton(name, damping=1e-2), whole, start, 4)
            quick, *_ = run(GaussNewton(name, damping=1e-2), Separable(whole, one, items), start, 4)
            np.testing.assert_allclose(quick, plain, rtol=1e-9, atol=1e-12)
        assert np.abs(np.asarray(plain[-1]) - start).max() > 0.05

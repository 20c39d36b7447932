"""Dynare's matrices: written by hand from closed forms, round trips, and files that are wrong."""

import jax
import numpy as np
import pytest

import equimorph
from equimorph.agents import linearize, read_dynare, write_dynare
from equimorph.agents.classical.log_linear import rule_of_slopes
from equimorph.envs.economy import Decision
from equimorph.errors import UserError

STATES = {"k": "k(-1)", "z": "lz"}
TABLES = ("ys", "ghx", "ghu", "order_var", "state_var")


def growth():
    env, params = equimorph.make("Growth-v0")
    return env, params, lambda state, now, params: Decision(1 - now["c"][None] / env.cash(state, params))


def growth_by_hand(folder, sigma=None):
    """Campbell's (1994) solution of Growth-v0 as Dynare declares it: `var c k lz; varexo e; lz = .95 lz(-1) + e;`.

    With `sigma`, the shock is of variance 1: `lz = .95 lz(-1) + sigma e;`. c has a lead, k a lag, and lz both, so that
    Dynare's own order is k, lz, c.
    """
    alpha, beta, gamma, delta, rho = 0.36, 0.99, 2.0, 0.025, 0.95
    y = (1 / beta - 1 + delta) / alpha
    c = y - delta
    returns = 1 - beta * (1 - delta)
    pull = returns * (1 - alpha) / gamma
    root = np.roots([1, -(1 + 1 / beta + pull * c), 1 / beta]).min()
    # k' = root k + load z in logs; Euler: E[log c' - log c] = (returns / gamma) (rho z - (1 - alpha) k'), with
    # c log c = (alpha y + 1 - delta) k + y z - k'.
    by_k = (1 / beta - root) / c

    def missed(load):
        by_z = (y - load) / c
        return by_k * load + by_z * rho - by_z - returns / gamma * (rho - (1 - alpha) * load)

    load = -missed(0.0) / (missed(1.0) - missed(0.0))
    size = 1.0 if sigma is None else sigma
    k, lz = np.array([root, load * rho, load]), np.array([0, rho, 1.0])
    consumption = c * np.array([by_k, (y - load) / c * rho, (y - load) / c])
    rows = np.stack([k, lz, consumption]) * [1, 1, size]
    folder.mkdir(exist_ok=True)
    (folder / "endo_names.csv").write_text("c\nk\nlz\n")
    for name, values in zip(
        TABLES, ([[c], [1], [0]], rows[:, :2], rows[:, 2:], [[2], [3], [1]], [[2], [3]]), strict=True
    ):
        np.savetxt(folder / f"{name}.csv", np.asarray(values), fmt="%.15g", delimiter=",")
    return folder


@pytest.mark.parametrize("sigma", [None, 0.01])
def test_a_solution_written_by_hand_is_the_rule_of_the_economy(tmp_path, sigma):
    env, params, decisions = growth()
    read = read_dynare(env, params, growth_by_hand(tmp_path, sigma), STATES, decisions, ["lz"])
    rule = linearize(env, params)
    for name in ("slopes", "transition", "impact", "covariance"):
        np.testing.assert_allclose(getattr(read, name), getattr(rule, name), rtol=1e-9, atol=1e-12)
    assert read.state_names == rule.state_names
    np.testing.assert_allclose(read.roots, rule.roots[:2], rtol=1e-9)


def test_saving_of_brock_and_mirman_does_not_move(tmp_path):
    """k = .3456 z k(-1)^.36: in logs, capital of this period over output; a path for each file, names of one's own."""
    env, params = equimorph.make("BrockMirman-v0")
    share, alpha, rho = 0.36 * 0.96, 0.36, 0.9
    log_k = np.log(share) / (1 - alpha)
    tables = {
        "ys": [[log_k, log_k - np.log(share), 0]],  # lk, ly, lz
        "ghx": [[alpha, rho], [alpha, rho], [0, rho]],  # ly, lk, lz by lk, lz
        "ghu": [[1], [1], [1]],
        "inv_order_var": [[2, 1, 3]],
        "state_var": [[1, 3]],
    }
    for name, values in tables.items():
        np.savetxt(tmp_path / f"my_{name}.txt", np.asarray(values), delimiter=",")
    read = read_dynare(
        env,
        params,
        {name: tmp_path / f"my_{name}.txt" for name in tables},
        {"k": "lk ( -1 )", "z": "lz"},
        lambda state, now, params: Decision((now["lk"] / now["ly"])[None]),
        logs=("lk", "ly", "lz"),
        names=("lk", "ly", "lz"),
    )
    np.testing.assert_allclose(read.slopes, 0, atol=1e-9)
    np.testing.assert_allclose(read.transition, [[alpha, 1], [0, rho]], atol=1e-9)


@pytest.mark.parametrize(("id", "logs"), [("Growth-v0", ()), ("Growth-v0", ("k", "z")), ("RBCLabor-v0", ("z",))])
def test_a_round_trip(tmp_path, id, logs):
    env, params = equimorph.make(id, **({"normalised": False, "scale": 0.3} if id == "Growth-v0" else {}))
    rule = linearize(env, params)
    names = write_dynare(rule, tmp_path / "out", logs)
    assert names.states == {"k": "k(-1)", "z": "z"}
    read = read_dynare(env, params, tmp_path / "out", *names)
    np.testing.assert_allclose(read.slopes, rule.slopes, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(read.transition, rule.transition, rtol=1e-9, atol=1e-12)
    with jax.enable_x64(True):
        state = rule.states.state(rule.centre + 0.01)
        np.testing.assert_allclose(read.policy.decide(state).action, rule.policy.decide(state).action, rtol=1e-11)


def test_states_that_shocks_and_decisions_move(tmp_path):
    """Where productivity depends on capital, capital is dated by its use; names have no brackets."""
    env, params = equimorph.make("Growth-v0")
    rule = linearize(env, params)
    transition = rule.transition + np.array([[0, 0], [0.1, 0]])
    names = write_dynare(rule._replace(transition=transition, state_names=("log k[0]", "log z")), tmp_path)
    assert names.states == {"k[0]": "k_0", "z": "z"}
    ghx, order = (np.loadtxt(tmp_path / f"{name}.csv", delimiter=",") for name in ("ghx", "order_var"))
    assert (tmp_path / "endo_names.csv").read_text().split() == ["action", "k_0", "z"]
    np.testing.assert_array_equal(order, [2, 3, 1])
    np.testing.assert_allclose(ghx, np.concatenate([transition, rule.slopes @ transition]), rtol=1e-12)


def change(name, row, column, by):
    def changed(folder):
        table = np.loadtxt(folder / f"{name}.csv", delimiter=",", ndmin=2)
        table[row, column] += by
        np.savetxt(folder / f"{name}.csv", table, delimiter=",")

    return changed


def write(name, text):
    return lambda folder: (folder / f"{name}.csv").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "ghu.csv").unlink(), "Dynare's ghu cannot be read from .*ghu.csv .No such file"),
        (write("ghx", "k,lz\n1,2\n1,2\n1,2\n"), "ghx is no table of numbers .* without a header"),
        (write("ghx", "1,2\n1\n1,2\n"), "ghx is no table of numbers"),
        (write("ghx", "\n"), "Dynare's ghx is empty"),
        (write("ghx", "1,2,3\n1,2,3\n1,2,3\n"), "ghx is 3 x 3 where 3 x 2 is expected"),
        (write("ghu", "1\n1\n"), "ghu is 2 x 1 where 3 x 1 is expected"),
        (write("ghu", "1\nNaN\n1\n"), "ghu has nan in row 2, column 1"),
        (write("ys", "1,2\n"), "ys is 2 where 3 is expected, one number for each of 3 names"),
        (write("order_var", "0\n1\n2\n"), "order_var must have whole numbers from 1 to 3"),
        (write("order_var", "1\n1\n2\n"), "order_var must have each of 1 to 3 once"),
        (write("state_var", "2\n2\n"), "state_var has a variable twice"),
        (write("endo_names", "c\nk\nk\n"), "endo_names has a name twice"),
        (write("endo_names", "c\nk\nlx\n"), "unknown variable of Dynare's 'lz'. Known: c, k, lx"),
        (write("state_var", "1\n3\n"), r"k\(-1\) for state k: k is no state of Dynare's model, whose are c, lz"),
        (change("ys", 1, 0, 0.1), "state k is 1 in the steady state and k of Dynare's 1.1"),
        (change("ys", 0, 0, 0.01), "action is 0.93.* and what is made of the variables of Dynare's"),
        (change("ghx", 2, 1, 0.01), "c of Dynare's is no function of the states as named: its ghx and ghu miss one by"),
        (change("ghx", 0, 0, 0.01), "log k moves otherwise in Dynare's model, by 0.01 a unit"),
        (change("ghx", 1, 1, -0.95), "c of Dynare's is no function of the states"),
    ],
)
def test_files_that_are_wrong(tmp_path, spoil, message):
    env, params, decisions = growth()
    spoil(growth_by_hand(tmp_path))
    with pytest.raises(UserError, match=message) as error:
        read_dynare(env, params, tmp_path, STATES, decisions, ["lz"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"states": {"k": "k(-1)"}}, "no variable of Dynare's is named for state z"),
        ({"states": {**STATES, "zz": "lz"}}, "has no state 'zz'. Did you mean 'z'"),
        ({"states": {**STATES, "k": "k(+1)"}}, "is no variable of Dynare's; write 'k' or"),
        ({"states": {"k": "k", "z": "lz"}}, "log k moves otherwise in Dynare's model, .* calibration or timing"),
        ({"states": {"k": "k(-1)", "z": "lz(-1)"}}, "c of Dynare's is no function of the states as named"),
        ({"logs": ()}, "state z is 1 in the steady state and lz of Dynare's 0"),
        ({"logs": ("z",)}, "unknown variable of Dynare's 'z'. Did you mean 'lz'"),
        ({"decisions": {"action": "c"}}, "action is 0.93.* in the steady state and c of Dynare's 0.07"),
        ({"decisions": {"saving": "c"}}, "has no decision 'saving'"),
        ({"decisions": lambda state, now, params: Decision(now["c"])}, "decisions makes .*, where .* is expected"),
        ({"files": {"ghy": "x"}}, "unknown file of Dynare's 'ghy'. Did you mean 'ghx'"),
        ({"files": {"ghx": "x"}}, "no path for Dynare's endo_names"),
    ],
)
def test_names_that_are_wrong(tmp_path, given, message):
    env, params, decisions = growth()
    files = growth_by_hand(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        read_dynare(env, params, **{"files": files, "states": STATES, "decisions": decisions, "logs": ("lz",)} | given)
    assert "\n" not in str(error.value)


def test_what_has_no_rule_of_dynares(tmp_path):
    _, _, decisions = growth()
    env, params = equimorph.make("BufferStock-v0")
    with pytest.raises(UserError, match="BufferStock-v0 has no steady state, so no rule of Dynare's belongs to it"):
        read_dynare(env, params, growth_by_hand(tmp_path), STATES, decisions, ["lz"])
    rule = linearize(*equimorph.make("Growth-v0"))
    with pytest.raises(UserError, match="unknown state in logs 'zz'"):
        write_dynare(rule, tmp_path, ["zz"])
    env, params = equimorph.make("Growth-v0")
    with (
        jax.enable_x64(True),
        pytest.raises(UserError, match=r"a root of 1.* under this rule, so states do not come back"),
    ):
        rule_of_slopes(env, params, np.array([[0.1, 0.0]]))
    with pytest.raises(UserError, match="have one name in Dynare"):
        write_dynare(rule._replace(state_names=("log k", "action")), tmp_path)

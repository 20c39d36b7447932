"""Ids, overrides and calibrations: what `make` builds and what it refuses."""

import dataclasses

import gymnasium
import gymnax
import jax
import pytest

import equimorph
from equimorph.envs import catalog
from equimorph.envs.economies.brock_mirman import BrockMirman
from equimorph.errors import UserError


@pytest.fixture
def scratch(monkeypatch):
    """A registry whose additions are forgotten after the test."""
    monkeypatch.setattr(catalog, "_specs", dict(catalog._specs))
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))


def test_the_default_calibration_comes_as_arrays():
    env, params = equimorph.make("BrockMirman-v0")
    assert env == BrockMirman()
    assert {name: float(getattr(params, name)) for name in ("alpha", "beta", "eta")} == pytest.approx(
        {"alpha": 0.36, "beta": 0.96, "eta": 0.0}
    )
    for leaf in jax.tree.leaves(params):
        assert isinstance(leaf, jax.Array)
        assert not leaf.weak_type


def test_overrides_reach_options_and_parameters():
    env, params = equimorph.make("BrockMirman-v0", concept="competitive", beta=0.9, max_steps_in_episode=7)
    assert env.concept == "competitive"
    assert float(params.beta) == pytest.approx(0.9)
    assert int(params.max_steps_in_episode) == 7
    assert float(params.alpha) == pytest.approx(0.36)


def test_calibrations_and_overrides_on_top_of_them():
    _, params = equimorph.make("BrockMirman-v0", calibration="patient")
    assert (float(params.beta), float(params.sigma)) == pytest.approx((0.99, 0.01))
    _, params = equimorph.make("BrockMirman-v0", calibration="patient", sigma=0.02)
    assert (float(params.beta), float(params.sigma)) == pytest.approx((0.99, 0.02))


@pytest.mark.parametrize(
    ("id", "overrides", "message"),
    [
        ("BrockMirmann-v0", {}, "unknown environment 'BrockMirmann-v0'. Did you mean 'BrockMirman-v0'"),
        ("brockmirman-v0", {}, "Did you mean 'BrockMirman-v0'"),
        ("CartPol-v1", {}, "Did you mean 'CartPole-v1'"),
        ("BrockMirman-v0", {"calibration": "pateint"}, "Did you mean 'patient'"),
        ("BrockMirman-v0", {"bta": 0.9}, "unknown option or parameter of BrockMirman-v0 'bta'. Did you mean 'beta'"),
        ("BrockMirman-v0", {"concpt": "planner"}, "Did you mean 'concept'"),
        ("BrockMirman-v0", {"beta": 1.5}, r"BrockMirman-v0: parameter beta = 1.5 must be finite and lie in \(0, 1\)"),
        ("BrockMirman-v0", {"beta": 1.0}, "parameter beta"),
        ("BrockMirman-v0", {"beta": float("nan")}, "parameter beta must be finite, got nan"),
        ("BrockMirman-v0", {"sigma": float("inf")}, "parameter sigma must be finite, got inf"),
        ("BrockMirman-v0", {"sigma": -0.1}, "parameter sigma"),
        ("BrockMirman-v0", {"beta": "high"}, "parameter beta must be a number, got 'high'"),
        ("BrockMirman-v0", {"max_steps_in_episode": 2.5}, "max_steps_in_episode must be a whole number, got 2.5"),
        ("BrockMirman-v0", {"max_steps_in_episode": 0}, "max_steps_in_episode"),
        ("Auction-v0", {"max_steps_in_episode": 5}, "= 5 does not apply to a game that is played once; leave it out"),
        ("CartPole-v1", {"calibration": "default"}, "has no calibrations"),
        ("BrockMirman-v0", {"num_envs": 3}, "num_envs is an option of api='gymnasium'"),
        ("BrockMirman-v0", {"api": "gymnasum"}, "unknown api 'gymnasum'. Did you mean 'gymnasium'"),
        ("BrockMirman-v0", {"alpha": [0.3, 0.9], "eta": 0.2}, r"alpha \+ eta = 1.1 must be below 1"),
        ("Growth-v0", {"normalised": "yes"}, "Growth-v0: option normalised must be True or False, got 'yes'"),
        ("Growth-v0", {"normalised": 1}, "option normalised must be True or False, got 1"),
        ("Auction-v0", {"num_bidders": 2.5}, "option num_bidders must be a whole number, got 2.5"),
        ("Auction-v0", {"num_bidders": "3"}, "option num_bidders must be a whole number, got '3'"),
        ("OLG-v0", {"households": True}, "option households must be a whole number, got True"),
        ("Growth-v0", {"sigma": []}, "parameter sigma is empty"),
        ("gymnax:CartPol-v1", {}, "unknown environment of gymnax's 'CartPol-v1'. Did you mean 'CartPole-v1'"),
        (":BrockMirman-v0", {}, "names no module before its ':'"),
        ("gymnasium:CartPole-v1", {"api": "jaxmarl"}, r"is Gymnasium's own, stepped on the host; call gymnasium.make"),
        ("PointRobot-misc", {"dense_reward": 2}, "parameter dense_reward must be True or False, got 2"),
        ("BrockMirman-v0", {"beta": True}, "parameter beta must be a number, got True"),
        ("CartPole-v1", {"gravty": 9.0}, "Did you mean 'gravity'"),
        ("CartPole-v1", {"max_steps_in_episode": 0}, "max_steps_in_episode"),
    ],
)
def test_a_mistake_is_named(id, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        equimorph.make(id, **overrides)
    assert "\n" not in str(error.value)


def test_a_value_takes_its_parameters_type():
    """An integer gamma, as a command line reads it, must not turn powers into integer ones."""
    defaults = equimorph.make("StochasticAK-v0")[1]
    _, params = equimorph.make("StochasticAK-v0", gamma=5, mu=0.05, max_steps_in_episode=5.0)
    assert jax.tree.map(lambda leaf: leaf.dtype, params) == jax.tree.map(lambda leaf: leaf.dtype, defaults)
    assert (float(params.gamma), int(params.max_steps_in_episode)) == (5.0, 5)


def test_every_parameter_has_a_domain_and_a_line_of_documentation():
    for id in equimorph.list_envs():
        _, params = equimorph.make(id)
        for field in dataclasses.fields(params):
            assert field.metadata.get("domain") is not None or field.name == "max_steps_in_episode", (id, field.name)
            assert field.metadata.get("doc") or field.name == "max_steps_in_episode", (id, field.name)


def test_ids_are_listed_in_order():
    ids = equimorph.list_envs()
    assert ids == sorted(ids)
    assert {"BrockMirman-v0", "StochasticAK-v0", "CellCount-v0"} <= set(ids)
    assert not set(ids) & set(gymnax.registered_envs)
    for id in ids:
        assert catalog.spec(id).summary
        assert "default" in catalog.spec(id).calibrations


def test_the_readers_own_environment(scratch):
    @dataclasses.dataclass(frozen=True)
    class Mine(BrockMirman):
        pass

    equimorph.register("Mine-v0", Mine, calibrations={"low": {"beta": 0.5}}, reward_scale="utility")
    env, params = equimorph.make("Mine-v0", calibration="low")
    assert type(env) is Mine
    assert env.reward_scale == "utility"
    assert float(params.beta) == 0.5
    assert equimorph.make("Mine-v0", reward_scale="consumption")[0].reward_scale == "consumption"
    assert "Mine-v0" in equimorph.list_envs()


def test_a_factory_and_a_module_path(scratch):
    def factory(concept="competitive"):
        return BrockMirman(concept=concept)

    equimorph.register("Factory-v0", factory)
    equimorph.register("Path-v0", "equimorph.envs.economies.brock_mirman:BrockMirman")
    assert equimorph.make("Factory-v0")[0].concept == "competitive"
    assert equimorph.make("Factory-v0", concept="planner", beta=0.9)[0].concept == "planner"
    assert equimorph.make("Path-v0")[0] == BrockMirman()


def test_a_taken_or_empty_id_is_refused(scratch):
    with pytest.raises(UserError, match="already registered"):
        equimorph.register("BrockMirman-v0", BrockMirman)
    with pytest.raises(UserError, match="not empty"):
        equimorph.register("", BrockMirman)


def test_an_id_of_gymnaxs_is_taken(scratch):
    with pytest.raises(UserError, match="'CartPole-v1' is already registered"):
        equimorph.register("CartPole-v1", BrockMirman)


@pytest.mark.parametrize("entry_point", ["nomodule", "", 3, {}])
def test_what_is_no_entry_point_is_refused(scratch, entry_point):
    with pytest.raises(UserError, match="entry point of 'New-v0'"):
        equimorph.register("New-v0", entry_point)


@pytest.mark.parametrize("entry_point", ["nowhere_at_all:Foo", "equimorph.envs:Nope"])
def test_an_entry_point_that_leads_nowhere_is_told_when_made(scratch, entry_point):
    equimorph.register("New-v0", entry_point)
    with pytest.raises(UserError, match="'New-v0' is registered as"):
        equimorph.make("New-v0")


def test_a_module_that_registers_is_imported_first(scratch, tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import equimorph\nfrom equimorph.envs.economies.brock_mirman import BrockMirman\n"
        "equimorph.register('Mine-v0', BrockMirman)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert equimorph.make("my_models:Mine-v0")[0] == BrockMirman()
    with pytest.raises(UserError, match="cannot import 'no_such_module'"):
        equimorph.make("no_such_module:Mine-v0")


def test_ids_are_text():
    with pytest.raises(UserError, match="must be text, got 3"):
        equimorph.make(3)


def test_a_traced_parameter_is_refused_with_the_way_out():
    import jax

    with pytest.raises(UserError, match=r"params.replace"):
        jax.vmap(lambda beta: equimorph.make("BrockMirman-v0", beta=beta)[1].beta)(jax.numpy.ones(2))


def test_gymnaxs_ids_pass_through():
    env, params = equimorph.make("CartPole-v1", gravity=5.0, max_steps_in_episode=9)
    assert env.name == "CartPole-v1"
    assert float(params.gravity) == 5.0
    assert int(params.max_steps_in_episode) == 9

"""`check_environment` passes what keeps the contract, and names the rule that a broken environment breaks."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.envs import catalog, checks
from equimorph.envs.checks import EnvironmentCheckError, check_environment
from equimorph.envs.economies.brock_mirman import BrockMirman
from equimorph.envs.economies.stochastic_ak import StochasticAK
from equimorph.envs.environment import Reference
from equimorph.envs.shocks import Normal
from equimorph.envs.spaces import Box
from equimorph.errors import UserError

# One of each kind: one agent, a discount that varies, multipliers, one shot, a game, generations that succeed each
# other, a chain that moves all households, a histogram, a growing tissue under a mask, and the same through a wrapper.
KINDS = {
    ("BrockMirman-v0", "default"),
    ("BufferStock-v0", "default"),
    ("Irreversible-v0", "default"),
    ("Auction-v0", "default"),
    ("FishWar-v0", "default"),
    ("OLG-v0", "default"),
    ("KrusellSmith-v0", "default"),
    ("Aiyagari-v0", "histogram"),
    ("CellCount-v0", "default"),
    ("CellCountPooled-v0", "default"),
}
REGISTERED = [
    pytest.param(id, name, marks=[] if (id, name) in KINDS else pytest.mark.extended)
    for id in equimorph.list_envs()
    for name in catalog.spec(id).calibrations
]
counter = itertools.count()


@pytest.mark.parametrize(("id", "calibration"), REGISTERED)
def test_every_registered_environment(id, calibration):
    check_environment(*equimorph.make(id, calibration=calibration))


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_gymnaxs_environments(id):
    check_environment(*equimorph.make(id))


def test_options():
    check_environment(*equimorph.make("BrockMirman-v0", calibration="externality", concept="competitive"))
    check_environment(*equimorph.make("StochasticAK-v0", reward_scale="utility"), seed=3)
    check_environment(equimorph.make("Pendulum-v1")[0].with_transition_gradients())


def test_float64_as_the_default_precision():
    with jax.enable_x64(True):
        check_environment(*equimorph.make("BrockMirman-v0"))


def test_a_stranger_is_refused():
    import gymnax

    with pytest.raises(UserError, match="takes an Environment, got CartPole"):
        check_environment(gymnax.make("CartPole-v1")[0])


def test_the_error_says_who_what_and_why():
    error = EnvironmentCheckError("Mine-v0", "types_are_stable", "state.k is f32")
    assert str(error) == "Mine-v0 breaks the rule 'types_are_stable': state.k is f32"
    assert (error.environment, error.rule) == ("Mine-v0", "types_are_stable")
    assert isinstance(error, UserError)


# -- broken environments: each method replaces one of StochasticAK's ----------------------------------------


def broken(base=StochasticAK, **members):
    """A frozen dataclass with some members of an economy replaced."""
    return dataclasses.dataclass(frozen=True)(type("Broken", (base,), members))()


def after_step(**changes):
    """`step_env` with some of its outcomes replaced: functions of the outcome."""
    names = ("observation", "state", "reward", "terminated", "info")

    def step_env(self, key, state, action, params):
        outcome = dict(zip(names, StochasticAK.step_env(self, key, state, action, params), strict=True))
        return tuple(changes[name](outcome[name]) if name in changes else outcome[name] for name in names)

    return step_env


def constant(value):
    return lambda self, *args, **kwargs: value() if callable(value) else value


def unseeded_transition(self, state, action, shock, params):
    after = StochasticAK.transition(self, state, action, shock, params)
    return after.replace(k=after.k * (1 + 0.01 * next(counter)))


def hard_coded_state(self, key, params):
    state = StochasticAK.initial_state(self, key, params)
    return state.replace(k=state.k.astype(jnp.float32))


def weak_state(self, key, params):
    return StochasticAK.initial_state(self, key, params).replace(k=1.0)


def typed_keys_only(self, key, params):
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError("a typed key is asked for")
    return StochasticAK.initial_state(self, key, params)


def unclipped_step(self, key, state, action, params):
    shock = self.shocks(params).sample(key, state)
    after = self.transition(state, action, shock, params).replace(time=state.time + 1)
    reward = self.scaled_reward(self.reward(state, action, params), params)
    info = {"action_clipped": jnp.ones((), bool) & jnp.any(action > 1)}
    return self.observation(after, params), after, reward, jnp.zeros((), bool), info


def other_shock_step(self, key, state, action, params):
    return StochasticAK.step_env(self, jax.random.fold_in(key, 1), state, action, params)


class Lopsided(Normal):
    def nodes(self, rule, order, state):
        nodes, weights = super().nodes(rule, order, state)
        return nodes, 0.9 * weights


def moving_steady_state(self, params):
    state, decision = BrockMirman.steady_state(self, params)
    return state.replace(k=2 * state.k), decision


def wrong_concept(self, params):
    return StochasticAK.reference(self, params)._replace(concept="nash")


def reference_outside(self, params):
    return Reference(lambda state: jnp.full((1,), 2.0), None, self.concept)


def poor_reference(self, params):
    return Reference(lambda state: jnp.full((1,), 0.9), lambda state: jnp.nan * state.k, self.concept)


def plus(name):
    return property(lambda self: StochasticAK.capabilities.fget(self) | {name})


def box(low, high):
    return lambda self, params: Box(low, high, (1,), jnp.result_type(float))


def dead(self, state, params):
    return jnp.zeros((1,), bool)


def gradient_free(self, state, action, shock, params):
    return StochasticAK.transition(self, state, jax.lax.stop_gradient(action), shock, params)


FLAT = {
    "transition": gradient_free,
    "reward": lambda self, state, action, params: StochasticAK.reward(
        self, state, jax.lax.stop_gradient(action), params
    ),
}
OBSERVATION = StochasticAK.observation
BROKEN = [
    ("hashed_by_value", {"__hash__": lambda self: id(self)}, "frozen dataclass"),
    ("hashed_by_value", {"__eq__": lambda self, other: self is other}, "frozen dataclass"),
    ("types_are_stable", {"initial_state": weak_state}, "weakly typed.*from reset and float32"),
    (
        "types_are_stable",
        {"step_env": after_step(state=lambda s: s.replace(time=s.time * 1.0))},
        r"state\.time is int32",
    ),
    ("types_are_stable", {"step_env": after_step(observation=lambda o: (o, o))}, "reset's observation is a"),
    ("both_keys_work", {"initial_state": typed_keys_only}, "TypeError was raised: a typed key"),
    ("both_precisions_work", {"initial_state": hard_coded_state}, "float32"),
    ("both_precisions_work", {"discount_factor": constant(lambda: np.float32(0.9))}, "discount_factor.*float32 under"),
    ("rewards_and_flags", {"step_env": after_step(reward=lambda r: r[None])}, r"the reward is float32\[1\]"),
    (
        "rewards_and_flags",
        {"step_env": after_step(reward=lambda r: r * jnp.nan)},
        "reward under a random policy is not",
    ),
    ("rewards_and_flags", {"step_env": after_step(terminated=lambda t: t.astype(int))}, "terminated is int32"),
    ("rewards_and_flags", {"agent_mask": dead}, "outside agent_mask earned"),
    ("masks_are_boolean", {"agent_mask": constant(lambda: jnp.ones((2,), bool))}, r"agent_mask is bool\[2\]"),
    ("masks_are_boolean", {"action_mask": constant(lambda: jnp.ones((1, 3)))}, "action_mask is float32"),
    ("masks_are_boolean", {"action_mask": constant(lambda: jnp.zeros((1, 3), bool))}, "without a legal action"),
    ("actions_fit", {"agent_action_space": box(0.8, jnp.inf)}, "give finite ones"),
    ("actions_fit", {"centre": constant(lambda: jnp.zeros((1,)))}, "centre is not one agent's action.*values"),
    ("actions_fit", {"centre": constant(lambda: jnp.full((), 0.9))}, "centre is not one agent's action.*shape"),
    ("excess_is_clipped", {"step_env": unclipped_step}, "another effect than the nearest legal"),
    (
        "excess_is_clipped",
        {"step_env": after_step(info=lambda i: i | {"action_clipped": jnp.zeros((), bool)})},
        "not flagged",
    ),
    ("excess_is_clipped", {"step_env": after_step(info=lambda i: {})}, "lacks 'action_clipped'"),
    ("observations_fit", {"observation": lambda *a: OBSERVATION(*a) * jnp.nan}, "not finite"),
    ("observations_fit", {"agent_observation_space": box(50.0, 60.0)}, "not in the observation space: its values"),
    ("observations_fit", {"observation_size": 2}, "not in the observation space: its shape"),
    ("observations_fit", {"observe": lambda self, key, state, action, params: 2 + state.k[None]}, "observe"),
    ("observations_of_order_one", {"observation": lambda *a: 1e3 * OBSERVATION(*a)}, "divide it by its spread"),
    ("observations_of_order_one", {"observation": lambda *a: 1e-5 * OBSERVATION(*a)}, "divide it by its spread"),
    ("episodes_restart", {"is_truncated": constant(lambda: jnp.zeros((), bool))}, "went on past it"),
    (
        "episodes_restart",
        {"step_env": after_step(state=lambda s: s.replace(time=s.time + 1))},
        "one more after each step",
    ),
    ("step_resets_itself", {"transition": unseeded_transition}, "all randomness from the key"),
    ("slots_are_followed", {"successor": constant(lambda: jnp.array([1], jnp.int32))}, "slots are 0 to 0"),
    ("slots_are_followed", {"inherits": constant(lambda: jnp.zeros((1,)))}, "inherits is float32"),
    ("world_state_is_a_vector", {"world_state": constant(lambda: jnp.zeros((2, 2)))}, r"float32\[2, 2\]"),
    ("discounts_are_discounts", {"discount_factor": constant(lambda: jnp.array(1.5))}, "1.5"),
    ("discounts_are_discounts", {"step_discount": constant(lambda: jnp.array(-0.5))}, "not negative"),
    ("reference_answers", {"reference": wrong_concept}, "'nash'"),
    ("reference_answers", {"reference": reference_outside}, "its values run from 2 to 2"),
    ("reference_answers", {"reference": poor_reference}, "value is nan"),
    (
        "capabilities_are_true",
        {"capabilities": plus("score")},
        "NotImplementedError.*Broken-v0 has no score",
    ),
    ("capabilities_are_true", {"capabilities": plus("events")}, "no event_log_prob"),
    ("capabilities_are_true", {"capabilities": plus("evnts")}, "Did you mean 'events'"),
    ("capabilities_are_true", {"score": lambda self, state, params: state.k}, "'score' is not declared"),
    ("capabilities_are_true", {"capabilities": frozenset({"economy"})}, "'conditions' is not declared"),
    ("capabilities_are_true", {"conditions": constant(lambda: {"euler": jnp.array(jnp.nan)})}, "finite residuals"),
    ("capabilities_are_true", FLAT, "with respect to the action are zero"),
    ("economies_go_on", {"step_env": after_step(terminated=lambda t: ~t)}, "goes on for ever"),
    ("transition_is_steps", {"step_env": other_shock_step}, r"state\.k after step differs"),
    ("transition_is_steps", {"step_env": after_step(reward=lambda r: r + 1)}, "reward differs from"),
    ("nodes_integrate", {"shocks": constant(lambda: Lopsided(1))}, "must sum to 1"),
]


@pytest.mark.slow  # each compiles its own
@pytest.mark.parametrize(
    ("rule", "members", "message"), BROKEN, ids=[f"{rule}-{i}" for i, (rule, *_) in enumerate(BROKEN)]
)
def test_a_broken_rule_is_named(rule, members, message):
    with pytest.raises(EnvironmentCheckError, match=message) as error:
        check_environment(broken(**members))
    assert error.value.rule == rule


def test_a_moving_steady_state():
    env = broken(BrockMirman, steady_state=moving_steady_state)
    with pytest.raises(EnvironmentCheckError, match=r"state\.k moves from") as error:
        check_environment(env)
    assert error.value.rule == "steady_state_is_fixed"


def test_parameters_out_of_their_domain_or_not_arrays():
    env, params = equimorph.make("StochasticAK-v0")
    for wrong, message in (
        (params.replace(beta=jnp.float32(1.5)), "parameter beta"),
        (params.replace(gamma=jnp.float32(1.0)), "gamma = 1"),
        (params.replace(beta=0.95), "params.beta is 0.95, not a strongly typed array"),
    ):
        with pytest.raises(EnvironmentCheckError, match=message) as error:
            check_environment(env, wrong)
        assert error.value.rule == "params_are_arrays"


def test_the_intact_economy_behind_the_broken_ones_passes():
    check_environment(broken())


def test_every_rule_has_a_broken_environment():
    elsewhere = {"params_are_arrays", "steady_state_is_fixed", "same_key_same_outcome"}
    assert {rule for rule, *_ in BROKEN} | elsewhere == set(checks.RULES | checks.ECONOMY_RULES)

"""Deep equilibrium nets against residuals, expectations and shares that are known in closed form."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jaxtyping import Array

import equimorph
from equimorph.agents import DEQN
from equimorph.agents.agent import Policy, check_pair
from equimorph.agents.deqn import policy_decision, residuals
from equimorph.agents.deqn.objective import Problem, objective
from equimorph.agents.deqn.states import Pool
from equimorph.envs import spaces
from equimorph.envs.economy import Decision, Economy
from equimorph.envs.environment import EnvParams, EnvState
from equimorph.envs.shocks import Chain
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step

from ..probes import gather, update

ALPHA, BETA = 0.36, 0.96

# -- two economies whose shock is a two-state chain ------------------------------------------------------------


@struct.dataclass
class ChainState(EnvState):
    k: Array
    mood: Array


@struct.dataclass(kw_only=True)
class ChainParams(EnvParams):
    beta: Array
    gamma: Array
    rows: Array
    levels: Array


def mood(state):
    return state.mood


@dataclasses.dataclass(frozen=True)
class ChainEconomy(Economy):
    """What both have in common: capital, a mood that is a Markov chain, and a share of what there is to save."""

    params_type: ClassVar[type[EnvParams]] = ChainParams
    observation_size: ClassVar[int] = 2

    def agent_action_space(self, params):
        return spaces.Box(0.0, 1.0, (1,))

    def initial_state(self, key, params):
        key_k, key_mood = jax.random.split(key)
        k = jnp.exp(0.2 * jax.random.normal(key_k) - 1)
        return ChainState(jnp.int32(0), k, jax.random.bernoulli(key_mood).astype(jnp.int32))

    def observation(self, state, params):
        return jnp.stack([(jnp.log(state.k) + 1) / 0.4, 2.0 * state.mood - 1])

    def shocks(self, params):
        return Chain(params.rows, mood)

    def reward(self, state, action, params):
        return jnp.log((1 - action[0]) * self.wealth(state, params))

    def reward_units(self, params):
        return 0.0, 1.0

    def transition(self, state, action, shock, params):
        return state.replace(k=action[0] * self.wealth(state, params), mood=shock)


@dataclasses.dataclass(frozen=True)
class ChainMirman(ChainEconomy):
    """Brock and Mirman's economy with productivity on a chain: the saved share is alpha beta whatever the mood."""

    def wealth(self, state, params):
        return params.levels[state.mood] * state.k**ALPHA

    def expectation_terms(self, state, decision, next_state, next_decision, params, *, next_policy):
        y = self.wealth(next_state, params)
        return {"saving": ALPHA * y / next_state.k / ((1 - next_decision.action[0]) * y)}

    def conditions(self, state, decision, expected, params):
        c = (1 - decision.action[0]) * self.wealth(state, params)
        return {"euler": params.beta * expected["saving"] * c - 1}


@dataclasses.dataclass(frozen=True)
class ChainReturn(ChainEconomy):
    """A linear return on a chain and power utility: the saved share depends on the row of the mood."""

    def wealth(self, state, params):
        return params.levels[state.mood] * state.k

    def expectation_terms(self, state, decision, next_state, next_decision, params, *, next_policy):
        c = (1 - next_decision.action[0]) * self.wealth(next_state, params)
        return {"saving": params.levels[next_state.mood] * c**-params.gamma}

    def conditions(self, state, decision, expected, params):
        c = (1 - decision.action[0]) * self.wealth(state, params)
        return {"euler": params.beta * expected["saving"] * c**params.gamma - 1}


@dataclasses.dataclass(frozen=True)
class Bent(ChainMirman):
    """The same equation in another form: not affine in the expectation."""

    def conditions(self, state, decision, expected, params):
        c = (1 - decision.action[0]) * self.wealth(state, params)
        return {"euler": 1 / (params.beta * expected["saving"] * c) - 1}


ROWS = ((0.9, 0.1), (0.3, 0.7))


def chain_params(levels, gamma=1.0, beta=BETA):
    numbers = {"beta": beta, "gamma": gamma, "rows": ROWS, "levels": levels}
    arrays = {name: jnp.asarray(np.asarray(value, np.float32)) for name, value in numbers.items()}
    return ChainParams(max_steps_in_episode=jnp.int32(20), **arrays)


def shares_by_iteration(levels, gamma, beta):
    """Saved share in each mood: the fixed point of a^(1/gamma) = 1 + (beta E[R'^(1-gamma) a'])^(1/gamma)."""
    a = np.ones(2)
    for _ in range(2000):
        a = (1 + (beta * np.array(ROWS) @ (np.array(levels) ** (1 - gamma) * a)) ** (1 / gamma)) ** gamma
    return 1 - a ** (-1 / gamma)


# -- residuals ------------------------------------------------------------------------------------------------------


def states_of(env, params, count):
    return jax.vmap(lambda key: env.initial_state(key, params))(jax.random.split(jax.random.key(3), count))


def residual_of_share(env, params, share, count=64):
    """The Euler residual of saving a constant share, by the first rule of the economy's law."""
    law, decision = env.shocks(params), Decision(jnp.full((1,), share))

    @jax.jit
    @jax.vmap
    def residual(state):
        nodes, weights = law.nodes(law.rules[0], 5, state)
        return residuals(lambda _: decision, state, nodes, weights, env, params)["euler"]

    return np.asarray(residual(states_of(env, params, count)))


def test_the_residual_of_a_zero_network():
    env, params = equimorph.make("BrockMirman-v0")
    agent = DEQN(widths=(4,), batch_size=8, stepper="sgd")
    state, rollout = gather(env, params, agent, 4, 4)
    zero = state.agent._replace(nets=jax.tree.map(jnp.zeros_like, state.agent.nets))
    decide = policy_decision(agent.policy(zero), env, params)
    assert float(decide(env.initial_state(jax.random.key(0), params)).action[0]) == 0.5
    # alpha beta / s - 1 in every state, whatever the shock: it drops out.
    expected = 2 * ALPHA * BETA - 1
    np.testing.assert_allclose(residual_of_share(env, params, 0.5), expected, rtol=1e-5)
    _, metrics = update(env, params, dataclasses.replace(agent, learning_rate=0.0), zero, rollout)
    assert metrics["policy/residual"] == pytest.approx(-expected, rel=1e-5)
    assert metrics["loss/euler"] == pytest.approx(expected**2, rel=1e-5)


@pytest.mark.parametrize(("concept", "share"), [("competitive", 0.3456), ("planner", 0.5376)])
def test_each_concept_has_its_own_answer(concept, share):
    env, params = equimorph.make("BrockMirman-v0", concept=concept, eta=0.2)
    np.testing.assert_allclose(residual_of_share(env, params, share), 0, atol=1e-5)
    np.testing.assert_allclose(residual_of_share(env, params, 0.6), share / 0.6 - 1, rtol=1e-4)


def test_the_expectation_is_over_the_row_of_todays_state():
    env, params = ChainReturn(), chain_params((0.9, 1.2), gamma=2.0, beta=0.9)
    state = ChainState(jnp.int32(0), jnp.float32(1.5), jnp.int32(1))
    # c = (1 - s) R k and c' = (1 - s) R' s R k: E[R' c'^-2] c^2 = E[1 / R'] / s^2, under the second row.
    inverse = 0.3 / 0.9 + 0.7 / 1.2
    by_hand = 0.9 * inverse / 0.6**2 - 1
    law, decision = env.shocks(params), Decision(jnp.full((1,), 0.6))
    found = residuals(lambda _: decision, state, *law.nodes("exact", 5, state), env, params)
    assert float(found["euler"]) == pytest.approx(by_hand, rel=1e-5)


class Shifted(Policy):
    """A policy whose actions are moved by a number."""

    policy: Policy
    offset: Array

    def __call__(self, view, key=None):
        return self.policy(view) + self.offset


def test_quadrature_and_all_in_one_agree_in_expectation():
    env, params = equimorph.make("StochasticAK-v0")
    exact = DEQN(batch_size=256, widths=(4,))
    noisy = DEQN(batch_size=256, widths=(4,), expectation="all_in_one", draws=2)
    state = exact.init(jax.random.key(0), env, params)
    states = states_of(env, params, 256)

    def loss_and_slope(agent, key):
        def loss(offset):
            problem = Problem(agent, env, params, lambda _: Shifted(agent.policy(state), offset), None, None)
            return objective(problem, state.nets, Pool(states, None, None), None, key).losses["loss/euler"]

        return jnp.stack(jax.value_and_grad(loss)(0.01))

    keys = jax.random.split(jax.random.key(1), 400)
    draws = np.asarray(jax.jit(lambda keys: jax.lax.map(lambda k: loss_and_slope(noisy, k), keys))(keys), float)
    target = np.asarray(jax.jit(lambda key: loss_and_slope(exact, key))(keys[0]), float)
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - target) < 4 * error).all()
    assert (np.abs(target) > 10 * error).all()

    # One group of draws, squared, is not: its own variance is added.
    biased = dataclasses.replace(noisy, expectation="all_in_one")
    object.__setattr__(biased, "expectation", "mc")
    draws = np.asarray(jax.jit(lambda keys: jax.lax.map(lambda k: loss_and_slope(biased, k), keys))(keys), float)
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert draws[:, 0].mean() - target[0] > 20 * error[0]


def test_the_transition_that_is_differentiated_is_steps():
    env, params = equimorph.make("StochasticAK-v0")
    agent = DEQN(widths=(4,))
    state = agent.init(jax.random.key(0), env, params)
    here, law = env.initial_state(jax.random.key(5), params), env.shocks(params)
    keys = jax.random.split(jax.random.key(6), 3)
    shocks = jax.vmap(lambda key: law.sample(key, here))(keys)

    def own(nets):
        decide = policy_decision(agent.policy(state._replace(nets=nets)), env, params)
        return residuals(decide, here, shocks, jnp.full(3, 1 / 3), env, params)["euler"]

    def stepped(nets):
        decide = policy_decision(agent.policy(state._replace(nets=nets)), env, params)
        decision = decide(here)

        def inside(key):
            _, following, *_ = env.step_env(key, here, decision.action, params)
            return env.expectation_terms(here, decision, following, decide(following), params, next_policy=decide)

        terms = jax.vmap(inside)(keys)
        return env.conditions(here, decision, jax.tree.map(lambda h: h.mean(0), terms), params)["euler"]

    found, expected = (jax.jit(jax.value_and_grad(f))(state.nets) for f in (own, stepped))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6), found, expected)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(found[1])) > 0.1


def test_the_gradient_goes_through_next_periods_policy():
    env, params = equimorph.make("BrockMirman-v0")
    law, here = env.shocks(params), env.initial_state(jax.random.key(0), params)
    nodes, weights = law.nodes("gauss_hermite", 3, here)
    # alpha beta (1 - s) / (s (1 - s')) - 1 moves by - alpha beta / s^2 with s = s', by twice that with s' held at 1/2.
    share = lambda s: residuals(lambda _: Decision(s[None]), here, nodes, weights, env, params)["euler"]  # noqa: E731
    assert float(jax.grad(share)(0.5)) == pytest.approx(-ALPHA * BETA / 0.25, rel=1e-4)


# -- what is refused ------------------------------------------------------------------------------------------------


def test_all_in_one_needs_conditions_affine_in_the_expectation():
    params = chain_params((0.9, 1.1))
    with pytest.raises(UserError, match=r"'euler' is not affine.*quadrature"):
        check_pair(DEQN(expectation="all_in_one", batch_size=8), Bent(), params, 8, 8)
    check_pair(DEQN(expectation="quadrature", batch_size=8), Bent(), params, 8, 8)
    check_pair(DEQN(expectation="all_in_one", batch_size=8), ChainMirman(), params, 8, 8)
    for name in ("BrockMirman-v0", "StochasticAK-v0"):
        check_pair(DEQN(expectation="all_in_one", batch_size=8), *equimorph.make(name), 8, 8)


def test_few_draws_are_refused_with_the_reason():
    for draws in (None, 1, 63):
        with pytest.raises(UserError, match=r"variance.*90 % of consumption.*at least 64 draws"):
            DEQN(expectation="mc", draws=draws)
    DEQN(expectation="mc", draws=64)


def test_indivisible_batches_say_what_works():
    env, params = equimorph.make("BrockMirman-v0")
    with pytest.raises(UserError, match=r"4 x 6 = 24 states .* batches of 16; batch_size can be ([\d, ]+)") as caught:
        make_train_step(env, params, DEQN(batch_size=16), num_envs=6, num_steps=4)
    named = [int(number) for number in str(caught.value).rsplit("can be ", 1)[1].split(",")]
    assert named == [1, 2, 3, 4, 6, 8, 12, 24]
    for works in named:
        check_pair(DEQN(batch_size=works), env, params, 4, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expectation": "quadratur"}, "Did you mean 'quadrature'"),
        ({"expectation": "quadrature", "draws": 5}, "draws = 5 does not apply"),
        ({"expectation": "all_in_one", "rule": "gauss_hermite"}, "rule = 'gauss_hermite' does not apply"),
        ({"order": 0}, "order"),
        ({"expectation": "all_in_one", "antithetic": True, "draws": 3}, "draws = 3 must be even"),
        ({"expectation": "all_in_one", "stepper": "lm"}, "stepper 'lm' does not apply .*product of two"),
        ({"expectation": "all_in_one", "loss": "huber"}, "loss = 'huber' does not apply"),
        ({"loss": "hubert"}, "Did you mean 'huber'"),
        ({"huber_delta": 0.5}, "huber_delta = 0.5 does not apply with loss='square'"),
        ({"adaptive": "relobalo"}, "Did you mean 'relobralo'"),
        ({"adaptive_decay": 0.5}, "adaptive_decay = 0.5 does not apply without adaptive weights"),
        ({"adaptive": "annealing", "lookback": 0.5}, "lookback = 0.5 does not apply without adaptive='relobralo'"),
        ({"anchor": ("values",)}, "Did you mean 'value'"),
        ({"bounds": {"output": [2, 1]}}, "lower end first"),
        ({"bounds": {"output": 2}}, "must be 2 numbers"),
        ({"weights": {"euler": -1}}, "at least 0"),
        ({"weights": 3}, "must map names to a number"),
        ({"states": "boxes"}, "Did you mean 'box'"),
        ({"box_stretch": 2.0}, "without states='box'"),
        ({"fresh_share": 0.6, "steady_share": 0.6}, "more than 1"),
        ({"fresh_share": 0.6, "replay_size": 64}, "fresh_share = 0.6, replay_share = 0.5 add up to more than 1"),
        ({"states": "fresh", "fresh_share": 0.5}, "all of which are"),
        ({"replay_share": 0.5}, "set replay_size"),
        ({"next_policy": "targets"}, "Did you mean 'target'"),
        ({"target_rate": 0.5}, "without next_policy='target'"),
        ({"warm_start": "linar"}, "Did you mean 'linear'"),
        ({"warm_start_steps": 5}, "without warm_start"),
        ({"warm_start": "linear", "linear_plus": True}, "linear_plus=True"),
        ({"network": "gruu"}, "Did you mean 'gru'"),
        ({"stepper": "lm", "learning_rate": 0.1}, "learning_rate = 0.1 does not apply with stepper 'lm'"),
        ({"stepper": "lm", "warmup": 5}, "warmup"),
        ({"shock_mask": (1, 0)}, "True or False for each shock"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        DEQN(**arguments)


def test_what_has_no_conditions_or_no_such_rule_is_refused():
    with pytest.raises(UserError, match=r"continuous action.*'mappo' or 'reinforce'"):
        check_pair(DEQN(batch_size=8), *equimorph.make("CellCount-v0"), 8, 8)
    with pytest.raises(UserError, match=r"integration rule.*'exact'.*Known: gauss_hermite"):
        check_pair(DEQN(batch_size=8, rule="exact"), *equimorph.make("BrockMirman-v0"), 8, 8)
    with pytest.raises(UserError, match=r"order = 3 does not apply with rule='exact'"):
        check_pair(DEQN(batch_size=8, order=3), ChainMirman(), chain_params((0.9, 1.1)), 8, 8)


# -- solved ---------------------------------------------------------------------------------------------------------


def solve(env, params, iterations, **changes):
    """The saved shares in the states that a trained policy visits, before and after training; and those states."""
    agent = DEQN(**{"widths": (16, 16), "learning_rate": 1e-2, "batch_size": 64, **changes})
    state = create_train_state(env, params, agent, num_envs=64, num_iterations=iterations)
    untrained = policy_decision(agent.policy(jax.tree.map(jnp.array, state.agent)), env, params)
    state, _ = make_train_step(env, params, agent, num_envs=64, num_steps=4, iterations=iterations)(state)
    decide = policy_decision(agent.policy(state.agent), env, params)
    return [np.asarray(jax.vmap(d)(state.env_state).action)[:, 0] for d in (untrained, decide)], state.env_state


def test_a_chain_is_solved_by_its_exact_rows():
    (before, after), _ = solve(ChainMirman(), chain_params((0.9, 1.1)), 800)
    assert np.abs(before - ALPHA * BETA).min() > 0.1
    assert np.abs(after - ALPHA * BETA).max() < 2e-3


def test_a_chain_whose_rows_decide_the_answer():
    levels, gamma, beta = (1.3, 2.2), 0.5, 0.6
    known = shares_by_iteration(levels, gamma, beta)
    assert abs(known[0] - known[1]) > 0.03
    (_, after), states = solve(ChainReturn(), chain_params(levels, gamma, beta), 300)
    moods = np.asarray(states.mood)
    assert set(moods.tolist()) == {0, 1}
    np.testing.assert_allclose(after, known[moods], atol=2e-3)

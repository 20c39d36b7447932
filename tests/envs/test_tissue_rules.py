"""Rules that learners have to beat: known scores of them, and the door through which agents are scored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents.agent import Context, View
from equimorph.agents.classical.tissues import RULES, rule_agent, rule_options, squared_error
from equimorph.errors import UserError
from equimorph.training.evaluation.episodes import evaluate_episodes


def started(agent, env, params):
    """The states of an agent before and after its only update."""
    state = agent.init(jax.random.key(0), env, params)
    context = Context(env, params, jnp.int32(0), jnp.int32(1))
    return state, agent.update(state, None, context, jax.random.key(0))[0]


def test_no_constant_hazard_does_better_than_ninety():
    """Figures of the birth process, as the task's docstring has them."""
    env, params = equimorph.make("CellCount-v0", calibration="hazard")
    best = rule_agent("constant_hazard", env, params).rule.rate
    assert squared_error(env, params, float(best)) == pytest.approx(90.8, abs=0.1)
    assert squared_error(env, params, 0.35) == pytest.approx(94.4, abs=0.1)
    assert squared_error(env, params, 0.0) == 400.0
    assert rule_agent("constant_hazard", env, params, rate=0.2).rule.rate == pytest.approx(0.2)


@pytest.mark.extended
def test_climbing_is_scored_like_any_policy():
    env, params = equimorph.make("Chemotaxis-v0", capacity=6, founders=6)
    agent = rule_agent("gradient_climbing", env, params)
    agent.check(env, params, 1, 1)
    before, after = started(agent, env, params)
    policies = [agent.policy(state) for state in (after, before)]
    climbing, untrained = evaluate_episodes(env, params, policies, 16, None, 0)
    assert climbing["finished"] == 1.0
    assert climbing["score"] > 0.8 > 0.4 > untrained["score"]
    with pytest.raises(UserError, match="made for Chemotaxis-v0 in another variant"):
        agent.check(equimorph.make("Chemotaxis-v0")[0], params, 1, 1)


@pytest.mark.parametrize("id", ["CellCountPooled-v0", "WoundHealing-v0"])
def test_random_actions_are_uniform_and_legal(id):
    env, params = equimorph.make(id)
    agent = rule_agent("random", env, params)
    _, state = started(agent, env, params)
    view = View(jnp.zeros((env.num_agents, 8)), jnp.ones(env.num_agents, bool))
    draws = jax.vmap(lambda key: agent.policy(state)(view, key))(jax.random.split(jax.random.key(0), 200))
    centre = agent.policy(state)(view)
    if id == "WoundHealing-v0":
        assert set(draws) == {"divide", "push"}
        assert abs(float(draws["push"].mean())) < 0.02
        np.testing.assert_array_equal(centre["push"], np.zeros((64, 2)))
        draws = draws["divide"]
    assert draws.shape[:2] == (200, env.num_agents)
    space = env.agent_action_space(params)
    high = float(space.high) if hasattr(space, "high") else 1.0
    assert float(draws.mean()) == pytest.approx(high / 2, rel=0.1)
    assert float(draws.std()) == pytest.approx(high / np.sqrt(12) if hasattr(space, "high") else 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("name", "id", "options", "message"),
    [
        ("randm", "CellCount-v0", {}, "Did you mean 'random'"),
        ("constant_hazard", "CellCount-v0", {}, "with mode='hazard'"),
        ("constant_hazard", "CellCountPooled-v0", {}, "not of Pooled"),
        ("random", "CellCount-v0", {"rate": 1.0}, "'random' takes no options"),
        ("random", "CellCount-v0", {"window": 3}, "leave window out"),
    ],
)
def test_mistakes_are_refused_by_name(name, id, options, message):
    window = options.pop("window", None)
    with pytest.raises(UserError, match=message):
        rule_agent(name, *equimorph.make(id, window=window), **options)


def test_options_of_the_rules_are_known():
    assert {name: list(rule_options(name)) for name in RULES} == {
        "random": [],
        "constant_hazard": ["rate"],
        "disc_growth": [],
        "gradient_climbing": [],
        "breadth_first_patrol": [],
    }
    env, params = equimorph.make("CellCount-v0", calibration="hazard")
    with pytest.raises(UserError, match=r"rate = 2 must lie between 0 and 0\.7"):
        rule_agent("constant_hazard", env, params, rate=2.0)
    with pytest.raises(UserError, match="Did you mean 'rate'"):
        rule_agent("constant_hazard", env, params, rat=0.5)

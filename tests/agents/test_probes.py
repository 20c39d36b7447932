"""Problems so small that a learner which fails at one of them says where it is broken."""

import jax
import numpy as np
import pytest

from equimorph.agents import MAPPO, REINFORCE
from equimorph.agents.agent import View
from equimorph.training.loop import create_train_state, make_train_step

from ..probes import Table, table

ON = ((False, False),) * 3
STAY = ((0, 0), (1, 1), (2, 2))

PROBES = {
    # One step, always paid 1: is the critic regressed on what is earned?
    "value": table(reward=((1.0, 1.0),) * 3),
    # Two places, paid 1 and -1: does the critic see its input?
    "observed_value": table(reward=((1.0, 1.0), (-1.0, -1.0), (0, 0)), start=(0.5, 0.5, 0)),
    # Paid a step later: is the future discounted, by the environment's own discount?
    "discount": table(
        reward=((0.0, 0.0), (1.0, 1.0), (0, 0)),
        leads_to=((1, 1), (1, 1), (2, 2)),
        ends=((False, False), (True, True), (True, True)),
        discount=0.5,
    ),
    # Paid 1 for ever, and cut every four steps: does a time limit count as an end?
    "truncation": table(reward=((1.0, 1.0),) * 3, ends=ON, discount=0.8, limit=4),
    # One step, two actions: is the surrogate's sign right?
    "action": table(reward=((-1.0, 1.0),) * 3),
    # Which action is right depends on the place: does the policy see its input?
    "observed_action": table(reward=((1.0, -1.0), (-1.0, 1.0), (0, 0)), start=(0.5, 0.5, 0)),
    # A small reward at once, or a larger one later, if the next action is right too.
    "all": table(
        reward=((0.3, 0.0), (1.0, -1.0), (0.0, 0.0)),
        leads_to=((0, 1), (1, 1), (2, 2)),
        ends=((True, False), (True, True), (True, True)),
        discount=0.9,
    ),
}

VALUES = {
    "value": {0: 1.0},
    "observed_value": {0: 1.0, 1: -1.0},
    "discount": {0: 0.5, 1: 1.0},
    "truncation": {0: 5.0},
    "all": {0: 0.9, 1: 1.0},
}
ACTIONS = {"action": {0: 1}, "observed_action": {0: 0, 1: 1}, "all": {0: 1, 1: 0}}
SIZES = {"num_envs": 16, "num_steps": 8}


@pytest.fixture(scope="module")
def solve():
    """A function that trains an agent on a probe; all probes share one program an agent."""
    known = {}

    def run(agent, probe):
        if (type(agent), probe) not in known:
            env, params = Table(), PROBES[probe]
            state = create_train_state(env, params, agent, num_envs=SIZES["num_envs"], num_iterations=1)
            state, metrics = make_train_step(env, params, agent, iterations=150, **SIZES)(state)
            assert np.isfinite(metrics["loss/policy"]).all()
            known[type(agent), probe] = state.agent
        return known[type(agent), probe]

    return run


MAPPO_AGENT = MAPPO(widths=(16,), learning_rate=1e-2, epochs=4, minibatches=1)
REINFORCE_AGENT = REINFORCE(widths=(16,), learning_rate=3e-2)


def probability(state, place):
    """Of action 1."""
    actor = state.nets.actor if hasattr(state.nets, "actor") else state.nets
    return float(jax.nn.softmax(actor(np.eye(3, dtype=np.float32)[place]))[1])


@pytest.mark.parametrize("probe", VALUES)
def test_mappo_values(solve, probe):
    state = solve(MAPPO_AGENT, probe)
    for place, value in VALUES[probe].items():
        mean, std = state.values.moments()
        found = float(mean + std * state.nets.critic(np.eye(3, dtype=np.float32)[place])[0])
        assert found == pytest.approx(value, abs=0.03 * max(1, value)), f"{probe}: value of place {place}"


@pytest.mark.parametrize("agent", [MAPPO_AGENT, REINFORCE_AGENT], ids=["mappo", "reinforce"])
@pytest.mark.parametrize("probe", ACTIONS)
def test_actions(solve, probe, agent):
    state = solve(agent, probe)
    for place, action in ACTIONS[probe].items():
        right = abs(probability(state, place) - (1 - action))
        assert right > 0.95, f"{probe}: action in place {place}"
        view = View(np.eye(3, dtype=np.float32)[[place]], np.ones(1, bool))
        assert int(agent.policy(state)(view)[0]) == action

"""Heads of several choices and of actions made of parts: by enumeration, against SciPy, and in learners' hands."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from equimorph.agents import MAPPO, REINFORCE
from equimorph.agents.agent import View
from equimorph.agents.policies.heads import MultiDiscreteHead, make_head
from equimorph.envs import spaces
from equimorph.envs.checks import check_environment
from equimorph.envs.environment import Environment, EnvParams, EnvState, canonical_params
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step

# -- several discrete choices ------------------------------------------------------------------------------------------


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def test_multi_discrete_by_enumeration():
    nvec, logits = (3, 1, 4), np.float32([0.3, -1.0, 2.0, 5.0, 1.0, 0.0, -0.5, 0.7])
    head = MultiDiscreteHead(nvec, (3,))
    legal = np.array([[True, False, True, True], [True] * 4, [False, True, True, False]])
    everything = np.array(list(itertools.product(*map(range, nvec))))
    for mask in (None, legal):
        kept = np.ones((3, 4), bool) if mask is None else mask
        rows = np.split(logits.astype(float), np.cumsum(nvec)[:-1])
        shares = [softmax(np.where(kept[i, : nvec[i]], row, -np.inf)) for i, row in enumerate(rows)]
        joint = np.array([np.prod([share[i] for share, i in zip(shares, each, strict=True)]) for each in everything])
        found = np.exp(head.log_prob(everything, np.tile(logits, (12, 1)), None, mask))
        np.testing.assert_allclose(found, joint, atol=1e-6)
        entropy = -np.sum(joint[joint > 0] * np.log(joint[joint > 0]))
        assert float(head.entropy(logits, None, mask)) == pytest.approx(entropy, rel=1e-5)
        assert head.mode(logits, mask).tolist() == [int(np.argmax(share)) for share in shares]
        draws, _ = head.sample(jax.random.key(0), np.tile(logits, (4000, 1)), None, mask)
        for i, share in enumerate(shares):
            counts = np.bincount(draws[:, i], minlength=len(share))
            assert (counts[share == 0] == 0).all()
            assert np.abs(counts - 4000 * share).max() < 4 * np.sqrt(4000 * 0.25)


def test_a_position_without_a_legal_choice_has_no_gradient_and_stays_in_range():
    head, logits = MultiDiscreteHead((2, 3), (2,)), np.float32([1.0, -1.0, 500.0, 2.0, 3.0])
    mask = np.array([[False] * 3, [True, True, False]])

    def scores(logits):
        return head.log_prob(np.array([1, 0]), logits, None, mask) + head.entropy(logits, None, mask)

    value, slope = jax.value_and_grad(scores)(logits)
    assert np.isfinite(value)
    assert (slope[:2] == 0).all()
    draws, _ = head.sample(jax.random.key(0), np.tile(logits, (500, 1)), None, mask)
    assert set(draws[:, 0].tolist()) == {0, 1}  # never the third, which only the other position has


# -- actions of parts --------------------------------------------------------------------------------------------------

MOVES = np.array([[0.0, 2.0, 100.0], [0.0, 1.0, 3.0]])
PAIRS = np.array([[[0.0, 1.0, 0.0], [2.0, 0.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 3.0, 100.0]]])
PUSHES = np.array([[0.5, -0.5], [2.0, 0.0]])
LEGAL_MOVES = np.array([[True, True, False], [True] * 3])
LEGAL_PAIRS = np.array([[[True, True, False], [True] * 3], [[True, True, False], [True, True, False]]])


@dataclasses.dataclass(frozen=True)
class Bandit(Environment):
    """Two agents act once, in three ways each: `MOVES`, `PAIRS` and the distance from `PUSHES` are what it pays.

    What pays most by far is illegal.
    """

    num_agents: int = 2
    concept: str = "nash"

    @property
    def default_params(self):
        return canonical_params(EnvParams(max_steps_in_episode=1))

    def agent_action_space(self, params):
        return spaces.Dict(
            {
                "push": spaces.Tuple([spaces.Box(-1.0, 3.0, (2,))]),
                "move": spaces.Discrete(3),
                "pair": spaces.MultiDiscrete([2, 3]),
            }
        )

    def agent_observation_space(self, params):
        return spaces.Box(0.0, 1.0, (2,))

    def centre(self, params):
        return spaces.middle(self.agent_action_space(params))

    def action_mask(self, state, params):
        return {"move": jnp.asarray(LEGAL_MOVES), "push": (None,), "pair": jnp.asarray(LEGAL_PAIRS)}

    def observe(self, key, state, action, params):
        return jnp.eye(2)

    def reset_env(self, key, params):
        return jnp.eye(2), EnvState(jnp.int32(0))

    def step_env(self, key, state, action, params):
        action, clipped = self.legal_action(action, params)
        paid = jnp.asarray(MOVES)[jnp.arange(2), action["move"]]
        paid += jnp.take_along_axis(jnp.asarray(PAIRS), action["pair"][..., None], axis=2).sum((1, 2))
        reward = paid - ((action["push"][0] - jnp.asarray(PUSHES)) ** 2).sum(-1)
        after = EnvState(state.time + 1)
        return jnp.eye(2), after, reward.astype(jnp.result_type(float)), jnp.array(True), {"action_clipped": clipped}


SLICES = {"move": slice(0, 3), "pair": slice(3, 8), "push": slice(8, 10)}
BEST = np.where(LEGAL_MOVES, MOVES, -1).max(1) + np.where(LEGAL_PAIRS, PAIRS, -1).max(2).sum(1)


@pytest.mark.parametrize("distribution", ["gaussian", "beta"])
def test_log_probs_of_parts_add_up(distribution):
    env = Bandit()
    params = env.default_params
    head = make_head(env, params, 0.3, distribution=distribution)
    head = jax.tree.unflatten(jax.tree.structure(head), jax.tree.leaves(head))  # as a scan hands it on
    mask = env.action_mask(None, params)
    outputs = np.random.default_rng(0).normal(size=(2, head.size)).astype(np.float32)
    move, pair, push = np.split(outputs.astype(float), [3, 8], axis=1)  # in the order of their names
    assert jax.tree.map(jnp.shape, head.spread()) == {"move": None, "pair": None, "push": ((2,),)}
    spread = head.spread()
    action, raw = jax.jit(lambda *args: head.sample(*args))(jax.random.key(1), outputs, spread, mask)
    assert jax.tree.map(jnp.shape, action) == {"move": (2,), "pair": (2, 2), "push": ((2, 2),)}
    choices = np.zeros(2)
    for agent in range(2):
        rows = (move[agent], pair[agent, :2], pair[agent, 2:])
        legal = (LEGAL_MOVES[agent], LEGAL_PAIRS[agent, 0, :2], LEGAL_PAIRS[agent, 1])
        chosen = (action["move"][agent], *action["pair"][agent])
        for row, allowed, choice in zip(rows, legal, chosen, strict=True):
            choices[agent] += np.log(softmax(np.where(allowed, row, -np.inf))[int(choice)])
    u = (np.asarray(action["push"][0], float) + 1) / 4
    if distribution == "gaussian":
        x = np.log(u / (1 - u)) / 2
        known = scipy.stats.norm(push, 0.3).logpdf(x) - np.log(4 * 2 * u * (1 - u))
    else:
        mode = 1 / (1 + np.exp(-2 * push))
        above, below = 1 / (4 * 0.3**2 * (1 - mode)), 1 / (4 * 0.3**2 * mode)
        known = scipy.stats.beta(1 + above, 1 + below, -1, 4).logpdf(4 * u - 1)
    expected = choices + known.sum(1)

    @jax.jit
    def scores(raw, outputs):
        parts = [head.parts[name].entropy(outputs[:, at], spread[name], mask[name]) for name, at in SLICES.items()]
        return head.log_prob(raw, outputs, spread, mask), head.entropy(outputs, spread, mask), jnp.stack(parts)

    found, entropy, parts = scores(raw, outputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(entropy, parts.sum(0), rtol=1e-6)


def test_choices_of_parts_have_no_spread():
    """Exactly what tells a learner that no standard deviation applies; the joint is the product of two softmaxes."""

    @dataclasses.dataclass(frozen=True)
    class Choices(Bandit):
        def agent_action_space(self, params):
            return spaces.Tuple([spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(3)})])

    head, logits = make_head(Choices(), Bandit().default_params), np.float32([0.2, -0.4, 1.0, 0.0, 2.0])
    assert head.spread() is None
    first, second = softmax(logits[:2].astype(float)), softmax(logits[2:].astype(float))
    for i, j in itertools.product(range(2), range(3)):
        raw = (jnp.int32(i), {"a": jnp.int32(j)})
        assert np.exp(head.log_prob(raw, logits, None)) == pytest.approx(first[i] * second[j], rel=1e-5)
    action, raw = head.sample(jax.random.key(0), logits, None)
    assert action == raw
    assert head.mode(logits) == (0, {"a": 2})
    assert float(head.entropy(logits, None)) == pytest.approx(-(first @ np.log(first) + second @ np.log(second)))


def test_the_bandit_keeps_the_contract():
    check_environment(Bandit())
    space = Bandit().agent_action_space(Bandit().default_params)
    drawn = space.sample(jax.random.key(0))
    assert type(drawn) is dict  # the tree that a head's actions are, whatever the order of its names
    assert bool(space.contains(drawn))
    assert not bool(space.contains({**drawn, "pair": drawn["pair"] + 3}))
    middle = jax.tree.map(np.asarray, spaces.middle(space))
    assert (middle["push"][0].tolist(), int(middle["move"]), middle["pair"].tolist()) == ([1.0, 1.0], 0, [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "num_envs", "iterations"),
    [
        (MAPPO(widths=(16,), learning_rate=1e-2, minibatches=1, distribution="beta"), 32, 120),
        (REINFORCE(widths=(16,), learning_rate=3e-2, schedule="linear"), 64, 200),
    ],
    ids=["mappo", "reinforce"],
)
def test_learners_find_the_best_of_every_part(agent, num_envs, iterations):
    env = Bandit()
    params = env.default_params
    state = create_train_state(env, params, agent, num_envs=num_envs, num_iterations=iterations)
    step = make_train_step(env, params, agent, num_envs=num_envs, num_steps=4, iterations=iterations)

    def earned(state):
        view = View(jnp.eye(2), jnp.ones(2, bool), env.action_mask(None, params))
        return np.asarray(env.step_env(jax.random.key(0), EnvState(jnp.int32(0)), agent.policy(state)(view), params)[2])

    untrained = earned(state.agent)
    trained, metrics = step(state)
    assert (untrained < BEST - 1).all(), (untrained, BEST)
    np.testing.assert_allclose(earned(trained.agent), BEST, atol=0.03)
    if agent.distribution == "beta":  # the density in the update is the one that was stored
        assert float(metrics["policy/first_ratio_error"].max()) < 3e-5


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"move": np.ones((2, 4), bool)}, r"of a Discrete\(3\) is bool\[\.\.\., 3\] or None, got bool\[2, 4\]"),
        ({"pair": np.ones((2, 5), bool)}, r"of a MultiDiscrete\(\[2, 3\]\) is bool\[\.\.\., 2, 3\] or None"),
        ({"moves": np.ones((2, 3), bool)}, r"unknown part of an action in its mask 'moves'\. Did you mean 'move'"),
        ({"push": (np.ones((2, 2), bool),)}, "a Box action has no action mask"),
        ({"push": np.ones((2, 2), bool)}, r"mask of a Tuple of 1 is a tuple of as many, got bool\[2, 2\]"),
        (np.ones((2, 3), bool), "mask of a Dict is a dict with masks of move, pair, push, got bool"),
    ],
)
def test_a_mask_that_belongs_to_another_action_is_refused(mask, message):
    head = make_head(Bandit(), Bandit().default_params)
    with pytest.raises(UserError, match=message):
        jax.eval_shape(head.mode, jnp.zeros((2, head.size)), mask)

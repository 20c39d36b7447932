"""Fictitious self-play: the average of past policies, who learns against it, and where it leads."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import IPPO, MAPPO, PPO
from equimorph.agents.agent import View, check_pair
from equimorph.agents.critics import Sight, make_networks
from equimorph.agents.mappo import Extras
from equimorph.agents.policies.actor import Actor
from equimorph.agents.policies.heads import make_head
from equimorph.agents.self_play import (
    LEARNER,
    NOBODY,
    AveragePolicy,
    Past,
    beginning,
    drawn,
    joint_outputs,
    remembered,
    seated,
)
from equimorph.errors import UserError
from equimorph.training.loop import create_train_state, make_train_step
from equimorph.training.summary import exploitability_of

from ..probes import MatrixGame, Table, gather, matrix_game, update

SIZES = {"num_envs": 64, "num_steps": 8}
AVERAGE = MAPPO(
    opponents="average",
    widths=(),
    critic="local",
    learning_rate=2e-2,
    entropy=0.5,
    entropy_schedule="linear",
    entropy_final=0.2,
    normalise_advantages=None,
    epochs=8,
    minibatches=1,
)


def sample(actors, weight) -> Past:
    """A past of these networks, one a block, with these weights."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *actors)
    return Past(stacked, jnp.asarray(weight, jnp.float32), jnp.int32(len(weight)), jnp.int32(1))


def chooses(choice: int) -> Actor:
    """A network on two inputs that is all but certain of one of three choices."""
    actor = jax.tree.map(jnp.zeros_like, Actor(jax.random.key(0), 2, 3, None, (), "tanh"))
    return eqx.tree_at(lambda a: a.network.layers[-1].bias, actor, 50.0 * jax.nn.one_hot(choice, 3))


@pytest.fixture(scope="module")
def head():
    return make_head(MatrixGame(), matrix_game())


def test_every_past_policy_is_drawn_with_its_share_of_the_weight():
    """After 23 policies four blocks of eight, eight and seven are left; policy n counts n + 1 of 276."""

    def one(key):
        key, key_draw = jax.random.split(key)
        keys = jax.random.split(key, 22)
        later = jnp.arange(1.0, 23.0)
        past, _ = jax.lax.scan(lambda p, x: (remembered(p, *x), None), beginning(jnp.float32(0), 4), (later, keys))
        return past, past.actors[drawn(past, key_draw, 1)[0]]

    count = 20_000
    past, found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), count))
    share = np.arange(1, 24) / 276
    often = np.bincount(np.asarray(found, int), minlength=23) / count
    assert np.abs(often - share).max() < 4.5 * np.sqrt(share.max() / count)
    np.testing.assert_array_equal(past.weight[0], [36, 100, 140, 0])
    kept = np.asarray(past.actors[:, :3])
    assert (kept // 8 == np.arange(3)).all()


def test_one_learns_and_the_others_play_the_past(head):
    """Rivals play as the past says and keep to it; the learner plays the present; who joins later is a rival."""
    past = sample([chooses(0), chooses(1)], [1, 3])
    alive = jnp.array([True, True, False])

    def episode(key):
        key_seat, key_later, key_act = jax.random.split(key, 3)
        seat = seated(past, jnp.full((3,), NOBODY), alive, key_seat)
        later = seated(past, seat.at[2].set(NOBODY), jnp.ones(3, bool), key_later)
        output, spread = joint_outputs(chooses(2), past, seat, jnp.ones((3, 2)), apart=False)
        return seat, later, head.sample(key_act, output, spread)[0]

    seat, later, action = map(np.asarray, jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), 4000)))
    assert ((seat == LEARNER).sum(1) == 1).all()
    assert abs((seat == LEARNER).mean(0) - [0.5, 0.5, 0]).max() < 0.04
    np.testing.assert_array_equal(action, np.where(seat == LEARNER, 2, seat))
    assert abs(seat[seat != LEARNER].mean() - 0.75) < 0.03
    np.testing.assert_array_equal(later[:, :2], seat[:, :2])
    assert (later[:, 2] != LEARNER).all()


@pytest.mark.extended
def test_agents_with_networks_of_their_own_have_pasts_of_their_own():
    env, params = equimorph.make("Cournot-v0")
    head, sight = make_head(env, params), Sight("local", sharing="per_agent")

    @jax.jit
    def actor(seed):
        made = make_networks(jax.random.key(seed), sight, env, params, head, (4,), "tanh").actor
        return jax.tree.map(lambda x: x + (seed + 1) * jnp.sin(jnp.arange(x.size)).reshape(x.shape), made)

    actors = [actor(seed) for seed in range(3)]
    past, seen, seat = sample(actors[:2], [1, 1]), jnp.array([[0.3], [-0.2]]), jnp.array([1, LEARNER])
    output, spread = jax.jit(lambda now, past: joint_outputs(now, past, seat, seen, apart=True))(actors[2], past)
    np.testing.assert_allclose(output, [actors[1](seen)[0], actors[2](seen)[1]], rtol=1e-5)
    np.testing.assert_allclose(spread, [actors[1].spread[0], actors[2].spread[1]], rtol=1e-6)


def test_average_is_a_lottery_once_an_episode_and_a_mean_without_a_key(head):
    policy = AveragePolicy(sample([chooses(0), chooses(1), chooses(2)], [2, 3, 3.5]), head)
    view = View(jnp.eye(2), jnp.ones(2, bool))

    def episode(key):
        first, second = jax.random.split(key)
        memory, one = policy.act(view, policy.initial_memory(2), first)
        return one, policy.act(view, memory, second)[1]

    first, second = map(np.asarray, jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(2), 4000)))
    np.testing.assert_array_equal(first, second)
    joint = np.histogram2d(*first.T, bins=3)[0] / 4000
    share = np.array([2, 3, 3.5]) / 8.5
    assert np.abs(joint - np.outer(share, share)).max() < 0.03, "each draws by itself"
    np.testing.assert_array_equal(policy(view), [2, 2])

    env, params = equimorph.make("Cournot-v0")
    box = make_head(env, params)
    actors = [Actor(jax.random.key(seed), 1, box.size, box.spread(), (), "tanh") for seed in range(2)]
    seen = View(jnp.ones((2, 1)), jnp.ones(2, bool))
    modes = [np.asarray(box.mode(actor(seen.observation))) for actor in actors]
    found = AveragePolicy(sample(actors, [1, 3]), box)(seen)
    np.testing.assert_allclose(found, 0.25 * modes[0] + 0.75 * modes[1], rtol=1e-5)


def test_the_lottery_uses_no_key_twice(head):
    policy = AveragePolicy(sample([chooses(0), chooses(1)], [1, 1]), head)
    view = View(np.eye(2, dtype=np.float32), np.ones(2, bool))
    with jax.debug_key_reuse(True):
        jax.eval_shape(lambda key: policy.act(view, policy.initial_memory(2), key), jax.random.key(0))


@pytest.fixture(scope="module")
def game():
    """The game, and the train step that tests of learning share."""
    env, params = MatrixGame(), matrix_game()
    return env, params, make_train_step(env, params, AVERAGE, iterations=40, num_seeds=2, **SIZES)


def most_gained(payoff, strategy):
    """Exploitability of mixed strategies `[2, n]` in a zero-sum game."""
    rows, columns = payoff @ strategy[1], strategy[0] @ payoff
    return max(rows.max() - strategy[0] @ rows, columns @ strategy[1] - columns.min())


def strategies(state):
    """Of the current policy and of the average, exact, `[2, n]` each."""
    probabilities = lambda actor: jax.nn.softmax(actor(jnp.eye(2)))  # noqa: E731
    past = state.past
    average = jnp.tensordot(past.weight / past.weight.sum(), jax.vmap(probabilities)(past.actors), axes=1)
    return np.asarray(probabilities(state.nets.actor)), np.asarray(average)


def test_average_settles_where_the_current_policy_circles(game):
    """Rock, paper and scissors with stakes; the equilibrium is (3, 1, 1) / 5 and uniform play loses 2/3 of a stake."""
    env, params, step = game
    payoff = np.asarray(params.payoff)
    assert most_gained(payoff, np.tile([0.6, 0.2, 0.2], (2, 1))) < 1e-6
    assert most_gained(payoff, np.full((2, 3), 1 / 3)) == pytest.approx(2 / 3)
    state = create_train_state(env, params, AVERAGE, num_envs=SIZES["num_envs"], num_iterations=400, num_seeds=2)
    gains = []
    for _ in range(10):
        state, _ = step(state)
        seeds = [jax.tree.map(lambda x, i=i: x[i], state.agent) for i in range(2)]
        gains.append([[most_gained(payoff, s) for s in strategies(agent)] for agent in seeds])
    current, average = np.moveaxis(gains, 2, 0)
    assert average[-1].max() < 0.15
    assert average[-1].mean() < average[1].mean()
    assert current[5:].mean() > 2 * average[5:].mean()
    assert current[5:].max(axis=0).min() > 0.3


def test_only_the_learner_is_learnt_from(game):
    """What rivals earned, drew and thought likely changes nothing, bit for bit; what the learner earned does."""
    env, params, _ = game
    after, rollout = gather(env, params, AVERAGE, num_steps=8, num_envs=16)
    learns = rollout.extras.learns
    assert (np.asarray(learns).sum(-1) == 1).all()

    def spoilt(where):
        change = lambda x, to: jnp.where(where, to, x)  # noqa: E731
        extras = rollout.extras
        changed = Extras(change(extras.raw, 2), change(extras.log_prob, -7.0), extras.learns)
        return rollout._replace(reward=change(rollout.reward, 9.0), extras=changed)

    rollouts = (rollout, spoilt(~learns), spoilt(learns))
    once, theirs, own = (update(env, params, AVERAGE, after.agent, r)[0] for r in rollouts)
    jax.tree.map(np.testing.assert_array_equal, once.nets, theirs.nets)
    different = jax.tree.map(lambda a, b: bool((a != b).any()), once.nets.actor, own.nets.actor)
    assert all(jax.tree.leaves(different))


def test_exploitability_is_logged_where_the_best_response_is_known(tmp_path):
    """Untrained firms sell 5 each and lose 5; alone, one would sell 2 and earn 4. The equilibrium leaves no gain."""
    env, params = equimorph.make("Cournot-v0")
    agent = MAPPO(widths=())
    keys = jax.random.split(jax.random.key(0), 2)
    states = jax.jit(jax.vmap(lambda key: agent.init(key, env, params)))(keys)
    measure = exploitability_of(env, params, agent, states, num_seeds=2)
    np.testing.assert_allclose(measure(states), [9.0, 9.0], rtol=1e-5)
    small = {"iterations": 2, "progress": False, "rollout": {"num_envs": 2, "num_steps": 2}}
    equimorph.train("Cournot-v0", "closed_form", out=tmp_path / "run", **small)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert np.abs([line["evaluation"]["exploitability"] for line in lines]).max() < 1e-5
    assert len(lines) == 2
    for other in ("FishWar-v0", "BrockMirman-v0"):
        assert exploitability_of(*equimorph.make(other), agent, states) is None


@pytest.mark.slow
@pytest.mark.extended
def test_cournot_still_comes_to_its_equilibrium():
    """Both sell (a - c) / 3 b = 3; untrained they would sell 5."""
    how = {"iterations": 200, "num_seeds": 3, "learning_rate": 1e-3, "schedule": "linear", "initial_std": 0.2}
    runs = equimorph.train("Cournot-v0", opponents="average", **how).seeds
    for run in runs:
        np.testing.assert_allclose(run.policy(np.zeros((2, 1))), 3.0, rtol=0.02)
    assert equimorph.evaluate(runs[0])["exploitability"] < 5e-3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"opponents": "averge"}, "'average'"),
        ({"value": "team_mean"}, "value='team_mean', whose team has no opponents"),
        ({"ratio": "joint"}, "ratio='joint', whose team"),
        ({"reward": "team"}, "reward='team', whose team"),
        ({"network": "gru"}, "network='gru', whose memory"),
        ({"snapshots": 7}, "must be even"),
        ({"snapshots": 1}, r"must lie in \[2"),
        ({"opponents": "current", "snapshots": 8}, "use opponents='average'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, why):
    with pytest.raises(UserError, match=why):
        MAPPO(**{"opponents": "average", **options})


def test_what_has_no_opponents_is_refused():
    with pytest.raises(UserError, match="opponents = 'average' does not apply to PPO"):
        PPO(opponents="average")
    env = Table()
    with pytest.raises(UserError, match="opponents = 'average' does not apply to Table-v0, which has one agent"):
        check_pair(AVERAGE, env, env.default_params, 8, 4)
    env, params = equimorph.make("Cournot-v0", concept="cooperative")
    with pytest.raises(UserError, match="whose concept is 'cooperative'"):
        check_pair(AVERAGE, env, params, 8, 4)
    with pytest.raises(UserError, match=r"agent\.opponents.*no such hyperparameter"):
        equimorph.train("Cournot-v0", "reinforce", opponents="average")
    assert IPPO(opponents="average").critic == "local"

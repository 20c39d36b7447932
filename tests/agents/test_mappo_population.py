"""MAPPO's options for teams, populations and updates, against values worked out by hand or by loops in NumPy."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import IPPO, MAPPO, PPO, team_episodes
from equimorph.agents.agent import Context, check_pair
from equimorph.agents.critics import last_layer, roles_of
from equimorph.agents.minibatches import shuffled_chunks
from equimorph.agents.policies.networks import MLP
from equimorph.agents.policies.recurrent import RecurrentActor, replay
from equimorph.agents.policies.sets import SetCritic
from equimorph.agents.policies.sharing import WithId, shared_by
from equimorph.agents.registry import make_agent
from equimorph.agents.surrogate import clipped_surrogate, value_error
from equimorph.agents.teams import mixed_reward, team_mean
from equimorph.envs import spaces
from equimorph.envs.environment import Environment, EnvState
from equimorph.errors import UserError
from equimorph.training.config import resolve
from equimorph.training.evaluation.episodes import evaluate_episodes
from equimorph.training.loop import create_train_state, make_train_step

from ..probes import LENGTH, PlaceState, Scripted, Table, busy_script, gather, script, table, update

SMALL = {"widths": (), "critic": "local", "initial_std": 1.0}


def batch_of(agent, env, params, state, rollout):
    """What an update learns from, `[T N, A]`."""
    context = Context(env, params, jnp.int32(0), jnp.int32(1))
    return eqx.filter_jit(lambda *args: agent._batch(*args))(state.agent, rollout, context)


# -- teams ---------------------------------------------------------------------------------------------------------


def test_rewards_between_own_and_team():
    reward, mask = np.array([1.0, 2.0, np.nan]), np.array([True, True, False])
    np.testing.assert_allclose(mixed_reward(reward, mask, 0.25), [1.125, 1.875, 0])
    np.testing.assert_allclose(mixed_reward(reward, mask, 0.0), [1, 2, 0])
    np.testing.assert_allclose(mixed_reward(reward, mask, 1.0), [1.5, 1.5, 0])
    assert team_mean(reward, mask) == 1.5
    assert team_mean(reward, ~mask & False) == 0


def team_advantages(rollout, mean_value, gae_lambda):
    """Of one team, by a loop over time and environments; `mean_value` of observations and masks."""
    mask = np.asarray(rollout.view.agent_mask)
    steps, envs, _ = mask.shape
    value = mean_value(np.asarray(rollout.view.observation), mask)
    alive_next = np.asarray(rollout.next_env_state.time)[..., None] >= 0
    alive_next = alive_next & np.asarray(rollout.extras["next_mask"])
    after = mean_value(np.asarray(rollout.next_observation), alive_next)
    found = np.zeros((steps, envs))
    for n in range(envs):
        later = 0.0
        for t in reversed(range(steps)):
            living = mask[t, n]
            reward = np.asarray(rollout.reward)[t, n][living].mean()
            discount = np.asarray(rollout.discount)[t, n][living].mean()
            ends = bool(rollout.terminated[t, n])
            delta = reward + discount * (0 if ends else after[t, n]) - value[t, n]
            cut = ends or bool(rollout.truncated[t, n])
            later = delta + discount * gae_lambda * (0 if cut else later)
            found[t, n] = later
    return found, found + value, mask


def test_a_team_has_one_advantage_of_its_mean_value_and_mean_reward():
    env, params = Scripted(), busy_script(ends=np.arange(LENGTH) == 6, limit=5)
    agent = MAPPO(**SMALL, value="team_mean", normalise_advantages=None, normalise_values=False, gae_lambda=0.8)
    weight = np.asarray([[0.7, -0.4]], np.float32)
    critic = lambda nets: eqx.tree_at(lambda n: n.critic.layers[0].weight, nets, jax.device_put(weight))  # noqa: E731
    state, rollout = gather(env, params, agent, 12, 3, nets=critic)
    batch = batch_of(agent, env, params, state, rollout)

    def mean_value(observation, mask):
        values = observation @ weight[0]
        return np.where(mask, values, 0).sum(-1) / np.maximum(mask.sum(-1), 1)

    following = np.asarray(params.alive)[np.asarray(rollout.next_env_state.time)]
    advantage, target, mask = team_advantages(
        rollout._replace(extras={"next_mask": following}), mean_value, gae_lambda=0.8
    )
    for found, expected in ((batch.advantage, advantage), (batch.target, target)):
        everybody = np.where(mask, expected[..., None], 0).reshape(-1, 3)
        np.testing.assert_allclose(found, everybody, rtol=1e-4, atol=1e-5)


def test_where_all_are_alike_a_team_is_as_good_as_each():
    env, params = equimorph.make("FishWar-v0", concept="cooperative")
    common = {"critic": "global", "widths": (), "expectation": "quadrature", "gamma": 0.9}
    each, team = MAPPO(**common), MAPPO(**common, value="team_mean")
    state, rollout = gather(env, params, each, 4, 3)
    batches = [batch_of(agent, env, params, state, rollout) for agent in (each, team)]
    assert np.ptp(batches[0].target) > 0.1
    for name in ("advantage", "target"):
        np.testing.assert_allclose(*(getattr(b, name) for b in batches), rtol=1e-4, atol=1e-5)


def test_a_joint_ratio_is_the_product_of_the_living():
    change = np.array([[0.1, 0.05, 0.0], [-0.3, -0.1, 0.2], [0.0, 0.0, 0.0]])
    mask = np.array([[True, True, False], [True, True, True], [False, False, False]])
    advantage = np.where(mask, [[2.0, 4.0, 0.0], [-1.0, -1.0, -4.0], [0.0, 0.0, 0.0]], 0)
    surrogate, metrics = clipped_surrogate(change, advantage, mask, 0.1, "joint")
    # exp(.15) is beyond 1.1 and its advantage of 3 counts there; exp(-.2) is below .9, and a bad deed of -2 counts as
    # .9 of one.
    assert surrogate == pytest.approx((1.1 * 3 + 0.9 * -2) / 2)
    r = np.exp([0.15, -0.2])
    assert metrics["policy/approx_kl"] == pytest.approx((r - 1 - np.log(r)).mean(), rel=1e-5)
    assert metrics["policy/clip_fraction"] == 1
    each, metrics = clipped_surrogate(change, advantage, mask, 0.1, "per_agent")
    terms = [1.1 * 2, np.exp(0.05) * 4, 0.9 * -1, np.exp(-0.1) * -1, np.exp(0.2) * -4]
    assert each == pytest.approx(np.mean(terms))
    assert metrics["policy/clip_fraction"] == pytest.approx(3 / 5)


# -- 4: memory ------------------------------------------------------------------------------------------------------

GRU = {"network": "gru", "widths": (6,), "initial_std": 1.0, "learning_rate": 0.05, "epochs": 2}


def test_04_replay_is_the_rollout_and_memory_ends_with_episodes():
    # Births, deaths and a newborn in its mother's slot at every other step; episodes of five, and two ends inside.
    heirs = np.tile(np.arange(3), (LENGTH, 1))
    heirs[1], heirs[3] = (0, -1, 1), (2, 1, 0)
    env, params = Scripted(), busy_script(heir_of=heirs)
    agent = MAPPO(**GRU, agent_id=True, minibatches=2, chunk_length=4)
    loud = lambda nets: eqx.tree_at(lambda n: n.actor.inner.dense.layers[-1].weight, nets, replace_fn=lambda w: 100 * w)  # noqa: E731
    state, rollout = gather(env, params, agent, 12, 4, nets=loud)
    actor, mask = state.agent.nets.actor, rollout.view.agent_mask
    batch = batch_of(agent, env, params, state, rollout)
    memory, inputs, source = (x.reshape(12, 4, 3, *x.shape[2:]) for x in (batch.memory, batch.inputs, batch.source))
    np.testing.assert_array_equal(memory[5], 0)
    assert np.abs(memory[4]).max() > 0.1

    @jax.jit
    def log_prob(memory, source):
        output = replay(actor, memory, inputs, source)
        return state.agent.head.log_prob(rollout.extras.raw, output, actor.spread, None)

    whole = log_prob(memory[0], source)
    np.testing.assert_allclose(whole[mask], rollout.extras.log_prob[mask], atol=1e-4)
    # What was remembered is learnt from: later outputs have a slope in what was known at first.
    later = lambda start: (replay(actor, start, inputs, source)[1:] ** 2).sum()  # noqa: E731
    assert np.abs(jax.jit(jax.grad(later))(memory[0])).max() > 1e-6
    # It matters: a memory that no episode's end and no birth clears gives other probabilities.
    never = np.broadcast_to(np.arange(3), source.shape)
    assert np.abs(log_prob(memory[0], never) - whole)[mask].max() > 0.01
    after, metrics = update(env, params, agent, state.agent, rollout)
    assert metrics["policy/first_ratio_error"] < 1e-4
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), after.nets.actor, actor)
    assert min(jax.tree.leaves(moved)) > 1e-4
    with pytest.raises(UserError, match="chunk_length = 5; chunk_length can be 1, 2, 3, 4, 6, 12"):
        check_pair(MAPPO(**GRU, chunk_length=5), env, params, 12, 4)


@dataclasses.dataclass(frozen=True)
class Recall(Environment):
    """A cue is shown at first; three steps later the action that it named is paid, and the episode is over."""

    @property
    def default_params(self):
        return table(limit=3)

    def agent_action_space(self, params):
        return spaces.Discrete(2)

    def agent_observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))

    def observe(self, key, state, action, params):
        return jnp.where(state.time == 0, 2.0 * state.place - 1, 0.0)[None]

    def reset_env(self, key, params):
        state = PlaceState(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        following = PlaceState(state.time + 1, state.place)
        over = following.time == 3
        paid = jnp.where(over & (action == state.place), 1.0, 0.0)
        return self.observe(key, following, None, params), following, paid, over, {}


@pytest.mark.slow
def test_04_what_was_seen_before_is_remembered():
    env, params = Recall(), table(limit=3)
    agent = MAPPO(network="gru", widths=(16,), learning_rate=1e-2, minibatches=1, chunk_length=6)
    state = create_train_state(env, params, agent, num_envs=32, num_iterations=60)
    state, _ = make_train_step(env, params, agent, num_envs=32, num_steps=12, iterations=60)(state)
    (found,) = evaluate_episodes(env, params, [agent.policy(state.agent)], 64, None, 0)
    assert found["return"] > 0.95  # without a memory, a half
    assert found["finished"] == 1
    with pytest.raises(UserError, match="has a memory"):
        agent.policy(state.agent)(None)


# -- 9 to 11 --------------------------------------------------------------------------------------------------------


def test_09_generations_hand_credit_on():
    # Everybody moves up a slot each period, and is paid by age: 1, 2, 4. Discounted by a half, ages are worth 3, 4, 4.
    reward = np.tile([1.0, 2.0, 4.0], (LENGTH, 1))
    observation = np.stack([np.tile([3.0, 4.0, 4.0], (LENGTH, 1)), np.zeros((LENGTH, 3))], axis=-1)
    params = script(observation=observation, reward=reward, next_slot=(1, 2, -1), heir_of=(-1, 0, 1), limit=5)
    agent = MAPPO(**SMALL, normalise_advantages=None, normalise_values=False, gae_lambda=1.0)
    weight = np.asarray([[1.0, 0.0]], np.float32)
    critic = lambda nets: eqx.tree_at(lambda n: n.critic.layers[0].weight, nets, jax.device_put(weight))  # noqa: E731
    state, rollout = gather(Scripted(), params, agent, 5, 2, nets=critic)
    known = batch_of(agent, Scripted(), params, state, rollout)
    np.testing.assert_allclose(known.advantage, 0, atol=1e-6)
    # Whoever is oldest in the third period gets 8 more: at age h it was in slot h, and nobody else has a part in it.
    gift = np.zeros((5, 2, 3))
    gift[2, :, 2] = 8
    found = batch_of(agent, Scripted(), params, state, rollout._replace(reward=rollout.reward + gift))
    expected = np.zeros((5, 2, 3))
    expected[[2, 1, 0], :, [2, 1, 0]] = np.array([[8.0], [4.0], [2.0]])
    np.testing.assert_allclose(found.advantage.reshape(5, 2, 3), expected, atol=1e-5)


@pytest.fixture(scope="module")
def everything():
    """A learner with most options of an update on, an environment where all of them matter, and a rollout."""
    agent = MAPPO(
        widths=(8,),
        epochs=2,
        minibatches=2,
        learning_rate=0.3,
        stepper={"optimizer": "sgd", "max_norm": 0.5},
        initial_std=1.0,
        agent_id=True,
        reward=0.3,
        minibatch_unit="rollouts",
        normalise_advantages="minibatch",
        value_loss="huber",
        huber_delta=0.5,
        value_clip=0.2,
        entropy=0.8,
        entropy_schedule="linear",
        entropy_final=0.5,
    )
    zero = lambda nets: eqx.tree_at(  # noqa: E731
        lambda n: last_layer(n.critic).weight, nets, replace_fn=lambda w: 0 * w
    )
    params = busy_script()
    state, rollout = gather(Scripted(), params, agent, 6, 4, nets=zero)
    return agent, params, state.agent, rollout


def test_10_rewards_times_a_thousand_change_no_update(everything):
    agent, params, state, rollout = everything
    ends = []
    for scale in (1.0, 1000.0):
        after, scaled = state, rollout._replace(reward=scale * rollout.reward)
        for iteration in range(2):
            after, _ = update(Scripted(), params, agent, after, scaled, iteration, 2)
        ends.append(after)
    small, large = ends
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), small.nets, large.nets)
    moved = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), small.nets, state.nets)
    assert min(jax.tree.leaves(moved)) > 1e-3
    np.testing.assert_allclose(large.values.moments(), 1000 * np.asarray(small.values.moments()), rtol=1e-4)


def test_10_new_units_change_no_value(everything):
    agent, params, state, rollout = everything
    trained, _ = update(Scripted(), params, agent, state, rollout, 0, 2)
    still = eqx.tree_at(lambda a: a.learning_rate, agent, jnp.zeros_like(agent.learning_rate))
    after, _ = update(Scripted(), params, still, trained, rollout._replace(reward=5 * rollout.reward), 1, 2)
    assert after.values.moments()[1] > 1.5 * trained.values.moments()[1]
    batch = batch_of(agent, Scripted(), params, type("", (), {"agent": state}), rollout)
    before, same = (agent._values(s, batch.critic_inputs, batch.mask) for s in (trained, after))
    assert np.ptp(before) > 0.1
    np.testing.assert_allclose(same, before, rtol=1e-4, atol=1e-5)


def test_the_course_of_the_entropy_bonus_and_the_value_error(everything):
    agent, params, state, rollout = everything
    still = eqx.tree_at(lambda a: a.learning_rate, agent, jnp.zeros_like(agent.learning_rate))
    _, metrics = update(Scripted(), params, still, state, rollout, 1, 2)
    # Gradient steps 4 to 7 of 8, of a bonus that falls from .8 to half of it.
    coefficient = 0.8 * (1 - 0.5 * np.arange(4, 8) / 8)
    entropy = float(metrics["policy/entropy"])
    assert metrics["loss/entropy"] == pytest.approx(-coefficient.mean() * entropy, rel=1e-2)
    batch = batch_of(still, Scripted(), params, type("", (), {"agent": state}), rollout)
    mask = np.asarray(batch.mask)
    target = np.asarray(batch.target)[mask]
    e = np.abs(target) / target.std()  # the critic's values are 0 in rewards, whatever the unit
    assert (e > 0.5).any()
    assert (e < 0.5).any()
    huber = np.where(e < 0.5, e**2, e - 0.25)
    assert metrics["loss/value"] == pytest.approx(0.5 * huber.mean(), rel=0.05)


def test_11_masks_and_ids_are_never_normalised(everything):
    agent, params, state, rollout = everything
    batch = batch_of(agent, Scripted(), params, type("", (), {"agent": state}), rollout)
    np.testing.assert_array_equal(batch.mask.reshape(rollout.view.agent_mask.shape), rollout.view.agent_mask)
    assert batch.mask.dtype == bool
    seen = []
    WithId(lambda x: seen.append(x), 3)(batch.inputs * 1e3)
    np.testing.assert_array_equal(seen[0][..., -3:], np.broadcast_to(np.eye(3), (24, 3, 3)))
    np.testing.assert_array_equal(seen[0][..., :2], batch.inputs * 1e3)


# -- the update -----------------------------------------------------------------------------------------------------


def test_value_errors_by_hand():
    yes = np.array([True, True])
    error = np.array([0.5, -3.0])
    zero = np.zeros(2)
    assert value_error(error, zero, yes) == (0.25 + 9) / 2
    assert value_error(error, zero, yes, delta=1.0) == (0.25 + 2 * 3 - 1) / 2
    # From 1 a value may move by a half: a step too far to a target is not rewarded, one away from it is punished.
    before = np.ones(2)
    assert value_error(np.array([0.0, 3.0]), zero, yes, before=before, clip=0.5) == (0.5**2 + 9) / 2
    slope = jax.grad(lambda v: value_error(v, zero, yes, delta=1.0))(np.array([1e30, 0.5]))
    np.testing.assert_allclose(slope, [1, 0.5])


def test_a_tiny_target_kl_stops_the_policy_after_the_first_epoch():
    agent = {"widths": (8,), "minibatches": 2, "learning_rate": 0.05, "initial_std": 1.0}
    env, params = Scripted(), busy_script()
    one = MAPPO(**agent, epochs=1)
    state, rollout = gather(env, params, one, 6, 4)
    once, _ = update(env, params, one, state.agent, rollout)
    tiny, told = update(env, params, MAPPO(**agent, epochs=3, target_kl=1e-12), state.agent, rollout)
    far, untold = update(env, params, MAPPO(**agent, epochs=3, target_kl=1e9), state.agent, rollout)
    assert told["policy/stopped"] == pytest.approx(2 / 3)
    assert untold["policy/stopped"] == 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), tiny.nets.actor, once.nets.actor)
    furthest = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b).max(), far.nets.actor, once.nets.actor)
    assert min(jax.tree.leaves(furthest)) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-2), tiny.nets.critic, far.nets.critic)
    assert np.abs(np.asarray(tiny.nets.critic.layers[0].weight) - once.nets.critic.layers[0].weight).max() > 1e-3


def test_minibatches_of_whole_rollouts():
    steps, envs = 3, 6
    batch = {"step": np.repeat(np.arange(steps), envs), "env": np.tile(np.arange(envs), steps)}
    cut = shuffled_chunks(jax.random.key(0), batch, steps, envs, 3, steps)
    groups = [set(row.tolist()) for row in cut["env"]]
    assert [len(group) for group in groups] == [2, 2, 2]
    assert set.union(*groups) == set(range(envs))
    for row in range(3):
        pairs = set(zip(cut["step"][row].tolist(), cut["env"][row].tolist(), strict=True))
        assert pairs == {(t, n) for t in range(steps) for n in groups[row]}
    orders = {
        tuple(shuffled_chunks(jax.random.key(k), batch, steps, envs, 3, steps)["env"][:, 0].tolist()) for k in (1, 2, 3)
    }
    assert len(orders) > 1
    with pytest.raises(UserError, match=r"num_envs = 6 rollouts .* 4 minibatches; minibatches can be 1, 2, 3, 6"):
        check_pair(MAPPO(minibatches=4, minibatch_unit="rollouts"), Table(), table(), 8, 6)


# -- who shares what ------------------------------------------------------------------------------------------------


def test_each_role_has_a_network_of_its_own():
    roles, x = (0, 1, 0), jax.random.normal(jax.random.key(3), (4, 3, 5))
    h = jax.random.normal(jax.random.key(4), (4, 3, 4))

    @jax.jit
    def outputs(key):
        """What each kind of network puts out, what its members do by themselves, and a gradient."""
        plain = shared_by(roles, lambda k: MLP(k, 5, 2, (4,), "tanh", 1.0), key)
        pooled = shared_by(roles, lambda k: SetCritic(k, 5, 1, (4,), "tanh", 1.0), key, together=True)
        gru = shared_by(roles, lambda k: RecurrentActor(k, 5, 2, None, (4, 4), "tanh"), key)
        member = lambda nets, agent: jax.tree.map(lambda leaf: leaf[roles[agent]], nets.members)  # noqa: E731
        found = plain(x), pooled(x), *gru.step(h, x)
        alone = [
            (
                member(plain, agent)(x[:, agent]),
                member(pooled, agent)(x)[:, agent],
                *member(gru, agent).step(h[:, agent], x[:, agent]),
            )
            for agent in range(3)
        ]
        slope = jax.grad(lambda nets: (nets(x)[:, 1] ** 2).sum())(plain)
        return found, alone, slope

    found, alone, slope = outputs(jax.random.key(0))
    for agent in range(3):
        for together, own in zip(found, alone[agent], strict=True):
            np.testing.assert_allclose(together[:, agent], own, rtol=1e-5, atol=1e-6)
    # What the second agent does teaches its own role and no other.
    for leaf in jax.tree.leaves(slope):
        assert np.abs(leaf[0]).max() == 0
        assert np.abs(leaf[1]).max() > 0


def test_a_set_does_not_care_who_stands_where():
    critic = SetCritic(jax.random.key(1), 4, 1, (5, 6), "tanh", 1.0)
    x = np.concatenate([np.ones((4, 1)), np.random.default_rng(0).normal(size=(4, 3))], axis=1).astype(np.float32)
    x[3, 0] = 0
    read = jax.jit(lambda inputs: critic(inputs))
    values = read(x)[:, 0]
    # The formula, for the first agent.
    w = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in critic.embedding.layers]
    e = np.tanh(np.tanh(x[:, 1:] @ w[0][0].T + w[0][1]) @ w[1][0].T + w[1][1])
    pools = np.concatenate([e[0], e[:3].mean(0), e[:3].max(0)])
    np.testing.assert_allclose(values[0], critic.readout(pools)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(read(x[[0, 2, 1, 3]])[[0, 2, 1], 0], values[:3], rtol=1e-5, atol=1e-6)
    garbage = np.where(np.arange(4)[:, None] == 3, [0, 1e6, -1e6, 5], x).astype(np.float32)
    np.testing.assert_allclose(read(garbage)[:3, 0], values[:3], rtol=1e-5, atol=1e-6)
    moved = x.copy()
    moved[1, 1] += 1
    assert abs(read(moved)[0, 0] - values[0]) > 1e-4
    assert np.isfinite(read(np.zeros_like(x))).all()


@dataclasses.dataclass(frozen=True)
class Duties(Environment):
    """Three agents see the same, and each is paid for an action of its own; the last two have one role."""

    num_agents: int = 3
    concept: str = "nash"

    @property
    def default_params(self):
        return table()

    def agent_roles(self, params):
        return np.array([7, 2, 2])

    def agent_action_space(self, params):
        return spaces.Discrete(2)

    def agent_observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))

    def observe(self, key, state, action, params):
        return jnp.ones((3, 1))

    def reset_env(self, key, params):
        return jnp.ones((3, 1)), EnvState(jnp.int32(0))

    def step_env(self, key, state, action, params):
        paid = (action == jnp.array([0, 1, 1])).astype(jnp.float32)
        return jnp.ones((3, 1)), EnvState(state.time + 1), paid, jnp.ones((), bool), {}


@pytest.mark.parametrize("option", [{"agent_id": True}, {"sharing": "per_role", "critic_network": "set"}])
def test_agents_that_see_the_same_learn_different_duties(option):
    env, params = Duties(), table()
    agent = MAPPO(**option, widths=(8,), learning_rate=3e-2, epochs=4, minibatches=1)
    assert roles_of("per_role", env, params) == (1, 0, 0)
    state = create_train_state(env, params, agent, num_envs=16, num_iterations=25)
    state, metrics = make_train_step(env, params, agent, num_envs=16, num_steps=4, iterations=25)(state)
    earned = np.asarray(metrics["episode/return_sum"] / metrics["episode/finished"])
    # Sharing one network, all would act alike: 2/3 at best.
    assert earned[0] < 0.65
    assert earned[-1] > 0.95
    assert metrics["policy/first_ratio_error"].max() < 1e-5


# -- names and refusals ---------------------------------------------------------------------------------------------


def test_named_settings():
    same = lambda a, b: bool(eqx.tree_equal(a, b))  # noqa: E731
    assert same(PPO(epochs=2), MAPPO(epochs=2, critic="local"))
    assert same(IPPO(agent_id=True), MAPPO(agent_id=True, critic="local"))
    with pytest.raises(UserError, match=r"critic = 'global' does not apply to PPO.*use MAPPO"):
        PPO(critic="global")
    with pytest.raises(UserError, match=r"ratio = 'joint' does not apply to IPPO"):
        IPPO(ratio="joint")
    assert team_episodes(epochs=3).epochs == 3
    assert team_episodes().stepper.weight_decay == 1e-4


def test_learners_by_name():
    config = resolve("FishWar-v0", "team_episodes", flags={"env": {"params": {"max_steps_in_episode": 7}}})
    assert (config.rollout.num_envs, config.rollout.num_steps, config.rollout.fresh_episodes) == (16, 7, True)
    chosen = resolve("FishWar-v0", "team_episodes", sets=["rollout.num_steps=5", "agent.epochs=1"])
    assert chosen.rollout.num_steps == 5
    ours = resolve("BrockMirman-v0", "ppo", sets=["agent.reward=0.5"])
    assert ours.agent.hyperparameters == {
        **resolve("BrockMirman-v0", "mappo").agent.hyperparameters,
        "reward": 0.5,
    }
    env, params = Scripted(), script()
    with pytest.raises(UserError, match="'ppo' has one agent, and Scripted-v0 has 3; use 'ippo'"):
        make_agent("ppo", env, params)
    assert make_agent("ippo", env, params, clip=0.1).critic == "local"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "teem"}, "Did you mean 'team'"),
        ({"reward": 1.5}, r"reward = 1.5.*\[0, 1\]"),
        ({"reward": 0.5, "value": "team_mean"}, "reward = 0.5 does not apply with value='team_mean'"),
        ({"ratio": "jont"}, "Did you mean 'joint'"),
        ({"huber_delta": 1.0}, "huber_delta = 1 does not apply with value_loss='mse'"),
        ({"entropy_final": 0.1}, "entropy_final = 0.1 does not apply with entropy_schedule='constant'"),
        ({"entropy_schedule": "linear"}, "does not apply with entropy = 0"),
        ({"normalise_advantages": "epoch"}, "unknown normalise_advantages"),
        ({"critic_network": "set", "critic": "local"}, "not critic='local'"),
        ({"critic_network": "set", "widths": ()}, "at least one width"),
        ({"network": "gur"}, "Did you mean 'gru'"),
        ({"chunk_length": 4}, "chunk_length = 4 does not apply with network='mlp'"),
        ({"agent_id": True, "sharing": "per_agent"}, "agent_id=True does not apply with sharing='per_agent'"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message) as caught:
        MAPPO(**options)
    assert "\n" not in str(caught.value)


@dataclasses.dataclass(frozen=True)
class Crowd(Scripted):
    """The same, of agents that come and go."""

    exchangeable = True


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Table(), {"value": "team_mean"}, "value = 'team_mean' does not apply to Table-v0, which has one agent"),
        (Table(), {"ratio": "joint"}, "ratio = 'joint' does not apply"),
        (Table(), {"reward": "own"}, "reward = 0 does not apply"),
        (Table(), {"sharing": "per_agent"}, "sharing = 'per_agent' does not apply"),
        (Table(), {"agent_id": True}, "agent_id = True does not apply"),
        (Table(), {"critic_network": "set"}, "critic_network = 'set' does not apply"),
        (Crowd(), {"agent_id": True}, "Crowd-v0, whose slots are reused"),
        (Crowd(), {"sharing": "per_agent"}, "Crowd-v0, whose slots are reused"),
        (Scripted(), {"sharing": "per_role"}, "all have one role; use sharing='shared' or 'per_agent'"),
    ],
)
def test_an_environment_without_a_use_for_it_refuses(env, options, message):
    with pytest.raises(UserError, match=message):
        check_pair(MAPPO(**options), env, env.default_params, 4, 4)


@pytest.mark.parametrize("options", [{"ratio": "joint"}, {"value": "team_mean"}, {"reward": 0.5}])
def test_a_team_solves_no_game_of_each_against_all(options):
    for concept, fits in (("mpe", False), ("cooperative", True)):
        env, params = equimorph.make("FishWar-v0", concept=concept)
        if fits:
            check_pair(MAPPO(**options), env, params, 4, 4)
            continue
        with pytest.raises(UserError, match=r"'mpe'; make it with concept='cooperative'"):
            check_pair(MAPPO(**options), env, params, 4, 4)

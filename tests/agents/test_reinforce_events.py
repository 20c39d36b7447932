"""REINFORCE on what a simulator sampled: known gradients of its events, by enumeration and by the simulator itself."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_morph
import numpy as np
import pytest
from jax_morph.physics import GROWTH_RATE

from equimorph.agents import REINFORCE
from equimorph.agents.agent import Context, Rollout, View, check_pair
from equimorph.agents.scores import Sampled
from equimorph.envs.tissues._steps import DIVISION_RATE
from equimorph.envs.tissues.cell_count import CellCount

from ..probes import gather, update

RAW = {"widths": (), "learning_rate": 1.0, "stepper": "sgd", "baseline": "none"}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bare(CellCount):
    """Cells that sense nothing but themselves, their place and the time: it compiles in half the time."""

    mode: str = "hazard"
    substeps: int = 1

    def build_sensors(self):
        return ()

    def bind_sensors(self, sensors, params):
        return sensors

    def initial_tissue(self, key, empty, params):
        alive = jnp.arange(self.capacity) < params.founders
        place = jnp.arange(self.capacity)[:, None] * jnp.array([0.8, 0.3]) + 0.05 * jax.random.normal(key)
        return empty.update(
            alive=alive,
            position=jnp.where(alive[:, None], place, 0.0),
            radius=jnp.where(alive, 0.5, empty.radius),
            growth_rate=jnp.where(alive, params.growth_rate, empty.growth_rate),
        )

    def local_observation(self, tissue, params):
        time = jnp.broadcast_to(self.remaining_time(tissue, params), tissue.radius.shape)
        return jnp.stack([4 * tissue.radius - 2, tissue.division_age, *tissue.position.T, time], axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growing(Bare):
    """The rate also drives growth, so that later observations depend on the policy without any event."""

    ports = (DIVISION_RATE, GROWTH_RATE)

    def write_action(self, tissue, action, params):
        return super().write_action(tissue, action, params).set("growth_rate", action[:, 0])


def bare(env, **overrides):
    """Parameters of two founders with high rates."""
    values = {"founders": 2, "target": 3.0, "max_steps_in_episode": 2, "rate_max": 6.0, "dt": 0.15, **overrides}
    return env.default_params.replace(**{name: jnp.asarray(value) for name, value in values.items()})


WEIGHTS = np.array([0.4, -0.3, 0.2, -0.5, 0.3, 0.1])  # of the five observations, and the bias


def linear(nets):
    layer = nets.network.layers[0]
    values = (jnp.asarray(WEIGHTS[None, :5], layer.weight.dtype), jnp.asarray(WEIGHTS[5:], layer.bias.dtype))
    return eqx.tree_at(lambda n: (n.network.layers[0].weight, n.network.layers[0].bias), nets, values)


def flat(nets):
    layer = nets.network.layers[0]
    return jnp.concatenate([layer.weight[0], layer.bias])


def happened(env, params, events, sampled=()):
    """What a rollout of one environment records where `events` `[T, A]` are made to happen."""
    certain = params.replace(rate_max=jnp.array(1e9))
    observation, state = env.reset_env(jax.random.key(3), params)

    def step(carry, row):
        state, observation = carry
        seen, after, reward, over, _ = env.step_env(jax.random.key(4), state, 1e9 * row[:, None], certain)
        view = View(observation, env.agent_mask(state, params))
        rest = (jnp.zeros((), bool), seen, state, after, env.successor(state, after, params), (), sampled)
        return (after, seen), Rollout(view, row[:, None], reward, jnp.ones(env.num_agents), over, *rest)

    rollout = jax.lax.scan(step, (state, observation), events.astype(float))[1]
    return jax.tree.map(lambda x: x[:, None], rollout)


def log_chance(output, rollout, events, params):
    """Log-probability of `events` where a cell's rate is that of a network's `output`, `[T, A]`."""
    exposure = params.rate_max * jax.nn.sigmoid(2 * output) * params.dt
    each = jnp.where(events, jnp.log(-jnp.expm1(-exposure)), -exposure)
    return jnp.where(rollout.view.agent_mask[:, 0], each, 0).sum()


def two_founders():
    """All that two founders can do in two steps: `[36, 2, 8]`."""
    for first in itertools.product([0, 1], repeat=2):
        for second in itertools.product([0, 1], repeat=2 + sum(first)):
            yield [[*first] + [0] * 6, [*second] + [0] * (8 - len(second))]


@pytest.mark.usefixtures("x64")
def test_events_and_trajectories_are_unbiased_on_two_founders():
    env = Bare(capacity=8)
    params, events = bare(env), np.array(list(two_founders()), bool)

    rollouts = jax.jit(jax.vmap(lambda row: happened(env, params, row)))(events)

    def objective(weights):
        def one(rollout, row):
            output = rollout.view.observation[:, 0] @ weights[:5] + weights[5]
            return jnp.exp(log_chance(output, rollout, row, params)), rollout.reward[:, 0, 0].sum()

        chance, earned = jax.vmap(one)(rollouts, events)
        return (chance * earned).sum(), chance

    truth, chance = jax.jit(jax.jacrev(objective, has_aux=True))(jnp.asarray(WEIGHTS))
    assert chance.sum() == pytest.approx(1, abs=1e-12)
    found = {}
    for score in ("events", "trajectory"):
        agent = REINFORCE(**RAW, score=score)
        check_pair(agent, env, params, 2, 1)
        state = agent.init(jax.random.key(0), env, params)
        state = state._replace(nets=linear(state.nets))

        @jax.jit
        @jax.vmap
        def each(rollout, agent=agent, state=state):
            context = Context(env, params, jnp.int32(0), jnp.int32(1))
            after, _ = agent.update(state, rollout, context, jax.random.key(0))
            return 2 * (flat(after.nets) - flat(state.nets))  # two transitions

        found[score] = each(rollouts)
        np.testing.assert_allclose(chance @ found[score], truth, atol=1e-10)
    np.testing.assert_allclose(found["events"], found["trajectory"], atol=1e-10)
    assert np.abs(truth).min() > 1e-3


@pytest.mark.usefixtures("x64")
def test_scores_of_a_sampled_action_are_unbiased():
    """One founder, one step: the noise of its rate by quadrature, its division listed."""
    env = Bare(capacity=2)
    params = bare(env, founders=1, max_steps_in_episode=1, target=2.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    events = np.array([[[0, 0]], [[1, 0]]], bool)
    rollouts = jax.jit(jax.vmap(lambda row: happened(env, params, row)))(events)

    def outcome(rollout, row, noise, nets):
        """What is recorded, its probability given the noise, and what is earned."""
        raw = nets(rollout.view.observation) + jnp.exp(nets.spread) * noise
        chance = jnp.exp(log_chance(raw[:, 0, :, 0], rollout, row, params))
        return rollout._replace(extras=Sampled(raw, jnp.full_like(raw, noise))), chance, rollout.reward[0, 0, 0]

    def over_all(function):
        """The mean over the noise of a sum over what happens."""
        each = jax.vmap(lambda rollout, row: jax.vmap(lambda x: function(rollout, row, x))(nodes))(rollouts, events)
        return jax.tree.map(lambda x: jnp.tensordot(jnp.asarray(weights), x.sum(axis=0), 1), each)

    def expected(nets):
        def one(*outcome_of):
            _, chance, earned = outcome(*outcome_of, nets)
            return chance * earned

        return over_all(one)

    for score in ("both", "events"):
        agent = REINFORCE(**RAW, score=score, initial_std=0.4)
        state = agent.init(jax.random.key(0), env, params)
        state = state._replace(nets=linear(state.nets))

        def gradient(*outcome_of, agent=agent, state=state):
            rollout, chance, _ = outcome(*outcome_of, state.nets)
            context = Context(env, params, jnp.int32(0), jnp.int32(1))
            after, _ = agent.update(state, rollout, context, jax.random.key(0))
            return jax.tree.map(lambda a, b: chance * (a - b), after.nets, state.nets)

        truth, found = jax.jit(lambda n, g=gradient: (jax.grad(expected)(n), over_all(g)))(state.nets)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), found, truth)
        assert np.abs(truth.spread).max() > 1e-4


@pytest.mark.usefixtures("x64")
def test_a_trajectory_is_scored_as_the_simulator_does():
    """The first episode's; what the loop goes on with after an overflow is left out."""
    env = Growing(capacity=5)
    params = bare(env, max_steps_in_episode=3)
    agent = REINFORCE(**RAW, score="trajectory")
    state, rollout = gather(env, params, agent, 3, 8, nets=linear)
    over = np.asarray(rollout.terminated)[:-1]
    first = np.concatenate([np.ones((1, 8)), 1 - np.maximum.accumulate(over)])
    assert 0 < over.any(axis=0).sum() < 8
    paid = np.asarray(rollout.reward)[:, :, 0] * first
    to_go = paid[::-1].cumsum(axis=0)[::-1]
    after, metrics = update(env, params, agent, state.agent, rollout)
    assert metrics["policy/scored_share"] == pytest.approx(first.mean())
    assert metrics["policy/weight_std"] == pytest.approx(np.sqrt((to_go**2).sum() / first.sum()))

    def theirs(nets):
        model = env.closed_loop(lambda seen: state.agent.head.mode(nets(seen)), params)

        def one(before, after, weight):
            frames = jax.tree.map(lambda x, y: jnp.concatenate([x[:1], y]), before, after)
            return weight @ jax_morph.trajectory_logp(model, frames, params.dt)

        return jax.vmap(one, (1, 1, 1))(rollout.env_state.tissue, rollout.next_env_state.tissue, to_go).mean() / 3

    step = flat(after.nets) - flat(state.agent.nets)
    np.testing.assert_allclose(step, flat(eqx.filter_jit(jax.grad(theirs))(state.agent.nets)), atol=1e-10)
    assert np.abs(step).min() > 1e-4

"""A learner that never learns, finished run folders of it, and a policy that does the same everywhere."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import equimorph
import equimorph.agents
import equimorph.training.presets
from equimorph.agents.agent import Policy
from equimorph.training.evaluation.economies import evaluate_economy


class Linear(Policy):
    """A linear policy that adds how many agents live and how many actions are legal."""

    weight: jax.Array

    def __call__(self, view, key=None):
        legal = 0.0 if view.action_mask is None else view.action_mask.sum()
        return view.observation @ self.weight + view.agent_mask.sum() + legal


class Constant(Policy):
    """The same action in every state, for every agent."""

    share: jax.Array

    def __call__(self, view, key=None):
        return jnp.broadcast_to(self.share, (view.agent_mask.shape[0], 1))


class Learner(eqx.Module):
    """A learner that never learns: enough for a folder."""

    width: int = eqx.field(default=1, static=True)

    def prepare(self, env, params):
        return self

    def init(self, key, env, params):
        size = env.observation_space(params).shape[-1]
        return {"weight": jax.random.normal(key, (size, self.width)), "step": jnp.zeros((), jnp.int32)}

    def policy(self, state):
        return Linear(state["weight"])


@pytest.fixture
def learner(monkeypatch):
    """The class `Learner`, which stands in for the agent "mappo"; the presets of the real one do not apply to it."""
    monkeypatch.setattr(equimorph.training.presets, "PRESETS", {})
    monkeypatch.setitem(vars(equimorph.agents), "MAPPO", Learner)
    return Learner


@pytest.fixture
def write_run(learner):
    """A function that writes a finished run of a configuration, and gives the trained and untrained state in it."""
    from equimorph.training.config import build
    from equimorph.training.run import UNTRAINED, RunFolder

    def write(config, path):
        env, params, agent = build(config)
        num_seeds = config.training.num_seeds
        keys = jax.random.split(jax.random.key(config.training.seed), 2 * num_seeds)
        states = jax.vmap(lambda key: agent.init(key, env, params))(keys)
        trained, untrained = (
            jax.tree.map(lambda leaf, part=part: leaf[part] if num_seeds > 1 else leaf[part][0], states)
            for part in (slice(num_seeds), slice(num_seeds, None))
        )
        folder = RunFolder.create(path)
        folder.write_config(config)
        folder.write_state(trained)
        folder.write_state(untrained, UNTRAINED)
        folder.write_info(config, env.concept, trained, finished=True)
        return trained, untrained

    return write


@pytest.fixture
def written(write_run):
    """A function that writes a finished run of BrockMirman at a path."""
    from equimorph.training.config import resolve

    def write(path, num_seeds=1):
        sets = ["env.params.beta=0.9", f"training.num_seeds={num_seeds}"]
        return write_run(resolve("BrockMirman-v0", "mappo", sets=sets), path)

    return write


@pytest.fixture(scope="session")
def constant():
    """A function from a number to the policy that plays it, in float64."""

    def make(share):
        with jax.enable_x64(True):
            return Constant(jnp.asarray(share, jnp.float64))

    return make


@pytest.fixture(scope="session")
def brock_mirman(constant):
    """One percent above the known answer: the economy, its parameters and the whole report."""
    with jax.enable_x64(True):
        env, params = equimorph.make("BrockMirman-v0")
        return env, params, evaluate_economy(env, params, [constant(1.01 * 0.3456)], 64, None, 0, full=True)[0]

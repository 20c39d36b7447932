"""Beyond a single task: gradients that lead somewhere, and policies that do not know the capacity."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_morph
import numpy as np
import optax
import pytest
from flax import struct
from jax_morph.control import GeneNetworkConnectionist
from jax_morph.physics import GROWTH_RATE, BrownianDynamics, SaturatingCellGrowth

import equimorph
from equimorph.agents.agent import View
from equimorph.agents.critics import Sight, critic_inputs, make_networks
from equimorph.agents.policies.actor import ActorPolicy, flat_observation
from equimorph.agents.policies.heads import make_head
from equimorph.envs import spaces
from equimorph.envs.tissue import MechanicsParams, Tissue
from equimorph.envs.tissues._cells import living_mean
from equimorph.envs.tissues._forces import SoftRepulsion


@struct.dataclass
class Genes(MechanicsParams):
    """Of three genes in every cell, the third of which is the rate at which it grows."""

    interaction: jax.Array | None = None
    target: float = 1.459


@dataclasses.dataclass(frozen=True, kw_only=True)
class Swelling(Tissue):
    """Nine cells that grow by a gene network and push each other apart; nobody acts."""

    capacity: int = 9
    interaction: ClassVar = SoftRepulsion()
    params_type: ClassVar = Genes

    def build_physics(self):
        genes = GeneNetworkConnectionist((), (GROWTH_RATE,), 2, W_gene=((0.0,) * 3,) * 3, W_in=((),) * 3, b=(0.0,) * 3)
        return jax_morph.Model(
            [genes, SaturatingCellGrowth(max_radius=1.0), BrownianDynamics(self.interaction, n_space_dim=2)]
        )

    def bind(self, physics, params):
        return eqx.tree_at(
            lambda model: (model.steps[0].W_gene, model.steps[2].kT), physics, (params.interaction, params.kT)
        )

    def initial_tissue(self, key, empty, params):
        place = 0.9 * jnp.stack(jnp.meshgrid(*[jnp.arange(-1.0, 2.0)] * 2), axis=-1).reshape(9, 2)
        return empty.update(
            alive=jnp.ones(9, bool),
            position=place.astype(empty.position.dtype),
            radius=jnp.full_like(empty.radius, 0.4),
            celltype=jnp.ones_like(empty.celltype),
        )

    def agent_action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))

    def write_action(self, tissue, action, params):
        return tissue

    def local_observation(self, tissue, params):
        return tissue.radius[:, None]

    def remaining_time(self, tissue, params):
        return jnp.ones(())

    def potential(self, tissue, params):
        away = tissue.position - living_mean(tissue, tissue.position)
        return -((jnp.sqrt(living_mean(tissue, jnp.sum(away**2, axis=1))) - params.target) ** 2)

    def score(self, state, params):
        return -self.potential(state.tissue, params)


@pytest.mark.extended
def test_a_gene_network_learns_a_radius_of_gyration_through_the_physics():
    """Nine cells, 3 x 3 genes, 8 steps, 60 updates of Adam at 0.1, from 0.0387 to below 1e-5 (squared diameters)."""
    with jax.enable_x64(True):
        env = Swelling()
        params = Genes(kT=jnp.array(0.0), dt=jnp.array(0.1), max_steps_in_episode=jnp.int32(8), target=jnp.array(1.459))

        def loss(interaction):
            genes = params.replace(interaction=interaction)
            _, state = env.reset_env(jax.random.key(0), genes)

            def step(state, key):
                return env.step_env(key, state, jnp.zeros((9, 1)), genes)[1], None

            return env.score(jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 8))[0], genes)

        adam = optax.adam(0.1)

        @jax.jit
        def update(interaction, state):
            value, slope = jax.value_and_grad(loss)(interaction)
            updates, state = adam.update(slope, state)
            return optax.apply_updates(interaction, updates), state, value

        interaction = 0.1 * jax.random.normal(jax.random.key(2), (3, 3))
        state, values = adam.init(interaction), []
        for _ in range(61):
            interaction, state, value = update(interaction, state)
            values.append(float(value))
        assert values[0] == pytest.approx(0.0387, abs=2e-4)
        assert values[60] < 1e-5


# -- another capacity ------------------------------------------------------------------------------------------------


SIGHTS = {"local": Sight("local"), "set": Sight("global+local", network="set")}


def put_out(env, params, head, networks):
    """The policy's and critics' outputs for nine scattered cells, while dead slots hold garbage."""

    @jax.jit
    def run(params, networks):
        _, state = env.reset_env(jax.random.key(1), params)
        place = jax.random.normal(jax.random.key(2), (9, 2))
        tissue = state.tissue.set("position", state.tissue.position.at[:9].set(1.5 * place))
        tissue, mask = env.sense(tissue, params), env.agent_mask(state, params)
        seen = jnp.where(mask[:, None], env.local_observation(tissue, params), 7.0)
        inputs = {
            name: critic_inputs(sight, env, params, seen, mask, state.replace(tissue=tissue))
            for name, sight in SIGHTS.items()
        }
        action = ActorPolicy(networks["local"].actor, head)(View(seen, mask))
        logits = networks["local"].actor(flat_observation(seen, mask))
        return action[:9], logits[:9], {name: networks[name].critic(inputs[name])[:9] for name in SIGHTS}

    return run(params, networks)


def test_policy_and_critics_see_cells_and_not_the_capacity():
    """One tissue of nine cells in 16 and in 32 slots: an actor, a local critic and one that pools give the same."""
    small, params = equimorph.make("CellCount-v0", capacity=16, target=12.0, founders=9)
    large, _ = equimorph.make("CellCount-v0", capacity=32, target=12.0, founders=9)
    head = make_head(small, params)
    networks = {
        name: make_networks(jax.random.key(0), sight, small, params, head, (16, 16), "tanh")
        for name, sight in SIGHTS.items()
    }
    rng = np.random.default_rng(0)  # an untrained policy hardly looks at what it sees
    networks = jax.tree.map(lambda x: x + rng.normal(0, 0.3, x.shape).astype(x.dtype), networks)
    (action, logits, critics), (other_action, other_logits, other_critics) = (
        put_out(env, params, head, networks) for env in (small, large)
    )
    assert float(jnp.std(logits[:, 1] - logits[:, 0])) > 0.02
    np.testing.assert_array_equal(other_action, action)
    np.testing.assert_allclose(other_logits, logits, atol=2e-6)
    for name in SIGHTS:
        assert float(jnp.std(critics[name])) > 0.01
        np.testing.assert_allclose(other_critics[name], critics[name], atol=5e-6, err_msg=name)


@pytest.mark.extended
def test_a_run_goes_on_in_a_larger_tissue():
    """`Run.changed` gives it another capacity; in a larger tissue with more founders it still finds their number."""
    run = equimorph.train(
        "CellCount-v0", "mappo", env={"capacity": 32}, iterations=40, value="team_mean", progress=False
    )
    larger = run.changed(["env.capacity=64", "env.params.founders=8", "env.params.target=36"])
    assert larger.env.num_agents == 64
    one, other = (equimorph.evaluate(each, num_episodes=64) for each in (run, larger))
    assert one["score"] < 0.5 * one["untrained"]["score"]
    assert other["score"] < 0.5 * other["untrained"]["score"]

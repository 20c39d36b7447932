"""When a critic should see more than an agent does: plants that share their profits.

Each of eight plants sees the demand at its own door and chooses its output; all earn the mean profit of the firm. What
the others' demand does to it is luck to a local critic, and stays in every plant's advantage; a central critic, which
sees all doors in training, takes it out. Policies are local in both. The best output is known: it meets demand.

    python examples/central_critic.py
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import equimorph
from equimorph.envs import spaces
from equimorph.envs.environment import NON_NEGATIVE, Environment, EnvParams, EnvState, canonical_params, parameter

PLANTS = 8


@struct.dataclass
class DoorState(EnvState):
    """Demand at each plant's door, in standard deviations."""

    demand: jax.Array


@struct.dataclass
class FirmParams(EnvParams):
    """What demand earns by itself, whatever a plant does."""

    margin: float = parameter(20.0, NON_NEGATIVE, "profit of a plant per unit of its demand")


@dataclasses.dataclass(frozen=True)
class Firm(Environment):
    """A plant's profit is margin * demand - (output - demand)^2; all earn the mean; an episode is one period."""

    num_agents: int = PLANTS
    concept: str = "cooperative"

    @property
    def default_params(self):
        return canonical_params(FirmParams())

    def agent_action_space(self, params):
        return spaces.Box(-4.0, 4.0, (1,))

    def agent_observation_space(self, params):
        return spaces.Box(-6.0, 6.0, (1,))

    def observe(self, key, state, action, params):
        return jnp.clip(state.demand, -6.0, 6.0)[:, None]

    def reset_env(self, key, params):
        state = DoorState(time=jnp.int32(0), demand=jax.random.normal(key, (PLANTS,)))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        action, clipped = self.legal_action(action, params)
        waste = jnp.mean((action[:, 0] - state.demand) ** 2)
        reward = jnp.full((PLANTS,), params.margin * state.demand.mean() - waste)
        following = DoorState(time=state.time + 1, demand=jax.random.normal(key, (PLANTS,)))
        info = {"waste": waste, "action_clipped": clipped}
        return self.observe(key, following, action, params), following, reward, jnp.ones((), bool), info


def waste(run: equimorph.training.Run, state) -> float:
    """Mean squared distance of output from demand, the only thing that a policy can save."""
    demand = np.random.default_rng(0).normal(size=(1000, PLANTS, 1)).clip(-6, 6).astype(np.float32)
    output = np.asarray(dataclasses.replace(run, state=state).policy(demand))
    return float(np.mean((output - demand) ** 2))


def main() -> None:
    """Train with either critic, three seeds each, and print what is wasted."""
    equimorph.register("Firm-v0", Firm, summary="plants that share their profits")
    for critic in ("local", "global+local"):
        settings = {"critic": critic, "iterations": 40, "num_seeds": 3, "learning_rate": 1e-3}
        settings |= {"critic_learning_rate": 3e-3, "rollout": {"num_envs": 64, "num_steps": 8}}
        runs = equimorph.train("Firm-v0", "mappo", progress=False, **settings).seeds
        untrained = waste(runs[0], runs[0].untrained_state)
        found = ", ".join(f"{waste(run, run.state):.4f}" for run in runs)
        print(f"critic={critic!r}: wasted {found} (untrained {untrained:.3f})", flush=True)


if __name__ == "__main__":
    main()

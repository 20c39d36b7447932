"""An environment of one's own that is no economy: two agents that meet on a line, trained as a team.

Each sees where both are, and steps by an amount and may call out; a call is worth something only where they are close.
`check_environment` says whether the contract is kept, before any learner is asked.

    python examples/custom_environment.py
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

import equimorph
from equimorph.envs import spaces
from equimorph.envs.environment import Environment, EnvParams, EnvState, canonical_params, parameter
from equimorph.training.report import evaluation_table


@struct.dataclass
class LineState(EnvState):
    """Where each agent is; `time` is inherited."""

    place: jax.Array


@struct.dataclass
class LineParams(EnvParams):
    """What may be swept; `max_steps_in_episode` is inherited."""

    reach: float = parameter(0.2, doc="distance at which a call is heard")
    max_steps_in_episode: int = parameter(16)


@dataclasses.dataclass(frozen=True)
class Meet(Environment):
    """Two agents on [-1, 1]. An action is a step in [-.2, .2] and whether to call."""

    num_agents: int = 2
    concept: str = "cooperative"

    @property
    def default_params(self):
        return canonical_params(LineParams())

    def agent_action_space(self, params):
        return spaces.Dict({"step": spaces.Box(-0.2, 0.2, (1,)), "call": spaces.Discrete(2)})

    def agent_observation_space(self, params):
        return spaces.Box(-2.0, 2.0, (2,))

    def observe(self, key, state, action, params):
        return jnp.stack([state.place, state.place[::-1] - state.place], axis=-1)

    def reset_env(self, key, params):
        state = LineState(time=jnp.int32(0), place=jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        action, clipped = self.legal_action(action, params)
        place = jnp.clip(state.place + action["step"][:, 0], -1.0, 1.0)
        next_state = LineState(time=state.time + 1, place=place)
        heard = jnp.abs(place[0] - place[1]) < params.reach
        reward = jnp.where(action["call"] == 1, jnp.where(heard, 1.0, -1.0), 0.0)
        over = jnp.zeros((), bool)  # the time limit truncates, by itself
        info = {"action_clipped": clipped}
        return self.observe(key, next_state, action, params), next_state, reward, over, info


def main() -> None:
    """Check it, train PPO's form for teams, and print the score beside the untrained policy's."""
    equimorph.check_environment(Meet())
    equimorph.register("Meet-v0", Meet, summary="two agents meet on a line")
    run = equimorph.train("Meet-v0", "mappo", iterations=60, learning_rate=1e-3, progress=False)
    print(evaluation_table({"mappo": equimorph.evaluate(run)}))


if __name__ == "__main__":
    main()

"""An economy of your own, solved by two learners: a cake that shrinks or grows by chance; the best is to keep beta."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

import equimorph
from equimorph.envs import economy, environment, shocks, spaces
# fmt: off


@struct.dataclass
class State(environment.EnvState):
    w: jax.Array  # what is left of the cake

@struct.dataclass
class Params(environment.EnvParams):
    beta: float = environment.parameter(0.9, environment.SHARE, "discount factor")
    sigma: float = environment.parameter(0.05, environment.POSITIVE, "standard deviation of the log shock")
    max_steps_in_episode: int = 64

@dataclasses.dataclass(frozen=True)
class Cake(economy.Economy):
    params_type, observation_size = Params, 1
    def agent_action_space(self, params):  # the share that is kept
        return spaces.Box(0.0, 1.0, (1,), jnp.result_type(float))
    def initial_state(self, key, params):
        return State(jnp.int32(0), jnp.exp(0.1 * jax.random.normal(key, (), jnp.result_type(float))))
    def observation(self, state, params):
        return jnp.log(state.w)[None]
    def shocks(self, params):
        return shocks.Normal(1)
    def transition(self, state, action, shock, params):
        return state.replace(w=action[0] * state.w * jnp.exp(params.sigma * shock[0]))
    def reward(self, state, action, params):
        return jnp.log((1 - action[0]) * state.w)
    def expectation_terms(self, state, decision, next_state, next_decision, params, *, next_policy):
        return {"saving": 1 / ((1 - next_decision.action[0]) * decision.action[0] * state.w)}
    def conditions(self, state, decision, expected, params):
        return {"euler": params.beta * expected["saving"] * (1 - decision.action[0]) * state.w - 1}
    def reference(self, params):
        return environment.Reference(lambda state: params.beta[None], None, self.concept)

equimorph.register("Cake-v0", Cake)
for agent in ("deqn", "mappo"):
    scores = equimorph.evaluate(run := equimorph.train("Cake-v0", agent, iterations=200, learning_rate=3e-3))
    print(agent, "is off by", scores["policy_error"], "and was, untrained, by", scores["untrained"]["policy_error"])
print("everything else there is to say about", agent, "stands in", equimorph.write_report(run, "cake.html", force=True))

"""The score-function gradient on one page: cells set their division rates, the simulator draws who divides.

1. Sample with the current policy, outside the loss, and stop the gradient: the record is fixed.
2. Score the record with the policy live, weigh it by what its episode was worth, reduce to a scalar, update.
It printed, after a minute of CPU: squared error untrained 105.5, best constant rate 90.8, trained 2.4.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import equimorph
from equimorph.agents.classical.tissues import rule_agent, squared_error

UPDATES, EPISODES, TESTED, optimizer = 200, 64, 512, optax.adam(1e-2)
env, params = equimorph.make("CellCount-v0", calibration="hazard")


def rates(policy, state):
    """A division rate for each cell, `[A, 1]`, from what it sees: between the bounds, of which the lower is 0."""
    return params.rate_max * jax.nn.sigmoid(jax.vmap(policy)(env.observe(None, state, None, params)))


def sample(policy, key):
    """An episode: the squared error it ends with, and the record, the states before and after each step."""

    def step(state, key):
        following = env.step_env(key, state, rates(policy, state), params)[1]
        return following, (state, following)

    keys = jax.random.split(key, int(params.max_steps_in_episode) + 1)
    last, record = jax.lax.scan(step, env.reset_env(keys[0], params)[1], keys[1:])
    return env.score(last, params), record


def loss(policy, record, advantage):
    """Minus the log-probability of the divisions on record, under the rates that the policy sets now, weighed."""
    score = jax.vmap(jax.vmap(lambda before, after: env.event_log_prob(before, rates(policy, before), after, params)))
    return -jnp.mean(advantage * score(*record).sum(axis=(1, 2)))


@eqx.filter_jit
def update(policy, moments, key):
    """One batch, one update; the other episodes' mean is each one's baseline."""
    error, record = jax.lax.stop_gradient(jax.vmap(sample, (None, 0))(policy, jax.random.split(key, EPISODES)))
    advantage = (error.mean() - error) / 100 * EPISODES / (EPISODES - 1)
    steps, moments = optimizer.update(eqx.filter_grad(loss)(policy, record, advantage), moments)
    return eqx.apply_updates(policy, steps), moments


policy = eqx.nn.MLP(5, 1, 32, 2, jnp.tanh, key=jax.random.key(0))
moments = optimizer.init(eqx.filter(policy, eqx.is_array))
tests = jax.random.split(jax.random.key(1), TESTED)
test = eqx.filter_jit(lambda policy: jax.vmap(sample, (None, 0))(policy, tests)[0].mean())
constant = squared_error(env, params, float(rule_agent("constant_hazard", env, params).rule.rate))
print(f"squared error of the number of cells: untrained {test(policy):.1f}, best constant rate {constant:.1f}")
for key in jax.random.split(jax.random.key(2), UPDATES):
    policy, moments = update(policy, moments, key)
print(f"trained {test(policy):.1f}")

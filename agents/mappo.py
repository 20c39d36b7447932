"""Multi-agent proximal policy optimisation; PPO where there is one agent, IPPO with the local critic.

Schulman et al. (2017), "Proximal policy optimization algorithms"; Yu et al. (2022), "The surprising effectiveness of
PPO in cooperative multi-agent games".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ..envs.environment import Environment, EnvParams, add_agent_axis
from ..errors import UserError, unknown
from .agent import (
    LONGEST_MEMORY,
    Agent,
    Context,
    Rollout,
    View,
    check_applies,
    check_followed,
    check_range,
    optional_scalar,
    reward_learner_concept,
    scalar,
)
from .estimators import generalised_advantage, masked_mean, normalise
from .policies.actor import Actor, ActorPolicy, flat_observation, observation_size
from .policies.heads import Head, make_head
from .policies.networks import MLP, check_network
from .steppers import Stepper, Terms, check_policy_gradient, check_schedule, make_stepper, scheduled

CRITICS = ("local", "global", "global+local")
NUM_LOSSES = 3


class ActorCritic(eqx.Module):
    """The trainable networks: one actor and one critic, shared by all agents."""

    actor: Actor
    critic: MLP


class ValueScale(NamedTuple):
    """Running moments of the value targets, exponentially weighted; `weight` undoes their start at zero."""

    mean: Float[Array, ""]
    square: Float[Array, ""]
    weight: Float[Array, ""]

    def moments(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Debiased mean and standard deviation: 0 and 1 before anything was seen."""
        seen = self.weight > 0
        weight = jnp.where(seen, self.weight, 1)
        mean = self.mean / weight
        variance = jnp.maximum(self.square / weight - mean**2, 0)
        floor = 1e-4 * jnp.abs(mean) + 1e-8
        return mean, jnp.where(seen, jnp.maximum(jnp.sqrt(variance), floor), 1)


class MAPPOState(NamedTuple):
    """What learning changes, and the head it acts through."""

    nets: ActorCritic
    head: Head
    stepper: PyTree
    values: ValueScale


class Extras(NamedTuple):
    """Stored while acting: the pre-squash sample and its log-probability, `[A, ...]` and `[A]`."""

    raw: PyTree
    log_prob: Float[Array, " A"]


class Batch(NamedTuple):
    """Transitions with all that a minibatch needs; leading axis B, then A."""

    inputs: Float[Array, "B A in"]
    critic_inputs: Float[Array, "B A S"]
    mask: Bool[Array, "B A"]
    action_mask: PyTree
    raw: PyTree
    log_prob: Float[Array, "B A"]
    advantage: Float[Array, "B A"]
    target: Float[Array, "B A"]


class MAPPO(Agent):
    """Clipped policy optimisation with a masked, successor-aware and truncation-aware GAE.

    Every agent shares one actor, which sees that agent's observation only. All numbers may be arrays.

    Args:
        learning_rate: of the stepper.
        schedule: "constant", "linear" or "cosine", over all gradient steps of the run.
        final_rate: where the schedule ends, as a share of `learning_rate`; 0 unless set.
        warmup: gradient steps over which the rate first grows linearly from nothing.
        gamma: discount; None takes the environment's own, transition by transition.
        gae_lambda: of the advantage estimates.
        clip: of the probability ratio.
        entropy: coefficient of the entropy bonus.
        value_coefficient: weight of the mean squared value error.
        normalise_values: the critic predicts values in units of their running mean and standard deviation (van Hasselt
            et al. 2016, output-preserving), so that the scale of rewards does not matter.
        value_decay: of those running moments, per iteration; 0.99 unless set.
        epochs: passes over each batch.
        minibatches: each pass is cut into; T x N must divide by it.
        critic: what values see: each agent's observation ("local"), the environment's `world_state` ("global"), or
            both. With one agent and no world state of its own, all three are its observation.
        widths: hidden sizes of actor and critic.
        activation: of both.
        initial_std: of a Box action before the squash, at the start; 0.5 unless set.
        stepper: a name such as "adam" or "pcgrad", a mapping as `make_stepper` takes it, or a `Stepper`; Adam with a
            global-norm limit of 0.5 by default. None that needs residuals or searches along a line.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=3e-4, converter=scalar)
    schedule: str = eqx.field(default="constant", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    warmup: int = eqx.field(default=0, static=True)
    gamma: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    gae_lambda: Float[Array, ""] = eqx.field(default=0.95, converter=scalar)
    clip: Float[Array, ""] = eqx.field(default=0.2, converter=scalar)
    entropy: Float[Array, ""] = eqx.field(default=0.0, converter=scalar)
    value_coefficient: Float[Array, ""] = eqx.field(default=0.5, converter=scalar)
    normalise_values: bool = eqx.field(default=True, static=True)
    value_decay: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    epochs: int = eqx.field(default=4, static=True)
    minibatches: int = eqx.field(default=4, static=True)
    critic: str = eqx.field(default="global+local", static=True)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=tuple)
    activation: str = eqx.field(default="tanh", static=True)
    initial_std: float | None = eqx.field(default=None, static=True)
    stepper: Stepper = eqx.field(default="adam", converter=lambda value: make_stepper(value, max_norm=0.5))

    def __check_init__(self):
        check_policy_gradient(self.stepper)
        check_schedule(self.schedule, self.final_rate)
        check_range("final_rate", self.final_rate, 0, 1)
        check_network(self.widths, self.activation)
        check_range("learning_rate", self.learning_rate, 0)
        check_range("warmup", self.warmup, 0)
        check_range("gamma", self.gamma, 0, 1)
        check_range("gae_lambda", self.gae_lambda, 0, 1)
        check_range("clip", self.clip, 0)
        check_range("value_decay", self.value_decay, 0, LONGEST_MEMORY)
        check_applies(
            "value_decay", self.value_decay, self.normalise_values, "with normalise_values=False; leave it out"
        )
        check_range("entropy", self.entropy, 0)
        check_range("value_coefficient", self.value_coefficient, 0)
        check_range("epochs", self.epochs, 1)
        check_range("minibatches", self.minibatches, 1)
        if self.critic not in CRITICS:
            raise unknown("critic", str(self.critic), CRITICS)

    def required(self) -> frozenset[str]:
        return frozenset()

    def concept(self, env: Environment) -> str:
        return reward_learner_concept(env)

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_followed(self, env)
        make_head(env, params, self.initial_std)
        total = num_steps * num_envs
        if total % self.minibatches:
            works = [n for n in range(1, min(total, 64) + 1) if total % n == 0]
            raise UserError(
                f"num_steps x num_envs = {num_steps} x {num_envs} = {total} transitions do not divide into "
                f"{self.minibatches} minibatches; minibatches can be {', '.join(map(str, works))}"
            )

    def init(self, key: Array, env: Environment, params: EnvParams) -> MAPPOState:
        key_actor, key_critic = jax.random.split(key)
        head = make_head(env, params, self.initial_std)
        actor = Actor(key_actor, observation_size(env, params), head.size, head.spread(), self.widths, self.activation)
        size = jax.eval_shape(lambda k: self._critic_inputs_at_reset(k, env, params), key).shape[-1]
        critic = MLP(key_critic, size, 1, self.widths, self.activation, 1.0)
        nets = ActorCritic(actor, critic)
        zero = jnp.zeros((), jnp.result_type(float))
        return MAPPOState(nets, head, self.stepper.init(nets, num_terms=NUM_LOSSES), ValueScale(zero, zero, zero))

    def restart(self, state: MAPPOState, env: Environment, params: EnvParams) -> MAPPOState:
        return state._replace(stepper=self.stepper.init(state.nets, num_terms=NUM_LOSSES))

    def initial_memory(self, state, env, params) -> tuple:
        return ()

    def act(self, state: MAPPOState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        output = state.nets.actor(flat_observation(view.observation, view.agent_mask))
        if not explore:
            return memory, state.head.mode(output, view.action_mask), ()
        spread = state.nets.actor.spread
        action, raw = state.head.sample(key, output, spread, view.action_mask)
        return memory, action, Extras(raw, state.head.log_prob(raw, output, spread, view.action_mask))

    def policy(self, state: MAPPOState) -> ActorPolicy:
        return ActorPolicy(state.nets.actor, state.head)

    def update(self, state: MAPPOState, rollout: Rollout, context: Context, key: Array):
        batch = self._batch(state, rollout, context)
        nets, values = state.nets, state.values
        if self.normalise_values:
            values = self._follow_targets(values, batch)
            nets = rescale_critic(nets, state.values.moments(), values.moments())
            mean, std = values.moments()
            batch = batch._replace(target=jnp.where(batch.mask, (batch.target - mean) / std, 0))
        final = 0.0 if self.final_rate is None else self.final_rate
        planned = context.num_iterations * self.epochs * self.minibatches
        done_before = context.iteration * self.epochs * self.minibatches

        def minibatch_step(carry, minibatch):
            nets, stepper, count = carry
            rate = scheduled(self.schedule, self.learning_rate, final, count, planned, self.warmup)
            nets, stepper, terms = self.stepper.step(
                lambda n: self._terms(n, state.head, minibatch), nets, stepper, rate
            )
            return (nets, stepper, count + 1), {**terms.losses, **terms.aux, "policy/learning_rate": rate}

        def epoch(carry, key_epoch):
            shuffled = shuffle(key_epoch, batch, self.minibatches)
            return jax.lax.scan(minibatch_step, carry, shuffled)

        carry = (nets, state.stepper, done_before)
        (nets, stepper, _), history = jax.lax.scan(epoch, carry, jax.random.split(key, self.epochs))
        metrics = {name: values.mean() for name, values in history.items()}
        metrics["policy/first_ratio_error"] = history["policy/ratio_error"][0, 0]
        del metrics["policy/ratio_error"]
        return MAPPOState(nets, state.head, stepper, values), metrics

    # -- inside an update -------------------------------------------------------------------------------------------

    def _critic_inputs(self, env, params, observation, agent_mask, env_state) -> Float[Array, "*batch A S"]:
        """What the critic sees; any leading batch axes."""
        local = flat_observation(observation, agent_mask)
        own_world = type(env).world_state is not Environment.world_state
        if self.critic == "local" or (env.num_agents == 1 and not own_world):
            return local
        if own_world:
            world = lambda s: env.world_state(s, params)  # noqa: E731
            for _ in agent_mask.shape[:-1]:
                world = jax.vmap(world)
            shared = world(env_state)
        else:  # every agent's observation, as it was seen, without what stands in dead slots
            shared = local.reshape(*agent_mask.shape[:-1], -1)
        shared = jnp.broadcast_to(shared[..., None, :], (*agent_mask.shape, shared.shape[-1]))
        return shared if self.critic == "global" else jnp.concatenate([shared, local], axis=-1)

    def _critic_inputs_at_reset(self, key, env, params):
        observation, env_state = env.reset_env(key, params)
        mask = env.agent_mask(env_state, params)
        return self._critic_inputs(env, params, add_agent_axis(env, observation), mask, env_state)

    def _follow_targets(self, values: ValueScale, batch: Batch) -> ValueScale:
        """The running moments with this batch's targets in them."""
        keep = 0.99 if self.value_decay is None else self.value_decay
        new = 1 - keep
        return ValueScale(
            keep * values.mean + new * masked_mean(batch.target, batch.mask),
            keep * values.square + new * masked_mean(batch.target**2, batch.mask),
            keep * values.weight + new,
        )

    def _batch(self, state: MAPPOState, rollout: Rollout, context: Context) -> Batch:
        """Advantages and targets, in units of the reward, from the whole rollout, flattened to transitions."""
        env, params, nets = context.env, context.params, state.nets
        mean, std = state.values.moments() if self.normalise_values else (0.0, 1.0)
        mask = rollout.view.agent_mask
        next_mask = jax.vmap(jax.vmap(lambda s: env.agent_mask(s, params)))(rollout.next_env_state)
        inputs = self._critic_inputs(env, params, rollout.view.observation, mask, rollout.env_state)
        next_inputs = self._critic_inputs(env, params, rollout.next_observation, next_mask, rollout.next_env_state)
        value = jnp.where(mask, mean + std * nets.critic(inputs)[..., 0], 0)
        next_value = jnp.where(next_mask, mean + std * nets.critic(next_inputs)[..., 0], 0)
        advantage = generalised_advantage(
            jnp.where(mask, rollout.reward, 0),
            value,
            next_value,
            rollout.discount if self.gamma is None else jnp.broadcast_to(self.gamma, rollout.discount.shape),
            rollout.terminated,
            rollout.truncated,
            rollout.successor,
            self.gae_lambda,
        )
        batch = Batch(
            inputs=flat_observation(rollout.view.observation, mask),
            critic_inputs=inputs,
            mask=mask,
            action_mask=rollout.view.action_mask,
            raw=rollout.extras.raw,
            log_prob=rollout.extras.log_prob,
            advantage=normalise(advantage, mask),
            target=jnp.where(mask, value + advantage, 0),
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

    def _terms(self, nets: ActorCritic, head: Head, batch: Batch) -> Terms:
        """The clipped surrogate, the value error and the entropy bonus of one minibatch, over living agents."""
        output = nets.actor(batch.inputs)
        log_prob = head.log_prob(batch.raw, output, nets.actor.spread, batch.action_mask)
        value = nets.critic(batch.critic_inputs)[..., 0]
        _same_shape(log_prob, batch.log_prob, batch.advantage, value, batch.target, batch.mask)
        change = jnp.where(batch.mask, log_prob - batch.log_prob, 0)
        ratio = jnp.exp(change)
        limited = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        surrogate = jnp.minimum(ratio * batch.advantage, limited * batch.advantage)
        entropy = masked_mean(head.entropy(output, nets.actor.spread, batch.action_mask), batch.mask)
        losses = {
            "loss/policy": -masked_mean(surrogate, batch.mask),
            "loss/value": self.value_coefficient * masked_mean((value - batch.target) ** 2, batch.mask),
            "loss/entropy": -self.entropy * entropy,
        }
        aux = {
            "policy/entropy": entropy,
            "policy/approx_kl": masked_mean(ratio - 1 - change, batch.mask),
            "policy/clip_fraction": masked_mean((jnp.abs(ratio - 1) > self.clip).astype(ratio.dtype), batch.mask),
            "policy/ratio_error": jnp.max(jnp.abs(ratio - 1)),
        }
        return Terms(losses, None, aux)


def rescale_critic(nets: ActorCritic, old: tuple[Array, Array], new: tuple[Array, Array]) -> ActorCritic:
    """The critic whose outputs in the new mean and standard deviation are the values it had in the old ones."""
    (old_mean, old_std), (new_mean, new_std) = old, new
    last = nets.critic.layers[-1]
    weight = last.weight * old_std / new_std
    bias = (last.bias * old_std + old_mean - new_mean) / new_std
    return eqx.tree_at(lambda n: (n.critic.layers[-1].weight, n.critic.layers[-1].bias), nets, (weight, bias))


def shuffle(key: Array, batch: PyTree, minibatches: int) -> PyTree:
    """The same transitions in random order, cut along a new first axis `[minibatches, B, ...]`."""
    size = jax.tree.leaves(batch)[0].shape[0]
    order = jax.random.permutation(key, size)
    return jax.tree.map(lambda x: x[order].reshape(minibatches, size // minibatches, *x.shape[1:]), batch)


def _same_shape(*arrays: Any) -> None:
    """Nothing in a loss may broadcast by accident."""
    shapes = [x.shape for x in arrays]
    if len(set(shapes)) != 1:
        raise ValueError(f"arrays in one loss must have one shape, got {shapes}")

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

from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis
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
from .continuation import EXPECTATIONS, check_expectation, expected_continuation
from .estimators import follow, generalised_advantage, masked_mean, normalise
from .minibatches import shuffled
from .policies.actor import Actor, ActorPolicy, flat_observation, observation_size
from .policies.heads import Head, make_head
from .policies.networks import MLP, check_network
from .steppers import Stepper, Terms, check_policy_gradient, check_schedule, make_stepper, scheduled
from .value_scale import ValueScale, rescaled

CRITICS = ("local", "global", "global+local")
NUM_LOSSES = 3
LEAST_STD = 1e-6


class ActorCritic(eqx.Module):
    """The trainable networks: one actor and one critic, shared by all agents."""

    actor: Actor
    critic: MLP


class MAPPOState(NamedTuple):
    """What learning changes, and the head it acts through."""

    nets: ActorCritic
    head: Head
    stepper: PyTree
    values: ValueScale


class Shares(NamedTuple):
    """The larger of two learning rates, `of`, and what share of it the actor's and the critic's are."""

    of: Float[Array, ""]
    actor: Float[Array, ""]
    critic: Float[Array, ""]


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
        critic_learning_rate: of the critic; None takes `learning_rate`. It has the same schedule and warm-up.
        critic_warmup: iterations in which only the critic learns, before the policy first moves.
        schedule: "constant", "linear" or "cosine", over all gradient steps of the run.
        final_rate: where the schedule ends, as a share of `learning_rate`; 0 unless set.
        warmup: gradient steps over which the rate first grows linearly from nothing.
        gamma: discount; None takes the environment's own, transition by transition.
        gae_lambda: of the advantage estimates.
        expectation: "quadrature": an economy's law of shocks is used to take the noise of the next shock out of
            advantages and value targets (see `continuation`); `gae_lambda` can then be 1. None: it is left in.
        rule, order: of that quadrature; None takes the law's usual.
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
        final_std: where it ends; it then falls geometrically over the run, whatever rewards say. None: it is learned.
        stepper: a name such as "adam" or "pcgrad", a mapping as `make_stepper` takes it, or a `Stepper`; Adam with a
            global-norm limit of 0.5 by default. None that needs residuals or searches along a line.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=3e-4, converter=scalar)
    critic_learning_rate: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    critic_warmup: int = eqx.field(default=0, static=True)
    schedule: str = eqx.field(default="constant", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    warmup: int = eqx.field(default=0, static=True)
    gamma: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    gae_lambda: Float[Array, ""] = eqx.field(default=0.95, converter=scalar)
    expectation: str | None = eqx.field(default=None, static=True)
    rule: str | None = eqx.field(default=None, static=True)
    order: int | None = eqx.field(default=None, static=True)
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
    final_std: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    stepper: Stepper = eqx.field(default="adam", converter=lambda value: make_stepper(value, max_norm=0.5))

    def __check_init__(self):
        check_policy_gradient(self.stepper)
        check_schedule(self.schedule, self.final_rate)
        check_range("final_rate", self.final_rate, 0, 1)
        check_network(self.widths, self.activation)
        check_range("learning_rate", self.learning_rate, 0)
        check_range("critic_learning_rate", self.critic_learning_rate, 0)
        check_range("critic_warmup", self.critic_warmup, 0)
        check_range("warmup", self.warmup, 0)
        check_range("gamma", self.gamma, 0, 1)
        check_range("gae_lambda", self.gae_lambda, 0, 1)
        check_range("clip", self.clip, 0)
        check_range("value_decay", self.value_decay, 0, LONGEST_MEMORY)
        check_applies(
            "value_decay", self.value_decay, self.normalise_values, "with normalise_values=False; leave it out"
        )
        check_range("final_std", self.final_std, LEAST_STD)
        check_range("entropy", self.entropy, 0)
        check_range("value_coefficient", self.value_coefficient, 0)
        check_range("epochs", self.epochs, 1)
        check_range("minibatches", self.minibatches, 1)
        if self.critic not in CRITICS:
            raise unknown("critic", str(self.critic), CRITICS)
        if self.expectation is not None and self.expectation not in EXPECTATIONS:
            raise unknown("expectation", str(self.expectation), EXPECTATIONS)
        check_range("order", self.order, 1)
        for name in ("rule", "order"):
            applies = self.expectation is not None
            check_applies(name, getattr(self, name), applies, "without expectation='quadrature'; leave it out")

    def required(self) -> frozenset[str]:
        return frozenset()

    def concept(self, env: Environment) -> str:
        return reward_learner_concept(env)

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_followed(self, env)
        spread = jax.tree.leaves(make_head(env, params, self.initial_std).spread())
        check_applies("final_std", self.final_std, bool(spread), f"to {env.name}, whose actions are discrete")
        if self.expectation is not None:
            check_expectation(env, params, self.rule, self.order)
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
            values = values.following(batch.target, batch.mask, 0.99 if self.value_decay is None else self.value_decay)
            mean, std = values.moments()
            critic = rescaled(nets.critic, state.values.moments(), (mean, std))
            nets = ActorCritic(nets.actor, critic)
            batch = batch._replace(target=jnp.where(batch.mask, (batch.target - mean) / std, 0))
        final = 0.0 if self.final_rate is None else self.final_rate
        planned = context.num_iterations * self.epochs * self.minibatches
        done_before = context.iteration * self.epochs * self.minibatches
        shares = self._shares(context.iteration)
        steps, envs = rollout.terminated.shape

        def minibatch_step(carry, minibatch):
            nets, stepper, count = carry
            rate = scheduled(self.schedule, shares.of, final, count, planned, self.warmup)
            after, stepper, terms = self.stepper.step(
                lambda n: self._terms(n, state.head, minibatch), nets, stepper, rate
            )
            metrics = {**terms.losses, **terms.aux, "policy/learning_rate": rate * shares.actor}
            if self._apart:
                metrics["policy/critic_learning_rate"] = rate * shares.critic
                after = ActorCritic(
                    _part_of_the_way(nets.actor, after.actor, shares.actor),
                    _part_of_the_way(nets.critic, after.critic, shares.critic),
                )
            if self.final_std is not None:
                after = _with_spread(after, nets.actor.spread)
            return (after, stepper, count + 1), metrics

        def epoch(carry, key_epoch):
            return jax.lax.scan(minibatch_step, carry, shuffled(key_epoch, batch, steps, envs, self.minibatches))

        carry = (nets, state.stepper, done_before)
        (nets, stepper, _), history = jax.lax.scan(epoch, carry, jax.random.split(key, self.epochs))
        metrics = {name: values.mean() for name, values in history.items()}
        metrics["policy/first_ratio_error"] = history["policy/ratio_error"][0, 0]
        del metrics["policy/ratio_error"]
        if self.final_std is not None:
            spread = self._planned_spread(state.head, (context.iteration + 1) / context.num_iterations)
            nets = _with_spread(nets, spread)
        return MAPPOState(nets, state.head, stepper, values), metrics

    @property
    def _apart(self) -> bool:
        """Whether actor and critic ever move at rates of their own."""
        return self.critic_learning_rate is not None or self.critic_warmup > 0

    def _shares(self, iteration: Array) -> Shares:
        slow = self.learning_rate
        fast = slow if self.critic_learning_rate is None else self.critic_learning_rate
        largest = jnp.maximum(slow, fast)
        whole = jnp.where(largest > 0, largest, 1)
        moves = (iteration >= self.critic_warmup).astype(largest.dtype)
        return Shares(largest, moves * slow / whole, fast / whole)

    def _planned_spread(self, head: Head, progress: Array) -> PyTree:
        """The log standard deviation after a share of the run."""
        assert self.final_std is not None
        end, share = jnp.log(self.final_std), jnp.clip(progress, 0, 1)
        return jax.tree.map(lambda start: (start + (end - start) * share).astype(start.dtype), head.spread())

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
        discount = rollout.discount if self.gamma is None else jnp.broadcast_to(self.gamma, rollout.discount.shape)
        reward = jnp.where(mask, rollout.reward, 0)
        if self.expectation is not None:
            came = discount * jax.vmap(follow)(next_value, rollout.successor)
            reward = reward + jnp.where(mask, self._expected(state, rollout, context) - came, 0)
        ends = (rollout.terminated, rollout.truncated)
        advantage = generalised_advantage(
            reward, value, next_value, discount, *ends, rollout.successor, self.gae_lambda
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

    def _expected(self, state: MAPPOState, rollout: Rollout, context: Context) -> Float[Array, "T N A"]:
        """Expected discounted value of the next state, to each agent where it is then."""
        env, params = context.env, context.params
        assert isinstance(env, Economy)
        mean, std = state.values.moments() if self.normalise_values else (0.0, 1.0)
        over = lambda f: jax.vmap(jax.vmap(f))  # noqa: E731

        def worth(before: EnvState, after: EnvState) -> Float[Array, "T N A"]:
            mask = over(lambda s: env.agent_mask(s, params))(after)
            observation = over(lambda s: add_agent_axis(env, env.observation(s, params)))(after)
            inputs = self._critic_inputs(env, params, observation, mask, after)
            value = jnp.where(mask, mean + std * state.nets.critic(inputs)[..., 0], 0)
            slots = over(lambda s, n: env.successor(s, n, params))(before, after)
            discount = over(lambda s, n: jnp.broadcast_to(env.step_discount(s, n, params), (env.num_agents,)))
            gamma = discount(before, after) if self.gamma is None else self.gamma
            return gamma * jax.vmap(follow)(value, slots)

        action = over(lambda a: drop_agent_axis(env, a))(rollout.action)
        return expected_continuation(worth, env, params, rollout.env_state, action, self.rule, self.order)

    def _terms(self, nets: ActorCritic, head: Head, batch: Batch) -> Terms:
        """The clipped surrogate, the value error and the entropy bonus of one minibatch, over living agents."""
        if self.final_std is not None:
            nets = _with_spread(nets, jax.lax.stop_gradient(nets.actor.spread))
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


def _with_spread(nets: ActorCritic, spread: PyTree) -> ActorCritic:
    """The networks with another log standard deviation."""
    return eqx.tree_at(lambda n: n.actor.spread, nets, spread)


def _part_of_the_way(before: PyTree, after: PyTree, share: Float[Array, ""]) -> PyTree:
    """Parameters moved by a share of a step."""
    return jax.tree.map(lambda old, new: old + share * (new - old), before, after)


def _same_shape(*arrays: Any) -> None:
    """Nothing in a loss may broadcast by accident."""
    shapes = [x.shape for x in arrays]
    if len(set(shapes)) != 1:
        raise ValueError(f"arrays in one loss must have one shape, got {shapes}")

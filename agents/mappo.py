"""Multi-agent proximal policy optimisation; PPO where there is one agent, IPPO with the local critic.

Schulman et al. (2017), "Proximal policy optimization algorithms"; Yu et al. (2022), "The surprising effectiveness of
PPO in cooperative multi-agent games".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis
from .agent import (
    Agent,
    Context,
    Rollout,
    View,
    check_applies,
    check_followed,
    reward_learner_concept,
)
from .continuation import check_expectation, expected_continuation
from .critics import ActorCritic, Sight, critic_inputs, make_networks
from .estimators import follow, generalised_advantage, masked_mean, normalise
from .mappo_options import (
    check_division,
    check_options,
    check_population,
    entropy_at,
    learning_rates,
    part_of_the_way,
    planned_spread,
    reward_share,
)
from .minibatches import shuffled, shuffled_chunks
from .options import check_single_numbers, number, sequence
from .policies.actor import ActorPolicy, flat_observation
from .policies.heads import Head, make_head
from .policies.planner import check_planner, planner_head
from .policies.recurrent import RecurrentPolicy, replay
from .policies.sharing import shared_spread, with_spread
from .self_play import LEARNER, AveragePolicy, Past, beginning, joint_outputs, remembered, seated
from .steppers import Stepper, Terms, make_stepper, scheduled
from .surrogate import HUBER_DELTA, clipped_surrogate, value_error
from .teams import mixed_reward, team_mean
from .value_scale import ValueScale, rescaled

NUM_LOSSES = 3


class MAPPOState(NamedTuple):
    """What learning changes, and the head it acts through; `past` where rivals act by it."""

    nets: ActorCritic
    head: Head
    stepper: PyTree
    values: ValueScale
    past: Past | None = None


class Extras(NamedTuple):
    """Stored while acting: the pre-squash sample, `[A, ...]`, its log-probability, and who learns; None: all do."""

    raw: PyTree
    log_prob: Float[Array, " A"]
    learns: Bool[Array, " A"] | None = None


class Batch(NamedTuple):
    """Transitions with all that a minibatch needs; leading axis B, then A.

    What is the team's stands at every living agent. `mask` has those that are learnt from. `value` is the critic's
    before the update, in the units of `target`; `memory` is the actor's before each step, and `source` the slot that
    each one's is taken from after it (-1: a fresh one). They are None where nothing reads them.
    """

    inputs: Float[Array, "B A in"]
    critic_inputs: Float[Array, "B A S"]
    mask: Bool[Array, "B A"]
    action_mask: PyTree
    raw: PyTree
    log_prob: Float[Array, "B A"]
    advantage: Float[Array, "B A"]
    target: Float[Array, "B A"]
    value: Float[Array, "B A"] | None = None
    memory: Float[Array, "B A H"] | None = None
    source: Int[Array, "B A"] | None = None


class MAPPO(Agent):
    """Clipped policy optimisation with a masked, successor-aware and truncation-aware GAE.

    An actor sees its agent's observation only. All numbers may be arrays. Dead slots enter nothing.

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
        reward: what an agent is paid: its "own" (where the concept is cooperative that is the team's), the "team"'s
            mean, or (a number in [0, 1]) that share of the team's and the rest its own. None is "own", and with
            value="team_mean" it is the team's.
        value: "per_agent", or "team_mean": the team's value is the mean of the living agents', and one advantage of the
            team's mean reward is everybody's. The team goes on when one of it dies.
        ratio: "per_agent", or "joint": one clipped term a transition, of the probability of what all living agents did
            together, times the mean of their advantages.
        normalise_advantages: to mean 0 and standard deviation 1 over the "batch" or each "minibatch"; None: not at all.
        clip: of the probability ratio.
        target_kl: once a minibatch's approximate KL divergence from the policy that acted is above it, later epochs
            leave the policy as it is and teach the critic alone; None: no limit.
        entropy: coefficient of the entropy bonus.
        entropy_schedule, entropy_final: its course, as `schedule` and `final_rate` are the learning rate's.
        value_coefficient: weight of the value error.
        value_loss: "mse", or "huber": the square up to `huber_delta`, 10 unless set (Yu et al. 2022), and linear
            beyond; in the critic's units.
        value_clip: how far from its value before the update a prediction counts, in the critic's units (Schulman et
            al.'s code; Engstrom et al. 2020 find no gain); None: anywhere.
        normalise_values: the critic predicts values in units of their running mean and standard deviation (van Hasselt
            et al. 2016, output-preserving), so that the scale of rewards does not matter.
        value_decay: of those running moments, per iteration; 0.99 unless set.
        epochs: passes over each batch.
        minibatches: each pass is cut into.
        minibatch_unit: what is dealt out to them: single "transitions" (T x N must divide by `minibatches`; with a
            memory chunks, whose number must), or whole "rollouts" of an environment (N must).
        sharing: who shares actor and critic: all agents ("shared"), those of one role of the environment's
            ("per_role"), or nobody ("per_agent").
        agent_id: the agent's number, one-hot, behind what its actor and its own part of the critic see. Not where slots
            are reused.
        opponents: by what rivals act in a game: the "current" policy, or the "average" of all so far (fictitious
            self-play). Then one agent an episode learns, so only its transitions are learnt from, and the average is
            what is evaluated; see `self_play`.
        snapshots: how many policies stand for the average; 32 unless set.
        critic: what values see: each agent's observation ("local"), the environment's `world_state` ("global"), or
            both. With one agent and no world state of its own, all three are its observation.
        critic_network: "mlp", or "set": all living agents' observations as a set, by the mean and the largest of their
            embeddings, beside the agent's own embedding.
        network: the actor's: "mlp", or "gru", which has a memory. The loop carries it from step to step and with each
            agent, and training replays it. The critic has none. Or "planner", which chooses a goal on a grid and moves
            towards it (see `policies.planner`).
        distil_steps: with network="planner", supervised steps before learning starts, that teach it where one can walk;
            500 unless set.
        chunk_length: steps that a "gru" is replayed and differentiated through, from the memory that it had there; T
            must divide by it. None: the whole rollout.
        widths: hidden sizes of actor and critic; of a "gru" first the memory's.
        activation: of both.
        distribution: of Box actions, "gaussian" (before the squash) or "beta"; gaussian unless set.
        initial_std: of a Box action before the squash, at the start; 0.5 unless set.
        final_std: where it ends; it then falls geometrically over the run, whatever rewards say. None: it is learned.
        stepper: a name such as "adam" or "pcgrad", a mapping as `make_stepper` takes it, or a `Stepper`; Adam with a
            global-norm limit of 0.5 by default. None that needs residuals or searches along a line.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=3e-4, converter=number)
    critic_learning_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    critic_warmup: int = eqx.field(default=0, static=True)
    schedule: str = eqx.field(default="constant", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    warmup: int = eqx.field(default=0, static=True)
    gamma: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    gae_lambda: Float[Array, ""] = eqx.field(default=0.95, converter=number)
    expectation: str | None = eqx.field(default=None, static=True)
    rule: str | None = eqx.field(default=None, static=True)
    order: int | None = eqx.field(default=None, static=True)
    reward: str | Float[Array, ""] | None = eqx.field(default=None, converter=reward_share)
    value: str = eqx.field(default="per_agent", static=True)
    ratio: str = eqx.field(default="per_agent", static=True)
    normalise_advantages: str | None = eqx.field(default="batch", static=True)
    clip: Float[Array, ""] = eqx.field(default=0.2, converter=number)
    target_kl: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    entropy: Float[Array, ""] = eqx.field(default=0.0, converter=number)
    entropy_schedule: str = eqx.field(default="constant", static=True)
    entropy_final: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    value_coefficient: Float[Array, ""] = eqx.field(default=0.5, converter=number)
    value_loss: str = eqx.field(default="mse", static=True)
    huber_delta: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    value_clip: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    normalise_values: bool = eqx.field(default=True, static=True)
    value_decay: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    epochs: int = eqx.field(default=4, static=True)
    minibatches: int = eqx.field(default=4, static=True)
    minibatch_unit: str = eqx.field(default="transitions", static=True)
    sharing: str = eqx.field(default="shared", static=True)
    agent_id: bool = eqx.field(default=False, static=True)
    opponents: str = eqx.field(default="current", static=True)
    snapshots: int | None = eqx.field(default=None, static=True)
    critic: str = eqx.field(default="global+local", static=True)
    critic_network: str = eqx.field(default="mlp", static=True)
    network: str = eqx.field(default="mlp", static=True)
    distil_steps: int | None = eqx.field(default=None, static=True)
    chunk_length: int | None = eqx.field(default=None, static=True)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=sequence)
    activation: str = eqx.field(default="tanh", static=True)
    distribution: str | None = eqx.field(default=None, static=True)
    initial_std: float | None = eqx.field(default=None, static=True)
    final_std: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    stepper: Stepper = eqx.field(default="adam", converter=lambda value: make_stepper(value, max_norm=0.5))

    def __check_init__(self):
        check_options(self)

    def required(self) -> frozenset[str]:
        return frozenset()

    def concept(self, env: Environment) -> str:
        return reward_learner_concept(env)

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_followed(self, env)
        check_single_numbers(self)
        check_planner(self.network, self.distil_steps, env)
        spread = jax.tree.leaves(self._head(env, params).spread())
        check_applies("final_std", self.final_std, bool(spread), f"to {env.name}, whose actions are discrete")
        if self.expectation is not None:
            check_expectation(env, params, self.rule, self.order)
        check_population(self, env, params)
        check_division(self, num_steps, num_envs)

    def init(self, key: Array, env: Environment, params: EnvParams) -> MAPPOState:
        head = self._head(env, params)
        kind, steps = self.network, self.distil_steps
        nets = make_networks(key, self._sight, env, params, head, self.widths, self.activation, kind, steps)
        zero = jnp.zeros((), jnp.result_type(float))
        past = beginning(nets.actor, self.snapshots) if self.opponents == "average" else None
        stepper = self.stepper.init(nets, num_terms=NUM_LOSSES)
        return MAPPOState(nets, head, stepper, ValueScale(zero, zero, zero), past)

    def gradient_steps(self, num_steps: int, num_envs: int) -> int:
        return self.epochs * self.minibatches

    def restart(self, state: MAPPOState, env: Environment, params: EnvParams) -> MAPPOState:
        return state._replace(stepper=self.stepper.init(state.nets, num_terms=NUM_LOSSES))

    def initial_memory(self, state: MAPPOState, env: Environment, params: EnvParams) -> PyTree:
        if state.past is not None:
            return self.policy(state).initial_memory(env.num_agents)
        if self.network != "gru":
            return ()
        return jnp.zeros((env.num_agents, state.nets.actor.memory_size), jnp.result_type(float))

    def act(self, state: MAPPOState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        if state.past is not None and not explore:
            return *self.policy(state).act(view, memory), ()
        seen = flat_observation(view.observation, view.agent_mask)
        spread, learns = state.nets.actor.spread, None
        if state.past is not None:
            key_seat, key = jax.random.split(key)
            memory = seated(state.past, memory, view.agent_mask, key_seat)
            learns = memory == LEARNER
            output, spread = joint_outputs(state.nets.actor, state.past, memory, seen, apart=self.sharing != "shared")
        elif self.network == "gru":
            memory, output = state.nets.actor.step(memory, seen)
        else:
            output = state.nets.actor(seen)
        if not explore:
            return memory, state.head.mode(output, view.action_mask), ()
        action, raw = state.head.sample(key, output, spread, view.action_mask)
        return memory, action, Extras(raw, state.head.log_prob(raw, output, spread, view.action_mask), learns)

    def policy(self, state: MAPPOState) -> ActorPolicy | RecurrentPolicy | AveragePolicy:
        if state.past is not None:
            return AveragePolicy(state.past, state.head, self.sharing != "shared")
        kind = RecurrentPolicy if self.network == "gru" else ActorPolicy
        return kind(state.nets.actor, state.head)

    def _head(self, env: Environment, params: EnvParams) -> Head:
        head = make_head(env, params, self.initial_std, distribution=self.distribution)
        return planner_head() if self.network == "planner" else head

    @property
    def _sight(self) -> Sight:
        return Sight(self.critic, self.critic_network, self.agent_id, self.sharing)

    def update(self, state: MAPPOState, rollout: Rollout, context: Context, key: Array):
        key, key_past = (key, key) if state.past is None else jax.random.split(key)
        batch = self._batch(state, rollout, context)
        nets, values, (num_steps, num_envs) = state.nets, state.values, rollout.terminated.shape
        if self.normalise_values:
            keep = 0.99 if self.value_decay is None else self.value_decay
            values = values.following(self._valued(batch.target, batch.mask), self._counted(batch.mask), keep)
            nets = ActorCritic(nets.actor, rescaled(nets.critic, state.values.moments(), values.moments()))
            batch = _in_units(batch, *values.moments())
        final = 0.0 if self.final_rate is None else self.final_rate
        planned = context.num_iterations * self.epochs * self.minibatches
        done_before = context.iteration * self.epochs * self.minibatches
        shares = learning_rates(self, context.iteration)
        length = num_steps if self.chunk_length is None else self.chunk_length

        def minibatch_step(carry, minibatch):
            nets, stepper, count, far = carry
            rate = scheduled(self.schedule, shares.of, final, count, planned, self.warmup)
            bonus = entropy_at(self, count, planned)
            after, stepper, terms = self.stepper.step(
                lambda n: self._terms(n, state.head, minibatch, bonus, length), nets, stepper, rate
            )
            moves, metrics = shares.actor, {**terms.losses, **terms.aux}
            if self.target_kl is not None:
                far = far | (terms.aux["policy/approx_kl"] > self.target_kl)
                stops = far & (count >= done_before + self.minibatches)
                moves = jnp.where(stops, 0, moves)
                metrics["policy/stopped"] = stops.astype(moves.dtype)
            metrics["policy/learning_rate"] = rate * moves
            if self._apart:
                metrics["policy/critic_learning_rate"] = rate * shares.critic
            if self._apart or self.target_kl is not None:
                after = part_of_the_way(nets, after, moves, shares.critic)
            if self.final_std is not None:
                after = ActorCritic(with_spread(after.actor, shared_spread(nets.actor)), after.critic)
            return (after, stepper, count + 1, far), metrics

        def epoch(carry, key_epoch):
            if self.minibatch_unit == "rollouts":
                cut = shuffled_chunks(key_epoch, batch, num_steps, num_envs, self.minibatches, num_steps)
            elif self.network == "gru":
                cut = shuffled_chunks(key_epoch, batch, num_steps, num_envs, self.minibatches, length)
            else:
                cut = shuffled(key_epoch, batch, num_steps, num_envs, self.minibatches)
            return jax.lax.scan(minibatch_step, carry, cut)

        carry = (nets, state.stepper, done_before, None if self.target_kl is None else jnp.zeros((), bool))
        (nets, stepper, *_), history = jax.lax.scan(epoch, carry, jax.random.split(key, self.epochs))
        metrics = {name: values.mean() for name, values in history.items()}
        metrics["policy/first_ratio_error"] = history["policy/ratio_error"][0, 0]
        del metrics["policy/ratio_error"]
        if self.final_std is not None:
            spread = planned_spread(self.final_std, state.head, (context.iteration + 1) / context.num_iterations)
            nets = ActorCritic(with_spread(nets.actor, spread), nets.critic)
        past = None if state.past is None else remembered(state.past, nets.actor, key_past)
        return MAPPOState(nets, state.head, stepper, values, past), metrics

    @property
    def _apart(self) -> bool:
        """Whether actor and critic ever move at rates of their own."""
        return self.critic_learning_rate is not None or self.critic_warmup > 0

    # -- inside an update -------------------------------------------------------------------------------------------

    def _valued(self, x: Float[Array, "*batch A"], mask: Bool[Array, "*batch A"]) -> Float[Array, "*batch U"]:
        """`x` of those that have a value of their own: U = A agents, or the one team, which has its members' mean."""
        return team_mean(x, mask)[..., None] if self.value == "team_mean" else x

    def _counted(self, mask: Bool[Array, "*batch A"]) -> Bool[Array, "*batch U"]:
        """Which of those with a value there are: a team as long as one of it lives."""
        return mask.any(axis=-1, keepdims=True) if self.value == "team_mean" else mask

    def _moves(self, successor: Int[Array, "*batch A"]) -> Int[Array, "*batch U"]:
        """Where each of them is next: a team is always the team."""
        return jnp.zeros_like(successor[..., :1]) if self.value == "team_mean" else successor

    def _values(self, state: MAPPOState, inputs: Float[Array, "*batch A S"], mask: Bool[Array, "*batch A"]):
        """Predicted values `[..., U]`, in units of the reward."""
        mean, std = state.values.moments() if self.normalise_values else (0.0, 1.0)
        return self._valued(jnp.where(mask, mean + std * state.nets.critic(inputs)[..., 0], 0), mask)

    def _batch(self, state: MAPPOState, rollout: Rollout, context: Context) -> Batch:
        """Advantages and targets, in units of the reward, from the whole rollout, flattened to transitions."""
        env, params = context.env, context.params
        mask, learns = rollout.view.agent_mask, rollout.extras.learns
        learners = mask if learns is None else mask & learns
        next_mask = jax.vmap(jax.vmap(lambda s: env.agent_mask(s, params)))(rollout.next_env_state)
        inputs = critic_inputs(self._sight, env, params, rollout.view.observation, mask, rollout.env_state)
        next_inputs = critic_inputs(
            self._sight, env, params, rollout.next_observation, next_mask, rollout.next_env_state
        )
        value, next_value = self._values(state, inputs, mask), self._values(state, next_inputs, next_mask)
        discount = rollout.discount if self.gamma is None else jnp.broadcast_to(self.gamma, rollout.discount.shape)
        discount, counted = self._valued(discount, mask), self._counted(mask)
        reward = jnp.where(mask, rollout.reward, 0)
        if self.reward is not None:
            reward = mixed_reward(reward, mask, jnp.asarray(self.reward))
        reward, moves = self._valued(reward, mask), self._moves(rollout.successor)
        if self.expectation is not None:
            came = discount * jax.vmap(follow)(next_value, moves)
            reward = reward + jnp.where(counted, self._expected(state, rollout, context) - came, 0)
        ends = (rollout.terminated, rollout.truncated)
        advantage = generalised_advantage(reward, value, next_value, discount, *ends, moves, self.gae_lambda)
        normal = normalise(advantage, self._counted(learners)) if self.normalise_advantages == "batch" else advantage
        batch = Batch(
            inputs=flat_observation(rollout.view.observation, mask),
            critic_inputs=inputs,
            mask=learners,
            action_mask=rollout.view.action_mask,
            raw=rollout.extras.raw,
            log_prob=rollout.extras.log_prob,
            advantage=jnp.where(learners, normal, 0),
            target=jnp.where(learners, value + advantage, 0),
            value=None if self.value_clip is None else jnp.where(learners, value, 0),
            memory=rollout.memory if self.network == "gru" else None,
            source=self._sources(rollout, env, params) if self.network == "gru" else None,
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)

    def _sources(self, rollout: Rollout, env: Environment, params: EnvParams) -> Int[Array, "T N A"]:
        """Where the loop took each slot's memory from after each step; -1 where it began afresh."""
        inherits = jax.vmap(jax.vmap(lambda s, n: env.inherits(s, n, params)))
        found = inherits(rollout.env_state, rollout.next_env_state)
        return jnp.where((rollout.terminated | rollout.truncated)[..., None], -1, found)

    def _outputs(self, actor: Any, batch: Batch, length: int) -> Float[Array, "B A out"]:
        """What the head is given in each transition; with a memory, by replaying chunks of `length`."""
        if batch.memory is None or batch.source is None:
            return actor(batch.inputs)
        chunks = lambda x: jnp.moveaxis(x.reshape(-1, length, *x.shape[1:]), 1, 0)  # noqa: E731
        found = replay(actor, chunks(batch.memory)[0], chunks(batch.inputs), chunks(batch.source))
        return jnp.moveaxis(found, 0, 1).reshape(*batch.inputs.shape[:2], -1)

    def _expected(self, state: MAPPOState, rollout: Rollout, context: Context) -> Float[Array, "T N U"]:
        """Expected discounted value of the next state, to each agent where it is then, or to the team."""
        env, params = context.env, context.params
        assert isinstance(env, Economy)
        over = lambda f: jax.vmap(jax.vmap(f))  # noqa: E731

        def worth(before: EnvState, after: EnvState) -> Float[Array, "T N A"]:
            now, mask = (over(lambda s: env.agent_mask(s, params))(s) for s in (before, after))
            observation = over(lambda s: add_agent_axis(env, env.observation(s, params)))(after)
            value = self._values(state, critic_inputs(self._sight, env, params, observation, mask, after), mask)
            moves = self._moves(over(lambda s, n: env.successor(s, n, params))(before, after))
            discount = over(lambda s, n: jnp.broadcast_to(env.step_discount(s, n, params), (env.num_agents,)))
            gamma = discount(before, after) if self.gamma is None else jnp.broadcast_to(self.gamma, now.shape)
            return jnp.broadcast_to(self._valued(gamma, now) * jax.vmap(follow)(value, moves), now.shape)

        action = over(lambda a: drop_agent_axis(env, a))(rollout.action)
        found = expected_continuation(worth, env, params, rollout.env_state, action, self.rule, self.order)
        return self._valued(found, rollout.view.agent_mask)

    def _terms(self, nets: ActorCritic, head: Head, batch: Batch, bonus: Array | None = None, length: int = 1) -> Terms:
        """The clipped surrogate, the value error and the entropy bonus of one minibatch, over living agents."""
        if self.final_std is not None:
            still = with_spread(nets.actor, jax.lax.stop_gradient(shared_spread(nets.actor)))
            nets = ActorCritic(still, nets.critic)
        output = self._outputs(nets.actor, batch, length)
        log_prob = head.log_prob(batch.raw, output, nets.actor.spread, batch.action_mask)
        value = nets.critic(batch.critic_inputs)[..., 0]
        _same_shape(log_prob, batch.log_prob, batch.advantage, value, batch.target, batch.mask)
        change = jnp.where(batch.mask, log_prob - batch.log_prob, 0)
        advantage, counted = batch.advantage, self._counted(batch.mask)
        if self.normalise_advantages == "minibatch":
            advantage = jnp.where(batch.mask, normalise(self._valued(advantage, batch.mask), counted), 0)
        surrogate, moved = clipped_surrogate(change, advantage, batch.mask, self.clip, self.ratio)
        entropy = masked_mean(head.entropy(output, nets.actor.spread, batch.action_mask), batch.mask)
        coefficient = self.entropy if bonus is None else bonus
        losses = {
            "loss/policy": -surrogate,
            "loss/value": self.value_coefficient * self._value_error(value, batch),
            "loss/entropy": -coefficient * entropy,
        }
        return Terms(losses, None, {"policy/entropy": entropy, **moved})

    def _value_error(self, value: Float[Array, "B A"], batch: Batch) -> Float[Array, ""]:
        """The mean error of what the critic predicts, of each agent or of the team."""
        predicted, target = self._valued(value, batch.mask), self._valued(batch.target, batch.mask)
        before = None if batch.value is None else self._valued(batch.value, batch.mask)
        delta = HUBER_DELTA if self.huber_delta is None else self.huber_delta
        delta = jnp.asarray(delta, value.dtype) if self.value_loss == "huber" else None
        return value_error(predicted, target, self._counted(batch.mask), delta, before, self.value_clip)


def _in_units(batch: Batch, mean: Float[Array, ""], std: Float[Array, ""]) -> Batch:
    """Targets and earlier values in units of the running moments."""

    def scaled(x: Float[Array, "B A"] | None) -> Float[Array, "B A"] | None:
        return None if x is None else jnp.where(batch.mask, (x - mean) / std, 0)

    return batch._replace(target=scaled(batch.target), value=scaled(batch.value))


def _same_shape(*arrays: Any) -> None:
    """Nothing in a loss may broadcast by accident."""
    shapes = [x.shape for x in arrays]
    if len(set(shapes)) != 1:
        raise ValueError(f"arrays in one loss must have one shape, got {shapes}")

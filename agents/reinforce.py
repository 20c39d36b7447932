"""REINFORCE: the score-function gradient in two stages.

Sample with the current policy outside the differentiated loss, and stop there; then score the fixed record with the
policy live, weigh it by returns, and differentiate. Williams (1992), "Simple statistical gradient-following algorithms
for connectionist reinforcement learning".
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..envs import spaces
from ..envs.environment import Environment, EnvParams, drop_agent_axis
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
from .estimators import masked_mean, returns_to_go, steps_to_end
from .policies.actor import Actor, ActorPolicy, flat_observation, observation_size
from .policies.heads import Head, make_head
from .policies.networks import check_network
from .steppers import Stepper, Terms, check_policy_gradient, check_schedule, make_stepper, scheduled

SCORES = ("actions", "events")
BASELINES = ("none", "running_mean", "leave_one_out")


class REINFORCEState(NamedTuple):
    """What learning changes, and the head it acts through.

    `baseline` is the running mean of earlier batches' returns, not yet debiased, and `batches` how many it has seen.
    """

    nets: Actor
    head: Head
    stepper: PyTree
    baseline: Float[Array, ""]
    batches: Int[Array, ""]


class REINFORCE(Agent):
    """One update per batch of rollouts, along `E[score x (return to go - baseline)]`.

    Args:
        learning_rate: of the stepper.
        schedule: "constant", "linear" or "cosine", over the run's updates.
        final_rate: where the schedule ends, as a share of `learning_rate`; 0 unless set.
        warmup: updates over which the rate first grows linearly from nothing.
        gamma: discount of the returns; None takes the environment's own, transition by transition.
        score: whose log-probability is differentiated: the policy's own sampled "actions", or the simulator's recorded
            "events" under the policy's deterministic output (environments with scored events only).
        baseline: "none"; "running_mean" of earlier batches' returns; or "leave_one_out", the mean of the other
            environments' returns at the same step. None of them contains the return it is subtracted from.
        baseline_decay: of the running mean; 0.9 unless set.
        unscored_tail: how many transitions before an episode is cut (by a time limit or the rollout's end) are left
            out of the score, because their returns miss the future; they still count in earlier returns. Terminated
            episodes are scored whole.
        entropy: coefficient of an entropy bonus; only with score="actions".
        widths, activation: of the policy network.
        initial_std: of a Box action before the squash, at the start; 0.5 unless set. Only with score="actions".
        stepper: as in MAPPO; Adam without a limit by default, which would bias the gradient.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=3e-3, converter=scalar)
    schedule: str = eqx.field(default="constant", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    warmup: int = eqx.field(default=0, static=True)
    gamma: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    score: str = eqx.field(default="actions", static=True)
    baseline: str = eqx.field(default="leave_one_out", static=True)
    baseline_decay: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    unscored_tail: int = eqx.field(default=0, static=True)
    entropy: Float[Array, ""] = eqx.field(default=0.0, converter=scalar)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=tuple)
    activation: str = eqx.field(default="tanh", static=True)
    initial_std: float | None = eqx.field(default=None, static=True)
    stepper: Stepper = eqx.field(default="adam", converter=make_stepper)

    def __check_init__(self):
        check_policy_gradient(self.stepper)
        check_schedule(self.schedule, self.final_rate)
        check_range("final_rate", self.final_rate, 0, 1)
        check_network(self.widths, self.activation)
        check_range("learning_rate", self.learning_rate, 0)
        check_range("warmup", self.warmup, 0)
        check_range("gamma", self.gamma, 0, 1)
        check_range("baseline_decay", self.baseline_decay, 0, LONGEST_MEMORY)
        check_range("entropy", self.entropy, 0)
        check_range("unscored_tail", self.unscored_tail, 0)
        if self.score not in SCORES:
            raise unknown("score", str(self.score), SCORES)
        if self.baseline not in BASELINES:
            raise unknown("baseline", str(self.baseline), BASELINES)
        running, acts = self.baseline == "running_mean", self.score == "actions"
        check_applies("baseline_decay", self.baseline_decay, running, f"with baseline={self.baseline!r}; leave it out")
        check_applies("initial_std", self.initial_std, acts, "with score='events', whose policy is deterministic")

    def required(self) -> frozenset[str]:
        return frozenset({"events"} if self.score == "events" else ())

    def concept(self, env: Environment) -> str:
        return reward_learner_concept(env)

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_followed(self, env)
        make_head(env, params, self.initial_std)
        if self.score == "events" and not isinstance(env.agent_action_space(params), spaces.Box):
            raise UserError(
                f"{env.name}: score='events' differentiates through a continuous action; use score='actions'"
            )
        if self.score == "events" and bool(self.entropy != 0):
            raise UserError("entropy does not apply with score='events', whose policy is deterministic; leave it at 0")
        if self.baseline == "leave_one_out" and num_envs < 2:
            raise UserError(
                "baseline='leave_one_out' needs num_envs of at least 2; use baseline='running_mean' with one"
            )
        if self.unscored_tail >= num_steps:
            raise UserError(f"unscored_tail = {self.unscored_tail} leaves nothing of num_steps = {num_steps} to score")

    def init(self, key: Array, env: Environment, params: EnvParams) -> REINFORCEState:
        head = make_head(env, params, self.initial_std)
        spread = head.spread() if self.score == "actions" else None
        nets = Actor(key, observation_size(env, params), head.size, spread, self.widths, self.activation)
        zero = jnp.zeros((), jnp.result_type(float))
        return REINFORCEState(nets, head, self._fresh_stepper(nets), zero, jnp.int32(0))

    def restart(self, state: REINFORCEState, env: Environment, params: EnvParams) -> REINFORCEState:
        return state._replace(stepper=self._fresh_stepper(state.nets))

    def _fresh_stepper(self, nets: Actor) -> PyTree:
        return self.stepper.init(nets, num_terms=2 if self.score == "actions" else 1)

    def initial_memory(self, state, env, params) -> tuple:
        return ()

    def act(self, state: REINFORCEState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        output = state.nets(flat_observation(view.observation, view.agent_mask))
        if not explore or self.score == "events":
            return memory, state.head.mode(output, view.action_mask), ()
        return memory, *state.head.sample(key, output, state.nets.spread, view.action_mask)

    def policy(self, state: REINFORCEState) -> ActorPolicy:
        return ActorPolicy(state.nets, state.head, deterministic=self.score == "events")

    def update(self, state: REINFORCEState, rollout: Rollout, context: Context, key: Array):
        mask, scored = rollout.view.agent_mask, self._scored(rollout)
        discount = rollout.discount if self.gamma is None else jnp.broadcast_to(self.gamma, rollout.discount.shape)
        reward = jnp.where(mask, rollout.reward, 0)
        done = rollout.terminated | rollout.truncated
        returns = returns_to_go(reward, discount, done, rollout.successor)
        weight = jnp.where(scored, returns - self._baseline(state, returns, mask), 0)
        final = 0.0 if self.final_rate is None else self.final_rate
        rate = scheduled(
            self.schedule, self.learning_rate, final, context.iteration, context.num_iterations, self.warmup
        )

        def objective(nets: Actor) -> Terms:
            output = nets(flat_observation(rollout.view.observation, mask))
            log_prob = self._log_prob(nets, state.head, output, rollout, context)
            transitions = reward.shape[0] * reward.shape[1]
            losses = {"loss/policy": -jnp.where(scored, log_prob * weight, 0).sum() / transitions}
            aux = {}
            if self.score == "actions":
                bonus = masked_mean(state.head.entropy(output, nets.spread, rollout.view.action_mask), scored)
                losses["loss/entropy"] = -self.entropy * bonus
                aux["policy/entropy"] = bonus
            return Terms(losses, None, aux)

        nets, stepper, terms = self.stepper.step(objective, state.nets, state.stepper, rate)
        metrics = {
            **terms.losses,
            **terms.aux,
            "policy/learning_rate": rate,
            "policy/weight_std": jnp.sqrt(masked_mean(weight**2, scored)),
            "policy/scored_share": masked_mean(scored.astype(reward.dtype), mask),
        }
        baseline, batches = self._next_baseline(state, returns, mask)
        return REINFORCEState(nets, state.head, stepper, baseline, batches), metrics

    # -- inside an update -------------------------------------------------------------------------------------------

    @property
    def _decay(self) -> Float[Array, ""] | float:
        return 0.9 if self.baseline_decay is None else self.baseline_decay

    def _scored(self, rollout: Rollout) -> Bool[Array, "T N A"]:
        """Living agents, outside the tail of episodes that are cut."""
        left = steps_to_end(rollout.terminated, rollout.truncated)
        return rollout.view.agent_mask & (left >= self.unscored_tail)[..., None]

    def _log_prob(self, nets: Actor, head: Head, output, rollout: Rollout, context: Context) -> Float[Array, "T N A"]:
        """The score term of every agent's transition; the record is fixed, the policy live."""
        if self.score == "actions":
            raw = jax.lax.stop_gradient(rollout.extras)
            return head.log_prob(raw, output, nets.spread, rollout.view.action_mask)
        env = context.env

        def one(action, env_state, next_env_state):
            action = drop_agent_axis(env, action)
            log_prob = env.event_log_prob(env_state, action, next_env_state, context.params)
            return jnp.broadcast_to(log_prob, (env.num_agents,))

        record = jax.lax.stop_gradient((rollout.env_state, rollout.next_env_state))
        return jax.vmap(jax.vmap(one))(head.mode(output), *record)

    def _baseline(self, state, returns: Float[Array, "T N A"], mask: Bool[Array, "T N A"]) -> Float[Array, "#T #N #A"]:
        """What is subtracted from each return: never made from that return itself."""
        if self.baseline == "none":
            return jnp.zeros((1, 1, 1), returns.dtype)
        if self.baseline == "running_mean":
            debiased = 1 - self._decay ** state.batches.astype(returns.dtype)
            return (state.baseline / jnp.where(debiased > 0, debiased, 1)).reshape(1, 1, 1)
        total = jnp.where(mask, returns, 0).sum(axis=(1, 2), keepdims=True)
        count = mask.sum(axis=(1, 2), keepdims=True)
        own_total = jnp.where(mask, returns, 0).sum(axis=2, keepdims=True)
        own_count = mask.sum(axis=2, keepdims=True)
        return (total - own_total) / jnp.maximum(count - own_count, 1)

    def _next_baseline(self, state: REINFORCEState, returns, mask):
        """The running mean over batches of the mean return; it starts at zero and is debiased where it is used."""
        if self.baseline != "running_mean":
            return state.baseline, state.batches
        mean = masked_mean(returns, mask)
        decay = self._decay
        return decay * state.baseline + (1 - decay) * mean, state.batches + 1

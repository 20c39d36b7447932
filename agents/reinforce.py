"""REINFORCE: the score-function gradient in two stages.

Sample with the current policy outside the differentiated loss, and stop there; then score the fixed record with the
policy live, weigh it by returns, and differentiate. Williams (1992), "Simple statistical gradient-following algorithms
for connectionist reinforcement learning".
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..envs.environment import Environment, EnvParams
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
    reward_learner_concept,
)
from .baselines import (
    BASELINES,
    LONGEST_EPISODE,
    RUNNING,
    RunningMean,
    Value,
    fitted,
    leave_one_out,
    per_agent,
    untrained_value,
)
from .estimators import masked_mean, since_start
from .options import check_single_numbers, check_types, number, sequence
from .pieces import Parts, by_pieces, check_divides, put_together
from .policies.actor import Actor, ActorPolicy, flat_observation, observation_size
from .policies.heads import Head, check_distribution, make_head
from .policies.networks import check_network
from .policies.planner import Planner, check_distil, check_planner, make_planner, planner_head
from .returns import RETURNS, UNFINISHED, Signal, signal_of
from .scores import SCORES, Batch, Record, Sampled, check_score, log_prob, record_of, surrogate
from .steppers import Stepper, Terms, check_policy_gradient, check_schedule, make_stepper, scheduled
from .teams import team_mean

IMPORTANCE = ("clip",)
NETWORKS = ("mlp", "planner")


class REINFORCEState(NamedTuple):
    """What learning changes, and the head it acts through.

    `baseline` is the running mean of earlier batches' returns, not yet debiased, and `batches` how many it has seen;
    `value` is the learned value, None with another baseline.
    """

    nets: Actor | Planner
    head: Head
    stepper: PyTree
    baseline: Float[Array, "*S"]
    batches: Int[Array, "*S"]
    value: Value | None = None


class REINFORCE(Agent):
    """One update per batch of rollouts, along `E[score x (return - baseline)]`.

    Args:
        learning_rate: of the stepper.
        schedule: "constant", "linear" or "cosine", over the run's gradient steps.
        final_rate: where the schedule ends, as a share of `learning_rate`; 0 unless set.
        warmup: gradient steps over which the rate first grows linearly from nothing.
        gamma: discount of the returns, 1 for none; None takes the environment's own, transition by transition.
        score: whose log-probability is differentiated. "actions": the policy's own, sampled. "events": the simulator's,
            recorded, under the policy's output, each given the state that was observed; exact where actions set nothing
            but rates of events. "both": the mean of the two for a sampled action. "trajectory": the simulator's over a
            whole episode, replayed with the policy inside, so that what actions move besides events counts for the
            later events; not for a reward that is paid for such moves themselves. All but "actions" need an
            environment with scored events, "trajectory" a tissue, num_steps at its time limit and
            fresh_episodes; of a rollout it scores the first episode.
        returns: what weighs the score of a transition: what an agent earns from it on, "to_go", or all that it earns
            in the episode ("total", from the rollout's start where that comes later). Undiscounted, the mean of the
            gradient is the same; discounted, "to_go" weighs late decisions like early ones, "total" discounts them.
        unfinished: what is done with an episode whose end the rollout does not hold. "keep": its returns end with the
            rollout. "drop": it is left out, of baselines too; finished episodes are then the shorter ones, unless
            rollouts are fresh and not shorter than the time limit. "bootstrap": the learned value of where it was cut,
            by a time limit too, stands for the rest; only with baseline="value".
        unscored_tail: how many transitions before an episode is cut (by a time limit or the rollout's end) are left
            out of the score, because their returns miss the future; they still count in earlier returns. Terminated
            episodes are scored whole. 0 with unfinished="bootstrap", whose returns miss nothing.
        baseline: what is subtracted from a return, which is never part of it. "none"; "constant", `baseline_value`;
            "running_mean" of earlier batches' returns, or "running_mean_per_step" of the episode; "leave_one_out", the
            mean of the other environments' returns at the same step; or "value", learned from earlier batches.
        baseline_value: the constant, in units of the return.
        baseline_decay: of the running means; 0.9 unless set.
        value_learning_rate: of the learned value, with the same schedule and warm-up (in iterations); `learning_rate`
            unless set.
        value_epochs: its gradient steps on a batch's mean squared error, once the batch was used; 8 unless set.
        value_decay: of the running moments that normalise it, per iteration; 0.9 unless set.
        importance: None: a batch is used once. "clip": again, by the clipped ratio of probabilities (Schulman et al.
            2017, equation 7).
        epochs: gradient steps on each batch; above 1 only with importance="clip", since a second one is off-policy.
        clip: of the ratio; 0.2 unless set.
        micro_batches: parts of the environments, of which one at a time is in memory while the gradient is taken; it
            is the same, for one more evaluation of the score. N must divide by it.
        entropy: coefficient of an entropy bonus; only where the policy samples.
        network: the policy's, "mlp", or "planner", which chooses a goal on a grid and moves towards it (see
            `policies.planner`).
        distil_steps: of a planner, as in MAPPO.
        widths, activation: of the networks.
        initial_std: of a Box action before the squash, at the start; 0.5 unless set. With score="events" the policy is
            deterministic unless it is set.
        distribution: of Box actions, "gaussian" (before the squash) or "beta"; gaussian unless set. Only where the
            policy samples, and "beta" with score="actions" alone.
        stepper: as in MAPPO; Adam without a limit by default, which would bias the gradient.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=3e-3, converter=number)
    schedule: str = eqx.field(default="constant", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    warmup: int = eqx.field(default=0, static=True)
    gamma: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    score: str = eqx.field(default="actions", static=True)
    returns: str = eqx.field(default="to_go", static=True)
    unfinished: str = eqx.field(default="keep", static=True)
    unscored_tail: int = eqx.field(default=0, static=True)
    baseline: str = eqx.field(default="leave_one_out", static=True)
    baseline_value: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    baseline_decay: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    value_learning_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    value_epochs: int | None = eqx.field(default=None, static=True)
    value_decay: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    importance: str | None = eqx.field(default=None, static=True)
    epochs: int = eqx.field(default=1, static=True)
    clip: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    micro_batches: int = eqx.field(default=1, static=True)
    entropy: Float[Array, ""] = eqx.field(default=0.0, converter=number)
    network: str = eqx.field(default="mlp", static=True)
    distil_steps: int | None = eqx.field(default=None, static=True)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=sequence)
    activation: str = eqx.field(default="tanh", static=True)
    initial_std: float | None = eqx.field(default=None, static=True)
    distribution: str | None = eqx.field(default=None, static=True)
    stepper: Stepper = eqx.field(default="adam", converter=make_stepper)
    # the longest episode, which `prepare` looks up where the baseline keeps a mean for each of its steps
    horizon: int | None = eqx.field(default=None, init=False, static=True)

    def __check_init__(self):
        check_types(self)
        check_policy_gradient(self.stepper)
        check_schedule(self.schedule, self.final_rate)
        check_range("final_rate", self.final_rate, 0, 1)
        check_network(self.widths, self.activation)
        for name in ("learning_rate", "value_learning_rate", "warmup", "entropy", "unscored_tail", "clip"):
            check_range(name, getattr(self, name), 0)
        for name in ("epochs", "value_epochs", "micro_batches"):
            check_range(name, getattr(self, name), 1)
        check_range("gamma", self.gamma, 0, 1)
        check_range("baseline_decay", self.baseline_decay, 0, LONGEST_MEMORY)
        check_range("value_decay", self.value_decay, 0, LONGEST_MEMORY)
        options = {"score": SCORES, "returns": RETURNS, "unfinished": UNFINISHED, "baseline": BASELINES}
        options["network"] = NETWORKS
        for name, known in options.items():
            if getattr(self, name) not in known:
                raise unknown(name, str(getattr(self, name)), known)
        check_distil(self.network, self.distil_steps)
        self._check_applies()

    def _check_applies(self) -> None:
        """Refuse what would not be read, and what would be wrong."""
        without = f"with baseline={self.baseline!r}; leave it out"
        check_applies("baseline_decay", self.baseline_decay, self.baseline in RUNNING, without)
        check_applies("baseline_value", self.baseline_value, self.baseline == "constant", without)
        for name in ("value_learning_rate", "value_epochs", "value_decay"):
            check_applies(name, getattr(self, name), self.baseline == "value", without)
        if self.baseline == "constant" and self.baseline_value is None:
            raise UserError("baseline='constant' needs a baseline_value; set it, or use baseline='running_mean'")
        if self.unfinished == "bootstrap" and self.baseline != "value":
            raise UserError(
                "unfinished='bootstrap' goes on with a learned value, which "
                f"baseline={self.baseline!r} does not have; use baseline='value', or unfinished='drop'"
            )
        tail = self.unscored_tail or None
        complete = "with unfinished='bootstrap', whose returns miss nothing; leave it at 0"
        check_applies("unscored_tail", tail, self.unfinished != "bootstrap", complete)
        whole, replays = "with score='trajectory', whose episodes are whole; leave it out", self.score == "trajectory"
        check_applies("unscored_tail", tail, not replays, whole)
        unfinished = None if self.unfinished == "keep" else self.unfinished
        check_applies("unfinished", unfinished, not replays, whole)
        fixed = "with score='trajectory', whose policy is deterministic"
        check_applies("initial_std", self.initial_std, not replays, fixed)
        check_distribution(self.distribution)
        check_applies(
            "distribution", self.distribution, self.samples, f"with score={self.score!r}, whose policy is deterministic"
        )
        if self.importance is not None and self.importance not in IMPORTANCE:
            raise unknown("importance", str(self.importance), IMPORTANCE)
        if self.epochs > 1 and self.importance is None:
            raise UserError(
                f"epochs = {self.epochs}: after one update the batch is another policy's; set importance='clip', "
                "which weighs by the ratio of their probabilities, or epochs=1"
            )
        once = "with epochs=1, where the ratio is 1; leave it out, or set epochs above 1"
        check_applies("importance", self.importance, self.epochs > 1, once)
        two = "with score='both', whose two scores have a ratio each; use score='actions' or 'events'"
        check_applies("importance", self.importance, self.score != "both", two)
        check_applies("clip", self.clip, self.importance is not None, "without importance='clip'; leave it out")

    @property
    def samples(self) -> bool:
        """Whether the policy is stochastic."""
        return self.score in ("actions", "both") or (self.score == "events" and self.initial_std is not None)

    def required(self) -> frozenset[str]:
        return frozenset(() if self.score == "actions" else {"events"})

    def concept(self, env: Environment) -> str:
        return reward_learner_concept(env)

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_followed(self, env)
        check_single_numbers(self)
        check_planner(self.network, self.distil_steps, env)
        head = self._head(env, params)
        check_score(self.score, env, params, head, self.samples, num_steps)
        if not self.samples and bool(self.entropy != 0):
            raise UserError(
                f"entropy does not apply with score={self.score!r}, whose policy is deterministic; leave it at 0"
            )
        if self.baseline == "leave_one_out" and num_envs < 2:
            raise UserError(
                "baseline='leave_one_out' needs num_envs of at least 2; use baseline='running_mean' with one"
            )
        if self.baseline == "running_mean_per_step" and _horizon(params) > LONGEST_EPISODE:
            raise UserError(
                f"{env.name}: baseline='running_mean_per_step' keeps a number for each of max_steps_in_episode = "
                f"{_horizon(params)} steps, more than {LONGEST_EPISODE}; use baseline='running_mean'"
            )
        if self.unscored_tail >= num_steps:
            raise UserError(f"unscored_tail = {self.unscored_tail} leaves nothing of num_steps = {num_steps} to score")
        check_divides(num_envs, self.micro_batches)

    def prepare(self, env: Environment, params: EnvParams) -> REINFORCE:
        if self.baseline != "running_mean_per_step":
            return self
        prepared = copy.copy(self)
        object.__setattr__(prepared, "horizon", _horizon(params))
        return prepared

    def init(self, key: Array, env: Environment, params: EnvParams) -> REINFORCEState:
        head, value = self._head(env, params), None
        size = observation_size(env, params)
        if self.baseline == "value":
            key, key_value = jax.random.split(key)
            value = untrained_value(key_value, size, self.widths, self.activation)
        if self.network == "planner":
            nets = make_planner(key, env, size, self.widths, self.activation, self.distil_steps)
        else:
            nets = Actor(key, size, head.size, head.spread() if self.samples else None, self.widths, self.activation)
        shape = () if self.baseline != "running_mean_per_step" else (self.horizon or _horizon(params),)
        mean, batches = jnp.zeros(shape, jnp.result_type(float)), jnp.zeros(shape, jnp.int32)
        return self._with_steppers(REINFORCEState(nets, head, (), mean, batches, value))

    def gradient_steps(self, num_steps: int, num_envs: int) -> int:
        return self.epochs

    def restart(self, state: REINFORCEState, env: Environment, params: EnvParams) -> REINFORCEState:
        return self._with_steppers(state)

    def _with_steppers(self, state: REINFORCEState) -> REINFORCEState:
        """`state` with fresh steppers."""
        value = state.value
        if value is not None:
            value = value._replace(stepper=self.stepper.init(value.critic, num_terms=1))
        stepper = self.stepper.init(state.nets, num_terms=2 if self.samples else 1)
        return state._replace(stepper=stepper, value=value)

    def _head(self, env: Environment, params: EnvParams) -> Head:
        head = make_head(env, params, self.initial_std, distribution=self.distribution)
        return planner_head() if self.network == "planner" else head

    def initial_memory(self, state, env, params) -> tuple:
        return ()

    def act(self, state: REINFORCEState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        output = state.nets(flat_observation(view.observation, view.agent_mask))
        if not explore or not self.samples:
            return memory, state.head.mode(output, view.action_mask), ()
        spread, noise = state.nets.spread, None
        action, raw = state.head.sample(key, output, spread, view.action_mask)
        if self.score != "actions":
            noise = (raw - output.reshape(raw.shape)) / jnp.exp(spread)
        return memory, action, Sampled(raw, noise)

    def policy(self, state: REINFORCEState) -> ActorPolicy:
        return ActorPolicy(state.nets, state.head, deterministic=not self.samples)

    def update(self, state: REINFORCEState, rollout: Rollout, context: Context, key: Array):
        record = record_of(self.score, rollout)
        signal = self._signal(state, rollout, context)
        weight = jnp.where(signal.scored, signal.returns - self._baseline(state, rollout, signal, record), 0)
        batch = Batch(record, weight, signal.scored, None)
        if self.importance is not None:
            acting = lambda r: self._score(state.nets, state.head, r, context)[0]  # noqa: E731
            batch = batch._replace(log_prob=by_pieces(acting, record, self.micro_batches))

        def epoch(carry, count):
            nets, stepper = carry
            rate = self._rate(self.learning_rate, count, context.num_iterations * self.epochs)
            nets, stepper, terms = self.stepper.step(
                lambda n: self._terms(n, state.head, batch, context), nets, stepper, rate
            )
            return (nets, stepper), {**terms.losses, **terms.aux, "policy/learning_rate": rate}

        counts = context.iteration * self.epochs + jnp.arange(self.epochs)
        (nets, stepper), history = jax.lax.scan(epoch, (state.nets, state.stepper), counts)
        metrics = {name: values.mean() for name, values in history.items() if name != "policy/ratio_error"}
        if self.importance is not None:
            metrics["policy/first_ratio_error"] = history["policy/ratio_error"][0]
        after, learned = self._learn_baseline(state, rollout, signal, record, context)
        metrics["policy/weight_std"] = jnp.sqrt(masked_mean(weight**2, signal.scored))
        metrics["policy/scored_share"] = signal.scored.sum() / jnp.maximum(signal.living.sum(), 1).astype(weight.dtype)
        return after._replace(nets=nets, stepper=stepper), {**metrics, **learned}

    # -- inside an update -------------------------------------------------------------------------------------------

    def _rate(self, rate: Array, count: Array, planned: Array) -> Float[Array, ""]:
        final = 0.0 if self.final_rate is None else self.final_rate
        return scheduled(self.schedule, rate, final, count, planned, self.warmup)

    def _signal(self, state: REINFORCEState, rollout: Rollout, context: Context) -> Signal:
        """Returns of the rollout; continued by the value that was learned before it, where they shall be."""
        next_value = None
        if self.unfinished == "bootstrap":
            assert state.value is not None
            living = lambda s: context.env.agent_mask(s, context.params)  # noqa: E731
            mask = jax.vmap(jax.vmap(living))(rollout.next_env_state)
            inputs = flat_observation(rollout.next_observation, mask)
            next_value = jnp.where(mask, by_pieces(state.value, inputs, self.micro_batches), 0)
        return signal_of(
            rollout,
            self.gamma,
            next_value,
            shared=self.score == "trajectory",
            returns=self.returns,
            unfinished=self.unfinished,
            unscored_tail=self.unscored_tail,
        )

    def _score(
        self, nets: Actor | Planner, head: Head, record: Record, context: Context
    ) -> tuple[Float[Array, "T N K"], Array]:
        """The score terms of a record, and the network's outputs."""
        output = nets(record.inputs)
        return log_prob(self.score, nets, head, output, record, context.env, context.params), output

    def _terms(self, nets: Actor | Planner, head: Head, batch: Batch, context: Context) -> Terms:
        """The surrogate whose gradient is the score's, and the entropy bonus."""
        transitions = batch.weight.shape[0] * batch.weight.shape[1]
        total = put_together(lambda n, b: self._parts(n, head, b, context), nets, batch, self.micro_batches)
        scored = jnp.maximum(batch.scored.sum(), 1)
        losses, aux = {"loss/policy": -total.sums["surrogate"] / transitions}, {}
        if self.samples:
            aux["policy/entropy"] = total.sums["entropy"] / scored
            losses["loss/entropy"] = -self.entropy * aux["policy/entropy"]
        if self.importance is not None:
            aux["policy/approx_kl"] = total.sums["kl"] / scored
            aux["policy/clip_fraction"] = total.sums["clipped"] / scored
            aux["policy/ratio_error"] = total.largest["ratio_error"]
        return Terms(losses, None, aux)

    def _parts(self, nets: Actor | Planner, head: Head, batch: Batch, context: Context) -> Parts:
        """What goes into the terms, of some environments."""
        score, output = self._score(nets, head, batch.record, context)
        sums, largest = surrogate(score, batch, 0.2 if self.clip is None else self.clip)
        if self.samples:
            entropy = head.entropy(output, nets.spread, batch.record.action_mask)
            sums["entropy"] = jnp.where(batch.scored, entropy, 0).sum()
        return Parts(sums, largest)

    def _baseline(self, state, rollout: Rollout, signal: Signal, record: Record) -> Float[Array, "#T #N #K"]:
        """What is subtracted from each return: never made from that return itself."""
        if self.baseline == "none":
            return jnp.zeros((1, 1, 1), signal.returns.dtype)
        if self.baseline == "constant":
            assert self.baseline_value is not None
            return self.baseline_value.reshape(1, 1, 1)
        if self.baseline == "leave_one_out":
            return leave_one_out(signal.returns, signal.counted)
        if self.baseline == "value":
            value = by_pieces(state.value, record.inputs, self.micro_batches)
            if signal.returns.shape != value.shape:
                value = team_mean(value, record.agent_mask)[..., None]
            done = rollout.terminated | rollout.truncated
            return since_start(value, done, signal.successor) if self.returns == "total" else value
        mean = RunningMean(state.baseline, state.batches).debiased(self._decay)
        time = self._time(rollout, state)
        return mean.reshape(1, 1, 1) if time is None else mean[time][..., None]

    @property
    def _decay(self) -> Float[Array, ""] | float:
        return 0.9 if self.baseline_decay is None else self.baseline_decay

    def _time(self, rollout: Rollout, state: REINFORCEState) -> Int[Array, "T N"] | None:
        """The step of its episode that each transition is, where the baseline tells them apart."""
        if self.baseline != "running_mean_per_step":
            return None
        return jnp.minimum(rollout.env_state.time, state.baseline.shape[0] - 1)

    def _learn_baseline(self, state, rollout: Rollout, signal: Signal, record: Record, context: Context):
        """The baseline for the next batch, and metrics."""
        if self.baseline in RUNNING:
            running = RunningMean(state.baseline, state.batches)
            time = self._time(rollout, state)
            running = running.followed(signal.returns, signal.counted, time, self._decay)
            return state._replace(baseline=running.mean, batches=running.batches), {}
        if self.baseline != "value":
            return state, {}
        agents = record.agent_mask.shape[-1]
        mask = record.agent_mask & per_agent(signal.scored, agents)
        batch = (record.inputs, per_agent(signal.to_go, agents), mask)
        value = state.value.knowing(*batch[1:], 0.9 if self.value_decay is None else self.value_decay)
        rate = self.learning_rate if self.value_learning_rate is None else self.value_learning_rate
        rate = self._rate(rate, context.iteration, context.num_iterations)
        epochs = 8 if self.value_epochs is None else self.value_epochs
        value, loss = fitted(value, batch, self.stepper, rate, epochs, self.micro_batches)
        return state._replace(value=value), {"loss/value": loss}


def _horizon(params: EnvParams) -> int:
    """Steps of the longest episode."""
    return int(np.max(np.asarray(params.max_steps_in_episode)))

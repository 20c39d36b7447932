"""Deep equilibrium nets: drive equilibrium conditions to zero along the economy's own simulated path.

Azinovic, Gaegauf and Scheidegger (2022), "Deep equilibrium nets", IER 63; Maliar, Maliar and Winant (2021), "Deep
learning for solving dynamic economic models", JME 122 (the all-in-one expectation).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ...envs.economy import Economy
from ...envs.environment import Environment, EnvParams
from ...errors import unknown
from ..agent import Agent, Context, Rollout, View, check_applies, check_range
from ..minibatches import cut, turned_order
from ..options import check_single_numbers, check_types, number, sequence
from ..policies.actor import Actor, ActorPolicy, observation_shape
from ..policies.heads import AuxiliaryHead, Head, make_auxiliary_head, make_head
from ..policies.networks import check_network
from ..sharding import spread
from ..steppers import Objective, Separable, Stepper, Terms, check_rate, check_schedule, make_stepper, scheduled
from .checks import check_fits
from .expectations import check_expectation, curriculum_size
from .losses import Balance, check_loss, first_balance, fixed_weights, pairs, rebalance
from .objective import SIZES, Problem, names, objective
from .prepared import derived_of, linear_of
from .states import Pool, Ring, check_states, empty_ring, gather, remember
from .warm_start import WARM_STARTS, check_warm_start, warm_start

CONDITIONS = ("economy", "derived")
NEXT_POLICIES = ("full", "stop", "target")
LEARNING_RATE, TARGET_RATE, DERIVED_WARMUP = 1e-3, 0.005, 300


class DEQNState(NamedTuple):
    """What learning changes, and the heads it acts and prices through."""

    nets: Actor
    head: Head
    auxiliary: AuxiliaryHead | None
    linear: Any
    stepper: PyTree
    target: Actor | None
    ring: Ring | None
    balance: Balance | None


class DEQN(Agent):
    """Minimise the mean squared equilibrium conditions over the states that the policy itself visits.

    Args:
        learning_rate: of the stepper; None takes the stepper's own, 1e-3 for a gradient.
        schedule: "constant", "linear" or "cosine", over all gradient steps of the run; None is "cosine" for gradients.
        final_rate: where the schedule ends, as a share of `learning_rate`; a thousandth unless set.
        warmup: gradient steps over which the rate first grows linearly from nothing. None: 300 with derived conditions,
            where a policy that moves before the costates do can end in a corner; else 0.
        conditions: "economy", those that the environment declares; "derived", first-order and envelope conditions by
            automatic differentiation of its reward and transition (see `derived`), for any environment with continuous
            actions that is differentiable. None: the declared ones where there are, else derived.
        expectation: "quadrature" over the shock law's nodes; "all_in_one", the product of two independent groups of
            draws, unbiased where conditions are affine in the expectation (elsewhere refused); "mc", plain Monte
            Carlo, whose squared residual is biased by its own variance and which is refused below 64 draws. None:
            quadrature, or all in one where an environment's chance is not explicit.
        rule: the law's integration rule; None takes its first ("gauss_hermite" for normal shocks, "exact" rows for a
            chain). Normal shocks also have "monomial3", "monomial5" and "qmc".
        order: nodes per dimension of "gauss_hermite", 5 unless set; points of "qmc", 256 unless set. Other rules take
            none.
        draws: per group, for "all_in_one" (4 unless set; 1 key where chance is not explicit) and "mc".
        antithetic: draws in pairs of opposite sign, each group by itself; for shocks made of normal draws.
        shock_mask: which shocks are on in the expectation, a True or False each; the others are at their mean.
        curriculum: share of the run over which the shocks in the expectation grow linearly to their size.
        loss: "square", or "huber": quadratic up to `huber_delta` (1 unless set), linear beyond.
        weights: what a term counts by its name, `{"euler": 2.0}`; 1 unless set. Terms are the conditions and those that
            `anchor`, `bounds` and `moments` add.
        adaptive: weights that move with training, on top of `weights`: "annealing" (Wang et al. 2021) or "relobralo"
            (Bischof and Kraus 2021), once an iteration.
        adaptive_decay: of those weights: .1 for "annealing", .999 for "relobralo", unless set.
        temperature, lookback: of "relobralo": .1, and the probability .999 of not looking back to the start.
        anchor: "value" and "slope": terms "anchor/value" and "anchor/slope", the differences from the linear rule
            around the steady state in the networks' outputs before the squash, and in their slopes.
        bounds: `{"name": [low, high]}` of the economy's definitions, in their units: terms "bound/name", how far
            outside, as a share of the width.
        moments: `{"name": target}` of definitions: terms "moment/name", the relative gap of a batch's mean.
        states: where residuals are driven to zero: states of the "rollout", "fresh" draws of the environment's first
            state, or a "box" around the rollout's.
        box_stretch: the box's width, relative to the smallest that holds all visited states; 1 unless set.
        fresh_share, steady_share: shares of the states that are fresh draws instead, and that lie near the steady
            state, at a normal distance of `steady_width` (.05 unless set) in relative terms.
        replay_size: states that a prioritised ring remembers; None: no ring.
        replay_share: share of each update's states that the ring gives; a half unless set.
        replay_exponent, replay_correction: of priorities in the probability, and of the importance weights (Schaul et
            al. 2016); .6 and .4 unless set.
        batch_size: states in a gradient step; T x N must divide by it.
        epochs: passes over each update's states.
        shuffle: cut minibatches from the states in random order; False: as they come.
        next_policy: through next period's policy the gradient goes in "full", or it is held: "stop" (time iteration),
            or a "target" network that follows by `target_rate` (.005 unless set) a gradient step.
        network: "mlp", "residual", or, over a history window, "gru" and "transformer".
        widths, activation: of the policy network.
        reach_limits: actions can lie on their bounds, not only near them; None: where limits bind, that is where the
            economy declares complementarity conditions.
        linear_plus: add the network, which starts at zero, to the linear rule around the steady state.
        warm_start: fit the network first, by `warm_start_steps` steps of L-BFGS (100 unless set): "steady_state", the
            steady state's decision everywhere, or "linear", the linear rule.
        stepper: an optimizer's name, "pcgrad", "mao", "gn", "ign", "lm" or "lbfgs", a mapping of its options, or a
            `Stepper`; Adam by default.
    """

    learning_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    schedule: str | None = eqx.field(default=None, static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    warmup: int | None = eqx.field(default=None, static=True)
    conditions: str | None = eqx.field(default=None, static=True)
    expectation: str | None = eqx.field(default=None, static=True)
    rule: str | None = eqx.field(default=None, static=True)
    order: int | None = eqx.field(default=None, static=True)
    draws: int | None = eqx.field(default=None, static=True)
    antithetic: bool = eqx.field(default=False, static=True)
    shock_mask: tuple[bool, ...] | None = eqx.field(default=None, static=True, converter=sequence)
    curriculum: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    loss: str = eqx.field(default="square", static=True)
    huber_delta: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    weights: Any = eqx.field(default=None, static=True, converter=lambda value: pairs(value, "weights", 1))
    adaptive: str | None = eqx.field(default=None, static=True)
    adaptive_decay: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    temperature: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    lookback: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    anchor: tuple[str, ...] = eqx.field(default=(), static=True, converter=sequence)
    bounds: Any = eqx.field(default=None, static=True, converter=lambda value: pairs(value, "bounds", 2))
    moments: Any = eqx.field(default=None, static=True, converter=lambda value: pairs(value, "moments", 1))
    states: str = eqx.field(default="rollout", static=True)
    box_stretch: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    fresh_share: float | None = eqx.field(default=None, static=True)
    steady_share: float | None = eqx.field(default=None, static=True)
    steady_width: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    replay_size: int | None = eqx.field(default=None, static=True)
    replay_share: float | None = eqx.field(default=None, static=True)
    replay_exponent: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    replay_correction: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    batch_size: int = eqx.field(default=128, static=True)
    epochs: int = eqx.field(default=1, static=True)
    shuffle: bool = eqx.field(default=True, static=True)
    next_policy: str = eqx.field(default="full", static=True)
    target_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    network: str = eqx.field(default="mlp", static=True)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=sequence)
    activation: str = eqx.field(default="tanh", static=True)
    reach_limits: bool | None = eqx.field(default=None, static=True)
    linear_plus: bool = eqx.field(default=False, static=True)
    warm_start: str | None = eqx.field(default=None, static=True)
    warm_start_steps: int | None = eqx.field(default=None, static=True)
    stepper: Stepper = eqx.field(default="adam", converter=make_stepper)

    # what `prepare` computes: the linear rule, and the derived conditions
    linear: Any = eqx.field(default=None, init=False)
    derived: Any = eqx.field(default=None, init=False)

    def __check_init__(self):
        check_types(self)
        check_rate(self.stepper, self.learning_rate, self.schedule, self.final_rate, self.warmup or 0)
        check_schedule(self.effective_schedule(), self.final_rate)
        check_network(self.widths, self.activation, self.network)
        check_range("final_rate", self.final_rate, 0, 1)
        check_range("learning_rate", self.learning_rate, 0)
        for name, least in (("batch_size", 1), ("epochs", 1), ("warmup", 0)):
            check_range(name, getattr(self, name), least)
        for name, value, choices in (
            ("conditions", self.conditions, (None, *CONDITIONS)),
            ("next_policy", self.next_policy, NEXT_POLICIES),
            ("warm_start", self.warm_start, (None, *WARM_STARTS)),
        ):
            if value not in choices:
                raise unknown(name, str(value), [choice for choice in choices if choice])
        check_applies("target_rate", self.target_rate, self.next_policy == "target", "without next_policy='target'")
        check_range("target_rate", self.target_rate, 0, 1)
        check_expectation(self)
        check_loss(self)
        check_states(self)
        check_warm_start(self)

    def required(self) -> frozenset[str]:
        # what derived conditions need is checked where they are derived: gradients may have to be turned on first
        return frozenset({"conditions", "differentiable"} if self.conditions == "economy" else ())

    def concept(self, env: Environment) -> str:
        return env.concept

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_single_numbers(self)
        check_fits(self, env, params, num_steps * num_envs, f"num_steps x num_envs = {num_steps} x {num_envs}")

    def derives(self, env: Environment) -> bool:
        """Whether conditions are derived: asked for, or the environment declares none."""
        return self.conditions == "derived" or (self.conditions is None and "conditions" not in env.capabilities)

    def prepare(self, env: Environment, params: EnvParams) -> DEQN:
        found = {}
        if self.derives(env):
            found["derived"] = derived_of(env, params)
        if self.linear_plus or self.anchor or self.warm_start == "linear":
            found["linear"] = linear_of(self, env, params)
        return _with(self, **found) if found else self

    def term_names(self, env: Environment, params: EnvParams) -> tuple[str, ...]:
        """Names of the terms of the loss, in the order of their weights; of an agent that was prepared."""
        state = self._heads(env, params)
        nets = jax.eval_shape(lambda key: self._nets(key, state, env, params), jax.random.key(0))
        nets = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nets)
        return names(self._problem(state._replace(target=nets), env, params, None), nets)

    def init(self, key: Array, env: Environment, params: EnvParams) -> DEQNState:
        key_nets, key_warm = jax.random.split(key)
        state = self._heads(env, params)
        nets = self._nets(key_nets, state, env, params)
        if self.warm_start is not None:
            nets = warm_start(self, nets, state.head, state.auxiliary, env, params, key_warm)
        return state._replace(
            nets=nets,
            stepper=self.stepper.init(nets, len(self.term_names(env, params))),
            target=nets if self.next_policy == "target" else None,
            ring=empty_ring(self, env, params),
            balance=None if self.adaptive is None else first_balance(len(self.term_names(env, params))),
        )

    def gradient_steps(self, num_steps: int, num_envs: int) -> int:
        return self.epochs * (num_steps * num_envs // self.batch_size)

    def restart(self, state: DEQNState, env: Environment, params: EnvParams) -> DEQNState:
        return state._replace(stepper=self.stepper.init(state.nets, len(self.term_names(env, params))))

    def initial_memory(self, state, env, params) -> tuple:
        return ()

    def act(self, state: DEQNState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        return memory, self.policy(state)(view), ()

    def policy(self, state: DEQNState) -> ActorPolicy:
        return ActorPolicy(state.nets, state.head, True, state.auxiliary, state.linear)

    def update(self, state: DEQNState, rollout: Rollout, context: Context, key: Array):
        env, params = context.env, context.params
        key_pool, key_out, key_balance, key_epochs = jax.random.split(key, 4)
        shape = rollout.reward.shape[:2]
        visited = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.env_state)
        # which visited states make way is drawn, so that no environment or period is left out for ever
        pool = gather(self, visited, state.ring, env, params, key_pool, turned_order(key_out, *shape))
        size = jax.tree.leaves(visited)[0].shape[0]
        steps = self.gradient_steps(*shape)
        done, planned = context.iteration * steps, context.num_iterations * steps
        shocks = curriculum_size(self, done, planned)
        state = self._rebalance(state, pool, env, params, shocks, key_balance)
        weights = self._weights(state, env, params)
        final = 1e-3 if self.final_rate is None else self.final_rate
        base = self.effective_rate()

        def gradient_step(carry, inputs):
            nets, stepper, target, count = carry
            minibatch, key_step = inputs
            rate = scheduled(self.effective_schedule(), base, final, count, planned, self.effective_warmup(env))
            problem = self._problem(state._replace(target=target), env, params, shocks)
            nets, stepper, terms = self.stepper.step(
                self._objective(problem, minibatch, weights, key_step), nets, stepper, rate
            )
            if target is not None:
                follow = TARGET_RATE if self.target_rate is None else self.target_rate
                target = jax.tree.map(lambda old, new: old + follow * (new - old), target, nets)
            sizes = terms.aux.pop(SIZES)
            metrics = {**terms.losses, **terms.aux}
            if self.stepper.uses_rate:
                metrics["policy/learning_rate"] = rate
            return (nets, stepper, target, count + 1), (metrics, sizes)

        def epoch(carry, key_epoch):
            key_order, key_steps = jax.random.split(key_epoch)
            order = turned_order(key_order, *shape) if self.shuffle else jnp.arange(size)
            batches = _cut(pool, order if self.shuffle else None, self.batch_size)
            keys = jax.random.split(key_steps, size // self.batch_size)
            carry, (metrics, sizes) = jax.lax.scan(gradient_step, carry, (batches, keys))
            return carry, (metrics, jnp.zeros(size, sizes.dtype).at[order].set(sizes.reshape(-1)))

        carry = (state.nets, state.stepper, state.target, done)
        carry, (history, sizes) = jax.lax.scan(epoch, carry, jax.random.split(key_epochs, self.epochs))
        ring = None if state.ring is None else remember(state.ring, pool, sizes[-1])
        metrics = {name: values.mean() for name, values in history.items()}
        nets, stepper, target, _ = carry
        state = state._replace(nets=nets, stepper=stepper, target=target, ring=ring)
        return state, metrics | self._metrics(state, env, params, weights, shocks)

    def _objective(self, problem: Problem, batch: Pool, weights: Float[Array, " E"] | None, key: Array) -> Objective:
        """The loss of a minibatch; item by item where its residuals separate and the stepper can make use of it."""

        def whole(nets: Actor) -> Terms:
            return objective(problem, nets, batch, weights, key)

        def one(nets: Actor, item: Pool) -> dict[str, Array]:
            terms = objective(problem, nets, jax.tree.map(lambda x: x[None], item), weights, key)
            assert terms.residuals is not None
            return {name: r[0] for name, r in terms.residuals.items()}

        fixed_nodes = isinstance(problem.env, Economy) and self.expectation in (None, "quadrature")
        separates = self.stepper.needs_residuals and fixed_nodes and not self.moments
        return Separable(whole, one, batch) if separates else whole

    def _metrics(self, state: DEQNState, env, params, weights, shocks) -> dict[str, Array]:
        """What options that are on did."""
        found = {}
        if state.balance is not None:
            named = zip(self.term_names(env, params), weights, strict=True)
            found |= {f"weight/{name}": weight for name, weight in named}
        if state.ring is not None:
            found["replay/stored"] = (state.ring.priorities > 0).sum()
        if state.target is not None:
            gaps = jax.tree.map(lambda a, b: jnp.abs(a - b).max(), state.nets, state.target)
            found["policy/target_gap"] = jnp.max(jnp.stack(jax.tree.leaves(gaps)))
        if shocks is not None:
            found["policy/shock_size"] = shocks
        return found

    def _weights(self, state: DEQNState, env: Environment, params: EnvParams) -> Float[Array, " E"] | None:
        if state.balance is None and not self.weights:
            return None
        weights = fixed_weights(self, self.term_names(env, params))
        return weights if state.balance is None else weights * state.balance.weights

    def _rebalance(self, state: DEQNState, pool: Pool, env, params, shocks, key: Array) -> DEQNState:
        """Adaptive weights from the first minibatch."""
        if state.balance is None:
            return state
        problem = self._problem(state, env, params, shocks)
        batch = jax.tree.map(lambda x: x[: self.batch_size], pool)

        key_draw, key_look = jax.random.split(key)

        def losses(nets):
            found = jnp.stack(list(objective(problem, nets, batch, None, key_draw).losses.values()))
            return found, found

        if self.adaptive == "annealing":
            gradients, values = jax.jacrev(losses, has_aux=True)(state.nets)
        else:
            gradients, values = None, losses(state.nets)[0]
        return state._replace(balance=rebalance(self, state.balance, values, gradients, key_look))

    def effective_schedule(self) -> str:
        """The schedule that was set, or else what suits the stepper."""
        own_length = self.stepper.default_rate is not None or not self.stepper.uses_rate
        return self.schedule or ("constant" if own_length else "cosine")

    def effective_warmup(self, env: Environment) -> int:
        """The warm-up that was set, in gradient steps, or else what suits the conditions."""
        if self.warmup is None:
            return DERIVED_WARMUP if self.derives(env) and self.stepper.uses_rate else 0
        return self.warmup

    def effective_rate(self) -> Float[Array, ""]:
        """The learning rate that was set, or else the stepper's own."""
        if self.learning_rate is not None:
            return self.learning_rate
        own = self.stepper.default_rate
        return jnp.asarray(LEARNING_RATE if own is None else own, jnp.result_type(float))

    def _heads(self, env: Environment, params: EnvParams) -> DEQNState:
        """A state with the heads alone."""
        linear = self.linear if self.linear_plus else None
        head, auxiliary = self.head(env, params), make_auxiliary_head(env, params)
        return DEQNState(None, head, auxiliary, linear, None, None, None, None)  # type: ignore[arg-type]

    def head(self, env: Environment, params: EnvParams) -> Head:
        """How outputs become actions."""
        binds = isinstance(env, Economy) and bool(env.complementarity) and not self.derives(env)
        return make_head(env, params, reach=binds if self.reach_limits is None else self.reach_limits)

    def _nets(self, key: Array, state: DEQNState, env: Environment, params: EnvParams) -> Actor:
        size = state.head.size + (0 if state.auxiliary is None else state.auxiliary.size)
        size += 0 if self.derived is None else self.derived.size
        shape = observation_shape(env, params)
        return Actor(key, shape, size, None, self.widths, self.activation, self.network)

    def _problem(self, state: DEQNState, env, params, shocks) -> Problem:
        return Problem(self, env, params, lambda nets: self.policy(state._replace(nets=nets)), state.target, shocks)


def _cut(pool: Pool, order: Array | None, batch_size: int) -> Pool:
    """Minibatches, `[S / B, B, ...]`, each over all devices; without the slots, which no gradient reads."""
    pool = pool._replace(slots=None)
    if order is not None:
        return cut(pool, order, order.size // batch_size)
    return spread(jax.tree.map(lambda x: x.reshape(-1, batch_size, *x.shape[1:]), pool), axis=1)


def _with(agent: DEQN, **prepared: Any) -> DEQN:
    """A copy with fields that the constructor does not take."""
    found = copy.copy(agent)
    for name, value in prepared.items():
        object.__setattr__(found, name, value)
    return found

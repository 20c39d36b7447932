"""Deep equilibrium nets: drive an economy's equilibrium conditions to zero along its own simulated path.

Azinovic, Gaegauf and Scheidegger (2022), "Deep equilibrium nets", IER 63; Maliar, Maliar and Winant (2021), "Deep
learning for solving dynamic economic models", JME 122 (the all-in-one expectation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ...envs import spaces
from ...envs.economy import Decision, Economy
from ...envs.environment import Environment, EnvParams, EnvState, drop_agent_axis
from ...envs.quadrature import DEFAULT_ORDER
from ...envs.shocks import ShockLaw
from ...errors import UserError, unknown
from ..agent import Agent, Context, Rollout, View, check_applies, check_range, optional_scalar, scalar
from ..policies.actor import Actor, ActorPolicy, observation_size
from ..policies.heads import AuxiliaryHead, Head, make_auxiliary_head, make_head
from ..policies.networks import check_network
from ..steppers import Stepper, Terms, check_schedule, make_stepper, scheduled
from .residuals import policy_decision, residuals

EXPECTATIONS = ("quadrature", "all_in_one", "mc")
FEWEST_DRAWS = 64


class DEQNState(NamedTuple):
    """What learning changes, and the heads it acts and prices through."""

    nets: Actor
    head: Head
    auxiliary: AuxiliaryHead | None
    stepper: PyTree


class DEQN(Agent):
    """Minimise the mean squared equilibrium conditions over the states that the policy itself visits.

    The gradient goes through the whole condition, next period's policy included.

    Args:
        learning_rate: of the stepper.
        schedule: "constant", "linear" or "cosine", over all gradient steps of the run.
        final_rate: where the schedule ends, as a share of `learning_rate`; a thousandth unless set.
        expectation: "quadrature" over the shock law's nodes; "all_in_one", the product of two independent groups of
            draws, unbiased where conditions are affine in the expectation (elsewhere refused); "mc", plain Monte
            Carlo, whose squared residual is biased by its own variance and which is refused below 64 draws.
        rule: the law's integration rule; None takes its first ("gauss_hermite" for normal shocks, "exact" rows for a
            chain). Normal shocks also have "monomial3", "monomial5" and "qmc".
        order: nodes per dimension of "gauss_hermite", 5 unless set; points of "qmc", 256 unless set. Other rules take
            none.
        draws: per group, for "all_in_one" (4 unless set) and "mc".
        batch_size: states in a gradient step; T x N must divide by it.
        epochs: passes over each rollout's states.
        widths, activation: of the policy network.
        stepper: as in MAPPO; Adam by default.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=1e-3, converter=scalar)
    schedule: str = eqx.field(default="cosine", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=optional_scalar)
    expectation: str = eqx.field(default="quadrature", static=True)
    rule: str | None = eqx.field(default=None, static=True)
    order: int | None = eqx.field(default=None, static=True)
    draws: int | None = eqx.field(default=None, static=True)
    batch_size: int = eqx.field(default=128, static=True)
    epochs: int = eqx.field(default=1, static=True)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=tuple)
    activation: str = eqx.field(default="tanh", static=True)
    stepper: Stepper = eqx.field(default="adam", converter=make_stepper)

    def __check_init__(self):
        check_schedule(self.schedule, self.final_rate)
        check_range("final_rate", self.final_rate, 0, 1)
        check_network(self.widths, self.activation)
        check_range("learning_rate", self.learning_rate, 0)
        check_range("order", self.order, 1)
        for name in ("batch_size", "epochs"):
            check_range(name, getattr(self, name), 1)
        if self.expectation not in EXPECTATIONS:
            raise unknown("expectation", str(self.expectation), EXPECTATIONS)
        nodes, given = self.expectation == "quadrature", f"with expectation={self.expectation!r}"
        check_applies("draws", self.draws, not nodes, f"{given}; set order instead")
        check_applies("rule", self.rule, nodes, f"{given}; leave it out")
        check_applies("order", self.order, nodes, f"{given}; set draws instead")
        check_range("draws", self.draws, 1)
        if self.expectation == "mc" and self.num_draws < FEWEST_DRAWS:
            raise UserError(
                f"expectation='mc' with {self.num_draws} draws: a squared residual adds the sampling variance to what "
                "is minimised and moves the answer (one draw costs up to 90 % of consumption on StochasticAK-v0); use "
                f"expectation='quadrature', 'all_in_one', or at least {FEWEST_DRAWS} draws"
            )

    @property
    def num_draws(self) -> int:
        """Draws in a group."""
        return self.draws if self.draws is not None else {"all_in_one": 4, "mc": 1}.get(self.expectation, 0)

    def required(self) -> frozenset[str]:
        return frozenset({"conditions", "differentiable"})

    def concept(self, env: Environment) -> str:
        return env.concept

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        assert isinstance(env, Economy)
        if not isinstance(env.agent_action_space(params), spaces.Box):
            raise UserError(f"{env.name}: DEQN needs a continuous action (Box); train it with 'mappo' or 'reinforce'")
        make_head(env, params)
        make_auxiliary_head(env, params)
        total = num_steps * num_envs
        if total % self.batch_size:
            works = [n for n in range(1, total + 1) if total % n == 0]
            raise UserError(
                f"num_steps x num_envs = {num_steps} x {num_envs} = {total} states do not divide into batches of "
                f"{self.batch_size}; batch_size can be {', '.join(map(str, works[-12:]))}"
            )
        law = env.shocks(params)
        if self.expectation == "quadrature":
            rule = self.rule or law.rules[0]
            self._nodes(law, env.initial_state(jax.random.key(0), params))
            check_applies("order", self.order, law.takes_order(rule), f"with rule={rule!r}, whose nodes are fixed")
        if self.expectation == "all_in_one":
            self._check_affine(env, params)

    def _check_affine(self, env: Economy, params: EnvParams) -> None:
        """A product of two estimates is unbiased only where conditions are affine in the expectation."""
        state = env.initial_state(jax.random.key(0), params)
        decision = _central_decision(env, params)
        key = jax.random.key(1)
        shock = env.shocks(params).sample(key, state)
        following = env.transition(state, decision.action, shock, params)
        terms = env.expectation_terms(state, decision, following, decision, params, next_policy=lambda _: decision)
        scaled = [jax.tree.map(lambda h, by=by: by * h, terms) for by in (0.5, 1.0, 1.5)]
        at = [env.conditions(state, decision, expected, params) for expected in scaled]
        for name in at[1]:
            curvature = jnp.abs(at[0][name] + at[2][name] - 2 * at[1][name])
            scale = jnp.abs(at[2][name] - at[0][name]) + 1e-6
            if bool(jnp.any(curvature > 1e-3 * scale)):
                raise UserError(
                    f"{env.name}: condition {name!r} is not affine in its expectation, so expectation='all_in_one' "
                    "would be biased; use expectation='quadrature'"
                )

    def init(self, key: Array, env: Environment, params: EnvParams) -> DEQNState:
        head, auxiliary = make_head(env, params), make_auxiliary_head(env, params)
        size = head.size + (0 if auxiliary is None else auxiliary.size)
        nets = Actor(key, observation_size(env, params), size, None, self.widths, self.activation)
        return DEQNState(nets, head, auxiliary, self.stepper.init(nets))

    def initial_memory(self, state, env, params) -> tuple:
        return ()

    def act(self, state: DEQNState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        return memory, self.policy(state)(view), ()

    def policy(self, state: DEQNState) -> ActorPolicy:
        return ActorPolicy(state.nets, state.head, True, state.auxiliary)

    def update(self, state: DEQNState, rollout: Rollout, context: Context, key: Array):
        env, params = context.env, context.params
        assert isinstance(env, Economy)
        states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.env_state)
        size = jax.tree.leaves(states)[0].shape[0]
        batches = size // self.batch_size
        final = 1e-3 if self.final_rate is None else self.final_rate
        planned = context.num_iterations * self.epochs * batches
        done_before = context.iteration * self.epochs * batches

        def decide(nets: Actor) -> Callable[[EnvState], Decision]:
            return policy_decision(self.policy(state._replace(nets=nets)), env, params)

        def gradient_step(carry, inputs):
            nets, stepper, count = carry
            minibatch, key_step = inputs
            rate = scheduled(self.schedule, self.learning_rate, final, count, planned)
            nets, stepper, terms = self.stepper.step(
                lambda n: self._terms(decide(n), minibatch, env, params, key_step),
                nets,
                stepper,
                rate,
            )
            return (nets, stepper, count + 1), {**terms.losses, **terms.aux, "policy/learning_rate": rate}

        def epoch(carry, key_epoch):
            key_order, key_steps = jax.random.split(key_epoch)
            order = jax.random.permutation(key_order, size)
            cut = jax.tree.map(lambda x: x[order].reshape(batches, self.batch_size, *x.shape[1:]), states)
            return jax.lax.scan(gradient_step, carry, (cut, jax.random.split(key_steps, batches)))

        carry = (state.nets, state.stepper, done_before)
        (nets, stepper, _), history = jax.lax.scan(epoch, carry, jax.random.split(key, self.epochs))
        return state._replace(nets=nets, stepper=stepper), {name: values.mean() for name, values in history.items()}

    def _terms(self, decide, states: EnvState, env: Economy, params: EnvParams, key: Array) -> Terms:
        """Mean squared conditions over a batch of states, one named loss each."""
        if self.expectation == "quadrature":
            first = second = jax.vmap(lambda s: self._residuals(decide, s, env, params, None))(states)
        else:
            groups = 2 if self.expectation == "all_in_one" else 1
            keys = jax.random.split(key, (groups, self.batch_size))
            draw = jax.vmap(lambda s, k: self._residuals(decide, s, env, params, k))
            first, second = draw(states, keys[0]), draw(states, keys[-1])
        losses = {f"loss/{name}": jnp.mean(first[name] * second[name]) for name in first}
        size = jnp.mean(jnp.stack([jnp.mean(jnp.abs(g)) for g in first.values()]))
        return Terms(losses, first, {"policy/residual": size})

    def _nodes(self, law: ShockLaw, state: EnvState) -> tuple[Array, Float[Array, " J"]]:
        """Nodes and weights of the shock, by the configured rule."""
        rule = self.rule or law.rules[0]
        return law.nodes(rule, DEFAULT_ORDER.get(rule, 5) if self.order is None else self.order, state)

    def _residuals(self, decide, state: EnvState, env: Economy, params: EnvParams, key: Array | None):
        """The conditions at one state; the expectation by quadrature, or over `draws` samples when a key is given."""
        law = env.shocks(params)
        if key is None:
            nodes, weights = self._nodes(law, state)
        else:
            nodes = law.draws(key, self.num_draws, state)
            weights = jnp.full((self.num_draws,), 1 / self.num_draws, jnp.result_type(float))
        return residuals(decide, state, nodes, weights, env, params)


def _central_decision(env: Economy, params: EnvParams) -> Decision:
    """The centre's actions, and the auxiliary outputs of a zero network."""
    auxiliary = make_auxiliary_head(env, params)
    one = Decision(
        jnp.asarray(env.centre(params)),
        None if auxiliary is None else auxiliary(jnp.zeros(auxiliary.size, jnp.result_type(float))),
    )
    return drop_agent_axis(env, jax.tree.map(lambda x: jnp.stack([x] * env.num_agents), one))

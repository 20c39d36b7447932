"""Pathwise gradients: differentiate what a policy earns through the environment's own transitions.

The return of an unrolled episode is a function of the policy's weights, at a fixed key; its slope, averaged over keys
and starts, is the gradient of the expected return where reward and transition are differentiable in the action
(Mohamed et al. 2020, "Monte Carlo gradient estimation in machine learning", section 5; of tissues, Deshpande, Mottes et
al. 2025, "Engineering morphogenesis of cell clusters with differentiable programming").
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..envs import spaces
from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams, EnvState, add_agent_axis, drop_agent_axis
from ..errors import UserError
from .agent import Agent, Context, Policy, Rollout, View, check_followed, check_range
from .options import check_single_numbers, check_types, number, sequence
from .pieces import Parts, check_divides, put_together
from .policies.actor import Actor, ActorPolicy, flat_observation, observation_size
from .policies.heads import Head, make_head
from .policies.networks import check_network
from .steppers import Stepper, Terms, check_policy_gradient, check_schedule, make_stepper, scheduled
from .teams import team_mean

SHARED_CONCEPTS = ("planner", "cooperative")


class Unrolled(NamedTuple):
    """What one environment paid on the way, leaves `[T, ...]`.

    Attributes:
        reward: of each agent, 0 in slots that were dead when the step began.
        discount: of what comes after the step.
        living: who acted, before the step.
        running: the episode that was under way at the start had not ended before the step.
        ended: it ended, or was cut, with this step.
    """

    reward: Float[Array, "T A"]
    discount: Float[Array, "T A"]
    living: Bool[Array, "T A"]
    running: Bool[Array, " T"]
    ended: Bool[Array, " T"]


def unroll(
    env: Environment, params: EnvParams, policy: Policy, state: EnvState, key: Array, num_steps: int
) -> tuple[EnvState, Unrolled]:
    """Follow a deterministic policy from `state`, differentiable in its arrays and in `state`; nothing is reset.

    A step is computed again when the gradient passes it, so that the memory is that of the states.

    Args:
        env: whose transitions keep their gradients (`Environment.with_transition_gradients`).
        params: its parameters.
        policy: without a memory.
        state: of one environment.
        key: of the transitions' noise, which is the same for every policy.
        num_steps: T; steps after the episode's end are played on, and `running` is false in them.

    Returns:
        The last state, and what each step paid.
    """

    @jax.checkpoint
    def step(carry, key):
        state, running = carry
        key_look, key_step = jax.random.split(key)
        seen = add_agent_axis(env, env.observe(key_look, state, None, params))
        view = View(seen, env.agent_mask(state, params), env.action_mask(state, params))
        _, following, reward, terminated, _ = env.step_env(key_step, state, drop_agent_axis(env, policy(view)), params)
        ended = running & (terminated | env.is_truncated(following, params))
        discount = jnp.broadcast_to(env.step_discount(state, following, params), (env.num_agents,))
        paid = jnp.where(view.agent_mask, add_agent_axis(env, reward), 0)
        return (following, running & ~ended), Unrolled(paid, discount, view.agent_mask, running, ended)

    start = (state, jnp.ones((), bool))
    (last, _), unrolled = jax.lax.scan(step, start, jax.random.split(key, num_steps))
    return last, unrolled


def discounted_return(unrolled: Unrolled, gamma: Float[Array, ""] | None = None) -> Float[Array, ""]:
    """What the living earn on average in the rest of the episode: sum over t of (product of discounts before t) r_t.

    Args:
        unrolled: of one environment.
        gamma: in place of the environment's own discount, whose mean over the living is used.
    """
    mean = jax.vmap(team_mean)
    reward = jnp.where(unrolled.running, mean(unrolled.reward, unrolled.living), 0)
    discount = mean(unrolled.discount, unrolled.living) if gamma is None else jnp.full_like(reward, gamma)
    before = jnp.concatenate([jnp.ones(1, reward.dtype), jnp.cumprod(discount)[:-1].astype(reward.dtype)])
    return jnp.sum(before * reward)


class PathwiseState(NamedTuple):
    """What learning changes, and the head it acts through."""

    nets: Actor
    head: Head
    stepper: PyTree


class Pathwise(Agent):
    """One step per rollout up the slope of the return, through the transitions themselves.

    Each environment's episode is unrolled from where its rollout started, on keys of its own, to its end; all agents
    share the policy, so that the slope is that of what they earn together. An update therefore plays T steps in each of
    the N environments once more, besides those of the rollout. Where events are sampled, only what the environment
    declares as their derivative (a straight-through one, say) is known of them.

    Args:
        learning_rate: of the stepper.
        schedule: "constant", "linear" or "cosine", over the run's gradient steps.
        final_rate: where the schedule ends, as a share of `learning_rate`; 0 unless set.
        warmup: gradient steps over which the rate first grows linearly from nothing.
        gamma: discount of the return, 1 for none; None takes the environment's own.
        micro_batches: parts of the environments, of which one at a time is in memory while the gradient is taken. N
            must divide by it.
        widths, activation: of the network.
        stepper: as in REINFORCE; Adam with a limit of 0.5 on the gradient's norm by default, since slopes of long
            paths are steep in places.
    """

    learning_rate: Float[Array, ""] = eqx.field(default=3e-3, converter=number)
    schedule: str = eqx.field(default="constant", static=True)
    final_rate: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    warmup: int = eqx.field(default=0, static=True)
    gamma: Float[Array, ""] | None = eqx.field(default=None, converter=number)
    micro_batches: int = eqx.field(default=1, static=True)
    widths: tuple[int, ...] = eqx.field(default=(64, 64), static=True, converter=sequence)
    activation: str = eqx.field(default="tanh", static=True)
    stepper: Stepper = eqx.field(default="adam", converter=lambda value: make_stepper(value, max_norm=0.5))

    def __check_init__(self):
        check_types(self)
        check_policy_gradient(self.stepper)
        check_schedule(self.schedule, self.final_rate)
        check_range("final_rate", self.final_rate, 0, 1)
        check_range("gamma", self.gamma, 0, 1)
        check_range("micro_batches", self.micro_batches, 1)
        for name in ("learning_rate", "warmup"):
            check_range(name, getattr(self, name), 0)
        check_network(self.widths, self.activation)

    def required(self) -> frozenset[str]:
        return frozenset({"differentiable"})

    def concept(self, env: Environment) -> str:
        if env.num_agents == 1:
            return "planner"
        return env.concept if env.concept in SHARED_CONCEPTS else "cooperative"

    def check(self, env: Environment, params: EnvParams, num_steps: int, num_envs: int) -> None:
        check_followed(self, env)
        check_single_numbers(self)
        space = env.agent_action_space(params)
        if not isinstance(space, spaces.Box):
            raise UserError(
                f"{env.name}: agent 'pathwise' differentiates by a continuous action (Box), and its actions are "
                f"{type(space).__name__}; train it with 'mappo' or 'reinforce'"
            )
        if isinstance(env, Economy) and env.one_shot:
            limit = 1
        else:
            limit = int(np.max(np.asarray(params.max_steps_in_episode)))
        if num_steps < limit:
            raise UserError(
                f"{env.name}: num_steps = {num_steps} must be at least the time limit of {limit} steps, since agent "
                "'pathwise' knows nothing of what is earned after them; set rollout.num_steps, or a shorter "
                "max_steps_in_episode"
            )
        check_divides(num_envs, self.micro_batches)

    def init(self, key: Array, env: Environment, params: EnvParams) -> PathwiseState:
        head = make_head(env, params)
        nets = Actor(key, observation_size(env, params), head.size, None, self.widths, self.activation)
        return PathwiseState(nets, head, self.stepper.init(nets, num_terms=1))

    def restart(self, state: PathwiseState, env: Environment, params: EnvParams) -> PathwiseState:
        return state._replace(stepper=self.stepper.init(state.nets, num_terms=1))

    def initial_memory(self, state: PathwiseState, env: Environment, params: EnvParams) -> tuple:
        return ()

    def act(self, state: PathwiseState, memory: PyTree, view: View, key: Array, *, explore: bool = True):
        output = state.nets(flat_observation(view.observation, view.agent_mask))
        return memory, state.head.mode(output, view.action_mask), ()

    def gradient_steps(self, num_steps: int, num_envs: int) -> int:
        return 1

    def policy(self, state: PathwiseState) -> ActorPolicy:
        return ActorPolicy(state.nets, state.head, deterministic=True)

    def update(self, state: PathwiseState, rollout: Rollout, context: Context, key: Array):
        env, params = context.env, context.params
        env = env if env.transition_gradients_enabled else env.with_transition_gradients()
        num_steps, num_envs = rollout.terminated.shape
        starts = jax.tree.map(lambda x: x[:1], (rollout.env_state, jax.random.split(key, (1, num_envs))))

        def earned(nets: Actor, starts: PyTree) -> Parts:
            policy = ActorPolicy(nets, state.head, deterministic=True)

            def one(start, key):
                unrolled = unroll(env, params, policy, start, key, num_steps)[1]
                return discounted_return(unrolled, self.gamma), unrolled.running.sum()

            first, keys = jax.tree.map(lambda x: x[0], starts)
            total, steps = jax.vmap(one)(first, keys)
            return Parts({"return": total.sum(), "steps": steps.sum().astype(total.dtype)}, {})

        def objective(nets: Actor) -> Terms:
            sums = put_together(earned, nets, starts, self.micro_batches).sums
            return Terms({"loss/policy": -sums["return"] / num_envs}, None, {"policy/steps": sums["steps"] / num_envs})

        final = 0.0 if self.final_rate is None else self.final_rate
        rate = scheduled(
            self.schedule, self.learning_rate, final, context.iteration, context.num_iterations, self.warmup
        )
        nets, stepper, terms = self.stepper.step(objective, state.nets, state.stepper, rate)
        metrics = {**terms.losses, **terms.aux, "policy/learning_rate": rate}
        return state._replace(nets=nets, stepper=stepper), metrics

"""Whether an environment keeps the contract: one small function a rule, run over one short rollout."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..errors import UserError
from . import spaces
from ._known_rules import (
    Rule,
    capabilities_are_true,
    economies_go_on,
    nodes_integrate,
    reference_answers,
    steady_state_is_fixed,
    transition_is_steps,
)
from ._probe import (
    NUM_ENVS,
    NUM_STEPS,
    TOLERANCE,
    Probe,
    at,
    bounds,
    finite,
    gap,
    is_float,
    is_key,
    kind,
    leaf_spaces,
    named_leaves,
    outside,
)
from .economy import Economy
from .environment import Environment, EnvParams, validate_params

ORDER_ONE = (1e-3, 30.0)  # a random policy strays tens of ergodic standard deviations from a steady state


class EnvironmentCheckError(UserError):
    """An environment breaks a rule of the contract.

    Attributes:
        environment: its name.
        rule: the rule's name, a key of `RULES` or `ECONOMY_RULES`.
    """

    def __init__(self, environment: str, rule: str, found: str):
        super().__init__(f"{environment} breaks the rule {rule!r}: {found}")
        self.environment = environment
        self.rule = rule


def check_environment(env: Environment, params: EnvParams | None = None, *, seed: int = 0) -> None:
    """Check an environment, ours or a reader's own, against the contract that learners rely on.

    It compiles one reset, one step and one rollout of a random policy, and returns silently when every rule holds.

    Args:
        env: the environment.
        params: its parameters; None is `env.default_params`.
        seed: of the random policy and of the environment's own randomness.

    Raises:
        EnvironmentCheckError: at the first broken rule; the message names the environment and the rule, and says what
            was found and what to do.
        UserError: `env` is not an `Environment`.

    Example:
        >>> from equimorph import check_environment, make
        >>> check_environment(*make("BrockMirman-v0"))
    """
    if not isinstance(env, Environment):
        raise UserError(
            f"check_environment takes an Environment, got {type(env).__name__}; subclass equimorph.envs.Environment, "
            "or make one of gymnax's by equimorph.make"
        )
    probe = Probe(env, env.default_params if params is None else params, seed)
    for name, rule in (RULES | ECONOMY_RULES if isinstance(env, Economy) else RULES).items():
        run_rule(probe, name, rule)


def run_rule(probe: Probe, name: str, rule: Rule) -> None:
    """Raise `EnvironmentCheckError` with a rule's first complaint, or with what it failed of."""
    try:
        found = next(rule(probe), None)
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        found = f"{type(error).__name__} was raised: {first_line}"
        raise EnvironmentCheckError(probe.env.name, name, found) from error
    if found is not None:
        raise EnvironmentCheckError(probe.env.name, name, found)


# -- types: traced, nothing is compiled --------------------------------------------------------------------------


def params_are_arrays(probe: Probe) -> Iterator[str]:
    """Parameters are strongly typed arrays inside their domains."""
    for path, leaf in named_leaves(probe.params):
        if not isinstance(leaf, jax.Array) or leaf.weak_type:
            yield f"params{path} is {leaf!r}, not a strongly typed array; pass the parameters through canonical_params"
    validate_params(probe.params, probe.env.name)
    probe.env.check_params(probe.params)


def types_are_stable(probe: Probe) -> Iterator[str]:
    """`reset` and `step` return one structure with the same shapes and strong types: a scan can carry it."""
    traced = probe.trace()
    for what in ("observation", "state"):
        first, second = traced[f"reset's {what}"], traced[f"step's {what}"]
        if jax.tree.structure(first) != jax.tree.structure(second):
            yield f"reset's {what} is a {jax.tree.structure(first)}, step's a {jax.tree.structure(second)}"
        for (path, old), (_, new) in zip(named_leaves(first), named_leaves(second), strict=True):
            if kind(old) != kind(new) or getattr(old, "weak_type", False):
                yield f"{what}{path} is {kind(old)} from reset and {kind(new)} from step; make both one strong type"


def both_precisions_work(probe: Probe) -> Iterator[str]:
    """Under float32 and under float64 every float has the precision that was asked for."""
    for wide in (False, True):
        with jax.enable_x64(wide):
            yield from types_are_stable(probe)
            wanted = jnp.result_type(float)
            for path, leaf in named_leaves(probe.trace()):
                if is_float(leaf) and leaf.dtype != wanted:
                    yield f"{path} is {leaf.dtype} under {wanted}; take the type from jnp.result_type(float)"


def both_keys_work(probe: Probe) -> Iterator[str]:
    """`jax.random.key` and `jax.random.PRNGKey` are both accepted, and what comes out has the same types."""
    typed, legacy = probe.trace(), probe.trace(probe.legacy_key)
    for (path, one), (_, other) in zip(named_leaves(typed), named_leaves(legacy), strict=True):
        if kind(one) != kind(other) and not is_key(one):
            yield f"{path} is {kind(one)} with jax.random.key and {kind(other)} with jax.random.PRNGKey"


def hashed_by_value(probe: Probe) -> Iterator[str]:
    """Two equal environments share one compilation."""
    env = probe.env
    twin = dataclasses.replace(env) if dataclasses.is_dataclass(env) else copy.copy(env)
    counted = jax.jit(lambda env, x: x, static_argnums=0)
    for each in (env, twin):
        counted(each, 0.0)
    if counted._cache_size() != 1 or twin != env:
        yield (
            "a copy with equal fields is not equal to it, or hashes differently, and would be compiled anew; make it a "
            "frozen dataclass whose fields are hashable"
        )


# -- the rollout ---------------------------------------------------------------------------------------------------


def actions_fit(probe: Probe) -> Iterator[str]:
    """Actions have finite bounds, sampled ones are accepted unclipped, and the centre is one of them."""
    env, params = probe.env, probe.params
    for path, space in leaf_spaces(env.agent_action_space(params)):
        low, high = bounds(space)
        if not (finite((low, high)) and np.all(low <= high)):
            yield f"the action's bounds{path} are {low} and {high}; give finite ones, the lower first"
    if wrong := outside(env.action_space(params), probe.records["action"], lead=2):
        yield f"an action sampled from the action space is not in it: {wrong}"
    if wrong := outside(env.agent_action_space(params), env.centre(params)):
        yield f"the centre is not one agent's action: {wrong}"
    if np.any(probe.records["info"].get("action_clipped", False)):
        yield "an action sampled from the action space was flagged as clipped"


def excess_is_clipped(probe: Probe) -> Iterator[str]:
    """An action out of bounds acts as the nearest legal one and is flagged in `info["action_clipped"]`."""
    env, params = probe.env, probe.params
    if "action_clipped" not in probe.records["info"]:
        if isinstance(env, Economy):
            yield "info lacks 'action_clipped'; leave step_env as Economy derives it"
        return
    key, state, action = probe.step_of(probe.records, 0, 0)
    *beyond, info = probe.step(key, state, _raise(env.action_space(params), action, by=1), params)
    *within, _ = probe.step(key, state, _raise(env.action_space(params), action, by=0), params)
    if not np.all(info["action_clipped"]):
        yield "an action out of bounds was not flagged in info['action_clipped']; start from legal_action"
    if gap(beyond, within) > TOLERANCE:
        yield "an action out of bounds had another effect than the nearest legal one; start from legal_action"


def _raise(space: spaces.Space, action: PyTree, by: int) -> PyTree:
    leaves, structure = jax.tree.flatten(action)
    tops = [bounds(part)[1] + by for _, part in leaf_spaces(space)]
    raised = [jnp.asarray(np.broadcast_to(top, x.shape), x.dtype) for top, x in zip(tops, leaves, strict=True)]
    return jax.tree.unflatten(structure, raised)


def observations_fit(probe: Probe) -> Iterator[str]:
    """Observations lie in their space, are finite, and `observe` makes them from the state."""
    records = probe.records
    for name in ("final_observation", "observation_after"):
        if not finite(records[name]):
            yield "an observation under a random policy is not finite; hold the state off the point where it diverges"
        if wrong := outside(probe.env.observation_space(probe.params), records[name], lead=2):
            yield f"an observation is not in the observation space: {wrong}"
    if gap(records["observed"], records["final_observation"]) > TOLERANCE:
        yield "observe(state) is not what step_env returned along with that state; let step_env and reset_env call it"


def observations_of_order_one(probe: Probe) -> Iterator[str]:
    """Every entry's root mean square over a random policy's living agents is of order one, or zero."""
    alive, agents = probe.records["agent_mask"], probe.env.num_agents
    for path, leaf in named_leaves(probe.records["final_observation"]):
        entries = (leaf if agents > 1 else leaf[:, :, None]).astype(float)[alive]
        size = np.sqrt(np.mean(np.square(entries), axis=0)).max(initial=0.0)
        if size > ORDER_ONE[1] or 0 < size < ORDER_ONE[0]:
            yield (
                f"observation{path} has a root mean square of {size:.3g} under a random policy, outside {ORDER_ONE}; "
                "centre it and divide it by its spread"
            )


def rewards_and_flags(probe: Probe) -> Iterator[str]:
    """Rewards are finite floats, () or [A]; flags are boolean scalars; the dead earn nothing."""
    records, agents = probe.records, probe.env.num_agents
    shape = (NUM_STEPS, NUM_ENVS, agents) if agents > 1 else (NUM_STEPS, NUM_ENVS)
    reward = records["reward"]
    if reward.shape != shape or not is_float(reward):
        yield f"the reward is {reward.dtype}{list(reward.shape[2:])}; a float of shape {list(shape[2:])} is asked for"
    if not finite(reward):
        yield "a reward under a random policy is not finite; keep it off its pole by a floor"
    for name in ("terminated", "truncated"):
        flag = records[name]
        if flag.dtype != bool or flag.shape != shape[:2]:
            yield f"{name} is {flag.dtype}{list(flag.shape[2:])}; a boolean scalar is asked for"
    if np.any(reward[~records["agent_mask"].reshape(shape)] != 0):
        yield "a slot outside agent_mask earned a reward; multiply rewards by the mask"


def episodes_restart(probe: Probe) -> Iterator[str]:
    """Time runs from 0 in steps of 1; an episode ends at its time limit at the latest, and the next starts at 0."""
    short, limit = probe.short_records, probe.short_limit
    before, raw, after = short["state"].time, short["next_state"].time, short["state_after"].time
    done = short["terminated"] | short["truncated"]
    if np.any(before[0] != 0) or np.any(after[done] != 0) or np.any(raw != before + 1):
        yield "state.time must be 0 after reset and one more after each step"
    if np.any(~done[raw >= limit]):
        yield f"with max_steps_in_episode = {limit} an episode went on past it; end it in is_truncated or by terminated"


def step_resets_itself(probe: Probe) -> Iterator[str]:
    """`step` is `step_env`, then `reset_env` where the episode ended; `info` keeps what the reset hides."""
    ended = np.argwhere(probe.short_records["terminated"] | probe.short_records["truncated"])
    for time, env in ((0, 0), *ended[:1]):
        *outcome, info = probe.step(*probe.step_of(probe.short_records, time, env), probe.short_params)
        if missing := {"terminated", "truncated", "final_observation"} - set(info):
            yield f"info lacks {', '.join(sorted(missing))}, which gymnax's own step adds; do not override it"
        names = ("observation_after", "state_after", "reward", "terminated", "truncated", "final_observation")
        expected = at([probe.short_records[name] for name in names], time, env)
        if gap([*outcome, info["final_observation"]], expected) > TOLERANCE:
            yield (
                "step differs from step_env and a reset where it ended, vmapped with the same key; draw all randomness "
                "from the key, and do not override step"
            )


def same_key_same_outcome(probe: Probe) -> Iterator[str]:
    """A key and a state decide what happens."""
    step = probe.step_of(probe.records, 0, 0)
    if gap(probe.step(*step, probe.params), probe.step(*step, probe.params)) > 0:
        yield "two calls with the same key, state and action differ; draw all randomness from the key"


def masks_are_boolean(probe: Probe) -> Iterator[str]:
    """The agent mask is bool[A]; the action mask is None or bool[A, choices]; each living agent has a choice."""
    records, agents = probe.records, probe.env.num_agents
    mask, shape = records["agent_mask"], (NUM_STEPS, NUM_ENVS, agents)
    if mask.dtype != bool or mask.shape != shape:
        yield f"agent_mask is {mask.dtype}{list(mask.shape[2:])}; bool[{agents}] is asked for"
    for path, legal in named_leaves(records["action_mask"]):
        if legal.dtype != bool or legal.shape[:3] != shape or legal.ndim < 4:
            yield f"action_mask{path} is {legal.dtype}{list(legal.shape[2:])}; bool[{agents}, choices] is asked for"
        if not np.all(legal.any(axis=-1)[mask]):
            yield f"action_mask{path} leaves a living agent without a legal action"


def slots_are_followed(probe: Probe) -> Iterator[str]:
    """Successors and heirs are int[A] of slots or -1, and no two agents move into one slot."""
    agents = probe.env.num_agents
    for name in ("successor", "inherits"):
        slots = probe.records[name]
        if not np.issubdtype(slots.dtype, np.integer) or slots.shape[2:] != (agents,):
            yield f"{name} is {slots.dtype}{list(slots.shape[2:])}; int[{agents}] is asked for"
        if np.any((slots < -1) | (slots >= agents)):
            yield f"{name} runs from {slots.min()} to {slots.max()}; slots are 0 to {agents - 1}, and -1 is none"
    heirs = np.sort(probe.records["successor"], axis=-1)
    if np.any((heirs[..., 1:] == heirs[..., :-1]) & (heirs[..., 1:] >= 0)):
        yield "two slots have one successor; a slot holds one agent, and who is gone has the successor -1"


def world_state_is_a_vector(probe: Probe) -> Iterator[str]:
    """The world state is a finite float vector."""
    world = probe.records["world_state"]
    if world.ndim != 3 or not is_float(world) or not finite(world):
        yield f"world_state is {world.dtype}{list(world.shape[2:])} or not finite; a float vector is asked for"


def discounts_are_discounts(probe: Probe) -> Iterator[str]:
    """The discount factor is a scalar in (0, 1]; step_discount is finite and not negative, () or [A]."""
    records, agents = probe.records, probe.env.num_agents
    discount, step_discount = records["discount_factor"], records["step_discount"]
    if discount.ndim != 2 or not np.all((discount > 0) & (discount <= 1)):
        yield f"discount_factor is {discount[0, 0]}; a scalar in (0, 1] is asked for"
    if step_discount.shape[2:] not in ((), (agents,)) or not finite(step_discount) or np.any(step_discount < 0):
        yield f"step_discount is {step_discount[0, 0]}; a scalar or [{agents}], finite and not negative, is asked for"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        params_are_arrays,
        hashed_by_value,
        types_are_stable,
        both_keys_work,
        both_precisions_work,
        masks_are_boolean,
        rewards_and_flags,
        actions_fit,
        excess_is_clipped,
        observations_fit,
        observations_of_order_one,
        episodes_restart,
        same_key_same_outcome,
        step_resets_itself,
        slots_are_followed,
        world_state_is_a_vector,
        discounts_are_discounts,
        reference_answers,
        capabilities_are_true,
    )
}
ECONOMY_RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (economies_go_on, transition_is_steps, nodes_integrate, steady_state_is_fixed)
}

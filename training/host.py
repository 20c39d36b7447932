"""The loop for environments that are stepped on the host: the same rollouts and updates, a call a step.

Acting and updating are compiled as everywhere; between them the environments step in Python, which is slower.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..agents.agent import Agent, Context, Policy, Rollout, View
from ..envs.adapters.gymnasium_host import UNLIMITED, HostEnvironment, HostState, Simulator
from ..envs.environment import EnvParams, add_agent_axis
from ..errors import UserError
from .collect import BROKEN, Ended, TrainState, check_finite, count_episodes, finite_in_each
from .loop import CONSUMED, TrainStep, check_limit, check_numbers

EVALUATION_ENVS = 64
LONGEST_EPISODE = 2000
"""Steps after which an episode without a time limit is cut when a policy is scored."""


@dataclasses.dataclass
class Running:
    """The environments of a train state: they exist once, so only the latest state may go on with them.

    Attributes:
        simulator: the environments.
        calls: chunks they were part of.
        at: chunks before this state.
    """

    simulator: Simulator
    calls: list[int]
    at: int

    def take(self) -> None:
        """Consume the state that this belongs to."""
        if self.at != self.calls[0]:
            raise UserError(CONSUMED)
        self.calls[0] += 1

    def after(self) -> Running:
        """What the next state holds."""
        return Running(self.simulator, self.calls, self.at + 1)


# -- a train state -------------------------------------------------------------------------------------------------


def create_host_state(
    env: HostEnvironment,
    params: EnvParams,
    agent: Agent,
    num_envs: int,
    num_iterations: int,
    seed: int,
    num_seeds: int,
) -> TrainState:
    """As `loop.create_train_state`, which checked the counts; `env_state` holds the running environments of each seed.

    Keys are split as for an environment in JAX, so learners begin alike.
    """
    states = [_create_one(env, params, agent, num_envs, num_iterations, seed + index) for index in range(num_seeds)]
    return states[0] if num_seeds == 1 else _stack_seeds(states)


def _create_one(env: HostEnvironment, params: EnvParams, agent: Agent, num_envs: int, num_iterations: int, seed: int):
    dynamic, static = eqx.partition(agent, eqx.is_array)
    agent_state, memory, key_reset, key = _begin(
        jax.random.key(np.uint32(seed)), params, dynamic, env=env, agent=static, num_envs=num_envs
    )
    simulator = env.simulator(params, num_envs, host_seeds(key_reset, num_envs))
    return TrainState(
        agent=agent_state,
        env_state=(Running(simulator, [0], 0),),
        observation=simulator.observation,
        memory=memory,
        running_return=jnp.zeros((num_envs,), jnp.result_type(float)),
        running_length=jnp.zeros((num_envs,), jnp.int32),
        key=key,
        iteration=jnp.int32(0),
        num_iterations=jnp.int32(num_iterations),
    )


@functools.partial(jax.jit, static_argnames=("env", "agent", "num_envs"))
def _begin(key: Array, params: EnvParams, dynamic: PyTree, *, env: HostEnvironment, agent: Agent, num_envs: int):
    """The learner's first state and memory, and the keys of the reset and of what comes after."""
    agent = eqx.combine(dynamic, agent)
    key_agent, key_reset, key = jax.random.split(key, 3)
    agent_state = agent.init(key_agent, env, params)
    return agent_state, _fresh_memory(agent, agent_state, env, params, num_envs), key_reset, key


def _fresh_memory(agent: Agent, agent_state: PyTree, env: HostEnvironment, params: EnvParams, num_envs: int) -> PyTree:
    memory = agent.initial_memory(agent_state, env, params)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *x.shape)), memory)


def host_seeds(key: Array, count: int) -> list[int]:
    """Seeds for environments on the host, well apart from those of every other key."""
    entropy = [int(word) for word in np.ravel(jax.random.key_data(key))]
    return [int(word) for word in np.random.SeedSequence(entropy).generate_state(count)]


# -- a chunk -------------------------------------------------------------------------------------------------------


def make_host_step(
    env: HostEnvironment,
    params: EnvParams,
    agent: Agent,
    num_envs: int,
    num_steps: int,
    iterations: int,
    fresh_episodes: bool,
    num_seeds: int,
) -> TrainStep:
    """As `loop.make_train_step`, which checked the pair: `train_step(state, limit=None) -> (state, metrics)`.

    Seeds run one after the other.
    """
    parts = eqx.partition(agent, eqx.is_array)

    def chunk(state: TrainState, count: int) -> tuple[TrainState, dict[str, np.ndarray]]:
        running = state.env_state[0]
        running.take()
        history = []
        for _ in range(count):
            state, metrics = _iterate(state, env, params, parts, num_steps, fresh_episodes)
            history.append(jax.tree.map(np.asarray, metrics))
            if history[-1][BROKEN] > 0:
                break
        absent = jax.tree.map(np.zeros_like, history[-1]) | {BROKEN: np.full_like(history[-1][BROKEN], -1)}
        history += [absent] * (iterations - len(history))
        return state._replace(env_state=(running.after(),)), jax.tree.map(lambda *x: np.stack(x), *history)

    def train_step(state: TrainState, limit: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        check_numbers(state, num_envs, num_seeds)
        check_limit(limit, iterations)
        count = limit or iterations
        if num_seeds == 1:
            return chunk(state, count)
        states, metrics = zip(*(chunk(_one_seed(state, index), count) for index in range(num_seeds)), strict=True)
        return _stack_seeds(list(states)), jax.tree.map(lambda *x: np.stack(x), *metrics)

    return train_step


def _one_seed(state: TrainState, index: int) -> TrainState:
    running = state.env_state[index]
    return jax.tree.map(lambda x: x[index], state._replace(env_state=()))._replace(env_state=(running,))


def _stack_seeds(states: list[TrainState]) -> TrainState:
    running = tuple(state.env_state[0] for state in states)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(state._replace(env_state=()) for state in states))
    return stacked._replace(env_state=running)


def _iterate(
    state: TrainState, env: HostEnvironment, params: EnvParams, parts: tuple[PyTree, Agent], steps: int, fresh: bool
) -> tuple[TrainState, dict[str, Array]]:
    """One iteration: a rollout and an update."""
    dynamic, static = parts
    simulator = state.env_state[0].simulator
    if fresh:
        simulator.restart()
        memory = _remember(state.agent, state.memory, True, params, dynamic, env=env, agent=static)
        state = state._replace(
            memory=memory,
            running_return=jnp.zeros_like(state.running_return),
            running_length=jnp.zeros_like(state.running_length),
        )
    key, key_update, keys = _keys(state.key, steps=steps)
    state, record = collect(state, keys, env, params, parts)
    counts = state._replace(agent=(), env_state=(), observation=(), memory=())
    agent_state, counts, metrics = _update(
        state.agent, counts, record, key_update, params, dynamic, env=env, agent=static
    )
    return counts._replace(
        agent=agent_state, env_state=state.env_state, observation=state.observation, memory=state.memory, key=key
    ), metrics


@functools.partial(jax.jit, static_argnames="steps")
def _keys(key: Array, *, steps: int) -> tuple[Array, Array, Array]:
    """Keys as the compiled loop splits them: of the next iteration, of the update, and of each step."""
    key, _, key_collect, key_update = jax.random.split(key, 4)
    return key, key_update, jax.random.split(key_collect, steps)


def collect(
    state: TrainState, keys: Array, env: HostEnvironment, params: EnvParams, parts: tuple[PyTree, Agent]
) -> tuple[TrainState, dict[str, PyTree]]:
    """A step of every environment for each of `keys`, with the current policy.

    Returns:
        The state, and what happened, `[T, N, ...]` on the host: all that `rollout` needs.
    """
    dynamic, static = parts
    simulator, memory = state.env_state[0].simulator, state.memory
    remembers = bool(jax.tree.leaves(memory))
    records = []
    for index in range(len(keys)):
        observation, time = simulator.observation, simulator.time
        next_memory, action, extras = _act(
            state.agent, memory, observation, keys, np.int32(index), dynamic, env=env, agent=static
        )
        outcome = simulator.step(np.asarray(action)[:, 0])
        record = {"observation": observation, "time": time, "action": action, "memory": memory, "extras": extras}
        records.append(jax.tree.map(np.asarray, record) | outcome._asdict() | {"next": outcome.observation})
        records[-1]["observation"] = observation
        memory = next_memory
        if remembers:
            done = outcome.terminated | outcome.truncated
            memory = _remember(state.agent, memory, done, params, dynamic, env=env, agent=static)
    stacked = jax.tree.map(lambda *x: np.stack(x), *records)
    return state._replace(observation=simulator.observation, memory=memory), stacked


@functools.partial(jax.jit, static_argnames=("env", "agent"))
def _act(agent_state, memory, observation, keys, index, dynamic, *, env: HostEnvironment, agent: Agent):
    """Actions of N environments, with the key of step `index` used as the compiled loop uses it."""
    agent = eqx.combine(dynamic, agent)
    key_act, _, _ = jax.random.split(keys[index], 3)
    num_envs = jax.tree.leaves(observation)[0].shape[0]
    keys_act = jax.random.split(key_act, num_envs)
    return jax.vmap(agent.act, (None, 0, 0, 0))(agent_state, memory, _view(env, observation, num_envs), keys_act)


def _view(env: HostEnvironment, observation: PyTree, num_envs: int) -> View:
    shown = jax.vmap(functools.partial(add_agent_axis, env))(observation)
    return View(shown, jnp.ones((num_envs, env.num_agents), bool))


@functools.partial(jax.jit, static_argnames=("env", "agent"))
def _remember(agent_state, memory, anew, params, dynamic, *, env: HostEnvironment, agent: Agent) -> PyTree:
    """Memory, fresh where an episode begins: `anew`, bool[N] or bool."""
    agent = eqx.combine(dynamic, agent)
    fresh = agent.initial_memory(agent_state, env, params)

    def select(new: Array, old: Array) -> Array:
        begins = jnp.broadcast_to(anew, old.shape[:1])
        return jnp.where(begins.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(select, fresh, memory)


@functools.partial(jax.jit, static_argnames=("env", "agent"), donate_argnames="agent_state")
def _update(agent_state, counts: TrainState, record, key, params, dynamic, *, env: HostEnvironment, agent: Agent):
    """The learner's update, and the sums over episodes that ended, all as in the compiled loop."""
    agent = eqx.combine(dynamic, agent)
    experience = rollout(record, env, params)
    alive = experience.view.agent_mask
    broken = ~jax.vmap(finite_in_each)((experience.next_observation, experience.reward), (alive, alive))
    ended = Ended(experience.reward[..., 0], experience.terminated | experience.truncated, None, broken)
    counts, episodes = count_episodes(counts, ended)
    context = Context(env, params, counts.iteration, counts.num_iterations)
    agent_state, metrics = agent.update(agent_state, experience, context, key)
    return (
        agent_state,
        counts._replace(iteration=counts.iteration + 1),
        {
            **metrics,
            **episodes,
            **check_finite(metrics, ended),
        },
    )


def rollout(record: dict[str, PyTree], env: HostEnvironment, params: EnvParams) -> Rollout:
    """What `collect` recorded, as learners take it."""
    with_agents = jax.vmap(jax.vmap(functools.partial(add_agent_axis, env)))
    before = HostState(record["time"], record["observation"])
    after = HostState(record["time"] + 1, record["next"])
    shape = (*record["reward"].shape, env.num_agents)
    discount = jax.vmap(jax.vmap(env.step_discount, (0, 0, None)), (0, 0, None))(before, after, params)
    return Rollout(
        view=View(with_agents(before.observation), jnp.ones(shape, bool)),
        action=record["action"],
        reward=with_agents(record["reward"]),
        discount=jnp.broadcast_to(discount[..., None], shape),
        terminated=record["terminated"],
        truncated=record["truncated"],
        next_observation=with_agents(after.observation),
        env_state=before,
        next_env_state=after,
        successor=jnp.broadcast_to(jnp.arange(env.num_agents, dtype=jnp.int32), shape),
        memory=record["memory"],
        extras=record["extras"],
    )


# -- scoring -------------------------------------------------------------------------------------------------------


def evaluate_on_host(
    env: HostEnvironment, params: EnvParams, policies: list[Policy], num_episodes: int, horizon: int | None, seed: int
) -> list[dict[str, Any]]:
    """Scores of policies over whole episodes, all from the same seeds; measures as in `episodes.evaluate_episodes`.

    Every environment plays a number of episodes that is known beforehand: counting the first to end would favour short
    ones.
    """
    evaluations = []
    for policy in policies:
        returns, finished = episodes_on_host(env, params, policy, num_episodes, horizon, seed, sample=False)
        sampled, _ = episodes_on_host(env, params, policy, num_episodes, horizon, seed, sample=True)
        found = {"score": float(returns.mean()), "score_sd": float(returns.std()), "return": float(returns.mean())}
        found |= {"score_sampled": float(sampled.mean()), "return_sampled": float(sampled.mean())}
        evaluations.append(found | {"episodes": num_episodes, "finished": float(finished.mean())})
    return evaluations


def episodes_on_host(
    env: HostEnvironment, params: EnvParams, policy: Policy, count: int, horizon: int | None, seed: int, *, sample: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Undiscounted returns of `count` episodes, and whether each came to an end of its own, `[count]`."""
    limit = int(params.max_steps_in_episode)
    longest = min(limit, horizon or (LONGEST_EPISODE if limit == UNLIMITED else limit))
    num_envs = min(count, EVALUATION_ENVS)
    quota = np.full(num_envs, count // num_envs) + (np.arange(num_envs) < count % num_envs)
    key_reset, key_act = jax.random.split(jax.random.key(seed))
    cut = params.replace(max_steps_in_episode=np.int32(longest))
    simulator = env.simulator(cut, num_envs, host_seeds(key_reset, num_envs))
    returns, finished = [], []
    total, played, step = np.zeros(num_envs), np.zeros(num_envs, int), 0
    while (played < quota).any():
        length = simulator.time + 1
        action = _choose(policy, simulator.observation, key_act, np.int32(step), env=env, sample=sample)
        outcome = simulator.step(np.asarray(action)[:, 0])
        total, step = total + outcome.reward, step + 1
        done = outcome.terminated | outcome.truncated
        counted = done & (played < quota)
        returns += list(total[counted])
        finished += list((outcome.terminated | (length < longest) | (longest == limit))[counted])
        played, total = played + counted, np.where(done, 0.0, total)
    simulator.close()
    return np.array(returns), np.array(finished)


@eqx.filter_jit
def _choose(
    policy: Policy, observation: PyTree, key: Array, step: Any, *, env: HostEnvironment, sample: bool
) -> PyTree:
    """Actions of N environments, deterministic or sampled."""
    num_envs = jax.tree.leaves(observation)[0].shape[0]
    view = _view(env, observation, num_envs)
    if not sample:
        return jax.vmap(lambda seen: policy(seen))(view)
    return jax.vmap(policy)(view, jax.random.split(jax.random.fold_in(key, step), num_envs))

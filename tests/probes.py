"""Environments made for tests: small enough that every right answer is known by hand."""

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array

from equimorph.agents import MAPPO
from equimorph.agents.agent import Agent, Context
from equimorph.envs import spaces
from equimorph.envs.environment import Environment, EnvParams, EnvState
from equimorph.training.collect import collect
from equimorph.training.loop import create_train_state

# -- a table: places, two actions ------------------------------------------------------------------------------


@struct.dataclass
class PlaceState(EnvState):
    place: Array


@struct.dataclass(kw_only=True)
class TableParams(EnvParams):
    """A decision problem in three places with two actions; every table is `[place, action]`."""

    start: Array
    reward: Array
    leads_to: Array
    ends: Array
    discount: Array


@dataclasses.dataclass(frozen=True)
class Table(Environment):
    """One agent sees where it is (one of three places, one-hot) and chooses one of two actions."""

    places: ClassVar[int] = 3

    @property
    def default_params(self):
        return table()

    def agent_action_space(self, params):
        return spaces.Discrete(2)

    def agent_observation_space(self, params):
        return spaces.Box(0.0, 1.0, (self.places,))

    def discount_factor(self, params):
        return params.discount

    def observe(self, key, state, action, params):
        return jax.nn.one_hot(state.place, self.places)

    def reset_env(self, key, params):
        state = PlaceState(jnp.int32(0), jax.random.choice(key, self.places, p=params.start).astype(jnp.int32))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        at = (state.place, action)
        following = PlaceState(state.time + 1, params.leads_to[at])
        return self.observe(key, following, None, params), following, params.reward[at], params.ends[at], {}


def table(
    reward=((0.0, 0.0),) * 3,
    leads_to=((0, 0), (1, 1), (2, 2)),
    ends=((True, True),) * 3,
    start=(1.0, 0.0, 0.0),
    discount=0.99,
    limit=1000,
) -> TableParams:
    """Parameters of `Table`; by default every action ends the episode and nothing pays."""
    tables = TableParams(
        max_steps_in_episode=np.int32(limit),
        start=np.asarray(start, np.float32),
        reward=np.asarray(reward, np.float32),
        leads_to=np.asarray(leads_to, np.int32),
        ends=np.asarray(ends, bool),
        discount=np.float32(discount),
    )
    return jax.device_put(tables)


# -- a game: two players and a matrix ----------------------------------------------------------------------------


@struct.dataclass(kw_only=True)
class MatrixParams(EnvParams):
    """What the first player earns and the second pays, `[own choice, the other's]`."""

    payoff: Array


@dataclasses.dataclass(frozen=True)
class MatrixGame(Environment):
    """Two players choose at once, once; what one gains the other loses. Each sees which of the two it is, one-hot."""

    choices: int = 3
    num_agents: int = 2
    concept: str = "nash"

    @property
    def default_params(self):
        return matrix_game()

    def agent_action_space(self, params):
        return spaces.Discrete(self.choices)

    def agent_observation_space(self, params):
        return spaces.Box(0.0, 1.0, (2,))

    def observe(self, key, state, action, params):
        return jnp.eye(2)

    def reset_env(self, key, params):
        return jnp.eye(2), EnvState(jnp.int32(0))

    def step_env(self, key, state, action, params):
        gain = params.payoff[action[0], action[1]]
        return jnp.eye(2), EnvState(state.time + 1), jnp.stack([gain, -gain]), jnp.bool_(True), {}


def matrix_game(paper=1.0, rock=1.0, scissors=3.0) -> MatrixParams:
    """Rock, paper and scissors with stakes: what a win by each pays.

    The equilibrium plays each choice in proportion to the stake of the win that it is not part of: rock to that of
    scissors over paper, paper to that of rock over scissors, scissors to that of paper over rock.
    """
    payoff = np.array([[0, -paper, rock], [paper, 0, -scissors], [-rock, scissors, 0]], np.float32)
    return jax.device_put(MatrixParams(max_steps_in_episode=np.int32(1), payoff=payoff))


# -- a script: a population whose life is written down -----------------------------------------------------------


@struct.dataclass
class ScriptState(EnvState):
    label: Array


@struct.dataclass(kw_only=True)
class Script(EnvParams):
    """What happens at each time; leading axis time, then agents. `label` scales a number drawn at reset."""

    observation: Array
    reward: Array
    alive: Array
    legal: Array
    next_slot: Array
    heir_of: Array
    ends: Array
    discount: Array
    label: Array


@dataclasses.dataclass(frozen=True)
class Scripted(Environment):
    """Several agents live by a script; what they do has no effect. Two observations each, the first plus the label.

    Attributes:
        discrete: three actions with the script's masks, else a Box(-1, 3) of two.
    """

    num_agents: int = 3
    concept: str = "nash"
    discrete: bool = False

    @property
    def default_params(self):
        return script()

    def agent_action_space(self, params):
        return spaces.Discrete(3) if self.discrete else spaces.Box(-1.0, 3.0, (2,))

    def agent_observation_space(self, params):
        return spaces.Box(-1e6, 1e6, (2,))

    def discount_factor(self, params):
        return params.discount

    def observe(self, key, state, action, params):
        return params.observation[state.time] + params.label * state.label * jnp.array([1.0, 0.0])

    def reset_env(self, key, params):
        state = ScriptState(jnp.int32(0), jax.random.uniform(key))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        following = ScriptState(state.time + 1, state.label)
        reward = params.reward[state.time] + params.label * state.label
        return self.observe(key, following, None, params), following, reward, params.ends[state.time], {}

    def agent_mask(self, state, params):
        return params.alive[state.time]

    def action_mask(self, state, params):
        return params.legal[state.time] if self.discrete else None

    def successor(self, state, next_state, params):
        return params.next_slot[state.time]

    def inherits(self, state, next_state, params):
        return params.heir_of[state.time]


LENGTH = 8


def script(
    observation=0.0,
    reward=0.0,
    alive=True,
    legal=True,
    next_slot=(0, 1, 2),
    heir_of=(0, 1, 2),
    ends=False,
    discount=0.5,
    label=0.0,
    limit=5,
    dead=None,
) -> Script:
    """Parameters of `Scripted` for `LENGTH` times and three agents; tables broadcast.

    Args:
        dead: what stands in the observations and rewards of dead slots, in place of the tables.
    """

    def full(value, *shape, dtype):
        return np.broadcast_to(np.asarray(value, dtype), (LENGTH, *shape))

    alive = full(alive, 3, dtype=bool)
    observation = full(observation, 3, 2, dtype=np.float32)
    reward = full(reward, 3, dtype=np.float32)
    if dead is not None:
        observation = np.where(alive[..., None], observation, np.float32(dead))
        reward = np.where(alive, reward, np.float32(dead))
    tables = Script(
        max_steps_in_episode=np.int32(limit),
        observation=observation,
        reward=reward,
        alive=alive,
        legal=full(legal, 3, 3, dtype=bool),
        next_slot=full(next_slot, 3, dtype=np.int32),
        heir_of=full(heir_of, 3, dtype=np.int32),
        ends=full(ends, dtype=bool),
        discount=np.float32(discount),
        label=np.float32(label),
    )
    return jax.device_put(tables)


def busy_script(**changes) -> Script:
    """Births, deaths, masks and observations that change at every step, and nobody's slot is empty for long."""
    random = np.random.default_rng(7)
    alive = random.random((LENGTH, 3)) < 0.6
    alive[:, 0] = True
    legal = random.random((LENGTH, 3, 3)) < 0.5
    legal[..., 1] = True
    stays = np.where(alive & np.roll(alive, -1, axis=0), np.arange(3), -1)
    return script(
        **{
            "observation": random.normal(size=(LENGTH, 3, 2)),
            "reward": random.normal(size=(LENGTH, 3)),
            "alive": alive,
            "legal": legal,
            "next_slot": stays,
            "heir_of": stays,
            "discount": 0.9,
            "label": 0.1,
            **changes,
        }
    )


# -- a learner that records what the loop hands over ---------------------------------------------------------------


class Recorder(Agent):
    """Acts at random, remembers how many steps each agent has lived, and returns whole rollouts as metrics."""

    def required(self):
        return frozenset()

    def concept(self, env):
        return env.concept

    def check(self, env, params, num_steps, num_envs):
        pass

    def init(self, key, env, params):
        return {"updates": jnp.int32(0), "number": jax.random.uniform(key)}

    def initial_memory(self, state, env, params):
        return jnp.zeros((env.num_agents,), jnp.int32)

    def act(self, state, memory, view, key, *, explore=True):
        chosen = jax.random.randint(key, view.agent_mask.shape, 0, 2)
        box = jnp.zeros((*view.agent_mask.shape, 2))
        return memory + 1, (box if view.agent_mask.shape[0] > 1 else chosen), memory

    def update(self, state, rollout, context, key):
        names = ("reward", "terminated", "truncated", "memory", "env_state", "next_env_state", "action")
        record = {name: getattr(rollout, name) for name in names} | {"mask": rollout.view.agent_mask}
        return {**state, "updates": state["updates"] + 1}, {"record": record, "noise": jax.random.uniform(key)}

    def policy(self, state):
        raise NotImplementedError


# -- a learner to share ----------------------------------------------------------------------------------------------


def small_mappo(box=True, **numbers) -> MAPPO:
    """One configuration whose compiled program many tests share; `numbers` are traced.

    Args:
        box: the actions are continuous, and their Gaussian so wide that many are saturated.
    """
    static = {"widths": (8,), "epochs": 2, "minibatches": 2, "schedule": "linear", "initial_std": 3.0 if box else None}
    return MAPPO(**{"learning_rate": 0.05, "final_rate": 0.0, "entropy": 0.01, **numbers}, **static)


# -- shared compiled functions -------------------------------------------------------------------------------------

_collect = eqx.filter_jit(collect)
_update = eqx.filter_jit(lambda agent, state, rollout, context, key: agent.update(state, rollout, context, key))


def gather(env, params, agent, num_steps, num_envs, seed=0, nets=None):
    """A train state and a rollout collected from it, by the loop's own functions.

    Args:
        nets: replaces the agent's networks before acting: `(nets) -> nets`.
    """
    state = create_train_state(env, params, agent, num_envs=num_envs, num_iterations=1, seed=seed)
    if nets is not None:
        state = state._replace(agent=state.agent._replace(nets=nets(state.agent.nets)))
    after, rollout, _ = _collect(state, jax.random.key(seed + 1), env, params, agent, num_steps)
    return after, rollout


def update(env, params, agent, agent_state, rollout, iteration=0, num_iterations=1, seed=2):
    """One call of the agent's update: the next agent state and metrics."""
    context = Context(env, params, jnp.int32(iteration), jnp.int32(num_iterations))
    return _update(agent, agent_state, rollout, context, jax.random.key(seed))


def constant(nets, value):
    """The same tree of weights, all zero, with the last layer's biases at `value`."""
    zero = jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype)), nets)
    bias = zero.layers[-1].bias
    return eqx.tree_at(lambda n: n.layers[-1].bias, zero, jax.device_put(np.full(bias.shape, value, bias.dtype)))

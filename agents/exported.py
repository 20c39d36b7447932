"""A policy by itself: it acts on NumPy observations, and is read from a file without any code of training."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..envs.environment import Environment, EnvParams, add_agent_axis, drop_agent_axis
from ..envs.registry import make
from ..errors import UserError
from ..storage import load_tree, read_about, save_tree
from .agent import Policy, View
from .policies.recurrent import RecurrentPolicy
from .registry import make_agent

KIND = "policy"


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """What a trained learner does in its environment: observations in, actions in the environment's own units out.

    Attributes:
        env, params: the environment, and its parameters in training.
        policy: the policy itself, for jitted code.
        env_id: the environment's id.
        about: of a file, what it says of where the policy comes from.
    """

    env: Environment
    params: EnvParams
    policy: Policy
    env_id: str
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def __call__(
        self, observation: PyTree, *, agent_mask: Any = None, action_mask: Any = None, key: Array | None = None
    ) -> PyTree:
        """The action for an observation.

        Args:
            observation: what `env.reset` and `env.step` return, `[O]` for one agent and `[A, O]` for several; NumPy or
                JAX. A batch has one more axis in front.
            agent_mask: which slots hold a living agent, bool[A]; None: all. With a batch, `[batch, A]`.
            action_mask: legal discrete actions, as the environment's `action_mask` gives them; None: all. With a batch,
                one more axis in front.
            key: draw actions as in training; None: the policy's best.

        Returns:
            The action that `env.step` takes, as NumPy arrays, with the batch's axis in front where there is one.

        Raises:
            UserError: the observation is of another shape (the message names the expected one), or the policy has a
                memory, and `act` carries it.
        """
        if isinstance(self.policy, RecurrentPolicy):
            raise UserError(
                "this policy has a memory, which one observation does not hold; carry it: "
                "memory, action = policy.act(observation, memory), from policy.initial_memory() at an episode's start"
            )
        return self.act(observation, None, agent_mask=agent_mask, action_mask=action_mask, key=key)[1]

    def initial_memory(self, batch: int | None = None) -> PyTree:
        """What `act` is given at an episode's start, `[A, ...]`, with an axis of `batch` in front if asked for.

        It is empty where nothing is remembered.
        """
        memory = self.policy.initial_memory(self.env.num_agents)
        if batch is None:
            return memory
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape)), memory)

    def act(
        self,
        observation: PyTree,
        memory: PyTree,
        *,
        agent_mask: Any = None,
        action_mask: Any = None,
        key: Array | None = None,
    ) -> tuple[PyTree, PyTree]:
        """The memory after a step, and the action in it.

        Args:
            observation: as for a call.
            memory: from before the step; None: that of an episode's start. It follows slots: where agents move or are
                born (`env.inherits`), the caller moves it along.
            agent_mask, action_mask, key: as for a call.

        Raises:
            UserError: the observation or `agent_mask` is of another shape, or `key` is no key.
        """
        observation, batch = self._checked(observation)
        slots = (self.env.num_agents,) if batch is None else (batch, self.env.num_agents)
        if agent_mask is None:
            agent_mask = jnp.ones(slots, bool)
        elif np.shape(agent_mask) != slots:
            raise UserError(f"agent_mask has shape {slots} here, got {np.shape(agent_mask)}")
        if key is not None and not (isinstance(key, jax.Array) and (key.ndim == 0 or key.dtype == np.uint32)):
            raise UserError(f"key is one JAX key, such as jax.random.key(0), got {key!r}")
        memory = self.initial_memory(batch) if memory is None else memory
        act = _act
        if batch is not None:
            act, key = _act_on_batch, key if key is None else jax.random.split(key, batch)
        found = act(self.policy, self.env, observation, jnp.asarray(agent_mask, bool), action_mask, memory, key)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(found))
        return found if traced else (found[0], jax.tree.map(np.asarray, found[1]))

    @functools.cached_property
    def _expected(self) -> PyTree:
        return jax.eval_shape(self.env.reset, jax.random.key(0), self.params)[0]

    def _checked(self, observation: PyTree) -> tuple[PyTree, int | None]:
        """The observation as arrays of the expected dtype, and the length of its batch, if it is one."""
        expected = self._expected
        try:
            given = jax.tree.map(lambda like, leaf: jnp.asarray(leaf, like.dtype), expected, observation)
        except (TypeError, ValueError):
            raise UserError(f"an observation of {self.env_id} is {_shapes(expected)}; got {observation!r}") from None
        pairs = list(zip(jax.tree.leaves(expected), jax.tree.leaves(given), strict=True))
        if all(like.shape == leaf.shape for like, leaf in pairs):
            return given, None
        if all(leaf.ndim and like.shape == leaf.shape[1:] for like, leaf in pairs):
            return given, pairs[0][1].shape[0]
        raise UserError(
            f"an observation of {self.env_id} has shape {_shapes(expected)}, or a batch of that; got {_shapes(given)}"
        )


def _shapes(tree: PyTree) -> Any:
    return jax.tree.map(lambda leaf: tuple(leaf.shape), tree)


@eqx.filter_jit
def _act(
    policy: Policy,
    env: Environment,
    observation: PyTree,
    agent_mask: Array,
    action_mask: PyTree,
    memory: PyTree,
    key: Array | None,
) -> tuple[PyTree, PyTree]:
    view = View(add_agent_axis(env, observation), agent_mask, action_mask)
    memory, action = policy.act(view, memory, key)
    return memory, drop_agent_axis(env, action)


@eqx.filter_jit
def _act_on_batch(policy: Policy, env: Environment, *each: PyTree) -> tuple[PyTree, PyTree]:
    return jax.vmap(lambda *one: _act(policy, env, *one))(*each)


# -- files ------------------------------------------------------------------------------------------------------------


def save_policy(path: str | os.PathLike[str], policy: Policy, about: Mapping[str, Any]) -> None:
    """Write a policy's arrays, and what it takes to make the rest of it.

    Args:
        path: the file; one that is there is replaced.
        policy: a learner's.
        about: `environment` (id, calibration, options and parameters, as `make` takes them) and `agent` (name and
            hyperparameters); what else is there comes along.
    """
    arrays = eqx.filter(policy, eqx.is_array)
    save_tree(path, arrays, about={"kind": KIND, **about})


def load_policy(path: str | os.PathLike[str]) -> TrainedPolicy:
    """Read a policy that `equimorph export` wrote. Nothing of training is imported, and nothing in the file is run.

    An environment "module:id" is one's own: its module is imported, as by `make`.

    Args:
        path: the file.

    Raises:
        UserError: there is none, it is damaged, of a newer version or of another precision, it holds something else, or
            its environment is not known here.

    Example:
        >>> import tempfile, equimorph
        >>> run = equimorph.train("BrockMirman-v0", "reinforce", iterations=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     policy = load_policy(equimorph.export(run, f"{folder}/saver.eqx"))
        >>> policy(np.zeros(2)).shape
        (1,)
    """
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise UserError(f"a policy is read from a file, by its name; got {path!r}")
    if Path(path).is_dir():
        raise UserError(f"{os.fspath(path)!r} is a folder; of a run's, equimorph.load(folder).policy acts")
    about = read_about(path)
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise UserError(
            f"{os.fspath(path)!r} holds a learner's state and not a policy; equimorph export RUN --to FILE makes one"
        )
    try:
        environment, learner = about["environment"], about["agent"]
        env_id, calibration, settings = (environment[key] for key in ("id", "calibration", "settings"))
        name, hyperparameters = learner["name"], learner["hyperparameters"]
        if not (isinstance(settings, dict) and isinstance(hyperparameters, dict)):
            raise TypeError("settings and hyperparameters by name")
    except (KeyError, TypeError) as error:
        raise UserError(f"{os.fspath(path)!r} is damaged: it does not say {error}") from None
    try:
        env, params = make(env_id, **{**settings, "calibration": calibration, "api": "gymnax"})
        agent = make_agent(name, env, params, **hyperparameters)
    except (TypeError, AttributeError) as error:
        raise UserError(f"{os.fspath(path)!r} is damaged, or of another version: {error}") from None
    like = eqx.filter_eval_shape(lambda key: agent.policy(agent.init(key, env, params)), jax.random.key(0))
    shapes, rest = eqx.partition(like, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    policy = eqx.combine(load_tree(path, shapes), rest)
    return TrainedPolicy(env, params, policy, env_id, about)

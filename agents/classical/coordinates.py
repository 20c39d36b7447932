"""States and decisions as flat vectors: logs of what is positive, logits of what is bounded."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ...envs import spaces
from ...envs.economy import Decision, Economy
from ...envs.environment import EnvParams, EnvState
from ...envs.wrappers import innermost, with_innermost
from ...errors import UserError

# Solvers that start from the linear rule, in these coordinates.
SMOOTH = ("log_linear", "chebyshev", "value_iteration")
SAMPLE = 256
INSIDE = 1e-6
LEAST = 1e-300


class StateCoordinates(eqx.Module):
    """The real leaves of a state as one vector; those that are positive in every state seen, in logs.

    Of a state inside wrappers it is the economy's own: what wrappers carry besides is no coordinate.

    Attributes:
        names: of the entries, "log k" or "z[1]".
        logs: `[n]`, which are in logs.
        template: a state whose other leaves (the time) serve for states that are built.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    logs: tuple[bool, ...] = eqx.field(static=True)
    template: EnvState

    @property
    def size(self) -> int:
        """Entries, n."""
        return len(self.names)

    def __call__(self, state: EnvState) -> Float[Array, " n"]:
        """The vector of a state."""
        leaves = [jnp.ravel(leaf) for leaf in _real_leaves(state)]
        x = jnp.concatenate(leaves).astype(jnp.result_type(float))
        logs = np.asarray(self.logs)
        least = max(LEAST, float(jnp.finfo(x.dtype).tiny))
        return jnp.where(logs, jnp.log(jnp.maximum(jnp.where(logs, x, 1), least)), x)

    def state(self, x: Float[Array, " n"]) -> EnvState:
        """The state of a vector."""
        logs = np.asarray(self.logs)
        values = jnp.where(logs, jnp.exp(jnp.where(logs, x, 0)), x)
        leaves, structure = jax.tree.flatten(innermost(self.template))
        filled, at = [], 0
        for leaf in leaves:
            if not _is_real(leaf):
                filled.append(jnp.asarray(leaf))
                continue
            size = int(np.prod(leaf.shape, dtype=int))
            filled.append(values[at : at + size].reshape(leaf.shape))
            at += size
        return with_innermost(self.template, jax.tree.unflatten(structure, filled))


class DecisionCoordinates(eqx.Module):
    """A decision's entries as one unbounded vector: logits between finite bounds, logs above a lower one.

    Entries that are at a bound in the steady state stay as they are, and are clipped.

    Attributes:
        names: of the entries.
        kinds: of each entry, "logit", "log" or "level".
        low, high: `[m]`, bounds.
        structure: of the decision; `shapes` of its leaves.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    kinds: tuple[str, ...] = eqx.field(static=True)
    low: np.ndarray
    high: np.ndarray
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        """Entries, m."""
        return len(self.names)

    def values(self, decision: Decision) -> Float[Array, " m"]:
        """The decision's entries in its own units."""
        leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(decision)]
        return jnp.concatenate(leaves).astype(jnp.result_type(float))

    def __call__(self, decision: Decision) -> Float[Array, " m"]:
        """The unbounded vector of a decision."""
        y, low, width = self.values(decision), *self._bounds()
        is_logit, is_log = self._are("logit"), self._are("log")
        share = jnp.where(is_logit, (y - low) / width, 0.5)
        above = jnp.where(is_log, y - low, 1.0)
        return jnp.where(is_logit, jax.scipy.special.logit(share), jnp.where(is_log, jnp.log(above), y))

    def decision(self, u: Float[Array, " m"]) -> Decision:
        """The decision of an unbounded vector, inside its bounds."""
        low, width = self._bounds()
        is_logit, is_log = self._are("logit"), self._are("log")
        high = jnp.asarray(self.high, u.dtype)
        squashed = low + width * jax.nn.sigmoid(jnp.where(is_logit, u, 0))
        raised = low + jnp.exp(jnp.where(is_log, u, 0))
        y = jnp.where(is_logit, squashed, jnp.where(is_log, raised, jnp.clip(u, low, high)))
        return self.from_values(y)

    def from_values(self, y: Float[Array, " m"]) -> Decision:
        """The decision whose entries are `y`, in its own units."""
        leaves, at = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape, dtype=int))
            leaves.append(y[at : at + size].reshape(shape))
            at += size
        return jax.tree.unflatten(self.structure, leaves)

    def slopes(self, u: Float[Array, " m"]) -> Float[Array, " m"]:
        """Derivatives of the decision's entries with respect to the unbounded ones."""
        return jnp.diagonal(jax.jacfwd(lambda v: self.values(self.decision(v)))(u))

    def _bounds(self) -> tuple[Array, Array]:
        dtype = jnp.result_type(float)
        low, high = jnp.asarray(self.low, dtype), jnp.asarray(self.high, dtype)
        return low, jnp.where(jnp.isfinite(high), high - low, 1)

    def _are(self, kind: str) -> np.ndarray:
        return np.asarray([each == kind for each in self.kinds])


def state_coordinates(env: Economy, params: EnvParams, *, discrete: bool = False) -> StateCoordinates:
    """Coordinates for the states of an economy.

    Args:
        env, params: the economy.
        discrete: take states that have integers besides the time, and leave those out.

    Raises:
        UserError: a state has integers that were not asked for, or no real numbers.
    """
    keys = jax.random.split(jax.random.key(0), SAMPLE)
    seen = jax.vmap(env.initial_state, (0, None))(keys, params)
    template = jax.tree.map(lambda leaf: np.asarray(leaf[0]), seen)
    found = env.steady_state(params)
    names, logs = [], []
    for path, leaf in jax.tree_util.tree_flatten_with_path(innermost(seen))[0]:
        name = jax.tree_util.keystr(path).strip(".")
        if not _is_real(leaf):
            if name != "time" and not discrete:
                raise UserError(
                    f"{env.name}: state {name} is discrete, and this solver takes continuous states only; "
                    f"{what_works(env, params, *SMOOTH)}"
                )
            continue
        flat = np.asarray(leaf).reshape(SAMPLE, -1)
        positive = np.min(flat, axis=0) > 0
        for index in range(flat.shape[1]):
            logs.append(bool(positive[index]))
            label = name if leaf.ndim == 1 else f"{name}[{index}]"
            names.append(f"log {label}" if logs[-1] else label)
    if not names:
        raise UserError(f"{env.name}: its state has no real numbers; {what_works(env, params, *SMOOTH)}")
    if found is not None:
        steady = np.concatenate([np.ravel(leaf) for leaf in _real_leaves(found[0])])
        logs = [log and bool(value > 0) for log, value in zip(logs, steady, strict=True)]
        names = [name if log else name.removeprefix("log ") for name, log in zip(names, logs, strict=True)]
        template = jax.tree.map(np.asarray, found[0])
    return StateCoordinates(tuple(names), tuple(logs), template)


def decision_coordinates(env: Economy, params: EnvParams, decision: Decision) -> DecisionCoordinates:
    """Coordinates for the decisions of an economy, around one of them.

    Raises:
        UserError: an action that is no `Box`.
    """
    boxes = [env.action_space(params)]
    if not isinstance(boxes[0], spaces.Box):
        raise UserError(
            f"{env.name}: its actions are discrete, and this solver takes a Box; {what_works(env, params, *SMOOTH)}"
        )
    own = env.auxiliary(params)
    if own is not None:
        boxes.append(spaces.stack_space(own, env.num_agents))
    lows, highs, names = [], [], []
    parts = zip(("action", "auxiliary"), boxes, (decision.action, decision.auxiliary), strict=False)
    for label, box, leaf in parts:
        shape = tuple(jnp.shape(leaf))
        lows.append(np.broadcast_to(np.asarray(box.low, float), shape).ravel())
        highs.append(np.broadcast_to(np.asarray(box.high, float), shape).ravel())
        names += [f"{label}[{index}]" if lows[-1].size > 1 else label for index in range(lows[-1].size)]
    low, high = np.concatenate(lows), np.concatenate(highs)
    high = np.where(high > 1e30, np.inf, high)
    leaves, structure = jax.tree.flatten(decision)
    y = np.concatenate([np.ravel(leaf) for leaf in leaves])
    width = np.where(np.isfinite(high), high - low, 1.0)
    logit = np.isfinite(high) & ((y - low) / width > INSIDE) & ((high - y) / width > INSIDE)
    log = ~np.isfinite(high) & (y - low > INSIDE)
    kinds = tuple("logit" if a else "log" if b else "level" for a, b in zip(logit, log, strict=True))
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    return DecisionCoordinates(tuple(names), kinds, low, high, structure, shapes)


def what_works(env: Economy, params: EnvParams, *but: str) -> str:
    """What to do instead of using a solver that does not fit, for a message.

    Args:
        env, params: the economy.
        *but: solvers that are not advised: the one that does not fit, and those that need what it needs.
    """
    if "closed_form" not in but and env.reference(params) is not None:
        return "use 'closed_form'"
    if env.solver is not None and env.solver not in but:
        return f"use its solver, {env.solver!r}"
    return "train it with 'deqn' or 'mappo'" if "conditions" in env.capabilities else "train it with 'mappo'"


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)


def _real_leaves(state: EnvState) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(innermost(state)) if _is_real(leaf)]


class Rule(eqx.Module):
    """What `Reference.policy` and `Reference.auxiliary` are made of: a map to unbounded decisions, and its squash.

    Attributes:
        function: from coordinates `[n]` to the unbounded decision `[m]`.
        states, decisions: the coordinates.
        part: "action" or "auxiliary".
    """

    function: Any
    states: StateCoordinates
    decisions: DecisionCoordinates
    part: str = eqx.field(static=True)

    def __call__(self, state: EnvState) -> PyTree:
        return getattr(self.decide(state), self.part)

    def decide(self, state: EnvState) -> Decision:
        """The whole decision in a state."""
        return self.decisions.decision(self.function(self.states(state)))

    def other(self, part: str) -> Rule:
        """The same rule, read for another part of the decision."""
        return dataclasses.replace(self, part=part)

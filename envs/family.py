"""Parameters as inputs of a policy: a family of calibrations as one economy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from ..errors import UserError, unknown
from . import spaces
from .economy import Economy
from .economy_wrappers import EconomyWrapper
from .environment import REAL, Environment, EnvParams, EnvState, Reference
from .history import window_of
from .wrappers import WrappedState

MOST_CORNERS = 256


@struct.dataclass
class DrawnState(WrappedState):
    """A state, and the parameters of its episode.

    Attributes:
        drawn: `[K]`, in the order of the family's `inputs`, in their own units.
    """

    drawn: Float[Array, " K"]


@dataclasses.dataclass(frozen=True)
class Family(EconomyWrapper):
    """A family of calibrations as one economy: parameters are drawn for each episode, and seen.

    Each input is uniform on its range. Observations end with the inputs, scaled to [-1, 1], so that one policy answers
    for all. Where no state is at hand (the centre, the steady state, the units of reward) they are in the middle of
    their ranges; values of theirs in `params` are not read. A closed form is known at every state's own parameters; a
    numeric solver would have to solve each calibration, and is not used. Shares of consumption of different
    calibrations have no mean, so there is no welfare loss.

    Attributes:
        inner: the economy.
        inputs: parameters and their ranges, `{"beta": (0.9, 0.97)}`; kept as a tuple of `(name, low, high)`.

    Raises:
        UserError: an input that is no scalar real parameter, an empty range, or one that leaves the parameter's domain.

    Example:
        >>> from equimorph.envs.economies.brock_mirman import BrockMirman
        >>> Family(BrockMirman(), {"beta": (0.9, 0.97)}).inputs
        (('beta', 0.9, 0.97),)
    """

    inputs: Any

    def __post_init__(self):
        object.__setattr__(self, "inputs", checked_inputs(self.inner, self.inputs))
        super().__post_init__()

    def usual(self, params: EnvParams) -> EnvParams:
        """The middle of every range."""
        return self._with(params, self._bounds().mean(axis=1))

    def at(self, state: EnvState, params: EnvParams) -> EnvParams:
        """The parameters of the state's episode."""
        return self._with(params, state.drawn)

    def _with(self, params: EnvParams, values: Array) -> EnvParams:
        """`params` with the inputs' values `[K]`."""
        return params.replace(**{name: values[k] for k, (name, *_) in enumerate(self.inputs)})

    def _bounds(self) -> Float[Array, "K 2"]:
        return jnp.asarray([(low, high) for _, low, high in self.inputs], jnp.result_type(float))

    @property
    def default_params(self) -> EnvParams:
        """`inner`'s, the inputs in the middle of their ranges."""
        return self.usual(self.inner.default_params)

    @property
    def solver(self) -> None:
        """None: each calibration would have to be solved."""
        return None

    def solvable(self) -> Economy:
        raise UserError(
            f"{self.name}: a solver solves one calibration, and this is a family in "
            f"{', '.join(name for name, *_ in self.inputs)}; leave inputs out, or train it with 'deqn' or 'mappo'"
        )

    def check_params(self, params: EnvParams) -> None:
        """Parameters go together at every corner and in the middle; actions have the same bounds there."""
        spans = [self.usual(params), *self._corners(params)]
        boxes = []
        for one in spans:
            try:
                self.inner.check_params(one)
            except UserError as error:
                values = ", ".join(f"{name} = {float(getattr(one, name)):.6g}" for name, *_ in self.inputs)
                raise UserError(f"inputs at {values}: {error}") from None
            parts = (self.inner.agent_action_space(one), self.inner.auxiliary(one))
            boxes.append([np.asarray(end) for part in parts if isinstance(part, spaces.Box) for end in _ends(part)])
        for other in boxes[1:]:
            if not all(np.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(boxes[0], other, strict=True)):
                raise UserError(
                    f"{self.inner.name}: bounds of actions or multipliers depend on "
                    f"{', '.join(name for name, *_ in self.inputs)}, so they cannot all be inputs; keep them fixed"
                )

    def _corners(self, params: EnvParams) -> Iterator[EnvParams]:
        bounds = self._bounds()
        for ends in itertools.islice(itertools.product((0, 1), repeat=len(self.inputs)), MOST_CORNERS):
            yield self._with(params, bounds[np.arange(len(ends)), np.asarray(ends)])

    def initial_state(self, key: Array, params: EnvParams) -> EnvState:
        key_inputs, key_state = jax.random.split(key)
        low, high = self._bounds().T
        drawn = low + (high - low) * jax.random.uniform(key_inputs, low.shape, low.dtype)
        inner = self.inner.initial_state(key_state, self._with(params, drawn))
        return DrawnState(inner.time, inner, drawn)

    def agent_observation_space(self, params: EnvParams) -> spaces.Box:
        """`inner`'s, and the inputs."""
        big = float(jnp.finfo(jnp.result_type(float)).max)
        size = spaces.flat_size(self.inner.agent_observation_space(params)) + len(self.inputs)
        return spaces.Box(-big, big, (size,), jnp.result_type(float))

    def observation(self, state: EnvState, params: EnvParams) -> Float[Array, "..."]:
        seen = super().observation(state, params)
        return jnp.concatenate([seen, jnp.broadcast_to(self.scaled(state), (*seen.shape[:-1], len(self.inputs)))], -1)

    def scaled(self, state: EnvState) -> Float[Array, " K"]:
        """The inputs in units of half their ranges, from the middle."""
        low, high = self._bounds().T
        return 2 * (state.drawn - low) / (high - low) - 1

    def world_state(self, state: EnvState, params: EnvParams) -> Float[Array, " S"]:
        """`inner`'s, and the inputs."""
        return jnp.concatenate([super().world_state(state, params), self.scaled(state)])

    def wrap(self, inner: EnvState, params: EnvParams) -> EnvState:
        return DrawnState(inner.time, inner, self._bounds().mean(axis=1))

    def following(self, state: EnvState, inner: EnvState, params: EnvParams) -> EnvState:
        return state.replace(inner=inner)

    def consumption_equivalent(
        self, value: Float[Array, ""], reference: Float[Array, ""], params: EnvParams
    ) -> Float[Array, ""] | None:
        return None

    def reference(self, params: EnvParams) -> Reference | None:
        """`inner`'s, in each state at its own parameters."""
        found = self.inner.reference(self.usual(params))
        if found is None:
            return None

        def part(name: str) -> Any:
            if getattr(found, name) is None:
                return None
            return lambda state: getattr(self.inner.reference(self.at(state, params)), name)(self.core(state))

        return found._replace(policy=part("policy"), value=part("value"), auxiliary=part("auxiliary"))


def checked_inputs(economy: Environment, inputs: Any) -> tuple[tuple[str, float, float], ...]:
    """`inputs` of a `Family` as `(name, low, high)`, sorted by name.

    Raises:
        UserError: see `Family`.
    """
    if not isinstance(economy, Economy):
        raise UserError(f"inputs are parameters of an economy, and {economy.name} is none; leave inputs out")
    if window_of(economy) is not None:
        raise UserError(f"{economy.name} has a window already; put the window around the Family, History(Family(...))")
    if isinstance(inputs, tuple):
        inputs = {name: bounds for name, *bounds in inputs}
    if not isinstance(inputs, Mapping) or not inputs:
        raise UserError(f"inputs must give parameters their ranges, such as {{'beta': [0.9, 0.99]}}, got {inputs!r}")
    params = economy.default_params
    fields = {field.name: field for field in dataclasses.fields(params)}
    checked = []
    for name, bounds in sorted(inputs.items()):
        if name not in fields:
            raise unknown(f"parameter of {economy.name} in inputs", str(name), fields)
        value = np.asarray(getattr(params, name))
        if value.ndim or not np.issubdtype(value.dtype, np.floating):
            what = "is made of several numbers" if value.ndim else "is a whole number"
            raise UserError(f"{economy.name}: parameter {name} {what}, and inputs are single reals; leave it out")
        low, high = _range(economy.name, name, bounds)
        domain = fields[name].metadata.get("domain", REAL)
        if not domain.contains([low, high]):
            raise UserError(f"{economy.name}: inputs {name} = [{low:g}, {high:g}] must lie in {domain}")
        checked.append((name, low, high))
    return tuple(checked)


def _range(economy: str, name: str, bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        raise UserError(f"{economy}: inputs {name} must be two numbers, [low, high], got {bounds!r}") from None
    if not low < high:
        raise UserError(f"{economy}: inputs {name} = [{low:g}, {high:g}] is empty; give the lower end first")
    return low, high


def _ends(box: spaces.Box) -> tuple[Array, Array]:
    return jnp.broadcast_to(box.low, box.shape), jnp.broadcast_to(box.high, box.shape)

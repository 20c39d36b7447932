"""Spaces: the one that gymnax lacks, stacking over agents, and clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from equimorph.envs.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, clip_to, flat_size, stack_space
from equimorph.errors import UserError


def test_multi_discrete_samples_every_choice_and_nothing_else():
    space = MultiDiscrete([2, 3])
    draws = jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 200))
    assert draws.dtype == space.dtype
    assert [set(np.asarray(column).tolist()) for column in draws.T] == [{0, 1}, {0, 1, 2}]
    assert all(space.contains(draw) for draw in draws[:5])
    assert not space.contains(jnp.array([0, 3]))
    assert not space.contains(jnp.array([-1, 0]))
    assert "[2, 3]" in repr(space)


@pytest.mark.parametrize("nvec", [[], [2, 0]])
def test_multi_discrete_without_choices_is_refused(nvec):
    with pytest.raises(UserError, match="at least one choice"):
        MultiDiscrete(nvec)


def test_one_agents_space_is_not_stacked():
    space = Discrete(3)
    assert stack_space(space, 1) is space


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (Discrete(3), (4,)),
        (MultiDiscrete([2, 5]), (4, 2)),
        (Box(-1.0, 1.0, (2,)), (4, 2)),
        (Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), (2,)), (4, 2)),
    ],
)
def test_stacked_spaces(space, shape):
    stacked = stack_space(space, 4)
    draw = stacked.sample(jax.random.key(0))
    assert stacked.shape == draw.shape == shape
    assert stacked.contains(draw)
    assert flat_size(stacked) == 4 * flat_size(space)


def test_composite_spaces_are_stacked_inside():
    space = Dict({"a": Discrete(2), "b": Tuple([Box(0.0, 1.0, (3,)), Discrete(5)])})
    stacked = stack_space(space, 2)
    assert stacked.spaces["a"].shape == (2,)
    assert stacked.spaces["b"].spaces[0].shape == (2, 3)
    assert flat_size(stacked) == 2 * flat_size(space) == 10


def test_an_unknown_space_is_refused_by_type():
    class Odd(Space):
        pass

    with pytest.raises(UserError, match="type Odd cannot be stacked"):
        stack_space(Odd(), 2)


@pytest.mark.parametrize(
    ("space", "action", "near", "outside"),
    [
        (Box(0.0, 1.0, (2,)), [0.5, 1.0], [0.5, 1.0], False),
        (Box(0.0, 1.0, (2,)), [-0.5, 2.0], [0.0, 1.0], True),
        (Box(np.array([0.0, 5.0]), np.array([1.0, 6.0]), (2,)), [0.5, 4.0], [0.5, 5.0], True),
        (Discrete(3), 2, 2, False),
        (Discrete(3), 3, 2, True),
        (Discrete(3), -1, 0, True),
        (MultiDiscrete([2, 3]), [1, 3], [1, 2], True),
    ],
)
def test_clipping(space, action, near, outside):
    clipped, flag = jax.jit(lambda action: clip_to(space, action))(jnp.asarray(action))
    np.testing.assert_array_equal(clipped, near)
    assert bool(flag) is outside
    assert clipped.dtype == jnp.asarray(action).dtype


def test_a_nan_stays_a_nan_and_is_outside():
    clipped, flag = clip_to(Box(0.0, 1.0, (2,)), jnp.array([jnp.nan, 0.5]))
    assert np.isnan(clipped[0])
    assert flag


def test_composite_actions_are_clipped_inside():
    space = Dict({"a": Discrete(2), "b": Tuple([Box(0.0, 1.0, ()), Discrete(5)])})
    clipped, flag = clip_to(space, {"a": jnp.int32(1), "b": (jnp.array(2.0), jnp.int32(3))})
    assert clipped == {"a": 1, "b": (1.0, 3)}
    assert flag

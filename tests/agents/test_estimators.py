"""Estimators by hand."""

import jax
import numpy as np
import pytest

from equimorph.agents.estimators import follow, returns_to_go, steps_to_end, with_continuation

_returns = jax.jit(returns_to_go)
_left = jax.jit(steps_to_end)


def test_follow_takes_the_successors_entry_and_nothing_where_there_is_none():
    values = np.array([[1.0, 2.0, 4.0]])
    assert follow(values, np.array([[2, -1, 0]])).tolist() == [[4, 0, 1]]
    assert follow(np.array([[np.nan]]), np.array([[-1]])).tolist() == [[0]]


def test_returns_to_go_by_hand():
    # Two agents: the first moves from slot 0 to 1 after time 0, where it is paid 4 and then 8; the second dies.
    reward = np.array([[1.0, 2], [0, 4], [0, 8]]).reshape(3, 1, 2)
    successor = np.array([[1, -1], [-1, 1], [-1, 1]]).reshape(3, 1, 2)
    discount = np.full((3, 1, 2), 0.5)
    done = np.zeros((3, 1), bool)
    assert _returns(reward, discount, done, successor)[:, 0].tolist() == [[1 + 2 + 2, 2], [0, 8], [0, 8]]
    done[1] = True
    assert _returns(reward, discount, done, successor)[:, 0].tolist() == [[1 + 2, 2], [0, 4], [0, 8]]


def test_returns_use_each_transitions_own_discount():
    reward, one = np.ones((3, 1, 1)), np.zeros((3, 1, 1), np.int32)
    discount = np.array([0.5, 0.25, 0.9]).reshape(3, 1, 1)
    found = _returns(reward, discount, np.zeros((3, 1), bool), one).ravel()
    np.testing.assert_allclose(found, [1 + 0.5 * 1.25, 1.25, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "left"),
    [
        ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0), [4, 3, 2, 1, 0]),
        ((0, 0, 0, 0, 0), (0, 1, 0, 0, 0), [1, 0, 2, 1, 0]),
        ((0, 0, 1, 0, 0), (0, 0, 0, 0, 0), [5, 5, 5, 1, 0]),
        ((0, 0, 1, 0, 0), (0, 0, 1, 0, 0), [5, 5, 5, 1, 0]),
        ((0, 0, 0, 0, 1), (0, 0, 0, 0, 0), [5, 5, 5, 5, 5]),
    ],
)
def test_steps_to_end(terminated, truncated, left):
    columns = (np.array(flags, bool)[:, None] for flags in (terminated, truncated))
    assert _left(*columns)[:, 0].tolist() == left


def test_only_what_was_cut_off_goes_on():
    # Terminated, truncated, both, neither but the last: 1 + .5 * 10 where there is a future that the rollout lacks.
    column = lambda *x: np.array(x)[:, None, None]  # noqa: E731
    ends = np.array([[1, 0, 1, 0], [0, 1, 1, 0]], bool)[..., None]
    moves = np.zeros((4, 1, 1), np.int32)
    found = with_continuation(column(1.0, 1, 1, 1), column(10.0, 10, 10, 10), column(0.5, 0.5, 0.5, 0.5), *ends, moves)
    assert found.ravel().tolist() == [1, 6, 1, 6]

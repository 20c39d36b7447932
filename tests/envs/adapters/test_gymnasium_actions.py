"""Actions through the doors to Gymnasium: what is taken, what is clipped, and what is refused in which words."""

import gymnasium
import numpy as np
import pytest

import equimorph
from equimorph.envs.adapters._gymnasium_actions import as_action
from equimorph.errors import UserError


def make(env_id):
    return equimorph.make(env_id, api="gymnasium")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (2, "CartPole-v1: action must be one of 0 to 1, got 2"),
        (-1, "must be one of 0 to 1, got -1"),
        (1.0, "must be a whole number, got 1.0 of type float64"),
        (True, "must be a whole number, got True"),
        (np.array([1]), r"must have shape \(\), got \(1,\)"),
        ("left", "must be an array of numbers of shape"),
        (None, "must be an array of numbers of shape"),
    ],
)
def test_choices_that_do_not_exist_are_refused(action, message):
    env = make("CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(UserError, match=message):
        env.step(action)
    env.step(1)  # and the episode goes on


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([np.nan], r"BrockMirman-v0: action\[0\] is not a number"),
        (0.3, r"must have shape \(1,\), got \(\)"),
        ([0.3, 0.3], r"must have shape \(1,\), got \(2,\)"),
        ([True], "must be numbers, got type bool"),
        ([[0.3], [0.1, 0.2]], r"must be an array of shape \(1,\)"),
        ([1j], "must be numbers, got type complex128"),
    ],
)
def test_actions_that_are_no_points_are_refused(action, message):
    env = make("BrockMirman-v0")
    env.reset(seed=0)
    with pytest.raises(UserError, match=message):
        env.step(action)


STRUCTURE = gymnasium.spaces.Dict(
    {
        "go": gymnasium.spaces.MultiDiscrete([3, 3]),
        "far": gymnasium.spaces.Box(-1, 1, (2,)),
        "both": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(0, 9, (), np.int32)]),
    }
)
FINE = {"go": [0, 2], "far": [0.5, 7.0], "both": (1, 4)}


def test_structures_come_in_their_types():
    action = as_action(STRUCTURE, FINE, "x")
    assert action["go"].tolist() == [0, 2]
    assert (action["far"].dtype, action["far"].tolist()) == (np.float32, [0.5, 7.0])
    assert (action["both"][0], action["both"][1]) == (1, 4)
    far = as_action(STRUCTURE, FINE | {"both": (0, np.int64(2**40))}, "x")["both"][1]
    assert far == np.iinfo(np.int32).max  # out of bounds, and not wrapped around into them


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"go": [0, 3]}, r"Env-v0: action\['go'\]\[1\] must be one of 0 to 2, got 3"),
        ({"go": [-1, 0]}, r"action\['go'\]\[0\] must be one of 0 to 2, got -1"),
        (
            {"go": np.array([0, 2**63], np.uint64)},
            r"action\['go'\]\[1\] must be one of 0 to 2, got 9223372036854775808",
        ),
        ({"go": [0.0, 1.0]}, r"action\['go'\] must be whole numbers, got type float64"),
        ({"far": [0.0, np.nan]}, r"action\['far'\]\[1\] is not a number"),
        ({"both": (2, 4)}, r"action\['both'\]\[0\] must be one of 0 to 1, got 2"),
        ({"both": (1, 4.5)}, r"action\['both'\]\[1\] must be whole numbers, got type float64"),
        ({"both": (1,)}, r"action\['both'\] must be a tuple of 2, got \(1,\)"),
        ({"more": 1}, r"must be a dict with the keys \['both', 'far', 'go'\], got \['both', 'far', 'go', 'more'\]"),
    ],
)
def test_structures_are_named_where_they_are_wrong(wrong, message):
    with pytest.raises(UserError, match=message) as caught:
        as_action(STRUCTURE, FINE | wrong, "Env-v0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "far"), [("BrockMirman-v0", [7.0]), ("Pendulum-v1", [1e300]), ("Pendulum-v1", [np.inf])]
)
def test_numbers_out_of_bounds_are_clipped_and_flagged(case, far):
    outcomes = []
    for action in (make(case).action_space.high, far, np.array(far)):
        env = make(case)
        env.reset(seed=0)
        outcomes.append(env.step(action))
    assert [shown[4]["action_clipped"] for shown in outcomes] == [False, True, True]
    for other in outcomes[1:]:
        np.testing.assert_allclose(other[0], outcomes[0][0], rtol=1e-6)
        assert other[1] == pytest.approx(outcomes[0][1])

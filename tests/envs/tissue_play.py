"""Episodes of a tissue, and what is true of each of them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Played(NamedTuple):
    """Steps of N episodes, leaves `[N, T, ...]`; what follows an episode's end is played on."""

    before: Any
    seen: Any
    action: Any
    after: Any
    reward: Any
    over: Any
    info: Any


def play(env, params, act, weights, keys, steps):
    """Episodes under `act(weights, observation, key) -> action`, as NumPy arrays."""
    return jax.tree.map(np.asarray, _play(env, params, act, weights, keys, steps))


@functools.partial(jax.jit, static_argnames=("env", "act", "steps"))
def _play(env, params, act, weights, keys, steps):

    def one(key):
        key_start, *rest = jax.random.split(key, 1 + steps)

        def step(carry, key):
            seen, before = carry
            action = act(weights, seen, key)
            following, after, reward, over, info = env.step_env(key, before, action, params)
            return (following, after), Played(before, seen, action, after, reward, over, info)

        return jax.lax.scan(step, env.reset_env(key_start, params), jnp.stack(rest))[1]

    return jax.vmap(one)(keys)


def check_played(played, worth=None):
    """Cells come and go by recorded events; the dead see and earn nothing; the living of a team earn alike.

    Args:
        played: as `play` returns it.
        worth: what a score is worth: rewards are its gains.
    """
    alive, later = played.before.tissue.alive, played.after.tissue.alive
    events = played.after.events
    np.testing.assert_array_equal(
        later.sum(axis=-1) - alive.sum(axis=-1), events.births.sum(axis=-1) - events.deaths.sum(axis=-1)
    )
    np.testing.assert_array_equal(later.sum(axis=-1), played.info["num_cells"])
    assert np.all(np.isfinite(played.seen))
    assert np.all(played.seen[~alive] == 0)
    assert np.all(played.reward[~alive] == 0)
    gain = played.reward.max(axis=-1, where=alive, initial=-np.inf)
    np.testing.assert_array_equal(gain, played.reward.min(axis=-1, where=alive, initial=np.inf))
    if worth is not None:
        score = played.info["score"]
        np.testing.assert_allclose(gain[:, 1:].sum(axis=1), worth(score[:, -1]) - worth(score[:, 0]), atol=2e-4)

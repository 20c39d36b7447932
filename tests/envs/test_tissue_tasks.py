"""What holds for every tissue task: a slot's number means nothing, and a mirror image stays one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph

TASKS = [
    "CellCount-v0",
    "Elongation-v0",
    "TargetShape-v0",
    "TypeBalance-v0",
    "WoundHealing-v0",
    "Chemotaxis-v0",
    "Aggregation-v0",
    "FrenchFlag-v0",
    "StressHomogeneity-v0",
]
STILL = ("kT", "rot_diffusion", "death_rate", "reading_noise", "rate")
# Of events and their noise, which belong to slots: beyond what is left, permutation holds in law only.
OF_SLOTS = ("xi", "_dx", "division_dir", "mother", "reading_noise", "divide", "die")
LIKE_VECTORS = ("position", "push", "division_axis")
LIKE_ANGLES = ("active_heading", "turn_rate")


@functools.partial(jax.jit, static_argnames="env")
def undisturbed(env, params, state, tissue):
    """A step in which nobody divides, and what is seen and scored after it."""
    tissue, _ = env.advance(jax.random.key(0), tissue, params)
    tissue = env.sense(tissue, params)
    return tissue, env.masked_observation(tissue, params), env.score(state.replace(tissue=tissue), params)


def at_random(env, params):
    """Squeezed cells on their way somewhere, four slots free."""
    params = params.replace(**{name: jnp.zeros_like(getattr(params, name)) for name in STILL if hasattr(params, name)})
    _, state = jax.jit(env.reset_env)(jax.random.key(1), params)
    action = env.action_space(params).sample(jax.random.key(2))
    tissue = env.write_action(state.tissue, action, params)
    if "division_rate" in tissue.specs:
        tissue = tissue.set("division_rate", jnp.zeros_like(tissue.division_rate))
    return params, state, tissue.set("position", 0.8 * tissue.position)


def fields(tissue):
    return {name: spec for name, spec in tissue.specs.items() if spec.scope == "cell" and not name.startswith(OF_SLOTS)}


@pytest.mark.extended
@pytest.mark.parametrize("id", TASKS)
def test_permuted_slots_and_mirror_images(id):
    with jax.enable_x64(True):
        env, params = equimorph.make(id)
        if hasattr(params, "founders"):
            params = params.replace(founders=jnp.asarray(min(int(params.founders), env.capacity - 4)))
        params, state, tissue = at_random(env, params)
        after, seen, worth = undisturbed(env, params, state, tissue)
        assert float(jnp.abs(after.position - tissue.position).max()) > 1e-3

        order = np.random.default_rng(0).permutation(env.capacity)
        shuffled = tissue.update(**{name: tissue[name][order] for name in fields(tissue)})
        other, other_seen, other_worth = undisturbed(env, params, state, shuffled)
        for name in fields(tissue):
            if not any(part in name for part in OF_SLOTS):
                np.testing.assert_allclose(other[name], after[name][order], atol=1e-11, err_msg=name)
        if "reading_noise" not in tissue.specs:
            np.testing.assert_allclose(other_seen, seen[order], atol=1e-10)
        np.testing.assert_allclose(other_worth, worth, atol=1e-10)

        flip = {name: tissue[name] * jnp.array([1.0, -1.0]) for name in LIKE_VECTORS if name in tissue.specs}
        flip |= {name: -tissue[name] for name in LIKE_ANGLES if name in tissue.specs}
        if "source" in tissue.specs:
            flip["source"] = tissue.source * jnp.array([1.0, -1.0])
        mirrored, _, mirrored_worth = undisturbed(env, params, state, tissue.update(**flip))
        np.testing.assert_allclose(mirrored.position, after.position * jnp.array([1.0, -1.0]), atol=1e-11)
        if id != "TargetShape-v0" or env.shape == "ellipse":
            np.testing.assert_allclose(mirrored_worth, worth, atol=1e-10)

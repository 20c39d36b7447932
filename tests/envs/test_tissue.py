"""The bridge to the simulator: the simulator's own steps, its own scores, and what happens to slots."""

import dataclasses
import functools
import io
import itertools
import pickle
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_morph
import numpy as np
import pytest
from jax_morph.physics import GROWTH_RATE, Death, MechanicalRelaxation, SoftSphere

import equimorph
from equimorph.envs import catalog
from equimorph.envs.tissues._forces import MorseAdhesion, SoftRepulsion
from equimorph.envs.tissues._steps import DIVISION_RATE, ExternalForce
from equimorph.envs.tissues.cell_count import CellCount
from equimorph.errors import UserError


@pytest.fixture(autouse=True)
def x64():
    """All in double precision: the accuracy is the point, and one precision compiles once."""
    with jax.enable_x64(True):
        yield


@functools.partial(jax.jit, static_argnames="env")
def reset(env, key, params):
    return env.reset_env(key, params)


@functools.partial(jax.jit, static_argnames="env")
def step(env, key, state, action, params):
    return env.step_env(key, state, action, params)


def hazard_env(**overrides):
    return equimorph.make("CellCount-v0", mode="hazard", **{"capacity": 16, "substeps": 3, "target": 12.0} | overrides)


def tissue_at(env, params, cells):
    """A state with `cells` cells, close-packed."""
    return reset(env, jax.random.key(0), params.replace(founders=jnp.asarray(cells)))[1]


def rollout(env, params, key, steps, act):
    """States `[T + 1]`, actions, observations and keys of one episode, as lists."""
    observation, state = reset(env, key, params)
    states, actions, observations, keys = [state], [], [], jax.random.split(key, steps)
    for k in keys:
        action = act(observation)
        actions.append(action)
        observations.append(observation)
        observation, state, *_ = step(env, k, state, action, params)
        states.append(state)
    return states, actions, observations, keys


def history(env, params, states, actions, keys):
    """All macro-steps of a rollout, as `jax_morph.simulate(history=True)` would stack them."""
    frames = [jax.tree.map(lambda x: np.asarray(x)[None], states[0].tissue)]
    for state, action, key in zip(states, actions, keys, strict=False):
        written = env.write_action(state.tissue, action, params)
        macro = jax_morph.simulate(env.model(params), written, env.substeps, params.dt, key, history=True)
        frames.append(jax.tree.map(lambda x: np.asarray(x)[1:], macro))
    return jax.tree.map(lambda *x: jnp.asarray(np.concatenate(x)), *frames)


class Hazard(eqx.Module):
    """A memoryless rate: logistic in the observation, scaled to the bounds."""

    weight: jax.Array

    def __call__(self, observation):
        return 1.5 * jax.nn.sigmoid(observation @ self.weight)[:, None]


# -- physics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["decision", "hazard"])
def test_one_step_is_the_simulators_own(mode):
    env, params = (
        hazard_env(rate_max=6.0) if mode == "hazard" else equimorph.make("CellCount-v0", capacity=8, target=8.0)
    )
    state = tissue_at(env, params, 3)
    action = jnp.full((16, 1), 4.0) if mode == "hazard" else jnp.array([1, 0, 1, 1, 0, 0, 1, 0])
    _, after, *_ = step(env, jax.random.key(4), state, action, params)
    written = env.write_action(state.tissue, action, params)
    theirs = jax_morph.simulate(env.model(params), written, env.substeps, params.dt, jax.random.key(4))
    assert after.tissue.alive.sum() > 3
    for name in theirs.specs:
        if name != "chemical":  # only sensed, so brought up to date outside the macro-steps
            np.testing.assert_array_equal(after.tissue[name], theirs[name], err_msg=name)


def test_cells_come_only_from_recorded_births():
    env, params = hazard_env(rate_max=3.0)
    rate = jnp.full((env.capacity, 1), 0.7)
    states, actions, _, keys = rollout(env, params, jax.random.key(1), 3, lambda _: rate)
    born = np.asarray(history(env, params, states, actions, keys).born)
    assert 0 < born.sum() < 12
    for t, (before, after) in enumerate(itertools.pairwise(states)):
        births = born[1 + t * env.substeps : 1 + (t + 1) * env.substeps].sum()
        assert after.tissue.alive.sum() - before.tissue.alive.sum() == births == after.events.divisions.sum()
        assert np.all(np.asarray(after.tissue.alive)[np.asarray(before.tissue.alive)])


def test_written_out_force_equals_the_differentiated_energy():
    env, params = hazard_env()
    tissue = tissue_at(env, params, 13).tissue
    noise = 0.2 * jax.random.normal(jax.random.key(0), tissue.position.shape)
    tissue = tissue.set("position", (0.8 * tissue.position + noise) * tissue.alive[:, None])
    theirs, ours = SoftSphere(epsilon=1.7).forces(tissue), SoftRepulsion(epsilon=1.7).forces(tissue)
    assert float(jnp.abs(theirs).max()) > 0.1
    np.testing.assert_allclose(ours, theirs, atol=3e-15)


def test_permuted_slots_and_mirror_images_stay_so_without_events():
    """Noise and division axes belong to slots, not to cells: beyond this, permutation holds in law only."""
    env, params = equimorph.make("CellCount-v0", capacity=8, target=8.0, kT=0.0)
    state = tissue_at(env, params, 5)
    squeezed = state.tissue.set("position", 0.8 * state.tissue.position)
    order = np.array([3, 6, 0, 4, 1, 7, 2, 5])

    def permute(tissue):
        cell = [name for name, spec in tissue.specs.items() if spec.scope == "cell"]
        return tissue.update(**{name: jnp.asarray(np.asarray(tissue[name])[order]) for name in cell})

    idle = jnp.zeros(8, jnp.int32)
    run = lambda tissue: step(env, jax.random.key(0), state.replace(tissue=tissue), idle, params)[1].tissue  # noqa: E731
    one, other = permute(run(squeezed)), run(permute(squeezed))
    assert float(jnp.abs(one.position - permute(squeezed).position).max()) > 0.01
    for name, spec in one.specs.items():
        if spec.scope == "cell" and "_xi" not in name and name not in ("division_dir", "mother"):
            np.testing.assert_allclose(other[name], one[name], atol=1e-13, err_msg=name)
    mirrored = lambda tissue: tissue.set("position", tissue.position * jnp.array([1.0, -1.0]))  # noqa: E731
    reflected = run(mirrored(squeezed))
    np.testing.assert_allclose(reflected.position, mirrored(run(squeezed)).position, atol=1e-13)
    np.testing.assert_allclose(reflected.radius, run(squeezed).radius, atol=1e-13)


# -- scores ----------------------------------------------------------------------------------------------------------


def gradients(env, params, policy, steps=4, replay=False):
    """Of our events' score along one rollout, and of the simulator's with the policy inside.

    With `replay`, `trajectory_log_prob` has to be the latter, though three macro-steps of a step are not recorded.
    """
    states, actions, observations, keys = rollout(env, params, jax.random.key(7), steps, policy)
    assert not bool(states[-1].events.overflow)
    assert int(states[-1].tissue.alive.sum()) > int(states[0].tissue.alive.sum())
    record = history(env, params, states, actions, keys)

    def ours(policy):
        log_prob = lambda s, o, n: env.event_log_prob(s, policy(o), n, params).sum()  # noqa: E731
        before, after, seen = (
            jax.tree.map(lambda *x: np.stack(x), *x) for x in (states[:-1], states[1:], observations)
        )
        return jax.vmap(log_prob)(before, seen, after).sum()

    def theirs(policy):
        return jax_morph.trajectory_logp(env.closed_loop(policy, params), record, params.dt).sum()

    def replayed(policy):
        before, after = (jax.tree.map(lambda *x: np.stack(x), *x) for x in (states[:-1], states[1:]))
        return env.trajectory_log_prob(policy, before, np.stack(actions), after, np.ones(steps, bool), params).sum()

    (value, gradient), (their_value, their_gradient), *rebuilt = (
        eqx.filter_jit(eqx.filter_value_and_grad(score))(policy) for score in (ours, theirs, *[replayed] * replay)
    )
    np.testing.assert_allclose(value, their_value, rtol=1e-12)
    for rebuilt_value, rebuilt_gradient in rebuilt:
        np.testing.assert_allclose(rebuilt_value, their_value, rtol=1e-12)
        np.testing.assert_allclose(rebuilt_gradient.weight, their_gradient.weight, rtol=0, atol=1e-10)
    return gradient.weight, their_gradient.weight


def test_score_of_events_is_the_simulators():
    env, params = hazard_env(rate_max=3.0)
    ours, theirs = gradients(env, params, Hazard(jnp.array([0.3, -0.2, 0.4, -0.8, 0.5])))
    assert float(jnp.abs(ours).max()) > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrowingCellCount(CellCount):
    """The hazard also drives growth, so that later observations depend on the policy without any event."""

    ports = (DIVISION_RATE, GROWTH_RATE)

    def write_action(self, tissue, action, params):
        return super().write_action(tissue, action, params).set("growth_rate", action[:, 0])


@pytest.mark.parametrize("replay", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_score_differs_where_the_policy_moves_the_state_too(replay):
    env = GrowingCellCount(mode="hazard", capacity=16, substeps=3)
    params = env.default_params.replace(rate_max=jnp.array(3.0))
    ours, theirs = gradients(env, params, Hazard(jnp.array([0.8, -0.2, 0.4, -0.4, 0.5])), replay=replay)
    assert float(jnp.abs(ours - theirs).max()) > 1e-3


def test_overflow_terminates_and_its_drops_are_not_scored():
    env, params = equimorph.make("CellCount-v0", mode="hazard", capacity=4, substeps=1, founders=3, target=4.0)
    rate = jnp.full((4, 1), 0.7)
    state = tissue_at(env, params, 3)
    for seed in range(400):
        _, after, reward, over, info = step(env, jax.random.key(seed), state, rate, params)
        divided = np.asarray(after.tissue.divided) > 0.5
        if list(divided[:3]) == [False, True, True]:
            break
    else:
        pytest.fail("no overflow of the wanted kind was found")
    assert bool(over)
    assert bool(info["overflow"])
    assert float(env.score(after, params)) == 0.0
    x = 0.7 * float(params.dt)
    # The first survives, the second takes the last slot; the third's division found none.
    np.testing.assert_allclose(
        env.event_log_prob(state, rate, after, params), [-x, np.log(-np.expm1(-x)), 0.0, 0.0], rtol=1e-12
    )
    assert int(info["num_cells"]) == 4
    np.testing.assert_allclose(reward, [0.1, 0.1, 0.1, 0.0], rtol=1e-12)


# -- slots -----------------------------------------------------------------------------------------------------------


def test_daughters_inherit_from_their_mothers_and_are_scored_as_theirs():
    env, params = hazard_env(rate_max=8.0)
    rate = jnp.full((16, 1), 8.0).at[1].set(0.0)
    state = tissue_at(env, params, 2)
    for seed in range(50):
        _, after, _, _, info = step(env, jax.random.key(seed), state, rate, params)
        if int(info["num_cells"]) >= 4:
            break
    assert int(info["num_cells"]) >= 4, "slot 0's descendants should have divided within the step"
    cells = int(info["num_cells"])
    expected = [0, 1] + [0] * (cells - 2) + [-1] * (16 - cells)
    np.testing.assert_array_equal(env.inherits(state, after, params), expected)
    np.testing.assert_array_equal(env.successor(state, after, params), [0, 1] + [-1] * 14)
    divisions, trials = after.events.divisions, after.events.trials
    assert int(divisions[0]) == cells - 2
    assert int(trials[0]) > 3  # its own three chances, and its daughters'
    assert int(trials[1]) == 3
    assert not np.any(np.asarray(trials[2:]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MortalCellCount(CellCount):
    """Cells that died leave their slots to newborns."""

    def build_physics(self):
        return jax_morph.Model([*super().build_physics().steps, Death()])


@pytest.fixture
def mortal():
    """Three cells that nothing but a test lets die or divide, no free slot, two macro-steps a step."""
    env = MortalCellCount(mode="hazard", capacity=3, substeps=2)
    params = env.default_params.replace(rate_max=jnp.array(1e9))
    return env, params, tissue_at(env, params, 3), jnp.array([[0.0], [1e9], [0.0]])


def with_death_rate(state, rates):
    return state.replace(tissue=state.tissue.set("death_rate", jnp.array(rates)))


def test_a_reused_slot_belongs_to_another_cell(mortal):
    env, params, state, divide = mortal
    doomed = with_death_rate(state, [1e9, 0.0, 0.0])
    observation, dead, *_ = step(env, jax.random.key(0), doomed, jnp.zeros((3, 1)), params)
    np.testing.assert_array_equal(dead.tissue.alive, [False, True, True])
    np.testing.assert_array_equal(env.successor(doomed, dead, params), [-1, 1, 2])
    np.testing.assert_array_equal(env.inherits(doomed, dead, params), [-1, 1, 2])
    assert np.all(np.asarray(observation[0]) == 0)
    safe = with_death_rate(dead, [0.0, 0.0, 0.0])
    observation, reborn, reward, *_ = step(env, jax.random.key(1), safe, divide, params)
    np.testing.assert_array_equal(reborn.tissue.alive, [True, True, True])
    np.testing.assert_array_equal(env.successor(safe, reborn, params), [-1, 1, 2])
    np.testing.assert_array_equal(env.inherits(safe, reborn, params), [1, 1, 2])
    assert float(reward[0]) == 0.0 < abs(float(reward[1])), "the newborn did not act"
    assert np.any(np.asarray(observation[0]) != 0)


def test_a_cell_dying_and_replaced_within_one_step_has_no_successor(mortal):
    env, params, state, divide = mortal
    doomed = with_death_rate(
        state, [1e9, 0.0, 0.0]
    )  # gone in the first macro-step; a daughter takes its slot in the next
    _, after, *_ = step(env, jax.random.key(0), doomed, divide, params)
    np.testing.assert_array_equal(after.tissue.alive, [True, True, True])
    np.testing.assert_array_equal(env.successor(doomed, after, params), [-1, 1, 2])
    np.testing.assert_array_equal(env.inherits(doomed, after, params), [1, 1, 2])


def test_states_do_not_pickle_and_are_stored_by_their_leaves(mortal):
    env, params, state, divide = mortal
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pickle.dumps(state)
    file = io.BytesIO()
    np.savez(file, *jax.tree.leaves(state))
    file.seek(0)
    leaves = list(np.load(file).values())
    restored = jax.tree.unflatten(jax.tree.structure(tissue_at(env, params, 1)), leaves)
    runs = [step(env, jax.random.key(1), each, divide, params)[:3] for each in (state, restored)]
    jax.tree.map(np.testing.assert_array_equal, *runs)


# -- what the simulator does not forgive -----------------------------------------------------------------------------


def test_relaxation_and_motion_do_not_share_a_model():
    with pytest.raises(ValueError, match="position"):
        jax_morph.Model([MechanicalRelaxation(SoftSphere()), ExternalForce()])


def test_a_periodic_box_and_a_cutoff_are_static():
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.eval_shape(jax_morph.geometry.periodic, jnp.ones(()))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.eval_shape(lambda cutoff: MorseAdhesion(r_cutoff_frac=cutoff), jnp.ones(()))


TISSUES = [
    id
    for id in equimorph.list_envs()
    if ".tissues." in str(catalog.spec(id).entry_point) and "Pooled" not in id and id != "ImmunePatrol-v0"  # no physics
]


@pytest.mark.parametrize("id", TISSUES)
def test_resets_are_cheap_and_nothing_is_relaxed(id):
    """No warm-up, no raster: not one macro-step, and nothing that loops."""
    env, params = equimorph.make(id)
    start = str(jax.make_jaxpr(env.reset_env)(jax.random.key(0), params))
    assert "scan" not in start
    assert "while" not in start
    assert not any(isinstance(part, MechanicalRelaxation) for part in env.build_physics().steps)


# -- costs and refusals ----------------------------------------------------------------------------------------------


def test_the_simulator_is_imported_only_when_a_tissue_is_made():
    code = (
        "import sys, equimorph; equimorph.make('BrockMirman-v0'); assert 'jax_morph' not in sys.modules;"
        "equimorph.make('CellCount-v0'); assert 'jax_morph' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reset_is_cheap():
    """No warm-up: not one macro-step, and nothing that loops."""
    env, params = hazard_env()
    key = jax.random.key(0)
    state = reset(env, key, params)[1]
    primitives = lambda f, *a: str(jax.make_jaxpr(f)(*a))  # noqa: E731
    run = primitives(env.step_env, key, state, jnp.zeros((16, 1)), params)
    start = primitives(env.reset_env, key, params)
    assert "scan" in run
    assert "scan" not in start
    assert "while" not in start
    assert start.count("random_bits") == 1 < run.count("random_bits")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"capacity": 1}, "capacity must be a whole number of at least 2"),
        ({"capacity": "big"}, "capacity must be a whole number"),
        ({"substeps": 0}, "substeps must be a whole number of at least 1"),
        ({"founders": 65}, "founders = 65 must not exceed the capacity of 64"),
        ({"founders": 0}, "founders"),
        ({"kT": -1.0}, "kT"),
    ],
)
def test_mistakes_are_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        equimorph.make("CellCount-v0", **overrides)


def test_decisions_have_no_scored_events():
    env, params = equimorph.make("CellCount-v0", capacity=8, target=8.0)
    state = tissue_at(env, params, 2)
    with pytest.raises(UserError, match="hazard"):
        env.event_log_prob(state, jnp.zeros(8, jnp.int32), state, params)

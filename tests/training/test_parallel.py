"""The loop on several devices and in several processes: it is the loop on one."""

import os
import socket
import subprocess
import sys

import jax
import pytest

from equimorph.errors import UserError
from equimorph.training import parallel

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import jax, numpy as np
from equimorph.training import distributed

if len(sys.argv) == 4:
    distributed.initialize_distributed(sys.argv[1], 2, int(sys.argv[2]))

import equimorph, equimorph.errors
from equimorph.agents import DEQN, MAPPO, REINFORCE
from equimorph.training import parallel
from equimorph.training.loop import create_train_state, make_train_step

AGENTS = {
    "mappo": MAPPO(widths=(16,), epochs=2, minibatches=2, learning_rate=1e-2),
    "uneven": MAPPO(widths=(16,), epochs=1, minibatches=16),
    "reinforce": REINFORCE(widths=(16,), unscored_tail=2),
    "deqn": DEQN(widths=(16,), batch_size=32, replay_size=256, learning_rate=1e-2),
}

def policy(agent, devices, seeds=1, iterations=10):
    env, params = equimorph.make("BrockMirman-v0", max_steps_in_episode=12)
    counts = {"num_envs": 16, "num_seeds": seeds}
    mesh = parallel.make_mesh(devices)
    state = parallel.shard(create_train_state(env, params, agent, num_iterations=20, **counts), mesh)
    step = make_train_step(env, params, agent, num_steps=8, iterations=5, mesh=mesh, **counts)
    for _ in range(iterations // 5):
        state, metrics = step(state)
    if devices != 1:
        assert len(state.running_return.sharding.device_set) == mesh.size
        assert not state.running_return.is_fully_replicated
        assert jax.tree.leaves(state.agent)[0].is_fully_replicated
    return jax.tree.leaves(parallel.to_host((state.agent, state.observation, metrics)))

def apart(a, b):
    return max(
        float(np.max(np.abs(np.asarray(x, float) - y) / (1 + np.abs(y))))
        for x, y in zip(a, b, strict=True) if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    )
"""

ONE_PROCESS = """
for word in sys.argv[2].split(","):
    name, *devices = word.split(":")
    alone = policy(AGENTS[name], 1)
    for count in map(int, devices):
        print(name, count, apart(policy(AGENTS[name], count), alone))

env, params = equimorph.make("BrockMirman-v0", max_steps_in_episode=12)
state = create_train_state(env, params, AGENTS["mappo"], num_envs=16, num_iterations=20)
try:
    make_train_step(env, params, AGENTS["mappo"], num_envs=16, num_steps=8, mesh=parallel.make_mesh(8))(state)
except equimorph.errors.UserError as error:
    print("refused", error)

from equimorph.training.config import resolve

def trained(devices, **more):
    settings = {"rollout": {"num_envs": 16, "num_steps": 8}, "training": {"iterations": 6}}
    settings["devices"] = {"count": devices}
    settings["evaluation"] = {"every": 3, "num_episodes": 8, "horizon": 10}
    settings["training"]["switch"] = [{"at": 4, "stepper": "sgd", "learning_rate": 1e-3}]
    config = resolve("BrockMirman-v0", "mappo", settings | more)
    return jax.tree.leaves(equimorph.train_from_config(config)[0].agent)

if sys.argv[2] == LITTLE:
    raise SystemExit
alone = trained(1)
print("trainer", 8, apart(trained(8, out=sys.argv[1], checkpoint={"every": 3}), alone))
run = equimorph.resume(sys.argv[1], checkpoint=3)
print("resumed", 8, apart(jax.tree.leaves(run.state), alone))
print("seeds", 8, apart(policy(AGENTS["mappo"], 8, seeds=2), policy(AGENTS["mappo"], 1, seeds=2)))
"""

LITTLE, ALL = "mappo:2:8,reinforce:2,deqn:2", "mappo:2:8,uneven:8,reinforce:8,deqn:2:8"

TWO_PROCESSES = """
assert jax.device_count() == 4 and jax.local_device_count() == 2
found = policy(AGENTS["mappo"], None)
if distributed.is_primary():
    np.savez(sys.argv[3], *found)
"""


def start(program, devices, *words):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program, *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    out, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-3000:]
    return out


@pytest.mark.parametrize(("which", "number"), [(LITTLE, 4), pytest.param(ALL, 9, marks=pytest.mark.extended)])
def test_learners_learn_the_same_on_one_two_and_eight_devices(which, number, tmp_path):
    """Ten iterations, up to the order of sums, with resets on the way; of all, also by the trainer and with seeds."""
    lines = finish(start(f"LITTLE = {LITTLE!r}" + ONE_PROCESS, 8, str(tmp_path / "run"), which)).splitlines()
    refused = [line for line in lines if line.startswith("refused")]
    assert len(refused) == 1
    assert "not laid out over the 8 devices that make_train_step was given; call the step with" in refused[0]
    found = {(name, int(count)): float(apart) for name, count, apart in map(str.split, set(lines) - set(refused))}
    assert len(found) == number
    assert max(found.values()) < 1e-4, found


@pytest.mark.extended
def test_two_processes_learn_what_one_device_does(tmp_path):
    """Four devices in two processes over gloo, ten iterations, within 1e-5."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [start(TWO_PROCESSES, 2, address, str(rank), str(tmp_path / "found.npz")) for rank in range(2)]
    for process in both:
        finish(process)
    compare = """
alone, found = policy(AGENTS["mappo"], 1), np.load(sys.argv[1])
print(apart([found[name] for name in found.files], alone))
"""
    assert float(finish(start(compare, 1, str(tmp_path / "found.npz")))) < 1e-5


def test_what_does_not_divide_is_refused():
    import equimorph
    from equimorph.agents import MAPPO
    from equimorph.training.loop import create_train_state, make_train_step

    env, params = equimorph.make("BrockMirman-v0")
    mesh = parallel.make_mesh(1)
    state = create_train_state(env, params, MAPPO(minibatches=2), num_envs=4, num_iterations=1)
    assert parallel.shard(state, mesh) is state
    make_train_step(env, params, MAPPO(minibatches=2), num_envs=4, num_steps=8, mesh=mesh)
    with pytest.raises(UserError, match=r"there are \d+ devices here: devices.count can be 1 to that, got 4096"):
        parallel.make_mesh(4096)


def test_environments_that_do_not_spread_are_refused():
    import equimorph

    mesh = jax.sharding.AbstractMesh((8,), ("env",))
    env, _ = equimorph.make("BrockMirman-v0")
    parallel.check_mesh(mesh, env, 16)
    with pytest.raises(
        UserError, match="num_envs = 12 environments do not divide over 8 devices; num_envs can be 8 or"
    ):
        parallel.check_mesh(mesh, env, 12)
    with pytest.raises(UserError, match="num_envs can be 8, or the devices 4"):
        parallel.check_mesh(mesh, env, 4)
    host, _ = equimorph.make("gymnasium:CartPole-v1")
    with pytest.raises(UserError, match="CartPole-v1 is stepped on the host, which several devices do not make faster"):
        parallel.check_mesh(mesh, host, 16)

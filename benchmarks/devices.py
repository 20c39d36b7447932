"""What a second core gives a run, as a second device or as a second process.

Each learner trains on BrockMirman-v0: on one core; on two cores as one device, whose operations XLA spreads over them;
as two devices of one process; and as two processes of a device each, which exchange through gloo. All wait in processes
of their own and train in turns, so that whatever else the machine does falls on all alike. Printed are medians over
rounds: environment steps per second of wall clock and of CPU (of all threads and processes together) on one core, and
the ratios to it of the others in the same round.

    python benchmarks/devices.py [LEARNER ...] [--rounds 15] [--num-envs 1024]
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

LEARNERS = ("mappo", "reinforce", "deqn")
SETTINGS = {  # cores, devices in each process, processes
    "1 core": (1, 1, 1),
    "2 cores, 1 device": (2, 1, 1),
    "2 cores, 2 devices": (2, 2, 1),
    "2 cores, 2 processes": (2, 1, 2),
}
NUM_STEPS = 32
SECONDS = 1.0


def work(learner: str, num_envs: int, address: str, rank: int) -> None:
    """Train as many iterations as each line of the standard input says; answer with wall and CPU seconds."""
    from equimorph.training import distributed

    if address:
        distributed.initialize_distributed(address, 2, rank)
    import jax

    import equimorph
    from equimorph.agents import DEQN, MAPPO, REINFORCE
    from equimorph.training.compilation import use_compilation_cache
    from equimorph.training.loop import create_train_state, make_train_step
    from equimorph.training.parallel import make_mesh, shard

    use_compilation_cache()
    agents = {"mappo": MAPPO, "reinforce": REINFORCE, "deqn": lambda: DEQN(batch_size=num_envs)}
    env, params = equimorph.make("BrockMirman-v0")
    agent, mesh = agents[learner](), make_mesh()
    state = shard(create_train_state(env, params, agent, num_envs=num_envs, num_iterations=10**6), mesh)
    step = make_train_step(env, params, agent, num_envs=num_envs, num_steps=NUM_STEPS, iterations=1000, mesh=mesh)
    state, _ = step(state, 1)
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        state, _ = jax.block_until_ready(step(state, int(line)))
        print(time.perf_counter() - wall, time.process_time() - cpu, file=sys.stderr, flush=True)


class Setting:
    """The processes of one setting, and what they are asked."""

    def __init__(self, learner: str, num_envs: int, name: str):
        cores, devices, processes = SETTINGS[name]
        usable = sorted(os.sched_getaffinity(0))[:cores]
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}" if processes > 1 else ""
        words = [sys.executable, __file__, learner, "--num-envs", str(num_envs), "--address", address]
        self._processes = []
        for rank in range(processes):
            process = subprocess.Popen(
                [*words, "--rank", str(rank)], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            os.sched_setaffinity(process.pid, usable)  # before it has started threads, which inherit it
            self._processes.append(process)
        for process in self._processes:
            while (said := self._line(process)) != "ready":
                print(said, file=sys.stderr)
        self.calls = max(1, round(SECONDS / max(self.seconds(3)[0] / 3, 1e-6)))

    @staticmethod
    def _line(process: subprocess.Popen) -> str:
        assert process.stderr is not None
        line = process.stderr.readline()
        if not line:
            raise SystemExit(f"a process ended with {process.wait()}")
        return line.strip()

    def seconds(self, iterations: int) -> tuple[float, float]:
        """Seconds of wall clock and of CPU for so many iterations."""
        for process in self._processes:
            process.stdin.write(f"{iterations}\n")
            process.stdin.flush()
        took = [[float(word) for word in self._line(process).split()] for process in self._processes]
        return max(wall for wall, _ in took), sum(cpu for _, cpu in took)

    def close(self) -> None:
        """End its processes."""
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait()


def compare(learner: str, num_envs: int, rounds: int) -> None:
    """Print a row for each setting of a learner."""
    settings = {name: Setting(learner, num_envs, name) for name in SETTINGS}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in settings}
    for index in range(rounds):
        for name in list(settings) if index % 2 else reversed(list(settings)):
            wall, cpu = settings[name].seconds(settings[name].calls)
            took[name].append((wall / settings[name].calls, cpu / settings[name].calls))
    for setting in settings.values():
        setting.close()
    base = took["1 core"]
    steps = num_envs * NUM_STEPS
    for name, rows in took.items():
        wall, cpu = (
            statistics.median(one[which] / mine[which] for one, mine in zip(base, rows, strict=True))
            for which in range(2)
        )
        rates = [statistics.median(steps / mine[which] for mine in rows) for which in range(2)]
        print(f"{learner:<11}{name:<22}{wall:>12.2f}{cpu:>12.2f}{rates[0]:>16,.0f}{rates[1]:>15,.0f}", flush=True)


def main() -> None:
    """Print the table, or be one of the processes that it is measured in."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("learners", nargs="*", choices=[*LEARNERS, []], help="all unless named")
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--num-envs", type=int, default=1024)
    arguments.add_argument("--address", help=argparse.SUPPRESS)
    arguments.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.rank is not None:
        work(given.learners[0], given.num_envs, given.address, given.rank)
        return
    print(f"{'':<33}{'ratio to one core':>24}{'steps per second of':>31}")
    print(f"{'learner':<11}{'':<22}{'wall':>12}{'CPU':>12}{'wall':>16}{'CPU':>15}")
    for learner in given.learners or LEARNERS:
        compare(learner, given.num_envs, given.rounds)


if __name__ == "__main__":
    main()

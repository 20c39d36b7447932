"""What the trainer adds to the loop: reports, TensorBoard, evaluations every ten chunks and checkpoints, all together.

CPU seconds (of all threads) of a whole run by the trainer over those of the same number of iterations of the loop
alone, `create_train_state` and `make_train_step`, whose metrics are brought to the host once a chunk. Everything is
compiled before. Both run in this process, in turns; a run is as long as the loop takes about two minutes for.

    python benchmarks/trainer_cost.py [--pairs 3] [--seconds 120] [ENV/AGENT ...]

What is shown on request, histograms and figures, is no part of that; each time costs so much:

    python benchmarks/trainer_cost.py --shown [ENV/AGENT ...]
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equimorph.errors import UserError
from equimorph.training.config import Config, build, resolve
from equimorph.training.live_figures import check_figures
from equimorph.training.logs import Gallery, open_writer
from equimorph.training.loop import create_train_state, make_train_step
from equimorph.training.plan import first_state
from equimorph.training.report import align
from equimorph.training.switch import stages
from equimorph.training.trainer import train_from_config

ROWS = {
    "CellCount-v0/mappo": {},
    "CartPole-v1/ppo": {"rollout": {"num_envs": 32, "num_steps": 128}},
    "BrockMirman-v0/deqn": {},
}
CHUNKS = 40
"""Reports of a run."""
CALLS = 12
"""Of what is shown on request; the first two, which compile, do not count."""


def settings(name: str, iterations: int, chunk: int, out: str | None, *, plain: bool) -> Config:
    """A run with reports each `chunk` iterations; unless `plain`, it is evaluated every ten of them."""
    env_id, agent = name.split("/")
    flags: dict[str, Any] = {
        **ROWS[name],
        "training": {"iterations": iterations, "iterations_per_chunk": chunk},
        "evaluation": {} if plain else {"every": 10 * chunk},
        "logging": {"progress": False},
    }
    return resolve(env_id, agent, flags | ({} if out is None else {"out": out}))


def loop_alone(config: Config) -> float:
    """CPU seconds of a run's iterations in a loop of one's own."""
    env, params, agent = build(config)
    rollout, training = config.rollout, config.training
    sizes = {"num_envs": rollout.num_envs}
    chunk = training.iterations_per_chunk or 1
    step = make_train_step(
        env,
        params,
        agent,
        num_steps=rollout.num_steps,
        iterations=chunk,
        fresh_episodes=rollout.fresh_episodes,
        **sizes,
    )
    started = time.process_time()
    state = create_train_state(env, params, agent, num_iterations=training.iterations, **sizes)
    for _ in range(training.iterations // chunk):
        state, metrics = step(state)
        metrics = {name: np.asarray(values) for name, values in metrics.items()}
    return time.process_time() - started


def trained(config: Config) -> float:
    """CPU seconds of a run by the trainer, from its configuration to its finished folder."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        train_from_config(config.model_copy(update={"out": str(Path(folder) / "run")}))
        return time.process_time() - started


def compare(name: str, seconds: float, pairs: int) -> list[str]:
    """A row: how long the run is, and the ratio of the two."""
    env_id, agent = name.split("/")
    plain = settings(name, CHUNKS, 1, None, plain=True)
    loop_alone(plain)
    each = loop_alone(plain) / CHUNKS
    chunk = max(1, round(seconds / each / CHUNKS))
    config = settings(name, CHUNKS * chunk, chunk, None, plain=False)
    short = config.model_copy(update={"training": config.training.model_copy(update={"iterations": chunk})})
    loop_alone(short)
    trained(config.model_copy(update={"training": config.training.model_copy(update={"iterations": 10 * chunk})}))
    ratios, took = [], []
    for pair in range(pairs):
        found = {}
        for which in (loop_alone, trained) if pair % 2 else (trained, loop_alone):
            found[which] = which(config)
        ratios.append(found[trained] / found[loop_alone])
        took.append(found[loop_alone])
        print(f"{name}: loop {found[loop_alone]:.1f} s, trainer {found[trained]:.1f} s, {ratios[-1]:.3f}", flush=True)
    spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    return [env_id, agent, str(CHUNKS * chunk), f"{statistics.median(took):.0f}", str(pairs), spread]


def shown(name: str) -> list[str]:
    """A row: CPU milliseconds of one report's histograms and of one evaluation's figures, once compiled; medians."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings(name, CHUNKS, 1, folder, plain=True)
        env, params, agent = build(config)
        state = first_state(config, env, params, stages(config, env, params, agent)[0])
        gallery = Gallery(config, env, params)
        with open_writer(config, params, Path(folder), 0, 0.0) as writer:
            calls = {"histograms": lambda: gallery.histograms(writer, 1, state, agent)}
            with contextlib.suppress(UserError):  # an environment without figures
                check_figures(env, params)
                calls["figures"] = lambda: gallery.figures(writer, 1, state.agent, agent)
            took = {which: [_cpu_seconds(call) for _ in range(CALLS)][2:] for which, call in calls.items()}
    cells = (f"{1000 * statistics.median(took[w]):.0f}" if w in took else "-" for w in ("histograms", "figures"))
    return [*name.split("/"), *cells]


def _cpu_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    """Print a row for each pair of an environment and an agent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="all unless named")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0, help="CPU seconds of the loop alone")
    parser.add_argument("--shown", action="store_true", help="what histograms and figures cost, instead")
    arguments = parser.parse_args()
    if arguments.shown:
        head = ["environment", "agent", "histograms, CPU ms", "figures, CPU ms"]
        print(align([head, *map(shown, arguments.rows or list(ROWS))]))
        return
    head = ["environment", "agent", "iterations", "loop, CPU seconds", "pairs", "trainer / loop"]
    lines = [head, *(compare(name, arguments.seconds, arguments.pairs) for name in arguments.rows or list(ROWS))]
    print("\n" + align(lines))


if __name__ == "__main__":
    main()

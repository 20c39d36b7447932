"""What derivatives are worth: environment steps and CPU seconds to one score, on tissues that are differentiable.

Each learner is trained until the score of its deterministic policy, over 64 episodes of one set of keys, passes what is
asked for, or its iterations are over. It is looked at every few iterations. Seconds are the process's, of training
alone, after compilation; environment steps are those that were simulated: MAPPO plays its rollouts, and "pathwise"
plays every step once more in its update.

    python benchmarks/tissue_derivatives.py [row ...] [--seeds 3]
"""

import functools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from rows import print_rows

import equimorph
from equimorph.agents.registry import make_agent
from equimorph.training.evaluation.episodes import evaluate_episodes
from equimorph.training.loop import create_train_state, make_train_step

SMALL: Mapping[str, Any] = {"schedule": "linear", "widths": (32, 32)}
MAPPO: Mapping[str, Any] = {**SMALL, "learning_rate": 1e-3, "value": "team_mean"}
EPISODES = 64


class Row(NamedTuple):
    """A learner on a task.

    Attributes:
        env, agent: their names.
        asked: the score to pass.
        higher: whether a higher score is better.
        options: of the learner.
        num_envs, num_steps, iterations: of each rollout, and how many; rollouts start from reset.
        every: iterations between two looks.
        played: how often a step of the rollout is simulated, all together.
    """

    env: str
    agent: str
    asked: float
    higher: bool
    options: Mapping[str, Any]
    num_envs: int
    num_steps: int
    iterations: int
    every: int
    played: int


CHEMOTAXIS, AGGREGATION, STRESS = (
    ("Chemotaxis-v0", 0.94, True, 30),
    ("Aggregation-v0", 1.10, False, 30),
    ("StressHomogeneity-v0", 0.30, False, 12),
)


def rows_of(task: tuple[str, float, bool, int], iterations: int, num_envs: int) -> dict[str, Row]:
    """A task's learners, with their presets' settings; MAPPO's `iterations`, and `num_envs` of "pathwise"."""
    env, asked, higher, steps = task
    pathwise = {**SMALL, "learning_rate": 1e-2}
    return {
        f"{env}, mappo": Row(env, "mappo", asked, higher, MAPPO, 32, steps, iterations, 5, 1),
        f"{env}, pathwise": Row(env, "pathwise", asked, higher, pathwise, num_envs, steps, 100, 2, 2),
    }


ROWS: dict[str, Row] = {
    **rows_of(CHEMOTAXIS, 100, 8),
    **rows_of(AGGREGATION, 100, 32),
    **rows_of(STRESS, 120, 8),
}


@functools.cache
def compiled(name: str):
    """The environment, its parameters, the learner and its compiled iterations."""
    row = ROWS[name]
    env, params = equimorph.make(row.env)
    agent = make_agent(row.agent, env, params, **row.options)
    step = make_train_step(
        env, params, agent, num_envs=row.num_envs, num_steps=row.num_steps, iterations=row.every, fresh_episodes=True
    )
    jax.block_until_ready(step(started(row, env, params, agent, 0)))
    return env, params, agent, step


def started(row: Row, env, params, agent, seed: int):
    """The state before the first iteration."""
    return create_train_state(env, params, agent, num_envs=row.num_envs, num_iterations=row.iterations, seed=seed)


def line(name: str, seed: int) -> list[str]:
    """A row of the table."""
    row, (env, params, agent, step) = ROWS[name], compiled(name)
    state, seconds, done = started(row, env, params, agent, seed), 0.0, 0

    def score() -> float:
        return evaluate_episodes(env, params, [agent.policy(state.agent)], EPISODES, None, 12345)[0]["score"]

    untrained = reached = score()
    while done < row.iterations and (reached < row.asked if row.higher else reached > row.asked):
        before = time.process_time()
        state, metrics = step(state)
        jax.block_until_ready((state, metrics))
        seconds += time.process_time() - before
        done += row.every
        reached = score()
    simulated = done * row.num_envs * row.num_steps * row.played
    passed = reached >= row.asked if row.higher else reached <= row.asked
    return [
        name,
        str(seed),
        f"{untrained:.3f}",
        f"{row.asked:g}",
        f"{reached:.3f}" if passed else f"not: {reached:.3f}",
        f"{simulated:,}",
        f"{seconds:.1f}",
    ]


if __name__ == "__main__":
    head = ("row", "seed", "untrained", "asked", "reached", "environment steps", "CPU s")
    print_rows(__doc__, ROWS, head, line)

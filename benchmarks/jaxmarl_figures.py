"""MAPPO on JaxMARL's environments: scores of every seed in JaxMARL's scale, the untrained policy's beside them.

JaxMARL's training reports, of an episode, what all agents earned together: its `MPELogWrapper` multiplies each agent's
rewards by the number of agents and the baselines average over agents. MPE's episodes are 26 steps, the limit of 25 and
the step that finds it reached. Its actions are sampled; the columns without "sampled" are of the likeliest ones.

    python benchmarks/jaxmarl_figures.py [row ...] [--seeds 3]
    python benchmarks/jaxmarl_figures.py speed
"""

import argparse
import functools
import operator
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import equimorph
from equimorph.training.collect import TrainState
from equimorph.training.config import Config, build, resolve
from equimorph.training.evaluation import episodes
from equimorph.training.loop import create_train_state, make_train_step
from equimorph.training.plan import iterations_per_chunk
from equimorph.training.report import align

SPREAD, REFERENCE, SPEAKER = (
    f"jaxmarl:MPE_simple_{task}" for task in ("spread_v3", "reference_v3", "speaker_listener_v4")
)
BATTLE = "jaxmarl:HeuristicEnemySMAX"
ALONE = {"value": "per_agent", "ratio": "per_agent"}
MARINES = {"scenario": "3m"}
CRITICS = ("local", "global", "global+local")


class Row(NamedTuple):
    """What is trained: options of the learner and the environment, and rollouts on top of the pair's preset."""

    env_id: str
    iterations: int
    agent: Mapping[str, Any] = {}
    env: Mapping[str, Any] = {}
    rollout: Mapping[str, Any] = {}
    learner: str = "team_episodes"


ROWS = {
    "spread": Row(SPREAD, 2400),
    "spread, own ratios": Row(SPREAD, 2400, {"ratio": "per_agent"}),
    "spread, own ratios and values": Row(SPREAD, 2400, ALONE),
    "reference": Row(REFERENCE, 1200),
    **{f"reference, {critic} critic": Row(REFERENCE, 1200, {**ALONE, "critic": critic}) for critic in CRITICS},
    **{
        f"speaker, {critic} critic": Row(SPEAKER, 1200, {**ALONE, "critic": critic, "sharing": "per_role"})
        for critic in CRITICS
    },
    "3m": Row(
        BATTLE,
        300,
        {"value": "team_mean", "learning_rate": 1e-3, "schedule": "linear", "entropy": 0.01},
        MARINES,
        {"num_envs": 32, "num_steps": 64},
        "mappo",
    ),
}
SCORES = [f"{which}{how}" for which in ("untrained", "trained", "won") for how in ("", ", sampled")]
HEAD = ["row", "seed", "steps", *SCORES, "steps per CPU s"]
EPISODES = 1000


def figures(name: str, num_seeds: int, iterations: int | None = None) -> list[list[str]]:
    """Train a row's seeds side by side and score each; a line of the table for each of them."""
    row = ROWS[name]
    training = {"iterations": iterations or row.iterations, "num_seeds": num_seeds}
    flags = {"agent": dict(row.agent), "env": dict(row.env), "rollout": dict(row.rollout), "training": training}
    config = resolve(row.env_id, row.learner, flags)
    env, _, agent = build(config)
    before, after, rate = learn(config)
    earned = returns(config, [agent.policy(each) for each in (*before, *after)])
    # battles pay everybody the same, and are reported as what one earns
    scores = earned.mean(-1) * (1 if row.env_id == BATTLE else env.num_agents)
    # the enemies' health is worth 1 altogether and winning another 1
    won = [f"{share:.3f}" for share in (earned > 1.5).mean(-1).T.ravel()] if row.env_id == BATTLE else None
    steps = config.training.iterations * config.rollout.num_envs * config.rollout.num_steps
    lines = []
    for seed in range(num_seeds):
        last = num_seeds + seed
        cells = [f"{score:.2f}" for score in (*scores[:, seed], *scores[:, last])]
        shares = ["-", "-"] if won is None else won[2 * last : 2 * last + 2]
        lines.append([name, str(seed), str(steps), *cells, *shares, f"{rate:,.0f}"])
    return lines


def returns(config: Config, policies: list) -> np.ndarray:
    """Mean earned by an agent in each episode, `[2, P, EPISODES]`: of the likeliest actions, and of sampled ones.

    As `evaluate` has it, whose means these are.
    """
    env, params, _ = build(config)
    steps, key = int(params.max_steps_in_episode), jax.random.key(config.evaluation.seed)
    stacked = episodes.stack(policies)
    run = functools.partial(episodes._episodes, stacked, params, key, env=env, n=EPISODES, steps=steps)
    return np.stack([run(sample=sample)[0] for sample in (False, True)])


def learn(config: Config) -> tuple[list, list, float]:
    """Every seed's agent before and after training, and environment steps per CPU second after compilation."""
    env, params, agent = build(config)
    rollout, training = config.rollout, config.training
    counts = {"num_envs": rollout.num_envs, "num_seeds": training.num_seeds}
    chunk = iterations_per_chunk(training.iterations, None)
    step = make_train_step(
        env,
        params,
        agent,
        num_steps=rollout.num_steps,
        iterations=chunk,
        fresh_episodes=rollout.fresh_episodes,
        **counts,
    )

    def create(first: int) -> TrainState:
        return create_train_state(env, params, agent, num_iterations=training.iterations, seed=first, **counts)

    jax.block_until_ready(step(create(10_000)))
    state = create(training.seed)
    before = apart(state.agent, training.num_seeds)
    started = time.process_time()
    for _ in range(training.iterations // chunk):
        state, metrics = step(state)
    jax.block_until_ready((state, metrics))
    seconds = time.process_time() - started
    steps = training.iterations * rollout.num_envs * rollout.num_steps * training.num_seeds
    return before, apart(state.agent, training.num_seeds), steps / seconds


def apart(state: Any, num_seeds: int) -> list:
    """The agent's state of each seed, as copies that no later call consumes."""
    state = jax.tree.map(np.array, state)
    if num_seeds == 1:
        return [state]
    return [jax.tree.map(operator.itemgetter(seed), state) for seed in range(num_seeds)]


def speed(num_envs: int = 48, repeats: int = 5) -> None:
    """JaxMARL's own environments under a bare scan of random actions, resetting themselves: steps per CPU second."""
    for env_id, options in ((SPREAD, {}), (REFERENCE, {}), (BATTLE, MARINES)):
        inner = equimorph.make(env_id, **options)[0].inner

        @jax.jit
        def run(key, states, inner=inner):
            def step(states, key):
                key_act, key_step = jax.random.split(key)
                keys = jax.random.split(key_act, (inner.num_agents, num_envs))
                spaces = [inner.action_space(agent) for agent in inner.agents]
                actions = {
                    agent: jax.vmap(space.sample)(k) for agent, space, k in zip(inner.agents, spaces, keys, strict=True)
                }
                _, states, reward, *_ = jax.vmap(inner.step)(jax.random.split(key_step, num_envs), states, actions)
                return states, sum(reward.values())

            return jax.lax.scan(step, states, jax.random.split(key, 2600))

        states = jax.vmap(inner.reset)(jax.random.split(jax.random.key(0), num_envs))[1]
        states = jax.tree.map(jnp.asarray, jax.block_until_ready(run(jax.random.key(1), states))[0])
        rates = []
        for repeat in range(repeats):
            started = time.process_time()
            states, _ = jax.block_until_ready(run(jax.random.key(2 + repeat), states))
            rates.append(2600 * num_envs / (time.process_time() - started))
        print(f"{env_id}, {num_envs} of them: {statistics.median(rates):,.0f} steps per CPU s", flush=True)


def main() -> None:
    """Print a line for each seed of each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, "speed", []], help="all unless named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="other than the row's own")
    arguments = parser.parse_args()
    lines = [HEAD]
    for name in arguments.rows or [*ROWS, "speed"]:
        if name == "speed":
            speed()
            continue
        lines += figures(name, arguments.seeds, arguments.iterations)
        for line in lines[-arguments.seeds :]:
            print("  ".join(line), flush=True)
    print("\n" + align(lines))


if __name__ == "__main__":
    main()

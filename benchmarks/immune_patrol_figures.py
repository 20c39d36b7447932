"""What teams of immune cells reach on ImmunePatrol: every seed, beside what nobody had to learn.

128 episodes on the same keys, actions as they are drawn: coverage at the end (and, in brackets, of the likeliest
actions), the return, the share of pairs in contact, and collisions a step and cell. "Untrained" is the policy before
the first update, a planner after its distillation. CPU seconds are of training; the first seed's have compilation in
them.

    python benchmarks/immune_patrol_figures.py [row ...] [--seeds 3]
"""

import functools
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array
from rows import print_rows

from equimorph import make
from equimorph.agents.agent import Policy
from equimorph.agents.classical.tissues import RULES, rule_agent
from equimorph.agents.policies.planner import Planner, passability_error, random_squares
from equimorph.envs.environment import Environment, EnvParams
from equimorph.training import trainer
from equimorph.training.config import build_env, resolve
from equimorph.training.evaluation.simulate import policy_action

ID, EPISODES = "ImmunePatrol-v0", 128


class Row(NamedTuple):
    """An agent, and settings over its preset."""

    agent: str
    settings: Mapping[str, Any] = MappingProxyType({})


MOVES = {"env": {"calibration": "moves"}, "agent": {"network": "mlp"}}
ROWS: dict[str, Row] = {
    "random": Row("random"),
    "breadth-first patrol": Row("breadth_first_patrol"),
    "move alone, mappo": Row("mappo", MOVES),
    "goal and move, mappo": Row("mappo"),
    "goal and move, team_episodes": Row("team_episodes"),
}
HEAD = ["row", "seed", "coverage", "return", "in contact", "collisions", "untrained", "its return", "w off by", "CPU s"]


def line(name: str, seed: int) -> list[str]:
    """Train and measure one seed, or play a rule; a line of the table."""
    row = ROWS[name]
    if row.agent in RULES:
        return rule_line(name)
    settings = {key: dict(value) for key, value in row.settings.items()}
    config = resolve(ID, row.agent, {**settings, "training": {"seed": seed}, "logging": {"progress": False}})
    env, params = build_env(config.env)
    started = time.process_time()
    run = trainer._train(config)[2]
    seconds = time.process_time() - started
    after, before = (run.agent.policy(state) for state in (run.state, run.untrained_state))
    trained, untrained = (measured(policy, env, params) for policy in (after, before))
    off, actor = "-", before.actor
    if isinstance(actor, Planner):
        off = f"{float(passability_error(actor, random_squares(jax.random.key(0), actor.sight, 1000)[0])):.4f}"
    return [name, str(seed), *trained, *untrained[:2], off, f"{seconds:.0f}"]


@functools.cache
def rule_line(name: str) -> list[str]:
    """The line of a rule, for any seed."""
    env, params = make(ID)
    agent = rule_agent(ROWS[name].agent, env, params)
    policy = agent.policy(agent.init(jax.random.key(0), env, params)._replace(begun=jnp.ones((), bool)))
    return [name, "-", *measured(policy, env, params), "-", "-", "-", "0"]


def measured(policy: Policy, env: Environment, params: EnvParams) -> list[str]:
    """Coverage, return, contact and collisions of a policy."""
    steps = int(params.max_steps_in_episode)
    drawn, likeliest = (played(policy, params, jax.random.key(12345), env, steps, sample) for sample in (True, False))
    score, total, contact, collisions = (float(x) for x in drawn)
    return [f"{score:.3f} ({float(likeliest[0]):.3f})", f"{total:.1f}", f"{contact:.2f}", f"{collisions:.3f}"]


@eqx.filter_jit
def played(policy: Policy, params: EnvParams, key: Array, env: Environment, steps: int, sample: bool):
    """Means over whole episodes: the score at the end, the return, contact and collisions."""
    act = policy_action(policy, env, params, sample=sample)

    def step(state: Any, key: Array) -> tuple[Any, tuple[Array, ...]]:
        key_step, key_action = jax.random.split(key)
        _, following, reward, _, info = env.step_env(key_step, state, act(state, key_action), params)
        return following, (info["score"], reward.mean(), info["reachable"], info["collisions"])

    def episode(key: Array) -> tuple[Array, ...]:
        start = env.reset_env(key, params)[1]
        score, reward, contact, collisions = jax.lax.scan(step, start, jax.random.split(key, steps))[1]
        return score[-1], reward.sum(), contact.mean(), collisions.mean()

    return jax.tree.map(jnp.mean, jax.vmap(episode)(jax.random.split(key, EPISODES)))


def main() -> None:
    """Print a line for each seed of each row; a rule is played once."""
    print_rows(__doc__, ROWS, HEAD, line)


if __name__ == "__main__":
    main()

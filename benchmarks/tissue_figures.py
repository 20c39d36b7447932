"""What MAPPO and REINFORCE reach on the tissues with their presets: every seed, beside what nobody had to learn.

Scores of whole episodes, deterministic / sampled: of the trained and the untrained policy, of random actions and of a
rule, on the same keys. The last column is the figure known, or asked for. CPU seconds are of training; the first seed's
have compilation in them.

    python benchmarks/tissue_figures.py [row ...] [--seeds 3]
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree
from rows import print_rows

from equimorph.agents.agent import Policy, View
from equimorph.agents.classical.tissues import rule_agent
from equimorph.envs.environment import Environment, EnvParams
from equimorph.envs.tissues.wound_healing import recovery_time
from equimorph.training import trainer
from equimorph.training.config import build_env, resolve
from equimorph.training.evaluation.scoring import evaluate_policies
from equimorph.training.evaluation.simulate import policy_action
from equimorph.training.run import Run
from equimorph.training.sections import EnvConfig

Rule = Callable[[Environment, EnvParams], Policy]


class Written(Policy):
    """A rule written down here: `(parameters, what is seen [A, O], who lives [A], a key) -> actions [A, ...]`."""

    rule: Callable[[EnvParams, Float[Array, "A O"], Bool[Array, " A"], Array], PyTree] = eqx.field(static=True)
    params: EnvParams

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        key = jax.random.key(0) if key is None else key
        return self.rule(self.params, view.observation, view.agent_mask, key)


def written(rule: Callable[[Any, Array, Array, Array], PyTree]) -> Rule:
    """It as a policy of an environment."""
    return lambda env, params: Written(rule, params)


def named(name: str) -> Rule:
    """A rule of the library."""

    def made(env: Environment, params: EnvParams) -> Policy:
        agent = rule_agent(name, env, params)
        state = agent.init(jax.random.key(0), env, params)
        return agent.policy(state._replace(begun=jnp.ones((), bool)))

    return made


def tips(params: EnvParams, seen: Array, alive: Array, key: Array, *, oriented: bool = True) -> Array:
    """The cell with the steepest scent along y divides, along y."""
    steepness = jnp.where(alive, jnp.abs(seen[:, 5]), -1.0)
    chosen = jnp.where(steepness >= steepness.max(), 1.0, 0.01)[:, None]
    along = jnp.broadcast_to(jnp.array([0.0, 1.0]), (seen.shape[0], 2))
    return jnp.concatenate([chosen, along], axis=1) if oriented else chosen


def minority(params: EnvParams, seen: Array, alive: Array, key: Array) -> Array:
    """Cells that smell less of their own type than of the other divide; all secrete alike."""
    rare = jnp.where(seen[:, 5] <= 0, 1.0, 0.01)
    return jnp.stack([rare, jnp.ones_like(rare)], axis=1)


def balance(params: Any, seen: Array, alive: Array, key: Array, *, substeps: int = 5) -> PyTree:
    """Cells divide at random as often as they die, the more the less they smell of others; and rest."""
    chance = jnp.expm1(params.death_rate * substeps * params.dt)
    chance = jnp.clip(chance * (1 + 15 * (0.5 - seen[:, 5])), 0.0, 1.0)
    divide = jax.random.bernoulli(key, chance, (seen.shape[0],)).astype(jnp.int32)
    return {"divide": divide, "push": jnp.zeros((seen.shape[0], 2))}


class Row(NamedTuple):
    """A pair, settings over its preset, the rule to beat, and the figure known or asked for."""

    env: str
    agent: str
    settings: Mapping[str, Any] = MappingProxyType({})
    rule: Rule | None = None
    known: str = ""


EVENTS = {"score": "events"}
UNORIENTED = {"env": {"calibration": "unoriented"}}
SPACE = {"env": {"calibration": "deshpande"}, "rollout": {"num_envs": 8, "num_steps": 135}}
SPACE |= {"training": {"iterations": 60}, "evaluation": {"num_episodes": 32}}
SECRETION = {"env": {"calibration": "secretion"}, "rollout": {"num_envs": 16}, "training": {"iterations": 50}}
SECRETION |= {"agent": {"learning_rate": 1e-2}}
COUNT, NOTEBOOK = "<= 4; 5.5 elsewhere", "<= 8; 119 -> 12.1 elsewhere"
LONG, BALL = "not learnt in 150 updates elsewhere", ">= 280; 204 -> 258 elsewhere"
DISC, TYPES = "> 0.56, the best disc", "72 -> 5.9 of 120 elsewhere"
TIPS = written(tips)
BARE_TIPS = written(functools.partial(tips, oriented=False))

ROWS: dict[str, Row] = {
    "cells, mappo": Row("CellCount-v0", "mappo", {}, None, COUNT),
    "cells, reinforce": Row("CellCount-v0", "reinforce", {}, None, COUNT),
    "secretion, mappo": Row("CellCountPooled-v0", "mappo", SECRETION, None, NOTEBOOK),
    "secretion, reinforce": Row("CellCountPooled-v0", "reinforce", SECRETION, None, NOTEBOOK),
    "secretion, events": Row(
        "CellCount-v0", "reinforce", {**SECRETION, "agent": {"learning_rate": 1e-2, **EVENTS}}, None, NOTEBOOK
    ),
    "long, mappo": Row("Elongation-v0", "mappo", {}, TIPS, LONG),
    "long, reinforce": Row("Elongation-v0", "reinforce", {}, TIPS, LONG),
    "long, events": Row("Elongation-v0", "reinforce", {**UNORIENTED, "agent": EVENTS}, BARE_TIPS),
    "ball, mappo": Row("Elongation-v0", "mappo", SPACE, BARE_TIPS, BALL),
    "ball, events": Row("Elongation-v0", "reinforce", {**SPACE, "agent": EVENTS}, BARE_TIPS, BALL),
    "ellipse, mappo": Row("TargetShape-v0", "mappo", {}, named("disc_growth"), DISC),
    "ellipse, reinforce": Row("TargetShape-v0", "reinforce", {}, named("disc_growth"), DISC),
    "L, mappo": Row("TargetShape-v0", "mappo", {"env": {"shape": "L"}}, named("disc_growth")),
    "V, mappo": Row("TargetShape-v0", "mappo", {"env": {"shape": "V"}}, named("disc_growth")),
    "L, reinforce": Row("TargetShape-v0", "reinforce", {"env": {"shape": "L"}}, named("disc_growth")),
    "V, reinforce": Row("TargetShape-v0", "reinforce", {"env": {"shape": "V"}}, named("disc_growth")),
    "types, mappo": Row("TypeBalance-v0", "mappo", {}, written(minority), TYPES),
    "types, reinforce": Row("TypeBalance-v0", "reinforce", {}, written(minority), TYPES),
    "wound, mappo": Row("WoundHealing-v0", "mappo", {}, written(balance)),
    "wound, reinforce": Row("WoundHealing-v0", "reinforce", {}, written(balance)),
}
HEAD = ["row", "seed", "CPU s", "reached", "untrained", "random", "rule", "known"]


def line(name: str, seed: int) -> list[str]:
    """Train and measure one seed; a line of the table."""
    row = ROWS[name]
    config = resolve(row.env, row.agent, merged(row.settings, {"training": {"seed": seed}}))
    started = time.process_time()
    run = trainer._train(config)[2]
    seconds = time.process_time() - started
    policies = [run.agent.policy(state) for state in (run.state, run.untrained_state)]
    reached, untrained = measured(run, policies)
    return [name, str(seed), f"{seconds:.0f}", reached, untrained, *unlearnt(name), row.known or "-"]


def merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with some of a group added; 128 episodes for scores unless they say otherwise."""
    groups = {"evaluation": {"num_episodes": 128}, "logging": {"progress": False}}
    for part in (settings, more):
        groups |= {key: {**groups.get(key, {}), **value} for key, value in part.items()}
    return groups


def measured(run: Run, policies: list[Policy]) -> list[str]:
    """Scores of policies of one structure, deterministic / sampled; and of WoundHealing what happened on the way."""
    evaluation = run.config.evaluation
    found = evaluate_policies(run.config.env, policies, evaluation.num_episodes, None, evaluation.seed)
    scores = [f"{digits(each['score'])}/{digits(each['score_sampled'])}" for each in found]
    if run.config.env.id != "WoundHealing-v0":
        return scores
    healed = [healing(policy, run.config.env) for policy in policies]
    return [f"{score} {each}" for score, each in zip(scores, healed, strict=True)]


@functools.cache
def unlearnt(name: str) -> list[str]:
    """The same of random actions and of the row's rule."""
    row = ROWS[name]
    config = resolve(row.env, row.agent, merged(row.settings, {}))
    env, params = build_env(config.env)
    cells = []
    for rule in (named("random"), row.rule):
        if rule is None:
            cells.append("-")
            continue
        policy, evaluation = rule(env, params), config.evaluation
        (found,) = evaluate_policies(config.env, [policy], evaluation.num_episodes, None, evaluation.seed)
        healed = " " + healing(policy, config.env) if row.env == "WoundHealing-v0" else ""
        cells.append(digits(found["score_sampled"]) + healed)
    return cells


def digits(score: float) -> str:
    """Three figures that count."""
    return f"{score:.{max(0, 2 - math.floor(math.log10(abs(score))))}f}" if abs(score) > 1e-3 else "0"


def healing(policy: Policy, config: EnvConfig, episodes: int = 64) -> str:
    """Sampled: the return; the overlap before the wound, after it and at the end; and how many regain 95 % of it, when.

    The time is the median of those that do, in steps from the wound.
    """
    env, params = build_env(config)
    found = healed(policy, params, jax.random.key(1), env, int(params.max_steps_in_episode), episodes)
    reward, iou = (np.asarray(x) for x in found)
    wound = int(params.wound_step)
    times = np.array([recovery_time(each, wound) for each in iou if each[wound - 1] > 0])
    back = times[np.isfinite(times)]
    overlap = " ".join(f"{iou[:, t].mean():.2f}" for t in (wound - 1, wound, -1))
    recovered = f"{len(back) / episodes:.0%}" + (f" in {np.median(back):g}" if len(back) else "")
    return f"return {reward.sum(axis=1).mean():.1f}, iou {overlap}, {recovered}"


@eqx.filter_jit
def healed(policy: Policy, params: EnvParams, key: Array, env: Environment, steps: int, episodes: int):
    """Rewards and overlaps of whole episodes, `[episodes, steps]`, 0 once one is over."""
    act = policy_action(policy, env, params, sample=True)

    def step(carry: tuple[Any, Array], key: Array) -> tuple[tuple[Any, Array], tuple[Array, Array]]:
        state, over = carry
        action = act(state, jax.random.fold_in(key, 1))
        _, following, reward, ended, info = env.step_env(key, state, action, params)
        kept = (jnp.where(over, 0.0, reward.max()), jnp.where(over | ended, 0.0, info["iou"]))
        return (following, over | ended), kept

    def episode(key: Array) -> tuple[Array, Array]:
        start = env.reset_env(key, params)[1]
        return jax.lax.scan(step, (start, jnp.zeros((), bool)), jax.random.split(key, steps))[1]

    return jax.vmap(episode)(jax.random.split(key, episodes))


def main() -> None:
    """Print a line for each seed of each row."""
    print_rows(__doc__, ROWS, HEAD, line)


if __name__ == "__main__":
    main()

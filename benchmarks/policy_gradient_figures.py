"""What MAPPO, PPO and REINFORCE reach with their presets: every seed, with the untrained policy beside it.

Each row has one measure: by how much actions miss the known answer's, what share of consumption a policy gives up, or
the score of whole episodes. CartPole is in `ppo_cartpole.py`, memory in `mappo_memory.py`.

    python benchmarks/policy_gradient_figures.py [row ...] [--seeds 3]
"""

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from rows import print_rows

import equimorph
from equimorph.agents.agent import Policy
from equimorph.envs.economy import Economy
from equimorph.envs.environment import EnvParams
from equimorph.training import trainer
from equimorph.training.config import build_env, resolve
from equimorph.training.evaluation.economies import FEWEST_STATES
from equimorph.training.evaluation.rules import known_answer
from equimorph.training.evaluation.scoring import to_float64
from equimorph.training.evaluation.simulate import policy_action, simulate
from equimorph.training.run import Run


class Played(NamedTuple):
    """What a policy does in the states that it visits, and what the known answer does there, `[S, A]`."""

    actions: Float[Array, "S A"]
    answers: Float[Array, "S A"]


Measure = Callable[[Policy, dict[str, Any], Run], list[str]]


def misses(policy: Policy, report: dict[str, Any], run: Run) -> list[str]:
    """By what share the mean action misses the answer's, of the agent worst off; and the largest in any state."""
    with jax.enable_x64(True):
        actions, answers = played(policy, run)
        mean = jnp.abs(actions.mean(0) / answers.mean(0) - 1).max()
        return [f"{100 * float(mean):.3f}%", f"{100 * float(jnp.abs(actions / answers - 1).max()):.3f}%"]


def slope(policy: Policy, report: dict[str, Any], run: Run) -> list[str]:
    """By what share the slope of bids on values, by least squares, misses the answer's; and the slope itself."""
    with jax.enable_x64(True):
        actions, answers = played(policy, run)
        values = answers - answers.mean()
        ratio = float((values * actions).sum() / (values**2).sum())
        best = 1 - 1 / run.env.num_agents
        return [f"{100 * abs(ratio - 1):.2f}%", f"{best * ratio:.4f} for {best:.4f}"]


def loss(policy: Policy, report: dict[str, Any], run: Run) -> list[str]:
    """The share of consumption given up for ever, paired with the reference's; and its standard error."""
    return [f"{report['welfare_loss']:.2e}", f"+-{report['welfare_loss_se']:.1e}"]


def squared_error(policy: Policy, report: dict[str, Any], run: Run) -> list[str]:
    """The mean score of an episode, of deterministic actions; and of sampled ones."""
    return [f"{report['score']:.2f}", f"sampled {report['score_sampled']:.2f}"]


def played(policy: Policy, run: Run) -> Played:
    """To be called in float64; each agent acts in one number."""
    env, params = build_env(run.config.env)
    assert isinstance(env, Economy)
    known = known_answer(env, params)
    assert known is not None
    steps = 1 if env.one_shot else int(params.max_steps_in_episode)
    policy = to_float64(policy)

    @jax.jit
    def found(key: Array, params: EnvParams) -> tuple[Array, Array]:
        act = policy_action(policy, env, params)
        visited = simulate(act, params, key, env, math.ceil(FEWEST_STATES / steps), steps, steps, known.numeric)
        return visited["actions"], jax.vmap(known.reference.policy)(visited["states"])

    return Played(*(x.reshape(x.shape[0], -1) for x in found(jax.random.key(run.config.evaluation.seed), params)))


class Row(NamedTuple):
    """A pair, settings over its preset, and how it is measured."""

    env: str
    agent: str
    measure: Measure
    settings: Mapping[str, Any] = MappingProxyType({})


CELLS = {"evaluation": {"num_episodes": 256}}
TWENTY = {**CELLS, "training": {"iterations": 300}}
TEAM = {"concept": "cooperative"}

ROWS: dict[str, Row] = {
    "pricing": Row("LogitPricing-v0", "mappo", misses),
    "cournot 3": Row("Cournot-v0", "mappo", misses, {"env": {"num_firms": 3}}),
    "auction 2": Row("Auction-v0", "mappo", slope),
    "auction 3": Row("Auction-v0", "mappo", slope, {"env": {"num_bidders": 3}}),
    "fish 2": Row("FishWar-v0", "mappo", misses),
    "fish 2 team": Row("FishWar-v0", "mappo", misses, {"env": TEAM}),
    "fish 5": Row("FishWar-v0", "mappo", misses, {"env": {"num_players": 5}}),
    "fish 5 team": Row("FishWar-v0", "mappo", misses, {"env": {"num_players": 5, **TEAM}}),
    "brock": Row("BrockMirman-v0", "mappo", loss),
    "growth": Row("Growth-v0", "mappo", loss),
    "buffer": Row("BufferStock-v0", "mappo", loss),
    "brock, reinforce": Row("BrockMirman-v0", "reinforce", loss),
    "cells": Row("CellCount-v0", "mappo", squared_error, CELLS),
    "cells, team": Row("CellCount-v0", "team_episodes", squared_error, CELLS),
    "cells, reinforce": Row("CellCount-v0", "reinforce", squared_error, CELLS),
    "cells 20, reinforce": Row(
        "CellCount-v0", "reinforce", squared_error, {**TWENTY, "env": {"params": {"target": 20.0}}}
    ),
    "cells 20, events": Row(
        "CellCount-v0",
        "reinforce",
        squared_error,
        {**TWENTY, "env": {"mode": "hazard", "params": {"target": 20.0}}, "agent": {"score": "events"}},
    ),
}
HEAD = ["row", "seed", "CPU s", "reached", "", "untrained", ""]


def line(name: str, seed: int) -> list[str]:
    """Train and measure one seed; a line of the table."""
    row = ROWS[name]
    training = {**row.settings.get("training", {}), "seed": seed}
    config = resolve(row.env, row.agent, {**row.settings, "training": training, "logging": {"progress": False}})
    started = time.process_time()
    run = trainer._train(config)[2]
    seconds = time.process_time() - started
    found = equimorph.evaluate(run)
    reports = ((run.state, found), (run.untrained_state, found["untrained"]))
    cells = [cell for state, report in reports for cell in row.measure(run.agent.policy(state), report, run)]
    return [name, str(seed), f"{seconds:.0f}", *cells]


def main() -> None:
    """Print a line for each seed of each row. The first seed's CPU seconds have compilation in them."""
    print_rows(__doc__, ROWS, HEAD, line)


if __name__ == "__main__":
    main()

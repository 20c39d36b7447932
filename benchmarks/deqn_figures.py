"""The residual learner's figures: errors against known answers, every seed, with the untrained policy beside them.

Growth's rows stand beside other residual solvers' published ones in docs/deqn.md.

    python benchmarks/deqn_figures.py [row ...] [--seeds 3]
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rows import print_rows

import equimorph
from equimorph.agents.agent import Policy
from equimorph.training import trainer
from equimorph.training.config import build_env, resolve
from equimorph.training.evaluation.economies import FEWEST_STATES
from equimorph.training.evaluation.rules import Known, PolicyRule, known_answer
from equimorph.training.evaluation.scoring import to_float64
from equimorph.training.evaluation.simulate import policy_action, simulate
from equimorph.training.report import log10
from equimorph.training.run import Run

# on the states of the rollout alone, without the preset's ring
NEWTON = {
    "agent": {
        "stepper": "lm",
        "batch_size": 512,
        "widths": [32, 32],
        "activation": "tanh",
        **dict.fromkeys(("fresh_share", "replay_size", "replay_share", "replay_exponent", "replay_correction")),
    },
    "rollout": {"num_envs": 128, "num_steps": 4},
}

# name: environment, settings on top of the pair's preset, whether in float64
ROWS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "annual_log": ("Growth-v0", {"env": {"calibration": "annual_log"}, "agent": {"widths": [50, 50]}}, False),
    "annual_log, lm": (
        "Growth-v0",
        {**NEWTON, "env": {"calibration": "annual_log"}, "training": {"iterations": 400}},
        True,
    ),
    "ak": ("StochasticAK-v0", {}, False),
    "ak stress": ("StochasticAK-v0", {"env": {"calibration": "stress"}}, False),
    "ak all in one": ("StochasticAK-v0", {"agent": {"expectation": "all_in_one"}}, False),
    "growth": ("Growth-v0", {}, False),
    "growth, lm": ("Growth-v0", {**NEWTON, "training": {"iterations": 200}}, True),
    "irreversible": ("Irreversible-v0", {}, False),
    "buffer": ("BufferStock-v0", {}, False),
    "olg": ("OLG-v0", {}, False),
    "olg levels": (
        "OLG-v0",
        {"env": {"outputs": "levels"}, "agent": {"learning_rate": 3e-3, "fresh_share": 0.25}},
        False,
    ),
    "irbc": ("IRBC-v0", {}, False),
    "fish 2": ("FishWar-v0", {}, False),
    "fish 5": ("FishWar-v0", {"env": {"num_players": 5}}, False),
    "fish 2 team": ("FishWar-v0", {"env": {"concept": "cooperative"}}, False),
}
SCORES = ["Euler mean", "p99", "max", "policy error", "mean policy error", "binding", "off in c", "off in kink"]
HEAD = ["row", "seed", "CPU s", *SCORES, *(f"untrained {SCORES[i]}" for i in (0, 3, 4, 6))]

CASH = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
"""Cash on hand at which BufferStock's consumption is known from other solvers."""


def row(name: str, seed: int) -> list[str]:
    """Train and score one seed; a line of the table. Euler errors are log10 of absolute ones."""
    env_id, settings, double = ROWS[name]
    with jax.enable_x64(double):
        training = {**settings.get("training", {}), "seed": seed}
        config = resolve(env_id, "deqn", {**settings, "training": training, "logging": {"progress": False}})
        started = time.process_time()
        run = trainer._train(config)[2]
        seconds = time.process_time() - started
    found = equimorph.evaluate(run)
    trained, untrained = (
        scores(report, run, run.agent.policy(state))
        for report, state in ((found, run.state), (found["untrained"], run.untrained_state))
    )
    return [name, str(seed), f"{seconds:.0f}", *trained, *(untrained[i] for i in (0, 3, 4, 6))]


def scores(report: dict[str, Any], run: Run, policy: Policy) -> list[str]:
    """One policy's cells, as `SCORES` names them; "off" is how far consumption and the kink are from the answer's."""
    errors = report.get("euler") or next(iter(report["residuals"].values()))
    cells = [log10(errors[level]) for level in ("mean", "p99", "max")]
    shares = [f"{limit['late_share']:.3f}" for limit in report.get("binding", {}).values()]
    with jax.enable_x64(True):
        env, params = build_env(run.config.env)
        known = known_answer(env, params)
        if known is None:
            return [*cells, "-", "-", " ".join(shares) or "-", "-", "-"]
        policy = to_float64(policy)
        mean = mean_policy_error(policy, known, env, params, run.config.evaluation.seed)
        off = ["-", "-"]
        if run.config.env.id == "BufferStock-v0":
            rules = [rule.bind(env, params) for rule in (PolicyRule(policy), known.rule)]
            (ours, our_kink), (theirs, their_kink) = (table(rule, env, params) for rule in rules)
            off = [f"{np.max(np.abs(ours - theirs)):.2e}", f"{100 * (our_kink / their_kink - 1):+.2f}%"]
    return [*cells, f"{report['policy_error']:.2e}", f"{mean:.2e}", " ".join(shares) or "-", *off]


def mean_policy_error(policy: Policy, known: Known, env: Any, params: Any, seed: int) -> float:
    """Mean absolute distance from the known answer's action over states it visits, as for `policy_error`."""
    steps = int(params.max_steps_in_episode)

    @jax.jit
    def found(key):
        act = policy_action(policy, env, params)
        visited = simulate(act, params, key, env, math.ceil(FEWEST_STATES / steps), steps, steps, known.numeric)
        answer = jax.vmap(known.reference.policy)(visited["states"])
        return jnp.mean(jnp.abs(visited["actions"] - answer))

    return float(found(jax.random.key(seed)))


def table(decide: Callable, env: Any, params: Any) -> tuple[np.ndarray, float]:
    """BufferStock's consumption at `CASH`, and the least cash on hand at which anything is saved."""

    @jax.jit
    @jax.vmap
    def at(m):
        state = env.reset_env(jax.random.key(0), params)[1].replace(m=m)
        values = env.definitions(state, decide(state).action, params)
        return values["consumption"], values["assets"] > params.limit

    poor = np.arange(0.1, 2.0, 1e-4)
    saves = np.asarray(at(jnp.asarray(poor))[1])
    return np.asarray(at(jnp.asarray(CASH))[0]), float(poor[saves.argmax()]) if saves.any() else np.nan


def main() -> None:
    """Print a line for each seed of each row."""
    print_rows(__doc__, ROWS, HEAD, row)


if __name__ == "__main__":
    main()

"""Is a policy that explodes, or that lets consumption go to zero, ever called solved?

Of each economy ten seeds are trained on a small budget, so that some of them are not finished. Each is judged as
`evaluate(run, full=True)` judges it (errors, stability, boundedness), and followed for 2,000 periods on 32 paths of the
environment's own steps in float64, which knows nothing of those tests. The last column must be 0.

    python benchmarks/deqn_stability.py [economy ...] [--seeds 10] [--iterations 250]
"""

import argparse
import math
import time
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from equimorph.envs.economy import Economy
from equimorph.envs.spaces import Box
from equimorph.training import trainer
from equimorph.training.config import build_env, resolve
from equimorph.training.evaluation.economies import FEWEST_STATES, Case
from equimorph.training.evaluation.episodes import stack
from equimorph.training.evaluation.errors import error_report, finite_part, measure
from equimorph.training.evaluation.full import verdict
from equimorph.training.evaluation.longrun import long_run
from equimorph.training.evaluation.rules import PolicyRule
from equimorph.training.evaluation.scoring import to_float64
from equimorph.training.evaluation.simulate import paths, policy_action
from equimorph.training.evaluation.stability import NO_REST_POINT, contraction, fixed_point, fixed_point_report
from equimorph.training.evaluation.states import coordinates_of, packed
from equimorph.training.report import align

PATHS, PERIODS, QUARTER = 32, 2000, 500
EPISODES = 256
EXPLOSIVE = 10.0  # times the largest number of the first quarter, in the last one
ZERO = 1e-4  # of consumption at the centre's action
BOUND = 1e-6  # of an action's range

SMALL = {"learning_rate": 3e-3, "widths": [32, 32]}

# name: id, settings of the environment, of the agent, and whether consumption has no level to come back to
CASES: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any], bool]] = {
    "growth": ("Growth-v0", {}, {}, False),
    "brock mirman": ("BrockMirman-v0", {}, {}, False),
    "ak": ("StochasticAK-v0", {}, {}, True),
    "fish war": ("FishWar-v0", {}, {}, False),
    "fish war, 5": ("FishWar-v0", {"num_players": 5}, {}, False),
    "buffer stock": ("BufferStock-v0", {}, {}, False),
    "irreversible": ("Irreversible-v0", {}, {}, False),
    "labour": ("RBCLabor-v0", {}, {}, False),
    "olg": ("OLG-v0", {}, {}, False),
    "irbc": ("IRBC-v0", {}, {"rule": "monomial3"}, False),
    "aiyagari": ("Aiyagari-v0", {}, {}, False),
    "krusell smith": ("KrusellSmith-v0", {"num_households": 4}, {}, False),
    "adjustment": ("Cournot-v0", {"calibration": "adjustment"}, {}, False),
    "cournot": ("Cournot-v0", {}, {}, False),
    "pricing": ("LogitPricing-v0", {}, {}, False),
    "auction": ("Auction-v0", {}, {}, False),
    "tax": ("LinearTax-v0", {}, {}, False),
}
HEAD = ["economy", "solved", "error min", "median", "max", "explosive", "at zero", "of these solved", "CPU s"]


def trained(name: str, seeds: int, iterations: int):
    """The runs of so many seeds, trained side by side."""
    env_id, env, agent, _ = CASES[name]
    settings = {
        "env": dict(env),
        "agent": {**SMALL, **agent},
        "rollout": {"num_envs": 128, "num_steps": 4},
        "training": {"iterations": iterations, "num_seeds": seeds},
        "logging": {"progress": False},
    }
    return trainer._train(resolve(env_id, "deqn", settings))[2].seeds


def judged(policy: Any, env: Economy, params: Any, seed: int) -> tuple[bool, float]:
    """Whether a policy passes every test of `evaluate(run, full=True)`, and the mean of its largest kind of error.

    The tests are those of the report, without what it does not need for them. An economy whose state has no real
    numbers has no verdict and is not called solved.
    """
    steps = 1 if env.one_shot else int(params.max_steps_in_episode)
    n = max(EPISODES, math.ceil(FEWEST_STATES / steps))
    walked = paths(stack([policy]), params, jax.random.key(seed), None, env=env, n=n, steps=steps, kept=steps)
    visited = finite_part(jax.tree.map(lambda x: x[0], walked["states"]))[0]
    if not jax.tree.leaves(visited)[0].shape[0]:
        return False, float("nan")
    case = Case(env, params, PolicyRule(policy), None, visited, seed)
    measured = measure(case.rule, visited, env, params)
    assert measured is not None
    found = error_report(measured, env)
    errors = [found["euler"]] if "euler" in found else list(found["residuals"].values())
    error = max(each["mean"] for each in errors)
    coordinates = coordinates_of(visited)
    if not coordinates.size:
        return False, error
    point, why = fixed_point(case.rule, env, params, coordinates)
    stability = {} if point is None else fixed_point_report(point, coordinates)
    if not env.one_shot:
        stability["contraction"] = contraction(case.rule, visited, env, params, coordinates, seed)[0]
    flags = long_run(case.rule, env, params, coordinates, packed(coordinates, visited), seed)[0]
    passed = verdict(found | {"stability": stability | flags}, once=env.one_shot, lost=why == NO_REST_POINT)
    return all(each is True for each in passed.values()), error


@eqx.filter_jit
def followed(policies: Any, params: Any, key: jax.Array, *, env: Economy, growing: bool):
    """Of each of the stacked policies whether some path explodes, and whether some path comes to zero."""
    periods, n = (1, PATHS * PERIODS) if env.one_shot else (PERIODS, PATHS)
    key_start, key_steps = jax.random.split(key)
    start = jax.vmap(env.reset_env, (0, None))(jax.random.split(key_start, n), params)[1]
    space = env.action_space(params)
    assert isinstance(space, Box)
    centre = jnp.broadcast_to(env.centre(params), space.shape)

    def consumption(state, action):
        return env.definitions(state, action, params).get("consumption")

    at_centre = jax.vmap(consumption, (0, None))(start, centre)
    scale = None if at_centre is None else jnp.median(at_centre, axis=0)

    def room(state, action):
        """Above 0 where consumption is, or else the action lies strictly between its bounds."""
        if scale is not None and not growing:
            return jnp.min(consumption(state, action) / scale) - ZERO
        return jnp.min(jnp.minimum(action - space.low, space.high - action) / (space.high - space.low)) - BOUND

    def numbers(state):
        leaves = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.concatenate([jnp.zeros(1), *(jnp.abs(x).ravel() for x in leaves)])

    def one(policy):
        act = policy_action(policy, env, params)

        def step(state, key):
            def each(state, key):
                action = env.legal_action(act(state, key), params)[0]
                _, following, reward, _, info = env.step_env(key, state, action, params)
                zero = info["floored"] | ~(room(state, action) > 0)
                finite = jnp.all(jnp.isfinite(reward)) & jnp.all(jnp.isfinite(numbers(following)))
                return following, zero, finite, numbers(following)

            following, zero, finite, size = jax.vmap(each)(state, jax.random.split(key, n))
            return following, (zero.any(), finite.all(), size.max(axis=0))

        _, (zero, finite, size) = jax.lax.scan(step, start, jax.random.split(key_steps, periods))
        early, late = size[:QUARTER].max(axis=0), size[-QUARTER:].max(axis=0)
        return ~finite.all() | (jnp.any(late > EXPLOSIVE * early) & (not growing)), zero.any()

    return jax.lax.map(one, policies)


def row(name: str, seeds: int, iterations: int) -> tuple[list[str], int]:
    """A line of the table, and how many seeds are called solved though their paths end badly."""
    started = time.process_time()
    runs = trained(name, seeds, iterations)
    with jax.enable_x64(True):
        env, params = build_env(runs[0].config.env)
        assert isinstance(env, Economy)
        policies = [to_float64(run.agent.policy(run.state)) for run in runs]
        verdicts = [judged(policy, env, params, 0) for policy in policies]
        ends = followed(stack(policies), params, jax.random.key(1), env=env, growing=CASES[name][3])
    explosive, zero = map(np.asarray, ends)
    solved, errors = np.array([v[0] for v in verdicts]), np.array([v[1] for v in verdicts])
    with np.errstate(all="ignore"):
        sizes = [f"{f(np.log10(errors)):.2f}" for f in (np.min, np.median, np.max)]
    wrong = int((solved & (explosive | zero)).sum())
    counts = [f"{int(solved.sum())} of {seeds}", *sizes, *(str(int(x.sum())) for x in (explosive, zero)), str(wrong)]
    return [name, *counts, f"{time.process_time() - started:.0f}"], wrong


def main() -> None:
    """Print a line for each economy, and fail where a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("economies", nargs="*", choices=[*CASES, []], help="all unless named")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=250)
    arguments = parser.parse_args()
    lines, wrong = [HEAD], 0
    for name in arguments.economies or CASES:
        line, more = row(name, arguments.seeds, arguments.iterations)
        lines.append(line)
        wrong += more
        print("  ".join(line), flush=True)
    print("\n" + align(lines))
    if wrong:
        raise SystemExit(f"{wrong} runs are called solved though their paths end badly")


if __name__ == "__main__":
    main()

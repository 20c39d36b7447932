"""Scores of the policy while it is trained: on environments and keys of their own, without exploring."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..agents.agent import Agent, Policy
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams
from .config import Config, build_env
from .evaluation.episodes import play
from .evaluation.scoring import to_float64
from .evaluation.simulate import anchor_paths, horizon_of, paths

Measure = Callable[[PyTree], dict[str, np.ndarray]]


def make_monitor(config: Config, env: Environment, params: EnvParams, agent: Agent) -> Measure:
    """What `evaluation.every` calls.

    It draws from keys of its own (`evaluation.seed + 1`; the final evaluation has `evaluation.seed`), the same every
    time, so that policies are compared on the same shocks.

    Args:
        config, env, params, agent: of the run.

    Returns:
        From a learner's state to `evaluation/return`, and what else the environment has: `evaluation/score`, its own,
        and where an economy knows its answer exactly `evaluation/regret`, in utility, paired. Numbers, or `[seeds]`.
    """
    several = config.training.num_seeds > 1

    def policies(state: PyTree) -> Policy:
        """Stacked, one a seed."""
        if several:
            return eqx.filter_vmap(agent.policy)(state)
        return jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, agent.policy(state))

    if isinstance(env, HostEnvironment):
        measure = _on_host(config, env, params)
    elif isinstance(env, Economy):
        measure = _economy(config)
    else:
        measure = _episodes(config, env, params)

    def monitor(state: PyTree) -> dict[str, np.ndarray]:
        found = measure(policies(state))
        return {f"evaluation/{name}": values if several else values[0] for name, values in found.items()}

    return monitor


def _episodes(config: Config, env: Environment, params: EnvParams) -> Callable[[Policy], dict[str, np.ndarray]]:
    settings = config.evaluation
    steps = settings.horizon or int(params.max_steps_in_episode)
    key = jax.random.key(settings.seed + 1)

    def measure(policies: Policy) -> dict[str, np.ndarray]:
        returns, scores, _ = play(policies, params, key, env=env, n=settings.num_episodes, steps=steps, sample=False)
        found = {"return": np.asarray(returns).mean(axis=1)}
        return found | ({"score": np.asarray(scores).mean(axis=1)} if "score" in env.capabilities else {})

    return measure


def _economy(config: Config) -> Callable[[Policy], dict[str, np.ndarray]]:
    """In float64, as `evaluate`: near the answer, differences are smaller than float32 can tell."""
    settings = config.evaluation
    with jax.enable_x64(True):
        env, params = build_env(config.env)
        assert isinstance(env, Economy)
        reference = env.reference(params)
        steps = settings.horizon or horizon_of(env, params, reference)
        key = jax.random.key(settings.seed + 1)
        shape = {"env": env, "n": settings.num_episodes, "steps": steps}
        best = None
        if reference is not None and reference.tolerance == 0:
            best = float(anchor_paths(params, key, None, **shape)[0]["value"].mean())

    def measure(policies: Policy) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            values = paths(to_float64(policies), params, key, None, kept=1, **shape)["value"]
            found = {"return": np.asarray(values).mean(axis=1)}
        return found | ({} if best is None else {"regret": best - found["return"]})

    return measure


def _on_host(config: Config, env: HostEnvironment, params: EnvParams) -> Callable[[Policy], dict[str, np.ndarray]]:
    from .host import episodes_on_host

    settings = config.evaluation

    def measure(policies: Policy) -> dict[str, np.ndarray]:
        def one(index: int) -> float:
            policy = jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, policies)
            count, horizon, seed = settings.num_episodes, settings.horizon, settings.seed + 1
            return float(episodes_on_host(env, params, policy, count, horizon, seed, sample=False)[0].mean())

        return {"return": np.array([one(index) for index in range(jax.tree.leaves(policies)[0].shape[0])])}

    return measure

"""Pictures of the policy of a run under way: the function that it is, the population that it grows."""

from __future__ import annotations

import logging
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import PyTree, UInt8

from ..agents.agent import Agent, Policy
from ..envs.adapters.gymnasium_host import HostEnvironment
from ..envs.economy import Economy
from ..envs.environment import Environment, EnvParams
from ..envs.wrappers import innermost
from ..errors import UserError
from .config import Config, build_env

Image = UInt8[np.ndarray, "H W 3"]
Draw = Callable[[Policy], dict[str, Image]]

PATHS, PERIODS = 64, 200
"""Paths, and periods of each, that show where an economy's states lie."""
EPISODES = 8
"""Episodes over which a population is counted."""


def check_figures(env: Environment, params: EnvParams) -> None:
    """Raise `UserError` for an environment of which there is nothing to draw."""
    from .render import unwrapped

    if isinstance(env, Economy):
        if env.one_shot and _always_the_same(env, params):
            raise UserError(
                f"logging.figures: {env.name} is played once, from one state: there is no policy function to draw; "
                "leave it out"
            )
    elif isinstance(env, HostEnvironment) or type(unwrapped(env)).render is Environment.render:
        raise UserError(f"logging.figures: {env.name} has no picture; economies and tissues have some; leave it out")


def _always_the_same(env: Economy, params: EnvParams) -> bool:
    """Whether an economy begins in one state, whatever is drawn."""
    first, *others = (jax.tree.leaves(env.initial_state(key, params)) for key in jax.random.split(jax.random.key(0), 3))
    return all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def make_figures(
    config: Config, env: Environment, params: EnvParams, agent: Agent
) -> Callable[[PyTree], dict[str, Image]]:
    """What `logging.figures` calls.

    Args:
        config, env, params, agent: of the run.

    Returns:
        From a learner's state to pictures by "group/name", of the first seed: `figures/policy`, an economy's actions
        along each coordinate of its state with the others at the steady state (else the mean), beside its closed form
        where it has one; `figures/population`, a tissue's living cells over a few episodes; and `figures/last_state`,
        where an episode has led to.
    """
    draw = _economy(config) if isinstance(env, Economy) else _episodes(config, env, params)

    def figures(state: PyTree) -> dict[str, Image]:
        if config.training.num_seeds > 1:
            state = jax.tree.map(lambda leaf: leaf[0], state)
        return draw(agent.policy(state))

    return figures


def _economy(config: Config) -> Draw:
    from .evaluation.curves import policy_slices
    from .evaluation.economies import Case
    from .evaluation.episodes import stack
    from .evaluation.errors import finite_part
    from .evaluation.full import centre_of
    from .evaluation.rules import Known, PolicyRule
    from .evaluation.scoring import to_float64
    from .evaluation.simulate import paths
    from .evaluation.states import coordinates_of, packed
    from .figures import pixels, policy_curves

    seed = config.evaluation.seed + 1
    with jax.enable_x64(True):
        env, params = build_env(config.env)
        assert isinstance(env, Economy)
        closed = env.reference(params)
        known = None if closed is None else Known(closed, None, "closed form")
        steps = 1 if env.one_shot else min(PERIODS, int(params.max_steps_in_episode))
        shape = {"env": env, "n": PATHS, "steps": steps, "kept": steps}

    def draw(policy: Policy) -> dict[str, Image]:
        with jax.enable_x64(True):
            policy = to_float64(policy)
            simulated = paths(stack([policy]), params, jax.random.key(seed), None, **shape)["states"]
            visited, _ = finite_part(jax.tree.map(lambda leaf: leaf[0], simulated))
            if not jax.tree.leaves(visited)[0].shape[0]:
                return _nothing(env, "no state that it leads to is finite")
            case = Case(env, params, PolicyRule(policy), known, visited, seed)
            coordinates = coordinates_of(visited)
            x = packed(coordinates, visited)
            slices = policy_slices(case, coordinates, x, centre_of(coordinates, x, None, case))
        return {"figures/policy": pixels(policy_curves(slices))} if slices else _nothing(env, "its state never moves")

    return draw


def _nothing(env: Environment, why: str) -> dict[str, Image]:
    logging.getLogger(__name__).warning("logging.figures: no policy of %s is drawn: %s", env.name, why)
    return {}


def _episodes(config: Config, env: Environment, params: EnvParams) -> Draw:
    from .figures import pixels, population_curves
    from .play import play_policy
    from .render import frames, holds_cells

    limit = int(params.max_steps_in_episode)
    steps = min(config.evaluation.horizon or limit, limit)
    key = jax.random.key(config.evaluation.seed + 1)

    def draw(policy: Policy) -> dict[str, Image]:
        played = play_policy(policy, env, params, key, EPISODES, steps)
        (last,) = frames(env, params, played[0], shown=[len(played[0].reward)])
        found = {"figures/last_state": last}
        if holds_cells(innermost(played[0].state)):
            counts = [np.asarray(innermost(each.state).tissue.alive).sum(axis=-1) for each in played]
            found["figures/population"] = pixels(population_curves(counts))
        return found

    return draw

"""Settings that are known to work, for pairs of an environment and a learner."""

from collections.abc import Mapping
from typing import Any

HOUSEHOLDS: Mapping[str, Any] = {
    "agent": {"learning_rate": 2e-3, "schedule": "linear", "value_decay": 0.9, "initial_std": 0.2},
    "rollout": {"num_envs": 64, "num_steps": 64},
    "training": {"iterations": 60},
}

# The centre is nearly the answer, and what an action is worth is far smaller than what shocks do: their noise is taken
# out of advantages, the critic learns before the policy moves, whole episodes count, and exploring fades away.
NEARLY_RIGHT: Mapping[str, Any] = {
    "learning_rate": 1e-3,
    "critic_learning_rate": 2e-3,
    "critic_warmup": 20,
    "schedule": "linear",
    "expectation": "quadrature",
    "gae_lambda": 1.0,
    "value_decay": 0.9,
    "epochs": 2,
    "initial_std": 0.1,
    "final_std": 0.01,
}

# Cells succeed or fail as one, and episodes are short.
CELLS: Mapping[str, Any] = {"learning_rate": 1e-3, "schedule": "linear", "widths": [32, 32], "value": "team_mean"}
CELLS_ONCE: Mapping[str, Any] = {"learning_rate": 1e-2, "schedule": "linear", "widths": [32, 32]}

# A planner knows its way from the start, so that only where to go is learned.
PATROL: Mapping[str, Any] = {
    "network": "planner",
    "learning_rate": 5e-3,
    "schedule": "linear",
    "gamma": 0.9,
    "widths": [32, 32],
    "epochs": 4,
}

# nested settings, as in a configuration file; they lie over the defaults and under everything that the user says
PRESETS: dict[tuple[str, str], Mapping[str, Any]] = {
    ("BrockMirman-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3},
        "rollout": {"num_envs": 128, "num_steps": 16, "fresh_episodes": True},
        "training": {"iterations": 1000},
    },
    ("BrockMirman-v0", "mappo"): {
        "agent": {"learning_rate": 1e-3, "schedule": "linear", "initial_std": 0.2},
        "rollout": {"num_envs": 64, "num_steps": 64},
        "training": {"iterations": 120},
    },
    ("BrockMirman-v0", "reinforce"): {
        "agent": {"schedule": "linear", "initial_std": 0.2, "unscored_tail": 16},
        "rollout": {"num_envs": 256, "num_steps": 64, "fresh_episodes": True},
        "training": {"iterations": 200},
    },
    ("Growth-v0", "deqn"): {
        # rare states are where errors are largest: a long ring gives them again, as often as they are wrong; a level
        # that jumps at the first steps can end where capital accumulates and the conditions hold as well
        "agent": {
            "learning_rate": 3e-3,
            "warmup": 2000,
            "activation": "silu",
            "fresh_share": 0.1,
            "replay_size": 65536,
            "replay_share": 0.25,
            "replay_exponent": 1.0,
            "replay_correction": 0.0,
        },
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("Irreversible-v0", "deqn"): {
        # how often the limit binds is in the complementarity's small errors
        "agent": {"learning_rate": 3e-3, "weights": {"irreversibility": 10.0}},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("BufferStock-v0", "deqn"): {
        # the rich and the kink count as much as where most households are
        "agent": {"learning_rate": 3e-3, "states": "box", "box_stretch": 1.2},
        "rollout": {"num_envs": 128, "num_steps": 16, "fresh_episodes": True},
        "training": {"iterations": 1250},
    },
    ("OLG-v0", "deqn"): {
        "agent": {"learning_rate": 6e-3, "widths": [32, 32], "fresh_share": 0.1},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("IRBC-v0", "deqn"): {
        # the product rule has 5^(countries + 1) nodes
        "agent": {"learning_rate": 3e-3, "rule": "monomial3"},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("FishWar-v0", "deqn"): {
        # rivals' slopes are next period's policy: where they move with today's, conditions hold by slopes alone
        "agent": {"learning_rate": 3e-3, "fresh_share": 0.5, "next_policy": "target", "target_rate": 0.02},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 400},
    },
    ("FishWar-v0", "mappo"): {
        # exploring fades away: what a player answers are its rivals' samples
        "agent": {
            "learning_rate": 2e-3,
            "schedule": "linear",
            "expectation": "quadrature",
            "value_decay": 0.9,
            "initial_std": 0.3,
            "final_std": 0.02,
        },
        "rollout": {"num_envs": 64, "num_steps": 32},
        "training": {"iterations": 100},
    },
    ("LogitPricing-v0", "mappo"): {
        # no spread is set, since prices on a grid have none; it is learned
        "agent": {"learning_rate": 3e-3, "schedule": "linear"},
        "rollout": {"num_envs": 256, "num_steps": 8},
        "training": {"iterations": 100},
    },
    ("Cournot-v0", "mappo"): {
        # played once: what a firm answers are its rivals' samples, so exploring fades away
        "agent": {"learning_rate": 2e-3, "schedule": "linear", "initial_std": 0.3, "final_std": 0.02},
        "rollout": {"num_envs": 256, "num_steps": 8},
        "training": {"iterations": 100},
    },
    ("Auction-v0", "mappo"): {
        # what a bid is worth is mostly luck: large batches; exploring blunts bids at the top while it lasts
        "agent": {
            "learning_rate": 3e-3,
            "schedule": "linear",
            "minibatches": 8,
            "initial_std": 0.3,
            "final_std": 0.03,
        },
        "rollout": {"num_envs": 2048, "num_steps": 2},
        "training": {"iterations": 300},
    },
    ("StochasticAK-v0", "deqn"): {
        # a share that falls with wealth solves the equation to first order near the path: far states pin its level
        "agent": {"learning_rate": 1e-3, "batch_size": 256, "states": "box", "box_stretch": 1.5},
        "rollout": {"num_envs": 128, "num_steps": 32},
        "training": {"iterations": 1000},
    },
    ("StochasticAK-v0", "mappo"): {
        # an episode is a rollout: what wealth is worth at its end is all that saving is for
        "agent": {
            "learning_rate": 1e-3,
            "schedule": "linear",
            "gae_lambda": 1.0,
            "value_decay": 0.9,
            "initial_std": 0.3,
            "activation": "silu",
        },
        "rollout": {"num_envs": 64, "num_steps": 32},
        "training": {"iterations": 200},
    },
    ("BufferStock-v0", "mappo"): {
        # where the limit binds the policy has far to go, which little noise would not let it
        "agent": {
            "learning_rate": 2e-3,
            "schedule": "linear",
            "expectation": "quadrature",
            "clip": 0.3,
            "value_decay": 0.9,
            "initial_std": 0.4,
            "final_std": 0.03,
        },
        "rollout": {"num_envs": 128, "num_steps": 25, "fresh_episodes": True},
        "training": {"iterations": 400},
    },
    ("RBCLabor-v0", "mappo"): {
        "agent": NEARLY_RIGHT,
        "rollout": {"num_envs": 64, "num_steps": 200},
        "training": {"iterations": 150},
    },
    ("IRBC-v0", "mappo"): {
        "agent": {**NEARLY_RIGHT, "rule": "monomial3"},
        "rollout": {"num_envs": 64, "num_steps": 200},
        "training": {"iterations": 150},
    },
    ("Growth-v0", "mappo"): {
        "agent": NEARLY_RIGHT,
        "rollout": {"num_envs": 64, "num_steps": 200},
        "training": {"iterations": 150},
    },
    ("Aiyagari-v0", "mappo"): HOUSEHOLDS,
    ("KrusellSmith-v0", "mappo"): HOUSEHOLDS,
    ("CellCount-v0", "reinforce"): {
        "agent": {"learning_rate": 3e-3, "schedule": "linear", "widths": [32, 32]},
        "rollout": {"num_envs": 32, "num_steps": 10, "fresh_episodes": True},
        "training": {"iterations": 450},
    },
    ("CellCount-v0", "mappo"): {
        "agent": {"learning_rate": 1e-3, "schedule": "linear", "widths": [32, 32]},
        "rollout": {"num_envs": 32, "num_steps": 10, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("CellCountPooled-v0", "reinforce"): {
        "agent": {"learning_rate": 3e-3, "schedule": "linear", "widths": [32, 32]},
        "rollout": {"num_envs": 32, "num_steps": 10, "fresh_episodes": True},
        "training": {"iterations": 300},
    },
    ("CellCountPooled-v0", "mappo"): {
        "agent": {"learning_rate": 1e-3, "schedule": "linear", "widths": [32, 32]},
        "rollout": {"num_envs": 32, "num_steps": 10, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("Elongation-v0", "mappo"): {
        # one cell of many divides, so that what its propensity was worth shows in the gain of the next steps alone, and
        # only where propensities differ by much
        "agent": {**CELLS, "learning_rate": 6e-3, "gamma": 0.3, "clip": 0.3, "initial_std": 2.0},
        "rollout": {"num_envs": 64, "num_steps": 24, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("Elongation-v0", "reinforce"): {
        "agent": {**CELLS_ONCE, "gamma": 0.6, "initial_std": 1.0},
        "rollout": {"num_envs": 64, "num_steps": 24, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("TargetShape-v0", "mappo"): {
        "agent": CELLS,
        "rollout": {"num_envs": 32, "num_steps": 8, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("TargetShape-v0", "reinforce"): {
        "agent": CELLS_ONCE,
        "rollout": {"num_envs": 32, "num_steps": 8, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("TypeBalance-v0", "reinforce"): {
        "agent": CELLS_ONCE,
        "rollout": {"num_envs": 32, "num_steps": 24, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("TypeBalance-v0", "mappo"): {
        "agent": CELLS,
        "rollout": {"num_envs": 32, "num_steps": 24, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("WoundHealing-v0", "mappo"): {
        "agent": {**CELLS, "learning_rate": 3e-3},
        "rollout": {"num_envs": 32, "num_steps": 30},
        "training": {"iterations": 100},
    },
    ("WoundHealing-v0", "reinforce"): {
        "agent": {**CELLS_ONCE, "gamma": 0.9},
        "rollout": {"num_envs": 32, "num_steps": 60, "fresh_episodes": True},
        "training": {"iterations": 60},
    },
    ("Chemotaxis-v0", "mappo"): {
        "agent": CELLS,
        "rollout": {"num_envs": 32, "num_steps": 30, "fresh_episodes": True},
        "training": {"iterations": 100},
    },
    ("Aggregation-v0", "mappo"): {
        "agent": CELLS,
        "rollout": {"num_envs": 32, "num_steps": 30, "fresh_episodes": True},
        "training": {"iterations": 100},
    },
    ("FrenchFlag-v0", "mappo"): {
        "agent": CELLS,
        "rollout": {"num_envs": 32, "num_steps": 6, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("StressHomogeneity-v0", "mappo"): {
        "agent": CELLS,
        "rollout": {"num_envs": 32, "num_steps": 12, "fresh_episodes": True},
        "training": {"iterations": 120},
    },
    ("ImmunePatrol-v0", "mappo"): {
        "agent": PATROL,
        "rollout": {"num_envs": 32, "num_steps": 48, "fresh_episodes": True},
        "training": {"iterations": 150},
    },
    ("ImmunePatrol-v0", "team_episodes"): {
        "agent": PATROL,
        "rollout": {"num_envs": 32},
        "training": {"iterations": 150},
    },
    ("Chemotaxis-v0", "pathwise"): {
        "agent": CELLS_ONCE,
        "rollout": {"num_envs": 8, "num_steps": 30, "fresh_episodes": True},
        "training": {"iterations": 40},
    },
    ("Aggregation-v0", "pathwise"): {
        # from 8 episodes alone a seed in three is stuck
        "agent": CELLS_ONCE,
        "rollout": {"num_envs": 32, "num_steps": 30, "fresh_episodes": True},
        "training": {"iterations": 100},
    },
    ("StressHomogeneity-v0", "pathwise"): {
        "agent": CELLS_ONCE,
        "rollout": {"num_envs": 8, "num_steps": 12, "fresh_episodes": True},
        "training": {"iterations": 40},
    },
    ("CartPole-v1", "reinforce"): {
        "agent": {"learning_rate": 3e-3, "schedule": "linear"},
        "rollout": {"num_envs": 8, "num_steps": 500, "fresh_episodes": True},
        "training": {"iterations": 124},
    },
    ("CartPole-v1", "mappo"): {
        "agent": {"learning_rate": 2.5e-4, "schedule": "linear", "entropy": 0.01},
        "rollout": {"num_envs": 4, "num_steps": 128},
        "training": {"iterations": 976},
    },
}


# A classical solver has its answer when it is made: one update puts it on, and nothing is learnt from experience.
SOLVER_PRESET: Mapping[str, Any] = {
    "rollout": {"num_envs": 1, "num_steps": 1},
    "training": {"iterations": 1},
}

# Whole episodes; `resolve` adds as many steps as the time limit has.
TEAM_EPISODES: Mapping[str, Any] = {"rollout": {"num_envs": 16, "fresh_episodes": True}}


def preset(env_id: str, agent_name: str) -> Mapping[str, Any]:
    """The preset of a pair; empty where there is none.

    Args:
        env_id: an environment's id.
        agent_name: a learner's or a solver's name.
    """
    from ..agents.classical import SOLVERS
    from ..agents.classical.tissues import RULES

    if agent_name in SOLVERS or agent_name in RULES:
        return PRESETS.get((env_id, agent_name), SOLVER_PRESET)
    if agent_name == "team_episodes":
        known = PRESETS.get((env_id, agent_name), {})
        return {**TEAM_EPISODES, **known, "rollout": {**TEAM_EPISODES["rollout"], **known.get("rollout", {})}}
    known = PRESETS.get((env_id, "mappo" if agent_name in ("ppo", "ippo") else agent_name), {})
    if agent_name in ("ppo", "ippo") and "agent" in known:  # MAPPO's, with a critic of their own
        known = {
            **known,
            "agent": {key: value for key, value in known["agent"].items() if key not in ("critic", "value")},
        }
    return known

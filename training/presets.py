"""Settings that are known to work, for pairs of an environment and a learner."""

from collections.abc import Mapping
from typing import Any

HOUSEHOLDS: Mapping[str, Any] = {
    "agent": {"learning_rate": 2e-3, "schedule": "linear", "value_decay": 0.9, "initial_std": 0.2},
    "rollout": {"num_envs": 64, "num_steps": 64},
    "training": {"iterations": 60},
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
        "agent": {"learning_rate": 3e-3},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("Irreversible-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("BufferStock-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3, "fresh_share": 0.25},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("OLG-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3, "fresh_share": 0.25},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("IRBC-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 1250},
    },
    ("FishWar-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3, "fresh_share": 0.25},
        "rollout": {"num_envs": 128, "num_steps": 16},
        "training": {"iterations": 400},
    },
    ("StochasticAK-v0", "deqn"): {
        "agent": {"learning_rate": 3e-3, "batch_size": 256},
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
        "agent": {"learning_rate": 2e-3, "schedule": "linear", "value_decay": 0.9, "initial_std": 0.2},
        "rollout": {"num_envs": 128, "num_steps": 64},
        "training": {"iterations": 400},
    },
    ("Growth-v0", "mappo"): {
        # the centre is nearly the answer: a critic that is right before the policy moves, little noise, many steps
        "agent": {
            "learning_rate": 3e-4,
            "schedule": "linear",
            "gae_lambda": 0.98,
            "value_decay": 0.9,
            "epochs": 2,
            "initial_std": 0.05,
        },
        "rollout": {"num_envs": 64, "num_steps": 200},
        "training": {"iterations": 400},
    },
    ("Aiyagari-v0", "mappo"): HOUSEHOLDS,
    ("KrusellSmith-v0", "mappo"): HOUSEHOLDS,
    ("CellCount-v0", "reinforce"): {
        "agent": {"learning_rate": 3e-3, "schedule": "linear", "widths": [32, 32]},
        "rollout": {"num_envs": 32, "num_steps": 10, "fresh_episodes": True},
        "training": {"iterations": 300},
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


def preset(env_id: str, agent_name: str) -> Mapping[str, Any]:
    """The preset of a pair; empty where there is none.

    Args:
        env_id: an environment's id.
        agent_name: a learner's or a solver's name.
    """
    from ..agents.classical import SOLVERS

    return PRESETS.get((env_id, agent_name), SOLVER_PRESET if agent_name in SOLVERS else {})

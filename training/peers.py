"""PPO of other libraries on our environments, for comparison: each through the door that its users would take.

What they learn comes back as a JAX function, so that all policies are scored by the same evaluation.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..agents.agent import Policy, View
from ..envs import spaces
from ..envs.environment import Environment, EnvParams
from ..envs.wrappers import RescaleAction


@dataclasses.dataclass(frozen=True)
class Budget:
    """What every learner gets: experience, and the hyperparameters that all PPOs share.

    Attributes:
        num_envs, num_steps: of a rollout.
        iterations: rollouts, each followed by an update.
        epochs, minibatches: of an update.
        learning_rate: at the start; with `anneal`, it falls linearly to 0 where the library can.
        gamma, gae_lambda, clip, entropy: as in Schulman et al. (2017).
        initial_std: of a continuous action on [-1, 1], where the library lets one choose.
        widths: hidden sizes, of tanh units, for actor and critic.
    """

    num_envs: int
    num_steps: int
    iterations: int
    epochs: int
    minibatches: int
    learning_rate: float
    anneal: bool
    gamma: float
    gae_lambda: float
    clip: float
    entropy: float
    initial_std: float
    widths: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Environment steps in all."""
        return self.num_envs * self.num_steps * self.iterations


Function = Callable[[PyTree, Float[Array, " O"]], Array]


class Learnt(NamedTuple):
    """What a library learnt.

    Attributes:
        function: from arrays and an observation to the deterministic action: an index, or a vector in [-1, 1].
        arrays, untrained: what training left, and what it started from.
    """

    function: Function
    arrays: PyTree
    untrained: PyTree


class PeerPolicy(Policy):
    """Another library's policy as one of ours: deterministic, for one agent, in the environment's units."""

    arrays: PyTree
    function: Function = eqx.field(static=True)
    env: Environment = eqx.field(static=True)
    params: EnvParams

    def __call__(self, view: View, key: Array | None = None) -> PyTree:
        action = self.function(self.arrays, view.observation[0])
        if isinstance(self.env, RescaleAction):
            action = self.env.to_inner(jnp.clip(action, -1, 1), self.params)
        return action[None]


def peer_env(env: Environment, params: EnvParams) -> Environment:
    """The environment as peers see it: continuous actions in [-1, 1], since their Gaussians start at 0."""
    return RescaleAction(env) if isinstance(env.agent_action_space(params), spaces.Box) else env


def train_sb3(env: Environment, params: EnvParams, budget: Budget, seed: int) -> Learnt:
    """Stable-Baselines3's PPO, through the vector door; PyTorch on one thread."""
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    model = _stable_baselines(stable_baselines3.PPO, env, params, budget, seed)

    def arrays() -> PyTree:
        policy: Any = model.policy
        layers = [layer for layer in policy.mlp_extractor.policy_net if isinstance(layer, torch.nn.Linear)]
        layers.append(policy.action_net)
        return [(layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()) for layer in layers]

    untrained = arrays()
    model.learn(budget.steps)
    return Learnt(_choice(_tanh_network, env, params), arrays(), untrained)


def train_sbx(env: Environment, params: EnvParams, budget: Budget, seed: int) -> Learnt:
    """SBX's PPO (Stable-Baselines in JAX), through the vector door."""
    import sbx

    model: Any = _stable_baselines(sbx.PPO, env, params, budget, seed)
    actor = model.policy.actor
    untrained = jax.tree.map(np.array, model.policy.actor_state.params)
    model.learn(budget.steps)

    def function(arrays, observation):
        return actor.apply(arrays, observation[None]).mode()[0]

    return Learnt(function, jax.tree.map(np.array, model.policy.actor_state.params), untrained)


def train_rejax(env: Environment, params: EnvParams, budget: Budget, seed: int) -> Learnt:
    """rejax's PPO, through the gymnax door (in its five-value form), without its evaluations."""
    algorithm, train = _rejax(env, params, budget)
    state = algorithm.init_state(jax.random.key(seed))
    untrained = jax.tree.map(np.array, state.actor_ts.params)
    trained = jax.tree.map(np.array, train(algorithm, jax.random.key(seed)).actor_ts.params)
    actor = algorithm.actor

    def outputs(module, observation):
        head = module.action_logits if algorithm.discrete else module.action_mean
        return head(module.features(observation))

    def network(arrays, observation):
        return actor.apply(arrays, observation[None], method=outputs)[0]

    return Learnt(_choice(network, env, params), trained, untrained)


def _rejax(env: Environment, params: EnvParams, budget: Budget) -> tuple[Any, Callable]:
    """The algorithm, and its compiled training; kept, so that a second seed does not compile again."""
    key = (env, budget)
    if key not in _REJAX:
        import rejax

        from ..envs.adapters.rejax import LegacyStepAPI

        algorithm: Any = rejax.get_algo("ppo").create(
            env=LegacyStepAPI(env),
            env_params=params,
            num_envs=budget.num_envs,
            num_steps=budget.num_steps,
            num_epochs=budget.epochs,
            num_minibatches=budget.minibatches,
            total_timesteps=budget.steps,
            eval_freq=budget.steps,
            skip_initial_evaluation=True,
            learning_rate=budget.learning_rate,
            max_grad_norm=0.5,
            gamma=budget.gamma,
            gae_lambda=budget.gae_lambda,
            clip_eps=budget.clip,
            ent_coef=budget.entropy,
            agent_kwargs={"activation": "tanh", "hidden_layer_sizes": budget.widths},
        )
        algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())
        _REJAX[key] = algorithm, jax.jit(lambda algorithm, key: algorithm.train(key)[0])
    return _REJAX[key]


_REJAX: dict[Any, tuple[Any, Callable]] = {}


def _stable_baselines(ppo: Any, env: Environment, params: EnvParams, budget: Budget, seed: int) -> Any:
    """A PPO of Stable-Baselines3's family on our vector environment."""
    from gymnasium.vector import AutoresetMode

    from ..envs.adapters.gymnasium_vector import GymnasiumVectorEnv
    from ..envs.adapters.stable_baselines3 import StableBaselines3VecEnv

    vector = GymnasiumVectorEnv(env, params, budget.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    rate = budget.learning_rate
    return ppo(
        "MlpPolicy",
        StableBaselines3VecEnv(vector),
        learning_rate=(lambda remaining: rate * remaining) if budget.anneal else rate,
        n_steps=budget.num_steps,
        batch_size=budget.num_envs * budget.num_steps // budget.minibatches,
        n_epochs=budget.epochs,
        gamma=budget.gamma,
        gae_lambda=budget.gae_lambda,
        clip_range=budget.clip,
        ent_coef=budget.entropy,
        policy_kwargs={
            "net_arch": list(budget.widths),
            "log_std_init": math.log(budget.initial_std),
            "ortho_init": True,
        },
        seed=seed,
        device="cpu",
    )


def _tanh_network(layers: PyTree, observation: Float[Array, " O"]) -> Array:
    """PyTorch's linear layers with tanh between them."""
    x = observation
    for i, (weight, bias) in enumerate(layers):
        x = (jnp.tanh(x) if i else x) @ weight.T + bias
    return x


def _choice(network: Function, env: Environment, params: EnvParams) -> Function:
    """The network's deterministic action: its output, or the index of its largest logit."""
    if not isinstance(env.agent_action_space(params), spaces.Discrete):
        return network
    return lambda arrays, observation: jnp.argmax(network(arrays, observation)).astype(jnp.int32)


class Peer(NamedTuple):
    """A library that we compare with.

    Attributes:
        name: in tables.
        modules: that it needs.
        train: trains it.
    """

    name: str
    modules: tuple[str, ...]
    train: Callable[[Environment, EnvParams, Budget, int], Learnt]

    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [module for module in self.modules if importlib.util.find_spec(module) is None]


PEERS = {
    "sb3": Peer("Stable-Baselines3 PPO", ("stable_baselines3", "torch"), train_sb3),
    "sbx": Peer("SBX PPO", ("sbx", "stable_baselines3", "torch"), train_sbx),
    "rejax": Peer("rejax PPO", ("rejax",), train_rejax),
}

"""Linear rules on observations: against the rule itself, by halving distances; and the inverses of the heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equimorph
from equimorph.agents import linear_base, linearize
from equimorph.agents.deqn.residuals import residuals
from equimorph.agents.mappo import MAPPO
from equimorph.agents.policies.actor import flat_observation
from equimorph.agents.policies.heads import AuxiliaryHead, CategoricalHead, make_auxiliary_head, make_head
from equimorph.envs.economies.growth import Growth
from equimorph.envs.economy import Decision
from equimorph.envs.environment import add_agent_axis, drop_agent_axis
from equimorph.errors import UserError

IRBC = {"ka": 0.5, "ies_first": 0.4}
HEADS = {"low": np.array([0.0, -1.0, 0.2]), "high": np.array([1.0, np.inf, 0.3])}


class _Priced(Growth):
    """Consumption has a price without an upper bound: p = 2 + c."""

    def auxiliary(self, params):
        return equimorph.envs.spaces.Box(0.5, jnp.inf, (), jnp.result_type(float))

    def steady_state(self, params):
        state, decision = super().steady_state(params)
        return state, decision._replace(auxiliary=2 + self.consumption(state, decision.action, params))

    def conditions(self, state, decision, expected, params):
        c = self.consumption(state, decision.action, params)
        return {**super().conditions(state, decision, expected, params), "price": decision.auxiliary / (2 + c) - 1}


class _Blind(Growth):
    """Agents do not see capital."""

    def observation(self, state, params):
        return jnp.stack([jnp.log(state.z), jnp.log(state.z) ** 2])


def decided_by(base, env, params, head, auxiliary):
    """The map from states to decisions that a network would make of the base's outputs."""

    def decide(state):
        seen = add_agent_axis(env, env.observation(state, params))
        outputs = base(flat_observation(seen, env.agent_mask(state, params)))
        prices = None if auxiliary is None else auxiliary(outputs[..., head.size :])
        return drop_agent_axis(env, Decision(head.mode(outputs[..., : head.size]), prices))

    return decide


def euler_errors(decide, env, params, states):
    """Without shocks, whose variance a linear rule leaves out."""
    node, weight = jnp.zeros((1, env.shocks(params).d)), jnp.ones(1)

    def one(state):
        return residuals(decide, state, node, weight, env, params, report=env.euler_error)["euler"]

    return jax.vmap(one)(states)


@pytest.mark.parametrize("id", ["priced growth", "RBCLabor-v0", "IRBC-v0"])
def test_the_policy_of_the_base_is_the_linear_rule_to_first_order(id):
    """Halve the distance to the steady state, and gaps and Euler errors fall to a quarter or less."""
    with jax.enable_x64(True):
        options = IRBC if id == "IRBC-v0" else {}
        env, params = (_Priced(), _Priced().default_params) if id == "priced growth" else equimorph.make(id, **options)
        head, auxiliary = make_head(env, params), make_auxiliary_head(env, params)
        rule = linearize(env, params)
        base = linear_base(env, params, head, auxiliary)
        assert base.weight.dtype == np.float64
        decide, values = decided_by(base, env, params, head, auxiliary), rule.decisions.values
        centre, level = rule.centre, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(rule.decision)])
        away = np.random.default_rng(0).standard_normal((16, rule.num_states))
        away *= 0.02 / np.linalg.norm(away, axis=1, keepdims=True)

        def straight(state):
            return rule.decisions.from_values(level + jnp.asarray(rule.slopes) @ (rule.states(state) - centre))

        @jax.jit
        def gaps(away):
            states = jax.vmap(rule.states.state)(centre + away)
            gap = jax.vmap(lambda s: values(decide(s)) - values(straight(s)))(states)
            return gap, euler_errors(decide, env, params, states), euler_errors(straight, env, params, states)

        gap, error, wanted = map(np.asarray, gaps(away))
        half, half_error, _ = map(np.asarray, gaps(away / 2))
        moved = np.abs(away @ rule.slopes.T)
        assert np.abs(gap).max() < 0.01 * moved.max()
        # An eighth where all that bends is odd, as a logit of capital and a squash around its middle are.
        assert np.abs(half).max() < 0.28 * np.abs(gap).max()
        assert np.abs(half_error).max() < 0.28 * np.abs(error).max()
        assert np.abs(error).max() < 2 * np.abs(wanted).max()


def test_each_country_has_its_own_rule_in_single_precision():
    """Oneself comes first in what a country sees, and its elasticity counts for nothing."""
    env, params = equimorph.make("IRBC-v0", **IRBC)
    rule = linearize(env, params)
    rule = rule._replace(slopes=np.random.default_rng(1).standard_normal(rule.slopes.shape))
    base = linear_base(env, params, make_head(env, params), rule=rule)
    assert base.weight.shape == (2, 1, 5)
    assert base.weight.dtype == base.bias.dtype == base.centre.dtype == np.float32
    # By hand: 8 sigmoid(2 u) - 4 has slope 4 at 0; log k is over .2, and log a over its spread.
    units = np.repeat([0.2, np.hypot(0.01, 0.01) / np.sqrt(1 - 0.95**2)], 2)
    for country, order in ((0, [0, 1, 2, 3]), (1, [1, 0, 3, 2])):
        slopes = rule.slopes[country] * units / 4
        np.testing.assert_allclose(base.weight[country, 0], [*slopes[order], 0], rtol=2e-5, atol=1e-9)


def test_a_rule_is_found_once():
    env, params = equimorph.make("Growth-v0", sigma=0.017)
    rule = linearize(env, params)
    assert linearize(env, params) is rule
    assert (rule.num_stable, rule.num_states, len(rule.roots)) == (2, 2, 3)
    assert linearize(env, params.replace(sigma=2 * params.sigma)) is not rule


@pytest.mark.parametrize(
    ("head", "values"),
    [
        (AuxiliaryHead(**HEADS), np.array([[0.2, 3.0, 0.29], [1e-6, 900.0, 0.21]])),
        (make_head(*equimorph.make("RBCLabor-v0")), np.array([[0.97, 0.3], [1e-6, 0.99]])),
    ],
)
def test_inverses_of_heads(head, values):
    with jax.enable_x64(True):
        head = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), head)
        out = head.inverse(jnp.asarray(values))
        assert out.shape == (2, head.size)
        made = head(out) if isinstance(head, AuxiliaryHead) else head.mode(out)
        np.testing.assert_allclose(made, values, rtol=1e-12)
        jacobian = jax.vmap(jax.jacfwd(head.inverse))(jnp.asarray(values))
        assert np.isfinite(jacobian).all()
        assert np.isneginf(head.inverse(head.low)).all()


def test_what_has_no_linear_base():
    env, params = equimorph.make("Growth-v0")
    head = make_head(env, params)
    irreversible, theirs = equimorph.make("IRBC-v0", irreversible=True)
    other = make_head(irreversible, theirs), make_auxiliary_head(irreversible, theirs)
    still = jax.tree.map(lambda leaf: leaf, linearize(env, params))
    at_bound = still._replace(decisions=still.decisions.__class__(("share",), ("level",), *_bounds(still)))
    for refused, message in [
        (lambda: linear_base(_Blind(), params, head), "observation does not tell log k, which its linear rule"),
        (lambda: linear_base(env, params, head, rule=at_bound), "share is at its limit in the steady state"),
        (lambda: linear_base(env, params, CategoricalHead(3)), "CategoricalHead has no outputs of a linear rule"),
        (lambda: linear_base(env, params.replace(alpha=0.3), head, rule=still), "of another calibration"),
        (lambda: linear_base(irreversible, theirs, other[0], rule=still), "is another economy's"),
        (lambda: linear_base(irreversible, theirs, *other, rule=still), "an auxiliary head for a linear rule with no"),
        (lambda: jax.jit(lambda p: linear_base(env, p, head).bias)(params), "outside of jit and vmap"),
        (lambda: linearize(*equimorph.make("CellCount-v0")), "is no economy, so it has no linear rule"),
    ]:
        with pytest.raises(UserError, match=message) as error:
            refused()
        assert "\n" not in str(error.value)


def _bounds(rule):
    return rule.decisions.low, rule.decisions.high, rule.decisions.structure, rule.decisions.shapes


def test_an_agent_is_prepared_as_it_is():
    agent = MAPPO()
    assert agent.prepare(*equimorph.make("Growth-v0")) is agent

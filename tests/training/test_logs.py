"""What a run tells while it trains: histograms, hyperparameters, figures, Weights and Biases, and its header."""

import io
import json
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

import equimorph
from equimorph.errors import UserError
from equimorph.training.collect import TrainState
from equimorph.training.config import build, resolve
from equimorph.training.distributions import distributions, parameters
from equimorph.training.figures import population_curves
from equimorph.training.header import header, settings_of
from equimorph.training.live_figures import make_figures
from equimorph.training.logs import check_logging, open_writer
from equimorph.training.metrics import MetricsWriter
from equimorph.training.play import play_policy
from equimorph.training.render import frames
from equimorph.training.switch import stages
from equimorph.training.trainer import train, train_from_config

SMALL = {"num_envs": 4, "num_steps": 8}


def small(out=None, **logging):
    flags = {"rollout": SMALL, "training": {"iterations": 2}, "evaluation": {"num_episodes": 4, "horizon": 8}}
    logging = {"progress": False, **logging}
    return resolve(
        "BrockMirman-v0", "mappo", {**flags, "logging": logging, **({} if out is None else {"out": str(out)})}
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run that tells all it can: its settings, last train state, history, and events."""
    out = tmp_path_factory.mktemp("told") / "run"
    config = small(out, histograms=True, figures=True)
    state, history = train_from_config(config)
    return config, state, history, EventAccumulator(str(out), size_guidance={"histograms": 0, "images": 0}).Reload()


def hparams(events, tag):
    """What TensorBoard's table of hyperparameters reads under a tag."""
    content = events.SummaryMetadata(tag).plugin_data.content
    parse = {
        metadata.SESSION_START_INFO_TAG: metadata.parse_session_start_info_plugin_data,
        metadata.SESSION_END_INFO_TAG: metadata.parse_session_end_info_plugin_data,
    }
    return parse[tag](content)


def test_histograms_are_of_what_the_state_holds(told):
    _, state, _, events = told
    found = {tag: events.Histograms(tag) for tag in events.Tags()["histograms"]}
    assert {len(each) for each in found.values()} == {2}  # reports
    weight = np.asarray(state.agent.nets.actor.network.layers[0].weight, float)
    last = found["parameters/actor/network/layers/0/weight"][-1]
    assert last.step == 64
    value = last.histogram_value
    assert (value.num, value.min, value.max) == (weight.size, weight.min(), weight.max())
    assert value.sum == pytest.approx(weight.sum(), rel=1e-5, abs=1e-5)
    assert sum(value.bucket) == weight.size
    assert "parameters/critic/layers/0/weight" in found
    assert found["observation/all"][-1].histogram_value.sum == pytest.approx(float(state.observation.sum()), abs=1e-4)
    action = found["action/all"][-1].histogram_value
    assert action.num == SMALL["num_envs"]
    assert 0 < action.min < action.max < 1


def test_hyperparameters_are_those_of_the_run_set_or_not(told):
    config, _, _, events = told
    started = hparams(events, metadata.SESSION_START_INFO_TAG).hparams
    assert started["env.id"].string_value == "BrockMirman-v0"
    assert started["env.params.alpha"].number_value == 0.36  # the environment's own
    assert started["agent.schedule"].string_value == "linear"  # the preset's
    assert started["agent.epochs"].number_value == 4  # the learner's default
    assert started["rollout.num_envs"].number_value == 4
    assert not any(name.startswith(("logging", "out")) for name in started)
    assert hparams(events, metadata.SESSION_END_INFO_TAG).status == api_pb2.STATUS_SUCCESS
    (text,) = events.Tensors("configuration/text_summary")
    assert "    iterations: 2" in text.tensor_proto.string_val[0].decode()
    assert set(started) == set(settings_of(config, build(config)[1]))


def test_tensorboard_joins_hyperparameters_and_last_metrics(told):
    """As its own plug-in does: no run may hide another's columns, so none says what the experiment is."""
    _, _, _, events = told
    assert metadata.EXPERIMENT_TAG not in events.PluginTagToContent("hparams")
    assert {"loss/policy", "time/iteration"} <= set(events.Tags()["scalars"])


def test_the_policy_function_is_drawn_at_the_end(told):
    config, state, _, events = told
    env, params, agent = build(config)
    (found,) = events.Images("figures/policy")
    assert found.step == 64
    drawn = np.asarray(Image.open(io.BytesIO(found.encoded_image_string)))
    np.testing.assert_array_equal(drawn, make_figures(config, env, params, agent)(state.agent)["figures/policy"])
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 10
    two = jax.tree.map(lambda x: jnp.stack([x, 0 * x]), state.agent)
    several = config.model_copy(update={"training": config.training.model_copy(update={"num_seeds": 2})})
    np.testing.assert_array_equal(drawn, make_figures(several, env, params, agent)(two)["figures/policy"])


@pytest.mark.extended
def test_a_tissue_is_drawn_where_an_episode_has_led_to():
    config = resolve("CellCount-v0", "mappo", {"env": {"capacity": 16, "params": {"target": 8}}})
    env, params, agent = build(config)
    state = agent.init(jax.random.key(0), env, params)
    found = make_figures(config, env, params, agent)(state)
    key = jax.random.key(config.evaluation.seed + 1)
    episode = play_policy(agent.policy(state), env, params, key, 8, int(params.max_steps_in_episode))[0]
    np.testing.assert_array_equal(found["figures/last_state"], frames(env, params, episode)[-1])
    assert found["figures/population"].std() > 0


def test_the_mean_population_is_over_the_episodes_that_last():
    (axis,) = population_curves([np.array([1, 2, 4]), np.array([1, 3])]).axes
    one, two, mean = (line.get_ydata() for line in axis.lines)
    assert (one.tolist(), two.tolist(), mean.tolist()) == ([1, 2, 4], [1, 3], [1, 2.5, 4])


class Herd:
    """Two environments of three agents, of which slots 0 and 1 are held; they play what they see, doubled."""

    num_agents = 3

    def agent_mask(self, state, params):
        return jnp.arange(3) < state

    def action_mask(self, state, params):
        return None


class Doubles(eqx.Module):
    def act(self, state, memory, view, key, *, explore=True):
        return memory, {"size": 2 * view.observation}, ()


def herd(*lead):
    """A train state, of each seed: two of three agents live in the first environment, one in the other."""
    fill = lambda x: jnp.broadcast_to(x, (*lead, *x.shape))  # noqa: E731
    nets = {"layers": [fill(jnp.ones((2, 2))), fill(jnp.zeros(3))]}
    zeros = fill(jnp.zeros(2))
    observation = fill(jnp.arange(6.0).reshape(2, 3))
    return TrainState(nets, fill(jnp.array([2, 1])), observation, (), zeros, zeros, (), fill(jnp.int32(0)), ())


@pytest.mark.parametrize("lead", [(), (5,)])
def test_distributions_are_of_living_agents_in_all_seeds(lead):
    found = distributions(herd(*lead), Herd(), None, Doubles(), bool(lead))
    assert np.unique(found["observation/all"]).tolist() == [0, 1, 3]
    assert np.unique(found["action/size"]).tolist() == [0, 2, 6]
    seeds = lead[0] if lead else 1
    assert found["action/size"].size == 3 * seeds
    assert {name: x.size for name, x in found.items() if name.startswith("parameters")} == {
        "parameters/state/layers/0": 4 * seeds,
        "parameters/state/layers/1": 3 * seeds,
    }


def test_numbers_that_are_not_finite_are_no_part_of_a_histogram(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.histograms(3, {"a": np.array([np.nan, 1.0, np.inf, 2.0]), "b": np.array([np.nan])})
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["histograms"] == ["a"]
    value = events.Histograms("a")[0].histogram_value
    assert (value.num, value.min, value.max) == (2, 1, 2)


# -- Weights and Biases ----------------------------------------------------------------------------------------------


class FakeRun:
    def __init__(self, settings):
        self.settings, self.logged, self.ended = settings, [], None

    def define_metric(self, name, step_metric=None):
        pass

    def log(self, values):
        self.logged.append(values)

    def finish(self, exit_code):
        self.ended = exit_code


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package: `runs` are those that were begun, and what they were told."""
    module = types.ModuleType("wandb")
    module.Error = type("Error", (Exception,), {})
    module.runs = []
    module.Histogram = lambda np_histogram: np_histogram
    module.Image = lambda image: image

    def init(**settings):
        module.runs.append(FakeRun(settings))
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_run_that_goes_on_is_the_same_run_there(wandb, tmp_path):
    out = tmp_path / "mine"
    train("BrockMirman-v0", "mappo", iterations=2, rollout=SMALL, out=out, logging={"wandb": "economies"})
    equimorph.resume(out, changes={"training": {"iterations": 3}})
    first, second = wandb.runs
    assert first.settings["project"] == "economies"
    assert first.settings["name"] == "mine"
    assert first.settings["config"]["agent"]["learning_rate"] == 1e-3
    assert first.settings["id"] == second.settings["id"] == json.loads((out / "wandb.json").read_text())["id"]
    assert second.settings["config"]["training"]["iterations"] == 3
    assert [row["step"] for run in wandb.runs for row in run.logged] == [32, 64, 96]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss/policy"] for row in first.logged] == [line["loss"]["policy"] for line in lines[:2]]
    assert (first.ended, second.ended) == (0, 0)


def test_what_is_drawn_goes_there_too_and_an_error_marks_the_run(wandb, tmp_path):
    config = small(tmp_path, wandb=True, tensorboard=False)

    def stopped():
        with open_writer(config, None, tmp_path, 0, 0.0) as writer:
            writer.histograms(7, {"parameters/a": np.arange(128.0)})
            writer.images(8, {"figures/b": np.zeros((2, 3, 3), np.uint8)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    (run,) = wandb.runs
    assert (run.settings["project"], run.ended) == ("equimorph", 1)
    assert run.logged[0]["parameters/a"][0].tolist() == [2] * 64
    assert run.logged[1]["figures/b"].shape == (2, 3, 3)


@pytest.mark.parametrize("content", ["", "[]", '{"id": 5}'])
def test_a_damaged_id_is_named(wandb, tmp_path, content):
    (tmp_path / "wandb.json").write_text(content)
    with pytest.raises(UserError, match=r"wandb\.json' is damaged: it has no id; delete it"):
        open_writer(small(tmp_path, wandb=True), None, tmp_path, 0, 0.0)
    assert not wandb.runs


def test_what_wandb_refuses_is_told_in_one_line(wandb, tmp_path):
    def init(**settings):
        raise wandb.Error("api_key not configured (no-tty).\n  call wandb.login")

    wandb.init = init
    with pytest.raises(UserError, match=r"did not begin: api_key not configured .*WANDB_MODE=offline") as refused:
        open_writer(small(tmp_path, wandb=True), None, tmp_path, 0, 0.0)
    assert "\n" not in str(refused.value)


# -- what does not apply ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "logging", "out", "said"),
    [
        ("BrockMirman-v0", {"histograms": True}, None, r"logging\.histograms applies only with a run folder"),
        ("BrockMirman-v0", {"figures": True}, None, r"logging\.figures applies only with a run folder"),
        ("BrockMirman-v0", {"wandb": "a"}, None, r"logging\.wandb applies only with a run folder"),
        ("BrockMirman-v0", {"histograms": True, "tensorboard": False}, "run", r"logging\.histograms needs somewhere"),
        ("BrockMirman-v0", {"figures": True, "tensorboard": False}, "run", r"logging\.figures needs somewhere"),
        ("BrockMirman-v0", {"wandb": "a/b"}, "run", r"'a/b' is no project's name"),
        ("BrockMirman-v0", {"wandb": " "}, "run", r"' ' is no project's name"),
        ("BrockMirman-v0", {"wandb": "a"}, "run", r"needs the package wandb .*pip install 'equimorph\[wandb\]'"),
        ("Cournot-v0", {"figures": True}, "run", r"logging\.figures: Cournot-v0 is played once, from one state"),
        ("CartPole-v1", {"figures": True}, "run", r"logging\.figures: CartPole-v1 has no picture"),
    ],
)
def test_what_would_show_nowhere_is_refused_before_anything_is_written(
    env_id, logging, out, said, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = None if out is None else str(tmp_path / out)
    config = resolve(env_id, "mappo", {"logging": logging, **({} if out is None else {"out": out})})
    env, params, _ = build(config)
    with pytest.raises(UserError, match=said):
        check_logging(config, env, params)
    if env_id == "BrockMirman-v0":
        with pytest.raises(UserError, match=said):
            train(env_id, "mappo", iterations=1, out=out, logging=logging)
    assert not list(tmp_path.iterdir())


def test_what_train_names_already_is_not_named_in_its_logging():
    with pytest.raises(UserError, match="verbose = True has no place here"):
        train("BrockMirman-v0", "mappo", logging={"verbose": True})


# -- the header ------------------------------------------------------------------------------------------------------


def header_of(env_id, agent, flags):
    config = resolve(env_id, agent, flags)
    env, params, first = build(config)
    state = jax.eval_shape(lambda key: first.init(key, env, params), jax.random.key(0))
    return header(config, env, params, stages(config, env, params, first), state)


def test_header_says_what_is_run():
    """Two inputs, widths 8 and 4, one output and a spread: 24 + 36 + 5 + 1; the critic has no spread."""
    training = {"iterations": 10, "seed": 3, "num_seeds": 1}
    chosen = {"widths": [8, 4], "minibatches": 2, "schedule": "linear", "critic_warmup": 2}
    text = header_of("BrockMirman-v0", "mappo", {"agent": chosen, "rollout": SMALL, "training": training})
    rows = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows["observation"] == "Box[2]"
    assert rows["action"] == "Box[1] in [0, 1]"
    assert rows["agents"] == "1, concept planner"
    assert "alpha=0.36, beta=0.96" in text
    assert rows["given"] == "widths=(8, 4) (default (64, 64)), minibatches=2 (default 4), critic_warmup=2 (default 0)"
    assert rows["preset"] == "learning_rate=0.001, schedule='linear', initial_std=0.2"
    assert "actor 66, critic 65; 131 in all" in text
    assert rows["iterations"] == "10, from seed 3"
    assert rows["steps"] == "4 x 8 = 32 an iteration, 320 in all"
    assert rows["gradient steps"] == "8 an iteration, 80 in all"  # 4 epochs x 2 minibatches
    assert rows["schedule"] == "adam, rate 0.001, linear to 0 at gradient step 80"
    assert rows["critic alone"] == "until gradient step 16 (iteration 2), when the policy first moves"


def test_header_says_where_steppers_change_and_schedules_stand():
    """128 states in batches of 32, twice: 8 gradient steps. At 5 / 8 of a schedule: 0.2 (0.001 + 0.999 x 3 / 8)."""
    switch = [{"at": 5, "stepper": "sgd", "learning_rate": 0.2, "schedule": "linear"}, {"at": 8, "stepper": "lm"}]
    flags = {
        "agent": {"batch_size": 32, "epochs": 2, "final_rate": 0.0, "warmup": 7},
        "rollout": {"num_envs": 8, "num_steps": 16},
        "training": {"iterations": 10, "switch": switch},
    }
    lines = [line.strip() for line in header_of("BrockMirman-v0", "deqn", flags).splitlines()]
    assert "gradient steps  8 an iteration, 80 in all" in lines
    at = lines.index("gradient steps  8 an iteration, 80 in all")
    assert [" ".join(line.split()) for line in lines[at + 1 :]] == [
        "schedule adam, rate 0.003, cosine to 0 at gradient step 40, warm-up until 7",
        "switch at gradient step 40 (iteration 5): sgd, rate 0.07513, linear to 0.0002 at gradient step 64",
        "switch at gradient step 64 (iteration 8): lm measures its own step length",
    ]


def test_gradient_steps_are_those_that_schedules_count(told):
    """16 an iteration: a linear schedule of 32 stands at 23.5 on average over the second one."""
    config, _, history, _ = told
    agent = build(config)[2]
    assert agent.gradient_steps(8, 4) == 16
    np.testing.assert_allclose(history["policy/learning_rate"], 1e-3 * (1 - np.array([7.5, 23.5]) / 32), rtol=1e-5)
    agents = equimorph.agents
    assert agents.DEQN(batch_size=128, epochs=2).gradient_steps(3, 128) == 6
    assert agents.REINFORCE(epochs=3, importance="clip").gradient_steps(5, 7) == 3
    assert agents.Pathwise().gradient_steps(5, 7) == 1
    assert build(resolve("BrockMirman-v0", "closed_form"))[2].gradient_steps(5, 7) is None


def test_verbose_prints_the_header_and_progress_tells_of_compiling(capsys):
    train("BrockMirman-v0", "mappo", iterations=2, rollout=SMALL, verbose=True, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("environment     BrockMirman-v0: ")
    at = lines.index("compiling ...")
    assert lines[at - 1].strip().startswith("schedule")
    assert lines[at + 1].startswith("compiled, and ran the first iteration, in ")
    assert lines[-1].startswith("iteration 2/2, 0 s left, ")


def test_parameters_are_named_by_network_and_layer():
    _, _, agent = build(small())
    env, params, _ = build(small())
    found = parameters(agent.init(jax.random.key(0), env, params))
    assert {"actor/network/layers/0/weight", "actor/spread", "critic/layers/2/bias"} <= set(found)
    assert not any("head" in name or "stepper" in name for name in found)

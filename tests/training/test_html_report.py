"""The page of a report: what stands on it, that it needs nothing else, and where it may be written."""

import base64
import re
import runpy
from pathlib import Path

import gymnasium
import jax
import pytest

import equimorph
from equimorph.envs import catalog
from equimorph.errors import UserError
from equimorph.training.cli import main
from equimorph.training.evaluation.scoring import evaluate_policies
from equimorph.training.html_report import check_target, page, save_page

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_economy.py"


def self_contained(text):
    """Whether nothing on the page is loaded from elsewhere."""
    addresses = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', text) + re.findall(r"url\(([^)]*)\)", text)
    return all(address.startswith("data:image/svg+xml;base64,") for address in addresses) and "<script" not in text


def pictures(text):
    return dict(re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)" alt="([^"]*)"', text))


@pytest.fixture
def run(written, tmp_path):
    written(tmp_path / "run")
    return equimorph.load(tmp_path / "run")


def test_page_has_every_section_with_its_figures(brock_mirman, run):
    found = brock_mirman[2]
    text = page(run, {"trained": found | {"untrained": {"score": 0.5}}})
    assert self_contained(text)
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == [
        "Scores",
        "Errors",
        "Limits that bind",
        "Stability",
        "Policy",
        "Where the errors are",
        "A simulated path",
        "Responses to shocks",
        "Moments",
        "Deviating alone",
        "What is not here",
        "The run",
    ]
    assert set(pictures(text).values()) == {
        "Policy functions",
        "Error map",
        "A simulated path",
        "Responses to shock, one standard deviation",
    }
    for picture in pictures(text):
        assert b"<svg" in base64.b64decode(picture)
    # One percent off: log10 of the Euler error is -2, of the loss -4.4.
    assert re.search(r"<td>visited states</td><td>-2\.00</td>", text)
    assert re.search(r"<td>box</td><td>-2\.00</td>", text)
    assert f"{found['welfare_loss']:.4g}" in text
    assert "residuals fails" in text
    assert "Not applicable: the economy declares no limit that binds." in text
    assert "untrained" in text


def test_page_is_the_same_for_the_same_evaluation(brock_mirman, run):
    once, again = (page(run, {"trained": brock_mirman[2]}) for _ in range(2))
    assert once == again


def test_page_says_what_its_figures_do_not(brock_mirman, run):
    doubtful = {
        **brock_mirman[2],
        "floored": 0.25,
        "states_not_finite": 0.125,
        "euler_box": {**brock_mirman[2]["euler_box"], "not_finite": 0.5},
        "stability": {**brock_mirman[2]["stability"], "contraction": 1.0},
    }
    text = page(run, {"<name>": doubtful})
    assert "&lt;name&gt;: 25% of paths" in text
    assert "12.50% of visited states are not finite" in text
    assert "50.00% of the states of the box are not finite" in text
    assert "do not come together" in text
    assert "<name>" not in text


def test_page_of_a_task_that_is_no_economy(learner, write_run, tmp_path):
    from equimorph.training.config import resolve

    write_run(resolve("CartPole-v1", "mappo"), tmp_path / "run")
    text = page(
        equimorph.load(tmp_path / "run"), {"trained": {"score": 10.0, "return": 10.0, "untrained": {"score": 9.0}}}
    )
    assert "CartPole-v1 is no economy" in text
    assert re.search(r"<td>trained</td><td>10</td>", text)


def test_where_a_page_may_be_written(tmp_path):
    path = tmp_path / "page.html"
    assert save_page("old", path) == path
    with pytest.raises(UserError, match="is there already; choose another name"):
        save_page("new", path)
    assert path.read_text() == "old"
    save_page("new", path, force=True)
    assert path.read_text() == "new"
    with pytest.raises(UserError, match=r"no folder '.*nowhere'.*make it first"):
        check_target(tmp_path / "nowhere" / "page.html")
    with pytest.raises(UserError, match=r"is none; try '.*report\.html'"):
        check_target(tmp_path)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--report page.html", "'page.html' is there already"),
        ("--report no/page.html", "no folder 'no'"),
        ("--force", "--force does not apply without --report"),
        ("--exploitability trained", "is no game of several players"),
    ],
)
def test_command_refuses_before_it_computes(run, monkeypatch, tmp_path, capsys, argv, message):
    def computed(*args, **kwargs):
        raise AssertionError("nothing should be computed")

    monkeypatch.setattr("equimorph.training.evaluation.scoring.evaluate_policies", computed)
    monkeypatch.chdir(tmp_path)
    Path("page.html").write_text("mine")
    assert main(["evaluate", "run", *argv.split()]) == 2
    assert message in capsys.readouterr().err
    assert Path("page.html").read_text() == "mine"


@pytest.fixture
def forget_cake():
    yield
    catalog._specs.pop("Cake-v0", None)
    gymnasium.registry.pop("equimorph/Cake-v0", None)


@pytest.mark.slow
def test_example_fits_on_a_page_and_gets_its_report(monkeypatch, tmp_path, capsys, forget_cake):
    """No steady state, no errors in units of consumption, no value: each is named with its reason."""
    assert len(EXAMPLE.read_text().splitlines()) <= 50
    train, evaluated = equimorph.train, []

    def shortly(env_id, agent, **settings):
        return train(
            env_id, "deqn", **{**settings, "iterations": 2, "widths": [4]}, rollout={"num_envs": 8, "num_steps": 16}
        )

    monkeypatch.setattr(equimorph, "train", shortly)
    monkeypatch.setattr(
        equimorph,
        "evaluate",
        lambda run: evaluated.append(run) or {"policy_error": 0, "untrained": {"policy_error": 0}},
    )
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE))
    assert "stands in cake.html" in capsys.readouterr().out
    text = Path("cake.html").read_text()
    assert self_contained(text)
    for reason in (
        "spectral_radius: the economy has no steady state",
        "regret: the known answer has no value",
        "euler: the economy has no errors in units of consumption; residuals of its conditions are shown",
    ):
        assert reason in text
    assert {"Policy functions", "Error map", "A simulated path"} <= set(pictures(text).values())
    assert "residual of euler" in text
    # The same policy, by the same seed: what stands there is what evaluation finds.
    run = evaluated[-1]
    with jax.enable_x64(False):
        settings = run.config.evaluation
        found = evaluate_policies(
            run.config.env, [run.agent.policy(run.state)], settings.num_episodes, None, settings.seed
        )
    assert f"{found[0]['policy_error']:.4g}" in text

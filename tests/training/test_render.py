"""Episodes as films: what is played, what is drawn of it, and what is written or refused."""

import importlib.util
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import equimorph
from equimorph.agents.agent import Policy
from equimorph.envs.pictures import clone_colours
from equimorph.errors import UserError
from equimorph.training import cli
from equimorph.training.evaluation.episodes import evaluate_episodes
from equimorph.training.play import Episode, play
from equimorph.training.render import frames, render
from equimorph.training.run import Run


class Steady(Policy):
    """The same continuous action always."""

    action: jax.Array

    def __call__(self, view, key=None):
        return jnp.broadcast_to(self.action, (view.agent_mask.shape[0], *self.action.shape))


class Leaning(Policy):
    """CartPole's cart is pushed to where the pole leans; drawn with a key, it is pushed anywhere."""

    upright: jax.Array

    def __call__(self, view, key=None):
        leans = (view.observation[:, 2] + view.observation[:, 3] > self.upright).astype(jnp.int32)
        return leans if key is None else jax.random.randint(key, leans.shape, 0, 2)


def run_of(env_id, policy, untrained=None, **overrides):
    """A run of an environment with policies that nobody trained."""
    agent = types.SimpleNamespace(policy=lambda state: state)
    config = types.SimpleNamespace(evaluation=types.SimpleNamespace(seed=3))
    return Run(None, config, *equimorph.make(env_id, **overrides), agent, policy, untrained or policy, {})


@pytest.fixture(scope="module")
def economy():
    """A household that saves a third, and before training nothing to speak of; four periods."""
    return run_of("BrockMirman-v0", Steady(jnp.full(1, 0.33)), Steady(jnp.full(1, 0.05)), max_steps_in_episode=4)


def test_what_is_played_is_what_is_scored():
    run = run_of("CartPole-v1", Leaning(jnp.zeros(())))
    for sampled in (False, True):
        episodes = play(run, episodes=8, seed=5, sampled=sampled)
        lengths = [len(episode.reward) for episode in episodes]
        assert len(set(lengths)) > 1
        assert all(len(episode.state.time) == length + 1 for episode, length in zip(episodes, lengths, strict=True))
        (scored,) = evaluate_episodes(run.env, run.params, [run.state], 8, None, 5)
        returns = np.mean([episode.reward.sum() for episode in episodes])
        np.testing.assert_allclose(returns, scored["return_sampled" if sampled else "return"], rtol=1e-6)


def test_the_untrained_policy_and_the_horizon(economy):
    (trained,), (untrained,) = play(economy, horizon=2), play(economy, horizon=2, untrained=True)
    np.testing.assert_allclose([trained.action, untrained.action], [np.full((2, 1), 0.33), np.full((2, 1), 0.05)])
    np.testing.assert_array_equal(trained.state.time, [0, 1, 2])
    with pytest.raises(UserError, match="horizon must be a whole number of at least 1, got 0"):
        play(economy, horizon=0)


# -- cells ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells():
    """A tissue of two founders: the second divides, the first dies, and nothing happens any more."""
    env, params = equimorph.make("CellCount-v0", capacity=4, founders=2, target=3.0)
    shapes = jax.eval_shape(env.reset_env, jax.random.key(0), params)[1]
    first = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    place = np.array([[-2.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 0.0]])
    age = np.array([5.0, 0.5, 0.0, 0.0])
    states = []
    for t in range(7):
        alive = np.array([t < 2, True, t > 0, False])
        events = first.events.replace(
            ancestor=np.array([0, 1, 1 if t == 1 else 2, 3]), kept=alive & [True, True, t > 1, True]
        )
        fields = {"position": place, "radius": np.full(4, 0.5), "division_age": age, "chemical": age[:, None]}
        states.append(first.replace(tissue=first.tissue.update(alive=alive, **fields), events=events))
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
    return env, params, Episode(states, None, None, np.zeros(6))


def count(frame, colour):
    return int(np.all(frame == np.asarray(colour).astype(np.uint8), axis=-1).sum())


def test_cells_have_their_founders_colour(cells):
    film = frames(*cells, "lineage")
    disc = np.pi * 0.44**2 * (256 / 8) ** 2
    areas = [[count(frame, colour) / disc for colour in clone_colours(2)] for frame in film]
    np.testing.assert_allclose(areas, [[1, 1], [1, 2], *[[0, 2]] * 5], atol=0.03)


def test_a_death_is_marked_for_three_steps_and_the_view_stays(cells):
    film = frames(*cells)
    ring = [count(frame, (205, 120, 110)) > 0 for frame in film]
    assert ring == [False, False, True, True, True, False, False]
    second_founder = [frame[128:, 128:] for frame in film]
    assert np.any(second_founder[0] != 255)
    assert all(np.array_equal(second_founder[0], each) for each in second_founder)


def test_chemical_and_age_order_the_cells(cells):
    def middles(colour):
        frame = frames(*cells, colour)[1]
        return [frame[160, 64], frame[160, 192], frame[96, 192]]

    light = [colour.sum() for colour in middles("age")]
    assert light == sorted(light, reverse=True)  # the longer ago a cell divided, the lighter
    assert len(set(light)) == 3
    first, _, last = middles("chemical")
    np.testing.assert_allclose([first, last], [[253, 231, 36], [68, 1, 84]], atol=1)  # viridis' ends


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_film_and_a_strip(economy, tmp_path):
    film = render(economy, tmp_path / "film.gif", horizon=3, episodes=2, fps=4)
    with Image.open(film) as image:
        assert image.n_frames == 8
        durations = []
        for frame in range(image.n_frames):
            image.seek(frame)
            durations.append(image.info["duration"])
        assert durations == [250, 250, 250, 1500] * 2
        size = image.size
    with Image.open(render(economy, tmp_path / "strip.png", horizon=3, episodes=2)) as image:
        assert image.size == (4 * size[0] + 3 * 4, 2 * size[1] + 4)
    before = film.read_bytes()
    with pytest.raises(UserError, match=r"film.gif' is there already; choose another name, or replace it with --force"):
        render(economy, film, horizon=3)
    assert film.read_bytes() == before
    render(economy, film, horizon=1, force=True)
    with Image.open(film) as image:
        assert image.n_frames == 2
    assert {path.name for path in tmp_path.iterdir()} == {"film.gif", "strip.png"}


@pytest.mark.extended
def test_a_film_in_mp4(economy, tmp_path):
    from moviepy import VideoFileClip

    with VideoFileClip(str(render(economy, tmp_path / "film.mp4", horizon=3, fps=4))) as clip:
        assert clip.duration == pytest.approx((4 + 6) / 4, abs=0.1)


def test_what_does_not_fit_is_refused_before_anything_is_played(economy, monkeypatch, tmp_path):
    aggregation = run_of("Aggregation-v0", Steady(jnp.zeros(2)))
    for run, out, options, message in (
        (economy, "film.avi", {}, "'film.avi' must end in one of .gif, .mp4, .png; try 'film.gif'"),
        (economy, tmp_path / "no" / "film.gif", {}, "there is no folder"),
        (
            economy,
            tmp_path / "a.gif",
            {"colour": "age"},
            "does not apply to BrockMirman-v0: it has no cells; leave it out",
        ),
        (economy, tmp_path / "a.gif", {"fps": 0}, "fps must be above 0 and at most 50, got 0"),
        (aggregation, tmp_path / "a.gif", {"colour": "agee"}, "unknown colour 'agee'. Did you mean 'age'?"),
        (
            aggregation,
            tmp_path / "a.gif",
            {"colour": "type"},
            "does not apply to the cells of Aggregation-v0; leave it out",
        ),
        (run_of("CartPole-v1", Leaning(jnp.zeros(()))), tmp_path / "a.gif", {}, "CartPole-v1 has no picture"),
    ):
        with pytest.raises(UserError) as refusal:
            render(run, out, **options)
        assert message in str(refusal.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs moviepy: pip install 'equimorph\[render\]'; or write a .gif"):
        render(economy, tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == []


def test_commands_pass_on_what_was_asked_for(written, monkeypatch, tmp_path, capsys):
    written(tmp_path / "run")
    calls = []
    monkeypatch.setattr(
        "equimorph.training.render.render", lambda run, out, **options: calls.append((run, options)) or out
    )
    monkeypatch.setattr("equimorph.training.lineage.lineage", lambda run, out, **options: calls.append((run, options)))
    monkeypatch.setattr("equimorph.training.lineage.summary", lambda tree: "a tree")
    monkeypatch.chdir(tmp_path)
    common = "--seed 4 --horizon 6 --untrained --sampled --force --set env.params.beta=0.8"
    assert cli.main(f"render run --out a.gif --episodes 2 --colour age {common}".split()) == 0
    assert cli.main(f"lineage run --out a.svg {common}".split()) == 0
    assert capsys.readouterr().out.splitlines() == ["picture: a.gif", "a tree", "tree: a.svg"]
    shared = {"seed": 4, "horizon": 6, "untrained": True, "sampled": True, "force": True}
    assert [options for _, options in calls] == [{**shared, "episodes": 2, "colour": "age"}, shared]
    assert [float(run.params.beta) for run, _ in calls] == pytest.approx([0.8, 0.8])
    assert cli.main(["lineage", "run", "--force"]) == 2
    assert "--force does not apply without --out" in capsys.readouterr().err

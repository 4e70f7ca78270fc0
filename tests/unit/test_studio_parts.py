"""Parts of the studio against other ways to the same: examples, figures, the game, the command, and foreign code."""

import math
import sys
from pathlib import Path

import pytest
from scipy.stats import norm

from fedveil.cli import application
from fedveil.core.errors import BadValue
from fedveil.report.catalogue import conversion, moments
from fedveil.report.charts import Axis
from fedveil.studio.asker import WORKER, Asker
from fedveil.studio.explore import PARTS, Games, figure_view
from fedveil.studio.figures import curve, figure, trade_off
from fedveil.studio.places import Folder, check_paths
from fedveil.theory.divergence import gaussian_delta

ROOT = Path(__file__).parents[2]


def test_the_studio_s_examples_are_the_repository_s() -> None:
    found = sorted((ROOT / "src" / "fedveil" / "studio" / "examples").glob("*.toml"))
    assert len(found) == 5
    for path in found:
        assert path.read_bytes() == (ROOT / "examples" / path.name).read_bytes()


def test_at_the_papers_settings_the_figures_are_the_report_s() -> None:
    wanted = moments().panels[0]
    found = {line["name"]: line for line in figure("moments-accountant", 4.0, 0.04, 0.0)["lines"]}
    assert found["exact composition"]["value"] == wanted["exact composition"].value
    assert found["moments accountant (not certified)"]["value"] == wanted["moments accountant"].value
    orders = conversion().panels
    lossless = figure("renyi-conversion", 5.0, 0.0, 0.0)["lines"][-1]
    ends = [panel["lossless"].y[-1] for panel in orders if panel.title.endswith(" 5")]
    assert lossless["points"][-1][1] == pytest.approx(ends[0])


def test_a_privacy_curve_of_one_round_is_the_gaussian_s() -> None:
    found = curve(2.0, 0.02, 1.0, 1e-5)["lines"][1]
    for epsilon, delta in found["points"]:
        if epsilon > 0:
            assert gaussian_delta(epsilon, 0.5) == pytest.approx(delta, rel=1e-3)
    values = [line["value"] for line in curve(2.0, 0.02, 500.0, 1e-5)["lines"]]
    assert values[0] < values[1]


def test_the_trade_off_is_met_with_equality_somewhere_and_never_undercut() -> None:
    found = trade_off(1.0, 1e-5)
    promised, real = (dict(map(tuple, line["points"])) for line in found["lines"][:2])
    assert all(real[alarm] >= promised[alarm] - 1e-12 for alarm in promised)
    assert gaussian_delta(1.0, 1 / found["noise"]) == pytest.approx(1e-5, rel=1e-3)
    assert found["best"]["gaussian"] <= found["best"]["promised"]


def test_the_best_player_of_the_game_is_right_as_often_as_the_theory_says() -> None:
    """10,000 numbers, each judged by its likelier case; six standard deviations, so a false alarm in 5e8."""
    noise, plays = 0.8, 10_000
    games = Games()
    name = games.begin(noise)
    for _ in range(plays):
        told = games.guess(name, games.number(name)["number"] > 0.5)
    share = norm.cdf(0.5 / noise)
    assert abs(told["right"] / plays - share) < 6 * math.sqrt(share * (1 - share) / plays)


def test_games_are_forgotten_when_there_are_too_many() -> None:
    games = Games()
    names = [games.begin(1.0) for _ in range(300)]
    assert len(games.known) == 200
    with pytest.raises(BadValue, match="Begin a new one"):
        games.number(names[0])


@pytest.mark.parametrize("name", list(PARTS))
def test_a_figure_without_any_point_is_still_a_figure(name: str) -> None:
    empty = {"lines": [{"name": "a<b", "kind": "best", "points": [], "value": None}], "x": "x", "y": "y"}
    assert "a&lt;b" in figure_view(name, {**empty, "log": [False, True]})


def test_every_slider_begins_within_its_range() -> None:
    for _, _, sliders in PARTS.values():
        for _, _, low, high, at, log, _ in sliders:
            assert low <= at <= high
            assert 0 <= Axis(low, high, log=log).share(at) <= 100


def test_code_that_a_study_names_runs_only_where_it_was_allowed(tmp_path: Path) -> None:
    tables = {"model": {"kind": "torch", "module": "nets:small"}}
    with pytest.raises(BadValue, match="--module nets:small"):
        check_paths(tables, tmp_path, Folder(tmp_path))
    check_paths(tables, tmp_path, Folder(tmp_path, ("nets:small",)))
    tuned = {"tune": {"space": {"model.module": ["nets:small", "os:abort"]}}}
    with pytest.raises(BadValue, match="os:abort"):
        check_paths(tuned, tmp_path, Folder(tmp_path, ("nets:small",)))


def test_nothing_is_imported_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("json", "numpy", "fedveil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    asker = Asker(tmp_path, WORKER)
    try:
        assert asker.ask("ready", {}) is True
    finally:
        asker.close()


def test_the_command_refuses_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    from typer.testing import CliRunner

    for arguments, words in (
        ([str(tmp_path / "none")], "FOLDER must be a folder"),
        ([str(tmp_path), "--port", "70000"], "--port must lie between 0 and 65535"),
        ([str(tmp_path), "--upload-limit", "0"], "--upload-limit must be at least 1"),
    ):
        found = CliRunner().invoke(application(), ["studio", *arguments, "--no-browser"])
        assert isinstance(found.exception, BadValue)
        assert words in str(found.exception)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("fedveil.cli.studio.find_spec", lambda name: None)
    found = CliRunner().invoke(application(), ["studio", str(tmp_path), "--no-browser"])
    assert "pip install 'fedveil[studio]'" in str(found.exception)

"""The model card and the registry's entry: the certificate's own numbers, nothing guessed, nothing that breaks out."""

import json
import math
import shutil
from html import escape
from pathlib import Path
from typing import Any

import pytest
from report_folder import CLASSIFIED, NAME, open_plan, some_plan, with_target, write_folder
from wards import Command

from fedveil.core.errors import BadValue
from fedveil.report.page import page
from fedveil.report.regulator.about import About, read_about
from fedveil.report.regulator.document import card, html, markdown
from fedveil.report.regulator.exposure import ALARMS, gain, mu_of, unprotected
from fedveil.report.regulator.registry import entry, yaml_text
from fedveil.report.view import View, view_of
from fedveil.report.words import detection_rate, up
from fedveil.theory.concentrated import gaussian_epsilon
from golden.golden_runs import made_run

STATED = """
curators = ["North Hospital", "South: # 'Hospital'"]
intended_use = "Triage | only"
region = "Nowhere"
published = 2026-02-03
justification = "- yes\\n- no"
"""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    folder = tmp_path_factory.mktemp("card")
    write_folder(folder, some_plan(), CLASSIFIED)
    return view_of(folder)


def test_the_card_has_the_certificates_numbers(view: View) -> None:
    text = markdown(view.plan.name, card(view, About()))
    for seen in view.observers:
        assert seen.epsilon is None or f"| {up(seen.epsilon)} |" in text
    assert "not stated" in text
    assert "NIST Special Publication 800-226" in text


def test_nothing_in_a_name_breaks_out(view: View) -> None:
    stated = read_about(STATED)
    text, drawn = (write(view.plan.name, card(view, stated)) for write in (markdown, html))
    assert "<script" not in text
    assert "<script" not in drawn
    assert "Triage \\| only" in text
    assert view.plan.name == NAME


def test_an_attacker_is_held_by_the_whole_curve(view: View) -> None:
    seen, found = view.target, gain(view, view.target)
    assert len(found.points) > 4
    for alarms in ALARMS:
        assert found.power[alarms] <= detection_rate(seen.epsilon, seen.delta, alarms)
        assert found.power[alarms] == min(detection_rate(e, d, alarms) for d, e in found.points)
    assert found.mu is not None
    assert all(gaussian_epsilon(found.mu, delta) >= epsilon for delta, epsilon in found.points)


def test_a_bit_costs_two_steps_where_records_are_left_out(tmp_path: Path) -> None:
    bits = {}
    for neighbours in ("replace-one", "zero-out"):
        folder = tmp_path / neighbours
        folder.mkdir()
        write_folder(folder, with_target(open_plan(), neighbours=neighbours), CLASSIFIED)
        view = view_of(folder)
        found = gain(view, view.target)
        factor = 1 if neighbours == "replace-one" else 2
        bits[neighbours] = found.bit
        best = min(1 / (1 + math.exp(-factor * epsilon)) for _, epsilon in found.points)
        assert best <= found.bit <= 1
    assert all(0.5 < bit <= 1 for bit in bits.values())


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
def test_mu_is_the_inverse_of_epsilon_on_the_safe_side(mu: float) -> None:
    for delta in (1e-9, 1e-5, 1e-2):
        epsilon = gaussian_epsilon(mu, delta)
        found = mu_of(epsilon, delta)
        assert gaussian_epsilon(found, delta) >= epsilon
        assert epsilon == 0 or found == pytest.approx(mu, rel=1e-5)


def test_a_run_that_is_not_private_says_so_everywhere(tmp_path: Path) -> None:
    write_folder(tmp_path, some_plan(seeded=True), CLASSIFIED)
    view = view_of(tmp_path)
    text = markdown(view.plan.name, card(view, About()))
    assert "NOT PRIVATE" in text
    assert "at most 100%" in text
    assert entry(view, About())["deployment"]["privacy_loss"]["privacy_parameters"] is None


def test_the_entry_reads_back_as_it_was_meant(view: View) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with fedveil[docs]")
    for stated in (About(), read_about(STATED)):
        meant = entry(view, stated)
        assert yaml.safe_load(yaml_text(meant)) == _filled(meant)
    found = meant["deployment"]
    assert found["product"]["data_curators"] == ["North Hospital", "South: # 'Hospital'"]
    assert found["model"]["model_name"] == "Federated"
    assert found["privacy_loss"]["privacy_parameters"]["epsilon"] >= view.target.epsilon
    assert found["product"]["publication_date"] == "2026-02-03"


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner) for key, inner in value.items()}
    return "" if value is None else value


def test_the_report_answers_a_regulator(view: View) -> None:
    text = page(view)
    assert 'id="regulator"' in text
    for what, _ in unprotected(view):
        assert escape(what) in text


def test_held_out_records_that_are_not_public_are_listed(view: View) -> None:
    told = "500, not declared public: their metrics are exact, without noise: charged as infinite"
    assert ("held-out test records", told) in unprotected(view)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("curator = ['A']", "Did you mean curators"),
        ("curators = 'A'", "about.curators must be a list of names"),
        ("published = '3 May'", "about.published must be a day"),
        ("region = 3", "about.region must be a text"),
        ("region = ''", "about.region must be a text"),
        ("region =", "must be TOML"),
    ],
)
def test_bad_answers_get_one_sentence(text: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        read_about(text)


def test_the_command_writes_three_files(command: Command, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(made_run("hidden-poisson"), run)
    about = tmp_path / "about.toml"
    about.write_text(STATED)
    done = command("card", run, "--about", about, "--json")
    assert done.code == 0
    result = json.loads(done.out)
    assert [Path(path).name for path in result["written"]] == ["card.html", "card.md", "registry.yaml"]
    assert "region" not in result["not_stated"]
    assert "contact" in result["not_stated"]
    done = command("card", run, "--format", "pdf")
    assert done.code == 2
    assert "--format must be one of html, markdown, registry" in done.err
    path = run / "certificate.json"
    path.write_text(path.read_text().replace('"private": true', '"private": false'))
    done = command("card", run)
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_other_frameworks_are_answered_from_the_records_and_left_to_people_where_they_must(view: View) -> None:
    parts = {part.name: part for part in card(view, About())}
    anonymity = dict(parts["anonymity"].rows)
    assert "from even odds" in anonymity["Likelihood of extracting or obtaining personal data"]
    assert anonymity["Impact assessment and advice of the officer"].startswith("For people")
    assert dict(parts["annex-iv"].rows)["6. Changes over the lifecycle"] == view.total
    assert dict(parts["terms"].rows)["De-identification technique"].startswith("randomisation")

"""Attacks in the report: absent without an audit, refused if of another run, an alarm if the promise is broken."""

import base64
import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_folder import (
    UNTESTED,
    some_audit,
    some_finding,
    some_leakage,
    some_plan,
    write_audit_file,
    write_folder,
)
from test_report_page import Reader, sections

from fedveil.audit.claim import Claim
from fedveil.audit.finding import Finding
from fedveil.audit.record import Audit, read_audit, write_audit
from fedveil.core.errors import BadValue
from fedveil.report.charts import strip
from fedveil.report.page import write_report

RATES = np.geomspace(1e-3, 1.0, 300)
ROC = {
    "false_positives": RATES.tolist(),
    "true_positives": np.minimum(1.0, 1.3 * RATES).tolist(),
    "allowed": Claim(((0.9, 1e-5),)).most(RATES).tolist(),
}
HIDDEN = {
    "delta": 1e-5,
    "rows": [
        {"sees": "the last <model>", "certified": 0.9, "measured": 0.4},
        {"sees": "all models", "certified": None, "measured": 3.0},
    ],
}
PLAN = some_plan()
FINDINGS = (
    some_finding(),
    some_finding(attack="LiRA", measured=0.21, details={"roc": ROC}),
    some_finding(adversary="every-model", certified=2.5, measured=0.0),
    some_finding(adversary="server", certified=None, measured=float("inf")),
    some_finding(attack="canaries", kind="estimate", verdict="not-judged", measured=1.5),
)
BROKEN = some_finding(
    attack="one-run", adversary="every-model", certified=2.5, measured=4.0, verdict="broken", evidence="<90> of 100"
)


def page_of(folder: Path, audit: Audit | None) -> str:
    write_folder(folder, PLAN, UNTESTED)
    if audit is not None:
        write_audit_file(folder, audit)
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    audit = some_audit(PLAN, *FINDINGS, leakage=some_leakage(), hidden_state=HIDDEN)
    return page_of(tmp_path_factory.mktemp("run"), audit)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("run"), some_audit(PLAN, *FINDINGS, BROKEN))


def test_without_an_audit_there_is_no_such_part(tmp_path: Path) -> None:
    assert "attacked" not in sections(page_of(tmp_path, None))


def test_the_page_stays_whole(full: str, bad: str) -> None:
    for text in (full, bad):
        reader = Reader(text)
        ids = Counter(a["id"] for _, a in reader.tags if "id" in a)
        assert [name for name, count in ids.items() if count > 1] == []
        drawn = [a for a in reader.all("svg") if a.get("aria-hidden") != "true" and a.get("class") != "over"]
        assert all(a.get("role") == "img" and a.get("aria-labelledby") for a in drawn)
        assert len(reader.all("caption")) == len(reader.all("table"))
        assert reader.all("script") == []
        bare = re.sub(r"data:image/png;base64,[\w+/=]+", "", re.sub(r"/\*.*?\*/", "", text))
        assert not re.search(r"https?:|//|@import|url\(|javascript:", bare)
    assert "attacked" in sections(full)


def test_certified_measured_and_the_room_between_are_said(full: str) -> None:
    shown = Reader(full).text
    assert "4 lower bounds were measured; none contradicts the certificate." in shown
    assert "certified is at most 0.9; distinguishing <game> shows at least 0.432 at delta 1e-5" in shown
    assert "The room between is 0.467." in shown  # 0.9 - 0.4321, rounded down
    assert "nothing is promised, and distinguishing <game> shows at least ∞" in shown
    assert "Not attacked: a curious participant, a server that sees sums only." in shown
    assert "canaries Anyone who gets the final model final-model 0.9 about 1.5 1e-5 not judged" in shown
    assert "612 of 50,000 & 101 of 50,000" in shown
    assert "THE PROMISE IS BROKEN" not in shown


def test_the_picture_has_the_measured_shares(full: str) -> None:
    chart = full[full.index('<svg id="by-attack"') :]
    chart = chart[: chart.index("</svg>")]
    bars = re.findall(r'<rect x="([\d.]+)%" y="\d+" width="([\d.]+)%" height="16" class="bar (\w+)"', chart)
    reached, room = [float(w) for _, w, kind in bars if kind == "best"], [float(w) for _, w, k in bars if k == "room"]
    scale = reached[0] / 0.4321
    assert room[0] == pytest.approx(scale * (0.9 - 0.4321), abs=0.02)
    assert reached[1] == 0.0
    assert room[1] == pytest.approx(scale * 2.5, abs=0.05)
    assert [kind for _, _, kind in bars] == ["room", "best", "room", "best", "none", "best"]


def test_curves_are_drawn_against_what_is_allowed(full: str) -> None:
    shown = Reader(full).text
    assert "LiRA, against the final model" in shown
    assert "at 0.1% false alarms" in shown
    allowed = Claim(((0.9, 1e-5),)).most(RATES)[np.flatnonzero(RATES <= 0.01)[-1]]
    assert f"{100 * allowed:.2f}% allowed" in shown
    assert full.count('class="line weak"') >= 1


def test_a_broken_promise_stands_above_everything(bad: str) -> None:
    reader = Reader(bad)
    assert "".join(reader.inside["title"]).startswith("BROKEN")
    assert reader.text.index("THE PROMISE IS BROKEN") < reader.text.index("The promise in plain words")
    assert "one-run, every model seen : <90> of 100" in reader.text
    assert "1 of 5 lower bounds contradict the certificate." in reader.text
    assert 'class="bar broken"' in bad


def test_pictures_come_with_words(full: str) -> None:
    reader = Reader(full)
    images = reader.all("img")
    assert len(images) == 8  # two observers: the truth and three levels
    assert all(a["alt"] for a in images)
    assert images[1]["alt"] == (
        "Guesses by a server that sees every update, in closed form, without noise: 61.5 dB (cosine 0.90)"
    )
    data = base64.b64decode(str(images[0]["src"]).removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.size, picture.mode) == ((5, 2), "LA")
        points = np.asarray(picture)
    assert points[..., 0].tolist() == [[0, 0, 0, 255, 255], [0, 255, 0, 255, 0]]
    assert points[:, 2, 1].tolist() == [0, 0]
    assert "with the run's noise, better than a guess that looks at nothing" in reader.text
    assert "6.2 dB (cosine 0.90) with the run's noise, worse than a guess that looks at nothing" in reader.text


def test_what_hiding_buys_is_shown(full: str) -> None:
    shown = Reader(full).text
    assert "the last <model> 0.9 0.4" in shown
    assert "all models no guarantee 3" in shown


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"plan": "0" * 64}, "audit.json: plan must be the plan of this run"),
        ({"run": "another"}, "audit.json: run must be this run"),
    ],
)
def test_an_audit_of_another_run_is_refused(tmp_path: Path, change: dict[str, str], told: str) -> None:
    with pytest.raises(BadValue, match=re.escape(told)):
        page_of(tmp_path, replace(some_audit(PLAN, *FINDINGS), **change))
    assert not (tmp_path / "report.html").exists()


def changed(**values: Any) -> str:
    return json.dumps(json.loads(write_audit(some_audit(PLAN, some_finding(), leakage=some_leakage()))) | values)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "must be JSON"),
        ("[]", "hold a JSON object"),
        ('{"format": 2}', "format must be 1"),
        ('{"format": 1}', "must be complete"),
        ('{"format": NaN}', "must hold finite numbers"),
        (changed(findings=[{}]), "must be complete"),
        (changed(findings=[some_finding().as_json() | {"adversary": "nobody"}]), "adversary must be one of"),
        (changed(findings=[some_finding().as_json() | {"details": {"roc": {}}}]), "must be complete"),
        (changed(findings=[some_finding().as_json() | {"details": {"roc": ROC | {"allowed": [1]}}}]), "one length"),
        (changed(findings=[some_finding().as_json() | {"details": {"roc": ROC | {"allowed": [2] * 300}}}]), "rates in"),
        (changed(leakage={}), "must be complete"),
        (changed(leakage=some_leakage() | {"truth": [[[0]], [[0, 1]]]}), "be of one size"),
        (changed(leakage=some_leakage() | {"truth": [[[0, 1000]]]}), "whole numbers from 0 to 255"),
        (changed(hidden_state={"rows": [{}]}), "must be complete"),
    ],
)
def test_a_damaged_audit_is_refused_in_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    write_folder(tmp_path, PLAN, UNTESTED)
    (tmp_path / "audit.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadValue, match=told):
        write_report(tmp_path)


def test_an_audit_is_read_as_it_was_written() -> None:
    audit = some_audit(PLAN, *FINDINGS, BROKEN, leakage=some_leakage(), hidden_state=HIDDEN)
    again = read_audit(write_audit(audit))
    assert write_audit(again) == write_audit(audit)
    assert [found.as_json() for found in again.broken] == [BROKEN.as_json()]
    assert again.findings[3].measured == float("inf")


def test_an_audit_that_json_cannot_hold_is_refused() -> None:
    odd = some_finding(details={"rate": float("nan")})
    with pytest.raises(BadValue, match="finite numbers and plain values only"):
        write_audit(some_audit(PLAN, odd))
    with pytest.raises(BadValue, match="be a tuple of findings"):
        Audit(plan="a", run="b", findings=[some_finding()])  # type: ignore[arg-type]


def test_pictures_without_words_are_refused() -> None:
    with pytest.raises(BadValue, match="say what the pictures show"):
        strip([[[0]]], " ")
    with pytest.raises(BadValue, match="be at least one"):
        strip([], "nothing")


def test_an_empty_audit_says_so(tmp_path: Path) -> None:
    only: list[Finding] = [some_finding(kind="estimate", verdict="not-judged")]
    shown = Reader(page_of(tmp_path, some_audit(PLAN, *only))).text
    assert "Only estimates were made, which prove nothing either way." in shown

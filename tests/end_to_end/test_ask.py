"""The command that answers questions: in one process, at three real sites, killed and resumed, charged once."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import called

import fedveil
from fedveil.core.errors import BadValue
from fedveil.jobs.ask import ask_local, ask_study, plan_questions, profile_at_sites
from fedveil.ledger.entry import read_export
from fedveil.stages.ask.counts import Count
from fedveil.stages.prepare.budget import gaussian_epsilon
from fedveil.stages.profile.profile import Profile
from fedveil.sums.homomorphic.library import has_tenseal

QUESTIONS: list[dict[str, Any]] = [
    {"kind": "count", "name": "old", "where": ["age >= 60"], "per_site": True},
    {"kind": "mean", "name": "age", "column": "age", "range": [0.0, 120.0], "by": "sex"},
    {"kind": "quantiles", "name": "box", "column": "age", "range": [0.0, 120.0], "cells_in_range": 32},
    {
        "kind": "regression",
        "name": "odds",
        "model": "logistic",
        "column": "ill",
        "columns": ["age"],
        "range": {"age": [20.0, 100.0]},
        "weight": 4.0,
    },
]


def people() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    age = draw.normal(60, 12, 2400).round()
    ill = (draw.random(2400) < 1 / (1 + np.exp(-(age - 60) / 10))).astype(int)
    return {"age": age, "sex": draw.choice(["F", "M"], 2400), "ill": ill, "ward": np.arange(2400) % 6}


def tables(folder: Path, **trust: Any) -> dict[str, Any]:
    rows = zip(*people().values(), strict=True)
    lines = ["age,sex,ill,ward", *(f"{a:g},{b},{c},{d}" for a, b, c, d in rows)]
    (folder / "people.csv").write_text("\n".join(lines) + "\n")
    data = {"source": str(folder / "people.csv"), "client_column": "ward", "categories": {"sex": ["F", "M"]}}
    found: dict[str, Any] = {
        "data": data,
        "clients": {"kind": "column"},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "question": QUESTIONS,
    }
    if trust:
        found["trust"] = {"timeout": 60.0, "together": 2, **trust}
    return found


def check(folder: Path) -> None:
    """Every number is near the truth (ten half-widths: a false alarm in 1e80), charged once, certified, on a page."""
    truth = people()
    listed = json.loads((folder / "answers.json").read_text())["answers"]
    answers = {one["question"]["name"]: one["tables"] for one in listed}

    def near(row: dict[str, Any], value: float) -> bool:
        return bool(abs(row["estimate"] - value) < 5 * (row["high"] - row["low"]) + 1e-9)

    for row in answers["old"][""]:
        assert near(row, (truth["age"][truth["ward"] == row["site"] - 1] >= 60).sum())
    for row in answers["age"][""]:
        assert near(row, truth["age"][truth["sex"] == row["sex"]].mean())
    assert near(answers["box"][""][2], float(np.median(truth["age"])))
    assert answers["odds"][""][1]["odds_ratio"] == pytest.approx(np.exp(0.1), rel=0.05)
    assert [entry.kind for entry in read_export(folder / "ledger.jsonl")] == ["charge", "release"]
    assert json.loads((folder / "certificate.json").read_text())["guarantees"][0]["epsilon"] <= 8.0
    assert not (folder / "private" / "key").exists()
    page = (folder / "report.html").read_text()
    assert page.count("<svg") >= len(QUESTIONS)
    assert {"old.csv", "age.csv", "box.csv", "odds.csv"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("server", ["central", "secure-aggregation", "homomorphic"])
def test_in_one_process(server: str, tmp_path: Path) -> None:
    if server == "homomorphic" and not has_tenseal():
        pytest.skip("TenSEAL is not installed")
    ask_study(tables(tmp_path) if server == "central" else tables(tmp_path, server=server), tmp_path / "out")
    check(tmp_path / "out")
    assert called("certify", str(tmp_path / "out"), cwd=tmp_path).returncode == 0


def test_at_three_real_sites_masked(tmp_path: Path) -> None:
    """Encrypted, killed and resumed, a stage at real sites is tested once for all: test_toy_stage.py."""
    pytest.importorskip("flwr", reason="Flower carries messages between sites; it is not installed")
    ask_local(tables(tmp_path, server="secure-aggregation"), tmp_path / "out", 3)
    check(tmp_path / "out")


def test_a_frame_goes_in_and_frames_come_out(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(people())
    result = fedveil.ask(frame, [Count(name="old", where=("age >= 60",))], epsilon=1.0, out=tmp_path / "out")
    shown = result._repr_html_()  # the answers, and their certificate
    assert "old</caption>" in shown
    assert "Certificate for one record" in shown
    row = result["old"].iloc[0]
    assert row.low <= row.estimate <= row.high
    assert abs(row.estimate - (frame.age >= 60).sum()) < 10 * (row.high - row.low)
    with pytest.raises(BadValue, match="must be one of old"):
        result["young"]


def test_the_noise_that_comes_out_is_the_noise_that_was_charged(tmp_path: Path) -> None:
    """A record moves two counts by one each: the epsilon of noise as it is seen is that of the certificate.

    Twenty releases of six counts: their standard deviation is within a third (a false alarm in 1e6).
    """
    wanted = tables(tmp_path) | {"question": [{"kind": "count", "name": "all", "per_site": True}]}
    seen = []
    for place in range(20):
        result = ask_study(wanted, tmp_path / f"out{place}")
        seen += [row["estimate"] - 400 for row in result.rows("all")]
    promised = result.certificate.guarantees[0].answer.epsilon
    noise = float(np.std(seen))
    assert (
        gaussian_epsilon(math.sqrt(2) / (noise * 4 / 3), 1e-5)
        < promised
        < gaussian_epsilon(math.sqrt(2) / (noise * 0.7), 1e-5)
    )
    assert len(set(seen)) == len(seen)  # never the same noise twice


def test_without_questions_it_is_a_profile(tmp_path: Path) -> None:
    wanted = {key: value for key, value in tables(tmp_path).items() if key != "question"}
    result = ask_study(wanted, tmp_path / "out")
    assert abs(result.rows("age: mean")[0]["estimate"] - 60) < 3
    assert {row["sex"] for row in result.rows("sex: words")} == {"F", "M", "other", "missing"}


def test_a_profile_of_sites_is_their_answers_to_the_standard_questions(tmp_path: Path) -> None:
    """Nobody lists the words of a column: the sites spell them together. Ten half-widths: a false alarm in 1e80."""
    pytest.importorskip("flwr", reason="Flower carries messages between sites; it is not installed")
    given = tables(tmp_path, server="secure-aggregation")
    given["data"].pop("categories")
    given["model"] = {"kind": "logistic"}  # a study may be given, too
    result, profile = profile_at_sites(given, 8.0, tmp_path / "out", sites=2)
    truth = people()
    age, sex = profile.number("age"), profile.words_of("sex")
    assert age is not None
    assert sex is not None
    assert age.low <= 40 < 80 <= age.high
    assert abs(age.centre - truth["age"].mean()) < 3
    assert {word for word, _ in sex.words} == {"F", "M"}
    assert sum(share for _, share in sex.words) == pytest.approx(1.0, abs=10 * profile.errors["categories"])
    assert 'sex = ["' in (tmp_path / "out" / "data.toml").read_text()
    assert Profile.read((tmp_path / "out" / "profile.json").read_text()) == profile
    assert result.certificate.guarantees[0].answer.epsilon <= 8.0


def test_a_plan_shows_precision_and_charges_nothing(tmp_path: Path) -> None:
    plan, expected, spent = plan_questions(tables(tmp_path))
    assert spent.before == 0 < spent.after <= 8.0
    assert [one.question for one in expected] == ["old", "age", "box", "odds"]
    for one in expected:
        widths = [one.half_widths[epsilon] for epsilon in sorted(one.half_widths)]
        assert widths == sorted(widths, reverse=True)
    assert plan.promise("final-model").epsilon <= 8.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv"]


def test_the_command_plans_a_question_file_either_way(tmp_path: Path) -> None:
    tables(tmp_path)
    (tmp_path / "questions.toml").write_text(FILE.format(data="", question='kind = "count"'))
    first = called("plan", "questions.toml", "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["expected"][0]["question"] == "count 1"
    assert called("ask", "questions.toml", "--plan", "--json", cwd=tmp_path).stdout == first.stdout


FILE = """
[data]
source = "people.csv"
{data}
[privacy]
epsilon = 1.0
delta = 1e-5
[[question]]
{question}
"""


@pytest.mark.parametrize(
    ("data", "question", "sentence"),
    [
        (
            "",
            'kind = "mean"\ncolumn = "agee"',
            "name a column of the data, got 'agee'. Did you mean age?",
        ),
        ("", 'kind = "mean"\ncolumn = "sex"', "name a column of numbers, got 'sex'"),
        ("", 'kind = "histogram"\ncolumn = "sex"', "state its values (or data.categories)"),
        ("", 'kind = "count"\nwhere = ["age >> 3"]', "be compared with a number, got '> 3'"),
        ("", 'kind = "survival"\ntime = "age"\nevent = "ill"\ntimes = [3, 2]', "finite numbers that increase"),
        ("", 'kind = "count"\nweight = 1e9', "lie in [0.001, 1000]"),
        ("", 'kind = "count"\n[study]\nseed = 3', "must be left out"),
        ('target = "ill"\nclasses = 2', 'kind = "count"\nwhere = ["il == 1"]', "Did you mean ill?"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_charged(
    data: str, question: str, sentence: str, tmp_path: Path
) -> None:
    tables(tmp_path)
    (tmp_path / "questions.toml").write_text(FILE.format(data=data, question=question))
    done = called("ask", "questions.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv", "questions.toml"]

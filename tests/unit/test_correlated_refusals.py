"""What correlated noise refuses, in one sentence and before anything is charged."""

import math
from pathlib import Path
from typing import Any

import pytest

from contract.method_examples import Example
from fedveil import cli
from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.stages.train.correlation import Correlation
from fedveil.stages.train.fedavg.method import FedAvg
from unit.test_correlated import study

BAD = {
    "separation": (
        {"cohort": 4, "correlation": {"separation": 4}},
        "algorithm.correlation.separation must be at most 3",
    ),
    "participations": (
        {"cohort": 4, "correlation": {"participations": 2}},
        "algorithm.correlation.participations must be at least 3",
    ),
    "bands": (
        {"cohort": 4, "correlation": {"bands": 10}},
        "algorithm.correlation.bands must be at most the rounds, 9, got 10",
    ),
    "no bands": ({"cohort": 4, "correlation": {"bands": 0}}, "algorithm.correlation.bands must lie between 1 and"),
    "both": (
        {"cohort": 4, "correlation": {"bands": 2, "buffers": 2}},
        "algorithm.correlation must have bands or buffers, not both",
    ),
    "error": (
        {"cohort": 4, "correlation": {"error": "first"}},
        "algorithm.correlation.error must be one of last, mean, max",
    ),
    "sampling": ({"sampling": "poisson", "cohort": 4}, "algorithm.sampling must be cyclic or all"),
    "cohort": ({"cohort": 13}, "algorithm.cohort must be at most the number of clients, 12"),
    "adaptive": ({"cohort": 4, "clip": "adaptive"}, "algorithm.clip must be left out with correlation"),
    "rate": ({"rate": 0.5}, "algorithm.rate must be left out with correlation"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_the_clients_cannot_keep_is_refused_in_one_sentence(case: str) -> None:
    changes, sentence = BAD[case]
    with pytest.raises(BadValue, match=sentence):
        study({"kind": "fedavg", "correlation": {}, **changes}, rounds=9)


@pytest.mark.parametrize("bad", ["separation = 4", "bands = 10"])
def test_the_command_line_refuses_it_before_anything_is_charged(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        '[study]\nname = "turns"\n[data]\nsource = "sklearn:breast_cancer"\nfeature_bound = 2.0',
        '[clients]\nkind = "equal"\ncount = 12\n[model]\nkind = "logistic"\nradius = 5.0\n[schedule]\nrounds = 9',
        '[privacy]\nepsilon = 2.0\ndelta = 1e-3\nunit = "client"\nneighbours = "zero-out"',
        f'[algorithm]\nkind = "fedavg"\ncohort = 4\n[algorithm.correlation]\n{bad}\n[books]\nledger = "books.sqlite"',
    ]
    (tmp_path / "study.toml").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["fedveil", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "Traceback" not in said
    assert f"algorithm.correlation.{bad.split()[0]} must be at most" in said
    assert not list(tmp_path.rglob("books.sqlite*"))  # nothing was charged


BAD_DPSGD = {
    "shuffled": ({"sampling": "shuffled"}, "algorithm.sampling must be cyclic or poisson"),
    "drawn with buffers": (
        {"correlation": {"buffers": 2}},
        "algorithm.correlation.buffers must be left out with poisson batches",
    ),
    "classes": ({"correlation": {"bands": 5}}, "algorithm.correlation.bands must be at most 4"),
    "bands": (
        {"sampling": "cyclic", "correlation": {"bands": 9}},
        "algorithm.correlation.bands must be at most the rounds, 8",
    ),
    "separation": (
        {"sampling": "cyclic", "correlation": {"separation": 5}},
        "algorithm.correlation.separation must be at most 4",
    ),
    "participations": (
        {"sampling": "cyclic", "correlation": {"participations": 1}},
        "algorithm.correlation.participations must be at least 2",
    ),
    "own budgets": ({"sampling": "cyclic", "own_epsilon": 1.0}, "algorithm.own_epsilon must be"),
    "adaptive": (
        {"sampling": "cyclic", "clip": "adaptive"},
        "algorithm.correlation must be left out with an adaptive clip",
    ),
    "no such noise": ({"noise": "coloured"}, "algorithm.noise must be a setting of dpsgd"),
    "flat": ({"bands": 2}, "algorithm.bands must stand in its own table, got 2. It belongs to the table"),
    "cyclic alone": ({"correlation": None, "sampling": "cyclic"}, "algorithm.sampling must not be cyclic here"),
}


@pytest.mark.parametrize("case", BAD_DPSGD)
def test_what_records_cannot_keep_is_refused_in_one_sentence(case: str) -> None:
    changes, sentence = BAD_DPSGD[case]
    wish = {"kind": "dpsgd", "correlation": {}, "rate": 0.25, "rounds": 8, **changes}
    wish = {key: value for key, value in wish.items() if value is not None}
    with pytest.raises(BadValue, match=sentence):
        study(wish, 1, "record")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"correlation": {"buffers": 2}}, r"algorithm\.correlation\.buffers must be left out with \[trust\], got 2"),
        ({"correlation": {"bands": 4}}, r"algorithm\.correlation\.bands must be at most 3 with \[trust\], .* got 4"),
        (
            {"correlation": {"bands": 3, "separation": 2}},
            r"algorithm\.correlation\.bands must be at most 2 with \[trust\]",
        ),
    ],
)
def test_shares_of_more_than_one_earlier_update_are_refused_for_fedavg(changes: dict[str, int], sentence: str) -> None:
    example = Example(
        algorithm={"kind": "fedavg", "correlation": {}, "cohort": 4, **changes},
        noise=("noise_multiplier",),
        privacy={"unit": "client", "neighbours": "zero-out"},
        schedule={"rounds": 6},
        trust={"server": "trusted"},
    )
    with pytest.raises(BadValue, match=sentence):
        example.plan()


def test_a_plan_whose_clients_cannot_keep_its_pattern_is_refused() -> None:
    plan = study({"kind": "fedavg", "correlation": {"bands": 2}, "cohort": 4}, rounds=9)
    fewer = DataShape(**{**{f: getattr(plan.data, f) for f in plan.data.__slots__}, "clients": 8})
    method = plan.method
    assert isinstance(method, FedAvg)
    setup = type(plan.setup)(data=fewer, model=plan.model, target=plan.target)
    with pytest.raises(BadValue, match="the rounds after which a client is asked again"):
        method.check(setup)


@pytest.mark.parametrize(
    "table",
    [
        {"participations": 2, "separation": 3, "column": [0.5]},
        {"participations": 2, "separation": 3, "column": [1.0, math.nan]},
        {"participations": 2, "separation": 30, "column": [1.0]},
        {"participations": 2.5, "separation": 3, "column": [1.0]},
        {"participations": 2, "separation": 3, "scales": [0.7, 0.4], "decays": [0.5, 0.5]},
        {"participations": 2, "separation": 3, "scales": [0.5], "decays": [1.0]},
        {"participations": 2, "separation": 3},
        {"separation": 3, "column": [1.0]},
        {"participations": 2, "separation": 3, "column": [1.0], "stray": 1},
    ],
)
def test_a_matrix_that_is_none_is_refused(table: Any) -> None:
    with pytest.raises(BadValue):
        Correlation.read(table, 10)

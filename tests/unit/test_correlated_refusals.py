"""What correlated noise refuses, in one sentence and before anything is charged."""

import math
from pathlib import Path
from typing import Any

import pytest

from contract.method_examples import Example
from fedveil import cli
from fedveil.algorithms.correlation import correlation_of
from fedveil.algorithms.fedavg.method import FedAvg
from fedveil.data.records import DataShape
from fedveil.errors import BadValue
from unit.test_correlated import study

BAD = {
    "separation": ({"cohort": 4, "separation": 4}, "algorithm.separation must be at most 3"),
    "participations": ({"cohort": 4, "participations": 2}, "algorithm.participations must be at least 3"),
    "bands": ({"cohort": 4, "bands": 10}, "algorithm.bands must be at most the rounds, 9, got 10"),
    "no bands": ({"cohort": 4, "bands": 0}, "algorithm.bands must lie between 1 and"),
    "both": ({"cohort": 4, "bands": 2, "buffers": 2}, "algorithm.buffers must be left out beside bands"),
    "error": ({"cohort": 4, "error": "first"}, "algorithm.error must be one of last, mean, max"),
    "sampling": ({"sampling": "poisson", "cohort": 4}, "algorithm.sampling must be cyclic or all"),
    "cohort": ({"cohort": 13}, "algorithm.cohort must be at most the number of clients, 12"),
    "adaptive": ({"cohort": 4, "clip": "adaptive"}, "algorithm.clip must be left out with correlated noise"),
    "rate": ({"rate": 0.5}, "algorithm.rate must be left out with correlated noise"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_the_clients_cannot_keep_is_refused_in_one_sentence(case: str) -> None:
    changes, sentence = BAD[case]
    with pytest.raises(BadValue, match=sentence):
        study({"kind": "fedavg", "noise": "correlated", **changes}, rounds=9)


@pytest.mark.parametrize("bad", ["separation = 4", "bands = 10"])
def test_the_command_line_refuses_it_before_anything_is_charged(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        '[study]\nname = "turns"\n[data]\nsource = "sklearn:breast_cancer"\nfeature_bound = 2.0',
        '[clients]\nkind = "equal"\ncount = 12\n[model]\nkind = "logistic"\nradius = 5.0\n[schedule]\nrounds = 9',
        '[privacy]\nepsilon = 2.0\ndelta = 1e-3\nunit = "client"\nneighbours = "zero-out"',
        f'[algorithm]\nkind = "fedavg"\nnoise = "correlated"\ncohort = 4\n{bad}\n[books]\nledger = "books.sqlite"',
    ]
    (tmp_path / "study.toml").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["fedveil", "run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "Traceback" not in said
    assert f"algorithm.{bad.split()[0]} must be at most" in said
    assert not list(tmp_path.rglob("books.sqlite*"))  # nothing was charged


BAD_DPSGD = {
    "shuffled": ({"sampling": "shuffled"}, "algorithm.sampling must be cyclic or poisson"),
    "drawn with buffers": ({"buffers": 2}, "algorithm.buffers must be left out with poisson batches"),
    "classes": ({"bands": 5}, "algorithm.bands must be at most 4"),
    "bands": ({"sampling": "cyclic", "bands": 9}, "algorithm.bands must be at most the rounds, 8"),
    "separation": ({"sampling": "cyclic", "separation": 5}, "algorithm.separation must be at most 4"),
    "participations": ({"sampling": "cyclic", "participations": 1}, "algorithm.participations must be at least 2"),
    "own budgets": ({"sampling": "cyclic", "own_epsilon": 1.0}, "algorithm.own_epsilon must be"),
    "adaptive": ({"sampling": "cyclic", "clip": "adaptive"}, "algorithm.clip must be a number"),
    "no such noise": ({"noise": "coloured"}, "algorithm.noise must be independent or correlated"),
    "without it": ({"noise": "independent", "bands": 2}, 'algorithm.bands must go with noise = "correlated"'),
    "cyclic alone": ({"noise": "independent", "sampling": "cyclic"}, "algorithm.sampling must not be cyclic here"),
}


@pytest.mark.parametrize("case", BAD_DPSGD)
def test_what_records_cannot_keep_is_refused_in_one_sentence(case: str) -> None:
    changes, sentence = BAD_DPSGD[case]
    with pytest.raises(BadValue, match=sentence):
        study({"kind": "dpsgd", "noise": "correlated", "rate": 0.25, "rounds": 8, **changes}, 1, "record")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"buffers": 2}, r"algorithm\.buffers must be left out with \[trust\], got 2"),
        ({"bands": 4}, r"algorithm\.bands must be at most 3 with \[trust\], .* got 4"),
        ({"bands": 3, "separation": 2}, r"algorithm\.bands must be at most 2 with \[trust\]"),
    ],
)
def test_shares_of_more_than_one_earlier_update_are_refused_for_fedavg(changes: dict[str, int], sentence: str) -> None:
    example = Example(
        algorithm={"kind": "fedavg", "noise": "correlated", "cohort": 4, **changes},
        noise=("noise_multiplier",),
        privacy={"unit": "client", "neighbours": "zero-out"},
        schedule={"rounds": 6},
        trust={"server": "trusted"},
    )
    with pytest.raises(BadValue, match=sentence):
        example.plan()


def test_a_plan_whose_clients_cannot_keep_its_pattern_is_refused() -> None:
    plan = study({"kind": "fedavg", "noise": "correlated", "cohort": 4, "bands": 2}, rounds=9)
    fewer = DataShape(**{**{f: getattr(plan.data, f) for f in plan.data.__slots__}, "clients": 8})
    method = plan.method
    assert isinstance(method, FedAvg)
    setup = type(plan.setup)(data=fewer, model=plan.model, target=plan.target)
    with pytest.raises(BadValue, match="the rounds after which a client is asked again"):
        method.check(setup)


@pytest.mark.parametrize(
    "rows",
    [
        ((2.0, 3.0), (0.5,)),
        ((2.0, 3.0), (1.0, math.nan)),
        ((2.0, 30.0), (1.0,)),
        ((2.5, 3.0), (1.0,)),
        ((2.0, 3.0), (0.7, 0.4), (0.5, 0.5)),
        ((2.0, 3.0), (0.5,), (1.0,)),
    ],
)
def test_a_matrix_that_is_none_is_refused(rows: Any) -> None:
    with pytest.raises(BadValue):
        correlation_of(rows, 10)

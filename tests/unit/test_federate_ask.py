"""Questions across sites: the bits of one process, behind masks and encrypted, and hardly more bytes than numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.federation.aggregator.measured import MeasuredJob
from fedveil.jobs.ask import open_questions
from fedveil.jobs.local import ReadTables
from fedveil.noise.entropy import Entropy
from fedveil.stages.ask.stage import Ask
from fedveil.stages.measured.plan import ASK, MeasuredPlan
from fedveil.stages.measuring import Measurer
from fedveil.stages.synthesise.table import table_of
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.wire.envelope import peek
from unit.federations import SITES, Trial
from unit.test_federate_synthesis import ByClient

QUESTIONS: list[dict[str, Any]] = [
    {"kind": "count", "name": "old", "where": ["age >= 50"], "per_site": True},
    {"kind": "count", "name": "red", "where": ["colour == red"]},
    {"kind": "mean", "name": "debt", "column": "debt"},  # its range is learned first
    {"kind": "words", "name": "colours", "column": "colour"},  # spelt in a second sum
    {"kind": "quantiles", "name": "ages", "column": "age", "range": [0.0, 100.0], "cells_in_range": 32},
]


BOTH = {"age": [0.0, 100.0], "debt": [0.0, 60.0]}
TWICE: list[dict[str, Any]] = [  # whose products are added up twice
    {"kind": "correlation", "name": "together", "columns": ["age", "debt"], "range": BOTH},
    {"kind": "regression", "name": "by age", "model": "linear", "column": "debt", "columns": ["age"], "range": BOTH},
]


def tables(folder: Path, trust: dict[str, Any], questions: list[dict[str, Any]]) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    age, colour = draw.integers(18, 80, 900), np.where(draw.random(900) < 0.4, "red", "blue")
    debt = draw.normal(30.0, 10.0, 900)
    rows = [f"{a},{d:.4g},{c},shop {k % 6}" for k, (a, d, c) in enumerate(zip(age, debt, colour, strict=True))]
    (folder / "shops.csv").write_text("\n".join(["age,debt,colour,shop", *rows]) + "\n")
    return {
        "data": {"source": str(folder / "shops.csv"), "client_column": "shop"},
        "clients": {"kind": "column"},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "trust": {"timeout": 60.0, "together": 2, **trust},
        "question": questions,
    }


def asked_at_sites(
    folder: Path, trust: dict[str, Any], questions: list[dict[str, Any]] = QUESTIONS
) -> tuple[Trial, bytes, bytes]:
    """The answers of three sites, and those of one process that has all records and the noise of the sites."""
    given = tables(folder, trust, questions)
    here = open_questions(ReadTables(given, folder, "trial"))
    rest = {key: value for key, value in given.items() if key not in ("data", "clients")}
    asked = open_questions(ReadTables(rest, folder, "trial"), at_sites=True)
    (folder / "trial").mkdir()
    trial = Trial(folder / "trial", here.here.train, cells=here.here, keeper="key_holder" in trust)
    noise: dict[str, Entropy] = {}

    def plan() -> MeasuredPlan:
        return MeasuredPlan.read((trial.folder / "out" / "plan.toml").read_text())

    def watch(now: Any) -> None:
        for site in SITES:
            guard: Any = trial.carrier.guards[site]
            (run,) = (trial.folder / site / "runs").iterdir()
            noise[site] = guard._record(run.name).entropy(plan(), guard.site.data, None)

    talk = trial.talk("trial", False, watch)
    content = MeasuredJob(study=asked.study, stage=ASK, settings=asked.settings, talk=talk).conduct()
    made, found = plan(), here.here
    by = Measurer(
        owner=found.train.owner,
        clients=found.train.clients,
        present=found.present,
        target=made.target,
        entropy=ByClient(noise),  # type: ignore[arg-type]
        trust=made.trust,
        names=[one.name for one in made.sums.measurements],
    )
    return trial, content, Ask().result(made.stated, made.sums, table_of(found), made.units, by)


def test_behind_masks_three_sites_answer_to_the_bits_of_one_process(tmp_path: Path) -> None:
    trial, content, alone = asked_at_sites(tmp_path, {"server": "secure-aggregation"})
    assert content == alone
    answers = {one["question"]["name"]: one["tables"][""] for one in json.loads(content)["answers"]}
    assert {row["colour"] for row in answers["colours"]} == {"red", "blue"}
    plan = MeasuredPlan.read((trial.folder / "out" / "plan.toml").read_text())
    numbers = 8 * sum(one.size for one in plan.sums.measurements)
    largest = max(sum(len(sent) for site, sent in trial.carrier.back if site == own) for own in SITES)
    assert largest <= 2 * plan.trust.hand * numbers  # a masked site sends the numbers of each of its clients


def test_encrypted_three_sites_answer_to_the_bits_of_one_process(tmp_path: Path) -> None:
    if not has_tenseal():
        pytest.skip("TenSEAL is not installed (fedveil[he])")
    trust = {"server": "homomorphic", "key_holder": "third-party"}
    _, content, alone = asked_at_sites(tmp_path, trust)
    assert content == alone


def test_what_is_added_up_twice_is_one_exchange(tmp_path: Path) -> None:
    trial, content, alone = asked_at_sites(tmp_path, {"server": "secure-aggregation"}, TWICE)
    assert content == alone
    assert all(one["tables"][""] for one in json.loads(content)["answers"])
    kinds = [(peek(e).kind, peek(e).round) for site, e in trial.carrier.sent if site == SITES[0]]
    assert kinds[:5] == [("hello", 0), ("propose", 0), ("roster", 0), ("masked", 0), ("finish", 0)]

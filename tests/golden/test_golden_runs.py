"""Old plans, ledgers, certificates and mechanism files keep their meaning, and a run repeats itself to the byte.

What is promised to users: docs/compatibility.md. How the files were made: golden_runs.py and provenance.json.
"""

import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from golden_runs import KEPT, MECHANISMS, NAMES, RUNS, SHARED, answer, arithmetic, run_again

from fedveil.certificate.certify import certify
from fedveil.data.load import load
from fedveil.ledger import Ledger, read_export
from fedveil.plan import read_plan, write_plan
from fedveil.study import read_study

FIRST_FORMAT = Path(__file__).parent / "first_format"  # books as they were made before the second format
PROVENANCE = json.loads((Path(__file__).parent / "provenance.json").read_text(encoding="utf-8"))
ANSWERS = json.loads((MECHANISMS / "answers.json").read_text(encoding="utf-8"))
same_arithmetic = pytest.mark.skipif(
    arithmetic() != PROVENANCE["arithmetic"], reason="floating point differs from the machine that froze the files"
)


def test_the_frozen_files_say_where_they_come_from() -> None:
    assert {"tool", "version", "command", "date", "arithmetic"} <= set(PROVENANCE)


def test_every_algorithm_and_every_way_to_add_up_is_there() -> None:
    assert len(NAMES) >= 40
    plans = [read_plan((RUNS / name / "plan.toml").read_text(encoding="utf-8")) for name in NAMES]
    found = {(plan.method.kind, plan.trust.server if plan.trust.shared else "none") for plan in plans}
    servers = ("none", "trusted", "secure-aggregation")
    assert found >= {(kind, server) for kind in ("hidden", "dpsgd", "fedavg") for server in servers}
    assert found >= {("simfl", "none"), ("hidden", "homomorphic"), ("fedavg", "homomorphic")}
    assert {plan.seeded for plan in plans} == {True, False}


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_is_read_and_written_to_the_same_bytes(name: str) -> None:
    text = (RUNS / name / "plan.toml").read_bytes()
    plan = read_plan(text.decode())
    assert write_plan(plan).encode() == text
    assert plan.hash == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_a_ledger_names_the_plan_it_charged_and_the_model_it_released(name: str) -> None:
    entries = read_export(RUNS / name / "ledger.jsonl")
    charge, release = entries[0], entries[-1]
    assert charge.payload["plan"] == hashlib.sha256((RUNS / name / "plan.toml").read_bytes()).hexdigest()
    assert release.payload["model"] == hashlib.sha256((RUNS / name / "model.npz").read_bytes()).hexdigest()


@same_arithmetic
@pytest.mark.parametrize("name", NAMES)
def test_a_run_certifies_to_the_same_bytes(name: str) -> None:
    text = (RUNS / name / "certificate.json").read_text(encoding="utf-8")
    assert certify(RUNS / name, json.loads(text)["version"]).text() == text


@same_arithmetic
@pytest.mark.parametrize("name", NAMES)
def test_a_run_repeats_itself_to_the_byte(name: str, tmp_path: Path) -> None:
    if "encrypted" in name and find_spec("tenseal") is None:
        pytest.skip("needs the extra fedveil[he]")
    if name == "shared-second":  # its books hold the first run already
        run_again("shared-first", tmp_path)
    made = run_again(name, tmp_path)
    exact = [file for file in KEPT if file != "metrics.json"]
    differing = [file for file in exact if _frozen(made / file) != _frozen(RUNS / name / file)]
    assert not differing
    now, then = (json.loads((folder / "metrics.json").read_text("utf-8")) for folder in (made, RUNS / name))
    assert _kept(then, now) == then  # a later version may say more; what was said keeps its name and its value


def _kept(then: object, now: object) -> object:
    """Of what is said now, what was said then."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {key: _kept(value, now[key]) for key, value in then.items() if key in now}
    return now


def _frozen(path: Path) -> bytes:
    """The bytes of a file, but for the version that a certificate states."""
    if path.name != "certificate.json":
        return path.read_bytes()
    return json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"version": ""}).encode()


@pytest.mark.parametrize("name", ["shared-first", "shared-second"])
@pytest.mark.parametrize("books", [RUNS / SHARED, FIRST_FORMAT / SHARED], ids=["now", "first format"])
def test_old_books_open_and_export_the_same_bytes(name: str, books: Path, tmp_path: Path) -> None:
    for file in (*books.parent.glob(f"{SHARED}*"), RUNS / "records.csv", RUNS / f"{name}.toml"):
        shutil.copyfile(file, tmp_path / file.name)
    (tmp_path / SHARED).chmod(0o600)  # a checkout does not keep it, and books that others can read are refused
    study = read_study(tmp_path / f"{name}.toml")
    assert study.source is not None
    loaded = load(study.source, study.split, study.held_out, base=tmp_path, generator=np.random.default_rng)
    assert loaded.raw is not None
    export = (RUNS / name / "ledger.jsonl") if books.parent == RUNS else FIRST_FORMAT / f"{name}.jsonl"
    with Ledger.open(tmp_path / SHARED, loaded.raw.fingerprint, older=loaded.train.fingerprint) as ledger:
        assert ledger.export(read_export(export)[0].run) == export.read_bytes()
        assert ledger.spent("final-model").epsilon > 4.0


@same_arithmetic
@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_mechanism_file_has_the_same_answer(name: str) -> None:
    assert answer(MECHANISMS / f"{name}.toml") == ANSWERS[name]


def test_every_mechanism_file_has_an_answer() -> None:
    assert {path.stem for path in MECHANISMS.glob("*.toml")} == set(ANSWERS)

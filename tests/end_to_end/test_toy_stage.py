"""A stage of 40 lines works in one process, in shares, masked, encrypted, at three real sites, killed and resumed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.core.errors import BadValue
from fedveil.jobs.measured import measure, measure_local
from fedveil.jobs.remote import How
from fedveil.ledger.entry import read_export
from fedveil.sums.homomorphic.library import has_tenseal

STAGE, SETTINGS = "toy_stage:NoisyMean", {"column": "age", "range": [0.0, 100.0]}
HERE = str(Path(__file__).parent)


def tables(folder: Path, **trust: Any) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    rows = [f"{age},{k % 6},{int(age > 50)}" for k, age in enumerate(draw.integers(18, 90, 1200))]
    (folder / "data.csv").write_text("\n".join(["age,shop,label", *rows]) + "\n")
    data = {"source": str(folder / "data.csv"), "target": "label", "classes": 2, "client_column": "shop"}
    found: dict[str, Any] = {
        "study": {"name": "mean age"},
        "data": data,
        "clients": {"kind": "column"},
        "prepare": {"numbers": ["age"]},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "replace-one"},
    }
    if trust:
        found["trust"] = {"timeout": 60.0, "together": 2, **trust}
    return found


def truth(folder: Path) -> float:
    return float(np.mean([float(line.split(",")[0]) for line in (folder / "data.csv").read_text().splitlines()[1:]]))


def check(folder: Path, data: Path) -> None:
    """The result is near the truth (6.5 deviations: a false alarm in 1e10), charged once, and certified."""
    found = json.loads((folder / "mean.json").read_text())
    assert found["noise"] < 0.5
    assert abs(found["mean"] - truth(data)) < 6.5 * 2 * found["noise"] + 1e-4
    assert [entry.kind for entry in read_export(folder / "ledger.jsonl")] == ["charge", "release"]
    rows = json.loads((folder / "certificate.json").read_text())["guarantees"]
    assert rows[0]["epsilon"] <= 1.0
    assert not (folder / "private" / "key").exists()


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", HERE)
    with fedveil.allowing(STAGE):
        yield


@pytest.mark.parametrize("server", ["central", "trusted", "secure-aggregation", "homomorphic"])
def test_in_one_process_under_every_adder(server: str, tmp_path: Path) -> None:
    if server == "homomorphic" and not has_tenseal():
        pytest.skip("TenSEAL is not installed")
    wanted = tables(tmp_path) if server == "central" else tables(tmp_path, server=server)
    measure(wanted, STAGE, SETTINGS, tmp_path / "out")
    check(tmp_path / "out", tmp_path)


@pytest.mark.parametrize("server", ["trusted", "homomorphic"])  # masked: the next test
def test_at_three_real_sites(server: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower carries messages between sites; it is not installed")
    if server == "homomorphic" and not has_tenseal():
        pytest.skip("TenSEAL is not installed")
    measure_local(tables(tmp_path, server=server), STAGE, SETTINGS, tmp_path / "out", 3)
    check(tmp_path / "out", tmp_path)


class Killed(BaseException):
    pass


def test_killed_after_its_sum_at_sites_it_goes_on_with_one_charge(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="Flower carries messages between sites; it is not installed")

    def stop(now: Any) -> None:
        raise Killed

    wanted = tables(tmp_path, server="secure-aggregation")
    with pytest.raises(Killed):
        measure_local(wanted, STAGE, SETTINGS, tmp_path / "out", 3, How(watch=stop))
    assert not (tmp_path / "out" / "mean.json").exists()
    measure_local(wanted, STAGE, SETTINGS, tmp_path / "out", 3, How(resume=True))
    check(tmp_path / "out", tmp_path)


KILL = """
import json, os, sys
import fedveil
from fedveil.engine import job
from fedveil.jobs.measured import measure
usual = job.write_atomically
def watched(path, data, **more):
    usual(path, data, **more)
    if path.name == sys.argv[2]:
        os._exit(9)
job.write_atomically = watched
with fedveil.allowing("toy_stage:NoisyMean"):
    measure(json.loads(sys.argv[1]), "toy_stage:NoisyMean", {"column": "age", "range": [0.0, 100.0]}, sys.argv[3],
            resume=len(sys.argv) > 4)
"""


@pytest.mark.parametrize("after", ["key", "ledger-path", "mean.json"])
def test_killed_in_one_process_it_goes_on_to_the_same_result(after: str, tmp_path: Path) -> None:
    wanted, out = json.dumps(tables(tmp_path, server="secure-aggregation")), str(tmp_path / "out")
    first = subprocess.run([sys.executable, "-c", KILL, wanted, after, out], capture_output=True, text=True)
    assert first.returncode in (0, 9), first.stderr
    if first.returncode == 9:
        again = subprocess.run(
            [sys.executable, "-c", KILL, wanted, "nothing", out, "resume"], capture_output=True, text=True
        )
        assert again.returncode == 0, again.stderr
    check(tmp_path / "out", tmp_path)


def test_code_that_nobody_allowed_is_not_imported_and_bad_settings_are_refused_before_the_charge(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadValue, match="allow it with"):
        measure(tables(tmp_path), "toy_stage:Other", SETTINGS, tmp_path / "out")
    with pytest.raises(BadValue, match="column must be one of age"):
        measure(tables(tmp_path), STAGE, {**SETTINGS, "column": "height"}, tmp_path / "out")
    assert not (tmp_path / "out" / "plan.toml").exists()

"""A run logged to a real MLflow database: what was released arrives there, and nothing private."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import kills
import pytest

LACKING = [name for name in ("mlflow", "alembic") if find_spec(name) is None]


def run_logged(folder: Path, *hidden: str) -> subprocess.CompletedProcess[str]:
    """Run a small study with --mlflow in a fresh process, for which the packages ``hidden`` do not exist."""
    study = kills.write_study(folder)
    start = f"import sys; sys.modules.update(dict.fromkeys({hidden!r})); from fedveil.cli import main; main()"
    settings = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'tracking.db'}"}
    words = [sys.executable, "-c", start, "run", str(study), "--out", str(folder / "out"), "--mlflow", "wards"]
    return subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.skipif(bool(LACKING), reason=f"not installed (the extras mlflow and flower): {LACKING}")
def test_a_run_is_logged_with_its_certificate(tmp_path: Path) -> None:
    done = run_logged(tmp_path)
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "tracking.db")) as store:
        params = dict(store.execute("SELECT key, value FROM params"))
        metrics = dict(store.execute("SELECT key, value FROM metrics"))
        ((name, status, place),) = store.execute("SELECT name, status, artifact_uri FROM runs").fetchall()
    certificate = json.loads((tmp_path / "out/certificate.json").read_text("utf-8"))
    test = json.loads((tmp_path / "out/metrics.json").read_text("utf-8"))["test"]
    for row in certificate["guarantees"]:
        assert metrics.get(f"epsilon.{row['adversary']}") == pytest.approx(row["epsilon"])
    assert metrics["test.accuracy"] == pytest.approx(test["accuracy"])
    assert (name, status, params["model.kind"]) == (certificate["study"], "FINISHED", "logistic")
    logged = {path.name: path.read_bytes() for path in Path(place.removeprefix("file://")).rglob("*") if path.is_file()}
    assert logged == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()}


def test_without_mlflow_nothing_is_charged(tmp_path: Path) -> None:
    done = run_logged(tmp_path, "mlflow")
    assert (done.returncode, done.stdout) == (2, "")
    assert "install the extra fedveil[mlflow]" in done.stderr
    assert not (tmp_path / "out").exists()

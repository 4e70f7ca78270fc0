"""Fresh processes killed at named steps of a run, of its release and of a resume: nothing lost, nothing left over.

Of every kind of job, a sample of what ``python tools/kill_jobs.py --kills 300`` does at random steps.
"""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kills
import pytest

from fedveil import run_study

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import kill_jobs

STEPS = {  # the other steps of a release: all kinds of jobs below
    "before there are books": ["os.link data.npz.sqlite"],
    "while a checkpoint is written, and before it is destroyed": [
        "os.rename checkpoint",
        "round 4",
        "os.remove checkpoint",
    ],
    "before the release, and in the resume": ["os.rename model.npz", "os.rename metrics.json"],
    "before the certificate": ["os.rename certificate.json", "os.rename report.html"],
}


@pytest.mark.parametrize("when", STEPS)
def test_killed_there_and_resumed(tmp_path: Path, when: str) -> None:
    study = kills.write_study(tmp_path)
    assert kills.killed_and_resumed(study, tmp_path / "out", STEPS[when]) == STEPS[when]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kill_jobs.Trials]:
    with kill_jobs.warm() as start:
        yield kill_jobs.Trials(start, start, tmp_path_factory.mktemp("killed"))


SAMPLED = ("run", "prepared", "personal", "tune", "profile", "evaluate", "synthesise", "personalise", "columns")


@pytest.mark.parametrize("name", SAMPLED)
def test_every_kind_of_job_is_finished_by_a_resume(trials: kill_jobs.Trials, name: str) -> None:
    """One charge, one release, the same noise, no key left, and the certificate there: after a kill at each turn."""
    trials.begin([name])
    steps, job = trials.steps[name], kill_jobs.JOBS[name]
    points = {0, len(steps) // 2, len(steps) - 1}
    for last in ("before INSERT", "os.rename ledger.jsonl", "os.remove key", "os.rename certificate.json"):
        points |= {place for place, step in enumerate(steps) if step == last}
    points |= {steps.index(f"os.rename {Path(end).name}") for end in job.ends[-2:]}
    for point in sorted(points):
        assert trials.killed(name, [point]) == [steps[point]]
    trials.killed(name, [len(steps) // 2, len(steps) // 3, len(steps) // 4])


DPSGD = """
[study]
seed = 3
[clients]
kind = "equal"
count = {clients}
[algorithm]
kind = "dpsgd"
rate = 0.3
rounds = 6

[algorithm.optimizer]
kind = "adam"
average = 0.9
[schedule]
step_size = 0.05
"""


@pytest.mark.parametrize(("clients", "points"), [(1, ["round 3", "os.rename checkpoint"]), (3, ["round 3"])])
def test_dpsgd_that_was_killed_goes_on_from_what_it_kept(tmp_path: Path, clients: int, points: list[str]) -> None:
    """It is killed after a round, and while it replaces a checkpoint; no round that was kept is computed again."""
    study, out, more = kills.write_study(tmp_path), tmp_path / "out", list[str]()
    study.write_text(kills.STUDY.partition("[schedule]")[0] + DPSGD.format(clients=clients), encoding="utf-8")
    for point in points:
        done = kills.started("run", study, "--out", out, "--quiet", *more, at=point)
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills.check_now(out)
        more = ["--resume"]
    told = {"again": list[int](), "whole": list[int]()}
    run_study(study, out, resume=True, watch=lambda now: told["again"].append(now.round))
    kills.check_end(out)
    run_study(study, tmp_path / "whole", watch=lambda now: told["whole"].append(now.round))
    assert told == {"again": [4, 5, 6], "whole": [1, 2, 3, 4, 5, 6]}
    assert (out / "model.npz").read_bytes() == (tmp_path / "whole" / "model.npz").read_bytes()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_what_a_run_writes_has_its_own_modes(tmp_path: Path, umask: int) -> None:
    """Nobody may change it but its owner, everybody may read what is public, and nobody the rest."""
    study, out = kills.write_study(tmp_path), tmp_path / "new" / "out"
    command = [sys.executable, "-m", "fedveil", "run", str(study), "--out", str(out), "--quiet"]
    done = subprocess.run(command, umask=umask, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path in (out.parent, out, *out.rglob("*")):
        private = path.name == "private" or path.parent.name == "private"
        wanted = (0o700 if private else 0o755) if path.is_dir() else (0o600 if private else 0o644)
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(wanted), path
    assert os.access(out / "report.html", os.R_OK)

"""A trial that is ended in any way leaves no process behind, and goes on to the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from flower_trials import DATA, released, simulated, text, trial_records, until

pytest.importorskip("flwr")

MARK = "FEDVEIL_TRIAL_MARK"


def marked(mark: str) -> list[int]:
    """The processes of this machine that inherited the mark of a trial."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def memories(out: Path) -> dict[str, bytes]:
    """What the guards remember of the run."""
    return {str(path): path.read_bytes() for path in out.glob("sites/*/runs/*/private/state")}


def local(study: Path, out: Path, mark: str, *more: str) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "fedveil", "deploy", "local", str(study), "--sites", "3", "--out", str(out), *more]
    with (out.parent / "log").open("ab") as log:
        env = {**os.environ, MARK: mark}
        return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def test_whatever_ends_a_trial_nothing_stays_and_it_is_resumed(tmp_path: Path) -> None:
    """Asked to end, and killed; each time while rounds are being answered."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(DATA + text(rounds=12))
    for place, number in enumerate((signal.SIGTERM, signal.SIGKILL)):
        process = local(study, out, f"{tmp_path}{place}", *(["--resume"] if place else []))
        before = memories(out)
        until(lambda p=process, b=before: p.poll() is not None or memories(out) != b)
        assert process.poll() is None, (tmp_path / "log").read_text()
        process.send_signal(number)
        process.wait(timeout=60)
        until(lambda place=place: not marked(f"{tmp_path}{place}"), limit=60.0, pause=0.1)
        assert not (out / "model.npz").exists()
    process = local(study, out, f"{tmp_path} last", "--resume")
    assert process.wait(timeout=300) == 0, (tmp_path / "log").read_text()
    assert not marked(f"{tmp_path} last")
    assert released(out).tobytes() == simulated(out, trial_records())[0].tobytes()

"""Processes that were started are stopped, also when whoever stops them is interrupted."""

import signal
import sys
import time
from pathlib import Path

import pytest

from fedveil.federation.carrying import processes as module
from fedveil.federation.carrying.processes import Processes

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


def test_an_impatient_user_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that heed no request take two minutes each to stop; interrupted after half a second, both are gone."""
    monkeypatch.setattr(module, "_GRACE", 120.0)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Processes(tmp_path / "home", tmp_path / "logs") as processes:
            started = [processes.start(name, [sys.executable, "-c", DEAF]) for name in ("one", "two")]
            for one in started:
                one.wait_for("deaf", 60.0)
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.5)
        assert time.monotonic() - began < 100.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not [one.name for one in started if one.alive]

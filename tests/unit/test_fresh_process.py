"""What a guard works out in a fresh process: results come back, errors say the same, and a death is an error."""

import math
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.core.importing import allowing, check_allowed
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.carrying.fresh_process import TURNS, FreshProcess, WorkFailed
from fedveil.federation.site.guard import Terms
from fedveil.ledger.books import Ledger
from unit.federations import SITES, Trial, study
from unit.plans import some_records

PRIVATE: dict[str, Any] = {"study": {"name": "trial"}}
CAPPED = Terms(accept=frozenset({"any"}), caps=(("final-model", 100.0, 0.1),), neighbours="zero-out")


@pytest.fixture
def fresh() -> Iterator[FreshProcess]:
    with FreshProcess() as one:
        yield one


def trial_in(folder: Path, fresh: FreshProcess, terms: Terms = CAPPED) -> Trial:
    """Three guards that work out costs in this process."""
    trial = Trial(folder, some_records(60, clients=9), terms=terms)
    for site in SITES:
        guard = trial.carrier.guards[site]
        guard.world = replace(guard.world, work_out=fresh)
        guard.idle = fresh.rest
    return trial


def test_one_process_answers_until_it_may_rest(fresh: FreshProcess) -> None:
    first = fresh(os.getpid)
    assert first != os.getpid()
    assert fresh(os.getpid) == first
    fresh.rest()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert fresh(os.getpid) != first


def test_an_error_keeps_its_kind_and_its_sentence(fresh: FreshProcess) -> None:
    with pytest.raises(BadValue, match=r"^epsilon must be positive, got -1\.$"):
        fresh(require, False, "epsilon", "be positive", -1)
    with pytest.raises(FedveilError, match=r"could not work out sqrt \(ValueError\)"):
        fresh(math.sqrt, -1.0)
    assert fresh(math.sqrt, 4.0) == 2.0  # by the same process


def test_what_is_allowed_here_is_allowed_there_and_nothing_else(fresh: FreshProcess) -> None:
    with allowing("my_net:make"):
        fresh(check_allowed, "my_net:make", "module")
    with pytest.raises(BadValue, match="allow it with --module"):
        fresh(check_allowed, "my_net:make", "module")


def test_what_code_prints_is_no_answer(fresh: FreshProcess, capfd: pytest.CaptureFixture[str]) -> None:
    assert fresh(os.system, "echo 0.001") == 0
    assert "0.001" in capfd.readouterr().err


def test_a_process_that_dies_is_an_error_and_the_next_one_works(fresh: FreshProcess) -> None:
    with pytest.raises(WorkFailed, match="work out abort has ended without an answer"):
        fresh(os.abort)
    os.kill(fresh(os.getpid), signal.SIGKILL)
    with pytest.raises(WorkFailed, match="work out sqrt has ended without an answer"):
        fresh(math.sqrt, 4.0)
    assert fresh(math.sqrt, 4.0) == 2.0


def test_a_request_to_stop_is_for_the_guard_alone(fresh: FreshProcess) -> None:
    """A service's processes are all asked to stop at once, and a plan must not be refused because of it."""
    process = fresh(os.getpid)
    os.kill(process, signal.SIGTERM)
    os.kill(process, signal.SIGINT)
    assert fresh(os.getpid) == process


def test_in_a_trial_as_many_work_at_once_as_there_are_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TURNS, str(tmp_path))
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        busy = [stack.enter_context(FreshProcess()) for _ in range(os.cpu_count() or 1)]
        assert len({one(os.getpid) for one in busy}) == len(busy)
        late = stack.enter_context(FreshProcess())
        waits = pool.submit(late, os.getpid)
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.5)
        for one in busy:
            one.rest()
        assert waits.result(timeout=60) not in (None, os.getpid())


def test_guards_charge_the_same_and_release_the_same(tmp_path: Path, fresh: FreshProcess) -> None:
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    there, here = trial_in(tmp_path / "there", fresh), Trial(tmp_path / "here", some_records(60, clients=9), CAPPED)
    released = [(trial.run(study(**PRIVATE)) / "model.npz").read_bytes() for trial in (there, here)]
    assert released[0] == released[1]
    assert charges(there) == charges(here)
    assert [count for count, _ in charges(there)] == [1, 1, 1]


def charges(trial: Trial) -> list[tuple[int, str]]:
    """How often each site was charged, and for what."""
    found = []
    for site in SITES:
        with Ledger.look(trial.folder / site / "ledger.sqlite") as ledger:
            costs = [repr(entry.payload["costs"]) for entry in ledger.entries() if entry.kind == "charge"]
        found.append((len(costs), "".join(costs)))
    return found


def test_a_cap_that_is_exceeded_there_refuses_the_plan_here(tmp_path: Path, fresh: FreshProcess) -> None:
    low = replace(CAPPED, caps=(("final-model", 1e-6, 1e-5),))
    trial = trial_in(tmp_path, fresh, low)
    with pytest.raises(SiteRefused, match="cap"):
        trial.run(study(**PRIVATE))
    assert [count for count, _ in charges(trial)] == [0, 0, 0]


def test_a_process_that_dies_refuses_the_plan_and_charges_nothing(tmp_path: Path, fresh: FreshProcess) -> None:
    trial = trial_in(tmp_path, fresh)
    for site in SITES:
        guard = trial.carrier.guards[site]
        guard.world = replace(guard.world, work_out=lambda function, *given, **named: fresh(os.abort))
    with pytest.raises(SiteRefused, match="does not take the charge"):
        trial.run(study(**PRIVATE))
    assert any("ended without an answer" in text for text in trial.notes)
    assert [count for count, _ in charges(trial)] == [0, 0, 0]
    for site in SITES:  # and it may be proposed again
        trial.carrier.guards[site].world = replace(trial.carrier.guards[site].world, work_out=fresh)
    assert (trial.run(study(**PRIVATE), resume=True) / "model.npz").exists()

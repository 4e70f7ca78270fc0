"""However often a release is stopped, and wherever: it ends in the same files, and no secret is left.

A stop is an exception at a named step: the n-th time that a file is renamed into place or removed. What a real death
leaves besides, half-written files, is tried on real processes in tests/end_to_end/test_kills.py.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import SITES, Killed, Trial, study
from plans import some_records

from fedveil import run_study
from fedveil.core.errors import AlreadyFinished, BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.federation.aggregator.conversation import begin
from fedveil.federation.site.record import clear_records
from fedveil.jobs.entry import Wish, profile_data
from fedveil.jobs.local import ENDS
from fedveil.jobs.remote import check_open
from fedveil.ledger.books import Ledger
from fedveil.noise.entropy import KEY_BYTES

TABLES: dict[str, dict[str, Any]] = {
    "model": {"kind": "logistic", "radius": 5.0},
    "privacy": {"epsilon": 5.0, "delta": 1e-5},
    "schedule": {"rounds": 3, "passes": 1, "batch": 20, "step_size": 0.5, "noise_std": 8.0},
}
FILES = {
    *("bundle.zip", "certificate.json", "ledger.jsonl", "metrics.json", "model.npz", "plan.toml"),
    *("private", "report.html"),
}


@contextmanager
def stopped(at: Callable[[str, Path], bool]) -> Iterator[list[str]]:
    """Stop before the first step that ``at`` chooses; all steps are listed."""
    steps: list[str] = []
    before = {"replace": os.replace, "unlink": os.unlink}

    def stepping(kind: str, place: int) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            path = Path(os.fsdecode(arguments[place]))
            if path.suffix != ".part":
                steps.append(f"{kind} {path.name}")
                if at(kind, path):
                    raise Killed
            return before[kind](*arguments, **named)

        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", stepping("replace", 1))
        patch.setattr(os, "unlink", stepping("unlink", 0))
        yield steps


def records(count: int = 60, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, 3)) / 4
    return records_from_arrays(rows, (rows[:, 0] > 0).astype(int), bound=1.0, classes=2)


def the_nth(number: int) -> Callable[[str, Path], bool]:
    counter = iter(range(10**6))
    return lambda kind, path: next(counter) == number


def test_a_run_stopped_before_every_step_and_resumed_keeps_no_secret(tmp_path: Path) -> None:
    with stopped(lambda kind, path: False) as steps:
        run_study(TABLES, tmp_path / "whole", data=records())
    assert {"replace ledger.jsonl", "unlink key", "unlink checkpoint", "replace certificate.json"} <= set(steps)
    for number in range(len(steps)):
        out = tmp_path / str(number)
        with stopped(the_nth(number)), pytest.raises(Killed):
            run_study(TABLES, out, data=records())
        run_study(TABLES, out, data=records(), resume=True)
        assert {path.name for path in out.iterdir()} == FILES, steps[number]
        assert {path.name for path in (out / "private").iterdir()} == KEPT, steps[number]
        with Ledger.look(out / "private" / "ledger.sqlite") as ledger:
            assert [entry.kind for entry in ledger.entries()] == ["charge", "release"], steps[number]
        with pytest.raises(AlreadyFinished, match="a job that has finished"):
            run_study(TABLES, out, data=records(), resume=True)


def test_a_profile_stopped_at_its_release_and_resumed_keeps_no_secret(tmp_path: Path) -> None:
    """The key goes, the certificate comes, and the profile is the one that was recorded."""
    draw = np.random.default_rng(0)
    rows = [f"{age},{'yes' if age > 50 else 'no'}" for age in draw.integers(20, 90, 200)]
    (tmp_path / "people.csv").write_text("\n".join(["age,ill", *rows]) + "\n")
    wish = Wish(data=str(tmp_path / "people.csv"), target="ill")
    with stopped(lambda kind, path: False) as steps:
        profile_data(wish, 2.0, tmp_path / "whole", ledger=tmp_path / "whole.sqlite")
    (tmp_path / ".fedveil" / "people.csv.sqlite").unlink()  # a link: the next profile has books of its own
    for number in range(steps.index("replace profile.json"), len(steps)):
        out, books = tmp_path / str(number), tmp_path / f"{number}.sqlite"
        with stopped(the_nth(number)), pytest.raises(Killed):
            profile_data(wish, 2.0, out, ledger=books)
        found = profile_data(wish, 2.0, out, ledger=books, resume=True)
        assert (out / "profile.json").read_text() == found.profile.text()
        assert {path.name for path in (out / "private").iterdir()} == {"books", "lock"}, steps[number]
        assert (out / "certificate.json").exists()
        assert (out / "profile.html").exists()
        with Ledger.look(books) as ledger:
            assert [entry.kind for entry in ledger.entries()] == ["charge", "release"], steps[number]
        with pytest.raises(AlreadyFinished):
            profile_data(wish, 2.0, out, ledger=books, resume=True)
        (tmp_path / ".fedveil" / "people.csv.sqlite").unlink()


def test_secrets_that_a_finished_run_kept_are_destroyed_by_resuming_it(tmp_path: Path) -> None:
    run_study(TABLES, tmp_path, data=records())
    (tmp_path / "private" / "key").write_bytes(bytes(16 + KEY_BYTES))
    run_study(TABLES, tmp_path, data=records(), resume=True)
    assert not (tmp_path / "private" / "key").exists()


def trial_in(folder: Path) -> Trial:
    folder.mkdir(exist_ok=True)
    return Trial(folder, some_records(60, clients=9))


WAYS: dict[str, dict[str, Any]] = {
    "trusted": {"server": "trusted", "dropouts": 2, "timeout": 60.0},
    "masked": {"server": "secure-aggregation", "dropouts": 1, "timeout": 60.0},
}
KEPT = {"books", "ledger.sqlite", "ledger.sqlite.head", "lock"}  # of a run: nothing secret
LEFT = {"aggregator", "ledger.sqlite", "ledger.sqlite.head", "lock", "members", "starts"}  # nothing secret
ROSTER = {"roster"}  # behind masks: the lists of public keys that the sites signed


@pytest.mark.parametrize("way", WAYS)
def test_an_aggregator_stopped_before_every_step_of_its_release(tmp_path: Path, way: str) -> None:
    """The guards are stopped with it: they share the process here."""
    wanted, trial, kept = study(trust=WAYS[way]), trial_in(tmp_path / "trial"), tmp_path / "kept"
    with stopped(lambda kind, path: path.name == "model.npz"), pytest.raises(Killed):
        trial.run(wanted)
    shutil.copytree(trial.folder, kept)
    with stopped(lambda kind, path: False) as steps:
        trial.restart_guards()
        trial.run(wanted, resume=True)
    for number in range(steps.index("replace model.npz"), len(steps), 1 if way == "trusted" else 4):
        shutil.rmtree(trial.folder)
        shutil.copytree(kept, trial.folder)
        trial.restart_guards()
        with stopped(the_nth(number)), pytest.raises(Killed):
            trial.run(wanted, resume=True)
        trial.restart_guards()
        out = trial.run(wanted, resume=True)
        again = trial.run(wanted, resume=True)  # as after a stop just before the certificate
        assert {path.name for path in (out / "private").iterdir()} - ROSTER == LEFT, steps[number]
        assert (again / "private" / "aggregator").read_bytes()[16:] == bytes(KEY_BYTES)
        for site in SITES:
            (folder,) = (trial.folder / site / "runs").iterdir()
            assert {path.name for path in (folder / "private").iterdir()} - ROSTER == {"state"}, steps[number]


@pytest.mark.parametrize("name", ["key", "memory", "proposal", "sums.key"])
def test_a_guard_that_died_with_the_end_of_a_run_on_its_disk_clears_up_when_it_starts(
    tmp_path: Path, name: str
) -> None:
    trial = trial_in(tmp_path)
    trial.run(study())
    (folder,) = (tmp_path / "north" / "runs").iterdir()
    for left in (folder / "private" / name, folder / ".model.npz.x1.part", folder / "private" / ".state.x2.part"):
        left.write_bytes(b"left")
    clear_records(tmp_path / "north")
    assert {path.name for path in (folder / "private").iterdir()} == {"state"}
    assert not list(folder.glob(".*"))


def test_a_guard_keeps_the_secrets_of_a_run_that_goes_on(tmp_path: Path) -> None:
    trial = trial_in(tmp_path)

    def watch(now: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.run(study(), watch=watch)
    clear_records(tmp_path / "north")
    (folder,) = (tmp_path / "north" / "runs").iterdir()
    assert {"proposal", "state"} <= {path.name for path in (folder / "private").iterdir()}
    trial.restart_guards()
    trial.run(study(), resume=True)


def test_a_resumed_run_must_have_its_plan_its_rows_and_its_seed(tmp_path: Path) -> None:
    def stop(now: Any) -> None:
        raise Killed

    def begin_again(out: Path, tables: dict[str, Any], data: Any) -> str:
        with pytest.raises(BadValue) as refused:
            run_study(tables, out, data=data, resume=True)
        return str(refused.value)

    out, seeded = tmp_path / "out", {**TABLES, "study": {"seed": 1}}
    with pytest.raises(Killed):
        run_study(TABLES, out, data=records(), watch=stop)
    told = begin_again(out, {**TABLES, "privacy": {"epsilon": 4.0, "delta": 1e-5}}, records())
    assert told.startswith("The study must be as it was when it began: privacy.epsilon was 5.0 and is 4.0 now.")
    assert "plan.seeded was False and is True" in begin_again(out, seeded, records())
    assert "data.records was 60 and is 80" in begin_again(out, TABLES, records(80))
    assert "The data must hold the rows that the run began with" in begin_again(out, TABLES, records(seed=1))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "plan.toml").write_text((out / "plan.toml").read_text() + "# by hand")
    assert "plan.toml was another text" in begin_again(tmp_path / "copy", TABLES, records())
    run_study(TABLES, out, data=records(), resume=True)

    with pytest.raises(Killed):
        run_study(seeded, tmp_path / "seeded", data=records(), watch=stop)
    told = begin_again(tmp_path / "seeded", {**TABLES, "study": {"seed": 2}}, records())
    assert "study.seed must be as it was when the run began" in told


def test_a_federated_run_that_never_began_is_begun_by_a_resume(tmp_path: Path) -> None:
    """A kill before its key was on the disk has charged nobody; afterwards the key stays what it was."""
    first = begin(tmp_path / "out", True, lambda count: b"a" * count)
    again = begin(tmp_path / "out", True, lambda count: b"b" * count)
    assert (again.run, again.key) == (first.run, first.key)
    assert again.number > first.number
    with pytest.raises(BadValue, match="--resume"):
        begin(tmp_path / "out", False, lambda count: b"c" * count)


@pytest.mark.parametrize("left", [None, "released", "deployment", "checkpoint", "gone"])
def test_a_federated_run_has_finished_when_nothing_is_left_here_and_at_its_sites(
    tmp_path: Path, left: str | None
) -> None:
    """What waits for a site, or the keys of a trial, is not left behind; what was being removed, is removed."""
    (tmp_path / "private").mkdir()
    for name in ("ledger.jsonl", *ENDS):
        (tmp_path / name).write_bytes(b"")
    if left is not None:
        (tmp_path / "private" / left).mkdir()
    if left in (None, "gone"):
        with pytest.raises(AlreadyFinished):
            check_open(tmp_path, True, ENDS)
        assert not (tmp_path / "private" / "gone").exists()
    else:
        check_open(tmp_path, True, ENDS)
    check_open(tmp_path, False, ENDS)

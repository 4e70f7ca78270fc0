"""Runs that are killed, race each other, or meet a full disk: there is never an output that was not charged.

The work is done by this same file as a program (``python test_crash.py JOB FOLDER SEED``) whose children are forked,
killed and counted; nothing is simulated. Seeds fix the moments chosen, not the machine's timing: every check holds at
any moment, so no false alarm is possible.
"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import FedveilError
from fedveil.engine.files import CannotWrite, write_atomically
from fedveil.engine.keeper import Checkpoint, load_checkpoint, save_checkpoint
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, CapExceeded, Cost
from fedveil.ledger.entry import parse_export
from fedveil.ledger.store import LedgerUnusable

ROUNDS = 6
WON, CAPPED, LOST = 0, 3, 4


def cost(epsilon: float) -> Cost:
    return Cost(adversary="final-model", unit="record", neighbours="replace-one", epsilon=epsilon, delta=0.0)


def cap(epsilon: float) -> Cap:
    return Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=epsilon, delta=0.0)


def books(folder: Path) -> Ledger:
    return Ledger.open(folder / "books", bytes.hex)


def fork(work: Callable[[], int]) -> int:
    child = os.fork()
    if child:
        return child
    code = LOST
    try:
        code = work()
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def one_run(folder: Path, name: str, tell: Callable[[], object]) -> None:
    """A run as it is meant to be written: charge, checkpoint, progress, release, and then the output."""
    with books(folder) as ledger:
        tell()
        ledger.charge(name, f"plan of {name}", [cost(0.1)], rounds=ROUNDS)
        tell()
        path = folder / f"{name}.checkpoint"
        old = load_checkpoint(path, plan=f"plan of {name}", run=name)
        state = np.zeros(50, dtype=np.int64) if old is None else old.state
        if old is not None and old.round:
            ledger.progress(name, old.round)
        for round_ in range(old.round + 1 if old else 1, ROUNDS + 1):
            state = state * 3 + round_
            save_checkpoint(path, Checkpoint(plan=f"plan of {name}", run=name, round=round_, state=state, counts={}))
            tell()
            ledger.progress(name, round_)
        model = state.tobytes()
        tell()
        ledger.release(name, sha256(model).hexdigest())
        tell()
        write_atomically(folder / f"{name}.model", model, 0o644)


def many_runs(folder: Path, worker: str, told: int) -> int:
    for number in range(10_000):
        if not (folder / f"{worker}{number}.model").exists():
            one_run(folder, f"{worker}{number}", lambda: os.write(told, b"."))
    return WON


def check_folder(folder: Path, known: set[str]) -> dict[str, int]:
    """Look at everything; export the runs that are not known yet."""
    with books(folder) as ledger:
        entries = ledger.entries()
        charged = {entry.run for entry in entries if entry.kind == "charge"}
        released = {entry.run: entry.payload["model"] for entry in entries if entry.kind == "release"}
        outputs = {path.stem: sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.model")}
        assert set(released) <= charged
        assert outputs.items() <= released.items()
        assert ledger.spent("final-model").epsilon == pytest.approx(len(charged) / 10)
        for run in set(released) - known:
            parse_export(ledger.export(run))
        known |= set(released)
    return {"outputs": len(outputs), "charges": len(charged), "entries": len(entries)}


def kill(folder: Path, seed: int) -> dict[str, int]:
    """Start two workers on the same books, kill each after a random number of steps, check, and go on there."""
    dice, known = random.Random(seed), set[str]()
    found: dict[str, int] = {}
    for _ in range(20):
        pipes = {worker: os.pipe() for worker in "ab"}
        children = [
            (fork(lambda worker=worker, told=told: many_runs(folder, worker, told)), heard)  # type: ignore[misc]
            for worker, (heard, told) in pipes.items()
        ]
        for child, heard in children:
            for _ in range(dice.randrange(1, 20)):
                assert os.read(heard, 1) == b"."
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        for pair in pipes.values():
            for end in pair:
                os.close(end)
        found = check_folder(folder, known)
    return found


def race(folder: Path, racers: int) -> dict[str, int]:
    """Many processes ask at once for what is enough for one; half the time the books do not even exist."""
    won = []
    for heat in range(4):
        place = folder / str(heat)
        place.mkdir()
        if heat % 2:
            with books(place) as ledger:
                ledger.charge("before", "plan", [cost(0.9)], rounds=1, caps=[cap(1.0)])
        most = 1.0 if heat % 2 else 0.1
        ready, go = os.pipe()

        def ask(number: int, place: Path = place, most: float = most, ready: int = ready, go: int = go) -> int:
            os.close(go)
            os.read(ready, 1)  # ends when the parent closes the pipe
            try:
                with books(place) as ledger:
                    ledger.charge(f"racer{number}", "plan", [cost(0.1)], rounds=1, caps=[cap(most)])
            except CapExceeded:
                return CAPPED
            return WON

        children = [fork(lambda number=number: ask(number)) for number in range(racers)]  # type: ignore[misc]
        os.close(ready)
        os.close(go)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(codes) == [WON] + [CAPPED] * (racers - 1), codes
        with books(place) as ledger:
            won.append(sum(entry.kind == "charge" and entry.run != "before" for entry in ledger.entries()))
        assert sorted(path.name for path in place.iterdir()) == ["books", "books.head"]
    return {"heats": len(won), "most": max(won), "least": min(won)}


def read(folder: Path, readers: int) -> dict[str, int]:
    """Readers look while a writer writes; each sees whole books that only grow."""
    books(folder).close()

    def look() -> int:
        seen = 0
        with books(folder) as ledger:
            while seen < 150:
                now = ledger.verify()
                assert now >= seen
                seen = now
        return WON

    children = [fork(look) for _ in range(readers)]
    with books(folder) as ledger:
        for number in range(50):
            ledger.charge(f"run{number}", "plan", [cost(0.1)], rounds=1)
            ledger.progress(f"run{number}", 1)
            ledger.release(f"run{number}", sha256(b"").hexdigest())
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [WON] * readers
    return {"readers": readers}


def inherit(folder: Path, _: int) -> dict[str, int]:
    """A forked child must open the books itself; its parent's stay usable."""
    with books(folder) as ledger:
        ledger.charge("parent", "plan", [cost(0.1)], rounds=1)

        def borrow() -> int:
            with pytest.raises(FedveilError, match="was opened by another process; open it again in this one"):
                ledger.charge("child", "plan", [cost(0.1)], rounds=1)
            ledger.close()
            with books(folder) as own:
                own.charge("child", "plan", [cost(0.1)], rounds=1)
            return WON

        assert os.waitstatus_to_exitcode(os.waitpid(fork(borrow), 0)[1]) == WON
        ledger.progress("parent", 1)
        return {"entries": ledger.verify()}


def full(folder: Path, _: int) -> dict[str, int]:
    """Write until nothing fits; what was acknowledged is there, the old file is whole, and room makes it go on."""
    precious = folder / "model.npz"
    write_atomically(precious, b"old" * 1000)
    with books(folder) as ledger:
        ledger.charge("run", "plan", [cost(0.1)], rounds=10_000)
        done = 1
        with pytest.raises(LedgerUnusable, match="cannot be used: "):  # noqa: PT012  (the loop is what fails)
            while ledger.progress("run", done, {"note": "x" * 2000}):
                done += 1
        assert ledger.verify() == done  # the charge, and every progress but the last
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            pass
    names = sorted(path.name for path in folder.iterdir())
    with pytest.raises(CannotWrite, match=r"There is no room for .*nothing was changed; free some space"):
        write_atomically(precious, b"new" * 1_000_000)
    assert precious.read_bytes() == b"old" * 1000
    assert sorted(path.name for path in folder.iterdir()) == names
    ballast.unlink()
    return {"entries": done}


def small_file(folder: Path, _: int) -> dict[str, int]:
    """The same where no file may grow beyond a limit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    return full(folder, 0)


def scarce(folder: Path, _: int) -> dict[str, int]:
    """New books where only so many bytes may be written, at every level: they are there whole, or not at all."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    made = 0
    for level in range(0, 80_000, 512):
        place = folder / str(level)
        place.mkdir()
        resource.setrlimit(resource.RLIMIT_FSIZE, (level, resource.RLIM_INFINITY))
        try:
            books(place).close()
        except LedgerUnusable:
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        made += (place / "books").exists()
        with books(place) as ledger:
            ledger.charge("run", "plan", [cost(0.1)], rounds=1)
            assert ledger.verify() == 1
        assert {path.name for path in place.iterdir()} == {"books", "books.head"}
    return {"made": made}


def crowded(folder: Path, _: int) -> dict[str, int]:
    """The same on a real file system with so many pages left."""
    made = 0
    for pages in range(64):
        place, ballast = folder / "place", folder / "ballast"
        place.mkdir()
        room = os.statvfs(folder)
        ballast.write_bytes(bytes(max(0, room.f_bavail - pages) * room.f_bsize))
        with suppress(LedgerUnusable):
            books(place).close()
        ballast.unlink()
        made += (place / "books").exists()
        with books(place) as ledger:
            ledger.charge("run", "plan", [cost(0.1)], rounds=1)
            assert ledger.verify() == 1
        assert {path.name for path in place.iterdir()} == {"books", "books.head"}
        shutil.rmtree(place)
    return {"made": made}


def go_on(folder: Path, _: int) -> dict[str, int]:
    """After the disk was full: the books open, and take entries again."""
    with books(folder) as ledger:
        before = ledger.verify()
        ledger.charge("later", "plan", [cost(0.1)], rounds=1)
        return {"entries": before, "now": ledger.verify()}


JOBS = {job.__name__: job for job in (kill, race, read, inherit, full, small_file, scarce, crowded, go_on)}


def program(*arguments: object, before: tuple[str, ...] = ()) -> dict[str, int]:
    command = [*before, sys.executable, "-W", "error", __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment_nothing_leaves_uncharged(tmp_path: Path, seed: int) -> None:
    found = program("kill", tmp_path, seed)
    assert found["outputs"] <= found["charges"]
    assert found["entries"] > 0


@pytest.mark.parametrize("racers", [2, 8])
def test_one_wins_the_last_of_a_budget(tmp_path: Path, racers: int) -> None:
    assert program("race", tmp_path, racers) == {"heats": 4, "most": 1, "least": 1}


def test_readers_are_not_disturbed(tmp_path: Path) -> None:
    assert program("read", tmp_path, 2) == {"readers": 2}


def test_a_forked_child_opens_its_own_books(tmp_path: Path) -> None:
    assert program("inherit", tmp_path, 0) == {"entries": 3}


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    found = program("small_file", tmp_path, 0)
    again = program("go_on", tmp_path, 0)
    assert again == {"entries": found["entries"], "now": found["entries"] + 1}


def test_new_books_on_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    assert program("scarce", tmp_path, 0)["made"] > 50


def mounted(tmp_path: Path) -> tuple[str, ...]:
    """The words before a program for which a file system of 400 kB is mounted there; it goes away with the program."""
    mount = ("unshare", "--mount", "--map-root-user") if os.getuid() else ("unshare", "--mount")
    shell = (*mount, "sh", "-c", 'mount -t tmpfs -o size=400k fedveil "$1" && shift && exec "$@"', "sh", str(tmp_path))
    if shutil.which("unshare") is None or subprocess.run([*shell, "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    return shell


def test_new_books_on_a_small_disk_that_is_nearly_full(tmp_path: Path) -> None:
    assert 10 < program("crowded", tmp_path, 0, before=mounted(tmp_path))["made"] < 64


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    assert program("full", tmp_path, 0, before=mounted(tmp_path))["entries"] > 10
    assert list(tmp_path.iterdir()) == []


if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))

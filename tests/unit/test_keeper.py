"""When a checkpoint is written, what is not kept, and which checkpoints a run refuses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import run_study
from fedveil.core.errors import BadValue
from fedveil.data.arrays import records_from_arrays
from fedveil.engine.keeper import Keeper
from fedveil.engine.system import Interrupted, Progress
from fedveil.stages.train.acting import Interim, Rounds


@dataclass
class Watch:
    """A clock that is set by hand; ``writing``: the seconds that pass before every look at it."""

    checkpoint_every: float = 5.0
    now: float = 100.0
    writing: float = 0.0

    def seconds(self) -> float:
        self.now += self.writing
        return self.now


def keeper(path: Path, watch: Watch) -> Keeper:
    return Keeper(path / "checkpoint", "mark", "run", Interim.read, watch)


def state(done: int) -> Interim:
    return Interim(done, (np.array([float(done)]), np.array([0.5, -1.0])), dropped=done)


def written(path: Path) -> int:
    """The round of the checkpoint on the disk; -1 if there is none."""
    found = keeper(path, Watch()).begun()
    return -1 if found is None else int(found.round)


def test_a_checkpoint_is_written_when_the_last_one_is_old_enough(tmp_path: Path) -> None:
    watch = Watch()
    mine, found = keeper(tmp_path, watch), []
    assert mine.begun() is None
    for done in range(1, 13):
        watch.now += 1.0
        mine.note(state(done))
        found.append(written(tmp_path))
    assert found == [-1] * 4 + [5] * 5 + [10] * 3
    mine.save()
    again = keeper(tmp_path, watch).begun()
    assert (again.round, again.position.tolist(), again.dropped) == (12, [12.0, 0.5, -1.0], 12)


def test_a_state_that_takes_long_to_write_is_written_rarely(tmp_path: Path) -> None:
    watch = Watch(writing=1.0)  # a second passes whenever the time is asked for
    mine = keeper(tmp_path, watch)
    mine.begun()
    rounds = set()
    for done in range(1, 101):
        mine.note(state(done))
        rounds.add(written(tmp_path))
    assert sorted(rounds) == [-1, *range(5, 101, 20)]


def test_every_round_is_kept_where_no_time_has_to_pass(tmp_path: Path) -> None:
    mine = keeper(tmp_path, Watch(checkpoint_every=0.0, writing=1.0))
    mine.begun()
    for done in range(1, 4):
        mine.note(state(done))
        assert written(tmp_path) == done


def test_rounds_alone_are_not_kept(tmp_path: Path) -> None:
    mine = keeper(tmp_path, Watch(checkpoint_every=0.0))
    mine.begun()
    mine.note(Rounds(3))
    mine.save()
    assert written(tmp_path) == -1
    assert mine.advice(9) == "Stopped; begin again with the same command and --resume."
    mine.note(state(4))
    mine.note(Rounds(5))  # a round that ends between two states that can be kept
    assert mine.advice(9) == "Stopped after round 4 of 9; go on with the same command and --resume."


TABLES: dict[str, dict[str, Any]] = {
    "model": {"kind": "logistic", "radius": 5.0},
    "privacy": {"epsilon": 5.0, "delta": 1e-5},
    "algorithm": {"kind": "dpsgd", "rounds": 6, "rate": 0.3, "optimizer": "adam"},
    "schedule": {"step_size": 0.1},
}


def given(seed: int) -> dict[str, Any]:
    rows = np.random.default_rng(0).normal(size=(60, 3)) / 4
    records = records_from_arrays(rows, (rows[:, 0] > 0).astype(int), np.zeros(60, dtype=int), bound=1.0, classes=2)
    return {"data": records, "study": {**TABLES, "study": {"seed": seed}}}


def stopped(out: Path, seed: int) -> Path:
    """Stop a run after its fourth round; return its checkpoint."""

    def stop(progress: Progress) -> None:
        if progress.round == 4:
            raise Interrupted("stopped by the test")

    with pytest.raises(Interrupted):
        run_study(out=out, watch=stop, **given(seed))
    return out / "private" / "checkpoint"


def test_a_damaged_checkpoint_is_refused_and_without_it_the_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    path = stopped(tmp_path / "a", 3)
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadValue, match=r"cut short or damaged.*Remove it to begin the run again"):
        run_study(out=tmp_path / "a", resume=True, **given(3))
    path.unlink()
    first: list[int] = []
    run_study(out=tmp_path / "a", resume=True, watch=lambda now: first.append(now.round), **given(3))
    run_study(out=tmp_path / "b", **given(3))
    assert first == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "a" / "model.npz").read_bytes() == (tmp_path / "b" / "model.npz").read_bytes()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path, other = stopped(tmp_path / "a", 3), stopped(tmp_path / "b", 4)
    mine = path.read_bytes()
    path.write_bytes(other.read_bytes())
    with pytest.raises(BadValue, match="must belong to"):
        run_study(out=tmp_path / "a", resume=True, **given(3))
    path.write_bytes(mine)
    rest: list[int] = []
    run_study(out=tmp_path / "a", resume=True, watch=lambda now: rest.append(now.round), **given(3))
    assert rest == [5, 6]
    assert not path.exists()

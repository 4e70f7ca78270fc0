"""Files of a run: every byte of a checkpoint counts, old files outlive failed writes, private means private."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.engine.files import CannotWrite, FolderInUse, private_folder, sole_use, write_atomically
from fedveil.engine.keeper import Checkpoint, load_checkpoint, save_checkpoint


def checkpoint(**other: Any) -> Checkpoint:
    given: dict[str, Any] = {"plan": "p1", "run": "a", "round": 7, "state": np.arange(-2, 3), "counts": {"dropped": 2}}
    return Checkpoint(**(given | other))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestCheckpoint:
    @pytest.mark.parametrize(
        "state",
        [
            np.array([], dtype=np.int64),
            np.array([-(2**63), 2**63 - 1, 0]),
            np.array([-0.0, 0.1, -1e308, 5e-324]),
            np.arange(10)[::2],
        ],
    )
    def test_what_is_saved_is_loaded_bit_for_bit(self, tmp_path: Path, state: Any) -> None:
        path = tmp_path / "checkpoint"
        save_checkpoint(path, checkpoint(state=state))
        found = load_checkpoint(path, plan="p1", run="a")
        assert found is not None
        assert (found.plan, found.run, found.round, dict(found.counts)) == ("p1", "a", 7, {"dropped": 2})
        assert found.state.dtype == state.dtype
        assert found.state.tobytes() == state.tobytes()
        assert mode(path) == 0o600

    def test_no_file_is_no_checkpoint(self, tmp_path: Path) -> None:
        assert load_checkpoint(tmp_path / "none", plan="p1", run="a") is None

    def test_every_truncation_is_refused(self, tmp_path: Path) -> None:
        path, whole = tmp_path / "checkpoint", checkpoint().to_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(BadValue, match="cut short or damaged"):
                load_checkpoint(path, plan="p1", run="a")

    def test_every_changed_byte_and_any_tail_is_refused(self) -> None:
        whole = checkpoint().to_bytes()
        for place in range(len(whole)):
            with pytest.raises(ValueError, match="cut short or damaged"):
                Checkpoint.from_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="cut short or damaged"):
            Checkpoint.from_bytes(whole + b"\0")

    def test_checkpoints_of_others_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        save_checkpoint(path, checkpoint())
        with pytest.raises(BadValue, match=r"must belong to plan p2, got 'p1'\. Take another folder"):
            load_checkpoint(path, plan="p2", run="a")
        with pytest.raises(BadValue, match="must belong to run b, got 'a'"):
            load_checkpoint(path, plan="p1", run="b")

    @pytest.mark.parametrize(
        "bad",
        [
            {"plan": ""},
            {"run": None},
            {"round": -1},
            {"round": 1.0},
            {"state": [1, 2]},
            {"state": np.zeros((2, 2))},
            {"state": np.zeros(2, dtype=np.float32)},
            {"state": np.array([np.nan])},
            {"counts": {"x": -1}},
            {"counts": {"x": 0.5}},
        ],
    )
    def test_senseless_values_are_refused_at_birth(self, bad: dict[str, Any]) -> None:
        with pytest.raises(BadValue, match=rf"Checkpoint\.{next(iter(bad))} must"):
            checkpoint(**bad)

    def test_the_state_is_a_copy_and_frozen(self) -> None:
        state = np.arange(3)
        kept = checkpoint(state=state)
        state[0] = 9
        assert kept.state[0] == 0
        with pytest.raises(ValueError, match="read-only"):
            kept.state[0] = 1


class TestAtomicWrites:
    @pytest.mark.parametrize("umask", [0o000, 0o077])
    def test_modes_do_not_depend_on_the_umask(self, tmp_path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            folder = private_folder(tmp_path / "private")
            write_atomically(folder / "key", b"k")
            write_atomically(tmp_path / "model.npz", b"m", 0o644)
            with sole_use(folder):
                pass
        finally:
            os.umask(before)
        assert [mode(path) for path in (folder, folder / "key", folder / "lock")] == [0o700, 0o600, 0o600]
        assert mode(tmp_path / "model.npz") == 0o644

    def test_a_replaced_file_takes_the_new_mode_and_content(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        path.chmod(0o666)
        write_atomically(path, b"new")
        assert (path.read_bytes(), mode(path)) == (b"new", 0o600)
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_is_replaced_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_bytes(b"theirs")
        (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
        write_atomically(tmp_path / "file", b"ours")
        assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
        assert not (tmp_path / "file").is_symlink()

    def test_what_cannot_be_written_is_said_and_leaves_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        for path in (tmp_path / "nowhere" / "file", tmp_path / "folder"):
            with pytest.raises(CannotWrite, match="cannot be written"):
                write_atomically(path, b"data")
        assert [path.name for path in tmp_path.iterdir()] == ["folder"]


class TestPrivateFolder:
    def test_an_open_folder_is_closed(self, tmp_path: Path) -> None:
        (tmp_path / "private").mkdir(mode=0o755)
        assert mode(private_folder(tmp_path / "private")) == 0o700

    def test_a_file_or_a_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        (tmp_path / "away").mkdir(mode=0o755)
        (tmp_path / "link").symlink_to(tmp_path / "away")
        with pytest.raises(BadValue, match="must be a folder, and a file is there"):
            private_folder(tmp_path / "file")
        with pytest.raises(BadValue, match="must be a folder of its own, and it is a link"):
            private_folder(tmp_path / "link")
        assert mode(tmp_path / "away") == 0o755
        with pytest.raises(CannotWrite, match="No such file"):
            private_folder(tmp_path / "nowhere" / "private")


HOLD = """
import signal, sys
from pathlib import Path
from fedveil.engine.files import sole_use
with sole_use(Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


class TestSoleUse:
    def test_the_other_process_is_named_and_its_death_frees_the_folder(self, tmp_path: Path) -> None:
        folder = private_folder(tmp_path / "private")
        command = [sys.executable, "-c", HOLD, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with (
                pytest.raises(FolderInUse, match=rf"{tmp_path} is in use by process {other.pid}; wait for it"),
                sole_use(folder),
            ):
                pass
            other.send_signal(signal.SIGKILL)
            other.wait(timeout=30)
        with sole_use(folder):
            assert (folder / "lock").read_text() == str(os.getpid())
        assert (folder / "lock").read_text() == ""

    def test_the_same_process_cannot_enter_twice_and_can_enter_again(self, tmp_path: Path) -> None:
        folder = private_folder(tmp_path / "private")
        with sole_use(folder), pytest.raises(FolderInUse), sole_use(folder):
            pass
        with sole_use(folder):
            pass

    def test_what_a_killed_write_left_is_cleared(self, tmp_path: Path) -> None:
        folder = private_folder(tmp_path / "private")
        for left in (folder / ".checkpoint.x1.part", tmp_path / ".model.npz.x2.part", tmp_path / "kept.part"):
            left.write_bytes(b"half")
        with sole_use(folder):
            names = {path.name for path in (*tmp_path.iterdir(), *folder.iterdir())}
        assert names == {"private", "lock", "kept.part"}

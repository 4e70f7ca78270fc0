"""The search for what a relay must not know can fail: whatever is planted is found, in every form."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from relay_search import leaks, written_by

MODEL = np.array([0.25, -1.7320508075688772, 0.0061803398874989, 3.3e-7])
UPDATE = np.array([-123456789012, 98765432109, 5, 17], dtype=np.int64)
FORMS: dict[str, Any] = {
    "model, bytes": MODEL.tobytes(),
    "model, single": MODEL.astype(np.float32).tobytes(),
    "model, printed": str(MODEL).encode(),
    "model, listed": repr(MODEL.tolist()).encode(),
    "one number of a model": b"norm=1.7320508075688772",
    "update, bytes": UPDATE.tobytes(),
    "update, floats": UPDATE.astype(np.float64).tobytes(),
    "update, hexadecimal": UPDATE.tobytes().hex().encode(),
    "update, printed": str(UPDATE).encode(),
    "one number of an update": b"total: -123456789012.0,",
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_what_is_planted_is_found(tmp_path: Path, form: str) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "clean.log").write_bytes(
        b"SuperNode ID: 12345678901298765432\nretrying in 0.25 seconds 17 5\n" + bytes(64)
    )
    assert leaks([tmp_path], [MODEL, UPDATE]) == []
    planted = tmp_path / "deep" / "er" / "planted.log"
    planted.write_bytes(b"2026-11-17T00:55:49.070Z INFO\n" + FORMS[form] + b"\nmore\n")
    assert leaks([tmp_path], [MODEL, UPDATE]) == [str(planted)]


def test_a_file_that_is_being_written_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with path.open("wb"):
        assert path in written_by([int(Path("/proc/self").readlink().name)])
    with path.open("rb"):
        assert path not in written_by([int(Path("/proc/self").readlink().name)])

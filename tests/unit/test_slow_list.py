"""What ``tests/slow.txt`` names is there: a test that was renamed must not slip back into the daily loop unnoticed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_slow_test_exists() -> None:
    lines = (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    assert len(listed) == len(set(listed)) > 50
    missing = []
    for name in listed:
        file, *inner = name.split("::")
        paths = [ROOT / file] if (ROOT / file).exists() else sorted(ROOT.glob(f"{file}*"))
        text = "".join(path.read_text(encoding="utf-8") for path in paths if path.is_file())
        found = all(re.search(rf"^\s*(?:def|class) {re.escape(part)}\b", text, re.MULTILINE) for part in inner)
        missing += [] if paths and (found or file.startswith("src/")) else [name]
    assert missing == []

"""The reference pages are made from the code: every command, every key."""

import importlib.util
from pathlib import Path

from fedveil.cli import GROUPS
from fedveil.data.spec import KEYS

ROOT = Path(__file__).parents[2]


def test_every_command_and_every_key_is_listed() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    commands, keys = reference.commands(), reference.study_keys()
    for modules in GROUPS.values():
        for names in modules.values():
            assert all(f"### `fedveil {name}`" in commands for name in names)
    assert all(f"| `{key}` |" in keys for key in KEYS)
    assert "`--resume`" in commands
    assert '## `[algorithm] kind = "dpsgd"`' in keys
    assert sorted(reference.PAGES) == ["reference/commands.md", "reference/study-keys.md"]

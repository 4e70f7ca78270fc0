"""Who knows one algorithm by name: its own folder, the list of algorithms, and three files that say why."""

import ast
import re
from pathlib import Path

from fedveil.algorithms.registry import KINDS

SOURCE = Path(__file__).parents[2] / "src" / "fedveil"
# A plan gives the schedule of a hidden method to those who ask; the game runs many hidden runs as one stack, dealt or
# drawn.
KNOWN = {"plan.py", "jobs/attack/batched_runs.py", "jobs/attack/drawn_runs.py"}
OURS = frozenset(KINDS)  # as they are at the start: another test may list one of its own
IMPORTED = re.compile(rf"fedveil\.algorithms\.(?:{'|'.join(sorted(OURS))})\b")


def names_one(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return any(map(IMPORTED.match, imports)) or not words.isdisjoint(OURS)


def test_only_a_few_files_name_one_algorithm() -> None:
    files = [path for path in SOURCE.rglob("*.py") if (SOURCE / "algorithms") not in path.parents]
    assert {path.relative_to(SOURCE).as_posix() for path in files if names_one(path)} == KNOWN

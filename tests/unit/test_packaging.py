"""What the package needs: every library that is imported is declared, for the core or for the extra it belongs to."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedveil"
DOORS = {  # what may import the libraries of an extra
    "figures": ("report/figures.py", "report/trade_off.py", "cli/figures.py"),
    "torch": ("models/torch/library.py",),
    "he": ("sums/homomorphic/library.py",),
    "onnx": ("release/to_onnx.py", "release/to_onnx.py"),
    "skops": ("release/to_sklearn.py",),
    "pandas": ("release/model.py", "jobs/ask.py"),
    "flower": ("federation/flower/",),
    "mlflow": ("release/tracking.py",),
    "nvflare": ("federation/nvflare/",),
    "studio": ("studio/", "cli/studio.py"),
    "sql": ("data/read_sql.py",),
}
LOADERS = {"import_module", "find_spec", "_library"}  # called with the name of a module
OTHER_NAMES = {
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
}  # modules that are not called as the package that brings them


def declared(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0].lower() for text in requirements}


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module))]):
                if name in LOADERS:
                    yield module


def test_every_library_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core, extras = declared(project["dependencies"]), project["optional-dependencies"]
    missing, seen = set[str](), set[str]()
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        behind = [extra for extra, doors in DOORS.items() if place.startswith(doors)]
        allowed = core.union(*(declared(extras[extra]) for extra in behind))
        for module in imported(path.read_text(encoding="utf-8")):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top == "fedveil":
                continue
            library = OTHER_NAMES.get(top, top).lower()
            seen.add(library)
            if library not in allowed:
                missing.add(f"{place} imports {library}")
    assert missing == set()
    assert seen >= {"numpy", "torch", "pyarrow", "duckdb", "tenseal", "onnx", "flwr", "starlette", "matplotlib"}

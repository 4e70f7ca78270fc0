"""``python -m benchmarks``: run all benchmark modules on one thread, print a table, write bench-out/results.json."""

import importlib
import json
import os
import pkgutil
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import benchmarks
from benchmarks import Row

OUT = Path("bench-out") / "results.json"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def collect(only: list[str]) -> dict[str, list[Row]]:
    """Rows by module; ``only`` names modules, none means all."""
    found: dict[str, list[Row]] = {}
    for module in sorted(pkgutil.iter_modules(benchmarks.__path__), key=lambda m: m.name):
        if module.name.startswith("_") or (only and module.name not in only):
            continue
        run = getattr(importlib.import_module(f"benchmarks.{module.name}"), "run", None)
        if run is not None:
            found[module.name] = run()
    return found


def main(only: list[str]) -> int:
    os.environ.update(dict.fromkeys(THREADS, "1"))  # before a module loads numpy
    results = collect(only)
    rows = [(module, row) for module, many in results.items() for row in many]
    widest = max((len(row.name) for _, row in rows), default=0)
    print(f"{'':{widest}}  {'bar':>9}  {'measured':>9}  verdict")
    for _, row in rows:
        print(
            f"{row.name:{widest}}  {row.bar:9.4g}  {row.measured:9.4g}  {'ok' if row.holds else 'MISSED'}  {row.detail}"
        )
    OUT.parent.mkdir(exist_ok=True)
    record = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": [{"module": module, **asdict(row), "holds": row.holds} for module, row in rows],
    }
    OUT.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0 if rows and all(row.holds for _, row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

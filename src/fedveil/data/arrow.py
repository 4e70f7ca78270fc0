"""The door to pyarrow, which is loaded when something is read: --help and accounting do without it."""

import importlib
from typing import Any


class _Library:
    """A module that is imported when its first name is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


arrow: Any = _Library("pyarrow")
compute: Any = _Library("pyarrow.compute")
csv: Any = _Library("pyarrow.csv")
parquet: Any = _Library("pyarrow.parquet")
dataset: Any = _Library("pyarrow.dataset")
ipc: Any = _Library("pyarrow.ipc")

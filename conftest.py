"""Modules that load Flower are looked at for examples only where it is installed."""

from importlib.util import find_spec

_LOADING = ("beating", "client_app", "executor", "orders", "relay")
collect_ignore = [] if find_spec("flwr") else [f"src/fedveil/federation/flower/{name}.py" for name in _LOADING]

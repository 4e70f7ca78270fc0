"""Modules that load Flower are looked at for examples only where it is installed."""

from importlib.util import find_spec

_LOADING = ("client_app", "server_app", "executor")
collect_ignore = [] if find_spec("flwr") else [f"src/fedveil/run/flower/{name}.py" for name in _LOADING]

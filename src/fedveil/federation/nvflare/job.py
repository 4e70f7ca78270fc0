"""What a consortium gives to its NVFlare: a job without code, and where the sockets of each machine are.

The job names two classes of each machine's own fedveil. It carries no code and no data, so the sites' policies need not
allow custom code for it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

PLACES: Final = "fedveil.json"  # in the folder local of a startup kit
TRIED: Final = "2.9."  # the versions of NVFlare that were tried
CONTROLLER: Final = "fedveil.federation.nvflare.carry.RelayController"  # what a server's class_allow_list must have
EXECUTOR: Final = "fedveil.federation.nvflare.carry.GuardExecutor"  # what a site's must have


def job_files(sites: Sequence[str]) -> dict[str, bytes]:
    """Return the files of the job, by their paths in its folder.

    >>> sorted(job_files(["north", "south"]))
    ['app/config/config_fed_client.json', 'app/config/config_fed_server.json', 'meta.json']
    """
    places = ["server", *sites]
    meta = {"name": "fedveil", "min_clients": len(sites), "resource_spec": {}, "deploy_map": {"app": places}}
    server = {"workflows": [{"id": "relay", "path": CONTROLLER, "args": {}}]}
    client = {"executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {}}}]}
    common = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}
    return {
        "meta.json": _text(meta),
        "app/config/config_fed_server.json": _text({**common, **server}),
        "app/config/config_fed_client.json": _text({**common, **client}),
    }


def places(**paths: str) -> bytes:
    """Return ``fedveil.json`` for one machine: ``guard`` at a site, ``relay`` and its ``group`` at the server."""
    return _text(paths)


def _text(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()

"""The app that is uploaded with a run, since Flower wants one. The relay and the nodes never load it."""

from pathlib import Path
from typing import Final

from fedveil.version import __version__

_PROJECT: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedveil-relay"
version = "{version}"
description = "Carries sealed envelopes between an aggregator and its sites."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedveil"

[tool.flwr.app.components]
serverapp = "fedveil_relay.server:app"
clientapp = "fedveil_relay.client:app"
"""


def write_app(folder: Path) -> Path:
    """Write the app into a new folder."""
    package = folder / "fedveil_relay"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(version=__version__), encoding="utf-8")
    (package / "__init__.py").write_text('"""The relay, from this machine\'s own fedveil."""\n', encoding="utf-8")
    # Flower looks for an assignment to the name. Its own executor at a site would load the client's side.
    sides = {
        "server": "app = None\n",
        "client": "from fedveil.federation.flower import client_app\n\napp = client_app.app\n",
    }
    for side, text in sides.items():
        (package / f"{side}.py").write_text(f'"""The {side} side."""\n\n{text}', encoding="utf-8")
    return folder

"""A whole deployment on this machine by NVFlare, for trials: its POC provisioning, server, clients; nothing stays."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, final

from fedveil.core.errors import FedveilError, NotAvailable
from fedveil.data.records import Records
from fedveil.federation.aggregator.relay import RelayCarrier
from fedveil.federation.carrying.processes import DidNotStart, Started, environment, free_port
from fedveil.federation.carrying.trial import TrialNetwork, trial_network
from fedveil.federation.nvflare.job import CONTROLLER, EXECUTOR, PLACES, places
from fedveil.stages.prepare.loading import Unprepared

ADMIN: Final = "admin@fedveil.org"
_SERVER: Final = "localhost"
_ORGANISATION: Final = "fedveil"
_BUILDERS: Final = (
    "workspace.WorkspaceBuilder",
    "static_file.StaticFileBuilder",
    "cert.CertBuilder",
    "signature.SignatureBuilder",
)
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
    "static_file.StaticFileBuilder": {"config_folder": "config"},
}
_COMMAND: Final = 180.0  # seconds for one of NVFlare's commands
_JOB: Final = 180.0  # seconds until the job's controller listens


class FlareFailed(FedveilError):
    """One of NVFlare's commands failed; the message holds its output."""


@final
@dataclass(slots=True)
class FlareNetwork(TrialNetwork):
    """NVFlare's server and a client for each site on the loopback interface."""

    server: list[Started] = field(default_factory=list)
    nodes: dict[str, Started] = field(default_factory=dict)

    def start(self) -> None:
        """Provision, start server and clients, and submit the job; its controller is the relay."""
        if find_spec("nvflare") is None:
            raise NotAvailable("NVFlare is not installed here; install it with: pip install 'fedveil[nvflare]'.")
        project = self.folder / "project.yml"
        project.write_text(_project(sorted(self.deployment.parties), free_port()), encoding="utf-8")
        self.flare("poc", "prepare", "-i", str(project), "--force")
        _equip(self.kit(_SERVER) / "local", CONTROLLER, relay=str(self.socket))
        self.server[:] = [self._start_kit(_SERVER, "flare-server")]
        for site in self.deployment.parties:
            self.start_node(site)
        self.submit(self.files / "nvflare" / "job")
        end = time.monotonic() + _JOB
        while not self.socket.exists():
            if time.monotonic() > end or not self.server[0].alive:
                raise DidNotStart(f"NVFlare's job did not start; its server wrote: {self.server[0].tail()}")
            time.sleep(0.1)

    def kit(self, name: str) -> Path:
        """Return the startup kit of the server, a client or the administrator."""
        return self.folder / "poc" / _ORGANISATION / "prod_00" / name

    def start_node(self, site: str) -> None:
        """Start the NVFlare client of a site, which finds the guard's socket in its own kit."""
        _equip(self.kit(site) / "local", EXECUTOR, guard=str(self.door(site)))
        self.nodes[site] = self._start_kit(site, f"node-{site}")

    def submit(self, job: Path) -> None:
        """Submit a job as the administrator; try again until the server accepts one."""
        end = time.monotonic() + _COMMAND
        while True:
            try:
                self.flare("job", "submit", "-j", str(job), "--startup-kit", str(self.kit(ADMIN)))
            except FlareFailed:
                if time.monotonic() > end or not self.server[0].alive:
                    raise
                time.sleep(1.0)
            else:
                return

    def flare(self, *words: str) -> str:
        """Run one of NVFlare's commands and return what it says."""
        done = subprocess.run(  # noqa: S603  the words are our own
            [str(Path(sys.executable).parent / "nvflare"), *words],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND,
            check=False,
        )
        if done.returncode != 0:
            raise FlareFailed(f"NVFlare says: {' '.join((done.stdout + done.stderr).split())}")
        return done.stdout

    @contextmanager
    def carrier(self) -> Iterator[RelayCarrier]:
        """Open the aggregator's connection to the sites; the job stands already."""
        carrier = RelayCarrier(self.socket, lambda: None)
        try:
            yield carrier
        finally:
            carrier.close()

    def _start_kit(self, name: str, called: str) -> Started:
        return self.processes.start(called, [str(self.kit(name) / "startup" / "sub_start.sh"), "--once"])

    def _environment(self) -> dict[str, str]:
        own = {"HOME": str(self.processes.home), "NVFLARE_POC_WORKSPACE": str(self.folder / "poc")}
        self.processes.home.mkdir(parents=True, exist_ok=True)
        return environment(self.processes.home, own)


def _equip(local: Path, allowed: str, **paths: str) -> None:
    """Do what a machine's operator does: say where the socket is, and allow the one class that a job may name."""
    (local / PLACES).write_bytes(places(**paths))
    resources = local / "resources.json"
    source = resources if resources.exists() else local / "resources.json.default"
    settings = json.loads(source.read_text(encoding="utf-8"))
    settings["class_allow_list"] = [*settings.get("class_allow_list", []), allowed]
    resources.write_text(json.dumps(settings), encoding="utf-8")


def _project(sites: Sequence[str], port: int) -> str:
    """Return NVFlare's project file, as JSON, which is YAML too."""
    org = {"org": _ORGANISATION}
    return json.dumps(
        {
            "api_version": 3,
            "name": _ORGANISATION,
            "description": "a trial on one machine",
            "participants": [
                {"name": _SERVER, "type": "server", "fed_learn_port": port, **org},
                *({"name": site, "type": "client", **org} for site in sites),
                {"name": ADMIN, "type": "admin", "role": "project_admin", **org},
            ],
            "builders": [
                {"path": f"nvflare.lighter.impl.{name}", "args": _ARGUMENTS.get(name, {})} for name in _BUILDERS
            ],
        }
    )


def local_flare(
    records: Records | Unprepared,
    sites: int,
    files: Path,
    keep: Path,
    now: datetime,
    options: Sequence[str],
    holder: bool = False,
    held: Records | None = None,
) -> AbstractContextManager[FlareNetwork]:
    """Start a trial on NVFlare; see :func:`fedveil.federation.carrying.trial.trial_network`."""
    return trial_network(FlareNetwork, records, sites, files, keep, now, options, "nvflare", holder, held)

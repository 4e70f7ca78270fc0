"""A whole deployment on this machine, for trials: real processes, TLS, registered nodes; nothing is left behind."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import final

import numpy as np

from fedveil.core.errors import require
from fedveil.data.records import Records
from fedveil.federation.aggregator.relay import RelayCarrier
from fedveil.federation.deploy.files import (
    HOLDER,
    LINK,
    RELAY,
    Deployment,
    Wanted,
    read_deployment,
    site_folders,
    write_deployment,
)
from fedveil.federation.flower.network import (
    Link,
    register,
    start_link,
    start_node,
    start_relay,
    submit,
    write_app,
    write_connection,
)
from fedveil.federation.flower.processes import Processes, Started, free_port
from fedveil.federation.site.data import write_dealt
from fedveil.stages.prepare.loading import Unprepared

_READY = "listening"
_SOCKET = "relay.sock"


def site_names(count: int) -> tuple[str, ...]:
    """Return names for the sites of a trial."""
    require(1 <= count <= 100, "--sites", "lie between 1 and 100", count)
    return tuple(f"site-{index + 1}" for index in range(count))


def deal_clients(clients: int, sites: Sequence[str]) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.int64]]"]:
    """Return the clients of each site; every client goes to one site, as evenly as possible."""
    hint = "Take fewer sites."
    require(clients >= len(sites), "--sites", f"not exceed the study's {clients} clients", len(sites), hint)
    parts = np.array_split(np.arange(clients, dtype=np.int64), len(sites))
    return dict(zip(sites, parts, strict=True))


@final
@dataclass(slots=True)
class LocalNetwork:
    """A link and its sites on the loopback interface; tests can stop and restart every process."""

    folder: Path
    processes: Processes
    files: Path
    deployment: Deployment
    link: Link
    records: Path
    guards: dict[str, Started]
    nodes: dict[str, Started]
    center: list[Started]

    def place(self, site: str) -> Path:
        """Return the folder of a site, or of the key holder."""
        if self.deployment.holder is not None and site == self.deployment.holder.name:
            return (self.files / HOLDER).absolute()
        return site_folders(self.files, [site])[site]

    def door(self, site: str) -> Path:
        """Return the path of a site's socket."""
        return self.folder / f"{site}.sock"

    @property
    def socket(self) -> Path:
        """The path of the relay's socket."""
        return self.folder / _SOCKET

    def start_center(self) -> None:
        """Start the link (which has forgotten all sites if it was killed), and the relay unless it still runs."""
        link = start_link(self.processes, self.link, (self.files / LINK).absolute())
        self.center[:] = [link, *self.center[1:]]
        write_connection(self.processes.home, self.link)
        if len(self.center) == 1 or not self.center[1].alive:
            self.start_relay()

    def start_relay(self) -> None:
        """Start the relay beside the link."""
        place = (self.files / RELAY).absolute()
        self.center[1:] = [start_relay(self.processes, self.link, place, self.socket)]

    def register_sites(self) -> None:
        """Register the sites' nodes at the link."""
        register(self.processes.home, self.link, self.deployment.node_keys)

    def start_guard(self, site: str, options: Sequence[str], program: Sequence[str] = ("-P", "-m", "fedveil")) -> None:
        """Start a site's guard as its operator would, or another program in its place to test faults."""
        place = self.place(site)
        words = [sys.executable, *program, "site", "--data", str(place / "data.npz")]
        words += ["--key", str(place / "identity.key"), "--records", str(self.records / site)]
        words += ["--socket", str(self.door(site)), *options]
        self.guards[site] = self.processes.start(f"guard-{site}", words)

    def start_holder(self) -> None:
        """Start the key holder as its operator would; do nothing if the deployment has none."""
        if self.deployment.holder is None:
            return
        name = self.deployment.holder.name
        words = [sys.executable, "-P", "-m", "fedveil", "keyholder", "--key", str(self.place(name) / "identity.key")]
        words += ["--records", str(self.records / name), "--socket", str(self.door(name)), "--accept", "any"]
        self.guards[name] = self.processes.start(f"holder-{name}", words)

    def start_node(self, site: str) -> None:
        """Start the node of a site."""
        place = self.place(site)
        self.nodes[site] = start_node(self.processes, self.link, site, place / "node.key", self.door(site))

    @contextmanager
    def carrier(self) -> Iterator[RelayCarrier]:
        """Open the aggregator's connection to the sites."""
        app = write_app(self.folder / "app")
        carrier = RelayCarrier(self.socket, lambda: submit(self.processes.home, self.link, app))
        try:
            yield carrier
        finally:
            carrier.close()


@contextmanager
def local_network(
    records: Records | Unprepared,
    sites: int,
    files: Path,
    keep: Path,
    now: datetime,
    options: Sequence[str],
    holder: bool = False,
    held: Records | None = None,
) -> Iterator[LocalNetwork]:
    """Start a link, guards (with ``options``) and nodes; the sites' own records are left in ``keep``.

    ``files``: the deployment's keys and the sites' data, created if absent and reused when a trial is resumed.
    ``holder``: with a third party that holds the key of encrypted sums. ``held``: what the clients keep from training.
    """
    names = site_names(sites)
    whole = records.train if isinstance(records, Unprepared) else records
    dealt = deal_clients(whole.clients, names)
    folder = Path(tempfile.mkdtemp(prefix="fedveil-"))  # a short path, because socket paths must be short
    try:
        port = free_port()
        if not files.exists():
            apart = HOLDER if holder else None
            door = str(folder / _SOCKET)
            wanted = Wanted(sites=names, host="127.0.0.1", port=port, inside=port, relay=door, days=2, holder=apart)
            write_deployment(files, wanted, now)
        deployment = read_deployment(files)
        same = set(deployment.cards) == set(names)
        require(same, "--sites", f"be as when the run began, {len(deployment.cards)}", sites)
        link = Link(name="local", host="127.0.0.1", port=port, authority=deployment.authority)
        with Processes(folder / "flower", folder / "logs") as processes:
            network = LocalNetwork(folder, processes, files, deployment, link, keep, {}, {}, [])
            for site in names:
                write_dealt(network.place(site) / "data.npz", records, dealt[site], held)
                network.start_guard(site, options)
            network.start_holder()
            network.start_center()
            network.register_sites()
            for site in deployment.parties:
                network.start_node(site)
            for site in deployment.parties:
                network.guards[site].wait_for(_READY, 60.0)
            yield network
    finally:
        shutil.rmtree(folder, ignore_errors=True)

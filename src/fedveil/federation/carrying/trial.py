"""The sites of a trial on this machine, whichever engine carries their messages: keys, dealt data, running guards."""

import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices
from fedveil.data.records import Records
from fedveil.federation.aggregator.relay import RelayCarrier
from fedveil.federation.carrying.fresh_process import TURNS
from fedveil.federation.carrying.processes import Processes, Started, free_port
from fedveil.federation.deploy.files import (
    HOLDER,
    Deployment,
    Engine,
    Wanted,
    read_deployment,
    site_folders,
    write_deployment,
)
from fedveil.federation.site.data import write_dealt
from fedveil.stages.prepare.loading import Unprepared

_READY: Final = "listening"  # what a guard writes when it can be asked
_SOCKET: Final = "relay.sock"


def site_names(count: int) -> tuple[str, ...]:
    """Return names for the sites of a trial."""
    require(1 <= count <= 100, "--sites", "lie between 1 and 100", count)
    return tuple(f"site-{index + 1}" for index in range(count))


def deal_clients(clients: int, sites: Sequence[str]) -> dict[str, Indices]:
    """Return the clients of each site; every client goes to one site, as evenly as possible."""
    hint = "Take fewer sites."
    require(clients >= len(sites), "--sites", f"not exceed the study's {clients} clients", len(sites), hint)
    parts = np.array_split(np.arange(clients, dtype=np.int64), len(sites))
    return dict(zip(sites, parts, strict=True))


@dataclass(slots=True)
class TrialNetwork(ABC):
    """The guards of a trial and what reaches them; tests can stop and restart every process."""

    folder: Path
    processes: Processes
    files: Path
    deployment: Deployment
    records: Path
    guards: dict[str, Started] = field(default_factory=dict)

    @abstractmethod
    def start(self) -> None:
        """Start all that carries messages between the aggregator and the guards."""

    @abstractmethod
    def carrier(self) -> AbstractContextManager[RelayCarrier]:
        """Open the aggregator's connection to the sites."""

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

    def start_guard(self, site: str, options: Sequence[str], program: Sequence[str] = ("-P", "-m", "fedveil")) -> None:
        """Start a site's guard as its operator would, or another program in its place to test faults."""
        place = self.place(site)
        words = [sys.executable, *program, "site", "--data", str(place / "data.npz")]
        words += ["--key", str(place / "identity.key"), "--records", str(self.records / site)]
        words += ["--socket", str(self.door(site)), *options]
        self.guards[site] = self.processes.start(f"guard-{site}", words, {TURNS: str(self.folder)})

    def start_holder(self) -> None:
        """Start the key holder as its operator would; do nothing if the deployment has none."""
        if self.deployment.holder is None:
            return
        name = self.deployment.holder.name
        words = [sys.executable, "-P", "-m", "fedveil", "keyholder", "--key", str(self.place(name) / "identity.key")]
        words += ["--records", str(self.records / name), "--socket", str(self.door(name)), "--accept", "any"]
        self.guards[name] = self.processes.start(f"holder-{name}", words, {TURNS: str(self.folder)})


Network = TypeVar("Network", bound=TrialNetwork)


@contextmanager
def trial_network(
    make: Callable[[Path, Processes, Path, Deployment, Path], Network],
    records: Records | Unprepared,
    sites: int,
    files: Path,
    keep: Path,
    now: datetime,
    options: Sequence[str],
    engine: Engine = "flower",
    holder: bool = False,
    held: Records | None = None,
) -> Iterator[Network]:
    """Start guards (with ``options``) and what carries their messages; the sites' own records are left in ``keep``.

    ``make``: the network of an engine. ``files``: the deployment's keys and the sites' data, created if absent and
    reused when a trial is resumed. ``holder``: with a third party that holds the key of encrypted sums. ``held``: what
    the clients keep from training.
    """
    names = site_names(sites)
    whole = records.train if isinstance(records, Unprepared) else records
    dealt = deal_clients(whole.clients, names)
    folder = Path(tempfile.mkdtemp(prefix="fedveil-"))  # a short path, because socket paths must be short
    try:
        if not files.exists():
            port, door, apart = free_port(), str(folder / _SOCKET), HOLDER if holder else None
            wanted = Wanted(
                sites=names, host="127.0.0.1", port=port, inside=port, relay=door, days=2, holder=apart, engine=engine
            )
            write_deployment(files, wanted, now)
        deployment = read_deployment(files)
        same = set(deployment.cards) == set(names)
        require(same, "--sites", f"be as when the run began, {len(deployment.cards)}", sites)
        require(deployment.engine == engine, "--engine", f"be as when the run began, {deployment.engine}", engine)
        with Processes(folder / "home", folder / "logs") as processes:
            network = make(folder, processes, files, deployment, keep)
            for site in names:
                write_dealt(network.place(site) / "data.npz", records, dealt[site], held)
                network.start_guard(site, options)
            network.start_holder()
            network.start()
            for site in deployment.parties:
                network.guards[site].wait_for(_READY, 60.0)
            yield network
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""A whole deployment on this machine by Flower, for trials: real processes, TLS, registered nodes; nothing stays."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import final

from fedveil.data.records import Records
from fedveil.federation.aggregator.relay import RelayCarrier
from fedveil.federation.carrying.processes import Started, free_port
from fedveil.federation.carrying.trial import TrialNetwork, trial_network
from fedveil.federation.deploy.files import LINK, RELAY
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.network import (
    register,
    start_link,
    start_node,
    start_relay,
    submit,
    write_app,
    write_connection,
)
from fedveil.stages.prepare.loading import Unprepared


@final
@dataclass(slots=True)
class LocalNetwork(TrialNetwork):
    """A link, its relay and the sites' nodes on the loopback interface."""

    link: Link = field(init=False)
    nodes: dict[str, Started] = field(default_factory=dict)
    center: list[Started] = field(default_factory=list)

    def __post_init__(self) -> None:
        port = free_port(self.deployment.inside)  # a resumed trial's may be taken by now
        self.link = Link(name="local", host="127.0.0.1", port=port, authority=self.deployment.authority)

    def start(self) -> None:
        """Start the link, the relay and the nodes."""
        self.start_center()
        self.register_sites()
        for site in self.deployment.parties:
            self.start_node(site)

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


def local_network(
    records: Records | Unprepared,
    sites: int,
    files: Path,
    keep: Path,
    now: datetime,
    options: Sequence[str],
    holder: bool = False,
    held: Records | None = None,
) -> AbstractContextManager[LocalNetwork]:
    """Start a trial on Flower; see :func:`fedveil.federation.carrying.trial.trial_network`."""
    return trial_network(LocalNetwork, records, sites, files, keep, now, options, holder=holder, held=held)

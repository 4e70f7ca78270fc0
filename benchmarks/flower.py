"""What a round costs across real processes, beside the engine's own floor: an empty app with the same messages.

All on this machine, over TLS with registered nodes. The floor is measured in the same network, with guards that send
back what they get; for comparison also with Flower's own executor, which starts a process for every message.
"""

import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import Row
from fedveil.data.records import Records
from fedveil.engine.system import Progress
from fedveil.federation.aggregator.federate import Held
from fedveil.federation.aggregator.post import PAUSE, Carrier
from fedveil.federation.flower.local import LocalNetwork, local_network
from fedveil.federation.flower.network import supernode_command
from fedveil.federation.flower.processes import free_port
from fedveil.federation.site.socket import listening
from fedveil.jobs.remote import federated
from fedveil.planning.study import study_of
from fedveil.wire import frames

ROUNDS = 12
OPTIONS = ["--accept", "any", "--trials"]
STUDY = {
    "study": {"seed": 1},
    "model": {"kind": "logistic", "radius": 5.0},
    "privacy": {"epsilon": 5.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model"},
    "schedule": {"rounds": ROUNDS, "passes": 1},
    "trust": {"server": "trusted", "timeout": 120.0},
}


def run() -> list[Row]:
    rows = []
    for sites in (2, 3, 5):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with local_network(
                some(), sites, folder / "files", folder / "sites", datetime.now(UTC), OPTIONS
            ) as network:
                ours = study_rounds(network, folder / "out")
                floor = empty_rounds(network)
                theirs = empty_rounds(network, own=False) if sites == 2 else None
        hour, thousand = 3600 / median(ours), 1000 * median(ours) / 3600
        detail = f"{median(ours):.2f} s against {median(floor):.2f} s; {hour:.0f} rounds an hour, "
        detail += f"1000 rounds in {thousand:.1f} h"
        rows.append(Row(f"flower: a round over the floor, {sites} sites", 1.3, median(ours) / median(floor), detail))
        if theirs is not None:
            detail = f"Flower's own executor, an empty app: {median(theirs):.2f} s a round"
            rows.append(Row("flower: a round over Flower's own floor", 1.3, median(ours) / median(theirs), detail))
    return rows


def some() -> Records:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(600, 20))
    rows /= 1.01 * np.linalg.norm(rows, axis=1)[:, None]
    owner = (np.arange(600) * 6 // 600).astype(np.int64)
    return Records(features=rows, targets=(rows[:, 0] > 0) * 1.0, owner=owner, clients=6, bound=1.0, classes=2)


def study_rounds(network: LocalNetwork, out: Path) -> list[float]:
    """Seconds of every round but the first."""
    times: list[float] = []

    def watch(_: Progress) -> None:
        times.append(time.monotonic())

    with network.carrier() as carrier:
        study = study_of(STUDY, base=Path(), data_given=True)
        federated(study, out, network.deployment, carrier, Held(), watch=watch)
    return np.diff(times).tolist()


def empty_rounds(network: LocalNetwork, own: bool = True) -> list[float]:
    """The same messages to guards that do nothing; ``own``: with the site's executor, else with Flower's."""
    for guard in network.guards.values():
        guard.stop()
    if not own:
        for site, node in network.nodes.items():
            node.stop()
            command = supernode_command(network.link, network.place(site) / "node.key", network.door(site), free_port())
            network.nodes[site] = network.processes.start(f"plain-{site}", command)
            network.nodes[site].wait_for("SuperNode ID", 60.0)
    with echoes(network), network.carrier() as carrier:
        while len(carrier.online()) < len(network.nodes):
            time.sleep(0.2)
        empty_round(carrier)
        return [empty_round(carrier) for _ in range(ROUNDS - 1)]


def empty_round(carrier: Carrier) -> float:
    began = time.monotonic()
    waiting = {carrier.push(address, bytes(600), 60.0) for address in carrier.online().values()}
    while waiting := waiting - set(carrier.pull(sorted(waiting))):
        time.sleep(PAUSE)
    return time.monotonic() - began


@contextmanager
def echoes(network: LocalNetwork) -> Iterator[None]:
    doors = [listening(network.door(site)) for site in network.nodes]
    opened = [door.__enter__() for door in doors]
    for door in opened:
        threading.Thread(target=echo, args=(door,), daemon=True).start()
    try:
        yield
    finally:
        for manager in doors:
            manager.__exit__(None, None, None)


def echo(door: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = door.accept()
            with connection, suppress(OSError):
                frames.send(connection, frames.receive(connection))

"""What a round costs across real sites: seconds, CPU seconds, memory and bytes, for 3, 10, 25 and 50 sites.

Every site is a guard and a node of its own, over TLS, on this machine; CPU seconds are those of all processes together.
Every model is compared with that of a simulation. ``python -m benchmarks.sites 3 10`` measures these numbers of sites
alone; ``--masked 64`` and ``--open 1200`` are single runs of so many rounds, with the start of all processes.
"""

import argparse
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import Row
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.carrying.trial import deal_clients
from fedveil.federation.flower.local import LocalNetwork, local_network
from fedveil.federation.site.socket import listening
from fedveil.jobs.remote import federated
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.planning.study import study_of
from fedveil.wire import frames

ROUNDS = 16
SITES = (3, 10, 25, 50)
LOST = 5  # after this round a site is halted where the rounds without it are measured
SEED = 1
OPEN: Mapping[str, Any] = {"server": "trusted"}
MASKED: Mapping[str, Any] = {"server": "secure-aggregation", "dropouts": 0}
TOLERANT: Mapping[str, Any] = {"server": "secure-aggregation", "dropouts": 2}
MEGABYTES = 60.0  # of a site
A_MINUTE = 20  # rounds, at the largest number of sites
GUARD = ["--accept", "any", "--trials"]  # one person is all the operators
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Counted:
    """A carrier that counts the bytes of envelopes that pass it."""

    carrier: Carrier
    sent: int = 0
    received: int = 0
    _names: set[str] = field(default_factory=set)

    def online(self) -> Mapping[str, str]:
        return self.carrier.online()

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        self.sent += len(envelope)
        return self.carrier.push(address, envelope, seconds)

    def pull(self, names: list[str], *more: Any) -> Mapping[str, bytes]:
        found = self.carrier.pull(names, *more)
        self.received += sum(map(len, found.values()))
        return found


def records_of(clients: int, features: int = 30, each: int = 20) -> Records:
    """Records of so many clients, so many of each, in the unit ball."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(each * clients, features))
    rows /= 1.01 * np.linalg.norm(rows, axis=1)[:, None]
    owner = np.repeat(np.arange(clients), each).astype(np.int64)
    return Records(features=rows, targets=(rows[:, 0] > 0) * 1.0, owner=owner, clients=clients, bound=1.0, classes=2)


def study(trust: Mapping[str, Any], rounds: int = ROUNDS) -> dict[str, Any]:
    """A linear model of 31 parameters."""
    return {
        "study": {"seed": SEED},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 5.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model"},
        "schedule": {"rounds": rounds, "passes": 1},
        "trust": {"timeout": 600.0, **trust},
    }


def family(root: int) -> Iterator[int]:
    """The process ids of a process and of all that it started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += parents.get(one, [])


def cpu_seconds(pids: list[int]) -> float:
    """The CPU time of these processes so far."""
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def megabytes(pids: list[int], key: str = "Pss") -> float:
    """The memory of these processes; pages that several share are counted once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return total / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the rounds of one run took; ``longest``: of all, the one in which a site was lost among them.

    Memory is that of a guard and its node after the last round.
    """

    seconds: float
    longest: float
    cpu: float
    site_megabytes: float
    resident_megabytes: float
    bytes_a_round: float


def simulated(folder: Path, records: Records, gone: frozenset[int] = frozenset()) -> bool:
    """Whether a run released the model of the same plan in one process; ``gone``: clients that were lost in the run."""
    plan = read_plan((folder / "plan.toml").read_text(encoding="utf-8"))
    model = train(
        plan, records, Entropy.from_seed(SEED), fails=lambda turn, client: turn >= LOST and client in gone
    ).model
    with np.load(folder / "model.npz") as arrays:
        return bool(arrays["parameters"].tobytes() == model.tobytes())


@contextmanager
def halting(network: LocalNetwork, site: str) -> Iterator[Callable[[int], None]]:
    """Give what halts and wakes a site, as a machine that is cut off: nothing is closed, and nobody is told."""
    pids = [pid for one in (network.guards[site], network.nodes[site]) for pid in family(one.process.pid)]

    def everywhere(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    try:
        yield everywhere
    finally:
        everywhere(signal.SIGCONT)


def measure(
    network: LocalNetwork, out: Path, trust: Mapping[str, Any], rounds: int = ROUNDS, lose: str | None = None
) -> Measured:
    """Run a study on a network that stands, and return what its rounds took, but for the first.

    ``lose``: a site that is halted in the middle; then only the rounds after the one that has lost it are counted.
    """
    times: list[float] = []
    spent: list[float] = []
    held: list[float] = []
    sites, count = pids_of(network), len(network.guards)
    everyone = [os.getpid(), *(pid for one in network.processes.started for pid in family(one.process.pid))]
    first = 1 if lose is None else LOST + 1

    def watch(_: Any) -> None:
        times.append(time.monotonic())
        if len(times) in (first, rounds):
            spent.append(cpu_seconds(everyone))
        if len(times) == rounds:
            held.extend(megabytes(sites, key) / count for key in ("Pss", "Rss"))
        if lose is not None and len(times) in (LOST, rounds):  # the end of the run waits for every site
            send(signal.SIGSTOP if len(times) == LOST else signal.SIGCONT)

    with network.carrier() as carrier, ExitStack() as stack:
        send = (lambda _: None) if lose is None else stack.enter_context(halting(network, lose))
        counted = Counted(carrier)
        found = study_of(study(trust, rounds), base=Path(), data_given=True)
        federated(found, out, network.deployment, counted, Held(), watch=watch)
    return Measured(
        seconds=median(np.diff(times[first - 1 :])),
        longest=max(np.diff(times)),
        cpu=(spent[-1] - spent[0]) / (len(times) - first),
        site_megabytes=held[0],
        resident_megabytes=held[1],
        bytes_a_round=(counted.sent + counted.received) / rounds,
    )


def pids_of(network: LocalNetwork) -> list[int]:
    """All processes of all sites."""
    return [pid for kind in (network.guards, network.nodes) for one in kind.values() for pid in family(one.process.pid)]


def bare_round(network: LocalNetwork, count: int = 20) -> float:
    """The seconds of an exchange with guards that send back what they get: the floor of a round."""
    for guard in network.guards.values():
        guard.stop()
    with ExitStack() as stack, network.carrier() as carrier:
        for site in network.nodes:
            door = stack.enter_context(listening(network.door(site)))
            threading.Thread(target=echo, args=(door,), daemon=True).start()
        while len(carrier.online()) < len(network.nodes):
            time.sleep(0.05)
        times = []
        for _ in range(count):
            began = time.monotonic()
            waiting = {carrier.push(address, bytes(600), 60.0) for address in carrier.online().values()}
            while waiting := waiting - set(carrier.pull(sorted(waiting), 1.0)):
                pass
            times.append(time.monotonic() - began)
    return median(times)


def echo(door: socket.socket) -> None:
    """Send back what comes, until the door is closed."""
    with suppress(OSError):
        while True:
            connection, _ = door.accept()
            with connection, suppress(OSError):
                frames.send(connection, frames.receive(connection))


def rows_of(count: int) -> list[Row]:
    """Open and masked rounds of so many sites, with the bare exchange below them, and what a site takes."""
    records = records_of(2 * count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        with local_network(records, count, folder / "files", folder / "sites", datetime.now(UTC), GUARD) as network:
            ready, start = time.monotonic() - began, cpu_seconds(pids_of(network)) / count
            last = sorted(network.guards)[-1]
            away = frozenset(deal_clients(2 * count, tuple(network.guards))[last].tolist())
            opened = measure(network, folder / "open", OPEN)
            masked = measure(network, folder / "masked", MASKED)
            tolerant = measure(network, folder / "tolerant", TOLERANT)
            lost = measure(network, folder / "lost", TOLERANT, lose=last)
            floor = bare_round(network)
        same = [simulated(folder / one, records) for one in ("open", "masked", "tolerant")]
        same.append(simulated(folder / "lost", records, away))
    few = count == SITES[0]
    bar = 0.25 if few else 60.0 / A_MINUTE
    rows = [
        row
        for label, one, most, as_simulated in (
            ("open", opened, bar, same[0]),
            ("masked", masked, 1.3 * opened.seconds if few else bar, same[1]),
            ("masked, a site may be missing", tolerant, 2.2 * opened.seconds if few else bar, same[2]),
            ("masked, a site is missing", lost, 2.2 * opened.seconds if few else bar, same[3]),
        )
        for row in [
            Row(
                f"sites: a round in seconds, {label}, {count} sites",
                most,
                one.seconds if as_simulated else float("inf"),
                f"{one.seconds:.3f} s, {one.seconds / masked.seconds:.2f} masked rounds, {one.cpu:.3f} CPU s, "
                f"the longest {one.longest:.2f} s; {one.bytes_a_round:.0f} bytes; "
                f"{'the bits of the simulation' if as_simulated else 'OTHER BITS than the simulation'}; "
                f"a bare exchange {floor:.3f} s; ready after {ready:.1f} s",
            )
        ]
    ]
    size = max(one.site_megabytes for one in (opened, masked, tolerant))
    resident = max(one.resident_megabytes for one in (opened, masked, tolerant))
    rows.append(Row(f"sites: megabytes of a site, {count} sites", MEGABYTES, size, f"{resident:.0f} MB resident"))
    rows.append(Row(f"sites: CPU seconds in which a site starts, {count} sites", 3.0, start))
    return rows


def whole_run(trust: Mapping[str, Any], rounds: int, bar: float, count: int = SITES[0]) -> Row:
    """A single run of so many rounds, from the start of all processes to the released model."""
    records = records_of(2 * count, each=max(20, rounds // count))  # a round needs a record
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.monotonic()
        with local_network(records, count, folder / "files", folder / "sites", datetime.now(UTC), GUARD) as network:
            found = measure(network, folder / "run", trust, rounds)
            seconds = time.monotonic() - began
        same = simulated(folder / "run", records)
    label = f"sites: seconds of {rounds} rounds with start, {trust['server']}, {count} sites"
    detail = f"{found.seconds:.3f} s a round; {'the bits of the simulation' if same else 'OTHER BITS'}"
    return Row(label, bar, seconds if same else float("inf"), detail)


def run(sites: tuple[int, ...] = SITES, masked: int = 64, opened: int = 1200) -> list[Row]:
    """Measure rounds at each number of sites, and two whole runs at three; none where ``masked`` or ``opened`` is 0."""
    rows = [row for count in sites for row in rows_of(count)]
    rows += [whole_run(MASKED, masked, 30.0)] if masked else []
    rows += [whole_run(OPEN, opened, 360.0)] if opened else []
    return rows


def main() -> None:
    """The use above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sites", nargs="*", type=int)
    parser.add_argument("--masked", type=int, default=0)
    parser.add_argument("--open", type=int, default=0)
    asked = parser.parse_args()
    for row in run(tuple(asked.sites), asked.masked, asked.open):
        print(f"{row.name}: {row.measured:.3f} (bar {row.bar:.3f}) {row.detail}", flush=True)


if __name__ == "__main__":
    main()

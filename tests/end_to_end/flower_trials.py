"""What trials on real processes share: a study, a network of three sites, the same run in one process.

Waits are for events, with limits far above what they take; a limit that is reached fails the test.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.load import load
from fedveil.data.records import Records
from fedveil.engine.sums import summing_of
from fedveil.engine.train import train
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.carrying.processes import environment
from fedveil.federation.carrying.trial import deal_clients, site_names
from fedveil.federation.flower.local import LocalNetwork, local_network
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.planning.study import parse_study
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.hidden.steps import Rule, model_of
from fedveil.sums.seam import Summed, Whole
from fedveil.wire import frames
from fedveil.wire.envelope import Head, peek

SEED = 5
GUARD = ["--accept", "any", "--trials"]  # one person is all the operators
DATA = """
[data]
source = "sklearn:breast_cancer"
feature_bound = 2.0
[clients]
kind = "uneven"
count = 6
alpha = 1.0
"""
# A small epsilon takes a tenth of a second to account for, a larger one a second, which every site spends twice.
REST = """
[study]
name = "trial"
seed = 5
[model]
kind = "logistic"
radius = 10.0
[privacy]
epsilon = 0.5
delta = 1e-4
neighbours = "zero-out"
adversary = "every-model"
[schedule]
rounds = ROUNDS
passes = 1
[trust]
dropouts = DROPOUTS
timeout = TIMEOUT
"""


def text(dropouts: int = 0, timeout: float = 300.0, rounds: int = 3) -> str:
    """The aggregator's study; each of three sites has two of its six clients."""
    values = {"DROPOUTS": dropouts, "TIMEOUT": timeout, "ROUNDS": rounds}
    found = REST
    for name, value in values.items():
        found = found.replace(name, str(value))
    return found


def trial_records(clients: int = 6) -> Records:
    """The records of all sites together."""
    study = parse_study(DATA.replace("count = 6", f"count = {clients}") + text(), base=Path())
    assert study.source is not None
    return load(study.source, study.data.split, base=Path(), generator=np.random.default_rng).train


@contextmanager
def trial_network(records: Records | Unprepared, folder: Path, sites: int = 3) -> Iterator[LocalNetwork]:
    """A link with TLS, guards and as many registered nodes; nothing of them is left, which is checked."""
    started = []
    with local_network(records, sites, folder / "files", folder / "sites", datetime.now(UTC), GUARD) as found:
        started = found.processes.started
        yield found
    assert started
    assert not [one.name for one in started if one.alive]
    assert not sessions({one.process.pid for one in started})  # nor anything that they started
    assert not found.folder.exists()


def sessions(leaders: set[int]) -> list[int]:
    """The processes of these sessions that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if fields and fields[0] != "Z" and int(fields[3]) in leaders:
            found.append(int(entry.name))
    return found


def until(happened: Callable[[], Any], limit: float = 300.0, pause: float = 0.005) -> None:
    """Wait for it."""
    end = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(pause)


def nobody(turn: int, client: int) -> bool:
    """No client fails."""
    return False


def simulated(folder: Path, records: Records, fails: Callable[[int, int], bool] = nobody) -> Any:
    """The model of the same plan in one process, and (hidden training) all models on the way."""
    plan, models = read_plan((folder / "plan.toml").read_text()), []
    entropy = Entropy.from_seed(SEED)
    if not isinstance(plan.method, Hidden):
        return train(plan, records, entropy, fails=fails).model, []
    rule = Rule.of(plan)
    last = train(plan, records, entropy, watch=lambda state: models.append(model_of(rule, state)), fails=fails).model
    return last, models


def updates(folder: Path, records: Records, fails: Callable[[int, int], bool] = nobody, sites: int = 3) -> list[Any]:
    """Every client's update and every site's total of every round of the same hidden plan."""
    plan, found = read_plan((folder / "plan.toml").read_text()), []
    entropy = Entropy.from_seed(SEED)
    add_up, dealt = summing_of(plan, entropy), deal_clients(records.clients, site_names(sites)).values()

    def noted(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        found.extend(parts.values())
        for clients in dealt:
            mine = [parts[client] for client in clients.tolist() if client in parts]
            found.extend([np.sum(mine, axis=0)] if mine else [])
        return add_up(turn, parts)

    train(plan, records, entropy, add_up=noted, fails=fails)
    return found


@dataclass(slots=True)
class Recorded:
    """A real carrier that keeps what was sent, by the name of the site."""

    carrier: Carrier
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def online(self) -> Mapping[str, str]:
        """As the carrier says."""
        found = self.carrier.online()
        self._names |= {address: site for site, address in found.items()}
        return found

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """On its way, and kept."""
        self.sent.append((self._names[address], envelope))
        return self.carrier.push(address, envelope, seconds)

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        """As the carrier brings it."""
        return self.carrier.pull(names, seconds)


@dataclass(slots=True)
class Troubled:
    """A real carrier for a site in trouble: ``trouble`` is told of every question to it, just before it is sent.

    It says whether the site is given up: then the question counts as failed as soon as no other is awaited.
    """

    carrier: Carrier
    site: str
    trouble: Callable[[Head, int], bool]
    _names: dict[str, str] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    _asked: dict[tuple[str, int], int] = field(default_factory=dict)

    def online(self) -> Mapping[str, str]:
        """As the carrier says."""
        found = self.carrier.online()
        self._names |= {address: site for site, address in found.items()}
        return found

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        """On its way, after the trouble."""
        lost = False
        if self._names[address] == self.site:
            head = peek(envelope)
            count = self._asked[head.kind, head.round] = self._asked.get((head.kind, head.round), 0) + 1
            lost = self.trouble(head, count)
        name = self.carrier.push(address, envelope, seconds)
        self._given_up |= {name} if lost else set()
        return name

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        """As the carrier brings it."""
        found = dict(self.carrier.pull(names, min(seconds, 0.2)))
        if set(names) - set(found) <= self._given_up:
            found |= dict.fromkeys(set(names) - set(found), b"")
        return found


def knock(door: Path, envelope: bytes) -> bytes | None:
    """What a guard says to an envelope at its own door; None if it closes without a word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60.0)
        connection.connect(str(door))
        frames.send(connection, [("envelope", envelope)])
        try:
            while not (blocks := frames.receive(connection)):  # it works on the answer
                pass
        except frames.Closed:
            return None
        return blocks[0][1]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def released(folder: Path) -> Any:
    """The model that a run released."""
    with np.load(folder / "model.npz") as arrays:
        return np.array(arrays["parameters"])


def aggregator(
    network: LocalNetwork, study: Path, out: Path, *more: str, command: str = "run"
) -> "subprocess.Popen[bytes]":
    """``fedveil run --on`` as a process of its own; what it writes goes to a log beside ``out``."""
    words = [sys.executable, "-m", "fedveil", command, str(study), "--on", str(network.files), "--out", str(out), *more]
    with (out.parent / f"{out.name}.log").open("ab") as log:
        env = environment(out.parent / "home")
        return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

"""The same study on real processes: a link with TLS and registered nodes, three sites with guards, killed at times.

Waits are for events, with limits far above what they take; a limit that is reached fails the test.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certify import certify
from fedveil.data.load import load
from fedveil.data.records import Records
from fedveil.plan import read_plan
from fedveil.remote import federated
from fedveil.run.certificates import make_node_key
from fedveil.run.deploy_check import check_place
from fedveil.run.federate import Held
from fedveil.run.flower.local import LocalNetwork, local_network
from fedveil.run.flower.network import start_node
from fedveil.run.flower.processes import environment
from fedveil.run.simulate import simulate
from fedveil.study import parse_study, read_study_without_data
from fedveil.train.entropy import Entropy
from fedveil.train.hidden import Rule, model_of
from fedveil.wire import frames
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, seal
from fedveil.wire.keys import Identity

pytest.importorskip("flwr")

DATA = """
[data]
source = "sklearn:breast_cancer"
feature_bound = 2.0
[clients]
kind = "dirichlet"
count = 6
alpha = 2.0
"""
REST = """
[study]
name = "trial"
seed = 5
[model]
kind = "logistic"
radius = 10.0
[privacy]
epsilon = 5.0
delta = 1e-4
neighbours = "zero-out"
adversary = "every-model"
[schedule]
rounds = 3
passes = 1
[trust]
dropouts = DROPOUTS
timeout = TIMEOUT
"""


def text(dropouts: int = 0, timeout: float = 120.0) -> str:
    return REST.replace("DROPOUTS", str(dropouts)).replace("TIMEOUT", str(timeout))


@pytest.fixture(scope="module")
def records() -> Records:
    study = parse_study(DATA + text(), base=Path())
    assert study.source is not None
    return load(study.source, study.split, base=Path(), generator=np.random.default_rng).train


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    folder = tmp_path_factory.mktemp("network")
    options = ["--accept", "any", "--trials"]
    started = []
    with local_network(records, 3, folder / "files", folder / "sites", datetime.now(UTC), options) as found:
        started = found.processes.started
        yield found
    assert started
    assert not [one.name for one in started if one.alive]
    assert not _sessions({one.process.pid for one in started})  # nor anything that they started
    assert not found.folder.exists()


def _sessions(leaders: set[int]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if fields and fields[0] != "Z" and int(fields[3]) in leaders:
            found.append(int(entry.name))
    return found


def until(happened: Callable[[], Any], limit: float = 120.0, pause: float = 0.005) -> None:
    end = time.monotonic() + limit
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(pause)


def simulated(folder: Path, records: Records, fails: Callable[[int, int], bool] = lambda *_: False) -> Any:
    """The model of the same plan in one process, and all models on the way."""
    plan, models = read_plan((folder / "plan.toml").read_text()), []
    rule = Rule.of(plan)
    last, _ = simulate(
        plan, records, Entropy.from_seed(5), watch=lambda state: models.append(model_of(rule, state)), fails=fails
    )
    return last, models


def released(folder: Path) -> Any:
    with np.load(folder / "model.npz") as arrays:
        return np.array(arrays["parameters"])


def aggregator(network: LocalNetwork, study: Path, out: Path, *more: str) -> "subprocess.Popen[bytes]":
    """``fedveil run --on`` as a process of its own."""
    words = [sys.executable, "-m", "fedveil", "run", str(study), "--on", str(network.files), "--out", str(out), *more]
    log = (out.parent / f"{out.name}.log").open("ab")
    with log:
        env = environment(out.parent / "home")
        return subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def test_an_aggregator_killed_twice_ends_with_the_bits_of_the_simulation(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """Killed between charge and broadcast, and again after a round; then every record certifies, and nothing leaked."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text())
    for mark, resume in (("private/ledger.sqlite", []), ("private/checkpoint", ["--resume"])):
        process = aggregator(network, study, out, *resume)
        until(lambda mark=mark, process=process: (out / mark).exists() or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "out.log").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (out / "model.npz").exists()
    process = aggregator(network, study, out, "--resume")
    assert process.wait(timeout=240) == 0, (tmp_path / "out.log").read_text()
    last, models = simulated(out, records)
    assert released(out).tobytes() == last.tobytes()
    found = certify(out, "0")
    assert not found.private
    for site in network.deployment.cards:
        folder = network.records / site / "runs" / found.run
        assert certify(folder, "0").plan == found.plan
        assert (folder / "model.npz").read_bytes() == (out / "model.npz").read_bytes()
    assert_nothing_leaked(network.folder, models)


def assert_nothing_leaked(folder: Path, models: list[Any]) -> None:
    """No number of any model in any file or log of the relay, neither as bytes nor as digits."""
    needles = {value.tobytes() for model in models for value in model if value}
    needles |= {repr(float(value))[:10].encode() for model in models for value in model if abs(value) > 1e-3}
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" and path.stat().st_size for path in files)
    for path in files:
        data = path.read_bytes()
        assert not [needle for needle in needles if needle in data], path


def test_strangers_are_refused(network: LocalNetwork) -> None:
    """A node that nobody registered is turned away; tasks and messages are not given without credentials."""
    key = network.folder / "stranger.key"
    key.write_bytes(make_node_key().private)
    stranger = start_node(network.processes, network.link, "stranger", key, network.door("site-1"), 0.0)
    until(lambda: not stranger.alive, pause=0.1)
    assert "has ended" in stranger.tail()
    rows = {row.what: row for row in check_place(network.files, None, datetime.now(UTC))}
    assert all(row.fine for row in rows.values()), rows
    assert rows["tasks"].detail == rows["nodes"].detail == "refused without credentials"
    place = network.place("site-1")
    (place / "authority.pem").write_bytes(network.deployment.authority.read_bytes())
    rows = {row.what: row for row in check_place(place, network.link.address, datetime.now(UTC))}
    assert rows["TLS"].fine


def test_a_forged_instruction_gets_no_answer_at_the_guards_door(network: LocalNetwork) -> None:
    forger = Identity.make("aggregator", os.urandom(64))
    head = Head(run="0" * 32, sender="aggregator", receiver="site-1", kind="hello", round=0, number=1)
    envelope = seal(head, Content().write(), forger, network.deployment.cards["site-1"], os.urandom(32))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.connect(str(network.door("site-1")))
        frames.send(door, [("envelope", envelope)])
        with pytest.raises(frames.Closed):
            frames.receive(door)
    mode = network.door("site-1").stat().st_mode & 0o777
    assert mode == 0o600


def test_a_site_killed_in_a_round_is_left_out_of_it_and_joins_the_next(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """Round 2 loses a guard, which is back for round 3; there another site goes with all its processes.

    The plan lets two clients be missing, and each site has two: their noise is planned for, see fedveil.trust.
    """
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text(dropouts=2, timeout=15.0))
    rounds: list[set[str]] = [set()]  # who answered, by round; the first are greetings
    hit: set[str] = set()

    def tell(site: str, state: str) -> None:
        if state == "answered":
            rounds[-1].add(site)
        if state == "asked" and (len(rounds), site) in ((2, "site-2"), (3, "site-3")) and site not in hit:
            hit.add(site)
            network.guards[site].kill()
            if site == "site-3":
                network.nodes[site].kill()

    def watch(now: Any) -> None:
        rounds.append(set())
        if now.round == 2:
            network.start_guard("site-2", ["--accept", "any", "--trials"])
            network.guards["site-2"].wait_for("listening", 60.0)

    with network.carrier() as carrier:
        federated(read_study_without_data(study), out, network.deployment, carrier, Held(), watch=watch, tell=tell)
    assert [sorted(answered) for answered in rounds[1:3]] == [["site-1", "site-3"], ["site-1", "site-2"]]
    lost = {(1, 2), (1, 3), (2, 4), (2, 5)}
    expected, _ = simulated(out, records, lambda turn, client: (turn, client) in lost)
    assert released(out).tobytes() == expected.tobytes()
    assert released(out).tobytes() != simulated(out, records)[0].tobytes()
    run = json.loads((out / "certificate.json").read_text())["run"]
    assert certify(network.records / "site-2" / "runs" / run, "0").plan == certify(out, "0").plan
    assert (out / "private" / "released").exists()  # the third site has its model still to come


SIMFL = """
[study]
name = "in turn"
seed = 5
[data]
source = "sklearn:breast_cancer"
feature_bound = 2.0
[clients]
kind = "equal"
count = 3
[model]
kind = "logistic"
radius = 10.0
[privacy]
epsilon = 5.0
delta = 1e-4
[algorithm]
kind = "simfl"
[schedule]
rounds = 3
"""


def test_a_leader_that_changes_gives_the_same_bits(tmp_path: Path) -> None:
    """Every site leads once; the aggregator carries what it cannot read."""
    (tmp_path / "study.toml").write_text(SIMFL)
    for words in (
        ["run", "study.toml", "--out", "here"],
        ["deploy", "local", "study.toml", "--sites", "3", "--out", "there"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fedveil", *words, "--quiet"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "model.npz").read_bytes() == (tmp_path / "there" / "model.npz").read_bytes()

"""The same study on real processes: a link with TLS and registered nodes, three sites with guards, killed at times.

Waits are for events, with limits far above what they take; a limit that is reached fails the test.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flower_trials import aggregator, released, simulated, text, trial_network, trial_records, until

from fedveil.certify import certify
from fedveil.data.records import Records
from fedveil.remote import federated
from fedveil.run.certificates import make_node_key
from fedveil.run.deploy_check import check_place
from fedveil.run.federate import Held
from fedveil.run.flower.local import LocalNetwork
from fedveil.run.flower.network import start_node
from fedveil.study import read_study_without_data
from fedveil.wire import frames
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, seal
from fedveil.wire.keys import Identity

pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def records() -> Records:
    return trial_records()


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network")) as found:
        yield found


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

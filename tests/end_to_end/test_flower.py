"""The same study on real processes: a link with TLS and registered nodes, three sites with guards, killed at times.

Waits are for events, with limits far above what they take; a limit that is reached fails the test.
"""

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flower_trials import (
    GUARD,
    aggregator,
    knock,
    released,
    simulated,
    text,
    trial_network,
    trial_records,
    until,
    updates,
)
from relay_search import leaks

from fedveil.certify import certify
from fedveil.data.records import Records
from fedveil.errors import TooFewSurvivors
from fedveil.remote import federated
from fedveil.run.certificates import make_node_key
from fedveil.run.deploy_check import check_place
from fedveil.run.federate import Held
from fedveil.run.flower.local import LocalNetwork
from fedveil.run.flower.network import start_node
from fedveil.run.site_state import load_state
from fedveil.study import read_study_without_data
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, seal
from fedveil.wire.keys import Identity

pytest.importorskip("flwr")
pytestmark = pytest.mark.xdist_group("flower")  # one worker, one network


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
    """Killed between charge and broadcast, and after a broadcast; then every record certifies, and nothing leaked."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text())

    def reached(turn: int) -> bool:
        """Whether a guard has answered this round, from 0."""
        states = [load_state(path) for path in network.records.glob(f"*/runs/{run_of(out)}/private/state")]
        return any(state.round >= turn for state in states)

    moments: list[tuple[Callable[[], bool], list[str]]] = [
        (lambda: charged(out), []),
        (lambda: reached(1), ["--resume"]),
    ]
    for happened, more in moments:
        process = aggregator(network, study, out, *more)
        until(lambda happened=happened, process=process: process.poll() is not None or happened())
        assert process.poll() is None, (tmp_path / "out.log").read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not reached(2 if more else 0)
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
    homes = [network.folder, out / "private" / "flower", tmp_path / "home"]  # also what Flower's commands wrote
    assert leaks(homes, [*models, *updates(out, records)]) == []


def run_of(out: Path) -> str:
    """The name of a run, as soon as it has one."""
    path = out / "private" / "aggregator"
    return path.read_bytes()[:16].hex() if path.exists() else "none"


def charged(out: Path) -> bool:
    """Whether the charge stands in the aggregator's books."""
    path = out / "private" / "ledger.sqlite"
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as books:
            return bool(books.execute("SELECT count(*) FROM entries WHERE kind = 'charge'").fetchone()[0])
    except sqlite3.OperationalError:  # being made
        return False


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
    assert knock(network.door("site-1"), envelope) is None
    mode = network.door("site-1").stat().st_mode & 0o777
    assert mode == 0o600


def test_a_site_killed_in_a_round_is_left_out_of_it_or_the_round_is_refused(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """Round 2 loses a guard and completes; round 3 loses two and is refused; again, a site with all its processes.

    The plan lets two clients be missing, and each site has two: their noise is planned for, see fedveil.trust.
    """
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text(dropouts=2, timeout=15.0))
    rounds: list[set[str]] = [set()]  # who answered, by round; the first are greetings
    victims = {(2, "site-2"), (3, "site-2"), (3, "site-3")}

    def tell(site: str, state: str) -> None:
        if state == "answered":
            rounds[-1].add(site)
        if state == "asked" and (len(rounds), site) in victims:
            victims.remove((len(rounds), site))
            network.guards[site].kill()
            if network.nodes[site].name in doomed:
                network.nodes[site].kill()

    def watch(now: Any) -> None:
        rounds.append(set())
        if now.round == 2:
            start_again("site-2")

    def start_again(site: str) -> None:
        network.start_guard(site, GUARD)
        network.guards[site].wait_for("listening", 60.0)

    wanted, doomed = read_study_without_data(study), set[str]()
    try:
        with network.carrier() as carrier:
            with pytest.raises(TooFewSurvivors, match="Round 3 has the answers of 2 clients and needs 4"):
                federated(wanted, out, network.deployment, carrier, Held(), watch=watch, tell=tell)
            assert rounds[1:] == [{"site-1", "site-3"}, {"site-1"}]
            for site in ("site-2", "site-3"):
                start_again(site)
            rounds[2:] = [set()]
            victims.add((3, "site-3"))
            doomed.add("node-site-3")
            federated(wanted, out, network.deployment, carrier, Held(), resume=True, watch=watch, tell=tell)
    finally:
        for site, guard in network.guards.items():
            if not guard.alive:
                start_again(site)
            if not network.nodes[site].alive:
                network.start_node(site)
    assert rounds[2] == {"site-1", "site-2"}
    lost = {(1, 2), (1, 3), (2, 4), (2, 5)}
    expected, _ = simulated(out, records, lambda turn, client: (turn, client) in lost)
    assert released(out).tobytes() == expected.tobytes()
    assert released(out).tobytes() != simulated(out, records)[0].tobytes()
    run = json.loads((out / "certificate.json").read_text())["run"]
    assert certify(network.records / "site-2" / "runs" / run, "0").plan == certify(out, "0").plan
    assert (out / "private" / "released").exists()  # the third site has its model still to come

"""The same study on real processes: a link with TLS and registered nodes, three sites with guards; and their faults.

Processes are killed, sites lie, keys are wrong, instructions are sent twice. Waits are for events, with limits far
above what they take; a limit that is reached fails the test.
"""

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from math import sqrt
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
from troubled_run import BAD, CLIENTS, FOREIGN, LAST, MIXED, SITE, Seen, failed, relay_of, troubled

from fedveil.certificate.certify import certify
from fedveil.core.errors import TooFewSurvivors
from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.relay import RelayLost
from fedveil.federation.deploy.certificates import make_node_key
from fedveil.federation.deploy.check import check_place
from fedveil.federation.deploy.files import Wanted, site_folders, write_deployment
from fedveil.federation.deploy.own_keys import read_site
from fedveil.federation.flower.local import LocalNetwork
from fedveil.federation.flower.network import start_node
from fedveil.federation.site.state import load_state
from fedveil.jobs.remote import federated, run_on
from fedveil.planning.study import read_study_without_data
from fedveil.signing import SigningKey
from fedveil.stages.train.hidden.asking import share_steps
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


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site's files in another deployment, where it has the same name."""
    folder = tmp_path_factory.mktemp("elsewhere") / "files"
    write_deployment(folder, Wanted(sites=(SITE,), host="127.0.0.1", port=1), datetime.now(UTC))
    return site_folders(folder, [SITE])[SITE]


@pytest.fixture(scope="module")
def seen(network: LocalNetwork, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return troubled(network, elsewhere, tmp_path_factory.mktemp("run"))


def test_an_aggregator_killed_twice_ends_with_the_bits_of_the_simulation(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """Killed between charge and broadcast, and after a broadcast; then every record certifies, and nothing leaked.

    And the sites, which have worked out what it costs, hold little memory.
    """
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
    assert process.wait(timeout=400) == 0, (tmp_path / "out.log").read_text()
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
    check_light(network)


def check_light(network: LocalNetwork) -> None:
    """A guard that has agreed to a plan has not loaded what accounting needs; a node, neither arrays nor Flower."""
    for site in network.deployment.cards:
        guard, node = (Path("/proc") / str(one[site].process.pid) for one in (network.guards, network.nodes))
        loaded = (guard / "maps").read_text()
        assert "numpy" in loaded
        assert not [part for part in ("fft", "optimize", "stats", "linalg") if f"scipy/{part}/" in loaded]
        assert not [part for part in ("numpy", "scipy", "pyarrow", "grpc") if part in (node / "maps").read_text()]
        own = [line for one in (guard, node) for line in (one / "smaps_rollup").read_text().splitlines()]
        assert sum(int(line.split()[1]) for line in own if line.startswith("Private_Dirty:")) < 70 * 1024


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


def test_strangers_are_refused(network: LocalNetwork, elsewhere: Path) -> None:
    """A node that nobody registered is turned away, and one that has another key than was registered for its name;
    tasks and messages are not given without credentials.
    """
    unknown = network.folder / "stranger.key"
    unknown.write_bytes(make_node_key().private)
    keys = {"stranger": unknown, f"other-{SITE}": elsewhere / "node.key"}
    assert read_site(elsewhere / "identity.key")[0].name == SITE
    door = network.door(SITE)
    nodes = [start_node(network.processes, network.link, name, key, door, 0.0) for name, key in keys.items()]
    for node in nodes:
        until(lambda node=node: not node.alive, pause=0.1)
        assert "this node is not registered" in node.tail()
        assert "connected" not in node.written()
    assert network.nodes[SITE].alive
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


def test_lies_and_wrong_keys_do_not_change_the_sum_of_the_others(seen: Seen, records: Records) -> None:
    """Bit for bit the run in which the site's clients are missing from those rounds, and from no other."""
    for turn, states in enumerate(seen.states[: LAST + 1]):
        bad = failed(turn, CLIENTS[0])
        assert ((SITE, "answered") in states) == (not bad), turn
        assert not bad or (SITE, "failed") in states, turn
        assert {("site-1", "answered"), ("site-3", "answered")} <= states
    assert released(seen.out).tobytes() == simulated(seen.out, records, failed)[0].tobytes()
    for turn in BAD:  # each of them would show
        others = [one for one in BAD if one != turn]
        almost = simulated(seen.out, records, lambda now, client, others=others: client in CLIENTS and now in others)[0]
        assert released(seen.out).tobytes() != almost.tobytes()


def test_the_certificate_accounts_for_the_missing_noise(seen: Seen, network: LocalNetwork) -> None:
    """The shares of those who must answer make up the planned noise alone; the site's own record says the same."""
    found = certify(seen.out, "0")
    plan = found.plan
    for turn, noise in enumerate(plan.hidden.noise()):
        share = share_steps(plan, turn, plan.data.clients) * 2.0**plan.grid
        assert sqrt(plan.data.clients - len(CLIENTS)) * share >= noise * (1 - 1e-12)
    for guarantee in found.guarantees:
        said = {row.name: row.value for row in guarantee.assumptions}
        assert said["clients are missing by chance"] == "at most 2 a round"
        assert said["answers to a round"] == "at least 4 of 6"
    assert certify(network.records / SITE / "runs" / found.run, "0").plan == plan


def test_an_instruction_sent_again_is_refused_and_leaves_no_trace(seen: Seen) -> None:
    """Neither at the guard's door nor through the link does it get an answer; state and ledger stay as they are."""
    assert len(seen.knocks) >= 3
    assert set(seen.knocks) == {None}
    assert seen.carried == [b"", b""]
    assert seen.before == seen.after
    assert any(name.endswith("ledger.sqlite") for name in seen.before)


def test_a_guard_with_other_keys_opens_nothing_and_has_no_record(seen: Seen) -> None:
    assert "bad-signature" in seen.logs[FOREIGN]
    assert "not-for-me" in seen.logs[MIXED]
    assert not list((seen.out.parent / "others").glob("runs/*"))


def test_the_relay_has_no_update_and_no_model(seen: Seen, network: LocalNetwork, records: Records) -> None:
    """On its disk, in its logs, homes and temporary files; and nothing but logs is being written by it."""
    last, models = simulated(seen.out, records, failed)
    assert len(models) == LAST + 1
    assert leaks([network.folder], [*models, *updates(seen.out, records, failed)]) == []
    assert leaks([seen.out], [last]) == [str(seen.out / "model.npz")]  # it is found where it is
    logs = network.processes.logs
    assert {f"{one.name}.log" for one in relay_of(network)} <= {path.name for path in logs.iterdir()}
    assert all(one.log.stat().st_size for one in relay_of(network))
    assert seen.written
    assert all(path.is_relative_to(logs) and path.suffix == ".log" for path in seen.written), seen.written


def test_a_link_killed_in_a_round_is_found_again_by_those_who_go_on(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """It has forgotten its sites and its runs: nodes come back by themselves, and --resume registers them first."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text())
    rounds = []

    def tell(site: str, state: str) -> None:
        if state == "asked" and rounds == [1] and network.center[0].alive:
            network.center[0].kill()

    with pytest.raises(RelayLost, match="go on with --resume when the link is back"):
        run_on(study, out, network.files, watch=lambda now: rounds.append(now.round), tell=tell)
    assert not (out / "model.npz").exists()
    network.start_center()
    key = SigningKey(b"k" * 32)
    found = run_on(study, out, network.files, resume=True, sign=key).signature
    assert found is not None
    assert found.signer == key.signer
    last, models = simulated(out, records)
    assert released(out).tobytes() == last.tobytes()
    assert all(node.alive for node in network.nodes.values())
    assert leaks([network.folder, out / "private" / "flower"], [*models, *updates(out, records)]) == []


def test_a_site_killed_in_a_round_is_left_out_of_it_or_the_round_is_refused(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """Round 2 loses a guard and completes; round 3 loses two and is refused; again, a site with all its processes.

    The plan lets two clients be missing, and each site has two: their noise is planned for, see fedveil.privacy.trust.
    """
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text(dropouts=2, timeout=20.0))
    wanted = read_study_without_data(study)
    rounds: list[set[str]] = [set()]  # who answered, by round; the first are greetings and proposals
    victims = {(2, "site-2"), (3, "site-2"), (3, "site-3")}
    later: list[str] = []  # who answered after the refusal

    def start_again(site: str) -> None:
        network.start_guard(site, GUARD)
        network.guards[site].wait_for("listening", 180.0)

    def tell(site: str, state: str) -> None:
        if state == "answered":
            rounds[-1].add(site)
        if state == "asked" and (len(rounds), site) in victims:
            victims.remove((len(rounds), site))
            network.guards[site].kill()

    def watch(now: Any) -> None:
        rounds.append(set())
        if now.round == 2:
            start_again("site-2")

    def tell_later(site: str, state: str) -> None:
        if state == "answered":
            later.append(site)
        if (site, state) == ("site-3", "asked") and len(later) == 3:  # all have accepted the plan again
            network.guards[site].kill()
            network.nodes[site].kill()

    with network.carrier() as carrier:
        with pytest.raises(TooFewSurvivors, match="Round 3 has the answers of 2 clients and needs 4"):
            federated(wanted, out, network.deployment, carrier, Held(), watch=watch, tell=tell)
        for site in ("site-2", "site-3"):
            start_again(site)
        federated(wanted, out, network.deployment, carrier, Held(), resume=True, tell=tell_later)
    start_again("site-3")
    network.start_node("site-3")  # let in within a minute, so this test is best the last on its network
    assert rounds[1:] == [{"site-1", "site-3"}, {"site-1"}]
    assert sorted(later[3:5]) == ["site-1", "site-2"]
    lost = {(1, 2), (1, 3), (2, 4), (2, 5)}
    expected, _ = simulated(out, records, lambda turn, client: (turn, client) in lost)
    assert released(out).tobytes() == expected.tobytes()
    assert released(out).tobytes() != simulated(out, records)[0].tobytes()
    run = json.loads((out / "certificate.json").read_text())["run"]
    assert certify(network.records / "site-2" / "runs" / run, "0").plan == certify(out, "0").plan
    assert (out / "private" / "released").exists()  # the third site has its model still to come

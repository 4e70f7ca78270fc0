"""Faults on real processes: a site that lies, wrong keys, instructions sent twice, a link that is killed.

One run has the site's faults, a different one in every round, at one site of three; what each did is looked at by a
test of its own. The plan lets the two clients of a site be missing from a round.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from flower_trials import (
    GUARD,
    Recorded,
    contents,
    knock,
    released,
    sessions,
    simulated,
    text,
    trial_network,
    trial_records,
    until,
    updates,
)
from relay_search import leaks, written_by

from fedveil.certify import certify
from fedveil.data.records import Records
from fedveil.remote import federated, run_on
from fedveil.run.deployment import Wanted, read_site, site_folders, write_deployment
from fedveil.run.federate import Held
from fedveil.run.flower.local import LocalNetwork
from fedveil.run.flower.network import start_node
from fedveil.run.relay_carrier import RelayLost
from fedveil.study import read_study_without_data
from fedveil.train.hidden_parts import share_steps
from fedveil.wire.envelope import peek

pytest.importorskip("flwr")
pytestmark = pytest.mark.xdist_group("flower faults")  # one worker, one network

LIAR = str(Path(__file__).with_name("lying_site.py"))
LIES = {2: "nan", 3: "shape", 4: "stale", 5: "large"}
FOREIGN, MIXED, LAST = 6, 7, 8  # rounds, from 0: all files of another deployment; its identity alone; in order again
SITE, CLIENTS = "site-2", (2, 3)


@pytest.fixture(scope="module")
def records() -> Records:
    return trial_records()


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network")) as found:
        yield found


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's files in another deployment, where it has the same name."""
    folder = tmp_path_factory.mktemp("elsewhere") / "files"
    write_deployment(folder, Wanted(sites=(SITE,), host="127.0.0.1", port=1), datetime.now(UTC))
    return site_folders(folder, [SITE])[SITE]


@dataclass(slots=True)
class Seen:
    """What the run showed: who answered and who failed in each round, what replays got, what the relay had open."""

    out: Path
    states: list[set[tuple[str, str]]] = field(default_factory=lambda: [set()])
    knocks: list[bytes | None] = field(default_factory=list)
    carried: list[bytes] = field(default_factory=list)
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    logs: dict[int, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(network: LocalNetwork, elsewhere: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("run")
    study, found = folder / "study.toml", Seen(folder / "out")
    study.write_text(text(dropouts=2, timeout=60.0, rounds=LAST + 1))
    mixed = elsewhere.parent / "mixed"
    shutil.copytree(elsewhere, mixed)
    (mixed / "aggregator.pub").write_bytes((network.place(SITE) / "aggregator.pub").read_bytes())
    told = ",".join(f"{turn}={lie}" for turn, lie in LIES.items())
    others = ["--records", str(folder / "others")]
    changes: dict[int, tuple[list[str], tuple[str, ...]]] = {
        1: (GUARD, (LIAR, told)),  # honest in this round, so that it has an answer to repeat
        FOREIGN: ([*GUARD, *others, "--key", str(elsewhere / "identity.key")], ("-m", "fedveil")),
        MIXED: ([*GUARD, *others, "--key", str(mixed / "identity.key")], ("-m", "fedveil")),
        LAST: (GUARD, ("-m", "fedveil")),
    }

    def watch(now: Any) -> None:
        found.states.append(set())
        if now.round == 1:
            replay(network, carrier, found)
            found.written = written_by(sessions({one.process.pid for one in relay_of(network)}))
        if now.round in changes:
            found.logs[now.round - 1] = network.guards[SITE].written()
            network.guards[SITE].kill()
            network.start_guard(SITE, *changes[now.round])
            network.guards[SITE].wait_for("listening", 60.0)

    def tell(site: str, state: str) -> None:
        found.states[-1].add((site, state))

    with network.carrier() as real:
        carrier = Recorded(real)
        wanted = read_study_without_data(study)
        federated(wanted, found.out, network.deployment, carrier, Held(), watch=watch, tell=tell)
    return found


def relay_of(network: LocalNetwork) -> list[Any]:
    """The link, its executor, and the nodes: all that is not trusted."""
    return [*network.center, *network.nodes.values()]


def replay(network: LocalNetwork, carrier: Recorded, found: Seen) -> None:
    """Every instruction once more, at the guard's own door and through the link."""
    place, sent = network.records / "site-1", [envelope for site, envelope in carrier.sent if site == "site-1"]
    found.before = contents(place)
    found.knocks = [knock(network.door("site-1"), envelope) for envelope in sent]
    address = carrier.online()["site-1"]
    for envelope in sent[-2:]:
        name, back = carrier.push(address, envelope, 60.0), dict[str, bytes]()
        until(lambda name=name, back=back: back.update(carrier.pull([name])) or name in back, pause=0.2)
        found.carried.append(back[name])
    found.after = contents(place)
    assert {peek(envelope).kind for envelope in sent} == {"hello", "propose", "step"}


def failed(turn: int, client: int) -> bool:
    return client in CLIENTS and (turn in LIES or turn in (FOREIGN, MIXED))


def test_lies_and_wrong_keys_do_not_change_the_sum_of_the_others(seen: Seen, records: Records) -> None:
    """Bit for bit the run in which the site's clients are missing from those rounds, and from no other."""
    for turn, states in enumerate(seen.states[: LAST + 1]):
        bad = failed(turn, CLIENTS[0])
        assert ((SITE, "answered") in states) == (not bad), turn
        assert ((SITE, "failed") in states) == bad, turn
        assert {("site-1", "answered"), ("site-3", "answered")} <= states
    assert released(seen.out).tobytes() == simulated(seen.out, records, failed)[0].tobytes()
    for turn in (*LIES, FOREIGN, MIXED):  # each of them would show
        others = [one for one in (*LIES, FOREIGN, MIXED) if one != turn]
        almost = simulated(seen.out, records, lambda now, client, others=others: client in CLIENTS and now in others)[0]
        assert released(seen.out).tobytes() != almost.tobytes()


def test_the_certificate_accounts_for_the_missing_noise(seen: Seen, network: LocalNetwork) -> None:
    """The shares of those who must answer make up the planned noise alone; the site's own record says the same."""
    found = certify(seen.out, "0")
    plan = found.plan
    assert plan.trust is not None
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


def test_a_node_with_another_key_than_the_registered_one_is_refused(network: LocalNetwork, elsewhere: Path) -> None:
    """The site's own name, host and folder, and the key of another deployment."""
    assert read_site(elsewhere / "identity.key")[0].name == SITE
    node = start_node(network.processes, network.link, "other-key", elsewhere / "node.key", network.door(SITE), 0.0)
    until(lambda: not node.alive, pause=0.1)
    assert "has ended" in node.tail()
    assert "connected" not in node.written()
    assert network.nodes[SITE].alive


def test_a_link_killed_in_a_round_is_found_again_by_those_who_go_on(
    network: LocalNetwork, records: Records, tmp_path: Path
) -> None:
    """It has forgotten its sites and its runs: nodes come back by themselves, and --resume registers them first."""
    study, out = tmp_path / "study.toml", tmp_path / "out"
    study.write_text(text())
    rounds = []

    def tell(site: str, state: str) -> None:
        if state == "asked" and rounds == [1] and network.center[0].alive:
            for one in network.center:
                one.kill()

    with pytest.raises(RelayLost, match="go on with --resume when the link is back"):
        run_on(study, out, network.files, watch=lambda now: rounds.append(now.round), tell=tell)
    assert not (out / "model.npz").exists()
    network.start_center()
    run_on(study, out, network.files, resume=True)
    last, models = simulated(out, records)
    assert released(out).tobytes() == last.tobytes()
    assert all(node.alive for node in network.nodes.values())
    assert leaks([network.folder, out / "private" / "flower"], [*models, *updates(out, records)]) == []

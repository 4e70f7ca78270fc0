"""Attacks on live processes: at the link's port, on what is carried, at sockets, and by looking at processes and logs.

One network of three sites. Whoever attacks the link knows its address and has ``authority.pem``, as every site does.
"""

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from attacker import command, hostile_app, post, status
from flower_trials import aggregator, contents, knock, released, simulated, text, trial_network, trial_records, until
from proxied import MISSING, NGINX, start_proxy
from tampering import FAULTS, SWAPPED, Tampering, questions_that_are_not

from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.relay import RelayCarrier
from fedveil.federation.deploy.certificates import make_node_key
from fedveil.federation.deploy.check import check_place
from fedveil.federation.deploy.files import FLEET
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.local import LocalNetwork
from fedveil.federation.flower.network import FlowerFailed, start_node
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data

pytest.importorskip("flwr")
needs_nginx = pytest.mark.skipif(NGINX is None, reason=MISSING)


@pytest.fixture(scope="module")
def records() -> Records:
    return trial_records()


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network")) as found:
        yield found


@pytest.fixture(scope="module")
def authority(network: LocalNetwork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The attacker's copy of what every site has."""
    copy = tmp_path_factory.mktemp("attacker") / "authority.pem"
    copy.write_bytes((network.place("site-1") / "authority.pem").read_bytes())
    return copy


@pytest.fixture(scope="module")
def outside(network: LocalNetwork) -> int:
    """The port of an nginx before the link: all that outsiders reach."""
    return start_proxy(network)


@dataclass(slots=True)
class Seen:
    """A run that an attacker's upload was to take over, and that was tampered with."""

    out: Path
    loot: Path
    carrier: Tampering
    sites: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    knocks: dict[str, bytes | None] = field(default_factory=dict)
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    said: str = ""


@pytest.fixture(scope="module")
def seen(network: LocalNetwork, authority: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Without the proxy: the attacker's run is the only one at the link, so the relay's task is theirs."""
    folder = tmp_path_factory.mktemp("attack")
    loot = folder / "loot"
    app = hostile_app(folder / "app", loot, network.deployment.folder / "identity.key")
    command(folder / "home", "127.0.0.1", network.link.port, authority, ["run", str(app), "LINK"])
    carrier = RelayCarrier(network.socket, lambda: None)  # starts no run of its own
    found = Seen(folder / "out", loot, Tampering(carrier, network.deployment))
    (folder / "study.toml").write_text(text())

    def watch(now: Any) -> None:
        if now.round == 1:
            found.before = contents(network.records / "site-1")
            for name, envelope in questions_that_are_not(found.carrier, "site-1", "site-2").items():
                found.knocks[name] = knock(network.door("site-1"), envelope)
            found.after = contents(network.records / "site-1")

    def tell(site: str, state: str) -> None:
        found.failed += [site] if state == "failed" else []

    try:
        until(lambda: found.sites.update(carrier.online()) or len(found.sites) == 3, pause=0.2)
        study = read_study_without_data(folder / "study.toml")
        federated(study, found.out, network.deployment, found.carrier, Held(), watch=watch, tell=tell)
    finally:
        carrier.close()
    found.said = network.guards["site-1"].written()
    return found


def test_an_uploaded_app_is_run_by_nobody(seen: Seen, network: LocalNetwork, records: Records) -> None:
    """The relay took the attacker's run and carried the aggregator's study with it; none of their code was loaded."""
    assert set(seen.sites) == set(network.deployment.cards)
    assert list(seen.loot.iterdir()) == []
    assert released(seen.out).tobytes() == simulated(seen.out, records)[0].tobytes()
    assert all(one.alive for one in (*network.center, *network.nodes.values()))


def test_answers_that_were_tampered_with_count_as_failed_and_change_nothing(seen: Seen, records: Records) -> None:
    assert sorted(seen.carrier.done) == sorted([*(fault.__name__ for fault in FAULTS.values()), *["swapped"] * 2])
    assert sorted(seen.failed) == sorted([*(site for _, site in FAULTS), *SWAPPED])  # each once, and asked again
    assert released(seen.out).tobytes() == simulated(seen.out, records)[0].tobytes()


def test_questions_that_were_tampered_with_get_no_answer_and_leave_no_trace(seen: Seen) -> None:
    assert len(seen.knocks) == 9
    assert set(seen.knocks.values()) == {None}
    assert seen.before == seen.after
    assert any(name.endswith("ledger.sqlite") for name in seen.before)
    for code in ("malformed", "wrong-party", "bad-signature", "replayed"):
        assert f"refused: {code}" in seen.said, code


@needs_nginx
def test_outsiders_start_no_run_and_register_no_node(
    network: LocalNetwork, outside: int, authority: Path, tmp_path: Path
) -> None:
    app = hostile_app(tmp_path / "app", tmp_path / "loot", network.deployment.folder / "identity.key")
    (tmp_path / "node.pub").write_bytes(make_node_key().public)
    before = network.center[0].written().count("/v1/control")
    for words in (["run", str(app), "LINK"], ["supernode", "register", str(tmp_path / "node.pub"), "LINK"]):
        with pytest.raises(FlowerFailed):
            command(tmp_path / "home", "127.0.0.1", outside, authority, words)
    assert network.center[0].written().count("/v1/control") == before  # nothing of it came to the link
    assert list((tmp_path / "loot").iterdir()) == []


ELSEWHERE = [
    post("/v1/control/list-runs"),
    post("/v1/control/start-run"),
    post("/v1/runtime/acquire-task"),
    post("/v1/runtime/pull-messages"),
    post("/v1/fleet/register-node"),
    post("/v1/fleet/"),
    post("/v1/fleet/../control/list-runs"),
    post("/v1/fleet/%2e%2e/control/list-runs"),
    post("/v1/fleet/pull-messages/../../control/list-runs"),
    post("/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs"),
    post("//v1//control/list-runs"),
    post("/v1/control/list-runs?/v1/fleet/pull-messages"),
    post("/v1/control/list-runs#/v1/fleet/pull-messages"),
    post("https://127.0.0.1/v1/control/list-runs"),
    post("/v1/fleet/pull-messages%0a"),
    b"GET /docs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /v1/fleet/pull-messages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    post("/v1/control/list-runs", "Content-Length: 0", "X-Original-URL: /v1/fleet/pull-messages"),
    # A second request within the body of the first, where two ways of telling its length disagree.
    post(
        "/v1/control/list-runs",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        body="0\r\n\r\nPOST /v1/control/list-runs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    ),
]


@needs_nginx
def test_outsiders_reach_nothing_but_what_nodes_need(network: LocalNetwork, outside: int, authority: Path) -> None:
    """However a path is written. What nodes need is passed on, and refused by the link without a node's key."""
    link = network.center[0]
    before = [link.written().count(word) for word in ("/v1/control", "/v1/runtime", "/docs", "openapi")]
    found = {request: status(outside, authority, request) for request in ELSEWHERE}
    assert set(found.values()) <= {"400", "403", "404", "405", ""}, found
    assert {status(outside, authority, post(f"/v1/fleet/{name}")) for name in FLEET} <= {"401", "403"}
    hidden = post("/v1/control/..%2ffleet/pull-messages")  # another way to write what may be reached
    assert status(outside, authority, hidden) in ("401", "404")
    smuggled = post(
        "/v1/fleet/pull-messages",
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        body="0\r\n\r\nPOST /v1/control/list-runs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    )
    assert status(outside, authority, smuggled) in ("400", "401")
    assert [link.written().count(word) for word in ("/v1/control", "/v1/runtime", "/docs", "openapi")] == before


@needs_nginx
def test_a_check_sees_the_proxy(network: LocalNetwork, outside: int) -> None:
    rows = {row.what: row for row in check_place(network.place("site-1"), f"127.0.0.1:{outside}", datetime.now(UTC))}
    assert all(row.fine for row in rows.values()), rows
    assert rows["nodes"].detail == "refused without credentials"
    assert rows["commands"].detail == rows["tasks"].detail == "not passed on"
    rows = {row.what: row for row in check_place(network.files, None, datetime.now(UTC))}
    assert rows["commands"].detail == "for users of this machine alone"


def needles(network: LocalNetwork) -> dict[str, bytes]:
    """Every secret of the deployment, as it stands in its file and as somebody might print it."""
    found: dict[str, bytes] = {}
    for path in sorted([*network.files.rglob("*.key"), *network.files.rglob("*.secret")]):
        name, data = str(path.relative_to(network.files)), path.read_bytes()
        if path.suffix == ".secret":
            forms = [
                data,
                data.hex().encode(),
                base64.b64encode(data),
                base64.urlsafe_b64encode(data),
                repr(data).encode(),
            ]
        elif path.name == "identity.key":
            words = data.split()[2:]
            forms = [*words, *(bytes.fromhex(word.decode()) for word in words)]
        else:
            forms = [line for line in data.splitlines() if len(line) >= 40 and not line.startswith(b"-")]
        found |= {f"{name} {number}": form for number, form in enumerate(forms)}
    assert len(found) >= 4 + 5 + 2 * 5  # identities, the secret, keys of nodes and servers
    return found


def processes() -> dict[int, bytes]:
    """Arguments and environment of everything that runs here now."""
    found: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
    return found


def test_no_secret_is_in_arguments_environments_and_logs(
    network: LocalNetwork, records: Records, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All through a run of a real aggregator. Where there is nginx, one site's node comes through it."""
    if NGINX is not None:
        link = Link(
            name="outside", host="127.0.0.1", port=request.getfixturevalue("outside"), authority=network.link.authority
        )
        network.nodes["site-2"].stop()
        place = network.place("site-2")
        node = start_node(network.processes, link, "site-2", place / "node.key", network.door("site-2"))
        network.nodes["site-2"] = node
        node.wait_for("connected", 120.0)
    (tmp_path / "study.toml").write_text(text())
    process = aggregator(network, tmp_path / "study.toml", tmp_path / "out")
    shown: dict[int, set[bytes]] = {}

    def over() -> bool:
        for pid, words in processes().items():
            shown.setdefault(pid, set()).add(words)
        return process.poll() is not None

    until(over, limit=240.0, pause=0.2)
    log = (tmp_path / "out.log").read_bytes()
    assert process.returncode == 0, log
    assert released(tmp_path / "out").tobytes() == simulated(tmp_path / "out", records)[0].tobytes()
    ours = {one.process.pid for one in network.processes.started if one.alive} | {process.pid}
    assert ours <= set(shown)
    secrets = needles(network)
    written = {str(path): path.read_bytes() for path in network.folder.rglob("*") if path.is_file()}
    texts = {**{f"process {pid}": b"\n".join(words) for pid, words in shown.items()}, **written, "out.log": log}
    assert [(where, name) for where, data in texts.items() for name, form in secrets.items() if form in data] == []
    assert not [pid for pid in ours for words in shown[pid] if b"--token" in words]
    if NGINX is not None:
        passed = (network.folder / "nginx" / "access.log").read_text()
        assert passed.count('"POST /v1/fleet/fedveil-post') >= 5  # greeting, proposal, three rounds


def drip(where: Any, first: bytes) -> tuple[threading.Thread, threading.Event, list[bool]]:
    """Somebody who goes on speaking, a byte at a time; the list fills when they are cut off."""
    stop, cut = threading.Event(), list[bool]()

    def speak() -> None:
        with where, suppress(socket.timeout):
            where.sendall(first)
            where.settimeout(0.02)
            while not stop.is_set():
                try:
                    where.send(b"x")
                    if where.recv(1) == b"":
                        cut.append(True)
                        return
                except TimeoutError:
                    stop.wait(0.02)
                except OSError:
                    cut.append(True)
                    return

    speaking = threading.Thread(target=speak)
    speaking.start()
    return speaking, stop, cut


def test_a_guard_answers_others_while_somebody_drips(network: LocalNetwork) -> None:
    """One byte now and then, of a frame that never ends; an instruction (here a refused one) is not held up by it."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.connect(str(network.door("site-1")))
    speaking, stop, cut = drip(door, (10**6).to_bytes(8, "big"))
    try:
        for _ in range(3):
            assert knock(network.door("site-1"), b"nothing") is None
        assert cut == []  # it was answered while the other went on
    finally:
        stop.set()
        speaking.join()
    assert network.guards["site-1"].alive


@needs_nginx
def test_the_proxy_answers_others_while_somebody_drips(network: LocalNetwork, outside: int, authority: Path) -> None:
    plain = socket.create_connection(("127.0.0.1", outside), timeout=60.0)
    context = ssl.create_default_context(cafile=str(authority))
    speaking, stop, cut = drip(context.wrap_socket(plain, server_hostname="127.0.0.1"), b"POST /v1/fleet/")
    try:
        assert status(outside, authority, post("/v1/fleet/pull-messages")) == "401"
        assert cut == []
    finally:
        stop.set()
        speaking.join()

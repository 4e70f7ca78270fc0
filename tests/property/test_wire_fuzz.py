"""Whatever comes in from outside is read, or refused by name; and what nobody signed moves nothing."""

import json
import socket
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedveil.federation.site.guard import Terms
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.wire import frames
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Refused, peek, seal, unseal
from fedveil.wire.keys import Identity
from unit.federated_studies import STUDIES
from unit.federations import Trial, made_up, study
from unit.plans import some_records

SLOW = settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=200, deadline=None, derandomize=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def mutated(draw: Any, data: bytes) -> bytes:
    """Bytes changed, cut, doubled or put in."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(found)))
        match draw(st.sampled_from(["flip", "cut", "put", "double"])):
            case "flip" if at < len(found):
                found[at] ^= draw(st.integers(1, 255))
            case "cut":
                del found[at : at + draw(st.integers(1, 40))]
            case "put":
                found[at:at] = draw(st.binary(min_size=1, max_size=20))
            case _:
                found[at:at] = found[at : at + 30]
    return bytes(found)


SOME = Content(
    values={"clients": [1, 2], "stage": "mask"},
    rows={"total": np.arange(3), "model": np.ones(2)},
    blocks={"plan": b"text"},
).write()


@MANY
@given(mutated(SOME) | st.binary(max_size=60))
def test_content_is_read_or_refused(data: bytes) -> None:
    try:
        found = Content.read(data)
    except Refused:
        return
    assert isinstance(found.values, dict)
    assert all(row.ndim == 1 for row in found.rows.values())


@MANY
@given(JSON, JSON, JSON, st.binary(max_size=32))
def test_content_of_any_json_is_read_or_refused(values: Any, rows: Any, blocks: Any, rest: bytes) -> None:
    head = json.dumps({"values": values, "rows": rows, "blocks": blocks}).encode()
    try:
        Content.read(head + b"\n" + rest)
    except Refused:
        return


@pytest.mark.parametrize(
    "head",
    [
        b'{"values":{},"rows":[["a","<i8",%d]],"blocks":[]}' % 2**70,
        b'{"values":{},"rows":[],"blocks":[["a",%d]]}' % 10**400,
        b'{"values":' + b"[" * 100_000 + b"]" * 100_000 + b',"rows":[],"blocks":[]}',
        b'{"values":{},"rows":[["a",["<i8"],0]],"blocks":[]}',
        b'{"values":{},"rows":[["a","<i8",0],["a","<i8",1]],"blocks":[],"x":' + b"9" * 5000 + b"}",
    ],
)
def test_content_with_giant_or_deep_numbers_is_refused(head: bytes) -> None:
    with pytest.raises(Refused):
        Content.read(head + b"\n")


@MANY
@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda data: len(data).to_bytes(8, "big") + data))
def test_a_frame_is_read_or_the_line_is_closed(data: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        there.shutdown(socket.SHUT_WR)
        try:
            found = frames.receive(here, largest=2**20, left=lambda: 5.0)
        except frames.Closed:
            return
        assert all(isinstance(name, str) and isinstance(block, bytes) for name, block in found)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A run that has ended at all sites, and another that has been agreed to."""
    trial = Trial(tmp_path_factory.mktemp("fuzz"), some_records(60, clients=9))
    trial.run(study())
    return trial


def memory(trial: Trial) -> dict[str, bytes]:
    """All that the north has on its disk."""
    place = trial.folder / "north"
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


@SLOW
@given(data=st.data())
def test_what_was_not_signed_moves_nothing(trial: Trial, data: Any) -> None:
    sent = [envelope for site, envelope in trial.carrier.sent if site == "north"]
    envelope = data.draw(st.sampled_from(sent))
    changed = data.draw(mutated(envelope))
    before, guard = memory(trial), trial.carrier.guards["north"]
    with pytest.raises(Refused):
        guard.handle(changed if changed != envelope else changed + b"x")
    assert memory(trial) == before


@MANY
@given(data=st.data())
def test_an_envelope_is_opened_as_it_was_or_refused(data: Any) -> None:
    sender, receiver = (Identity.make(name, made_up(name)) for name in ("north", "aggregator"))
    head = Head(run="a" * 32, sender="north", receiver="aggregator", kind="update", round=3, number=9)
    envelope = seal(head, SOME, sender, receiver.card, made_up("once", 32))
    changed = data.draw(mutated(envelope))
    try:
        opened = unseal(changed, receiver, sender.card)
    except Refused:
        return
    assert (changed, opened.head, opened.body) == (envelope, head, SOME)


KINDS = ("hello", "propose", "step", "masked", "make-key", "take-key", "encrypt", "open", "enrol", "roster")
COUNT = iter(range(2**50, 2**60))


def signed(trial: Trial, run: str, kind: str, turn: int, body: bytes) -> str:
    """What the guard of the north says to anything that the aggregator has signed: an answer, never an exception."""
    head = Head(run=run, sender="aggregator", receiver="north", kind=kind, round=turn, number=next(COUNT))
    envelope = seal(head, body, trial.aggregator, trial.identities["north"].card, made_up(str(head), 32))
    return peek(trial.carrier.guards["north"].handle(envelope)).kind


@pytest.fixture(scope="module", params=["hidden", "hidden, masked", "hidden, clients", "fedavg", "dpsgd"])
def agreed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, str, list[bytes]]:
    """A run whose plan the north has accepted; and bodies that were sent in it."""
    trial = Trial(tmp_path_factory.mktemp("agreed"), some_records(60, clients=9))
    trial.run(STUDIES[request.param]())
    sent = [e for site, e in trial.carrier.sent if site == "north"]
    bodies = [unseal(e, trial.identities["north"], trial.aggregator.card).body for e in sent]
    (proposal,) = [body for e, body in zip(sent, bodies, strict=True) if peek(e).kind == "propose"]
    assert signed(trial, "b" * 32, "propose", 0, proposal) == "accepted"
    return trial, "b" * 32, bodies


@SLOW
@given(data=st.data())
def test_anything_signed_gets_an_answer(agreed: tuple[Trial, str, list[bytes]], data: Any) -> None:
    """Also what no aggregator would send: a refusal by its name, never an exception that says nothing."""
    trial, run, bodies = agreed
    body = data.draw(st.sampled_from(bodies))
    if data.draw(st.booleans()):
        body = data.draw(mutated(body))
    run = data.draw(st.sampled_from([run, run, "c" * 32]))
    kind = data.draw(st.sampled_from([*KINDS, "finish", "party", "lead", "other"]))
    assert signed(trial, run, kind, data.draw(st.integers(0, 12) | st.just(2**62)), body)


NUMBERS = ("-1", "1.5", "nan", "inf", "1" + 5000 * "0", "[]", '"x"')


def test_any_plan_that_is_signed_gets_an_answer(trial: Trial) -> None:
    """A plan's text, with each value changed into others; if it reads as a plan, it is named as that."""
    lines = write_plan(trial.plans[0]).splitlines()
    _, envelope = next((s, e) for s, e in trial.carrier.sent if s == "north" and peek(e).kind == "propose")
    asked = Content.read(unseal(envelope, trial.identities["north"], trial.aggregator.card).body)
    trial.carrier.guards["north"].terms = Terms()  # looks, and accepts nothing
    trial.carrier.guards["north"].show = lambda plan: [promise(plan, adversary) for adversary in ADVERSARIES][:0]
    for at, line in enumerate(lines):
        name, found, _ = line.partition(" = ")
        for value in NUMBERS if found else ():
            text = "\n".join([*lines[:at], f"{name} = {value}", *lines[at + 1 :]]) + "\n"
            named = "0" * 64
            with suppress(Exception):
                plan = read_plan(text)
                text, named = write_plan(plan), plan.hash
            content = Content(values={**asked.values, "plan": named}, rows=asked.rows, blocks={"plan": text.encode()})
            assert signed(trial, f"{next(COUNT):032x}", "propose", 0, content.write()) == "refused", (name, value)

"""Whatever bytes arrive: a message taken apart, or one named refusal; never anything else, and never a wrong sum."""

from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.sums.masks.messages import HEAD_BYTES, Kind, head, layout_of, pack, unpack
from fedveil.sums.masks.server import ServerRound
from fedveil.sums.masks.setting import BadMessage, Refused, Setting
from unit.masked_sums import Played, machines, play, some_setting, some_values

SETTING = some_setting(5, length=3)
SIGNED = some_setting(5, length=3, signed=True)
UP = [Kind.ADVERT, Kind.SHARES, Kind.MASKED, Kind.AGREE, Kind.REVEAL]
DOWN = [Kind.ROSTER, Kind.RELAY, Kind.SURVIVORS, Kind.PROOF]
kinds = st.sampled_from(Kind)
some = st.sampled_from([SETTING, SIGNED])


@cache
def whole(signed: bool) -> Played:
    setting = SIGNED if signed else SETTING
    return play(setting, machines(setting, some_values(setting)))


def about(lists: tuple[frozenset[int], ...]) -> list[int]:
    return sorted(lists[-1]) if lists else [1, 2, 3]


@given(kind=kinds, setting=some, message=st.binary(max_size=600))
def test_any_bytes(kind: Kind, setting: Setting, message: bytes) -> None:
    for given_head in (b"", head(kind, SETTING, 1)):
        with suppress(Refused):
            unpack(kind, setting, given_head + message, rows=about)


@given(kind=kinds, setting=some, data=st.data())
def test_there_and_back(kind: Kind, setting: Setting, data: st.DataObject) -> None:
    layout = layout_of(kind, setting)
    lists = tuple(data.draw(st.frozensets(st.sampled_from(range(5)))) for _ in range(layout.lists))
    fixed = data.draw(st.binary(min_size=layout.fixed, max_size=layout.fixed))
    listed = sorted(data.draw(st.frozensets(st.sampled_from(range(5)), max_size=layout.most))) if layout.row else []
    row = st.binary(min_size=layout.row, max_size=layout.row)
    rows = {client: data.draw(row) for client in listed}
    message = pack(kind, setting, 2, lists=lists, fixed=fixed, rows=rows)
    packet = unpack(kind, setting, message, 2, lambda _: listed)
    assert (packet.party, packet.lists, bytes(packet.fixed), packet.rows) == (2, lists, fixed, rows)
    for wrong in (message[:-1], message + b"\0"):
        if len(message) > HEAD_BYTES:
            with pytest.raises(BadMessage):
                unpack(kind, setting, wrong, 2, lambda _: listed)


def changed(message: bytes, data: st.DataObject) -> bytes:
    """Some bytes replaced, cut out, or put in."""
    start = data.draw(st.integers(0, len(message)), "start")
    gone = data.draw(st.sampled_from([0, 1, 4, 32, 100, len(message)]), "gone")
    more = data.draw(st.one_of(st.binary(max_size=40), st.just(bytes(gone)), st.binary(min_size=gone, max_size=gone)))
    return message[:start] + more + message[start + gone :]


@settings(max_examples=60)
@given(kind=st.sampled_from(DOWN), signed=st.booleans(), data=st.data())
def test_a_client_never_breaks(kind: Kind, signed: bool, data: st.DataObject) -> None:
    setting, found = (SIGNED if signed else SETTING), whole(signed)
    client = machines(setting, some_values(setting))[1]
    client.open()
    for before in DOWN[: DOWN.index(kind)]:
        client.handle(found.down[before][1])
    message = changed(found.down[kind][1], data)
    try:
        answer = client.handle(message)
    except Refused:
        return
    # Without identities a key may be anybody's; another list of survivors is legal, and then not agreed on. In the
    # relay only the hash of commitments, which nobody can check alone, may differ: it changes no masked value, but
    # the client signs it too, so that the others find it out.
    if kind is not Kind.SURVIVORS and (signed or kind is not Kind.ROSTER):
        signature = 64 if signed and kind is Kind.RELAY else 0
        expected = found.up[Kind(kind + 1)][1]
        assert answer[: len(answer) - signature] == expected[: len(expected) - signature]


@settings(max_examples=100)
@given(kind=st.sampled_from(UP), signed=st.booleans(), data=st.data())
def test_a_server_never_breaks_and_never_sums_wrongly(kind: Kind, signed: bool, data: st.DataObject) -> None:
    """A changed message of client 1 up to its envelopes; its masked values are its own business."""
    setting, found = (SIGNED if signed else SETTING), whole(signed)
    values = some_values(setting)
    clients = machines(setting, values)
    if kind is Kind.ADVERT:
        server, inbox = ServerRound(setting), dict.fromkeys(clients, b"")
    else:
        played = play(setting, clients, Kind(kind - 1))
        server, inbox = played.server, played.down[Kind(kind - 1)]
    for client in inbox:
        answer = found.up[kind][client]
        try:
            server.handle(changed(answer, data) if client == 1 else answer, sender=client)
        except Refused:
            assert client == 1
    try:
        server.advance()
    except Refused:
        return
    if kind is Kind.REVEAL:
        assert np.array_equal(server.result.total, sum(values.values()))

"""Envelopes: only the receiver reads them, only the sender can have made them, and not one byte may change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.wire.content import Content
from fedveil.wire.envelope import MAGIC, Head, Refused, peek, seal, unseal
from fedveil.wire.keys import Card, Identity
from unit.federations import made_up

ALICE, BOB, EVE = (Identity.make(name, made_up(name)) for name in ("alice", "bob", "eve"))
HEAD = Head(run="0" * 32, sender="alice", receiver="bob", kind="step", round=3, number=7)
LETTER = seal(HEAD, b"the model", ALICE, BOB.card, made_up("once", 32))


def test_the_receiver_reads_what_the_sender_wrote() -> None:
    opened = unseal(LETTER, BOB, ALICE.card)
    assert (opened.head, opened.body) == (HEAD, b"the model")
    assert peek(LETTER) == HEAD
    assert b"the model" not in LETTER


@given(place=st.integers(0, len(LETTER) - 1), change=st.integers(1, 255))
def test_no_byte_may_change(place: int, change: int) -> None:
    altered = bytearray(LETTER)
    altered[place] ^= change
    with pytest.raises(Refused):
        unseal(bytes(altered), BOB, ALICE.card)


@given(size=st.integers(0, len(LETTER) - 1))
def test_nothing_may_be_missing(size: int) -> None:
    with pytest.raises(Refused):
        unseal(LETTER[:size], BOB, ALICE.card)


def test_nothing_may_be_added() -> None:
    with pytest.raises(Refused):
        unseal(LETTER + b"\0", BOB, ALICE.card)


def test_others_can_neither_read_nor_write() -> None:
    with pytest.raises(Refused, match="wrong-party"):
        unseal(LETTER, EVE, ALICE.card)
    posing = Identity.make("alice", made_up("eve"))  # Eve's keys under Alice's name
    forged = seal(HEAD, b"give me your data", posing, BOB.card, made_up("other", 32))
    with pytest.raises(Refused, match="bad-signature"):
        unseal(forged, BOB, ALICE.card)


def test_a_letter_to_another_key_of_the_same_name_is_not_read() -> None:
    other = Identity(name="bob", sign=BOB.sign, unseal=made_up("x", 32))
    with pytest.raises(Refused, match="not-for-me"):
        unseal(LETTER, other, ALICE.card)


def test_a_letter_signed_over_by_another_is_refused() -> None:
    """Eve takes Alice's sealed body and signs it as her own: the head she must change is bound to the body."""
    head = Head(run="0" * 32, sender="eve", receiver="bob", kind="step", round=3, number=7)
    mine = LETTER.index(b"{") + len(HEAD.text())
    text = head.text()
    signed = MAGIC + len(text).to_bytes(2, "big") + text + LETTER[mine:-64]
    with pytest.raises(Refused, match="not-for-me"):
        unseal(signed + EVE.signer.sign(signed), BOB, EVE.card)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"run": 1}', b"\xff", b"[" * 100_000])
def test_heads_that_are_none(text: bytes) -> None:
    with pytest.raises(Refused):
        Head.read(text)


def test_keys_are_written_and_read_back_and_never_shown() -> None:
    assert Identity.read(ALICE.text()) == ALICE
    assert Card.read(ALICE.card.text()) == ALICE.card
    assert ALICE.sign.hex() not in repr(ALICE) + ALICE.card.text()
    with pytest.raises(ValueError, match="fedveil-private-1"):
        Identity.read(ALICE.card.text())


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "-a", "a" * 64, "a\n", None])
def test_names_are_short_and_plain(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Identity.make(name, made_up("x"))


@given(data=st.binary(max_size=60))
def test_contents_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        Content.read(data)


@pytest.mark.parametrize(
    "head",
    [
        b'{"values":{},"rows":[["a","<i8",1]],"blocks":[]}',
        b'{"values":{},"rows":[["a","|O",1]],"blocks":[]}',
        b'{"values":{},"rows":[["a","<f4",2]],"blocks":[]}',
        b'{"values":{},"rows":[["a","<i8",-1]],"blocks":[["b",8]]}',
        b'{"values":{},"rows":[],"blocks":[["b",true]]}',
        b'{"values":[],"rows":[],"blocks":[]}',
    ],
)
def test_contents_hold_what_they_say(head: bytes) -> None:
    with pytest.raises(Refused):
        Content.read(head + b"\n" + b"1234567")
    if b"|O" in head or b"<f4" in head:
        with pytest.raises(Refused):
            Content.read(head + b"\n" + b"12345678")

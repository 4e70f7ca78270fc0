"""Messages of a masked sum: a head that binds them, lists of clients, fields and rows of fixed length.

A message does not state its length: every length follows from the setting, the graph and the lists before it, and is
checked before the body is read. ``party`` is the client that sends a message, or receives it from the server.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NoReturn, final

from fedveil.sums.masks.keys import COMMITMENT_BYTES, ENVELOPE_BYTES, KEY_BYTES, OPENING_BYTES, SIGNATURE_BYTES
from fedveil.sums.masks.setting import BadMessage, OtherParty, OtherRound, OtherRun, OutOfTurn, Setting

Members = frozenset[int]
Rows = Callable[[tuple[Members, ...]], Sequence[int]]

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBHIQ32s")  # kind, version, zero, party, round, run
HEAD_BYTES: Final = _HEAD.size  # 48, a multiple of 8: masked values are aligned
DIGEST_BYTES: Final = 32


class Kind(IntEnum):
    """The kinds of messages in their order; odd ones go to the server."""

    ADVERT = 1
    ROSTER = 2
    SHARES = 3
    RELAY = 4
    MASKED = 5
    SURVIVORS = 6
    AGREE = 7
    PROOF = 8
    REVEAL = 9


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a message: lists of clients, then fixed bytes, then at most ``most`` rows of fixed length."""

    lists: int = 0
    fixed: int = 0
    row: int = 0
    most: int = 0


@final
@dataclass(frozen=True, slots=True)
class Packet:
    """A message after parsing."""

    party: int
    lists: tuple[Members, ...] = ()
    fixed: memoryview = field(default_factory=lambda: memoryview(b""))
    rows: dict[int, bytes] = field(default_factory=dict)


def layout_of(kind: Kind, setting: Setting) -> Layout:
    """Return the layout of each kind of message in this setting."""
    signature = SIGNATURE_BYTES if setting.identities else 0
    near, everyone = setting.neighbours, len(setting.clients)
    match kind:
        case Kind.ADVERT:  # the key for envelopes, the key for masks
            return Layout(fixed=2 * KEY_BYTES + signature)
        case Kind.ROSTER:  # who takes part; keys of the neighbours among them
            return Layout(lists=1, row=2 * KEY_BYTES + signature, most=near)
        case Kind.SHARES:  # the self-mask's digest, commitments to the own shares; commitments and envelope for each
            return Layout(
                fixed=DIGEST_BYTES + 2 * COMMITMENT_BYTES, row=2 * COMMITMENT_BYTES + ENVELOPE_BYTES, most=near
            )
        case Kind.RELAY:  # who has shared; a hash of all commitments; what the neighbours sealed for this client
            return Layout(lists=1, fixed=DIGEST_BYTES, row=2 * COMMITMENT_BYTES + ENVELOPE_BYTES, most=near)
        case Kind.MASKED:  # the values; a signature of the lists under which they were masked
            return Layout(fixed=8 * setting.length + signature)
        case Kind.SURVIVORS:  # who is in the sum, who was lost; those signatures
            return Layout(lists=2, row=signature, most=everyone)
        case Kind.AGREE:  # the digest of all lists so far
            return Layout(fixed=DIGEST_BYTES + signature)
        case Kind.PROOF:  # who is in the sum, who was lost, who agreed, and with what
            return Layout(lists=3, row=DIGEST_BYTES + signature, most=everyone)
        case Kind.REVEAL:  # one opened share for each neighbour and for the client itself
            return Layout(row=OPENING_BYTES, most=near + 1)


def _list_bytes(setting: Setting) -> int:
    return (len(setting.clients) + 7) // 8


def _coded(members: Members, setting: Setting) -> bytes:
    bits = sum(1 << at for at, client in enumerate(setting.clients) if client in members)
    return bits.to_bytes(_list_bytes(setting), "little")


def _members(code: memoryview, setting: Setting) -> Members:
    bits = int.from_bytes(code, "little")
    if bits >> len(setting.clients):
        raise BadMessage("A list of participants names clients beyond the last.")
    return frozenset(client for at, client in enumerate(setting.clients) if bits >> at & 1)


def head(kind: Kind, setting: Setting, party: int) -> bytes:
    """Return the first 48 bytes of a message."""
    return _HEAD.pack(kind, VERSION, 0, party, setting.round, setting.run)


def pack(
    kind: Kind,
    setting: Setting,
    party: int,
    *,
    lists: tuple[Members, ...] = (),
    fixed: bytes = b"",
    rows: Mapping[int, bytes] | None = None,
) -> bytes:
    """Return a message; its rows are in ascending order of the client they are about."""
    coded = [_coded(members, setting) for members in lists]
    return b"".join([head(kind, setting, party), *coded, fixed, *(row for _, row in sorted((rows or {}).items()))])


def _none(_: tuple[Members, ...]) -> Sequence[int]:
    return ()


def unpack(kind: Kind, setting: Setting, message: bytes, party: int | None = None, rows: Rows = _none) -> Packet:
    """Parse a message; refuse another kind, round or party. ``rows``: whom its rows are about, given its lists."""
    if not isinstance(message, bytes):
        raise BadMessage(f"A message must be bytes, got {type(message).__name__}.")
    if len(message) < HEAD_BYTES:
        raise BadMessage(f"A message has a head of {HEAD_BYTES} bytes, got {len(message)}.")
    result = _checked_head(kind, setting, message, party)
    layout, width = layout_of(kind, setting), _list_bytes(setting)
    least = HEAD_BYTES + layout.lists * width + layout.fixed
    if not least <= len(message) <= least + layout.row * layout.most:
        _wrong_size(kind, result, len(message))
    view = memoryview(message)
    lists = tuple(_members(view[at : at + width], setting) for at in range(HEAD_BYTES, least - layout.fixed, width))
    about = sorted(rows(lists)) if layout.row else ()
    if len(message) != least + layout.row * len(about):
        _wrong_size(kind, result, len(message))
    spans = ((client, least + at * layout.row) for at, client in enumerate(about))
    table = {client: message[start : start + layout.row] for client, start in spans}
    return Packet(result, lists, view[least - layout.fixed : least], table)


def sender_of(message: bytes) -> int:
    """Return the client that a message claims to be from, not yet verified."""
    if not isinstance(message, bytes) or len(message) < HEAD_BYTES:
        raise BadMessage("A message is bytes, and begins with a whole head.")
    return int(_HEAD.unpack_from(message)[3])


def _checked_head(kind: Kind, setting: Setting, message: bytes, party: int | None) -> int:
    number, version, zero, result, turn, run = _HEAD.unpack_from(message)
    if version != VERSION or zero != 0 or number not in Kind._value2member_map_:
        raise BadMessage("The head is of no message that this version knows.")
    if run != setting.run:
        raise OtherRun(f"The message belongs to run {run.hex()[:8]}, not to run {setting.run.hex()[:8]}.")
    if turn != setting.round:
        raise OtherRound(f"The message belongs to round {turn}, not to round {setting.round}.")
    if number != kind:
        raise OutOfTurn(f"Expected the message {kind.name.lower()}, got {Kind(number).name.lower()}.")
    if result not in setting.clients or (party is not None and result != party):
        raise OtherParty(f"The message is of client {result}, who is not {'invited' if party is None else party}.")
    return int(result)


def _wrong_size(kind: Kind, party: int, size: int) -> NoReturn:
    raise BadMessage(f"The message {kind.name.lower()} of client {party} has a wrong size, {size} bytes.")

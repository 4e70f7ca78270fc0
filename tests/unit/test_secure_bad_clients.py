"""What clients may get wrong, in messages and in inputs: refused by name, and the round goes on without them."""

import struct
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedveil.core.errors import BadValue, FedveilError
from fedveil.sums.masks import client as module
from fedveil.sums.masks import setting
from fedveil.sums.masks.client import ClientRound
from fedveil.sums.masks.keys import LOW_ORDER, SHARE_BYTES, agreed
from fedveil.sums.masks.messages import HEAD_BYTES, Kind, pack
from fedveil.sums.masks.rounds import SecureSumming
from fedveil.sums.masks.server import ServerRound
from fedveil.sums.masks.setting import (
    BadKey,
    BadMessage,
    BadShare,
    BadSignature,
    Duplicate,
    ListsDiffer,
    OtherParty,
    OtherRound,
    OtherRun,
    OutOfBounds,
    OutOfTurn,
    Refused,
    RoundReused,
    Setting,
    TooFew,
)
from unit.masked_sums import RUN, Played, machines, play, signer, some_setting, some_values

SETTING = some_setting()
SIGNED = some_setting(signed=True)
EVERYONE = frozenset(SETTING.clients)


def round_until(until: Kind, setting: Setting = SETTING, lost: int | None = None) -> Played:
    """Played to just before the clients see the message; ``lost`` shared its secrets and fell silent."""

    def silent(stage: str, client: int) -> bool:
        return client == lost and stage == "mask"

    return play(setting, machines(setting, some_values(setting)), until, silent)


class TestBadClients:
    """The server's side: the message is refused, the round goes on, and the sum is that of the others."""

    def goes_on(
        self, kind: Kind, change: Callable[[bytes], object], error: type[Refused], setting: Setting = SETTING
    ) -> None:
        values = some_values(setting)
        server, clients = ServerRound(setting), machines(setting, values)
        inbox = dict.fromkeys(clients, b"")
        if kind is not Kind.ADVERT:
            played = play(setting, clients, Kind(kind - 1))
            server, inbox = played.server, played.down[Kind(kind - 1)]
        bad, at = 2, kind
        while True:
            for client, message in inbox.items():
                answer = clients[client].open() if at is Kind.ADVERT else clients[client].handle(message)
                if client == bad and at is kind:
                    with pytest.raises(error):
                        server.handle(change(answer), sender=client)  # type: ignore[arg-type]
                else:
                    server.handle(answer, sender=client)
            inbox = server.advance()
            if at is Kind.REVEAL:
                break
            at = Kind(at + 2)
        survivors = tuple(c for c in setting.clients if c != bad or kind > Kind.MASKED)
        assert server.result.survivors == survivors
        assert np.array_equal(server.result.total, sum(values[client] for client in survivors))

    @pytest.mark.parametrize("kind", [Kind.ADVERT, Kind.SHARES, Kind.MASKED, Kind.AGREE, Kind.REVEAL])
    @pytest.mark.parametrize(
        ("change", "error"),
        [
            (lambda m: m[:-1], BadMessage),
            (lambda m: m + b"\0", BadMessage),
            (lambda m: m + bytes(10**6), BadMessage),
            (lambda m: b"", BadMessage),
            (lambda m: m[:20], BadMessage),
            (lambda m: bytearray(m), BadMessage),
            (lambda m: "text", BadMessage),
            (lambda m: None, BadMessage),
            (lambda m: np.frombuffer(m, dtype=np.uint8), BadMessage),
            (lambda m: b"\x63" + m[1:], BadMessage),
            (lambda m: m[:1] + b"\2" + m[2:], BadMessage),
            (lambda m: m[:2] + b"\1" + m[3:], BadMessage),
            (lambda m: bytes([2]) + m[1:], OutOfTurn),
            (lambda m: m[:4] + struct.pack("<I", 3) + m[8:], OtherParty),
            (lambda m: m[:8] + struct.pack("<Q", 2) + m[16:], OtherRound),
            (lambda m: m[:16] + bytes(32) + m[48:], OtherRun),
        ],
    )
    def test_wrong_at_any_stage(self, kind: Kind, change: Callable[[bytes], object], error: type[Refused]) -> None:
        self.goes_on(kind, change, error)

    @pytest.mark.parametrize("number", [*sorted(LOW_ORDER), 2**255 - 19, 2**256 - 1])
    @pytest.mark.parametrize("at", [HEAD_BYTES, HEAD_BYTES + 32])
    def test_keys_off_the_curve(self, number: int, at: int) -> None:
        key = number.to_bytes(32, "little")
        self.goes_on(Kind.ADVERT, lambda m: m[:at] + key + m[at + 32 :], BadKey)

    def test_a_key_of_somebody_else(self) -> None:
        theirs = machines(SETTING, some_values(SETTING))[1].open()[HEAD_BYTES:]
        self.goes_on(Kind.ADVERT, lambda m: m[:HEAD_BYTES] + theirs[:32] + m[HEAD_BYTES + 32 :], BadKey)
        self.goes_on(Kind.ADVERT, lambda m: m[:HEAD_BYTES] + m[HEAD_BYTES + 32 :] * 2, BadKey)

    @pytest.mark.parametrize("kind", [Kind.ADVERT, Kind.MASKED, Kind.AGREE])
    def test_unsigned_words(self, kind: Kind) -> None:
        self.goes_on(kind, lambda m: m[:-1] + bytes([m[-1] ^ 1]), BadSignature, SIGNED)

    def test_agreement_to_another_list(self) -> None:
        self.goes_on(Kind.AGREE, lambda m: m[:-1] + bytes([m[-1] ^ 1]), ListsDiffer)

    @pytest.mark.parametrize("owner", range(6))
    def test_a_corrupt_share_is_found_and_its_sender_named(self, owner: int) -> None:
        start = HEAD_BYTES + owner * (SHARE_BYTES + 16)

        def change(message: bytes) -> bytes:
            return message[:start] + bytes([message[start] ^ 1]) + message[start + 1 :]

        self.goes_on(Kind.REVEAL, change, BadShare)
        played = round_until(Kind.PROOF, lost=4)
        answer = played.clients[2].handle(played.down[Kind.PROOF][2])
        with pytest.raises(BadShare, match=f"Client 2 gave a share of client {owner} that does not fit"):
            played.server.handle(change(answer))

    def test_one_answer_a_stage(self) -> None:
        played = round_until(Kind.RELAY)
        for client in SETTING.clients:
            answer = played.clients[client].handle(played.down[Kind.RELAY][client])
            played.server.handle(answer)
            with pytest.raises(Duplicate, match=f"Client {client} has answered"):
                played.server.handle(answer)
        for message in played.server.advance().values():
            assert message

    def test_who_has_left_does_not_come_back(self) -> None:
        played = round_until(Kind.SURVIVORS, lost=5)
        answer = pack(Kind.AGREE, SETTING, 5, fixed=bytes(32))
        with pytest.raises(OtherParty, match="Client 5 has left the round"):
            played.server.handle(answer)
        with pytest.raises(OtherParty, match="client 7, who is not invited"):
            played.server.handle(pack(Kind.AGREE, SETTING, 7, fixed=bytes(32)))

    def test_the_end_is_the_end(self) -> None:
        played = play(SETTING, machines(SETTING, some_values(SETTING)))
        with pytest.raises(OutOfTurn, match="over"):
            played.server.handle(played.up[Kind.REVEAL][0])
        with pytest.raises(OutOfTurn, match="over"):
            played.server.advance()
        with pytest.raises(OutOfTurn, match="not ended"):
            _ = round_until(Kind.PROOF).server.result

    def test_shares_that_are_not_of_what_they_should_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A dealer whose shares fit their commitments but not its self-mask is named."""
        values = some_values(SETTING)
        clients = machines(SETTING, values)
        real = module.self_mask_digest
        monkeypatch.setattr(module, "self_mask_digest", lambda seed, digest: real(bytes(32), digest))
        with pytest.raises(BadShare, match="Client 0 dealt shares that are not of its self-mask"):
            play(SETTING, clients)


class TestInputs:
    """Bounds come before masks; who has no input that can be summed is a dropout."""

    @pytest.mark.parametrize(
        "bad",
        [
            np.zeros(4, dtype=np.int64),
            np.zeros(6, dtype=np.int64),
            np.zeros((5, 1), dtype=np.int64),
            np.zeros(5, dtype=np.int32),
            np.full(5, np.nan),
            np.full(5, np.inf),
            np.full(5, 2**41, dtype=np.int64),
            np.full(5, -(2**63), dtype=np.int64),
            [0] * 5,
            None,
        ],
        ids=str,
    )
    def test_a_bad_input_is_a_dropout(self, bad: object) -> None:
        parts = some_values(SETTING)
        summing = SecureSumming(RUN, bytes(32), least=4, neighbours=5, threshold=4, largest=2**40)
        summed = summing(0, parts | {3: bad})  # type: ignore[dict-item]
        assert summed.survivors == (0, 1, 2, 4, 5)
        assert np.array_equal(summed.total, sum(parts[client] for client in summed.survivors))
        assert "An input" in summing.traffic.refused[3]
        with pytest.raises(OutOfBounds):
            ClientRound(SETTING, 3, bytes(32), bad, largest=2**40)  # type: ignore[arg-type]

    def test_rounds_only_go_up(self) -> None:
        summing = SecureSumming(RUN, bytes(32), least=4)
        parts = some_values(SETTING)
        summing(5, parts)
        for turn in (5, 4):
            with pytest.raises(RoundReused):
                summing(turn, parts)

    def test_too_few_clients_answered(self) -> None:
        parts = some_values(SETTING)
        with pytest.raises(TooFew, match="Only 3 clients answered, and the plan promises 4"):
            SecureSumming(RUN, bytes(32), least=4)(0, {client: parts[client] for client in range(3)})

    @pytest.mark.parametrize("seed", [b"", bytes(31), "x" * 32, None])
    def test_a_seed_is_32_bytes(self, seed: object) -> None:
        with pytest.raises(BadValue, match="seed must be 32 bytes"):
            SecureSumming(RUN, seed, least=4)  # type: ignore[arg-type]
        with pytest.raises(BadValue, match="seed must be 32 bytes"):
            ClientRound(SETTING, 0, seed, some_values(SETTING)[0])  # type: ignore[arg-type]

    def test_a_signer_goes_with_identities(self) -> None:
        values = some_values(SETTING)[0]
        with pytest.raises(BadValue, match="signer"):
            ClientRound(SIGNED, 0, bytes(32), values)
        with pytest.raises(BadValue, match="signer"):
            ClientRound(SETTING, 0, bytes(32), values, signer=signer(0))


def test_low_order_points_agree_on_nothing() -> None:
    """Our list is right: the library itself finds a shared secret of zero for each."""
    mine = X25519PrivateKey.from_private_bytes(bytes([7]) * 32)
    for number in LOW_ORDER:
        with pytest.raises(ValueError, match="shared key"):
            mine.exchange(X25519PublicKey.from_public_bytes(number.to_bytes(32, "little")))
        with pytest.raises(BadKey):
            agreed(mine, number.to_bytes(32, "little"), 1)
    assert len(agreed(mine, bytes([9]) + bytes(31), 1)) == 32


def test_refusals_are_one_tree() -> None:
    named = [value for value in vars(setting).values() if isinstance(value, type) and issubclass(value, Refused)]
    assert len(named) == 18
    assert all(issubclass(error, FedveilError) for error in named)
    assert all(error.__name__ in (setting.__doc__ or "") for error in named)

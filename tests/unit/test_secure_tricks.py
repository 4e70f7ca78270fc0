"""What an active server may try: each trick is refused by the client, by name."""

import pytest

from fedveil.sums.masks.client import ClientRound, Member
from fedveil.sums.masks.keys import ENVELOPE_BYTES, LOW_ORDER
from fedveil.sums.masks.messages import HEAD_BYTES, Kind, pack, unpack
from fedveil.sums.masks.setting import (
    AliveAndGone,
    BadEnvelope,
    BadKey,
    BadList,
    BadMessage,
    BadSignature,
    ListsDiffer,
    OtherParty,
    OtherRound,
    OtherRun,
    OutOfTurn,
    Refused,
    RoundReused,
    Setting,
    ShareSpent,
    TooFew,
)
from unit.masked_sums import RUN, Played, machines, play, some_setting, some_values

SETTING = some_setting()
SIGNED = some_setting(signed=True)
EVERYONE = frozenset(SETTING.clients)


def round_until(until: Kind, setting: Setting = SETTING, lost: int | None = None) -> Played:
    """Played to just before the clients see the message; ``lost`` shared its secrets and fell silent."""

    def silent(stage: str, client: int) -> bool:
        return client == lost and stage == "mask"

    return play(setting, machines(setting, some_values(setting)), until, silent)


class TestServerTricks:
    """The client's side: nothing is answered, and nothing ever after."""

    def refuses(self, client: ClientRound, message: bytes, error: type[Refused], words: str = "") -> None:
        with pytest.raises(error, match=words):
            client.handle(message)
        with pytest.raises(OutOfTurn, match="left it"):
            client.handle(message)

    def test_two_participant_lists_with_identities(self) -> None:
        """Client 0 is told that 5 was lost, all others that it was not: their signatures do not fit."""
        played = round_until(Kind.SURVIVORS, SIGNED)
        rows = {client: played.up[Kind.MASKED][client][-64:] for client in range(5)}
        told = pack(Kind.SURVIVORS, SIGNED, 0, lists=(EVERYONE - {5}, frozenset({5})), rows=rows)
        mine = played.clients[0].handle(told)
        agrees = {0: mine[HEAD_BYTES:]}
        for client in range(1, 6):
            agrees[client] = played.clients[client].handle(played.down[Kind.SURVIVORS][client])[HEAD_BYTES:]
        del agrees[5]  # it is lost, as far as client 0 knows
        lists = (EVERYONE - {5}, frozenset({5}), EVERYONE - {5})
        honest = pack(Kind.PROOF, SIGNED, 0, lists=lists, rows=agrees)
        pretended = {client: mine[HEAD_BYTES : HEAD_BYTES + 32] + row[32:] for client, row in agrees.items()}
        forged = pack(Kind.PROOF, SIGNED, 0, lists=lists, rows=pretended)
        self.refuses(played.clients[0], honest, ListsDiffer, "Client 1 was told other lists")
        again = round_until(Kind.SURVIVORS, SIGNED)
        again.clients[0].handle(told)
        self.refuses(again.clients[0], forged, BadSignature, "client 1's is not")

    def test_the_lists_change_after_agreement(self) -> None:
        played = round_until(Kind.PROOF)
        lists = (EVERYONE - {5}, frozenset({5}), EVERYONE - {5})
        message = pack(Kind.PROOF, SETTING, 0, lists=lists, rows=dict.fromkeys(range(5), bytes(32)))
        self.refuses(played.clients[0], message, ListsDiffer, "have changed")

    def test_other_digests_in_the_proof(self) -> None:
        played = round_until(Kind.PROOF)
        good = played.down[Kind.PROOF][0]
        self.refuses(played.clients[0], good[:-1] + bytes([good[-1] ^ 1]), ListsDiffer, "Client 5 was told other lists")

    @pytest.mark.parametrize("kind", [Kind.SURVIVORS, Kind.PROOF])
    def test_alive_and_gone(self, kind: Kind) -> None:
        played = round_until(kind)
        lists = (EVERYONE, frozenset({4}), EVERYONE)[: 2 if kind is Kind.SURVIVORS else 3]
        rows = dict.fromkeys(range(6), bytes(32)) if kind is Kind.PROOF else None
        self.refuses(
            played.clients[0], pack(kind, SETTING, 0, lists=lists, rows=rows), AliveAndGone, "client 4 is both"
        )

    def test_neither_alive_nor_gone(self) -> None:
        played = round_until(Kind.SURVIVORS)
        message = pack(Kind.SURVIVORS, SETTING, 0, lists=(EVERYONE - {4}, frozenset()))
        self.refuses(played.clients[0], message, BadList, "not together those who shared")

    def test_the_same_shares_asked_twice(self) -> None:
        played = round_until(Kind.PROOF, lost=5)
        good = played.down[Kind.PROOF][0]
        played.clients[0].handle(good)
        for _ in range(2):
            with pytest.raises(ShareSpent, match="given its shares of round 3 already"):
                played.clients[0].handle(good)

    def test_each_share_is_of_one_kind(self) -> None:
        """Of those in the sum the self-mask's, of the lost the pair key's, of nobody both."""
        played = round_until(Kind.PROOF, lost=5)
        kept = dict(played.clients[0]._held) | {0: played.clients[0]._dealt[0]}
        reveal = unpack(
            Kind.REVEAL, SETTING, played.clients[0].handle(played.down[Kind.PROOF][0]), 0, lambda _: range(6)
        )
        for owner, opening in reveal.rows.items():
            assert opening == (kept[owner].pair_key if owner == 5 else kept[owner].self_mask)

    def test_a_replayed_round(self) -> None:
        old = round_until(Kind.RELAY)
        now = some_setting(round=4)
        played = play(now, machines(now, some_values(now)), Kind.RELAY)
        self.refuses(played.clients[0], old.down[Kind.RELAY][0], OtherRound, "round 3, not to round 4")

    def test_another_run(self) -> None:
        other = play(
            some_setting(run=bytes(32)), machines(some_setting(run=bytes(32)), some_values(SETTING)), Kind.ROSTER
        )
        self.refuses(
            round_until(Kind.ROSTER).clients[0], other.down[Kind.ROSTER][0], OtherRun, "belongs to run 00000000"
        )

    def test_a_round_is_joined_once(self) -> None:
        member = Member(0, RUN)
        values = some_values(SETTING)[0]
        member.join(SETTING, bytes(32), values)
        for again in (SETTING, some_setting(round=2)):
            with pytest.raises(RoundReused, match="has been in round 3"):
                member.join(again, bytes(32), values)
        with pytest.raises(RoundReused):
            Member(0, RUN, last=member.last).join(SETTING, bytes(32), values)
        member.join(some_setting(round=4), bytes(32), values)
        with pytest.raises(OtherRun):
            member.join(some_setting(run=bytes(32), round=9), bytes(32), values)

    def test_a_dropped_share(self) -> None:
        played = round_until(Kind.RELAY)
        good = played.down[Kind.RELAY][0]
        self.refuses(played.clients[0], good[: -(64 + ENVELOPE_BYTES)], BadMessage, "wrong size")

    def test_a_client_denied_to_have_shared(self) -> None:
        """The server may say so, but then to all: the lists are hashed into what everybody signs."""
        played = round_until(Kind.RELAY)
        good = played.down[Kind.RELAY][0]
        few = EVERYONE - {5}
        packet = unpack(Kind.RELAY, SETTING, good, 0, lambda _: range(1, 6))
        rows = {client: row for client, row in packet.rows.items() if client != 5}
        played.clients[0].handle(pack(Kind.RELAY, SETTING, 0, lists=(few,), fixed=bytes(packet.fixed), rows=rows))
        for client in range(1, 6):
            played.clients[client].handle(played.down[Kind.RELAY][client])
        one = played.clients[0].handle(pack(Kind.SURVIVORS, SETTING, 0, lists=(few, frozenset())))
        other = played.clients[1].handle(pack(Kind.SURVIVORS, SETTING, 1, lists=(EVERYONE, frozenset())))
        assert one[HEAD_BYTES:] != other[HEAD_BYTES:]

    def test_a_victim_who_is_told_to_leave_masks_out(self) -> None:
        """Client 0 masks without 4 and 5 around it; the others do not take it for a survivor of their round."""
        setting = some_setting(signed=True)
        played = play(setting, machines(setting, some_values(setting)), Kind.RELAY)
        packet = unpack(Kind.RELAY, setting, played.down[Kind.RELAY][0], 0, lambda _: range(1, 6))
        rows = {client: row for client, row in packet.rows.items() if client < 4}
        told = pack(Kind.RELAY, setting, 0, lists=(EVERYONE - {4, 5},), fixed=bytes(packet.fixed), rows=rows)
        masked = {0: played.clients[0].handle(told)}
        for client in range(1, 6):
            masked[client] = played.clients[client].handle(played.down[Kind.RELAY][client])
        signatures = {client: message[-64:] for client, message in masked.items()}
        survivors = pack(Kind.SURVIVORS, setting, 1, lists=(EVERYONE, frozenset()), rows=signatures)
        self.refuses(played.clients[1], survivors, ListsDiffer, "Client 0 has not masked its values under the lists")
        with pytest.raises(BadSignature):
            played.server.handle(masked[0])

    @pytest.mark.parametrize("at", [1, 17, ENVELOPE_BYTES, ENVELOPE_BYTES + 1, ENVELOPE_BYTES + 64])
    def test_a_modified_envelope_or_commitment(self, at: int) -> None:
        played = round_until(Kind.RELAY)
        message = bytearray(played.down[Kind.RELAY][0])
        message[-at] ^= 1
        self.refuses(played.clients[0], bytes(message), BadEnvelope, "from client 5")

    def test_an_envelope_meant_for_another(self) -> None:
        played = round_until(Kind.RELAY)
        size = 64 + ENVELOPE_BYTES
        mine, other = played.down[Kind.RELAY][0], played.down[Kind.RELAY][1]
        self.refuses(played.clients[0], mine[:-size] + other[-size:], BadEnvelope, "from client 5")

    def test_too_few(self) -> None:
        few = frozenset({0, 1, 2})
        roster = round_until(Kind.ROSTER)
        packet = unpack(Kind.ROSTER, SETTING, roster.down[Kind.ROSTER][0], 0, lambda _: range(1, 6))
        rows = {client: packet.rows[client] for client in (1, 2)}
        message = pack(Kind.ROSTER, SETTING, 0, lists=(few,), rows=rows)
        self.refuses(roster.clients[0], message, TooFew, "Only 3 clients are left, and the plan promises 4")
        survivors = round_until(Kind.SURVIVORS)
        message = pack(Kind.SURVIVORS, SETTING, 0, lists=(few, EVERYONE - few))
        self.refuses(survivors.clients[0], message, TooFew, "Only 3 clients")
        proof = round_until(Kind.PROOF)
        lists = (EVERYONE, frozenset[int](), few)
        message = pack(Kind.PROOF, SETTING, 0, lists=lists, rows=dict.fromkeys(few, bytes(32)))
        self.refuses(proof.clients[0], message, TooFew, "Only 3 clients agree")

    def test_a_client_with_too_few_holders(self) -> None:
        """The floor is kept, but not in this client's neighbourhood."""
        setting = some_setting(10, neighbours=4, threshold=4, least=6)
        played = play(setting, machines(setting, some_values(setting)), Kind.ROSTER)
        hood = played.clients[0]._hood
        away = [client for client in hood if client != 0][:2]
        members = frozenset(setting.clients) - set(away)
        packet = unpack(Kind.ROSTER, setting, played.down[Kind.ROSTER][0], 0, lambda _: [c for c in hood if c])
        rows = {client: row for client, row in packet.rows.items() if client in members}
        message = pack(Kind.ROSTER, setting, 0, lists=(members,), rows=rows)
        self.refuses(played.clients[0], message, TooFew, "Only 3 holders")

    def test_who_was_not_there_before(self) -> None:
        setting = some_setting()
        clients = machines(setting, some_values(setting))
        played = play(setting, clients, Kind.RELAY, lambda stage, client: client == 5 and stage == "advertise")
        packet = unpack(Kind.RELAY, setting, played.down[Kind.RELAY][0], 0, lambda _: range(1, 5))
        rows = packet.rows | {5: bytes(64 + ENVELOPE_BYTES)}
        message = pack(Kind.RELAY, setting, 0, lists=(EVERYONE,), fixed=bytes(packet.fixed), rows=rows)
        self.refuses(played.clients[0], message, BadList, "client 5, who was not there before")

    def test_a_list_without_the_client_itself(self) -> None:
        played = round_until(Kind.SURVIVORS)
        message = pack(Kind.SURVIVORS, SETTING, 0, lists=(EVERYONE - {0}, frozenset({0})))
        self.refuses(played.clients[0], message, BadList, "leaves out client 0")

    @pytest.mark.parametrize("which", [0, 32])
    def test_keys_of_the_servers_own(self, which: int) -> None:
        """Without identities nobody can tell; with them the signature does not fit."""
        played = round_until(Kind.ROSTER, SIGNED)
        message = bytearray(played.down[Kind.ROSTER][0])
        start = HEAD_BYTES + 1 + which
        message[start : start + 32] = bytes([9]) + bytes(31)
        self.refuses(played.clients[0], bytes(message), BadSignature, "client 1's is not")

    @pytest.mark.parametrize("number", [*sorted(LOW_ORDER), 2**255 - 19, 2**255 - 18, 2**256 - 1])
    def test_keys_off_the_curve(self, number: int) -> None:
        for at in (0, 32):
            played = round_until(Kind.ROSTER)
            message = bytearray(played.down[Kind.ROSTER][0])
            start = HEAD_BYTES + 1 + at
            message[start : start + 32] = number.to_bytes(32, "little")
            self.refuses(played.clients[0], bytes(message), BadKey, "Client 1")

    def test_one_key_for_two(self) -> None:
        played = round_until(Kind.ROSTER)
        message = bytearray(played.down[Kind.ROSTER][0])
        first, second = HEAD_BYTES + 1, HEAD_BYTES + 1 + 64
        message[second : second + 32] = message[first : first + 32]
        self.refuses(played.clients[0], bytes(message), BadKey, "same public key")

    def test_a_stage_left_out_or_repeated(self) -> None:
        played = round_until(Kind.RELAY)
        fresh = machines(SETTING, some_values(SETTING))[0]
        fresh.open()
        with pytest.raises(OutOfTurn, match="Expected the message roster, got relay"):
            fresh.handle(played.down[Kind.RELAY][0])
        self.refuses(
            played.clients[0], played.down[Kind.ROSTER][0], OutOfTurn, "Expected the message relay, got roster"
        )
        with pytest.raises(OutOfTurn, match="has opened this round already"):
            played.clients[1].open()

    def test_a_message_for_another_client(self) -> None:
        played = round_until(Kind.ROSTER)
        self.refuses(played.clients[0], played.down[Kind.ROSTER][1], OtherParty, "of client 1, who is not 0")

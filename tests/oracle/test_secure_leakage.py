"""What the server sees does not tell inputs apart; and the same tests find masks that are missing, used twice or short.

A game: a coin decides which of two clients holds +x and which -x; the sum is the same. A distinguisher takes off every
mask that the server (and whoever sides with it) can work out and guesses from the signs of what is left. Of GAMES games
it wins about half if it has learnt nothing. ``caught`` raises a false alarm with probability below 1e-7, and misses a
distinguisher that wins three games in four with probability below 1e-6 (both asserted below).
"""

from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import stats

from fedveil.sums.masks import client as client_module
from fedveil.sums.masks import keys
from fedveil.sums.masks.keys import Ring, add_masks, agreed, pair_mask_key, self_mask_key
from fedveil.sums.masks.messages import HEAD_BYTES, Kind
from fedveil.sums.masks.server import secret_of
from fedveil.sums.masks.setting import Setting
from fedveil.sums.seam import Whole
from unit.masked_sums import Played, machines, play, some_setting

GAMES = 400
SOME = 60  # games against a faulty twin, who loses all of them
LENGTH = 33  # odd: signs cannot be even
VICTIM, PARTNER, HELPERS = 1, 2, (0, 3)
CONSTANT = 2**50


def caught(wins: int, games: int) -> bool:
    """More or fewer wins than chance gives, two-sided, level 1e-7: five distinguishers, so below 1e-6."""
    return 2 * float(stats.binom.sf(max(wins, games - wins) - 1, games, 0.5)) < 1e-7


def test_the_power_that_is_stated() -> None:
    silent = [wins for wins in range(GAMES + 1) if not caught(wins, GAMES)]
    false_alarm = 1 - (stats.binom.cdf(silent[-1], GAMES, 0.5) - stats.binom.cdf(silent[0] - 1, GAMES, 0.5))
    miss = stats.binom.cdf(silent[-1], GAMES, 0.75)
    assert false_alarm < 1e-7
    assert miss < 1e-6
    assert caught(SOME, SOME)
    assert not caught(SOME // 2, SOME)


def inputs(world: int, setting: Setting) -> dict[int, Whole]:
    sign = 1 if world == 0 else -1
    values = {client: np.zeros(LENGTH, dtype=np.int64) for client in setting.clients}
    values[VICTIM] += sign * CONSTANT
    values[PARTNER] -= sign * CONSTANT
    return values


class View:
    """One game: two rounds with the same clients and seeds, in the second of which all inputs are zero and known.

    In the first the victim's masked values come too late to count: the server gets the shares of its pair key.
    """

    def __init__(self, game: int, world: int, *, late: bool) -> None:
        self.settings = [some_setting(4, round=turn, length=LENGTH, least=3, threshold=3) for turn in (1, 2)]
        zeros = {client: np.zeros(LENGTH, dtype=np.int64) for client in range(4)}

        def silent(stage: str, client: int) -> bool:
            return late and client == VICTIM and stage == "mask"

        self.played: list[Played] = []
        for setting, values in zip(self.settings, (inputs(world, self.settings[0]), zeros), strict=True):
            clients = machines(setting, values, seed=game)
            self.played.append(play(setting, clients, silent=silent, overheard=True))

    def masked(self, turn: int = 0) -> Ring:
        return np.frombuffer(self.played[turn].up[Kind.MASKED][VICTIM], dtype="<u8", offset=HEAD_BYTES).copy()

    def pair_mask(self, private: X25519PrivateKey, public: bytes, other: int) -> tuple[bytes, bool]:
        """The mask that the victim has put on with ``other``, to be taken off."""
        secret = agreed(private, public, other)
        return pair_mask_key(secret, self.settings[0], VICTIM, other), other > VICTIM


Distinguisher = Callable[[View], Ring]


def raw(view: View) -> Ring:
    return view.masked()


def after_unmasking(view: View) -> Ring:
    """The self-mask came out, as it should for one in the sum."""
    setting, values = view.settings[0], view.masked()
    seed = secret_of(VICTIM, view.played[0].server._records[VICTIM], setting.threshold)
    add_masks(values, [(self_mask_key(seed, setting, VICTIM), True)])
    return values


def with_all_but_one(view: View, helpers: tuple[int, ...] = HELPERS) -> Ring:
    """Also all neighbours but one side with the server, and give it their keys."""
    values, clients = after_unmasking(view), view.played[0].clients
    public = clients[VICTIM]._keys[32:]
    add_masks(values, [view.pair_mask(clients[other]._mask_private, public, other) for other in helpers])
    return values


def with_everyone(view: View) -> Ring:
    return with_all_but_one(view, (*HELPERS, PARTNER))


def too_late(view: View) -> Ring:
    """The pair key came out, as it should for one who was lost; then the masked values arrive after all."""
    setting, record = view.settings[0], view.played[0].server._records
    private = X25519PrivateKey.from_private_bytes(secret_of(VICTIM, record[VICTIM], setting.threshold))
    values = view.masked()
    add_masks(values, [view.pair_mask(private, record[other].public, other) for other in (*HELPERS, PARTNER)])
    return values


def against_the_next_round(view: View) -> Ring:
    """If masks were used twice they would cancel."""
    return view.masked(0) - view.masked(1)


def wins(distinguishers: dict[Distinguisher, bool], games: int) -> dict[str, int]:
    """Games won by each; the flag says whether it needs the victim to be late."""
    won = dict.fromkeys((d.__name__ for d in distinguishers), 0)
    for game in range(games):
        world = int(np.random.default_rng([game, 77]).integers(2))
        views = {late: View(game, world, late=late) for late in set(distinguishers.values())}
        for distinguisher, late in distinguishers.items():
            left = distinguisher(views[late]).view(np.int64)
            guess = 0 if 2 * int(np.count_nonzero(left > 0)) > LENGTH else 1
            won[distinguisher.__name__] += guess == world
    return won


HONEST: dict[Distinguisher, bool] = {
    raw: False,
    after_unmasking: False,
    with_all_but_one: False,
    against_the_next_round: False,
    too_late: True,
}


def test_no_distinguisher_learns_who_holds_what() -> None:
    won = wins(HONEST, GAMES)
    assert not [name for name, count in won.items() if caught(count, GAMES)], won


def test_a_victim_among_colluders_alone_is_found_out() -> None:
    """The distinguishers can win: with all neighbours on its side the server reads the input, as it must."""
    assert wins({with_everyone: False}, SOME) == {"with_everyone": SOME}


def test_a_missing_self_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "add_masks", lambda values, masks: add_masks(values, masks[1:]))
    assert wins({too_late: True}, SOME) == {"too_late": SOME}


def test_missing_pair_masks_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "add_masks", lambda values, masks: add_masks(values, masks[:1]))
    assert wins({after_unmasking: False}, SOME) == {"after_unmasking": SOME}


def test_masks_used_in_two_rounds_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_round(secret: bytes, label: bytes, setting: Setting, *numbers: int) -> bytes:
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=label + bytes(numbers)).derive(secret[:32])

    monkeypatch.setattr(keys, "derived", without_the_round)
    assert wins({against_the_next_round: False}, SOME) == {"against_the_next_round": SOME}


def test_all_other_messages_are_the_same_whatever_the_inputs() -> None:
    """So masked values are the only place where a view could tell; bit for bit, for any seed."""
    for late in (False, True):
        for game in range(5):
            one, other = (View(game, world, late=late) for world in (0, 1))
            for mine, theirs in zip(one.played, other.played, strict=True):
                same = {kind: mine.up[kind] == theirs.up[kind] for kind in mine.up if kind is not Kind.MASKED}
                assert all(same.values()), same
                assert mine.down == theirs.down
            assert one.played[0].up[Kind.MASKED] != other.played[0].up[Kind.MASKED]


def test_masked_values_are_uniform() -> None:
    """All bytes of masked zeros, place by place: chi-squared with 255 degrees, eight tests, false alarm below 1e-8."""
    setting = some_setting(3, length=20_000, threshold=2, least=2)
    values = {client: np.zeros(setting.length, dtype=np.int64) for client in setting.clients}
    played = play(setting, machines(setting, values), Kind.SURVIVORS)
    for message in played.up[Kind.MASKED].values():
        places = np.frombuffer(message, dtype=np.uint8, offset=HEAD_BYTES).reshape(-1, 8)
        for place in places.T:
            counts = np.bincount(place, minlength=256)
            assert float(stats.chisquare(counts).pvalue) > 1e-10


class TestSeeds:
    """A mask is as good as its seed: 256 bits go in, and none may get lost on the way."""

    KEYS = 2**17

    def collisions(self, key_of: Callable[[bytes], bytes]) -> int:
        secrets = np.random.default_rng(5).bytes(32 * self.KEYS)
        found = {key_of(secrets[at : at + 32]) for at in range(0, len(secrets), 32)}
        return self.KEYS - len(found)

    def flips(self, key_of: Callable[[bytes], bytes]) -> int:
        """Keys lost among those of one secret with no, one or two of its bits flipped."""
        base = int.from_bytes(np.random.default_rng(6).bytes(32), "little")
        flipped = [base, *(base ^ 1 << a ^ (1 << b if b != a else 0) for a in range(256) for b in range(0, a + 1, 8))]
        return len(flipped) - len({key_of(number.to_bytes(32, "little")) for number in flipped})

    def test_no_two_secrets_give_one_key(self) -> None:
        """Birthday: keys of 28 bits would escape with probability exp(-32); see the next test."""
        setting = some_setting()
        assert self.collisions(lambda secret: pair_mask_key(secret, setting, 1, 2)) == 0
        assert self.flips(lambda secret: pair_mask_key(secret, setting, 1, 2)) == 0
        assert self.flips(lambda secret: self_mask_key(secret, setting, 1)) == 0

    def test_28_bits_are_caught(self) -> None:
        def short(secret: bytes) -> bytes:
            return (int.from_bytes(secret, "little") % 2**28).to_bytes(4, "little")

        assert self.collisions(short) > 0

    def test_words_folded_into_one_are_caught(self) -> None:
        """A published implementation folds 256 bits into one word of 32 by exclusive or."""

        def folded(secret: bytes) -> bytes:
            return np.bitwise_xor.reduce(np.frombuffer(secret, dtype=np.uint32)).tobytes()

        assert self.flips(folded) > 0

    def test_keys_and_seeds_are_of_256_bits(self) -> None:
        setting = some_setting(4)
        values = {client: np.zeros(setting.length, dtype=np.int64) for client in setting.clients}
        for client in machines(setting, values).values():
            assert len(client._self_seed) == 32
            assert len(pair_mask_key(client._mask_private.private_bytes_raw(), setting, 0, 1)) == 32

    def test_each_address_has_its_own_key(self) -> None:
        """Run, round, pair and purpose all count; the pair in either order is one pair."""
        secret, setting = bytes(32), some_setting()
        others = [some_setting(round=4), some_setting(run=bytes(32))]
        found = [pair_mask_key(secret, each, 1, 2) for each in (setting, *others)]
        found += [pair_mask_key(secret, setting, 1, 3), self_mask_key(secret, setting, 1)]
        found += [keys.envelope_key(secret, setting, 1, 2), keys.envelope_key(secret, setting, 2, 1)]
        assert len(set(found)) == len(found)
        assert pair_mask_key(secret, setting, 2, 1) == pair_mask_key(secret, setting, 1, 2)

"""The parts of a masked sum one by one: settings, graph, shares, bounds."""

import math
from itertools import combinations

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.sums.exact import largest, squared_norm
from fedveil.sums.masks.client import graph_of
from fedveil.sums.masks.keys import PRIME, Draw, add_masks, deal, recover
from fedveil.sums.masks.setting import Bounds, OutOfBounds, admit
from unit.masked_sums import some_setting


def is_prime(number: int) -> bool:
    """Miller and Rabin, forty bases: wrong with probability below 4**-40."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    generator = np.random.default_rng(0)
    for base in (int.from_bytes(generator.bytes(31), "little") for _ in range(40)):
        power = pow(base, odd, number)
        if power not in (1, number - 1) and all(
            (power := power * power % number) != number - 1 for _ in range(twos - 1)
        ):
            return False
    return True


class TestShares:
    def test_the_field_is_a_field_and_holds_every_secret(self) -> None:
        assert is_prime(PRIME)
        assert not is_prime(PRIME + 2)
        assert PRIME > 2**256
        assert PRIME.bit_length() <= 8 * 33

    @pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
    def test_any_threshold_of_them_recover(self, secret: bytes) -> None:
        shares = deal(secret, 3, 6, np.random.default_rng(1).bytes(96))
        for some in combinations(range(6), 3):
            assert recover({at + 1: shares[at] for at in some}) == secret
        assert all(len(share) == 33 for share in shares)

    def test_fewer_say_nothing(self) -> None:
        """For any two shares and any secret there is a polynomial that fits: interpolate through all three."""
        shares = deal(bytes(32), 3, 5, np.random.default_rng(2).bytes(96))
        known = {1: shares[0], 4: shares[3]}
        for secret in (1, 2**255, 2**256 - 1):
            # The value at 2 that a quadratic with this secret and the two known shares takes, by Lagrange at 0, 1, 4.
            one, four = (int.from_bytes(share, "little") for share in known.values())
            third = (secret * (2 - 1) * (2 - 4) * pow(4, -1, PRIME) + one * 2 * (2 - 4) * pow(-3, -1, PRIME)) % PRIME
            third = (third + four * 2 * (2 - 1) * pow(12, -1, PRIME)) % PRIME
            assert recover(known | {2: third.to_bytes(33, "little")}) == secret.to_bytes(32, "little")

    def test_shares_of_no_256_bit_secret_give_nothing(self) -> None:
        high = (PRIME - 1).to_bytes(33, "little")
        assert recover({1: high, 2: high}) is None

    @pytest.mark.parametrize(
        ("secret", "threshold", "holders", "random"),
        [(31, 2, 3, 48), (32, 1, 3, 0), (32, 4, 3, 144), (32, 2, 3, 47)],
    )
    def test_senseless_deals_are_refused(self, secret: int, threshold: int, holders: int, random: int) -> None:
        with pytest.raises(BadValue):
            deal(bytes(secret), threshold, holders, bytes(random))

    @pytest.mark.parametrize("threshold", [3, 5, 9])
    def test_one_share_fewer_gives_something_else(self, threshold: int) -> None:
        """The polynomial has its full degree: shares of a lower one would be enough where too few are meant to be."""
        secret, generator = bytes(range(32)), np.random.default_rng(threshold)
        shares = deal(secret, threshold, threshold + 2, generator.bytes(48 * (threshold - 1)))
        for first in range(1, 4):
            few = {at: shares[at - 1] for at in range(first, first + threshold - 1)}
            assert recover(few) != secret


class TestGraph:
    @pytest.mark.parametrize(("size", "degree"), [(2, 1), (7, 6), (7, 4), (8, 3), (50, 15), (51, 14), (200, 20)])
    def test_regular_mutual_and_connected(self, size: int, degree: int) -> None:
        setting = some_setting(size, neighbours=degree, threshold=(degree + 1) // 2 + 1)
        graph = graph_of(setting)
        for client in setting.clients:
            around = graph.around(client)
            assert len(around) == degree
            assert client not in around
            assert all(client in graph.around(other) for other in around)
            assert graph.hood(client) == tuple(sorted((*around, client)))

    def test_each_round_and_run_has_its_own(self) -> None:
        rings = {graph_of(some_setting(30, round=turn)).ring for turn in range(20)}
        rings |= {graph_of(some_setting(30, run=bytes(32))).ring}
        assert len(rings) == 21

    def test_places_do_not_depend_on_who_else_is_there(self) -> None:
        all_of_them = graph_of(some_setting(30)).ring
        some = graph_of(some_setting(30, clients=tuple(range(0, 30, 2)), neighbours=4, threshold=3, least=10)).ring
        assert some == tuple(client for client in all_of_them if client % 2 == 0)

    def test_places_are_uniform(self) -> None:
        """1000 rounds, 10 places: each count is within 5.5 deviations; false alarm below 10 * 4e-8."""
        counts = np.zeros(10)
        for turn in range(1000):
            counts[graph_of(some_setting(10, round=turn)).place[3]] += 1
        assert np.abs(counts - 100).max() < 5.5 * math.sqrt(90)


class TestSetting:
    @pytest.mark.parametrize(
        "bad",
        [
            {"run": b"short"},
            {"run": "x" * 32},
            {"round": -1},
            {"round": 2**63},
            {"round": True},
            {"clients": (0,)},
            {"clients": (1, 0, 2, 3, 4, 5)},
            {"clients": (0, 0, 1, 2, 3, 4)},
            {"clients": (0, 1, 2, 3, 4, 2**32)},
            {"clients": (0, 1, 2, 3, 4, 5.0)},
            {"clients": [0, 1, 2, 3, 4, 5]},
            {"neighbours": 0},
            {"neighbours": 6},
            {"clients": (0, 1, 2, 3, 4), "neighbours": 3},
            {"threshold": 3},
            {"threshold": 7},
            {"threshold": 4.5},
            {"least": 3},
            {"least": 7},
            {"least": 4, "colluders": 2},
            {"colluders": -1},
            {"colluders": 6},
            {"length": 0},
            {"length": 2**31 + 1},
            {"identities": (bytes(32),)},
            {"identities": tuple(bytes([client] * 31) for client in range(6))},
            {"identities": (bytes(32),) * 6},
        ],
        ids=str,
    )
    def test_senseless_settings_are_refused(self, bad: dict[str, object]) -> None:
        with pytest.raises(BadValue, match=r"^Setting\."):
            some_setting(**bad)  # type: ignore[arg-type]

    def test_everything_is_in_the_digest(self) -> None:
        changes: list[dict[str, object]] = [
            {},
            {"run": bytes(32)},
            {"round": 4},
            {"clients": (0, 1, 2, 3, 4, 6)},
            {"neighbours": 4, "threshold": 4},
            {"threshold": 5},
            {"least": 5},
            {"length": 6},
            {"colluders": 1},
            {"signed": True},
        ]
        assert len({some_setting(**change).digest() for change in changes}) == len(changes)  # type: ignore[arg-type]


def test_other_settings_draw_other_secrets() -> None:
    """Also of one run and round: a server that asks twice, with other lists, gets no second share of a secret."""
    settings = [some_setting(), some_setting(length=6), some_setting(threshold=5, least=5), some_setting(signed=True)]
    assert len({Draw(bytes(32), setting, 1).take(32) for setting in settings}) == len(settings)


class TestBounds:
    @pytest.mark.parametrize("bits", [1, 20, 21, 22, 31, 42, 43, 62, 63])
    def test_norms_are_exact(self, bits: int) -> None:
        values = np.random.default_rng(bits).integers(-(2**bits) + 1, 2**bits - 1, 1000, endpoint=True, dtype=np.int64)
        values[0] = 2**bits - 1
        assert squared_norm(values) == sum(int(value) ** 2 for value in values)
        assert largest(values) == max(abs(int(value)) for value in values)

    def test_norms_at_the_ends(self) -> None:
        assert squared_norm(np.full(3, -(2**63), dtype=np.int64)) == 3 * 2**126
        many = np.full(2**20 + 5, 2**21 - 1, dtype=np.int64)
        assert squared_norm(many) == many.size * (2**21 - 1) ** 2
        more = np.full(2**22, 2**42 - 1, dtype=np.int64)  # sums of products of limbs that 64 bits would not hold
        assert squared_norm(more) == more.size * (2**42 - 1) ** 2
        assert squared_norm(np.zeros(4, dtype=np.int64)) == 0

    @pytest.mark.parametrize("length", [2, 4])
    def test_a_vector_of_another_length(self, length: int) -> None:
        with pytest.raises(OutOfBounds, match="must have 3 values"):
            admit(np.zeros(length, dtype=np.int64), Bounds(length=3))

    def test_a_norm_one_step_too_long(self) -> None:
        values = np.array([3, 4, 2**40], dtype=np.int64)
        exact = 25 + 2**80
        assert admit(values, Bounds(length=3, squared_norm=exact)) is values
        with pytest.raises(OutOfBounds, match="norm"):
            admit(values, Bounds(length=3, squared_norm=exact - 1))
        with pytest.raises(OutOfBounds, match="exceed"):
            admit(values, Bounds(length=3, largest=2**40 - 1))

    @pytest.mark.parametrize("bad", [{"length": 0}, {"length": 1, "largest": 2**63}, {"length": 1, "squared_norm": -1}])
    def test_senseless_bounds_are_refused(self, bad: dict[str, int]) -> None:
        with pytest.raises(BadValue, match=r"^Bounds\."):
            Bounds(**bad)


def test_masks_cancel_and_differ() -> None:
    values = np.random.default_rng(0).integers(0, 2**63, 2**15 + 7, dtype=np.uint64)
    once = values.copy()
    add_masks(once, [(bytes(32), False), (b"k" * 32, True)])
    assert np.count_nonzero(once == values) == 0  # chance of a coincidence: below 2**-48
    add_masks(once, [(b"k" * 32, False), (bytes(32), True)])
    assert np.array_equal(once, values)

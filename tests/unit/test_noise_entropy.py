"""Words by address: repeatable, distinct, never shared with a forked child, never copied."""

import copy
import os
import pickle
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2

from fedveil.core.errors import BadValue
from fedveil.noise.entropy import Entropy, permutation, ranked, uniform_below

KEY = bytes(range(32))
ALARM = 1e-7  # chance that a chi-square test here rejects what is right


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
quiet = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # numpy's threads take no part in it


def in_a_child(work: Callable[[], bytes]) -> bytes:
    """What ``work`` returns in a forked child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.close(writer)
    found = os.read(reader, 4096)
    os.close(reader)
    os.waitpid(child, 0)
    return found


def test_a_round_is_a_function_of_key_and_round_alone() -> None:
    first, again = Entropy.from_key(KEY), Entropy.from_key(KEY)
    first.words("noise", 1, 1000)  # what was drawn before does not matter
    assert np.array_equal(first.words("noise", 2, 50), again.words("noise", 2, 50))


def test_a_stream_goes_on_where_it_stopped() -> None:
    whole = Entropy.from_key(KEY).words("noise", 0, 30)
    parts = Entropy.from_key(KEY).stream("noise", 0)
    assert np.array_equal(whole, np.concatenate([parts.words(n) for n in (1, 12, 0, 17)]))


def test_no_two_addresses_share_words() -> None:
    """256 distinct words each; the chance that 64-bit words meet by accident is below 1e-13."""
    keyed = [Entropy.from_key(KEY), Entropy.from_key(KEY, "plan a"), Entropy.from_key(KEY, "plan b")]
    others = [Entropy.from_seed(1), Entropy.from_seed(2), Entropy.from_system()]
    addresses = [("noise", 0), ("noise", 1), ("noise", 256), ("noise\x00", 0), ("", 0), ("order", 0)]
    drawn = [e.words(label, index, 256) for e in keyed + others for label, index in addresses]
    assert np.unique(np.concatenate(drawn)).size == len(drawn) * 256


def test_the_words_are_known() -> None:
    """The same on every machine and in every version: a run interrupted before an update goes on unchanged."""
    assert Entropy.from_key(KEY).words("noise", 3, 2).tolist() == [1000998401997817126, 12934516310947380117]
    assert Entropy.from_seed(0).words("noise", 3, 1).tolist() == [6809712736509815591]


def test_private_is_what_no_one_else_can_know() -> None:
    assert Entropy.from_system().private
    assert Entropy.from_key(KEY).private
    assert not Entropy.from_seed(5).private


def test_the_system_is_asked_for_the_key() -> None:
    entropy = Entropy.from_system(lambda count: KEY[:count])
    assert np.array_equal(entropy.words("a", 0, 4), Entropy.from_key(KEY).words("a", 0, 4))


@forks
@quiet
@pytest.mark.parametrize("make", [Entropy.from_system, lambda: Entropy.from_key(KEY), lambda: Entropy.from_seed(1)])
def test_a_forked_child_leaves_its_parents_key(make: Callable[[], Entropy]) -> None:
    entropy = make()
    before = entropy.words("noise", 1, 4).tobytes()
    children = [in_a_child(lambda: entropy.words("noise", 1, 4).tobytes()) for _ in range(2)]
    assert len({before, *children}) == 3
    assert all(len(words) == 32 for words in children)
    assert entropy.words("noise", 1, 4).tobytes() == before


@forks
@quiet
def test_a_forked_child_cannot_go_on_with_an_open_stream() -> None:
    stream = Entropy.from_key(KEY).stream("noise", 1)

    def tries() -> bytes:
        try:
            return stream.words(1).tobytes()
        except BadValue as refused:
            return str(refused).encode()

    assert b"be used by the process that opened it" in in_a_child(tries)


def test_it_cannot_be_copied_and_does_not_show_its_key() -> None:
    entropy = Entropy.from_key(KEY)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            attempt(entropy)
    assert repr(entropy) == "Entropy(private=True)"


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), "x" * 32])
def test_what_is_no_key_is_refused_and_not_shown(key: bytes) -> None:
    with pytest.raises(BadValue, match="key must be 32 bytes") as refused:
        Entropy.from_key(key)
    assert "xx" not in str(refused.value)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "1"])
def test_what_is_no_seed_is_refused(seed: int) -> None:
    with pytest.raises(BadValue, match="seed must be a whole number"):
        Entropy.from_seed(seed)


def test_ties_are_drawn_again() -> None:
    assert ranked(np.array([5, 7, 5], dtype=np.uint64)) is None
    order = ranked(np.array([2**64 - 1, 0, 2**63], dtype=np.uint64))
    assert order is not None
    assert order.tolist() == [1, 2, 0]


def test_every_order_is_as_likely() -> None:
    ways = dict.fromkeys(permutations(range(4)), 0)
    for seed in range(12000):
        ways[tuple(permutation(Entropy.from_seed(seed), 4).tolist())] += 1
    expected = 12000 / 24
    statistic = sum((count - expected) ** 2 / expected for count in ways.values())
    assert statistic < chi2.isf(ALARM, 23)


def test_a_million_records_are_ordered() -> None:
    order = permutation(Entropy.from_seed(3), 10**6)
    assert np.array_equal(np.sort(order), np.arange(10**6))
    assert permutation(Entropy.from_seed(3), 0).size == 0


@pytest.mark.parametrize("count", [1, 2, 3, 2**63 + 1, 2**64])
def test_a_number_below(count: int) -> None:
    entropy = Entropy.from_seed(11)
    drawn = [uniform_below(entropy, "stop", count, index) for index in range(6000)]
    assert all(0 <= value < count for value in drawn)
    cells = min(count, 4)
    counts = np.bincount([value * cells // count for value in drawn], minlength=cells)
    chances = np.array([-(-count * (i + 1) // cells) - -(-count * i // cells) for i in range(cells)]) / count
    statistic = float(np.sum((counts - 6000 * chances) ** 2 / (6000 * chances)))
    assert statistic < (chi2.isf(ALARM, cells - 1) if cells > 1 else 1e-9)


@pytest.mark.parametrize("count", [0, -1, 2**64 + 1])
def test_no_number_below_nothing(count: int) -> None:
    with pytest.raises(BadValue, match="count must lie between 1 and"):
        uniform_below(Entropy.from_seed(0), "stop", count)

"""The capacity of homomorphic sums, in whole numbers: what fits, what is refused."""

import math

import pytest

from fedveil.core.errors import BadValue
from fedveil.sums.homomorphic import library as he_library
from fedveil.sums.homomorphic.messages import (
    DEGREE,
    FRESH_NOISE,
    KEY_PRIMES,
    MODULUS,
    MOST_CLIENTS,
    Parameters,
    is_prime,
    largest_prime_allowed,
    parameters_for,
)
from fedveil.sums.homomorphic.rounds import HomomorphicSumming


@pytest.mark.parametrize("clients", [1, 2, 3, 50, 1000, MOST_CLIENTS])
@pytest.mark.parametrize("bound", [1, 2**20, 2**40, 2**52, 2**63])
def test_sum_and_noise_fit(clients: int, bound: int) -> None:
    found = parameters_for(clients, bound)
    assert found.product > 2 * clients * bound  # every sum from -clients * bound to clients * bound is told apart
    assert all(4 * clients * FRESH_NOISE * prime <= MODULUS for prime in found.primes)
    assert all(prime % (2 * DEGREE) == 1 for prime in found.primes)
    fewer = found.primes[:-1]
    assert math.prod(fewer) <= 2 * clients * bound  # not one prime too many


def test_the_key_is_as_long_as_the_standard_allows_for_128_bits() -> None:
    assert math.prod(KEY_PRIMES).bit_length() <= 109  # HomomorphicEncryption.org 2018, ring of degree 4096


def test_primes_are_prime() -> None:
    assert [n for n in range(2000) if is_prime(n)] == [n for n in range(2, 2000) if all(n % d for d in range(2, n))]
    assert all(map(is_prime, (2**61 - 1, 2**31 - 1, *KEY_PRIMES)))
    # Composite, and yet they pass for the first 4, 7 and 11 prime bases (Jaeschke 1993; Sorenson, Webster 2017).
    assert not any(map(is_prime, (3215031751, 341550071728321, 3825123056546413051)))


@pytest.mark.parametrize(
    ("clients", "bound"),
    [(0, 5), (MOST_CLIENTS + 1, 5), (2, 0), (2, 2**63 + 1), (2.0, 5), (True, 5), (2, float("nan")), (float("nan"), 5)],
)
def test_senseless_numbers_are_refused(clients: int, bound: int) -> None:
    with pytest.raises(BadValue, match="must be a whole number"):
        parameters_for(clients, bound)


@pytest.mark.parametrize(
    ("clients", "primes", "said"),
    [
        (2, (), "1 to 4 different primes"),
        (2, (40961, 40961), "different primes"),
        (2, (8193,), "of the form"),  # 3 * 2731
        (2, (7,), "of the form"),
        (2, (40961,), "whole range"),
        (1000, parameters_for(1).primes, "room for the noise"),
    ],
)
def test_parameters_that_do_not_hold_the_sum_are_refused(clients: int, primes: tuple[int, ...], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        Parameters(clients=clients, bound=2**40, primes=primes)


@pytest.mark.parametrize("size", [0, -1, 2**29, 1.5])
def test_sizes_are_checked(size: int) -> None:
    with pytest.raises(BadValue, match="size must lie"):
        parameters_for(2).ciphertexts(size)


def test_the_largest_prime_leaves_half_the_noise_room() -> None:
    assert 2 * largest_prime_allowed(7) * 7 * FRESH_NOISE <= MODULUS // 2


def test_without_tenseal_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(he_library, "find_spec", lambda name: None)
    he_library.tenseal.cache_clear()
    with pytest.raises(BadValue, match=r"must find TenSEAL installed, and it is not: install fedveil\[he\]"):
        HomomorphicSumming(3)
    he_library.tenseal.cache_clear()

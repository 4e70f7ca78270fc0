"""Secret draws: the same by address wherever they are made, independent, and of the law that is accounted for."""

import math

import numpy as np
import pytest

from fedveil.noise.entropy import Entropy, Words
from fedveil.stages.train.dpsgd.client import Sampler
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.draws import DrawnOrder, Draws, coins, most_joined, picks

KEY = Entropy.from_seed(5)
POISSON = DrawnOrder(order="poisson", rounds=6, rate=0.3, block=4)
INDEPENDENT = DrawnOrder(order="independent", rounds=6)
CLIENTS = {7: 5, 2: 1, 4: 8}


@pytest.mark.parametrize("how", [POISSON, INDEPENDENT])
def test_draws_are_found_again_in_any_order_and_company(how: DrawnOrder) -> None:
    forward = [Draws(how, CLIENTS, KEY, "who").joined(turn).tolist() for turn in range(18)]
    draws = Draws(how, CLIENTS, KEY, "who")
    for turn in (17, 3, 3, 0, 11):
        assert draws.joined(turn).tolist() == forward[turn]
    first = 0
    for client, count in CLIENTS.items():  # a site that knows of one client alone
        alone = Draws(how, {client: count}, KEY, "who")
        for turn, whole in enumerate(forward):
            mine = [unit - first for unit in whole if first <= unit < first + count]
            assert alone.joined(turn).tolist() == mine
        first += count


def test_clients_passes_and_keys_draw_apart() -> None:
    for how in (POISSON, INDEPENDENT):
        one = [Draws(how, {1: 40}, KEY, "who").joined(turn).tolist() for turn in range(12)]
        two = [Draws(how, {2: 40}, KEY, "who").joined(turn).tolist() for turn in range(12)]
        other = [Draws(how, {1: 40}, Entropy.from_seed(6), "who").joined(turn).tolist() for turn in range(12)]
        assert one != two
        assert one != other
        assert one[:6] != one[6:]


def test_independent_draws_are_one_round_of_every_pass() -> None:
    draws = Draws(INDEPENDENT, CLIENTS, KEY, "who")
    for start in (0, 6, 12):
        joined = np.concatenate([draws.joined(start + turn) for turn in range(6)])
        assert sorted(joined.tolist()) == list(range(14))


def test_a_pass_may_leave_a_round_empty_and_another_crowded() -> None:
    """A shuffled partition would not: every round would have the same size."""
    sizes = {Draws(INDEPENDENT, {0: 12}, Entropy.from_seed(s), "w").joined(0).size for s in range(40)}
    assert 0 in sizes
    assert max(sizes) > 3


@pytest.mark.parametrize("rounds", [2, 3, 7, 64])
def test_picks_are_uniform(rounds: int) -> None:
    """Pearson's statistic of 64000 picks; a right one is this large with a chance below 1e-9."""
    count = 64_000
    found = np.bincount(picks(KEY.stream("p"), rounds, count), minlength=rounds)
    expected = count / rounds
    statistic = float(np.sum((found - expected) ** 2) / expected)
    free = rounds - 1
    assert statistic < free + 6.5 * math.sqrt(2 * free) + 22  # Laurent and Massart: 2 sqrt(x k) + 2 x, x = 21
    assert found.size == rounds


class Given:
    """Words that are given out as they stand."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, count: int, /) -> Words:
        taken, self.left = self.left[:count], self.left[count:]
        return np.array(taken, dtype=np.uint64)


def test_words_that_would_favour_a_round_are_drawn_again() -> None:
    last = 2**64 - 1  # 2**64 = 1 modulo 3: the last word would be the one too many
    assert picks(Given(last, 4, last - 1, last, 5), 3, 3).tolist() == [2, 1, 2]
    assert picks(Given(last, 0), 4, 2).tolist() == [3, 0]


def test_coins_fall_below_the_rate_exactly() -> None:
    half = 2**63
    assert coins(Given(half - 1, half, 0, 2**64 - 1), 0.5, 2, 2).tolist() == [[True, False], [True, False]]
    assert coins(Given(), 1.0, 2, 3).all()


def test_coins_of_a_round_are_those_of_dpsgd() -> None:
    settings = ClientSettings(rate=0.2, rounds=9, clip=1.0, noise=1.0, step_size=0.1)
    sampler = Sampler(settings, "poisson", 50, KEY, 3)
    draws = Draws(DrawnOrder(order="poisson", rounds=9, rate=0.2), {3: 50}, KEY, "dpsgd batch")
    for turn in range(9):
        assert sampler.batch(turn).tolist() == draws.joined(turn).tolist()


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9])
def test_no_round_is_joined_by_more_but_rarely(rate: float) -> None:
    """Chernoff's bound on a binomial number, which is another proof, agrees that the chance is below 2**-100."""
    units = 1000
    most = most_joined(rate, units)
    assert most <= units
    share = (most + 1) / units
    if share < 1:
        rest = (1 - share) * math.log((1 - share) / (1 - rate))
        assert units * (share * math.log(share / rate) + rest) >= 100 * math.log(2)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan, None])
def test_a_senseless_rate_is_refused(rate: float | None) -> None:
    with pytest.raises(ValueError, match=r"DrawnOrder\.rate must lie in \(0, 1\]"):
        DrawnOrder(order="poisson", rounds=3, rate=rate)


def test_a_rate_of_independent_draws_is_refused() -> None:
    with pytest.raises(ValueError, match=r"DrawnOrder\.rate must go with poisson draws alone"):
        DrawnOrder(order="independent", rounds=3, rate=0.5)

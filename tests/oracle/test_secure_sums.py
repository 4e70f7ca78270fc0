"""The unmasked sum against the plain one, bit for bit, whoever drops out and when."""

from itertools import combinations, product

import numpy as np
import pytest

from fedveil.sums.masks.rounds import STAGES, SecureSumming, Stage
from fedveil.sums.masks.setting import TooFew
from fedveil.sums.seam import Whole
from unit.masked_sums import RUN

SEED = bytes(range(100, 132))
SIX = range(6)
THRESHOLD = 4


def vectors(clients: range, length: int, seed: int) -> dict[int, Whole]:
    """Over the whole range of 64 bits, so that sums wrap around as they should."""
    generator = np.random.default_rng(seed)
    return {client: generator.integers(-(2**63), 2**63 - 1, length, endpoint=True) for client in clients}


def plain(parts: dict[int, Whole], survivors: tuple[int, ...]) -> Whole:
    return np.sum([parts[client].view(np.uint64) for client in survivors], axis=0, dtype=np.uint64).view(np.int64)


def six(lost: dict[int, Stage]) -> SecureSumming:
    return SecureSumming(RUN, SEED, least=THRESHOLD, neighbours=5, threshold=THRESHOLD, lost=lost, largest=2**63 - 1)


PARTS = {client: np.clip(values, -(2**63) + 1, None) for client, values in vectors(SIX, 3, 1).items()}
LOSSES = [
    dict(zip(gone, stages, strict=True))
    for count in range(len(SIX) - THRESHOLD + 1)
    for gone in combinations(SIX, count)
    for stages in product(STAGES, repeat=count)
]


def test_every_loss_is_among_those_tried() -> None:
    assert len(LOSSES) == 1 + 6 * 5 + 15 * 25


@pytest.mark.parametrize("first", [None, *STAGES])
def test_six_clients_with_every_subset_lost_at_every_stage(first: Stage | None) -> None:
    for lost in LOSSES:
        if next(iter(lost.values()), None) == first:
            summed = six(lost)(0, PARTS)
            before = {client for client, stage in lost.items() if STAGES.index(stage) <= STAGES.index("mask")}
            assert summed.survivors == tuple(sorted(set(SIX) - before)), lost
            assert np.array_equal(summed.total, plain(PARTS, summed.survivors)), lost


@pytest.mark.parametrize("stage", STAGES)
def test_six_clients_below_the_threshold_are_refused(stage: Stage) -> None:
    for count in range(len(SIX) - THRESHOLD + 1, len(SIX) + 1):
        for gone in combinations(SIX, count):
            with pytest.raises(TooFew):
                six(dict.fromkeys(gone, stage))(0, PARTS)


@pytest.mark.parametrize("seed", [0, 1])
def test_two_hundred_clients_with_random_losses(seed: int) -> None:
    everyone = range(200)
    generator = np.random.default_rng(seed)
    gone = generator.choice(200, 24, replace=False)
    lost: dict[int, Stage] = {int(client): STAGES[int(generator.integers(5))] for client in gone}
    parts = {client: np.clip(values, -(2**63) + 1, None) for client, values in vectors(everyone, 17, seed).items()}
    summing = SecureSumming(RUN, SEED, least=170, neighbours=20, threshold=11, lost=lost)
    summed = summing(seed, parts)
    before = {client for client, stage in lost.items() if STAGES.index(stage) <= STAGES.index("mask")}
    assert summed.survivors == tuple(sorted(set(everyone) - before))
    assert np.array_equal(summed.total, plain(parts, summed.survivors))
    assert summing.traffic.refused == {}


@pytest.mark.parametrize("length", [1, 2**14 - 1, 2**14, 2**14 + 1, 40_000])
def test_lengths_about_the_size_of_a_block(length: int) -> None:
    parts = {client: np.clip(values, -(2**63) + 1, None) for client, values in vectors(range(4), length, 5).items()}
    summing = SecureSumming(RUN, SEED, least=3, neighbours=3, threshold=3, lost={2: "mask"})
    summed = summing(0, parts)
    assert np.array_equal(summed.total, plain(parts, (0, 1, 3)))


def test_with_identities_and_by_default() -> None:
    parts = {client + 10: values // 4 for client, values in vectors(range(9), 4, 3).items()}
    for signed in (False, True):
        summing = SecureSumming(RUN, SEED, least=7, colluders=1, signed=signed, lost={11: "mask", 17: "reveal"})
        for turn in (0, 1, 5):
            summed = summing(turn, parts)
            assert np.array_equal(summed.total, plain(parts, summed.survivors))
            assert 11 not in summed.survivors
            assert 17 in summed.survivors


def test_a_seed_says_everything() -> None:
    views = []
    for _ in range(2):
        summing = six({1: "mask"})
        summing(0, PARTS)
        views.append((summing.traffic.up, summing.uploaded, summing.downloaded))
    assert views[0] == views[1]

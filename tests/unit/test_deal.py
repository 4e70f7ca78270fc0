"""Dealing: every unit once a pass, rounds of the planned size, and all partitions equally likely."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import chi2

from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.train.hidden.deal import Dealt, deal
from unit.plans import some_plan, some_records


def rows_of(dealt: Dealt, rounds: int) -> list[list[tuple[float, ...]]]:
    return [[tuple(row) for row in dealt.batch(turn).features] for turn in range(rounds)]


def test_a_secret_order_uses_every_record_once_a_pass() -> None:
    records = some_records()
    dealt = deal(some_plan(records), records, Entropy.from_seed(1))
    seen = [row for batch in rows_of(dealt, 6) for row in batch]
    assert sorted(seen) == sorted(map(tuple, records.features))
    assert seen != list(map(tuple, records.features))
    assert rows_of(dealt, 12)[6:] == rows_of(dealt, 6)


def test_a_public_order_is_the_order_of_the_records_without_a_copy() -> None:
    records = some_records()
    dealt = deal(some_plan(records, order="public"), records, Entropy.from_seed(1))
    assert np.array_equal(dealt.batch(2).features, records.features[20:30])
    assert np.shares_memory(dealt.features, records.features)


def test_targets_norms_and_rows_stay_together() -> None:
    records = some_records()
    dealt = deal(some_plan(records), records, Entropy.from_seed(2))
    known = {tuple(row): target for row, target in zip(records.features, records.targets, strict=True)}
    for turn in range(6):
        batch = dealt.batch(turn)
        assert [known[tuple(row)] for row in batch.features] == batch.targets.tolist()
        assert batch.norms == pytest.approx(np.linalg.norm(batch.features, axis=1))


def test_left_over_records_are_not_used() -> None:
    records = some_records(count=65, clients=65)
    dealt = deal(some_plan(records, rounds=6), records, Entropy.from_seed(3))
    assert dealt.targets.size == 60
    assert dealt.starts.tolist() == list(range(0, 61, 10))


def test_growing_batches_follow_the_plan() -> None:
    records = some_records()
    dealt = deal(some_plan(records, rounds=3, batch=(10, 20, 30)), records, Entropy.from_seed(3))
    assert [dealt.batch(turn).targets.size for turn in range(3)] == [10, 20, 30]


def uneven_clients() -> Records:
    records = some_records(count=60, clients=60)
    owner = np.repeat(np.arange(20), [1, 5] * 10)[np.random.default_rng(0).permutation(60)]
    return Records(
        features=records.features,
        targets=records.targets,
        owner=owner,
        clients=20,
        bound=1.0,
        classes=2,
        names=tuple(map(str, range(20))),
    )


def test_a_protected_client_comes_whole_and_its_records_share_one_weight() -> None:
    records = uneven_clients()
    dealt = deal(some_plan(records, deal="clients", unit="client", rounds=2), records, Entropy.from_seed(4))
    owner_of = {tuple(row): int(who) for row, who in zip(records.features, records.owner, strict=True)}
    for turn in range(2):
        batch = dealt.batch(turn)
        assert batch.weights is not None
        sums: Counter[int] = Counter()
        for row, weight in zip(batch.features, batch.weights, strict=True):
            sums[owner_of[tuple(row)]] += weight
        assert len(sums) == 10
        assert all(total == pytest.approx(1.0) for total in sums.values())


def test_clients_of_one_size_can_be_dealt_whole_while_records_are_protected() -> None:
    records = some_records(count=60, clients=12)
    dealt = deal(some_plan(records, deal="clients", rounds=6), records, Entropy.from_seed(5))
    owner_of = {tuple(row): int(who) for row, who in zip(records.features, records.owner, strict=True)}
    for turn in range(6):
        batch = dealt.batch(turn)
        assert batch.weights is None
        assert Counter(Counter(owner_of[tuple(row)] for row in batch.features).values()) == {5: 2}


def test_all_partitions_are_equally_likely() -> None:
    """Which three of six records come first: 20 sets, 4000 draws, chi-square at 1e-7 (the false-alarm probability)."""
    records = some_records(count=6, clients=6)
    plan = some_plan(records, rounds=2, batch=3)
    index = {tuple(row): place for place, row in enumerate(records.features)}
    counts: Counter[frozenset[int]] = Counter()
    for seed in range(4000):
        first = deal(plan, records, Entropy.from_seed(seed)).batch(0).features
        counts[frozenset(index[tuple(row)] for row in first)] += 1
    expected = 4000 / 20
    statistic = sum((counts[frozenset(s)] - expected) ** 2 / expected for s in combinations(range(6), 3))
    assert statistic < chi2.isf(1e-7, 19)

"""Bounds on bad rings against counting all rings, and against the graph itself."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from fedveil.core.errors import BadValue, CannotCertify
from fedveil.sums.masks.client import Graph
from fedveil.theory.neighbours import graph_failure, least_neighbours, recovery_failure


def ring(size: int, neighbours: int) -> Graph:
    return Graph(tuple(range(size)), {client: client for client in range(size)}, neighbours)


def in_one_piece(graph: Graph, left: set[int]) -> bool:
    start = min(left)
    seen, front = {start}, [start]
    while front:
        new = {other for client in front for other in graph.around(client) if other in left} - seen
        seen |= new
        front = sorted(new)
    return seen == left


def exposed(graph: Graph, colluders: Iterable[int], threshold: int) -> bool:
    """Somebody honest has a threshold of colluding holders."""
    bad = set(colluders)
    return any(len(bad & set(graph.hood(client))) >= threshold for client in set(graph.ring) - bad)


def exact_failure(size: int, neighbours: int, threshold: int, colluders: int, dropouts: int, active: bool) -> Fraction:
    """Places are uniform, so all sets of colluders (and of dropouts) on a fixed ring are equally likely."""
    graph, everyone, bad = ring(size, neighbours), set(range(size)), Fraction(0)
    for sided in combinations(range(size), colluders):
        others = sorted(everyone - set(sided))
        torn = [not in_one_piece(graph, set(others) - set(gone)) for gone in combinations(others, dropouts)]
        if exposed(graph, sided, threshold):
            bad += 1
        else:
            bad += Fraction(int(any(torn))) if active else Fraction(sum(torn), len(torn))
    return bad / comb(size, colluders)


CASES = [
    (size, neighbours, threshold, colluders, dropouts)
    for size in (7, 9)
    for neighbours in (2, 4, size - 1)
    for threshold in range(neighbours // 2 + 1, neighbours + 2)
    if threshold >= 2
    for colluders in (0, 1, 3)
    for dropouts in (0, 1, 2)
]


@pytest.mark.parametrize("active", [False, True])
def test_the_bound_is_above_the_exact_chance(active: bool) -> None:
    for case in CASES:
        bound, exact = graph_failure(*case, active=active), exact_failure(*case, active)
        assert bound >= exact, case
        if exact == 0 and not active:
            assert bound < 1, case  # it does not cry wolf where nothing can happen


def test_a_complete_graph_is_never_torn_and_exactly_exposed() -> None:
    for threshold in range(4, 8):
        for colluders in range(5):
            for active in (False, True):
                bound = graph_failure(7, 6, threshold, colluders, 1, active=active)
                # an honest client has all colluders around it, whatever the ring
                assert bound == (1.0 if colluders >= threshold else 0.0)


def test_fewer_missing_than_neighbours_tear_nothing() -> None:
    for size, neighbours, missing in ((11, 4, 3), (10, 6, 5)):
        graph = ring(size, neighbours)
        assert all(in_one_piece(graph, set(range(size)) - set(gone)) for gone in combinations(range(size), missing))
        assert graph_failure(size, neighbours, neighbours + 1, 0, missing, active=True) == 0


def test_recovery_against_counting() -> None:
    for size, neighbours, threshold, dropouts in ((9, 4, 3, 2), (9, 4, 4, 2), (9, 2, 2, 3), (8, 7, 5, 3), (8, 7, 5, 4)):
        graph = ring(size, neighbours)
        stuck = sum(
            any(len(set(graph.hood(client)) - set(gone)) < threshold for client in range(size))
            for gone in combinations(range(size), dropouts)
        )
        exact = Fraction(stuck, comb(size, dropouts))
        bound = recovery_failure(size, neighbours, threshold, dropouts)
        assert bound >= exact
        assert bound <= min(1, size * exact + Fraction(1, 10**12))  # a union over at most all clients


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(
    ("clients", "colluders", "dropouts"),
    [(4, 0, 1), (10, 1, 2), (50, 5, 5), (100, 10, 10), (300, 60, 30), (5000, 500, 250)],
)
def test_designs_keep_what_they_promise(clients: int, colluders: int, dropouts: int, active: bool) -> None:
    found = least_neighbours(clients, colluders, dropouts, active=active)
    case = (clients, found.neighbours, found.threshold)
    assert graph_failure(*case, colluders, dropouts, active=active) == found.failure <= 2**-40
    assert recovery_failure(*case, dropouts) == found.stuck <= 1e-6
    assert 2 * found.threshold > found.neighbours + 1


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(CannotCertify, match="No graph on 10 clients"):
        least_neighbours(10, 0, 5)  # five survivors are not above half of ten holders
    bad_cases = [
        (1, 1, 2, 0, 0),
        (5, 0, 2, 0, 0),
        (5, 5, 3, 0, 0),
        (5, 4, 1, 0, 0),
        (5, 4, 6, 0, 0),
        (5, 4, 3, -1, 0),
        (5, 4, 3, 3, 2),
    ]
    for bad in bad_cases:
        with pytest.raises(BadValue):
            graph_failure(*bad)

"""What a curious client sees of linear chains, exactly: joint Gaussian views, mixtures over all arrangements."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from chains import theta
from scipy.special import ndtr
from scipy.stats import hypergeom

from fedveil.accounting.curious import curious_bounds
from fedveil.accounting.hidden import rounds_of
from fedveil.accounting.participation import Participation
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.shift import uses_mu
from fedveil.theory.views import (
    Dealt,
    Stretches,
    _blocks,
    _groups,
    _hub,
    _star,
    looked_at_mu,
    looks_of_many_rounds,
    looks_of_one_round,
    own_units,
    seen_stars,
    spared,
)


def exact_view_mu(run: LastIterate, client: int, left: float, changes: dict[int, float]) -> float:
    """mu of the joint law of the models before the client's rounds and the last, for w -> c w + offset."""
    rounds, total = rounds_of(run), run.total
    noise = rounds.noise.copy()
    noise[client :: run.rounds] *= math.sqrt(left)
    known = [*range(client, total, run.rounds), total]
    # Row k: how each round's noise enters the state after k rounds.
    entry = np.zeros((total + 1, total))
    for k in range(total):
        entry[k + 1] = rounds.lipschitz[k] * entry[k]
        entry[k + 1, k] = 1.0
    shift = np.zeros(total)
    for place, sign in changes.items():
        shift[place :: run.rounds] = sign * rounds.gap[place :: run.rounds]
    rows = entry[[k for k in known if k > 0]]
    mean, spread = rows @ shift, (rows * noise**2) @ rows.T
    return float(math.sqrt(mean @ np.linalg.solve(spread, mean)))


def bound_mu(run: LastIterate, victim: int, client: int, left: float) -> float:
    rounds = rounds_of(run)
    distance = (client - victim) % run.rounds or run.rounds
    each = looked_at_mu(
        rounds, Stretches(rounds).after(distance), np.full(run.total, left if client == victim else 1.0)
    )
    return float(np.sqrt(np.sum(each[victim :: run.rounds] ** 2)))


def linear_run(c: float, passes: int, seed: int) -> LastIterate:
    rng = np.random.default_rng(seed)
    steps = tuple(rng.uniform(0.5, 1.0, 5).tolist())
    noise = tuple(rng.uniform(0.5, 2.0, 5 * passes).tolist())
    if c == 1.0:
        return LastIterate(
            rounds=5, passes=passes, batch=4, step_size=steps, lipschitz=1.0, smoothness=0.0, noise_std=noise
        )
    return LastIterate(
        rounds=5, passes=passes, batch=4, step_size=0.5, lipschitz=1.0, smoothness=2 * (1 - c),
        strong_convexity=2 * (1 - c), noise_std=noise,
    )  # fmt: skip


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("c", [1.0, 0.7])
def test_views_of_linear_chains_are_no_farther_apart_than_promised(c: float, passes: int) -> None:
    run = linear_run(c, passes, seed=7)
    for victim, client in itertools.product(range(5), repeat=2):
        exact, bound = exact_view_mu(run, client, 0.75, {victim: 1.0}), bound_mu(run, victim, client, 0.75)
        assert exact <= bound * (1 + 1e-12)
        # Noise before the use, since the last look, helps too; where there is none, nothing is given away.
        if victim == client or (passes == 1 and victim == 0):
            assert exact == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("c", [1.0, 0.8])
def test_the_tables_of_coupled_positions_cover_linear_chains(c: float, passes: int) -> None:
    run = linear_run(c, passes, seed=11)
    rounds = rounds_of(run)
    dealt = Dealt(rounds=rounds, places=5, batch=4, units=20)
    closest = 0.0
    for client in range(5):
        at = np.array([[client]])
        own = dealt.own(at, np.arange(5)[None, :], rounds.gap)[0]
        for victim in range(5):
            assert own[victim] == pytest.approx(bound_mu(run, victim, client, 1.0), rel=1e-9)
        for first, second in itertools.permutations(range(5), 2):
            found = dealt.pair(at, np.array([[first]]), np.array([[second]]), (rounds.swap, rounds.swap))[0, 0]
            assert found <= (own[first] + own[second]) * (1 + 1e-6)
            for sign in (1.0, -1.0):
                exact = exact_view_mu(run, client, 1.0, {first: 1.0, second: sign})
                assert exact <= found * (1 + 1e-9)
                closest = max(closest, exact / found)
    assert closest > 0.9


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("changing", [False, True])
def test_grouped_rounds_never_promise_more_than_each_alone(passes: int, changing: bool, neighbours: str) -> None:
    places, batch, units = 41, 3, 125
    noise = tuple(np.random.default_rng(5).uniform(0.5, 2.0, places).tolist()) if changing else 1.0
    run = LastIterate(
        rounds=places, passes=passes, batch=batch, step_size=0.5, lipschitz=1.0, smoothness=1.0, strong_convexity=0.02,
        noise_std=noise, neighbours=neighbours,
    )  # fmt: skip
    dealt = Dealt(rounds=rounds_of(run), places=places, batch=batch, units=units)
    assert dealt.even is not changing
    labels = np.arange(places)
    for group in _groups(places):
        hub = _hub(dealt, group)
        first = _blocks(dealt, group, hub)
        together = _star(dealt, group, hub)
        assert hub in first
        assert hub not in group
        assert together.weight.sum() == pytest.approx((places * batch - 1) / (units - 1))
        block = np.searchsorted(first, labels, side="right") - 1
        for t in group:
            at, place = np.array([[t]]), np.where(labels < t, t - 1 - labels, labels)
            assert sorted(place.tolist()) == labels.tolist()
            quiet = dealt.rounds.noise.copy()
            quiet[t::places] *= math.sqrt((batch - 1) / batch)  # the client knows its own noise
            seen = replace(dealt, rounds=replace(dealt.rounds, noise=quiet))
            gap, swap = dealt.rounds.gap, dealt.rounds.swap
            centre = np.where(hub < t, t - 1 - hub, hub)
            others = labels != hub
            own = seen.own(at, place[None, :], gap)[0]
            up = seen.pair(at, place[None, :], centre, (swap, swap))[0]
            down = seen.pair(at, place[None, :], centre, (gap, swap))[0]
            assert np.all(own <= together.own[block] * (1 + 1e-9))
            assert np.all(up[others] <= together.up[block][others] * (1 + 1e-9))
            assert np.all(down[others] <= together.down[block][others] * (1 + 1e-9))
            assert (together.back is None) is (neighbours == "replace-one")
            if together.back is not None:  # the other direction has the tables exchanged
                up = seen.pair(at, place[None, :], centre, (gap, gap))[0]
                down = seen.pair(at, place[None, :], centre, (swap, gap))[0]
                assert np.all(up[others] <= together.back.up[block][others] * (1 + 1e-9))
                assert np.all(down[others] <= together.back.down[block][others] * (1 + 1e-9))


@pytest.mark.parametrize("spare", [0, 1, 7])
def test_the_observer_is_somewhere(spare: int) -> None:
    run = LastIterate(rounds=12, batch=3, step_size=0.5, lipschitz=1.0, smoothness=1.0, noise_std=1.0)
    units = 36 + spare
    found = seen_stars(Dealt(rounds=rounds_of(run), places=12, batch=3, units=units))
    assert found.chances.sum() == pytest.approx(1)
    for star in found.stars[: len(_groups(12))]:
        assert star.weight.sum() == pytest.approx(35 / (units - 1))
    if spare:
        assert found.chances[-1] == pytest.approx(spare / units)
        left_over = found.stars[-1]
        assert left_over.weight[:12].sum() == pytest.approx(36 / (units - 1))
        assert 1 - 1e-8 < left_over.weight.sum() <= 1  # with the place of a victim that is left over as well
        assert np.all(left_over.own[:12] > 0)
        assert left_over.own[12:].tolist() == [0.0] * (spare > 1)


@pytest.mark.parametrize("diameter", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("beta", [0.5, 2.0, 5.0])
def test_a_bounded_domain_forgets_as_it_does_for_the_last_state(diameter: float, beta: float) -> None:
    run = LastIterate(
        rounds=30, batch=2, step_size=0.5, lipschitz=1.0, smoothness=beta, noise_std=0.7, diameter=diameter
    )
    rounds, gained = rounds_of(run), 0
    for distance in (1, 2, 3, 7, 20, 30):
        found = looked_at_mu(rounds, Stretches(rounds).after(distance), np.ones(30))
        use = np.arange(30)
        ends = np.minimum(use + distance, 30)
        expected = uses_mu(rounds, use[:, None], rounds.gap[:, None], ends)
        assert found == pytest.approx(expected, rel=1e-9)
        plain = replace(rounds, diameter=math.inf, image=np.full(30, math.inf))
        gained += int(np.sum(found < 0.99 * looked_at_mu(plain, Stretches(plain).after(distance), np.ones(30))))
    assert gained > 0 or diameter > 0.5


def test_the_groups_are_all_rounds_once() -> None:
    for places in range(2, 200):
        assert [t for group in _groups(places) for t in group] == list(range(places))


def arrangements(
    places: int, batch: int, others: tuple[float, ...], spare: int
) -> Iterator[tuple[int, int, Vector, int]]:
    """Client's round, victim's round (``places``: unused), sums of the others in each round, in how many ways."""
    free = [batch] * places + [spare]
    kinds = sorted(Counter(others).items())

    def fill(left: list[int], index: int) -> Iterator[tuple[Vector, int]]:
        if index == len(kinds):
            yield np.zeros(places), 1
            return
        value, count = kinds[index]
        if index == len(kinds) - 1:  # the last kind fills what is left
            yield value * np.array(left[:places], dtype=float), 1
            return
        for taken in itertools.product(*(range(min(room, count) + 1) for room in left)):
            if sum(taken) == count:
                ways = math.prod(math.comb(room, take) for room, take in zip(left, taken, strict=True))
                for sums, more in fill([room - take for room, take in zip(left, taken, strict=True)], index + 1):
                    yield sums + value * np.array(taken[:places]), ways * more

    for client, victim in itertools.product(range(len(free)), repeat=2):
        left = free.copy()
        slots = left[client]
        left[client] -= 1
        slots *= left[victim]
        left[victim] -= 1
        if min(left) >= 0:
            for sums, ways in fill(left, 0):
                yield client, victim, sums, ways * slots


def exact_delta(run: LastIterate, others: tuple[float, ...], swap: tuple[float, float], epsilon: float) -> float:
    """E_epsilon of what the client sees, one pass, w -> c w - offsets: a mixture of normal laws in two coordinates.

    They are the state before the client's round, and how the last departs from it.
    """
    assert isinstance(run.batch, int)
    assert run.records is not None
    places, rounds = run.rounds, rounds_of(run)
    c, scale = float(rounds.lipschitz[0]), float(rounds.gap[0]) / 2
    laws: dict[int, list[tuple[float, Vector, Vector]]] = {}
    for client, victim, sums, ways in arrangements(places, run.batch, others, run.records - places * run.batch):
        pair = []
        for value in swap:
            move = np.append(sums, 0.0)
            move[victim] += value
            pair.append(scale * move[:places])
        laws.setdefault(client, []).append((float(ways), *pair))
    total = sum(way for rows in laws.values() for way, _, _ in rows)
    seen = {client: client if client < places else None for client in laws}
    parts = (_seen(rows, seen[client], rounds.noise, c, run.batch, epsilon) for client, rows in laws.items())
    return sum(parts) / total


def _seen(
    rows: list[tuple[float, Vector, Vector]], client: int | None, noise: Vector, c: float, batch: int, epsilon: float
) -> float:
    """The larger direction of mixtures in two coordinates cut into cells; in one if the client sees the end only."""
    noise = noise.copy()
    if client is not None:
        noise[client] *= math.sqrt((batch - 1) / batch)
    cut = client if client is not None else 0
    grid, used = np.linspace(-9, 9, 181), []
    for part in (np.arange(cut), np.arange(cut, noise.size)):
        weight = c ** (part[::-1] - part[0]).astype(float) if part.size else np.zeros(0)
        spread = math.sqrt(float(np.sum((weight * noise[part]) ** 2)))
        if spread > 0:  # else nothing happens in this part, or the client alone
            used.append((part, weight / spread))
    laws = []
    for side in (1, 2):
        law = np.zeros([grid.size + 1] * len(used))
        for row in rows:
            inner = [ndtr(grid - float(weight @ row[side][part])) for part, weight in used]
            cells = [np.diff(np.concatenate([[0.0], values, [1.0]])) for values in inner]
            law += row[0] * (cells[0] if len(cells) == 1 else np.outer(*cells))
        laws.append(law)
    return float(max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in (laws, laws[::-1])))


CASES = [
    (1.0, 2, 3, 0, (1.0, -1.0, 0.0, 0.0)),
    (1.0, 3, 2, 0, (1.0, 1.0, -1.0, -1.0)),
    (0.6, 3, 2, 1, (1.0, -1.0, 1.0, -1.0, 0.0)),
    (1.0, 4, 1, 0, (1.0, -1.0)),
    (0.8, 5, 1, 2, (1.0, -1.0, 1.0, 1.0, 1.0)),
    (0.9, 4, 2, 1, (1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0)),
    (1.0, 16, 2, 0, (0.0,) * 30),
    (0.98, 16, 2, 3, (0.0,) * 33),
]


@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("c", "places", "batch", "spare", "others"), CASES)
def test_exact_mixtures_stay_below_every_bound(
    c: float, places: int, batch: int, spare: int, others: tuple[float, ...], neighbours: str
) -> None:
    """Coarser cells lose information, so what is computed is a lower bound on the true divergence."""
    units = places * batch + spare
    rate = 2 * (1 - c)
    run = LastIterate(
        rounds=places, batch=batch, records=units, order="secret", step_size=0.5, lipschitz=1.0, smoothness=rate,
        strong_convexity=rate, noise_std=1.5, neighbours=neighbours,
    )  # fmt: skip
    who = Participation(clients=units, every_round=False)
    bounds = {e.name: e.log_delta for e in curious_bounds(run, who) if e.log_delta is not None}
    assert set(bounds) == {"unhidden", "segments", "position"}
    # In units of half the gap: 2L apart is 2 for replace-one; the scale is gap/2, so zero-out counts twice.
    unit = 1.0 if neighbours == "replace-one" else 2.0
    pairs = [(1.0, -1.0), (-1.0, 1.0)] if neighbours == "replace-one" else [(2.0, 0.0), (-2.0, 0.0)]
    scaled = tuple(unit * value for value in others)
    for swap, epsilon in itertools.product(pairs, (0.0, 0.1, 0.4, 1.0)):
        exact = exact_delta(run, scaled, swap, epsilon)
        for name, log_delta in bounds.items():
            assert exact <= math.exp(log_delta(epsilon)) * (1 + 1e-9), (name, epsilon, swap)


def test_two_rounds_reach_the_average() -> None:
    """Two rounds of one unit each, two units: the client leaves one place, and every bound is exact."""
    run = LastIterate(
        rounds=2, batch=1, records=2, order="secret", step_size=0.5, lipschitz=1.0, smoothness=0.0, noise_std=2.0
    )
    who = Participation(clients=2, every_round=False)
    for epsilon in (0.1, 0.5, 1.0):
        # The client first: the victim's round alone follows. The client second: the same.
        expected = float(theta(np.array([epsilon]), 1.0)[0])
        for bound in curious_bounds(run, who):
            assert bound.log_delta is not None
            assert math.exp(bound.log_delta(epsilon)) == pytest.approx(expected, rel=1e-6), bound.name


@pytest.mark.parametrize(
    ("batch", "units", "held"), [(5, 20, 7), (100, 32561, 1000), (3, 6, 5), (50, 50, 12), (40, 1000, 999)]
)
def test_own_units_are_hypergeometric(batch: int, units: int, held: int) -> None:
    k, chance = own_units(batch, units, held, 10**6)
    expected = hypergeom(units - 1, held, batch - 1)
    assert chance == pytest.approx(expected.pmf(k), rel=1e-8, abs=1e-15)
    assert chance.sum() == pytest.approx(1)
    few, less = own_units(batch, units, held, 6)
    assert few.size <= 6
    assert less.sum() == pytest.approx(1)
    for most, total in zip(few, np.cumsum(less), strict=True):  # charged at the largest: never fewer than there are
        assert total <= float(expected.cdf(most)) + 1e-9


def test_the_chance_of_being_spared_is_from_below_and_close() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        of = int(rng.integers(2, 400))
        held, slots = int(rng.integers(0, of + 1)), int(rng.integers(0, of + 1))
        exact = math.comb(of - slots, held) / math.comb(of, held)
        found = float(spared(np.array([float(slots)]), np.array([float(of)]), np.array([float(held)]))[0])
        assert found <= exact * (1 + 1e-12)
        if held * 4 < of and slots * 4 < of:
            assert math.log(found) >= 1.1 * math.log(exact) - 1e-12


def exact_looks(places: int, batch: int, units: int, held: int, victim: int) -> dict[tuple[int, int], float]:
    """By trying all: how many of the client's units share the victim's round, and how soon its next round comes."""
    slots = [place for place in range(places) for _ in range(batch)] + [-1] * (units - places * batch)
    slots.remove(victim)
    found: dict[tuple[int, int], float] = {}
    for chosen in itertools.combinations(range(units - 1), held):
        rounds = [slots[i] for i in chosen]
        later = [(r - victim) % places or places for r in rounds if r >= 0]
        key = rounds.count(victim), min(later, default=places)
        found[key] = found.get(key, 0.0) + 1 / math.comb(units - 1, held)
    return found


@pytest.mark.parametrize(
    ("places", "batch", "units", "held"), [(4, 3, 12, 3), (4, 2, 9, 4), (5, 1, 6, 2), (1, 6, 7, 3), (3, 4, 12, 1)]
)
def test_looks_cover_every_way_to_be_dealt(places: int, batch: int, units: int, held: int) -> None:
    sizes, distances = np.full(places, float(batch)), np.arange(1, max(places, 2))
    looks = list(looks_of_many_rounds(sizes, units, held, distances, 10**6))
    for victim in range(places):
        exact = exact_looks(places, batch, units, held, victim)
        assert sum(look.chance[victim] for look in looks) == pytest.approx(1)
        for known, distance in itertools.product(range(held + 1), range(1, places + 1)):
            # The chance of knowing at least so much and looking at least so soon is never underrated.
            truth = sum(p for (k, d), p in exact.items() if k >= known and d <= distance)
            rated = sum(
                look.chance[victim] for look in looks
                if round(batch * (1 - look.left[victim])) >= known and look.distance <= distance
            )  # fmt: skip
            assert rated >= truth - 1e-12
            assert rated <= truth + 0.2


def test_looks_of_one_round_are_exact_for_single_units() -> None:
    sizes, distances = np.full(4, 3.0), np.arange(1, 4)
    for victim in range(4):
        exact = exact_looks(4, 3, 14, 1, victim)
        found: dict[tuple[int, int], float] = {}
        for look in looks_of_one_round(sizes, 14, 1, distances):
            key = round(3 * (1 - look.left[victim])), look.distance
            found[key] = found.get(key, 0.0) + float(look.chance[victim])
        assert {key: p for key, p in found.items() if p} == pytest.approx(exact)

"""Bounds on a hidden run whose records draw their own rounds: hiding and secret sampling in one.

``unhidden`` counts every model as seen; ``sampled-shift`` lets later noise close the gaps. Both are dominating pairs,
composed as loss distributions. Theory page: sampled-shift.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from fedveil.accounting.evaluator import Evaluator, Pairs, epsilon_of, no_contraction, withdrawn
from fedveil.accounting.hidden import rounds_of
from fedveil.accounting.joining import joining, other_records
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.allocation import AllocationLaw, Summands, sparing_tail
from fedveil.theory.closing import Part, at_once, check_plan, lengths
from fedveil.theory.composition import worst_upper
from fedveil.theory.exchange import exchange_coarsening, exchange_delta, exchange_epsilon, exchange_law
from fedveil.theory.hops import log_delta_upper, profile, two_hops
from fedveil.theory.loss import FiniteLaw, GaussianLaw, LossLaw
from fedveil.theory.mixture_law import Way
from fedveil.theory.plan_search import PoissonCost, best_plan, scattered_cost
from fedveil.theory.rounds import Rounds
from fedveil.theory.sampled_poisson import LARGEST_PART, part_law

_KINDS = 48  # different rounds that are told apart when every model is seen
_CLASSES = 12  # different shifts inside one part of a pass
_LONGEST = 1e3  # a contribution over its round's noise, from where on nothing is promised
_WIDEST = 50.0  # epsilon of an exchange up to which it is looked for
_COARSE = 8.0  # how many times coarser than wanted a grid may be and still be taken for accurate
_MERGED = 3  # from so many passes on those are counted as one that differ by the rounding of floats only
_DIGITS = 2.0**40  # to which the shifts of a part are rounded up
_USUAL = 1e-5  # the delta for which a plan is sought when none is given


def sampled_evaluators(run: LastIterate) -> Sequence[Evaluator]:
    """Return every bound, certified ones first."""
    other = "stated for a known place or a partition, not for records that draw their own rounds"
    names = ("linear-contraction", "nonlinear-contraction", "shift", "block", "transport", "position")
    rest = [withdrawn(name, other) for name in (*names, "renyi-diffusion", "renyi-iteration")]
    return [_shifted(run, 1), _unhidden(run, 1), *rest]


def _unhidden(run: LastIterate, group: int) -> Evaluator:
    why = "every model counted as seen, the record's draws secret: exact composition of its dominating pairs"
    found = _evaluator("unhidden", why, run, group, lambda _: seen_pairs(run, group), lambda _: 0.0, _unhidden)
    return replace(found, pairs=partial(_entering, run, hidden=False)) if group == 1 else found


def _shifted(run: LastIterate, group: int) -> Evaluator:
    name = "sampled-shift"
    if run.stopping == "random":
        return withdrawn(name, "worked out for the last model, not for random stopping")
    if other_records(run) is None:
        return withdrawn(name, "planned batches differ, so they do not tell how many records may join: state records")
    joined = joining(run, _USUAL)
    if not sampled_rounds(run, _USUAL).contracts:
        return withdrawn(name, no_contraction(run) + ("" if run.smoothness is None else f": {joined.words}"))
    if not joined.chance < 1:
        return withdrawn(name, "more records than largest_batch are likely to join some round")
    why = "the record's draws are secret and later noise closes its gaps, part by part"
    if run.largest_batch is None and run.smoothness:
        why += f"; {joined.words}"
    found = _evaluator(name, why, run, group, partial(hidden_pairs, run, group), partial(overfull, run), _shifted)
    return replace(found, pairs=partial(_entering, run, hidden=True)) if group == 1 else found


def _evaluator(
    name: str,
    why: str,
    run: LastIterate,
    group: int,
    pairs: Callable[[float], Pairs],
    chance: Callable[[float], float],
    again: Callable[[LastIterate, int], Evaluator],
) -> Evaluator:
    """Return the bound from its pairs at a delta; the ``chance`` of what they do not cover is added to delta."""
    exact_groups = run.order == "poisson"

    def epsilon(delta: float) -> float:
        left = delta - chance(delta)
        if not left > 0:
            return math.inf
        try:
            if _exchanged(run):
                return _exchange(run, name, delta)[1](left)
            return worst_upper(pairs(delta).alternatives, left)
        except OverflowError:  # beyond what the grids hold: nothing is promised
            return math.inf

    def log_delta(at: float) -> float:
        try:
            if _exchanged(run):
                found = _exchange(run, name, _USUAL)[0](at)
            else:
                found = log_delta_upper(pairs(_USUAL).alternatives, at)
        except OverflowError:
            found = 0.0
        return min(math.log(math.exp(min(found, 0.0)) + chance(_USUAL)), 0.0)

    many = (lambda size: again(run, size)) if exact_groups and group == 1 else None
    direct = epsilon if group == 1 or exact_groups else None
    return Evaluator(name, "certified", why, log_delta, epsilon=direct, grouped=many)


def _exchanged(run: LastIterate) -> bool:
    """Return whether a record is exchanged for another under independent draws: then two sums over each pass differ."""
    return run.order == "independent" and run.neighbours == "replace-one"


@lru_cache(maxsize=32)
def _exchange(run: LastIterate, name: str, delta: float) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return log delta as a function of epsilon, and the inverse: both sums together, or two hops if that is less."""
    single = replace(run, neighbours="zero-out")
    found = seen_pairs(single, 1) if name == "unhidden" else hidden_pairs(single, 1, delta)
    hops = lru_cache(maxsize=1)(lambda: two_hops(profile(found.forward), profile(found.backward)))
    (law, times), *rest = found.forward
    alone = law if not rest and times == 1 and isinstance(law, AllocationLaw) else None

    def accurate(at: float) -> bool:
        """In truth two hops are never less, so they are worth their time only where a grid was too coarse."""
        passes = [law for law, _ in found.forward if isinstance(law, AllocationLaw)]
        return all(exchange_coarsening(law.summands, at, law.tail) <= _COARSE for law in passes)

    def log_delta(at: float) -> float:
        try:
            if alone is None:
                together = log_delta_upper([_exchange_uses(found)], at)
                return together if accurate(at) else min(hops()[0](at), together)
            return min(hops()[0](at), math.log(max(exchange_delta(alone.summands, at, alone.tail), 1e-300)))
        except OverflowError:
            return hops()[0](at)

    def epsilon(at: float) -> float:
        together = math.inf
        try:
            if alone is None:
                together = worst_upper([_exchange_uses(found)], at)
            else:
                together = exchange_epsilon(alone.summands, at, _WIDEST, alone.tail)
            if together < _WIDEST and accurate(together):
                return together
        except OverflowError:
            pass
        return min(hops()[1](at), together)

    return log_delta, epsilon


def _exchange_uses(pairs: Pairs) -> tuple[tuple[LossLaw, int], ...]:
    """Return the passes of an exchange, from those of zero-out; the same in both directions."""
    return tuple((exchange_law(law), times) for law, times in pairs.forward)


def sampled_rounds(run: LastIterate, delta: float = _USUAL) -> Rounds:
    """Return the rounds in the form of the theorem: the gap that one contribution opens, for any neighbours.

    Steps are as steep as the number of records makes them that may join when about this delta is asked for.
    """
    plain = rounds_of(replace(run, neighbours="zero-out"))
    unknown = np.full(plain.count, math.inf)  # how far sums of unknown size carry two points
    lipschitz = joining(run, delta).lipschitz
    return Rounds(plain.noise, plain.gap, plain.swap, lipschitz, unknown, plain.diameter)


def overfull(run: LastIterate, delta: float = _USUAL) -> float:
    """Return a bound on the chance that some round is joined by more records than it is charged for at about this
    delta.
    """
    return joining(run, delta).chance


@lru_cache(maxsize=16)
def seen_pairs(run: LastIterate, group: int) -> Pairs:
    """Return the pairs if every model is seen."""
    rounds = _bearable(sampled_rounds(run, _USUAL))  # of which only gaps and noise count
    if run.order == "independent":
        return _passes(run, rounds, at_once(run.rounds) if _steady(run, rounds) else at_once(run.total))
    ratios, counts = _few(rounds.gap / rounds.noise)
    one = np.ones(1)
    uses: dict[Way, list[tuple[LossLaw, int]]] = {way: [] for way in _ways(run)}
    for ratio, count in zip(ratios.tolist(), counts.tolist(), strict=True):
        single = Rounds(one, ratio * one, ratio * one, one, one, math.inf)
        for way, found in uses.items():
            law = part_law(single, Part(0, 1, 0, 1), run.rate or 1.0, group=group, way=way)
            found.append((law, int(count)))
    return _both([tuple(found) for found in uses.values()])


def _bearable(rounds: Rounds) -> Rounds:
    """Refuse rounds with next to no noise: nothing is promised of them, and no grid would hold their losses."""
    if not float(np.max(rounds.gap / rounds.noise)) < _LONGEST:
        raise OverflowError("a round has next to no noise")
    return rounds


def _ways(run: LastIterate) -> tuple[Way, ...]:
    return ("exchange",) if run.neighbours == "replace-one" else ("present", "null")


def _both(found: Sequence[tuple[tuple[LossLaw, int], ...]]) -> Pairs:
    return Pairs(found[0], found[-1])


def _few(values: Vector) -> tuple[Vector, Vector]:
    """Return at most so many different values, rounded up, with their counts."""
    different, counts = np.unique(values, return_counts=True)
    if different.size <= _KINDS:
        return different, counts.astype(np.float64)
    first = np.unique(np.linspace(0, different.size, _KINDS, endpoint=False).astype(np.intp))
    return np.maximum.reduceat(different, first), np.add.reduceat(counts, first).astype(np.float64)


@lru_cache(maxsize=64)
def hidden_pairs(run: LastIterate, group: int, delta: float) -> Pairs:
    """Return the pairs if only the last model is seen, by the best plan found for about this delta."""
    rounds = _bearable(sampled_rounds(run, delta))
    if not rounds.contracts:  # so many may join that no gap can be followed: each is closed at once
        return seen_pairs(run, group)
    constant = all(bool(np.all(a == a[0])) for a in (rounds.noise, rounds.gap, rounds.lipschitz))
    if run.order == "independent":
        weights = np.full(run.total, 1 / run.rounds)
        cost = scattered_cost(rounds, weights, constant)
        if run.rounds == 1:
            return seen_pairs(run, group)
        parts = best_plan(run.total, cost, constant=constant, passes=run.passes)
        return seen_pairs(run, group) if cost(at_once(run.total)) <= cost(parts) else _passes(run, rounds, parts)
    if run.total == 1:
        return seen_pairs(run, group)
    rate = run.rate or 1.0
    limit = max(1, LARGEST_PART // group)
    judge = PoissonCost(rounds, rate, delta, _widest(rounds, rate, group, delta), group, constant, _ways(run)[0])
    parts = best_plan(run.total, judge, constant=constant)
    if max(part.last - part.first for part in parts) > limit:
        return seen_pairs(run, group)
    few = run.total <= 3 * _KINDS or constant
    if few and judge(at_once(run.total)) < judge(parts):
        return seen_pairs(run, group)
    check_plan(parts, run.total)
    counted: dict[Part, int] = {}
    for part in parts:
        key = judge.key(part)
        counted[key] = counted.get(key, 0) + 1
    found = [
        tuple((part_law(rounds, part, rate, group=group, way=way), count) for part, count in counted.items())
        for way in _ways(run)
    ]
    return _both(found)


def _widest(rounds: Rounds, rate: float, group: int, delta: float) -> float:
    """Return four times about what a Gaussian of the same first order costs, and one use at the end."""
    mu = 1.2 * group * rate * math.sqrt(float(np.sum((rounds.gap / rounds.noise) ** 2)))
    last = float(rounds.gap[-1] / rounds.noise[-1]) * group
    normal = math.sqrt(-2 * math.log(delta))
    once = last * last / 2 + last * normal
    return 4 * (mu * mu / 2 + normal * mu) + min(once, 0.5 * once + 1.0)


def _steady(run: LastIterate, rounds: Rounds) -> bool:
    """Return whether all passes are alike."""
    arrays = (rounds.gap, rounds.noise)
    return all(bool(np.all(a.reshape(run.passes, -1) == a[: run.rounds])) for a in arrays)


def _passes(run: LastIterate, rounds: Rounds, parts: Sequence[Part]) -> Pairs:
    """Return the pairs for independent draws: each pass is a sum over its parts.

    ``parts`` of one pass stand for all.
    """
    repeated = run.passes if parts[-1].last == run.rounds else 1
    by_pass: dict[int, list[Part]] = {}
    for part in parts:
        by_pass.setdefault(part.first // run.rounds, []).append(part)
    counts: dict[Summands, int] = {}
    for members in by_pass.values():
        summands = _summands(rounds, members, run.rounds, merged=run.passes >= _MERGED)
        counts[summands] = counts.get(summands, 0) + repeated
    found = []
    for way in ("present", "null"):
        laws: list[tuple[LossLaw, int]] = [(_pass_law(s, way), count) for s, count in counts.items()]
        found.append(tuple(laws))
    return _both(found)


def _pass_law(summands: Summands, way: str) -> LossLaw:
    """Return the law of the sum over a pass; with one round nothing is secret."""
    if len(summands) == 1 and summands[0][1] == 1 and len(summands[0][0]) == 1:
        return GaussianLaw(summands[0][0][0][0])
    return AllocationLaw(summands, "present" if way == "present" else "null", tail=sparing_tail(summands))


def _summands(rounds: Rounds, parts: Sequence[Part], a_pass: int, *, merged: bool) -> Summands:
    counts: dict[tuple[tuple[float, float], ...], int] = {}
    for part in parts:
        mus = np.sort(lengths(rounds, part))
        mus = _rounded_up(mus) if merged else mus
        if mus[-1] <= mus[0] * (1 + 1e-9):
            classes = np.array([mus[-1]]), np.array([float(mus.size)])
        else:
            first = np.unique(np.linspace(0, mus.size, min(mus.size, _CLASSES), endpoint=False).astype(np.intp))
            classes = np.maximum.reduceat(mus, first), np.add.reduceat(np.ones(mus.size), first)
        key = tuple((float(m), float(c) / a_pass) for m, c in zip(*classes, strict=True))
        counts[key] = counts.get(key, 0) + 1
    return tuple(counts.items())


def _rounded_up(values: Vector) -> Vector:
    """Round up to forty binary digits, which is safe: so parts that differ by the rounding of floats only are one."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.ceil(mantissa * _DIGITS) / _DIGITS, exponent), dtype=np.float64)


def best_pairs(run: LastIterate) -> Pairs | None:
    """Return the pairs by which a sampled run enters a composition; None where only its curve is known."""
    return _entering(run, hidden=_shifted(run, 1).status == "certified")


def _entering(run: LastIterate, *, hidden: bool) -> Pairs | None:
    """Return the pairs of one bound, complete; None where only the bound's curve is known.

    Should more records join than are charged for, everything counts as disclosed.
    """
    single = replace(run, neighbours="zero-out") if _exchanged(run) else run
    try:
        pairs = hidden_pairs(single, 1, _USUAL) if hidden else seen_pairs(single, 1)
        if _exchanged(run):
            pairs = Pairs(_exchange_uses(pairs), _exchange_uses(pairs))
    except OverflowError:
        return None
    chance = overfull(run, _USUAL) if hidden else 0.0
    if chance == 0:
        return pairs
    kept = (1 - chance) * (1 - 8e-16)  # floats near 1 must not round a small chance away
    crowded: tuple[tuple[LossLaw, int], ...] = ((FiniteLaw((0.0,), (kept,), (kept,)), 1),)
    return Pairs(pairs.forward + crowded, pairs.backward + crowded)


def certified_epsilon(run: LastIterate, delta: float) -> float:
    """Return the least epsilon of the bounds: hidden if that applies, and with every model counted as seen."""
    return least_epsilon((_shifted(run, 1), _unhidden(run, 1)), delta)


def least_epsilon(bounds: Sequence[Evaluator], delta: float) -> float:
    """Return the least epsilon that these bounds certify.

    A hidden run's plan is chosen by a guess of what it costs, so counting every model as seen may promise more.
    """
    return min((epsilon_of(e, delta) for e in bounds if e.status == "certified"), default=math.inf)

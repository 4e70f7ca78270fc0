"""Bounds on a hidden run whose records draw their own rounds: hiding and secret sampling in one.

``unhidden`` counts every model as seen; ``sampled-shift`` lets later noise close the gaps. Both are dominating pairs,
composed as loss distributions. Theory page: sampled-shift.md.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from fedveil.accounting.evaluator import Evaluator, Pairs, epsilon_of, no_contraction, nothing_left, withdrawn
from fedveil.accounting.hidden import first_rounds, kept, per_round, rounds_of, until_release
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import NO_FURTHER_ROUNDS, LastIterate
from fedveil.theory.allocation import AllocationLaw, Summands, sparing_tail
from fedveil.theory.binomial_tail import binomial_tail, largest_usual
from fedveil.theory.closing import Part, at_once, check_plan, lengths, own_lengths, to_the_release
from fedveil.theory.composition import epsilon_upper, log_delta_upper, profile, two_hops, worst_upper
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import log_gaussian_delta
from fedveil.theory.exchange import exchange_coarsening, exchange_delta, exchange_epsilon, exchange_law
from fedveil.theory.loss import FiniteLaw, GaussianLaw, LossLaw
from fedveil.theory.mixture_law import Way
from fedveil.theory.numerics import ROUNDING, log_sum, smallest_epsilon
from fedveil.theory.plan_search import Cost, PoissonCost, best_plan, scattered_cost
from fedveil.theory.rounds import Rounds
from fedveil.theory.sampled_poisson import LARGEST_PART, part_law

# How many records may join a round of a run whose records draw their own rounds, and how rarely more do.
#
# A step is a sum over whoever joined, divided by the planned batch, so it is as steep as so many records make it.
# Rounds are charged as if ``most`` records joined; the chance that some round has more is added to delta. Theory page:
# sampled-shift.md.

_SHARE = 1e-3  # of the delta asked for, that crowded rounds may take
_WHOLE = 1e15  # from here on floats are whole numbers, and no data set is as large


@dataclass(frozen=True, slots=True, eq=False)
class Joining:
    """``lipschitz``: of each round's step when at most ``most`` records join; ``chance``: that more join some round."""

    lipschitz: Vector
    chance: float
    most: float

    @property
    def words(self) -> str:
        """Return what is charged, in words."""
        worst = float(np.max(self.lipschitz))
        steps = f"steps may expand by {worst:.4g} when that many join" if worst > 1 else "steps then do not expand"
        return f"up to {self.most:.12g} records count as joining a round ({steps}), more with chance {self.chance:.2g}"


def other_records(run: LastIterate) -> int | None:
    """Return how many records there are beside the one in question; None if the run does not say.

    Without ``records`` the planned batch is the expected one: batch / rate records, or the batches of a pass together.
    """
    if run.records is not None:
        return run.records - 1
    batches = run.batch if isinstance(run.batch, tuple) else (run.batch,) * run.rounds
    if run.rate is None:
        return sum(batches) - 1
    if len(set(batches)) > 1:
        return None
    return max(1, math.ceil(batches[0] / run.rate * (1 - 1e-12))) - 1


@lru_cache(maxsize=8)  # a long run holds many megabytes
def joining(run: LastIterate, delta: float) -> Joining:
    """Return what to charge if about this delta is asked for; without smoothness nothing is known about a step.

    ``largest_batch`` is taken as it is stated. Otherwise it is the smallest number that all rounds together exceed
    with a chance of at most a thousandth of delta; and where a round contracts as well with more, so many more.
    """
    step, batch = until_release("step_size", run), until_release("batch", run)
    others = other_records(run)
    if run.smoothness is None or others is None:
        return Joining(np.full(step.size, math.inf), 0.0, math.inf)
    rate = run.rate if run.rate is not None else 1 / run.choices
    if run.largest_batch is not None:
        most = np.full(step.size, float(run.largest_batch))
    else:
        usual = float(largest_usual(others, rate, max(_SHARE * delta / step.size, 1e-300)))
        most = np.maximum(usual, _harmless(run, step, batch))
    if run.further is not None:  # further rounds may take everybody who is planned for, whatever the rate before
        most[run.total :] = np.maximum(most[run.total :], batch[run.total :])
    most = np.minimum(most, others)
    sizes, counts = np.unique(most, return_counts=True)
    tails = [c * binomial_tail(others, rate, int(s) + 1) for s, c in zip(sizes.tolist(), counts.tolist(), strict=True)]
    flat = run.smoothness == run.strong_convexity  # only the penalty bends, whoever joins
    chance = 0.0 if flat else min(1.0, math.fsum(tails) * (1 + 1e-12))
    return Joining(step_lipschitz(run, step, most / batch), chance, float(most.max()))


def step_lipschitz(run: LastIterate, step: Vector, crowd: Vector) -> Vector:
    """Return the Lipschitz constant of steps joined by at most ``crowd`` times the planned batch; the penalty is there
    once.
    """
    penalty = run.strong_convexity
    steep = penalty + ((run.smoothness or 0.0) - penalty) * crowd
    if not run.convex:
        return np.asarray(1 + step * steep)
    return np.asarray(np.maximum(np.abs(1 - step * penalty), np.abs(1 - step * steep)))


def _harmless(run: LastIterate, step: Vector, batch: Vector) -> Vector:
    """Return how many may join without a larger Lipschitz constant than an empty round has."""
    penalty, bend = run.strong_convexity, (run.smoothness or 0.0) - run.strong_convexity
    if not run.convex:
        return np.full(step.size, 0.0 if bend > 0 else _WHOLE)
    if bend == 0:
        return np.full(step.size, _WHOLE)
    room = (1 + np.abs(1 - step * penalty)) / step - penalty
    return np.asarray(np.floor(np.clip(room * batch / bend * (1 - 1e-12), 0.0, _WHOLE)))


_KINDS = 48  # different rounds that are told apart when every model is seen
_CLASSES = 12  # different shifts inside one part of a pass
_GUESSED, _ROUGH = 3, 4e-3  # different rounds, and the relative error of the grid, where a guess will do
_LONGEST = 1e3  # a contribution over its round's noise, from where on nothing is promised
_WIDEST = 50.0  # epsilon of an exchange up to which it is looked for
_COARSE = 8.0  # how many times coarser than wanted a grid may be and still be taken for accurate
_MERGED = 3  # from so many passes on those are counted as one that differ by the rounding of floats only
_DIGITS = 2.0**40  # to which the shifts of a part are rounded up
_TINY = 1e-9  # delta below which roundings of a pass count
_GIVEN_UP = 1e-3  # of delta that the tail of a pass may take
_IDLE = 1e-7  # the shift that a record counts for which takes no part in a pass
_LEAST_IDLE = 1e-9  # chances of that below this are roundings
_STOPS = 48  # stops of a run that are followed one by one
_FEW_STOPS = 12  # the same for rounds of one kind, where later stops stand for earlier ones
_GROUPS = (0.25, 0.5, 0.7, 0.82, 0.9, 0.95, 0.98, 1.0)  # of the rounds: where groups of stops end
_STOPPED_PASSES = 12  # most passes of independent draws for which random stopping is followed
_UP = 1 + 1e-12  # a larger mu is never less safe
_USUAL = 1e-5  # the delta for which a plan is sought when none is given


def sampled_evaluators(run: LastIterate) -> Sequence[Evaluator]:
    """Return every bound, certified ones first."""
    if run.further.anew:
        return [nothing_left()]
    other = "stated for a known place or a partition, not for records that draw their own rounds"
    names = ("linear-contraction", "nonlinear-contraction", "shift", "block", "transport", "position")
    rest = [withdrawn(name, other) for name in (*names, "renyi-diffusion", "renyi-iteration")]
    return [_shifted(run, 1), _unhidden(run, 1), *rest]


def _unhidden(run: LastIterate, group: int) -> Evaluator:
    """Return the bound with every model seen; knowing the draws never protects, so it is never worse than telling."""
    why = "every model counted as seen, the record's draws secret: exact composition of its dominating pairs"
    secret = _evaluator("unhidden", why, run, group, lambda _: seen_pairs(run, group), lambda _: 0.0, _unhidden)
    bound = never_worse(secret, group * disclosed_mu(run))
    return replace(bound, pairs=partial(_entering, run, hidden=False)) if group == 1 else bound


def disclosed_mu(run: LastIterate) -> float:
    """Return mu of the run if every model is seen and everybody knows in which rounds the record takes part.

    The record may have drawn the worst rounds: all of them by coins, otherwise the one of each pass with the least
    noise. Delta is jointly convex, so secret draws never cost more than the worst disclosed ones.
    """
    rounds = rounds_of(run)
    ratios = (rounds.gap / rounds.noise)[: run.total]
    worst = ratios.reshape(run.passes, -1).max(axis=1) if run.order == "independent" else ratios
    return float(np.sqrt(np.sum(worst**2))) * _UP


def never_worse(secret: Evaluator, mu: float) -> Evaluator:
    """Return the lesser of a bound and of a Gaussian pair that dominates the same run with its secrets told."""
    log_delta, epsilon = secret.log_delta, secret.epsilon
    if log_delta is None:
        return secret

    def least_log_delta(at: float) -> float:
        return min(log_delta(at), log_gaussian_delta(at, mu) + ROUNDING)

    def least_epsilon_at(delta: float) -> float:
        return min(epsilon_of(secret, delta), gaussian_epsilon(mu, delta))

    return replace(secret, log_delta=least_log_delta, epsilon=least_epsilon_at if epsilon is not None else None)


def _shifted(run: LastIterate, group: int) -> Evaluator:
    name = "sampled-shift"
    if other_records(run) is None:
        return withdrawn(name, "planned batches differ, so they do not tell how many records may join: state records")
    joined = joining(run, _USUAL)
    if not sampled_rounds(run, _USUAL).contracts:
        return withdrawn(name, no_contraction(run) + ("" if run.smoothness is None else f": {joined.words}"))
    if run.stopping == "random":
        return _stopped(run)
    if not joined.chance < 1:
        return withdrawn(name, "more records than largest_batch are likely to join some round")
    why = "the record's draws are secret and later noise closes its gaps, part by part"
    if run.largest_batch is None and run.smoothness:
        why += f"; {joined.words}"
    bound = _evaluator(name, why, run, group, partial(hidden_pairs, run, group), partial(overfull, run), _shifted)
    return replace(bound, pairs=partial(_entering, run, hidden=True)) if group == 1 else bound


Stops = tuple[tuple[float, tuple[LastIterate, ...]], ...]  # the share of a group of stops, and the run up to it


def _stopped(run: LastIterate) -> Evaluator:
    """Return the bound for a run that stops at a uniformly random round: the mean over the stops.

    Delta is jointly convex, so telling everybody the stop costs no less. Rounds of one kind: a plan for a later stop is
    one for an earlier stop too, without its first victims, so that stops are charged in groups at their last.
    """
    name = "sampled-shift"
    pieces = _stop_pieces(run)
    if pieces is None:
        return withdrawn(
            name, f"random stopping is followed for rounds of one kind, and otherwise up to {_STOPS} stops"
        )
    stops = lru_cache(maxsize=1)(lambda: [(math.log(share), _in_turn(runs)) for share, runs in pieces])

    def log_delta(epsilon: float) -> float:
        return min(log_sum(np.array([share + bound(epsilon) for share, bound in stops()])) + ROUNDING, 0.0)

    why = "the record's draws are secret and later noise closes its gaps; the mean over the stops"
    return Evaluator(name, "certified", why, log_delta, epsilon=partial(smallest_epsilon, log_delta, tolerance=1e-4))


def _in_turn(runs: Sequence[LastIterate]) -> Callable[[float], float]:
    """Return log delta of runs one after the other, of which the state between them counts as seen."""
    if len(runs) == 1:
        bounds = [e for e in (_shifted(runs[0], 1), _unhidden(runs[0], 1)) if e.log_delta is not None]
        best = min(bounds, key=lambda e: epsilon_of(e, _USUAL)).log_delta
        return best if best is not None else lambda epsilon: 0.0
    entering = [best_pairs(run) for run in runs]
    if any(pairs is None for pairs in entering):
        return lambda epsilon: 0.0
    forward = tuple(use for pairs in entering if pairs is not None for use in pairs.forward)
    backward = tuple(use for pairs in entering if pairs is not None for use in pairs.backward)
    return partial(log_delta_upper, Pairs(forward, backward).alternatives)


@lru_cache(maxsize=8)
def _stop_pieces(run: LastIterate) -> Stops | None:
    """Return groups of stops: their share, and the run up to the last of them; None if there would be too many.

    Independent draws: whole passes first, then the pass in which the run stops; its other rounds count for nothing.
    """
    rounds = rounds_of(run)
    constant = all(bool(np.all(a == a[0])) for a in (rounds.noise, rounds.gap, rounds.lipschitz))
    if run.order == "poisson" or run.passes == 1:
        return _grouped_stops(run, 0, constant)
    if run.passes > _STOPPED_PASSES:
        return None
    pieces: list[tuple[float, tuple[LastIterate, ...]]] = []
    for whole in range(run.passes):
        inside = _grouped_stops(run, whole * run.rounds, constant)
        if inside is None:
            return None
        before = (_whole_passes(run, whole),) if whole else ()
        pieces += [(share / run.passes, (*before, *runs)) for share, runs in inside]
    return tuple(pieces)


def _whole_passes(run: LastIterate, passes: int) -> LastIterate:
    """Return the first passes of the run, with nothing after them."""
    steps, noise = (per_round(v, run)[: passes * run.rounds].tolist() for v in (run.step_size, run.noise_std))
    return replace(
        run, passes=passes, stopping="end", further=NO_FURTHER_ROUNDS, step_size=tuple(steps), noise_std=tuple(noise)
    )


def _grouped_stops(run: LastIterate, first: int, constant: bool) -> Stops | None:
    """Return stops among the rounds from ``first`` on: of all passes (poisson), or of this one."""
    count = run.total if run.order == "poisson" else run.rounds
    if not constant and run.total > _STOPS:
        return None
    ends = np.arange(1, count + 1)
    if constant and count > _FEW_STOPS:  # denser towards the end, where most of delta comes from
        ends = np.unique(np.ceil(count * np.array(_GROUPS)).astype(np.intp))
    shares = np.diff(np.append(0, ends)) / count
    return tuple(
        (share, (first_rounds(run, first, end),)) for share, end in zip(shares.tolist(), ends.tolist(), strict=True)
    )


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
            value = worst_upper(pairs(delta).alternatives, left)
        except OverflowError:  # beyond what the grids hold: nothing is promised
            value = math.inf
        # An exchange dominates: its roundings are relative, and it is finite where the grids of zero-out are too short.
        if run.order == "independent" and (delta < _TINY or math.isinf(value)):
            with suppress(OverflowError):
                value = min(value, _exchange(replace(run, neighbours="replace-one"), name, delta)[1](left))
        return value

    def log_delta(at: float) -> float:
        try:
            if _exchanged(run):
                log_bound = _exchange(run, name, _USUAL)[0](at)
            else:
                log_bound = log_delta_upper(pairs(_USUAL).alternatives, at)
        except OverflowError:
            log_bound = 0.0
        if run.order == "independent" and not _exchanged(run) and log_bound >= 0:  # as for epsilon
            with suppress(OverflowError):
                log_bound = _exchange(replace(run, neighbours="replace-one"), name, _USUAL)[0](at)
        return min(math.log(math.exp(min(log_bound, 0.0)) + chance(_USUAL)), 0.0)

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
    pairs = seen_pairs(single, 1) if name == "unhidden" else hidden_pairs(single, 1, delta)
    hops = lru_cache(maxsize=1)(lambda: two_hops(profile(pairs.forward), profile(pairs.backward)))
    (law, times), *rest = pairs.forward
    alone = law if not rest and times == 1 and isinstance(law, AllocationLaw) else None

    def accurate(at: float) -> bool:
        """In truth two hops are never less, so they are worth their time only where a grid was too coarse."""
        passes = [law for law, _ in pairs.forward if isinstance(law, AllocationLaw)]
        return all(exchange_coarsening(law.summands, at, law.tail) <= _COARSE for law in passes)

    def log_delta(at: float) -> float:
        try:
            if alone is None:
                together = log_delta_upper([_exchange_uses(pairs)], at)
                return together if accurate(at) else min(hops()[0](at), together)
            return min(hops()[0](at), math.log(max(exchange_delta(alone.summands, at, alone.tail), 1e-300)))
        except OverflowError:
            return hops()[0](at)

    def epsilon(at: float) -> float:
        together = math.inf
        try:
            if alone is None:
                together = worst_upper([_exchange_uses(pairs)], at)
            else:
                tails = {alone.tail, min(alone.tail, _GIVEN_UP * at)}  # the longer one needs a coarser grid
                together = min(_one_pass(alone.summands, at, tail) for tail in tails)
            if together < _WIDEST and accurate(together) and at >= _TINY:
                return together
        except OverflowError:
            pass
        try:
            return min(hops()[1](at), together)
        except OverflowError:
            return together

    return log_delta, epsilon


def _one_pass(summands: Summands, delta: float, tail: float) -> float:
    """Return epsilon of an exchange under one pass; infinite if no grid holds it with so short a tail given up."""
    try:
        return exchange_epsilon(summands, delta, _WIDEST, tail)
    except OverflowError:
        return math.inf


def _exchange_uses(pairs: Pairs) -> tuple[tuple[LossLaw, int], ...]:
    """Return the passes of an exchange, from those of zero-out; the same in both directions."""
    return tuple((exchange_law(law), times) for law, times in pairs.forward)


def sampled_rounds(run: LastIterate, delta: float = _USUAL) -> Rounds:
    """Return the rounds in the form of the theorem: the gap that one contribution opens, for any neighbours.

    Steps are as steep as the number of records makes them that may join when about this delta is asked for.
    """
    rounds = rounds_of(replace(run, neighbours="zero-out"))
    unknown = np.full(rounds.count, math.inf)  # how far sums of unknown size carry two points
    lipschitz = kept(run, joining(run, delta).lipschitz)
    return Rounds(rounds.noise, rounds.gap, rounds.swap, lipschitz, unknown, rounds.diameter)


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
    ratios, counts = _few((rounds.gap / rounds.noise)[: run.total])
    one = np.ones(1)
    uses: dict[Way, list[tuple[LossLaw, int]]] = {way: [] for way in _ways(run)}
    for ratio, count in zip(ratios.tolist(), counts.tolist(), strict=True):
        single = Rounds(one, ratio * one, ratio * one, one, one, math.inf)
        for way, laws in uses.items():
            law = part_law(single, Part(0, 1, 0, 1), run.rate or 1.0, group=group, way=way)
            laws.append((law, int(count)))
    return _both([tuple(laws) for laws in uses.values()])


def guessed_epsilon(run: LastIterate, delta: float) -> float:
    """Return a quick guess of epsilon, no bound: every model seen, and each round joined by a coin of its own."""
    rounds = rounds_of(replace(run, neighbours="zero-out"))
    rate = run.rate if run.order == "poisson" and run.rate is not None else 1 / run.choices
    groups = np.array_split(np.sort((rounds.gap / rounds.noise)[: run.total]), _GUESSED)
    kinds = [(float(np.sqrt(np.mean(group**2))), group.size) for group in groups if group.size]
    one, coin = np.ones(1), Part(0, 1, 0, 1)
    alone = [(Rounds(one, mu * one, mu * one, one, one, math.inf), count) for mu, count in kinds]
    try:
        uses = [(part_law(single, coin, rate, way=_ways(run)[0]), count) for single, count in alone]
        return epsilon_upper(uses, delta, _ROUGH)
    except OverflowError:
        return math.inf


def _bearable(rounds: Rounds) -> Rounds:
    """Refuse rounds with next to no noise: nothing is promised of them, and no grid would hold their losses."""
    if not float(np.max(rounds.gap / rounds.noise)) < _LONGEST:
        raise OverflowError("a round has next to no noise")
    return rounds


def _ways(run: LastIterate) -> tuple[Way, ...]:
    return ("exchange",) if run.neighbours == "replace-one" else ("present", "null")


def _both(directions: Sequence[tuple[tuple[LossLaw, int], ...]]) -> Pairs:
    return Pairs(directions[0], directions[-1])


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
    further = run.until_release - run.total
    if run.order == "independent":
        weights = np.full(run.total, 1 / run.choices)
        cost = scattered_cost(rounds, weights, constant)
        if run.rounds == 1 and not further:
            return seen_pairs(run, group)
        parts = _plan(run, rounds, cost, constant, run.rounds)
        return seen_pairs(run, group) if cost(at_once(run.total)) <= cost(parts) else _passes(run, rounds, parts)
    if run.until_release == 1:
        return seen_pairs(run, group)
    rate = run.rate or 1.0
    limit = max(1, LARGEST_PART // group)
    judge = PoissonCost(rounds, rate, delta, _widest(rounds, rate, group, delta), group, constant, _ways(run)[0])
    parts = _plan(run, rounds, judge, constant, limit)
    if max(part.last - part.first for part in parts) > limit:
        return seen_pairs(run, group)
    few = run.total <= 3 * _KINDS or constant
    if few and judge(at_once(run.total)) < judge(parts):
        return seen_pairs(run, group)
    counted: dict[Part, int] = {}
    for part in parts:
        key = judge.key(part)
        counted[key] = counted.get(key, 0) + 1
    directions = [
        tuple((part_law(rounds, part, rate, group=group, way=way), count) for part, count in counted.items())
        for way in _ways(run)
    ]
    return _both(directions)


def _plan(run: LastIterate, rounds: Rounds, cost: Cost, constant: bool, most: int) -> list[Part]:
    """Return the cheapest plan found; ``most``: victims of a part that closes up to the release."""
    further, passes = run.until_release - run.total, run.passes if run.order == "independent" else 1
    parts = best_plan(run.total, cost, constant=constant, passes=passes, further=further)
    if further:
        parts = min(parts, to_the_release(rounds, run.total, most), key=cost)
    check_plan(parts, run.total, further)
    return parts


def _widest(rounds: Rounds, rate: float, group: int, delta: float) -> float:
    """Return four times about what a Gaussian of the same first order costs, and one use at the end."""
    mu = 1.2 * group * rate * math.sqrt(float(np.sum((rounds.gap / rounds.noise) ** 2)))
    last = float(rounds.gap[-1] / rounds.noise[-1]) * group
    normal = math.sqrt(-2 * math.log(delta))
    once = last * last / 2 + last * normal
    return 4 * (mu * mu / 2 + normal * mu) + min(once, 0.5 * once + 1.0)


def _steady(run: LastIterate, rounds: Rounds) -> bool:
    """Return whether all passes are alike."""
    arrays = (rounds.gap[: run.total], rounds.noise[: run.total])
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
        summands = _summands(rounds, members, run.choices, merged=run.passes >= _MERGED)
        counts[summands] = counts.get(summands, 0) + repeated
    directions = []
    for way in ("present", "null"):
        laws: list[tuple[LossLaw, int]] = [(_pass_law(s, way), count) for s, count in counts.items()]
        directions.append(tuple(laws))
    return _both(directions)


def _pass_law(summands: Summands, way: str) -> LossLaw:
    """Return the law of the sum over a pass; with one round nothing is secret."""
    if len(summands) == 1 and summands[0][1] == 1 and len(summands[0][0]) == 1:
        return GaussianLaw(summands[0][0][0][0])
    return AllocationLaw(summands, "present" if way == "present" else "null", tail=sparing_tail(summands))


def _summands(rounds: Rounds, parts: Sequence[Part], choices: float, *, merged: bool) -> Summands:
    """Return the likelihood ratio of a pass; with the rest of the chance the record takes no part in it.

    A record that takes no part is not shifted; it counts as shifted by next to nothing, and longer is safe.
    """
    counts: dict[tuple[tuple[float, float], ...], int] = {}
    alone = own_lengths(rounds, parts)
    if alone is not None:  # the same at once, in the order in which lengths first come
        different, first, often = np.unique(
            _rounded_up(alone) if merged else alone, return_index=True, return_counts=True
        )
        counts = {((float(different[k]), 1.0 / choices),): int(often[k]) for k in np.argsort(first)}
    for each in [lengths(rounds, part) for part in parts] if alone is None else ():
        mus = np.sort(each)
        mus = _rounded_up(mus) if merged else mus
        if mus[-1] <= mus[0] * (1 + 1e-9):
            classes = np.array([mus[-1]]), np.array([float(mus.size)])
        else:
            first = np.unique(np.linspace(0, mus.size, min(mus.size, _CLASSES), endpoint=False).astype(np.intp))
            classes = np.maximum.reduceat(mus, first), np.add.reduceat(np.ones(mus.size), first)
        key = tuple((float(m), float(c) / choices) for m, c in zip(*classes, strict=True))
        counts[key] = counts.get(key, 0) + 1
    idle = 1 - sum(part.last - part.first for part in parts) / choices
    return (*counts.items(), *((((_IDLE, idle),), 1),) * (idle > _LEAST_IDLE))


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
    disclosed = disclosed_mu(run)
    try:
        pairs = hidden_pairs(single, 1, _USUAL) if hidden else seen_pairs(single, 1)
        if _exchanged(run):
            pairs = Pairs(_exchange_uses(pairs), _exchange_uses(pairs))
    except OverflowError:
        return None
    chance = overfull(run, _USUAL) if hidden else 0.0
    if chance == 0:
        return replace(pairs, disclosed_mu=disclosed)
    kept = (1 - chance) * (1 - 8e-16)  # floats near 1 must not round a small chance away
    crowded: tuple[tuple[LossLaw, int], ...] = ((FiniteLaw((0.0,), (kept,), (kept,)), 1),)
    return Pairs(pairs.forward + crowded, pairs.backward + crowded, disclosed)


def certified_epsilon(run: LastIterate, delta: float) -> float:
    """Return the least epsilon of the bounds: hidden if that applies, and with every model counted as seen."""
    return least_epsilon((_shifted(run, 1), _unhidden(run, 1)), delta)


def least_epsilon(bounds: Sequence[Evaluator], delta: float) -> float:
    """Return the least epsilon that these bounds certify.

    A hidden run's plan is chosen by a guess of what it costs, so counting every model as seen may promise more.
    """
    return min((epsilon_of(e, delta) for e in bounds if e.status == "certified"), default=math.inf)

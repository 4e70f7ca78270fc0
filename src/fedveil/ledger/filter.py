r"""Whether one more run fits under a cap when every run may be chosen after seeing what the earlier ones released.

Two rules, each valid for runs chosen in any such way; which one a cap uses is settled when the cap is first stated and
stays with it (``Cap.order``):

- *sum* (no order): epsilons and deltas add up [RRUV16].
- *Renyi divergence of one fixed order* [FZ21]: what each run is certified for gives a Renyi divergence $r$ of that
  order and a chance $d$ of being outside of it. Both add up, whatever is chosen when. All runs together are
  $(\varepsilon, \delta)$-private with
  $\delta = \sum d + e^{(\alpha-1)(\sum r - \varepsilon)} \alpha^{-1} (1 - 1/\alpha)^{\alpha-1}$.

Exact composition is smaller than both, and is no such rule: it needs runs that were fixed in advance [RRUV16].
Theory page, with the proofs: adding-up-runs.md.

References:
    [RRUV16] Rogers, Roth, Ullman, Vadhan. Privacy Odometers and Filters: Pay-as-you-Go Composition. NeurIPS 2016.
    [FZ21] Feldman, Zrnic. Individual Privacy Accounting via a Renyi Filter. NeurIPS 2021.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.special import logsumexp

from fedveil.ledger.budget import Cap, CapExceeded, Cost, check_caps
from fedveil.ledger.costs import Charged, Question
from fedveil.theory.loss import FiniteLaw, LossLaw

ORDERS: Final = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0)
OUTSIDE: Final = 0.1  # the share of a cap's delta that is reserved for the chances of being outside
_UP: Final = 1 + 1e-9  # relative amount by which sums are rounded up


@dataclass(frozen=True, slots=True)
class Spent:
    """The Renyi divergence of the cap's order, and the chance of being outside of it."""

    divergence: float
    outside: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent((self.divergence + other.divergence) * _UP, (self.outside + other.outside) * _UP)


def question_of(cap: Cap) -> Question:
    """Return the observer, unit and relation that the cap is about."""
    return cap.adversary, cap.unit, cap.neighbours


def spent_by(run: Charged, cap: Cap, order: float) -> Spent:
    """Return what one charge takes of a cap with this order; infinite if nothing finite is known."""
    uses = run.uses(question_of(cap))
    if uses is None:
        return Spent(math.inf, 0.0)
    found = Spent(0.0, 0.0)
    for law, times in uses:
        once = _divergence(law, order)
        found += Spent(once.divergence * times, once.outside * times)
    return found


def _divergence(law: LossLaw, order: float) -> Spent:
    """Return the divergence of a law without its infinite losses.

    The mass of the infinite losses is the chance of being outside.
    """
    if not isinstance(law, FiniteLaw):
        return Spent(math.inf, 0.0)
    losses, p = np.array(law.losses), np.array(law.p)
    outside = max(0.0, 1.0 - math.fsum(law.p)) + 1e-15  # a sum of floats may be off by this much
    seen = p > 0
    moment = float(logsumexp(np.log(p[seen]) + (order - 1) * losses[seen]))
    inside = order * math.log1p(-outside) if outside < 1 else -math.inf
    return Spent(max(0.0, (moment - inside) / (order - 1)) * _UP + 1e-12, outside)


def _log_conversion(order: float) -> float:
    return -math.log(order) + (order - 1) * math.log1p(-1 / order)


def budget_of(cap: Cap, order: float) -> Spent:
    """Return what all runs together may take of a cap with this order."""
    if cap.delta <= 0:
        return Spent(-math.inf, 0.0)
    room = math.log((1 - OUTSIDE) * cap.delta) - _log_conversion(order)
    return Spent(cap.epsilon + room / (order - 1), OUTSIDE * cap.delta)


def epsilon_of(spent: Spent, cap: Cap, order: float) -> float:
    """Return the epsilon, at the cap's delta, of everything taken so far.

    Infinite if the chances of being outside leave no delta.
    """
    budget = budget_of(cap, order)
    if not (spent.divergence < math.inf and spent.outside <= budget.outside):
        return math.inf
    return max(0.0, spent.divergence - budget.divergence + cap.epsilon)


def total_spent(runs: Iterable[Charged], cap: Cap, order: float) -> Spent:
    """Return the sum of what all charges take."""
    found = Spent(0.0, 0.0)
    for run in runs:
        found += spent_by(run, cap, order)
    return found


def _fits(spent: Spent, cap: Cap, order: float) -> bool:
    budget = budget_of(cap, order)
    return spent.divergence <= budget.divergence and spent.outside <= budget.outside


def settled(cap: Cap, before: Sequence[Charged], asked: Charged) -> Cap:
    """Return a cap that is stated for the first time, with the rule that admits more runs like this one.

    The choice depends on the first run only, so it is made before anything is learned under the cap.
    """
    cost = asked.stated(question_of(cap))
    if not (0 < cost.epsilon < math.inf) or cap.delta <= 0 or not asked.plans:
        return cap
    added = min(math.floor(cap.epsilon / cost.epsilon * _UP), math.floor(cap.delta / cost.delta * _UP))
    most, best = float(added), None
    for order in ORDERS:
        once, budget = spent_by(asked, cap, order), budget_of(cap, order)
        count = min(budget.divergence / once.divergence, budget.outside / once.outside)
        if math.floor(count) > added and count > most:
            most, best = count, order
    if best is not None and _fits(total_spent([*before, asked], cap, best), cap, best):
        return replace(cap, order=best)
    return cap


def check(caps: Iterable[Cap], before: Sequence[Charged], asked: Charged) -> None:
    """Raise :class:`CapExceeded` unless every cap still holds with the new run."""
    for cap in caps:
        if cap.order is None:
            check_caps([cap], [run.costs for run in before], asked.costs)
            continue
        spent = total_spent(before, cap, cap.order)
        after = spent + spent_by(asked, cap, cap.order)
        if not _fits(after, cap, cap.order):
            then = epsilon_of(after, cap, cap.order)
            raise CapExceeded(cap, _as_cost(spent, cap), asked.stated(question_of(cap)), then)


def _as_cost(spent: Spent, cap: Cap) -> Cost:
    epsilon = 0.0 if spent.divergence == 0 else epsilon_of(spent, cap, cap.order or ORDERS[0])
    delta = 0.0 if spent.divergence == 0 else cap.delta
    return Cost(adversary=cap.adversary, unit=cap.unit, neighbours=cap.neighbours, epsilon=epsilon, delta=delta)

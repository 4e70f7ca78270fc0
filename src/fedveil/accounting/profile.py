"""Certified bounds of a hidden run as a law, so that the run can be composed exactly with whatever else is released.

The true privacy profile is convex in exp(epsilon), so it lies below the convex minorant of certified points, and the
law of that minorant dominates the run.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedveil.accounting.evaluator import Evaluator, Pairs, epsilon_of, moves_of
from fedveil.accounting.loss_distribution import LossCurve, LossDistributionAccountant
from fedveil.core.errors import CannotCertify
from fedveil.privacy.mechanism import Gaussian
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.loss import FiniteLaw, law_of_profile
from fedveil.theory.numerics import LARGEST_EPSILON, smallest_epsilon

_POINTS = 40  # epsilons at which the certified curve is taken
_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)  # what the Gaussian release may have of delta where epsilons are added up
_USUAL = 1e-5  # the delta at which bounds are compared
_WIDEST = 600.0  # largest epsilon of such a curve; its exponential must be a number


def law_of_bounds(able: Sequence[Callable[[float], float]]) -> FiniteLaw:
    """Return the law of the best of these certified bounds (log delta as a function of epsilon)."""
    probes = (smallest_epsilon(bound, 1e-5, tolerance=1e-2) / 2 for bound in able)
    probe = next((value for value in probes if value < LARGEST_EPSILON), math.inf)
    if not probe < LARGEST_EPSILON:
        raise CannotCertify("a hidden run in the composition has no finite guarantee of its own")
    log_delta = min(able, key=lambda bound: bound(probe))  # any certified bound is valid; the best one there is used
    far = smallest_epsilon(log_delta, 1e-13, tolerance=1e-2)
    if not far < _WIDEST:
        raise CannotCertify("a hidden run in the composition has hardly any privacy of its own; give it more noise")
    grid = np.linspace(0.0, max(far, 1e-9), _POINTS)
    return law_of_profile(grid, np.array([math.exp(min(log_delta(float(e)), 0.0)) for e in grid]))


def composed(views: Sequence[Evaluator], beside: Gaussian) -> Evaluator:
    """Return the one bound on what an observer learns from a hidden run and a Gaussian release on the same data.

    ``views``: every bound on the run alone. Where the pairs of one are known, and not only its curve, as for records
    that draw their own rounds, they are composed; of several, those of the bound that promises most.
    """
    pairs = _dominating(views)
    if pairs is not None:
        known = None if pairs.disclosed_mu is None else LossCurve(beside.mu**2 + pairs.disclosed_mu**2, bracketed=False)
        return _evaluator(LossCurve(beside.mu**2, pairs.forward, pairs.backward, bracketed=False, known=known))
    name, able = "loss-distribution", [e.log_delta for e in views if e.status == "certified" and e.log_delta]
    if not able:
        return Evaluator(name, "does-not-apply", "; ".join(e.reason for e in views) or "nothing is known of the run")
    try:
        law = law_of_bounds(able)
    except CannotCertify:
        return _added(views, beside)
    return _evaluator(LossCurve(beside.mu**2, ((law, 1),), ((law, 1),), bracketed=False))


def _dominating(views: Sequence[Evaluator]) -> Pairs | None:
    known = [e for e in views if e.status == "certified" and e.pairs is not None]
    if not known:
        return None
    best = known[0] if len(known) == 1 else min(known, key=lambda e: epsilon_of(e, _USUAL))
    return None if best.pairs is None else best.pairs()


def _evaluator(curve: LossCurve) -> Evaluator:
    """Return the bound of a composition whose laws are known."""
    accountant = LossDistributionAccountant()

    def log_delta(epsilon: float) -> float:
        return math.log(max(accountant.delta(curve, epsilon), 1e-300))

    return Evaluator(
        "loss-distribution",
        "certified",
        "exact composition of the preparation's noisy sums with the certified curve of the hidden run",
        log_delta,
        epsilon=lambda delta: accountant.epsilon(curve, delta),
    )


def _added(views: Sequence[Evaluator], beside: Gaussian) -> Evaluator:
    """Epsilons and deltas added up, for a run with too little privacy of its own to have a law; best of some splits."""
    seen = [e for e in views if e.status == "certified" and e.log_delta is not None]
    steps = [(gaussian_epsilon(beside.mu, delta), delta) for delta in _DELTAS]

    def log_delta(epsilon: float) -> float:
        best = 0.0
        for spent, delta in steps:
            if spent <= epsilon:
                least = min(e.log_delta(epsilon - spent) for e in seen if e.log_delta is not None)
                best = min(best, float(np.logaddexp(least, math.log(delta))))
        return best

    # Releases that are all counted as seen stay so with one more; a bound that hides some knows no moves.
    known = [e.moves for e in seen]
    moves = moves_of([*(known[0] or ()), (beside.mu, 1)]) if len(known) == 1 and known[0] is not None else None
    why = "epsilons of the preparation and of the run added up: the run alone has hardly any privacy here"
    return Evaluator("added", "certified", why, log_delta, moves)

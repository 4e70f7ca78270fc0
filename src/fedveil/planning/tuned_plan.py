"""From candidates to one plan: calibrate what each trial may spend, so that the selected model meets the target.

All candidates get the same inner target. Its delta is what the selection theorem leaves of the whole delta; its epsilon
is the largest found at which the whole promise still holds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from fedveil.core.errors import CannotCertify, FedveilError, require
from fedveil.planning.design import Planned
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.selection import Selection
from fedveil.planning.tune_request import Candidate, TuneRequest
from fedveil.privacy.target import Target
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.train.request import Draft
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.selection import TruncatedNegativeBinomial, selected_epsilon

_TAIL = 1e-5  # of delta over exp(epsilon), that the trials beyond the most may take
_INNER = 0.999  # of delta over the expected number of trials, for each trial
_CLOSE = 0.99  # a promise this close to the target is good enough
_TRIES = 6
_LEAST = 1e-4  # least epsilon and delta of a target
_LEAST_DELTA = 1e-12
Design = Callable[[Candidate, Target], Planned]


def tuned(request: TuneRequest, target: Target, design: Design) -> Planned:
    """Return the plan of the best of several candidates; ``design`` plans one of them for a target of its own."""
    hint = "Whoever sees every trial is promised their composition, which no selection makes cheaper."
    final = target.adversary == "final-model"
    require(final, "privacy.adversary", "be final-model for a tuned study", target.adversary, hint)
    law = TruncatedNegativeBinomial.of_mean(request.eta, request.trials)
    most = law.cut(_TAIL * target.delta / (1 + math.exp(target.epsilon)))
    delta = _INNER * target.delta / law.mean
    hint = "Raise privacy.delta or lower tune.trials."
    require(delta >= _LEAST_DELTA, "privacy.delta", f"leave {_LEAST_DELTA:g} for each trial", delta, hint)
    inner = _first_guess(law, most, target, delta)
    low, high, best, found = 0.0, math.inf, None, math.inf
    for _ in range(_TRIES):
        if not _LEAST <= inner <= 40:
            break
        aim = replace(target, epsilon=inner, delta=delta)
        drafts = [_designed(design, request, place, aim) for place in range(len(request.candidates))]
        plan = _together([draft.plan for draft in drafts], request, law, most, target)
        found = promise(plan, target.adversary).epsilon
        if found <= target.epsilon:
            low, best = inner, (plan, drafts)
            if found >= _CLOSE * target.epsilon:
                break
        else:
            high = inner
        inner = _next(inner, found, target.epsilon, low, high)
        if high < math.inf and high - low <= 1e-3 * high:
            break
    if best is None:
        raise CannotCertify(
            f"the best of {request.trials:g} expected trials cannot meet epsilon {target.epsilon:g}: the least found "
            f"is {found:.4g}; raise privacy.epsilon or lower tune.trials"
        )
    return _planned(best[0], best[1], request)


def _designed(design: Design, request: TuneRequest, place: int, aim: Target) -> Planned:
    """Plan one candidate; a refusal names it."""
    candidate = request.candidates[place]
    try:
        return design(candidate, aim)
    except FedveilError as error:
        raise type(error)(f"Candidate {place + 1} of [tune] ({candidate.words}) cannot be planned: {error}") from error


def _first_guess(law: TruncatedNegativeBinomial, most: int, target: Target, delta: float) -> float:
    """Return the epsilon of one trial if its curve were that of a Gaussian mechanism."""

    def whole(mu: float) -> float:
        return selected_epsilon(lambda e: gaussian_delta(e, mu), law, target.delta, most, 0.0)

    low, high = 1e-5, 60.0
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if whole(middle) <= target.epsilon else (low, middle)
    return gaussian_epsilon(low, delta)


def _next(inner: float, found: float, target: float, low: float, high: float) -> float:
    """Return where to look next: what the last promise suggests, kept inside of what is known."""
    guess = inner * 0.997 * target / found if 0 < found < math.inf else inner / 2
    if low < guess < high:
        return guess
    return (low + high) / 2 if high < math.inf else low * 1.02


def _together(
    plans: Sequence[Plan], request: TuneRequest, law: TruncatedNegativeBinomial, most: int, target: Target
) -> Plan:
    """Return the plan of the best of these; none of them is chosen yet."""
    first = plans[0]
    for plan in plans:
        hint = "A candidate without noise promises nothing."
        require(not plan.method.noiseless, "tune", "have noise in every candidate", plan.method.kind, hint)
    mu = total_mu(first.target)
    selection = Selection(
        eta=law.eta,
        gamma=law.gamma,
        most=most,
        score=request.score,
        metric=request.metric_for(first.data.classes),
        score_noise=1 / mu if request.score == "private" else 0.0,
        candidates=tuple(write_plan(plan) for plan in plans),
    )
    return replace(first, target=target, selection=selection)


def _planned(plan: Plan, drafts: Sequence[Planned], request: TuneRequest) -> Planned:
    inner = plan.candidates[0].target
    pairs = enumerate(zip(request.candidates, drafts, strict=True), 1)
    rows = [f"({place}) {candidate.words}: {draft.plan.method.kind}" for place, (candidate, draft) in pairs]
    shown = "; ".join(rows[:12]) + (f"; and {len(rows) - 12} more" if len(rows) > 12 else "")
    reason = (
        f"the best of {request.trials:g} expected trials among {len(rows)} candidates, each trial at epsilon "
        f"{inner.epsilon:.4g} and delta {inner.delta:.3g}: {shown}"
    )
    return Planned(plan=plan, draft=Draft(method=plan.method, reason=reason))

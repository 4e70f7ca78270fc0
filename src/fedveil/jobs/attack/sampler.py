"""The real sampler of a plan, drawn many times and held against the law that is accounted for."""

import numpy as np

from fedveil.audit.finding import Finding
from fedveil.audit.sampling import Joined, judge_draws
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.observation import DrawnRounds, attack_view

CELLS = 2_000_000  # units times rounds that are drawn
_FEWEST, _MOST = 4, 400  # passes


def sampler_finding(plan: Plan, entropy: Entropy, *, alarm: float = 1e-6) -> Finding | None:
    """Test the draws of this plan; return None if nobody draws, or if even a few passes are too many to test.

    Nothing is measured of epsilon: draws that are not those accounted for leave the certificate without its ground.
    """
    view = attack_view(plan.method.kind)
    how = None if view is None else view.drawn(plan, entropy)
    if how is None or how.rate == 1 or how.rounds * how.units * _FEWEST > CELLS:
        return None
    passes = min(_MOST, CELLS // (how.rounds * how.units))
    order = "independent" if how.rate is None else "poisson"
    judged = judge_draws(joined_of(how, passes), order=order, rate=how.rate, alarm=alarm)  # type: ignore[arg-type]
    seen = None if view is None else view.releases
    who: Adversary = "every-model" if plan.method.hides else "server" if seen is None else seen.seen_by
    certified = promise(plan, who).epsilon if plan.private else None
    return Finding(
        attack="the draws of the sampler",
        adversary=who,
        kind="lower-bound",
        certified=certified,
        measured=0.0,
        delta=plan.target.delta,
        alarm=alarm,
        verdict=judged.verdict,
        evidence=f"{passes} passes of {how.units} units: {judged.evidence}",
        details={"tests": dict(judged.tests)},
    )


def joined_of(how: DrawnRounds, passes: int) -> Joined:
    """Return who joined which round of so many passes."""
    found = np.zeros((passes * how.rounds, how.units), dtype=np.bool_)
    for turn in range(found.shape[0]):
        found[turn, how.batch(turn)] = True
    return found.reshape(passes, how.rounds, how.units)

"""How much noise an evaluation gets, and into how many parts it sorts scores: a rule that looks at public numbers."""

import math
from dataclasses import replace
from typing import Final

from fedveil.core.errors import CannotCertify, require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.data.records import DataShape
from fedveil.data.spec import Places
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.evaluate.request import SHARE, EvaluationRequest
from fedveil.stages.evaluate.statement import Evaluation, contribution, sized
from fedveil.stages.measured.plan import EVALUATION, MeasuredPlan, canonical_text
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.sums import ERRORS, Measurement, NoisySums, variance_left

FILE: Final = "evaluation.json"  # what is released of an evaluation that trains nothing
_PLACES_SHARE: Final = 0.15  # of the evaluation's own budget, for where the parts begin and end
_CHOICES: Final = (8, 12, 16, 24, 32, 48)
_PLACES: Final = 64
_CLASSES: Final = 10  # parts of the confidence, with more than two classes
EXCLUSIONS: Final = (  # of a request and the data that it is about
    Exclusion(
        "evaluation.bins",
        "a model of a number",
        "Its errors are added up, not sorted into parts.",
        lambda asked: asked[1].classes == 0,
        lambda asked: asked[0].bins,
    ),
    Exclusion(
        "evaluation.largest_error",
        "a model of classes",
        "An answer is right or wrong.",
        lambda asked: asked[1].classes > 0,
        lambda asked: asked[0].largest_error,
    ),
)


def settle_evaluation(
    request: EvaluationRequest,
    data: DataShape,
    target: Target,
    trust: Trust,
    held: DataShape | None,
    joint: bool = False,
) -> Evaluation:
    """Return what will be counted, and with which noise.

    ``data``: the records to train on. ``held``: those held out that are not public; None where there are none.
    ``joint``: clients may own records of both kinds, and clients are protected. A stated share says so of records.
    """
    where = request.records or ("training" if held is None or request.share is not None else "held-out")
    joint = joint or request.share is not None
    composed = where == "training" or joint
    if where == "held-out":
        hint = 'Hold some out, or say records = "training". Public records need no private evaluation.'
        require(held is not None, "evaluation.records", "find held-out records that are not public", None, hint)
    number = data.classes == 0
    check_exclusions((request, data), "evaluation", EXCLUSIONS)
    counted = held if where == "held-out" and held is not None else data
    share = (request.share or SHARE) if composed else 1.0 - 1e-3
    noise = _noise(share, counted, target, trust)
    units = counted.clients if target.unit == "client" else counted.records
    bins = request.bins or (_CLASSES if data.classes > 2 else _bins(noise * contribution(1, target) / units))
    bins = 0 if number else bins
    places = _PLACES if data.classes == 2 else 0
    result = Evaluation(
        records="training" if where == "training" else "held-out",
        sums=_sums(noise, share, data.classes, bins, places, target),
        bins=bins,
        places=places,
        held=() if where == "training" else _numbers(counted),
        joint=where != "training" and joint,
        largest_error=request.largest_error or 1.0,
    )
    result.check(data, target, trust)
    return result if composed else _met(result, data, target, trust)


def evaluation_plan(
    name: str, model: str, data: DataShape, target: Target, places: Places | None, bins: int | None = None
) -> MeasuredPlan:
    """Return the plan that spends the target's budget on the counts; ``model``: SHA-256 of its ``model.npz``."""
    target.check_delta()
    request = EvaluationRequest(records="held-out", bins=bins)
    counted = settle_evaluation(request, data, target, CENTRAL, data)
    return MeasuredPlan(
        name=name,
        stage=EVALUATION,
        settings=canonical_text({"model": model}),
        file=FILE,
        data=data,
        target=target,
        evaluation=counted,
        places=places,
    )


def _noise(share: float, counted: DataShape, target: Target, trust: Trust) -> float:
    """The noise multiplier of all counts together, in the eyes of the target's observer."""
    left = variance_left(target.adversary, counted, target, trust)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the evaluation's noise, so nothing can be promised")
    return target.sensitivity / (total_mu(target) * math.sqrt(left * share))


def _sums(noise: float, share: float, classes: int, bins: int, places: int, target: Target) -> NoisySums:
    shares = {"places": _PLACES_SHARE, "scores": 1 - _PLACES_SHARE} if places else {"scores": 1.0}
    rows = []
    for name, part in (shares if classes else {ERRORS[0]: 1.0}).items():
        size, bound = sized(name, classes, bins, places, target)
        rows.append(Measurement(name=name, size=size, bound=bound, noise=noise / math.sqrt(part)))
    return NoisySums(measurements=tuple(rows), share=share)


def _bins(noise: float) -> int:
    """The number of parts at which the noise of an area and its ties are least together.

    ``noise``: deviation of one count as a share of all units. The area's noise grows with the root of the number of
    parts; what ties leave open falls with it.
    """

    def width(bins: int) -> float:
        return 2 * (2 * noise) * math.sqrt(bins / 3) + 1 / (4 * bins)

    return min(_CHOICES, key=width)


def _numbers(counted: DataShape) -> tuple[int, int, int, int]:
    return counted.records, counted.clients, counted.largest_client, counted.smallest_client


def _met(found: Evaluation, data: DataShape, target: Target, trust: Trust) -> Evaluation:
    """Raise the noise, by parts of a thousand, until the counts meet the target on their grid too."""
    for _ in range(2000):
        if found.answer(target.adversary, data, target, trust, target.delta).epsilon <= target.epsilon:
            return found
        rows = (replace(one, noise=one.noise * 1.0005) for one in found.sums.measurements)
        found = replace(found, sums=replace(found.sums, measurements=tuple(rows)))
    raise CannotCertify(f"the evaluation cannot meet epsilon {target.epsilon:g} for {target.adversary}")

"""The measurements of a generator: which, and with how much noise, decided by public numbers alone.

Shares are shares of mu squared, in which Gaussian mechanisms add up. The whole budget is spent: nothing is trained.
"""

import math
from hashlib import sha256
from typing import Final

from fedveil.core.errors import CannotCertify, require
from fedveil.data.records import DataShape
from fedveil.data.row_rule import Labels
from fedveil.data.spec import Places
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.measured.plan import GENERATOR, MeasuredPlan, canonical_text, spend_budget
from fedveil.stages.prepare.budget import check_words, total_mu
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learned import threshold_of
from fedveil.stages.prepare.ranges import BINS
from fedveil.stages.sums import Measurement, NoisySums, counted, root_up, variance_left
from fedveil.stages.synthesise.generator import FILE
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import MOST_WORDS, WHOLE

_WEIGHTS: Final = {"ranges": 0.06, "categories": 0.08, "ones": 0.2, "pairs": 0.2, "cliques": 0.6}
_SLIP: Final = 0.005  # of delta, for words that should not have been shown
_MOST_COLUMNS: Final = 200
_PAIRS: Final = 4  # pairs that may be measured precisely, for each column; the noise usually ends the choice before
MEASURED_CELLS: Final = 2**16  # of all pairs that are measured precisely
_NOTHING: Final = 0.25  # of the records: noise of this size on the count of a cell leaves nothing to see


def synthesis_plan(
    name: str,
    request: GeneratorRequest,
    outline: Outline,
    data: DataShape,
    target: Target,
    trust: Trust,
    *,
    labels: Labels,
    places: Places | None = None,
    training_public: bool = False,
    blank_rows: bool = False,
) -> MeasuredPlan:
    """Return the plan that spends the target's budget. ``data.features``: how many columns are measured."""
    for column, words in outline.categories.items():
        hint = "Leave the column out (data.ignore), or join rare words into (other)."
        rule = f"list at most {MOST_WORDS} words for a generator"
        require(len(words) <= MOST_WORDS, f"data.categories.{column}", rule, len(words), hint)
    count = data.features
    hint = "Leave columns out (data.ignore)."
    require(2 <= count <= _MOST_COLUMNS, "The data", f"have 2 to {_MOST_COLUMNS} columns for a generator", count, hint)
    check_words(outline, trust)
    settings = canonical_text({"stated": settings_of(request, outline, labels)})

    def plan(share: float) -> MeasuredPlan:
        return MeasuredPlan(
            name=name,
            stage=GENERATOR,
            settings=settings,
            file=FILE,
            data=data,
            target=target,
            sums=_measurements(request, outline, data, target, trust, len(labels.classes), share),
            trust=trust,
            places=places,
            training_public=training_public,
            blank_rows=blank_rows,
        )

    return spend_budget(plan, target, "a generator")


def settings_of(request: GeneratorRequest, outline: Outline, labels: Labels) -> str:
    """Return the SHA-256 of what a study states of its columns and of the generator; nothing private is in it."""
    return sha256(f"{request!r} {outline!r} {labels!r}".encode()).hexdigest()


def most_pairs(request: GeneratorRequest, columns: int) -> int:
    """Return how many pairs of columns are measured precisely at most."""
    wanted = _PAIRS * columns if request.pairs is None else request.pairs
    return min(wanted, columns * (columns - 1) // 2)


def _measurements(
    request: GeneratorRequest,
    outline: Outline,
    data: DataShape,
    target: Target,
    trust: Trust,
    classes: int,
    share: float,
) -> NoisySums:
    left = variance_left(target.adversary, data, target, trust)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the noise, so nothing can be promised")
    moved = target.sensitivity / counted(True, target.neighbours)  # every sum is one of counts
    whole = moved / (total_mu(target) * math.sqrt(left))
    sizes = _sizes(request, outline, data, classes)
    total = math.fsum(_WEIGHTS[name] for name in sizes)
    noises = {name: whole / math.sqrt(share * _WEIGHTS[name] / total) for name in sizes}
    units = data.clients if target.unit == "client" else data.records
    noise = noises["ones"] * sizes["ones"][1]
    hint = "Raise epsilon or delta, bring more records, or leave columns out (data.ignore)."
    rule = f"leave something to measure: noise of less than {_NOTHING:g} times the {units} {target.counted}s on a count"
    require(noise < _NOTHING * units, "[privacy]", rule, f"noise of {noise:.4g}", hint)
    return NoisySums(
        measurements=tuple(_measured(name, *sizes[name], noises[name], data, target) for name in sizes), share=share
    )


def _sizes(request: GeneratorRequest, outline: Outline, data: DataShape, classes: int) -> dict[str, tuple[int, float]]:
    """How many numbers each measurement has at most, and the norm of one unit's contribution."""
    found: dict[str, tuple[int, float]] = {}
    numbers, texts = len(outline.open_numbers), len(outline.open_texts)
    if numbers:
        found["ranges"] = (BINS * numbers, root_up(numbers))
    if texts:
        found["categories"] = (data.records * texts, root_up(texts))
    cells = (WHOLE + 2) * (len(outline.numbers) + 1) + classes + 2 + outline.slots + 2 * len(outline.texts)
    cells += sum(len(words) for words in outline.categories.values()) + (WHOLE + 2) * len(request.dates)
    found["ones"] = (cells, root_up(data.features))
    pairs = data.features * (data.features - 1) // 2
    found["pairs"] = (pairs * (2 * request.coarse + 2) ** 2, root_up(pairs))  # there are at most coarse**2 in each
    chosen = most_pairs(request, data.features)
    # a column of numbers has up to groups + 2 groups, with those of zero and of gaps; one of words up to 2 * groups
    found["cliques"] = (min(MEASURED_CELLS, chosen * (2 * request.groups + 4) ** 2), root_up(chosen))
    return found


def _measured(name: str, size: int, bound: float, noise: float, data: DataShape, target: Target) -> Measurement:
    if name != "categories":
        return Measurement(name=name, size=size, bound=bound, noise=noise, counts=True)
    words = data.largest_client if target.unit == "client" else target.largest_person
    slip = _SLIP * target.delta / (1 + math.exp(target.epsilon))
    deviation = noise * bound * (1 + 2.0**-40)
    threshold, chance = threshold_of(deviation, slip, round(bound**2), words, target.largest_person)
    return Measurement(name=name, size=size, bound=bound, noise=noise, threshold=threshold, slip=chance, counts=True)

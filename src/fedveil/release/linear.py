"""The linear part of a model as numbers that any program can use: what each entry of a row adds to each score."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Matrix, Vector
from fedveil.data.cells import canonical
from fedveil.data.column import ZERO, Column
from fedveil.data.row_rule import RowRule
from fedveil.data.rows import slack
from fedveil.models.loss import Link
from fedveil.models.margin import Poisson
from fedveil.release.bundle import Bundle

Kind = Literal["scores", "counts", "survival"]
_KINDS: dict[str, Kind] = {"count": "counts", "survival": "survival"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """``scores = row @ weights + constants`` for a row that was scaled and cut; ``link`` makes probabilities of them.

    ``weights`` has a row for each feature but the constant one, columns of the data one after another (for each
    component, where there are any), and a column for each score. For a model of numbers the score is the prediction, in
    the target's own unit; for one of counts (``kind``) the prediction is ``top * min(rate * exp(score), 1)``; for
    survival, with a score for each interval, the chance to be without the event after some of them is a product of
    ``1 / (1 + exp(score))`` over these.
    """

    preparation: RowRule
    weights: Matrix
    constants: Vector
    link: Link | None
    classes: tuple[str, ...]
    cut: float  # the norm that longer rows are cut to
    turn: Matrix | None = None  # rows are then multiplied by it, and cut again; a row for each feature
    again: float = 0.0  # the norm of that second cut
    threshold: float | None = None  # the probability above which the second of two classes is predicted
    kind: Kind = "scores"
    rate: float = 0.0  # of a model of counts: what it predicts where the score is 0, as a share of ``top``
    top: float = 0.0  # likewise, the largest count

    @property
    def binary(self) -> "Linear":
        """With one score for two classes, also where the model has one each."""
        if len(self.classes) != 2 or self.weights.shape[1] == 1:
            return self
        return Linear(
            preparation=self.preparation,
            weights=self.weights[:, 1:] - self.weights[:, :1],
            constants=self.constants[1:] - self.constants[:1],
            link="logistic",
            classes=self.classes,
            cut=self.cut,
            turn=self.turn,
            again=self.again,
        )


def linear_of(bundle: Bundle, to: str) -> Linear:
    """Return the numbers of a linear model; ``to`` names the format in a refusal."""
    plan, known = bundle.plan, bundle.preparation
    if not plan.model.linear:
        raise BadValue(f"The model must be linear to be exported to {to}, and it is a torch module.")
    if known is None:
        raise BadValue(f"The model must say how records become rows to be exported to {to}, and they came prepared.")
    if known.feature_map is not None:
        raise BadValue(f"The model must be linear in its columns to be exported to {to}, and it has a feature map.")
    moved = 0.0 if bundle.personal is None else bundle.personal.threshold
    hint = "Personalise without the threshold, or predict with fedveil."
    require(moved == 0.0, f"A model to be exported to {to}", "decide where scores are equal", moved, hint)
    whole = bundle.parameters.reshape(len(known.features), -1)
    weights, constants = whole, np.zeros(whole.shape[1])
    if known.intercept:
        weights, constants = whole[:-1], whole[-1] * known.intercept
    loss, rate, top = plan.model.loss, 0.0, 0.0
    if isinstance(loss, Poisson):
        low, top = known.labels.span or (0.0, 1.0)
        hint = "Predict with fedveil."
        require(low == 0, f"A model of counts to be exported to {to}", "have counts that begin at 0", low, hint)
        rate = loss.rate
    elif known.labels.span is not None:
        low, high = known.labels.span
        half = high / 2 - low / 2
        weights, constants = weights * half, low / 2 + high / 2 + half * constants
    room = slack(known.length, known.bound, known.intercept)
    turn, again = None, 0.0
    if known.components:
        turn = (np.array(known.components) * known.stretch)[:, list(known.places)].T
        again = known.bound * (1 - 2 * slack(weights.shape[0], known.bound, known.intercept))
    else:
        weights = weights[list(known.places)]
    return Linear(
        preparation=known,
        weights=weights,
        constants=constants,
        link=loss.link,
        classes=known.labels.classes,
        cut=known.bound * (1 - 2 * room),
        turn=turn,
        again=again,
        threshold=plan.model.decision_threshold,
        kind=_KINDS.get(loss.predicts, "scores"),
        rate=rate,
        top=top,
    )


def known_texts(column: Column, missing: tuple[str, ...]) -> dict[str, int | None]:
    """Return each text that a column of categories knows, with the place of its category.

    -1: none of the categories; None: a missing value that the model refuses. A whole number is listed in the two ways
    in which programs write it, 3 and 3.0, since both name the same category.
    """
    place = {word: index for index, word in enumerate(column.categories)}
    gap = place.get(canonical(column.fill), -1) if column.filled else None
    marks = dict.fromkeys((canonical(word) for word in (*missing, "nan")), gap)
    known = {**marks, **place}  # a category may be spelt like a mark
    return {text: at for word, at in known.items() for text in (word, f"{word}.0") if canonical(text) == word}


def other_place(column: Column) -> int | None:
    """Return the place of the category that every other text counts as: -1 for none, None where it is refused."""
    if column.unknown == "refuse":
        return None
    return -1 if column.unknown == ZERO else column.categories.index(column.unknown)

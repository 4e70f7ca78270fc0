"""How good a released model is, by noisy counts of its scores: what each record adds, and what the sums say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedveil.core.values import Indices, Matrix, Vector
from fedveil.data.records import DataShape, Records
from fedveil.data.row_rule import Labels
from fedveil.models.adjusted import margins
from fedveil.models.loss import Loss
from fedveil.privacy.guarantee import Unit
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.evaluate.numbers import Errors, error_sums
from fedveil.stages.evaluate.quality import (
    Counts,
    TwoClasses,
    borders_of,
    class_counts,
    even,
    many_classes,
    places_counts,
    score_counts,
)
from fedveil.stages.evaluate.statement import Evaluation
from fedveil.stages.measuring import Measures
from fedveil.stages.sums import STEPS, Measurement, Sums
from fedveil.sums.seam import Whole


@dataclass(frozen=True, eq=False)
class ModelEvaluator:
    """A released model and the sums that are planned of its scores: what follows from the noisy sums alone.

    ``data``: of the run, or of the records where nothing is trained.
    """

    loss: Loss
    model: Vector
    planned: Evaluation
    data: DataShape
    unit: Unit
    trust: Trust = CENTRAL

    def counted(self, records: Records | None, by: Measures, labels: Labels | None) -> dict[str, Any]:
        """Take all sums over these records and return what they say; None: whoever adds up has no records."""
        adding, result = None if records is None else Adding(self, records), list[Vector]()
        for one in self.planned.sums.measurements:
            sums = _nothing if adding is None else adding.after(result)[1]
            result.append(by.noisy_sum(one, sums, one.size))
        return self.evaluation(result, labels)

    @cached_property
    def reach(self) -> float:
        """The largest score that a row can have, known from the released model."""
        return self.loss.largest_margin(self.model, self.data.features, self.data.bound)

    def borders(self, places: Vector) -> Vector:
        """Return where the parts of scores begin and end, from the rougher noisy count."""
        planned, rough = self.planned, even(self.planned.places, self.reach)
        return borders_of(places, self._deviation(planned.sums["places"]), rough, planned.bins, self.reach)

    def evaluation(self, sums: Sequence[Vector], labels: Labels | None) -> dict[str, Any]:
        """Return what the noisy sums say; ``labels``: how the target is called, and its own unit, if known."""
        counted = self.planned.shape(self.data)
        units = counted.clients if self.unit == "client" else counted.records
        result = self._numbers(sums, labels) if self.data.classes == 0 else self._classes(sums, labels)
        return {"on": self.planned.records, "records": counted.records, "unit": self.unit, "units": units, **result}

    def _numbers(self, sums: Sequence[Vector], labels: Labels | None) -> dict[str, Any]:
        span = (labels.span if labels is not None else None) or (-1.0, 1.0)
        deviation = self._deviation(self.planned.sums.measurements[-1])
        largest = self.planned.largest_error
        told = Errors(values=sums[-1], deviation=deviation, span=span, largest=largest).metrics()
        return {**told, "sums": sums[-1].tolist(), "noise": deviation}

    def _classes(self, sums: Sequence[Vector], labels: Labels | None) -> dict[str, Any]:
        classes, planned, probable = self.data.classes, self.planned, self.loss.link is not None
        names = [str(k) for k in range(classes)] if labels is None else list(labels.classes)
        deviation, values = self._deviation(planned.sums["scores"]), sums[-1]
        counts = Counts(values=values, deviation=deviation)
        if classes > 2:
            told = many_classes(counts, classes, planned.bins, names, probable)
            return {**told, "classes": names, "counts": values.tolist(), "noise": deviation}
        borders, reach = self.borders(sums[0]), self.reach
        two = TwoClasses(counts=counts, borders=borders, reach=reach, probable=probable, names=names)
        ends = [-reach, *borders.tolist(), reach]
        shown = {"ends": ends, "counts": values.tolist(), "noise": deviation, "places": sums[0].tolist()}
        return {**two.metrics(), "classes": names, **shown}

    def _deviation(self, one: Measurement) -> float:
        return deviation_of(one, self.trust, self.planned.shape(self.data).clients)


@dataclass(frozen=True, eq=False)
class Adding:
    """What records add to the sums of a model's evaluation, one sum after another."""

    by: ModelEvaluator
    records: Records

    @cached_property
    def scores(self) -> Matrix:
        """The scores of all records."""
        return self.by.loss.scores(self.by.model, self.records.features)

    def after(self, sums: Sequence[Vector]) -> tuple[Measurement, Sums]:
        """Return the next measurement, and what each record adds to it; ``sums``: the noisy sums so far."""
        by, planned = self.by, self.by.planned
        classes, one = by.data.classes, planned.sums.measurements[len(sums)]
        targets = np.where(self.records.blank, 0.0, self.records.targets)
        if classes == 0:
            return one, error_sums(by.loss.predict(by.model, self.records.features), targets, planned.largest_error)
        if classes > 2:
            return one, class_counts(by.loss, self.scores, targets, classes, planned.bins)
        margin = np.clip(margins(self.scores), -by.reach, by.reach)
        if one.name == "places":
            return one, places_counts(margin, even(planned.places, by.reach))
        return one, score_counts(margin, targets, by.borders(sums[0]))


def _nothing(rows: Indices) -> Whole:
    """What is contributed where there are no records."""
    return np.zeros(0, dtype=np.int64)


def deviation_of(one: Measurement, trust: Trust, clients: int) -> float:
    """The largest deviation that the noise of a count has: with shares, that of all clients together."""
    return one.deviation / STEPS * math.sqrt(trust.surplus(clients))

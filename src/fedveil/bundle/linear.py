"""The linear part of a model as numbers that any program can use: what each entry of a row adds to each score."""

from dataclasses import dataclass

import numpy as np

from fedveil.bundle.bundle import Bundle
from fedveil.data.preparation import Preparation
from fedveil.data.rows import slack
from fedveil.errors import BadValue
from fedveil.model.probabilities import Link, link_of
from fedveil.values import Matrix, Vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """``scores = row @ weights + constants`` for a row that was scaled and cut; ``link`` makes probabilities of them.

    ``weights`` has a row for each feature but the constant one, columns of the data one after another, and a column for
    each score. For a model of numbers the score is the prediction, in the target's own unit.
    """

    preparation: Preparation
    weights: Matrix
    constants: Vector
    link: Link | None
    classes: tuple[str, ...]
    cut: float  # the norm that longer rows are cut to

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
        )


def linear_of(bundle: Bundle, to: str) -> Linear:
    """Return the numbers of a linear model; ``to`` names the format in a refusal."""
    plan, known = bundle.plan, bundle.preparation
    if plan.model.kind == "torch":
        raise BadValue(f"The model must be linear to be exported to {to}, and it is a torch module.")
    if known is None:
        raise BadValue(f"The model must say how records become rows to be exported to {to}, and they came prepared.")
    whole = bundle.parameters.reshape(len(known.features), -1)
    weights, constants = whole, np.zeros(whole.shape[1])
    if known.intercept:
        weights, constants = whole[:-1], whole[-1] * known.intercept
    if known.labels.span is not None:
        low, high = known.labels.span
        half = high / 2 - low / 2
        weights, constants = weights * half, low / 2 + high / 2 + half * constants
    room = slack(weights.shape[0], known.bound, known.intercept)
    weights = weights[list(known.places)]
    return Linear(
        preparation=known,
        weights=weights,
        constants=constants,
        link=link_of(plan.model.loss),
        classes=known.labels.classes,
        cut=known.bound * (1 - 2 * room),
    )

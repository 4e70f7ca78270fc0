"""Losses by the names a study file uses."""

import math

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.model.adjusted import Adjusted
from fedveil.model.counts import Poisson
from fedveil.model.loss import Loss
from fedveil.model.margin import Huber, Logistic, SmoothedHinge
from fedveil.model.softmax import Softmax
from fedveil.model.survival import Survival

KINDS = ("logistic", "softmax", "smoothed-hinge", "huber", "poisson", "survival")


def loss_named(
    kind: str,
    *,
    classes: int | None = None,
    smoothing: float | None = None,
    threshold: float | None = None,
    rate: float | None = None,
) -> Loss:
    """Return the loss of this name. ``classes``: how many the data have (0 for regression), checked if given.

    >>> loss_named("softmax", classes=10)
    Softmax(classes=10)
    >>> loss_named("logistic", classes=10)
    Traceback (most recent call last):
    fedveil.errors.BadValue: classes must be 2 for a logistic loss, got 10. Use softmax.
    """
    takes = {"smoothing": (smoothing, "smoothed-hinge"), "threshold": (threshold, "huber"), "rate": (rate, "poisson")}
    for name, (given, owner) in takes.items():
        require(given is None or kind == owner, name, f"be left out unless the loss is {owner}", given)
    match kind:
        case "logistic" | "smoothed-hinge":
            hint = "Use huber." if classes == 0 else "Use softmax."
            require(classes in (None, 2), "classes", f"be 2 for a {kind} loss", classes, hint)
            if kind == "logistic":
                return Logistic()
            return SmoothedHinge() if smoothing is None else SmoothedHinge(smoothing)
        case "softmax":
            if classes is None:
                raise BadValue("classes must be given for a softmax loss: say how many classes the data have.")
            return Softmax(classes)
        case "huber":
            require(classes in (None, 0), "classes", "be 0 for a huber loss", classes, "It is for regression.")
            return Huber() if threshold is None else Huber(threshold)
        case "survival":
            if classes is None:
                raise BadValue("classes must be given for a survival loss: two for each interval.")
            return Survival(classes)
        case "poisson":
            require(classes in (None, 0), "classes", "be 0 for a poisson loss", classes, "It is for counts.")
            return Poisson() if rate is None else Poisson(rate)
    raise BadValue(f"loss must be one of {', '.join(KINDS)}, got {kind!r}.")


def usual_clip(loss: Loss, bound: float) -> float | None:
    """Return the gradient norm at the zero model, which is the same for all data; None keeps the natural bound.

    Clipping there lowers the influence of a record, and so the noise. Only records that the model gets badly wrong are
    clipped, and the loss stays convex (docs/theory/losses.md).

    >>> usual_clip(loss_named("logistic"), 2.0), usual_clip(loss_named("huber"), 2.0)
    (1.0, None)
    """
    match loss:
        case Adjusted(of=inner):
            return usual_clip(inner, bound)
        case Logistic():
            return bound / 2
        case Softmax(classes=classes):
            return bound * math.sqrt(1 - 1 / classes)
        case Survival():
            return bound * math.sqrt(loss.outputs) / 2
        case _:
            return None


def usual_reach(loss: Loss) -> float:
    """The spread of the best model's scores that a design assumes: a public guess, the same for all data.

    Classes that can be told apart nine times in ten need logits that spread by about four; a hinge has done its work
    at a margin of one; a target of a regression, scaled to [-1, 1], spreads by about a half, and the logarithm of a
    rate by about two (theory: schedules.md).
    The logit of two classes is the difference of their scores in a softmax, each of which spreads by less.

    >>> usual_reach(loss_named("logistic")), usual_reach(loss_named("huber"))
    (4.0, 0.5)
    """
    match loss:
        case Adjusted(of=inner):
            return usual_reach(inner)
        case Logistic():
            return 4.0
        case Softmax():
            return 4.0 / math.sqrt(2)
        case SmoothedHinge():
            return 1.0
        case Poisson() | Survival():
            return 2.0
        case _:
            return 0.5

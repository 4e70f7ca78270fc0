"""Losses by the names that a study uses, and the model of a plan: a loss with clipping, l2 and radius."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

from fedveil.core.errors import BadValue, require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.tables import filled, known
from fedveil.core.values import number, whole
from fedveil.models.adjusted import Adjusted, check_class_weights, check_threshold
from fedveil.models.loss import Constants, Loss, with_l2
from fedveil.models.margin import Huber, Logistic, Poisson, SmoothedHinge
from fedveil.models.softmax import Softmax
from fedveil.models.survival import Survival
from fedveil.models.torch.criteria import OWN
from fedveil.models.torch.loss import TorchLoss

LINEAR = ("logistic", "softmax", "smoothed-hinge", "huber", "poisson", "survival")
KINDS = (*LINEAR, "torch")
SETTINGS: Final = {"smoothed-hinge": "smoothing", "huber": "threshold", "poisson": "rate"}
SHAPES = ("linear", "additive", "auto")
MOST_KNOTS: Final = 64
DIRECTIONS = ("increasing", "decreasing")
_MANY_CURVES: Final = "It has one curve for each class or interval."
_NORM_ROUNDING = 1e-9  # relative error of a computed norm of up to a million numbers


def loss_named(kind: str, *, classes: int | None = None, setting: float | None = None) -> Loss:
    """Return the loss of this name. ``classes``: how many the data have (0 for regression), checked if given.

    ``setting``: the number of the kinds that have one (``SETTINGS``); None: as usual.

    >>> loss_named("softmax", classes=10)
    Softmax(classes=10)
    >>> loss_named("logistic", classes=10)
    Traceback (most recent call last):
    fedveil.core.errors.BadValue: classes must be 2 for a logistic loss, got 10. Use softmax.
    """
    match kind:
        case "logistic" | "smoothed-hinge":
            hint = "Use huber." if classes == 0 else "Use softmax."
            require(classes in (None, 2), "classes", f"be 2 for a {kind} loss", classes, hint)
            if kind == "logistic":
                return Logistic()
            return SmoothedHinge() if setting is None else SmoothedHinge(setting)
        case "softmax":
            if classes is None:
                raise BadValue("classes must be given for a softmax loss: say how many classes the data have.")
            return Softmax(classes)
        case "huber":
            require(classes in (None, 0), "classes", "be 0 for a huber loss", classes, "It is for regression.")
            return Huber() if setting is None else Huber(setting)
        case "survival":
            if classes is None:
                raise BadValue("classes must be given for a survival loss: two for each interval.")
            return Survival(classes)
        case "poisson":
            require(classes in (None, 0), "classes", "be 0 for a poisson loss", classes, "It is for counts.")
            return Poisson() if setting is None else Poisson(setting)
    raise BadValue(f"loss must be one of {', '.join(LINEAR)}, got {kind!r}.")


def _other_than(kind: str) -> "Callable[[ModelPlan], bool]":
    return lambda model: model.kind != kind


def _straight(model: "ModelPlan") -> bool:
    return model.curves.shape == "linear" or not model.linear


_OWNERS: Final = {  # settings of one kind of model, and what they are
    "smoothing": ("smoothed-hinge", "It rounds the corner of the hinge."),
    "threshold": ("huber", "It is the error beyond which the loss grows in proportion."),
    "rate": ("poisson", "It is a guess of the usual count."),
    "decision_threshold": ("logistic", "Others have no probability of a second class."),
    **dict.fromkeys(("module", "criterion", "precision", "parameters"), ("torch", "It is about a torch module.")),
}
EXCLUSIONS: Final = (
    *(Exclusion(name, f"a kind other than {owner}", why, _other_than(owner)) for name, (owner, why) in _OWNERS.items()),
    Exclusion("class_weights", "a torch model", "Its criterion may weigh classes.", lambda model: not model.linear),
    Exclusion(
        "model.shape",
        "a torch model",
        "The module decides its shape.",
        lambda model: not model.linear,
        attrgetter("curves.shape"),
    ),
    *(
        Exclusion(
            f"model.{name}",
            'shape = "linear"',
            "It is about the curves of an additive model.",
            _straight,
            attrgetter(f"curves.{name}"),
        )
        for name in ("knots", "knots_at", "monotone")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """``shape``: whether each column of numbers adds a straight line or a curve to the score.

    It is None or "auto" until the data are known, and None in the plan of a linear model. ``knots``: cells between the
    knots of a curve; ``knots_at``: knots that the study states, by column; ``monotone``: columns whose curve may only
    rise or fall. The two are kept as pairs, so that a plan can be hashed.
    """

    shape: str | None = None
    knots: int | None = None
    knots_at: tuple[tuple[str, tuple[float, ...]], ...] = ()
    monotone: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        require(self.shape in (None, *SHAPES), "model.shape", f"be one of {', '.join(SHAPES)}", self.shape)
        if self.knots is not None:
            count = whole("model.knots", self.knots)
            require(1 <= count <= MOST_KNOTS, "model.knots", f"lie between 1 and {MOST_KNOTS}", count)
            object.__setattr__(self, "knots", count)
        if self.knots_at != ():
            result = tuple((name, _knots(name, given)) for name, given in _pairs("model.knots_at", self.knots_at))
            object.__setattr__(self, "knots_at", result)
        if self.monotone != ():
            ways = _pairs("model.monotone", self.monotone)
            for name, way in ways:
                require(way in DIRECTIONS, f"model.monotone.{name}", f"be one of {', '.join(DIRECTIONS)}", way)
            object.__setattr__(self, "monotone", ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The loss and what is enforced around it: clipping, l2, and the ball the model is kept in.

    ``classes`` is the number of classes in the data (0 for regression); None until the data are known. ``module``,
    ``criterion``, ``precision`` and ``parameters`` belong to a torch model (:mod:`fedveil.models.torch.loss`).
    ``class_weights``: how much each class counts, relative to the most; ``decision_threshold``: the probability above
    which the second of two classes is predicted (:mod:`fedveil.models.adjusted`).

    The keys of ``curves`` stand beside the others in the [model] table of a study and of a plan.
    """

    kind: str
    classes: int | None = None
    smoothing: float | None = None
    threshold: float | None = None
    l2: float = 0.0
    clip: float | None = None
    radius: float | None = None
    module: str | None = None
    criterion: str | None = None
    precision: str | None = None
    parameters: int | None = None
    rate: float | None = None
    class_weights: tuple[float, ...] | None = None
    decision_threshold: float | None = None
    curves: Curves = Curves()

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "model.kind", f"be one of {', '.join(KINDS)}", self.kind)
        self._check_torch()
        single = not self.curves.monotone or self.kind not in ("softmax", "survival")
        require(single, "model.monotone", "be of a model with one score", self.kind, _MANY_CURVES)
        if self.class_weights is not None:
            object.__setattr__(self, "class_weights", check_class_weights(self.class_weights))
        if self.decision_threshold is not None:
            object.__setattr__(self, "decision_threshold", check_threshold(self.decision_threshold))
        if self.classes is not None:
            object.__setattr__(self, "classes", whole("model.classes", self.classes))
            _ = self.loss  # refuses a loss that does not fit the number of classes
        for name in ("smoothing", "threshold", "clip", "radius", "rate"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, number(f"model.{name}", given))
                require(1e-9 <= getattr(self, name) <= 1e9, f"model.{name}", "lie in [1e-9, 1e9]", given)
        object.__setattr__(self, "l2", number("model.l2", self.l2))
        require(0 <= self.l2 <= 1e9, "model.l2", "lie in [0, 1e9]", self.l2)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "ModelPlan":
        """Return the model of a [model] table."""
        known(given, KEYS, "[model]")
        curves = {name: given[name] for name in _CURVES if name in given}
        own = {name: value for name, value in given.items() if name not in _CURVES}
        result: ModelPlan = filled(cls, {**own, "curves": Curves(**curves)}, "model")
        return result

    def table(self) -> dict[str, Any]:
        """Return the TOML table that parses to this."""
        own = {name: getattr(self, name) for name in KEYS if name not in _CURVES}
        return own | {name: getattr(self.curves, name) or None for name in _CURVES}

    @classmethod
    def generator(cls, module: str, *, clip: float, radius: float | None, precision: str | None) -> "ModelPlan":
        """Return a torch module that gives each record's loss itself, and draws rows."""
        return cls(kind="torch", module=module, criterion=OWN, clip=clip, radius=radius, precision=precision)

    @property
    def linear(self) -> bool:
        """Whether the parameters are a table of features by scores; known before the data are."""
        return self.kind != "torch"

    @property
    def additive(self) -> bool:
        """Whether each column of numbers adds a curve to the score; known once the data are."""
        return self.curves.shape == "additive"

    @property
    def survival(self) -> bool:
        """Whether it predicts when an event happens."""
        return self.kind == "survival"

    @property
    def generates(self) -> bool:
        """Whether it draws rows."""
        return self.criterion == OWN

    @property
    def size_known(self) -> bool:
        """Whether its number of parameters is known without running code that a file names."""
        return self.linear or self.parameters is not None

    @property
    def loss(self) -> Loss:
        """The loss of this name."""
        if self.kind == "torch":
            return TorchLoss(
                module=self.module or "",
                classes=self.classes or 0,
                criterion=self.criterion or "",
                precision=self.precision or "float64",
                parameters=self.parameters,
            )
        setting = getattr(self, SETTINGS[self.kind]) if self.kind in SETTINGS else None
        loss = loss_named(self.kind, classes=self.classes, setting=setting)
        if self.class_weights is None and self.decision_threshold is None:
            return loss
        return Adjusted(loss, self.class_weights or (), self.decision_threshold)

    def _check_torch(self) -> None:
        check_exclusions(self, "model", EXCLUSIONS)
        if self.kind == "torch":
            hint = 'For example module = "my_file:make_model", a function that returns a torch.nn.Module.'
            require(self.module is not None, "model.module", "be given for a torch model", None, hint)
            hint = "It bounds each record's gradient, and nothing else does."
            require(self.clip is not None, "model.clip", "be given for a torch model", None, hint)

    def for_data(self, classes: int, features: int) -> "ModelPlan":
        """Return the model with its number of classes, and a torch module with its number of parameters."""
        model = replace(self, classes=classes)
        return replace(model, parameters=_count_parameters(model, features)) if self.kind == "torch" else model

    def constants(self, bound: float) -> Constants:
        """Return Lipschitz constant, smoothness and strong convexity on rows of norm at most ``bound``."""
        return with_l2(self.loss.constants(bound * (1 + _NORM_ROUNDING), self.clip), self.l2)


def _pairs(name: str, given: Any) -> tuple[tuple[str, Any], ...]:
    """Return a table, or its pairs as a plan's text has them, as pairs in the order of their names."""
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    right = isinstance(pairs, list | tuple) and all(isinstance(one, list | tuple) and len(one) == 2 for one in pairs)
    right = right and all(isinstance(one[0], str) for one in pairs)
    require(right, name, "be a table with the names of columns", given)
    names = [one[0] for one in pairs]
    require(len(set(names)) == len(names) >= 1, name, "name each column once, and at least one", names)
    return tuple(sorted((str(one[0]), one[1]) for one in pairs))


def _knots(name: str, given: Any) -> tuple[float, ...]:
    key = f"model.knots_at.{name}"
    listed = isinstance(given, list | tuple) and 1 <= len(given) <= MOST_KNOTS + 1
    require(listed, key, f"list 1 to {MOST_KNOTS + 1} numbers", given)
    knots = tuple(number(key, one) for one in given)
    rising = all(math.isfinite(one) for one in knots) and all(a < b for a, b in pairwise(knots))
    require(rising, key, "rise from knot to knot", given)
    return knots


_CURVES: Final = tuple(one.name for one in fields(Curves))
KEYS: Final = (*(one.name for one in fields(ModelPlan) if one.name != "curves"), *_CURVES)


def code_named(model: object) -> dict[str, object]:
    """Return the functions that the [model] table of a file names, by their keys; nothing is checked or run."""
    named = {key: model[key] for key in ("module", "criterion") if key in model} if isinstance(model, dict) else {}
    return {f"model.{key}": name for key, name in named.items() if key == "module" or ":" in str(name)}


def _count_parameters(model: ModelPlan, features: int) -> int:
    """Count the parameters of the module; refuse another number in the study."""
    count = replace(model, parameters=None).loss.size(features)
    require(model.parameters in (None, count), "model.parameters", f"be the module's, {count}", model.parameters)
    return count

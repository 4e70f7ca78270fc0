"""A loss as a plan states it: by name, with clipping, l2 and radius."""

from dataclasses import dataclass, replace

from fedveil.checks import require
from fedveil.model.adjusted import Adjusted, check_class_weights, check_threshold
from fedveil.model.loss import Constants, Loss, with_l2
from fedveil.model.named import KINDS as NAMED
from fedveil.model.named import loss_named
from fedveil.model.torch import TorchLoss
from fedveil.values import number, whole

KINDS = (*NAMED, "torch")
_NORM_ROUNDING = 1e-9  # relative error of a computed norm of up to a million numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The loss and what is enforced around it: clipping, l2, and the ball the model is kept in.

    ``classes`` is the number of classes in the data (0 for regression); None until the data are known. ``module``,
    ``criterion``, ``precision`` and ``parameters`` belong to a torch model: see :class:`fedveil.model.torch.TorchLoss`.
    ``class_weights``: how much each class counts, relative to the most; ``decision_threshold``: the probability above
    which the second of two classes is predicted (:mod:`fedveil.model.adjusted`).
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

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "model.kind", f"be one of {', '.join(KINDS)}", self.kind)
        self._check_torch()
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
        loss = loss_named(
            self.kind, classes=self.classes, smoothing=self.smoothing, threshold=self.threshold, rate=self.rate
        )
        if self.class_weights is None and self.decision_threshold is None:
            return loss
        return Adjusted(loss, self.class_weights or (), self.decision_threshold)

    def _check_torch(self) -> None:
        torch = self.kind == "torch"
        for name in ("module", "criterion", "precision", "parameters"):
            given = getattr(self, name)
            require(torch or given is None, f"model.{name}", "be left out unless the kind is torch", given)
        if torch:
            hint = 'For example module = "my_file:make_model", a function that returns a torch.nn.Module.'
            require(self.module is not None, "model.module", "be given for a torch model", None, hint)
            hint = "It bounds each record's gradient, and nothing else does."
            require(self.clip is not None, "model.clip", "be given for a torch model", None, hint)
            for name in ("smoothing", "threshold", "rate", "class_weights", "decision_threshold"):
                require(getattr(self, name) is None, f"model.{name}", "be left out of a torch model", name)

    def settled(self, classes: int, features: int) -> "ModelPlan":
        """Return the model with what the shape of the data decides.

        Classes, and a torch module's number of parameters.
        """
        model = replace(self, classes=classes)
        return replace(model, parameters=_counted(model, features)) if self.kind == "torch" else model

    def constants(self, bound: float) -> Constants:
        """Return Lipschitz constant, smoothness and strong convexity on rows of norm at most ``bound``."""
        return with_l2(self.loss.constants(bound * (1 + _NORM_ROUNDING), self.clip), self.l2)


def _counted(model: ModelPlan, features: int) -> int:
    """Count the parameters of the module; refuse another number in the study."""
    count = replace(model, parameters=None).loss.size(features)
    require(model.parameters in (None, count), "model.parameters", f"be the module's, {count}", model.parameters)
    return count

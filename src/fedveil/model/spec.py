"""A loss as a plan states it: by name, with what is enforced around it."""

from dataclasses import dataclass

from fedveil.checks import require
from fedveil.mechanism import number, whole
from fedveil.model.loss import Constants, Loss, with_l2
from fedveil.model.named import KINDS, loss_named

_NORM_ROUNDING = 1e-9  # a computed norm of up to a million numbers is that exact


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The loss and what is enforced around it: clipping, l2, and the ball the model is kept in.

    ``classes`` is what the data have (0 for regression); None until the data are known.
    """

    kind: str
    classes: int | None = None
    smoothing: float | None = None
    threshold: float | None = None
    l2: float = 0.0
    clip: float | None = None
    radius: float | None = None

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "model.kind", f"be one of {', '.join(KINDS)}", self.kind)
        if self.classes is not None:
            object.__setattr__(self, "classes", whole("model.classes", self.classes))
            _ = self.loss  # refuses a loss that does not go with so many classes
        for name in ("smoothing", "threshold", "clip", "radius"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, number(f"model.{name}", given))
                require(1e-9 <= getattr(self, name) <= 1e9, f"model.{name}", "lie in [1e-9, 1e9]", given)
        object.__setattr__(self, "l2", number("model.l2", self.l2))
        require(0 <= self.l2 <= 1e9, "model.l2", "lie in [0, 1e9]", self.l2)

    @property
    def loss(self) -> Loss:
        """The loss by its name."""
        return loss_named(self.kind, classes=self.classes, smoothing=self.smoothing, threshold=self.threshold)

    def constants(self, bound: float) -> Constants:
        """Lipschitz, smoothness and strong convexity on rows of norm at most ``bound``, as far as floats can tell."""
        return with_l2(self.loss.constants(bound * (1 + _NORM_ROUNDING), self.clip), self.l2)

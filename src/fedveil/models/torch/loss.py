"""A torch module as a loss: clipped per-record gradients, and no assumption but the clip.

Neither convexity nor smoothness is known, so only bounds that need neither apply (docs/torch.md). PyTorch is loaded
when the module is first needed: to plan and to train, not to read or certify a plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Matrix, Vector, whole
from fedveil.models.loss import Constants, Link, Prediction, check_batch, check_bound, check_clip
from fedveil.models.torch.criteria import OWN, PRECISIONS, check_criterion

if TYPE_CHECKING:
    from fedveil.models.torch.engine import Engine

_FARTHEST = 30.0  # scores beyond this count as this: nothing bounds them


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TorchLoss:
    """``module``: package.file:function that makes it; ``parameters``: how many it has, None until it is first made.

    The flat vector is the difference from the module's starting parameters, so training begins at zero.
    """

    module: str
    classes: int = 0
    criterion: str = ""
    precision: str = "float64"
    parameters: int | None = None

    kind = "torch"
    linear = False
    fixed_clip = "A vote must not depend, in its last bits, on who else is in the batch."
    usual_reach = 0.5

    def __post_init__(self) -> None:
        shown = isinstance(self.module, str) and ":" in self.module
        require(shown, "model.module", 'name the function that makes it, "package.file:function"', self.module)
        object.__setattr__(self, "classes", whole("model.classes", self.classes))
        require(self.classes == 0 or self.classes >= 2, "model.classes", "be 0 or at least 2", self.classes)
        require(self.precision in PRECISIONS, "model.precision", f"be one of {', '.join(PRECISIONS)}", self.precision)
        if not self.criterion:
            object.__setattr__(self, "criterion", "cross-entropy" if self.classes else "mse")
        check_criterion(self.criterion, self.classes)
        if self.parameters is not None:
            object.__setattr__(self, "parameters", whole("model.parameters", self.parameters))
            require(1 <= self.parameters <= 2**32, "model.parameters", "lie between 1 and 2**32", self.parameters)

    @property
    def outputs(self) -> int:
        """Number of outputs: one per class, or one number."""
        return max(1, self.classes)

    @property
    def predicts(self) -> Prediction:
        """Rows of a generator, otherwise a class or a number."""
        return "row" if self.criterion == OWN else "class" if self.classes else "number"

    @property
    def link(self) -> Link | None:
        """How outputs become probabilities: known of our own criteria alone."""
        links: dict[str, Link] = {"cross-entropy": "softmax", "logistic": "logistic"}
        return links.get(self.criterion)

    @property
    def code(self) -> dict[str, str]:
        """The module, and a criterion of the user's own."""
        named = {"model.module": self.module, "model.criterion": self.criterion}
        return {key: name for key, name in named.items() if ":" in name}

    def size(self, features: int) -> int:
        """Return the number of parameters, as stated or as counted in the module."""
        return self.parameters if self.parameters is not None else int(self._engine(features).start.size)

    def start(self, features: int) -> Vector:
        """Return the starting parameters, to which the flat vector 0 corresponds; they are public."""
        return self._engine(features).start.copy()

    def usual_clip(self, bound: float) -> float | None:
        """Return None: nothing is known of a module's gradients, so a study states the clip."""
        return None

    def largest_margin(self, w: Vector, features: int, bound: float) -> float:
        """Return a margin beyond which all scores count alike."""
        return _FARTHEST

    def module_at(self, w: Vector, features: int) -> Any:
        """Return the torch module with the parameters that ``w`` stands for."""
        return self._engine(features).module_at(w)

    def sampler(self, w: Vector, features: int) -> "Callable[[Indices, int], Matrix]":
        """Return what draws rows of given classes, with a seed: of a generator, which has ``sample``."""
        from fedveil.models.torch.engine import sampler  # imports PyTorch

        return sampler(self._engine(features), w, features)

    def answers(self, features: int) -> bool:
        """Return whether the module adds something to every noised direction by itself: an adversarial pair does."""
        if self.criterion != OWN:
            return False
        from fedveil.models.torch.engine import answers  # imports PyTorch

        return answers(self._engine(features))

    def add_answer(self, w: Vector, direction: Vector, features: int, turn: int, clip: float) -> Vector:
        """Return a noised direction with what the module adds to it, from the parameters and the round alone."""
        if not self.answers(features):
            return direction
        from fedveil.models.torch.engine import add_answer  # imports PyTorch

        return add_answer(self._engine(features), w, direction, turn, clip)

    def check_sampling(self, features: int) -> None:
        """Refuse a module that gives a record other bits in other company: sampled batches would tell who was drawn."""
        _ = self._engine(features).blocks

    def constants(self, bound: float, clip: float | None) -> Constants:
        """Return constants that hold the clip and nothing else."""
        check_bound(bound)
        hint = "Without it nothing bounds what a record can do to a torch model."
        require(clip is not None, "model.clip", "be given for a torch model", clip, hint)
        check_clip(clip)  # type: ignore[arg-type]
        return Constants(lipschitz=clip, smoothness=None, convex=False)  # type: ignore[arg-type]

    def gradient(
        self,
        w: Vector,
        X: Vector,
        y: Vector,
        *,
        clip: float,
        weights: Vector | None = None,
        norms: Vector | None = None,
        grain: float | None = None,
    ) -> tuple[Vector, int]:
        """Return the weighted sum of the clipped gradients, and how many records were left out of it."""
        check_clip(clip)
        engine = self._engine(X.shape[1])
        check_batch(engine.start.size, w, X, y, weights, norms)
        return engine.gradient(w, X, y, clip, weights, grain)

    def total(self, w: Vector, X: Vector, y: Vector, weights: Vector | None = None) -> Vector:
        """Return the weighted sum of the records' gradients, not clipped: for units that are clipped as a whole."""
        engine = self._engine(X.shape[1])
        check_batch(engine.start.size, w, X, y, weights, None)
        return engine.total(w, X, y, weights)

    def lengths(self, w: Vector, X: Vector, y: Vector, norms: Vector) -> Vector:
        """Refuse: the last bits of a record's gradient depend on the batch that it is in."""
        raise BadValue('algorithm.clip must be a number for a torch model, got "adaptive". State the clip.')

    def value(self, w: Vector, X: Vector, y: Vector) -> float:
        """Return the mean loss, not clipped; NaN if a target is not a class."""
        return float(np.mean(self.losses(w, X, y)))

    def losses(self, w: Vector, X: Vector, y: Vector) -> Vector:
        """Return the loss of each record, not clipped; NaN if a target is not a class."""
        engine = self._engine(X.shape[1])
        check_batch(engine.start.size, w, X, y, None, None)
        return engine.losses(w, X, y)

    def predict(self, w: Vector, X: Vector) -> Vector:
        """Return the class of the largest output (of one output: whether it is positive), or the number itself."""
        outputs = self._engine(X.shape[1]).outputs(w, X)
        if not self.classes:
            return outputs[:, 0]
        best = outputs.argmax(axis=1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
        return np.asarray(best, dtype=np.float64)

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the module's outputs."""
        return self._engine(X.shape[1]).outputs(w, X)

    def _engine(self, features: int) -> "Engine":
        from fedveil.models.torch.engine import engine  # imports PyTorch

        checked = engine(self.module, self.criterion, self.classes, self.precision, features)
        same = self.parameters in (None, checked.start.size)
        hint = "The module is not the one that was planned."
        require(same, "model.module", f"have the plan's {self.parameters} parameters", checked.start.size, hint)
        return checked

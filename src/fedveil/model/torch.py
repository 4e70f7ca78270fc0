"""A torch module as a loss: clipped per-record gradients, and no assumption but the clip.

Neither convexity nor smoothness is known, so only bounds that need neither apply (docs/torch.md). PyTorch is loaded
when the module is first needed: to plan and to train, not to read or certify a plan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fedveil.checks import require
from fedveil.errors import BadValue
from fedveil.model.loss import Constants, check_batch, check_bound, check_clip
from fedveil.values import Indices, Matrix, Vector, whole

if TYPE_CHECKING:
    from fedveil.model.torch_engine import Engine

_VAE = "fedveil.model.torch_vae:vae"
_MOMENTS = "fedveil.model.torch_moments:moments"
_PAIR = "fedveil.model.torch_pair:pair"
PRECISIONS = ("float64", "float32")
OWN = "own"  # the module is called with rows and targets, and gives the loss: a generator
CRITERIA = ("cross-entropy", "logistic", "mse", "huber", OWN)


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

    def __post_init__(self) -> None:
        shown = isinstance(self.module, str) and ":" in self.module
        require(shown, "model.module", 'name the function that makes it, "package.file:function"', self.module)
        object.__setattr__(self, "classes", whole("model.classes", self.classes))
        require(self.classes == 0 or self.classes >= 2, "model.classes", "be 0 or at least 2", self.classes)
        require(self.precision in PRECISIONS, "model.precision", f"be one of {', '.join(PRECISIONS)}", self.precision)
        if not self.criterion:
            object.__setattr__(self, "criterion", "cross-entropy" if self.classes else "mse")
        _check_criterion(self.criterion, self.classes)
        if self.parameters is not None:
            object.__setattr__(self, "parameters", whole("model.parameters", self.parameters))
            require(1 <= self.parameters <= 2**32, "model.parameters", "lie between 1 and 2**32", self.parameters)

    @property
    def outputs(self) -> int:
        """Number of outputs: one per class, or one number."""
        return max(1, self.classes)

    def size(self, features: int) -> int:
        """Return the number of parameters, as stated or as counted in the module."""
        return self.parameters if self.parameters is not None else int(self._engine(features).start.size)

    def start(self, features: int) -> Vector:
        """Return the starting parameters, to which the flat vector 0 corresponds; they are public."""
        return self._engine(features).start.copy()

    def module_at(self, w: Vector, features: int) -> Any:
        """Return the torch module with the parameters that ``w`` stands for."""
        return self._engine(features).module_at(w)

    def sampler(self, w: Vector, features: int) -> "Callable[[Indices, int], Matrix]":
        """Return what draws rows of given classes, with a seed: of a generator, which has ``sample``."""
        from fedveil.model.torch_sampling import sampler  # imports PyTorch

        return sampler(self._engine(features), w, features)

    def answers(self, features: int) -> bool:
        """Return whether the module adds something to every noised direction by itself: an adversarial pair does."""
        if self.criterion != OWN:
            return False
        from fedveil.model.torch_answer import answers  # imports PyTorch

        return answers(self._engine(features))

    def answered(self, w: Vector, direction: Vector, features: int, turn: int, clip: float) -> Vector:
        """Return a noised direction with what the module adds to it, from the parameters and the round alone."""
        from fedveil.model.torch_answer import answered  # imports PyTorch

        return answered(self._engine(features), w, direction, turn, clip)

    def check_company(self, features: int) -> None:
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
        from fedveil.model.torch_descent import plain_total  # imports PyTorch

        engine = self._engine(X.shape[1])
        check_batch(engine.start.size, w, X, y, weights, None)
        return plain_total(engine, w, X, y, weights)

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
        found = self._engine(X.shape[1]).outputs(w, X)
        if not self.classes:
            return found[:, 0]
        best = found.argmax(axis=1) if found.shape[1] > 1 else found[:, 0] > 0
        return np.asarray(best, dtype=np.float64)

    def scores(self, w: Vector, X: Vector) -> Matrix:
        """Return the module's outputs."""
        return self._engine(X.shape[1]).outputs(w, X)

    def _engine(self, features: int) -> "Engine":
        from fedveil.model.torch_engine import engine  # imports PyTorch

        found = engine(self.module, self.criterion, self.classes, self.precision, features)
        same = self.parameters in (None, found.start.size)
        hint = "The module is not the one that was planned."
        require(same, "model.module", f"have the plan's {self.parameters} parameters", found.start.size, hint)
        return found


def vae_name(features: int, classes: int, latent: int, hidden: int) -> str:
    """Return the name of a ready generator (fedveil.model.torch_vae) of these sizes, as a plan states it."""
    return f"{_VAE}_{features}_{classes}_{latent}_{hidden}"


def pair_name(features: int, classes: int, latent: int, units: int) -> str:
    """Return the name of a ready adversarial pair (fedveil.model.torch_pair) of these sizes, as a plan states it."""
    return f"{_PAIR}_{features}_{classes}_{latent}_{units}"


def moments_name(features: int, classes: int) -> str:
    """Return the name of a generator made of moments (fedveil.model.torch_moments), as a plan states it."""
    return f"{_MOMENTS}_{features}_{classes}"


def _check_criterion(criterion: str, classes: int) -> None:
    if isinstance(criterion, str) and ":" in criterion:
        return
    rule = f"be one of {', '.join(CRITERIA)}, or package.file:function"
    require(criterion in CRITERIA, "model.criterion", rule, criterion)
    fits = {"cross-entropy": classes >= 2, "logistic": classes == 2, OWN: classes >= 2}.get(criterion, classes == 0)
    hint = "Use cross-entropy for classes, mse or huber for numbers."
    require(fits, "model.criterion", f"suit data of {classes} classes (0 is regression)", criterion, hint)

"""What a study states about a torch model, checked without PyTorch: its criterion, its precision, ready generators."""

from typing import Final

from fedveil.core.errors import require

_GENERATORS: Final = "fedveil.models.torch.generators"
STAND_IN: Final = f"{_GENERATORS}:stand_in"
PRECISIONS: Final = ("float64", "float32")
OWN: Final = "own"  # the module is called with rows and targets, and gives the loss: a generator
CRITERIA: Final = ("cross-entropy", "logistic", "mse", "huber", OWN)


def vae_name(features: int, classes: int, latent: int, hidden: int) -> str:
    """Return the name of a ready generator of these sizes, as a plan states it."""
    return f"{_GENERATORS}:vae_{features}_{classes}_{latent}_{hidden}"


def pair_name(features: int, classes: int, latent: int, units: int) -> str:
    """Return the name of a ready adversarial pair of these sizes, as a plan states it."""
    return f"{_GENERATORS}:pair_{features}_{classes}_{latent}_{units}"


def moments_name(features: int, classes: int) -> str:
    """Return the name of a generator made of moments, as a plan states it."""
    return f"{_GENERATORS}:moments_{features}_{classes}"


def check_criterion(criterion: str, classes: int) -> None:
    """Refuse a criterion that is not known, or does not suit data of so many classes."""
    if isinstance(criterion, str) and ":" in criterion:
        return
    rule = f"be one of {', '.join(CRITERIA)}, or package.file:function"
    require(criterion in CRITERIA, "model.criterion", rule, criterion)
    fits = {"cross-entropy": classes >= 2, "logistic": classes == 2, OWN: classes >= 2}.get(criterion, classes == 0)
    hint = "Use cross-entropy for classes, mse or huber for numbers."
    require(fits, "model.criterion", f"suit data of {classes} classes (0 is regression)", criterion, hint)

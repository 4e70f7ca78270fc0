"""An adversarial pair that is ready to use: a judge that alone sees records, and a maker that learns from the judge.

Goodfellow and others, Generative Adversarial Networks; with private judges: Xie, Lin, Wang, Wang and Zhou,
Differentially Private Generative Adversarial Network. A record's loss is the judge's alone. What the judge learns from
made rows, and what the maker learns from the judge, is ``answer``: computed from the parameters and public random
numbers, so it is post-processing of noised sums (docs/theory/synthetic-data.md). Rows lie in [-1, 1].
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fedveil.model.torch_library import torch

_NAME: Final = re.compile(r"pair_([1-9]\d{0,5})_([1-9]\d{0,3})_([1-9]\d{0,3})_([1-9]\d{0,4})")
_DRAWN: Final = 256  # rows that the maker shows the judge in a round
_SLOPE: Final = 0.2  # of the judge's units below zero
_Module: Any = object if torch is None else torch.nn.Module


class Pair(_Module):  # type: ignore[misc]
    """The judge's layers come first, then the maker's; each has one hidden layer and is told the class."""

    def __init__(self, features: int, classes: int, latent: int, units: int) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.features, self.classes, self.latent = features, classes, latent
        self.look, self.judge = linear(features + classes, units), linear(units, 1)
        self.open, self.write = linear(latent + classes, units), linear(units + classes, features)

    def forward(self, rows: Any, targets: Any) -> Any:
        """Return the loss of each record: how far the judge is from calling it real."""
        return torch.nn.functional.softplus(-self._judged(rows, self._one_hot(targets, rows.dtype)))

    def sample(self, targets: Any, generator: Any) -> Any:
        """Return a row for each of the classes, drawn with this generator of random numbers."""
        weight = self.open.weight
        kind = self._one_hot(targets.to(weight.dtype), weight.dtype)
        code = torch.randn((targets.shape[0], self.latent), generator=generator, dtype=torch.float64).to(weight.dtype)
        hidden = torch.nn.functional.relu(self.open(torch.cat([code, kind], dim=1)))
        return torch.tanh(self.write(torch.cat([hidden, kind], dim=1)))

    def answer(self, generator: Any) -> tuple[Any, Any]:
        """Return what the judge and what the maker would lessen, on rows that the maker draws; no record is seen."""
        weight = self.open.weight
        targets = torch.randint(self.classes, (_DRAWN,), generator=generator).to(weight.dtype)
        rows, kind = self.sample(targets, generator), self._one_hot(targets, weight.dtype)
        softplus = torch.nn.functional.softplus
        return softplus(self._judged(rows.detach(), kind)).mean(), softplus(-self._judged(rows, kind)).mean()

    def made(self) -> list[Any]:
        """Return the parameters of the maker, which no record moves."""
        return [*self.open.parameters(), *self.write.parameters()]

    def learning(self) -> list[Any]:
        """Return the layers that learn from records, in the order in which they are called."""
        return [self.look, self.judge]

    def _judged(self, rows: Any, kind: Any) -> Any:
        seen = torch.nn.functional.leaky_relu(self.look(torch.cat([rows, kind], dim=1)), _SLOPE)
        return self.judge(seen)[:, 0]

    def _one_hot(self, targets: Any, dtype: Any) -> Any:
        places = torch.arange(self.classes, device=targets.device, dtype=targets.dtype)
        return (targets[:, None] == places).to(dtype)


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the maker of a pair whose sizes are its name: features, classes, latent, units."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise AttributeError(name)
    return partial(Pair, *(int(size) for size in found.groups()))

"""A generator made of moments: the mean row of each class, and one table of how entries vary together.

Its loss is linear in the parameters, so one step over all records learns all there is to learn: their noised sums. What
is drawn from them are normal rows with these means, and with the part of the covariance that stands out of the noise;
the rest of an entry's variance is its own. That is the model behind linear discriminant analysis (Fisher, The Use of
Multiple Measurements in Taxonomic Problems). Rows lie in [-1, 1].
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fedveil.model.torch_library import torch

_NAME: Final = re.compile(r"moments_([1-9]\d{0,3})_([1-9]\d{0,3})")
_REACH: Final = 1 / 3  # of the longest row there can be: longer ones are shortened to it
_ONE: Final = 0.3  # the constant entry, by which records are counted, of a vector of length 1
_SHARE: Final = math.sqrt(0.5)  # of means, and of the covariance, in what a record adds: half of the square each
_STEPS: Final = 50  # of a bisection
_Module: Any = object if torch is None else torch.nn.Module


class Moments(_Module):  # type: ignore[misc]
    """``first``: sums of rows by class; ``second``: the sum of their squares, a matrix. Both up to one factor."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.features, self.classes = features, classes
        self.first = torch.nn.Linear(classes, features + 1, bias=False)
        self.second = torch.nn.Linear(features + 1, features + 1, bias=False)
        for layer in self.learning():
            torch.nn.init.zeros_(layer.weight)
        self.reach = _REACH * math.sqrt(features)
        self.law: Any = None  # once it is asked for: a module that draws keeps its parameters

    def forward(self, rows: Any, targets: Any) -> Any:
        """Return the loss of each record: minus its moments times the parameters; its gradient has norm 1 at most."""
        chance = (rows + 1) / 2
        long = torch.linalg.vector_norm(chance, dim=1, keepdim=True)
        short = chance * (math.sqrt(1 - _ONE**2) / torch.clamp(long, min=self.reach))
        given = torch.cat([short, torch.full_like(long, _ONE)], dim=1)
        found = self.first(self._one_hot(targets, rows.dtype)) + self.second(given)
        return -_SHARE * (found * given).sum(1)

    def sample(self, targets: Any, generator: Any) -> Any:
        """Return a row for each of the classes, drawn with this generator of random numbers."""
        if self.law is None:
            self.law = self._law()
        means, factor, own = self.law
        count = targets.shape[0]

        def normal(width: int) -> Any:
            return torch.randn((count, width), generator=generator, dtype=torch.float64)

        rows = means[targets.long()] + normal(factor.shape[1]) @ factor.T + normal(self.features) * own
        return rows.clamp(0.0, 1.0) * 2 - 1

    def learning(self) -> list[Any]:
        """Return the layers that learn, in the order in which they are called."""
        return [self.first, self.second]

    def _one_hot(self, targets: Any, dtype: Any) -> Any:
        places = torch.arange(self.classes, device=targets.device, dtype=targets.dtype)
        return (targets[:, None] == places).to(dtype)

    def _law(self) -> tuple[Any, Any, Any]:
        """Return the classes' means before rows are cut to their range, a factor of the covariance, and deviations."""
        first, second = self.first.weight.detach().double().T, self.second.weight.detach().double()
        unit = self.reach / math.sqrt(1 - _ONE**2)
        counts = (first[:, -1] / _ONE).clamp(min=1e-9)  # up to the factor of all sums
        means = (first[:, :-1] * unit / counts[:, None]).clamp(0.0, 1.0)
        squares = (second + second.T)[:-1, :-1] * unit**2 / 2
        total = counts.sum()
        shared = squares / total - (means.T * (counts / total)) @ means
        values, ways = torch.linalg.eigh(shared)
        # A covariance has no negative value: the least one is noise, and tells how large noise can be.
        kept = values > max(1e-9, -float(values[0]))
        factor = ways[:, kept] * values[kept].sqrt()
        own = (shared.diagonal() - factor.square().sum(1)).clamp(min=0.0)
        return _uncut(means, (factor.square().sum(1) + own).sqrt() + 1e-6), factor, own.sqrt()


def _uncut(means: Any, spread: Any) -> Any:
    """Return the means of normal numbers that have the given means after they are cut to [0, 1]."""
    low, high = -6 * spread.expand_as(means), 1 + 6 * spread.expand_as(means)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        less = _cut_mean(middle, spread) < means
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    return (low + high) / 2


def _cut_mean(middle: Any, spread: Any) -> Any:
    below, above = -middle / spread, (1 - middle) / spread
    inside, over = torch.special.ndtr(above) - torch.special.ndtr(below), 1 - torch.special.ndtr(above)
    density = (torch.exp(-below.square() / 2) - torch.exp(-above.square() / 2)) / math.sqrt(2 * math.pi)
    return middle * inside + spread * density + over


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the maker of a generator whose sizes are its name: features and classes."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise AttributeError(name)
    return partial(Moments, *(int(size) for size in found.groups()))

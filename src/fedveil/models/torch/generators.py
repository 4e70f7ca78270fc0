"""Generators that are ready to use: modules that give each record's loss, and draw rows of each class.

A generator is called with rows and classes, and gives each record's loss; ``sample`` draws rows. Rows lie in [-1, 1].

* :class:`Vae`: a small conditional variational autoencoder. Kingma and Welling, Auto-Encoding Variational Bayes, with
  the class as in Sohn, Lee and Yan, Learning Structured Output Representation using Deep Conditional Generative Models.
* :class:`Moments`: the mean row of each class, and one table of how entries vary together. That is the model behind
  linear discriminant analysis (Fisher, The Use of Multiple Measurements in Taxonomic Problems).
* :class:`Pair`: an adversarial pair. Goodfellow and others, Generative Adversarial Networks; with private judges: Xie,
  Lin, Wang, Wang and Zhou, Differentially Private Generative Adversarial Network.

Plans name them by their sizes, as ``vae_4_2_8_128``: features, classes, latent numbers, hidden units.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from fedveil.models.torch.library import torch

STAND_IN_INPUTS: Final = 200  # as many as an attack makes runs at once; a plan that says another number is refused
_MIX: Final = -0x61C8864680B583EB  # odd, without a pattern, as a number of 64 bits with a sign
_STEPS: Final = 2.0**20  # of an entry, that a hash tells apart
_REACH: Final = 1 / 3  # of the longest row there can be: longer ones are shortened to it
_ONE: Final = 0.3  # the constant entry, by which records are counted, of a vector of length 1
_SHARE: Final = math.sqrt(0.5)  # of means, and of the covariance, in what a record adds: half of the square each
_BISECTIONS: Final = 50
_DRAWN: Final = 256  # rows that the maker shows the judge in a round
_SLOPE: Final = 0.2  # of the judge's units below zero
_Module: Any = object if torch is None else torch.nn.Module


class Vae(_Module):  # type: ignore[misc]
    """Row and class become a code of ``latent`` normal numbers; code and class become a row. One hidden layer each.

    An entry of a row stands for the chance (entry + 1) / 2. A loss must be a function of the record and the parameters.
    So the normal numbers that a record's code is moved by are no fresh ones: they are a hash of the record's row and
    class and of one layer's parameters, which change every round.
    """

    def __init__(self, features: int, classes: int, latent: int, hidden: int) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.features, self.classes, self.latent = features, classes, latent
        self.read, self.code = linear(features + classes, hidden), linear(hidden, 2 * latent)
        self.open, self.write = linear(latent + classes, hidden), linear(hidden + classes, features)
        # public, and no parameter: odd factors, one for each entry of a row
        factors = np.random.default_rng(0).integers(-(2**62), 2**62, size=features) * 2 + 1
        self.register_buffer("factors", torch.from_numpy(factors), persistent=False)

    def forward(self, rows: Any, targets: Any) -> Any:
        """Return the loss of each record: minus the evidence bound, in nats.

        Not divided by the number of entries: then nearly every gradient is longer than a clip of 1, and none is wasted.
        """
        kind = _one_hot(targets, self.classes, rows.dtype)
        functional = torch.nn.functional
        encoded = self.code(functional.relu(self.read(torch.cat([rows, kind], dim=1))))
        middle, wide = encoded[:, : self.latent], encoded[:, self.latent :].clamp(-8.0, 8.0)
        code = middle + torch.exp(wide / 2) * self._moves(rows, targets).to(rows.dtype)
        out = self._decode(code, kind)
        kept = functional.binary_cross_entropy_with_logits(out, (rows + 1) / 2, reduction="none").sum(1)
        divergence = (middle.square() + torch.exp(wide) - 1 - wide).sum(1) / 2
        return kept + divergence

    def sample(self, targets: Any, generator: Any) -> Any:
        """Return a row for each of the classes, drawn with this generator of random numbers."""
        weight = self.open.weight
        code = torch.randn((targets.shape[0], self.latent), generator=generator, dtype=torch.float64).to(weight.dtype)
        return torch.sigmoid(self._decode(code, _one_hot(targets, self.classes, weight.dtype))) * 2 - 1

    def learning(self) -> list[Any]:
        """Return the layers that learn, in the order in which they are called."""
        return [self.read, self.code, self.open, self.write]

    def _decode(self, code: Any, kind: Any) -> Any:
        hidden = torch.nn.functional.relu(self.open(torch.cat([code, kind], dim=1)))
        return self.write(torch.cat([hidden, kind], dim=1))

    def _moves(self, rows: Any, targets: Any) -> Any:
        """Return normal numbers for each record, by whole numbers that wrap: the same in any company."""
        salt = (self.code.bias.detach().double() * 2.0**40).long().sum()
        mixed = ((rows.detach().double() * _STEPS).round().long() * self.factors).sum(1)
        mixed = _hash(mixed + targets.detach().long() * _MIX + salt)
        places = torch.arange(1, self.latent + 1, device=rows.device) * _MIX
        bits = _hash(mixed[:, None] + places)
        chance = (((bits >> 12) & (2**51 - 1)).double() + 0.5) / 2.0**51
        return torch.special.ndtri(chance)


def _hash(given: Any) -> Any:
    for shift in (31, 29):
        given = (given ^ ((given >> shift) & (2 ** (64 - shift) - 1))) * _MIX
    return given ^ ((given >> 32) & (2**32 - 1))


class Moments(_Module):  # type: ignore[misc]
    """``first``: sums of rows by class; ``second``: the sum of their squares, a matrix. Both up to one factor.

    The loss is linear in the parameters, so one step over all records learns all there is to learn: their noised sums.
    What is drawn from them are normal rows with these means, and with the part of the covariance that stands out of the
    noise; the rest of an entry's variance is its own.
    """

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
        outputs = self.first(_one_hot(targets, self.classes, rows.dtype)) + self.second(given)
        return -_SHARE * (outputs * given).sum(1)

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
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        less = _cut_mean(middle, spread) < means
        low, high = torch.where(less, middle, low), torch.where(less, high, middle)
    return (low + high) / 2


def _cut_mean(middle: Any, spread: Any) -> Any:
    below, above = -middle / spread, (1 - middle) / spread
    inside, over = torch.special.ndtr(above) - torch.special.ndtr(below), 1 - torch.special.ndtr(above)
    density = (torch.exp(-below.square() / 2) - torch.exp(-above.square() / 2)) / math.sqrt(2 * math.pi)
    return middle * inside + spread * density + over


class Pair(_Module):  # type: ignore[misc]
    """A judge that alone sees records, and a maker that learns from the judge.

    The judge's layers come first, then the maker's; each has one hidden layer and takes the class as an input. A
    record's loss is the judge's alone. What the judge learns from made rows, and what the maker learns from the judge,
    is ``answer``: computed from the parameters and public random numbers, so it is post-processing of noised sums
    (docs/theory/synthetic-data.md).
    """

    def __init__(self, features: int, classes: int, latent: int, units: int) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.features, self.classes, self.latent = features, classes, latent
        self.look, self.judge = linear(features + classes, units), linear(units, 1)
        self.open, self.write = linear(latent + classes, units), linear(units + classes, features)

    def forward(self, rows: Any, targets: Any) -> Any:
        """Return the loss of each record: how far the judge is from calling it real."""
        return torch.nn.functional.softplus(-self._judge_scores(rows, _one_hot(targets, self.classes, rows.dtype)))

    def sample(self, targets: Any, generator: Any) -> Any:
        """Return a row for each of the classes, drawn with this generator of random numbers."""
        weight = self.open.weight
        kind = _one_hot(targets.to(weight.dtype), self.classes, weight.dtype)
        code = torch.randn((targets.shape[0], self.latent), generator=generator, dtype=torch.float64).to(weight.dtype)
        hidden = torch.nn.functional.relu(self.open(torch.cat([code, kind], dim=1)))
        return torch.tanh(self.write(torch.cat([hidden, kind], dim=1)))

    def answer(self, generator: Any) -> tuple[Any, Any]:
        """Return what the judge and what the maker would lessen, on rows that the maker draws; no record is seen."""
        weight = self.open.weight
        targets = torch.randint(self.classes, (_DRAWN,), generator=generator).to(weight.dtype)
        rows, kind = self.sample(targets, generator), _one_hot(targets, self.classes, weight.dtype)
        softplus = torch.nn.functional.softplus
        return softplus(self._judge_scores(rows.detach(), kind)).mean(), softplus(
            -self._judge_scores(rows, kind)
        ).mean()

    def made(self) -> list[Any]:
        """Return the parameters of the maker, which no record moves."""
        return [*self.open.parameters(), *self.write.parameters()]

    def learning(self) -> list[Any]:
        """Return the layers that learn from records, in the order in which they are called."""
        return [self.look, self.judge]

    def _judge_scores(self, rows: Any, kind: Any) -> Any:
        seen = torch.nn.functional.leaky_relu(self.look(torch.cat([rows, kind], dim=1)), _SLOPE)
        return self.judge(seen)[:, 0]


def stand_in() -> Any:
    """Return a linear layer that takes the place of a torch module where attacks make many runs at once.

    One score of the features, without bias, from parameters that are zero (jobs/attack/releases).
    """
    made = torch.nn.Linear(STAND_IN_INPUTS, 1, bias=False)
    torch.nn.init.zeros_(made.weight)
    return made


def _one_hot(targets: Any, classes: int, dtype: Any) -> Any:
    places = torch.arange(classes, device=targets.device, dtype=targets.dtype)
    return (targets[:, None] == places).to(dtype)


# The sizes that a name may state; core/importing.py lets these names through without permission.
_NAMES: Final = (
    (re.compile(r"vae_([1-9]\d{0,5})_([1-9]\d{0,3})_([1-9]\d{0,3})_([1-9]\d{0,4})"), Vae),
    (re.compile(r"moments_([1-9]\d{0,3})_([1-9]\d{0,3})"), Moments),
    (re.compile(r"pair_([1-9]\d{0,5})_([1-9]\d{0,3})_([1-9]\d{0,3})_([1-9]\d{0,4})"), Pair),
)


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the maker of a generator whose sizes are its name."""
    for pattern, kind in _NAMES:
        sizes = pattern.fullmatch(name)
        if sizes is not None:
            return partial(kind, *(int(size) for size in sizes.groups()))
    raise AttributeError(name)

"""A small conditional variational autoencoder that is ready to use: a generator of rows of each class.

Kingma and Welling, Auto-Encoding Variational Bayes, with the class as in Sohn, Lee and Yan, Learning Structured Output
Representation using Deep Conditional Generative Models. It is called with rows and classes, and gives each record's
loss; ``sample`` draws rows. Rows lie in [-1, 1], and an entry stands for the chance (entry + 1) / 2.

A loss must be a function of the record and the parameters. So the normal numbers that a record's code is moved by are
no fresh ones: they are a hash of the record's row and class and of one layer's parameters, which change every round.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from fedveil.model.torch_library import torch

_NAME: Final = re.compile(r"vae_([1-9]\d{0,5})_([1-9]\d{0,3})_([1-9]\d{0,3})_([1-9]\d{0,4})")
_MIX: Final = -0x61C8864680B583EB  # odd, without a pattern, as a number of 64 bits with a sign
_STEPS: Final = 2.0**20  # of an entry, that a hash tells apart
_Module: Any = object if torch is None else torch.nn.Module


class Vae(_Module):  # type: ignore[misc]
    """Row and class become a code of ``latent`` normal numbers; code and class become a row. One hidden layer each."""

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
        kind = self._one_hot(targets, rows.dtype)
        functional = torch.nn.functional
        found = self.code(functional.relu(self.read(torch.cat([rows, kind], dim=1))))
        middle, wide = found[:, : self.latent], found[:, self.latent :].clamp(-8.0, 8.0)
        code = middle + torch.exp(wide / 2) * self._moves(rows, targets).to(rows.dtype)
        out = self._written(code, kind)
        kept = functional.binary_cross_entropy_with_logits(out, (rows + 1) / 2, reduction="none").sum(1)
        told = (middle.square() + torch.exp(wide) - 1 - wide).sum(1) / 2
        return kept + told

    def sample(self, targets: Any, generator: Any) -> Any:
        """Return a row for each of the classes, drawn with this generator of random numbers."""
        weight = self.open.weight
        code = torch.randn((targets.shape[0], self.latent), generator=generator, dtype=torch.float64).to(weight.dtype)
        return torch.sigmoid(self._written(code, self._one_hot(targets, weight.dtype))) * 2 - 1

    def learning(self) -> list[Any]:
        """Return the layers that learn, in the order in which they are called."""
        return [self.read, self.code, self.open, self.write]

    def _written(self, code: Any, kind: Any) -> Any:
        hidden = torch.nn.functional.relu(self.open(torch.cat([code, kind], dim=1)))
        return self.write(torch.cat([hidden, kind], dim=1))

    def _one_hot(self, targets: Any, dtype: Any) -> Any:
        places = torch.arange(self.classes, device=targets.device, dtype=targets.dtype)
        return (targets[:, None] == places).to(dtype)

    def _moves(self, rows: Any, targets: Any) -> Any:
        """Return normal numbers for each record, by whole numbers that wrap: the same in any company."""
        salt = (self.code.bias.detach().double() * 2.0**40).long().sum()
        mixed = ((rows.detach().double() * _STEPS).round().long() * self.factors).sum(1)
        mixed = _mixed(mixed + targets.detach().long() * _MIX + salt)
        places = torch.arange(1, self.latent + 1, device=rows.device) * _MIX
        bits = _mixed(mixed[:, None] + places)
        chance = (((bits >> 12) & (2**51 - 1)).double() + 0.5) / 2.0**51
        return torch.special.ndtri(chance)


def _mixed(given: Any) -> Any:
    for shift in (31, 29):
        given = (given ^ ((given >> shift) & (2 ** (64 - shift) - 1))) * _MIX
    return given ^ ((given >> 32) & (2**32 - 1))


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the maker of a generator whose sizes are its name: features, classes, latent, hidden."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise AttributeError(name)
    return partial(Vae, *(int(size) for size in found.groups()))

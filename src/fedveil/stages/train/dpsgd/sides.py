"""The two sides of DP-SGD for a plan's trust: clients that add all of their noise themselves, or share one noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Noising
from fedveil.stages.protocol import Consortium
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.answering import DpSgdAnswering
from fedveil.stages.train.dpsgd.asking import DpSgdAsking
from fedveil.stages.train.dpsgd.shared import SharedAnswering, SharedAsking, noising_of
from fedveil.stages.train.dpsgd.steps import dpsgd_of


@dataclass(frozen=True, slots=True)
class Sides:
    """Who asks, who answers (with the clients' numbers in the study), and the noise of a turn."""

    asking: Callable[[Training, Consortium, Entropy], DpSgdAsking | SharedAsking]
    answering: Callable[[Training, Records, tuple[int, ...], Entropy], DpSgdAnswering | SharedAnswering]
    noising: Callable[[Training, Entropy], Noising]


def _noised_already(stage: Training, entropy: Entropy) -> Noising:
    """Every client has noised its own update, fully, before it is added up."""
    size = stage.dimension
    return Noising(whole=lambda turn: np.zeros(size, dtype=np.int64), share=lambda turn: 0.0, size=lambda turn: size)


_LOCAL: Final = Sides(DpSgdAsking.make, DpSgdAnswering, _noised_already)
_SHARED: Final = Sides(
    SharedAsking.make, SharedAnswering, lambda stage, entropy: noising_of(stage, dpsgd_of(stage), entropy)
)


def sides_of(stage: Training) -> Sides:
    """Return the sides for a stage's trust."""
    return _LOCAL if dpsgd_of(stage).local(stage.setup) else _SHARED

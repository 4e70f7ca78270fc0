"""The measurements of a profile: which, and with how much noise, decided by public numbers alone.

Shares are shares of mu squared, in which Gaussian mechanisms add up. The whole budget is spent: a profile trains
nothing that would need a part of it.
"""

import math
from dataclasses import dataclass
from typing import Final

from fedveil.core.errors import CannotCertify
from fedveil.data.records import DataShape
from fedveil.data.spec import Places
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.measured.plan import PROFILE, MeasuredPlan, spend_budget
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.prepare.categories import threshold_of
from fedveil.stages.prepare.magnitudes import BINS
from fedveil.stages.profile.found import FILE
from fedveil.stages.sums import Measurement, NoisySums, root_up, variance_left

_WEIGHTS: Final = {"ranges": 0.25, "categories": 0.35, "means": 0.1, "spreads": 0.1, "moments": 0.2}
_SLIP: Final = 0.005  # of delta, for words that should not have been shown
_CORRELATION: Final = 0.1  # the largest error of a correlation that is still worth measuring
_MOST_NUMBERS: Final = 100  # columns of numbers up to which all pairs are looked at
CLASSES: Final = 10  # classes of the target that enter the correlations
_MOST_SHARE: Final = 0.998  # of the budget, so that the grid and the thresholds keep a part


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many columns are measured as numbers, and how many as words (the target may be both)."""

    numbers: int
    texts: int
    target: bool

    @property
    def pairs(self) -> int:
        """Entries of a row whose products are added up, at most."""
        return self.numbers + (CLASSES if self.target else 0)


def profile_plan(name: str, data: DataShape, target: Target, sizes: Sizes, places: Places | None) -> MeasuredPlan:
    """Return the plan that spends the target's budget on everything worth measuring."""

    def plan(share: float) -> MeasuredPlan:
        sums = _measurements(data, target, sizes, share)
        return MeasuredPlan(name=name, stage=PROFILE, file=FILE, data=data, target=target, sums=sums, places=places)

    return spend_budget(plan, target, "a profile", _MOST_SHARE)


def _measurements(data: DataShape, target: Target, sizes: Sizes, share: float) -> NoisySums:
    left = variance_left(target.adversary, data, target, CENTRAL)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the noise, so nothing can be promised")
    whole = target.sensitivity / (total_mu(target) * math.sqrt(left))
    units = data.clients if target.unit == "client" else data.records
    names = _names(sizes, whole / units)
    total = math.fsum(_WEIGHTS[name] for name in names)
    made = (_measured(name, data, target, sizes, whole / math.sqrt(share * _WEIGHTS[name] / total)) for name in names)
    return NoisySums(measurements=tuple(made), share=share)


def _names(sizes: Sizes, noise: float) -> list[str]:
    """What is measured. ``noise``: on the mean of contributions of norm 1, with the whole budget."""
    names = ["ranges"] if sizes.numbers else []
    names += ["categories"] if sizes.texts else []
    names += ["means", "spreads"] if sizes.numbers else []
    error = noise * (sizes.numbers + 1) / math.sqrt(_WEIGHTS["moments"])
    if 1 <= sizes.numbers <= _MOST_NUMBERS and sizes.numbers + sizes.target >= 2 and error <= _CORRELATION:
        names.append("moments")
    return names


def _measured(name: str, data: DataShape, target: Target, sizes: Sizes, noise: float) -> Measurement:
    count = sizes.texts if name == "categories" else sizes.numbers
    bound, size = root_up(count), count
    if name == "ranges":
        size = BINS * count
    elif name == "moments":
        bound, size = float(sizes.numbers + sizes.target), sizes.pairs * (sizes.pairs + 1) // 2
    if name != "categories":
        return Measurement(name=name, size=size, bound=bound, noise=noise)
    words = data.largest_client if target.unit == "client" else target.largest_person
    slip = _SLIP * target.delta / (1 + math.exp(target.epsilon))
    deviation = noise * bound * (1 + 2.0**-40)
    threshold, chance = threshold_of(deviation, slip, count, words, target.largest_person)
    return Measurement(name=name, size=data.records * count, bound=bound, noise=noise, threshold=threshold, slip=chance)

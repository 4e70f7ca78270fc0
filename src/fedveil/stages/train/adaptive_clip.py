"""A clip that follows a quantile of the norms, by one noisy count beside every noisy sum.

Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with Adaptive Clipping (2021). All sums are in
units of the present clip, so neither their sensitivity nor their noise depends on it. Theory page: adaptive-clip.md.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import numpy as np
from scipy.special import ndtr, ndtri

from fedveil.core.errors import require
from fedveil.core.values import Vector, number
from fedveil.models.rows import UNIT, rounding_bound
from fedveil.stages.train.settings import AdaptiveClipRequest

_REACH: Final = 2.0**20  # a clip stays within this factor of where it started
_QUANTILE: Final = 0.85
_EARLY: Final = (
    0.125  # of the rounds: up to there the clip moves at its full rate, then at a rate that falls like 1/t^2
)
_LEAST_SHARE, _MOST_SHARE = 0.01, 0.1
_ROUNDINGS: Final = 60  # of a norm and a scale, beside those of the gradient
_PART: Final = 0.75  # of the quantile: a clip below it cuts little more, and noise falls in proportion
_KNOWN: Final = 0.25  # deviation of the counted share that is aimed at


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClip:
    """``quantile``: the share of norms that should lie within the clip.

    ``rate``: how far the logarithm of the clip moves in an early round, for a share that is off by one; None: the clip
    goes where all votes so far put the quantile (``believed``), and is a part of it. ``share``: of the squared
    sensitivity, what is spent on the count; the sum has the rest.
    """

    quantile: float
    rate: float | None = None
    share: float

    def __post_init__(self) -> None:
        for name in ("quantile", "share", *(() if self.rate is None else ("rate",))):
            object.__setattr__(self, name, number(f"algorithm.clip.{name}", getattr(self, name)))
        hint = "It is the share of norms within the clip; 0.5 is their median."
        require(0 < self.quantile < 1, "algorithm.clip.quantile", "lie strictly in (0, 1)", self.quantile, hint)
        fine = self.rate is None or 0 < self.rate <= 2
        require(fine, "algorithm.clip.rate", "lie in (0, 2]", self.rate)
        hint = "It is the part of the budget that the count takes from the sum."
        require(1e-4 <= self.share <= 0.5, "algorithm.clip.share", "lie in [0.0001, 0.5]", self.share, hint)

    @property
    def votes(self) -> int:
        """How many numbers a contribution adds to the sum of its vector: its vote."""
        return 1

    def unit(self, start: float) -> float:
        """Return the bound on a contribution in the units of the released sums: 1, as they are of the present clip."""
        return 1.0

    @property
    def of_sum(self) -> float:
        """The largest norm that a contribution has in the sum, in units of the joint sensitivity."""
        return math.sqrt(1 - self.share)

    @property
    def of_count(self) -> float:
        """What a contribution adds to the count, or takes from it, in the same units."""
        return math.sqrt(self.share)

    def vote(self, within: bool, weight: float, unit: float) -> float:
        """Return a contribution to the count in whole grid steps: upwards if its norm lies within the clip.

        The vote is cut towards zero, so that the joint norm stays below ``weight``.
        """
        steps = math.floor(weight * self.of_count * (1 - 2.0**-40) / unit)
        return float(steps if within else -steps)

    def level(self, clip: float) -> float:
        """Return the norm up to which a contribution votes upwards: where the quantile is looked for."""
        return clip / _PART if self.rate is None else clip

    def slower(self, done: float) -> float:
        """Return what a vote counts after this share of the rounds: all of it early, then less and less.

        So the clip settles at the norms of early training.
        """
        return min(1.0, _EARLY / done) ** 2

    def following(self, clip: float, start: float, counted: float, done: float) -> float:
        """Return the next clip; ``counted``: the noisy sum of all votes over the planned number of contributions.

        ``done``: the share of the rounds that are over, this one included. It is post-processing of the noisy sum. What
        noise adds beyond what a count can say is cut off, on both sides alike, so that the clip stays where the share
        within it is the quantile.
        """
        if self.rate is None:
            raise TypeError("a rule with a rate was expected")
        aim = 0.5 if done <= _EARLY else self.quantile  # the median first, which is as near from both sides
        missing = aim - 0.5 - counted / (2 * self.of_count)
        most = max(aim, 1 - aim)
        result = clip * math.exp(self.rate * self.slower(done) * min(max(missing, -most), most))
        return min(max(result, start / _REACH), start * _REACH)

    def next_clip(
        self, clip: float, belief: Vector, *, start: float, noise: float, votes: float, batch: float, done: float
    ) -> tuple[float, Vector]:
        """Return the next clip and the belief behind it, from the noisy sum of a round's votes.

        ``start``: the first clip; ``noise``: the joint noise multiplier; ``batch``: the planned number of votes.
        """
        counted = votes / batch
        if self.rate is not None:
            return self.following(clip, start, counted, done), belief
        deviation = vote_deviation(noise, self.of_count, batch)
        within = 0.5 + counted / (2 * self.of_count)
        belief = moved(belief, math.log(clip / start), within, deviation, self.quantile, self.slower(done))
        return start * math.exp(believed(belief)), belief

    def rows(self, start: str, how: str) -> list[tuple[str, str, str]]:
        """Return the certificate's rows: where the clip starts, and what counting costs."""
        counted = f"{self.share:.6g} of the squared sensitivity; the sum has the rest, so both are one Gaussian"
        what = "the noisy count that moves the clip is charged with its sum: no later clip costs anything more"
        return [
            ("clipping norm", f"{start} at first, then {self.words()}", how),
            ("count of clipped contributions", counted, what),
        ]

    def words(self) -> str:
        """Return in words what the clip follows."""
        part = "" if self.rate is not None else f"{_PART:g} of a norm found by noisy counts, "
        return f"adaptive, {part}to hold {self.quantile:.6g} of the norms"


@final
@dataclass(frozen=True, slots=True)
class FixedClip:
    """The clip that stays where it starts: nobody votes, and the sum has the whole sensitivity. It is false."""

    votes: ClassVar[int] = 0
    of_sum: ClassVar[float] = 1.0

    def __bool__(self) -> Literal[False]:
        return False

    def unit(self, start: float) -> float:
        """Return the bound on a contribution in the units of the released sums."""
        return start


FIXED_CLIP: Final = FixedClip()


def relative_error(features: int, outputs: int, dimension: int, exponent: int) -> float:
    """Return how far a victim's contribution, in units of its clip, may lie outside the unit ball.

    Its vote is exact. Its gradient is whatever was computed, cut to the clip, so errors of scores do not matter: there
    remain the roundings of the cut gradient, and half a step of the grid in each of ``dimension`` parameters.
    """
    own = rounding_bound(rows=1, features=features, lipschitz=1.0, smoothness=None, radius=0.0, outputs=outputs)
    return own + _ROUNDINGS * UNIT + 0.5 * math.sqrt(dimension) * 2.0**exponent


def design_clip(request: AdaptiveClipRequest, noise: float, batch: float, usual_rate: float | None) -> AdaptiveClip:
    """Return the rule for a request with its defaults, from public numbers.

    ``noise``: the joint noise multiplier; ``batch``: contributions that a round expects; ``usual_rate``: where the
    request states none (None: by the belief in all votes).
    """
    usual = min(max((noise / (2 * _KNOWN * batch)) ** 2, _LEAST_SHARE), _MOST_SHARE)
    return AdaptiveClip(
        quantile=_QUANTILE if request.quantile is None else request.quantile,
        rate=usual_rate if request.rate is None else request.rate,
        share=usual if request.share is None else request.share,
    )


# Where the quantile of the norms lies, as far as noisy votes tell: the belief that moves a client's adaptive clip.
#
# A noisy binary search: all votes so far count, whichever clips they were cast at, and none moves the clip by more than
# it tells. Everything here is post-processing of noised counts. Theory page: adaptive-clip.md.


PLACES: Final[Vector] = np.arange(-100, 101) / 10  # where it may lie: logarithms, over the level at which votes began
PLACES.setflags(write=False)
_SPREAD: Final = 0.6  # of the logarithms of the norms, as assumed; a wrong one makes the search slower, not wrong
_UNSURE: Final = math.log(100)  # how far off the start may usually be
_LEAN: Final = 0.3  # quantile of the belief that is used: too small a clip does less harm than too large a one


def no_belief() -> Vector:
    """Return the belief before any vote."""
    return np.zeros(PLACES.size)


def moved(belief: Vector, level: float, share: float, deviation: float, quantile: float, weight: float = 1.0) -> Vector:
    """Return the belief after one noisy vote.

    ``level``: the logarithm of where it was cast, over where votes began; ``share``: the noisy share of the norms
    within it, of this ``deviation``; ``weight``: what the vote counts, from 0 to 1.
    """
    expected = ndtr((level - PLACES) / _SPREAD + float(ndtri(quantile)))
    result = belief - weight * (share - expected) ** 2 / (2 * deviation**2)
    return np.asarray(result - result.max(), dtype=np.float64)


def believed(belief: Vector) -> float:
    """Return the logarithm of where the quantile lies, over where votes began, leaning to the smaller side.

    >>> believed(no_belief()), believed(moved(no_belief(), 0.0, 0.5, 0.01, 0.5))
    (-2.3, 0.0)
    """
    weight = np.exp(belief - PLACES**2 / (2 * _UNSURE**2))
    known = np.cumsum(weight)
    return float(PLACES[int(np.searchsorted(known, _LEAN * known[-1]))])


def vote_deviation(noise: float, of_count: float, batch: float) -> float:
    """Return the deviation of a noisy share: of its noise, and of who happened to be in the batch."""
    return math.hypot(noise / (2 * of_count * batch), 0.5 / math.sqrt(batch))

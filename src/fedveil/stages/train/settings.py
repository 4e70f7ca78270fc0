"""The groups of settings inside [algorithm]: clip, optimizer, correlation, choose, compression.

A group is a table of its own, absent as a whole when absent. What each setting may be stands beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal, final

import numpy as np

from fedveil.accounting.grid import Grid
from fedveil.core.errors import CannotCertify, require
from fedveil.core.fields import check_fields, count, real, word
from fedveil.core.tables import filled, known, table
from fedveil.core.values import number, whole
from fedveil.privacy.mechanism import Numbers
from fedveil.stages.train.optimiser import Optimiser
from fedveil.theory.correlated import MOST_BANDS, MOST_BUFFERS, MOST_ROUNDS

# Which segment comes next is chosen while the run goes on, inside a budget that the plan fixes beforehand.
#
# What is certified is the budget, whatever a rule chooses: docs/theory/fixed-budget.md has the proof. Page:
# docs/segments.md.

PLATEAU: Final = "plateau"
RULES: Final = (PLATEAU,)
USUAL_GAIN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``rule``: its name; ``gain``: by what share the public loss must fall for a segment to be taken again.

    ``budget``: what all chosen segments together may cost. Where releases are plain Gaussians a release costs the
    inverse square of its noise multiplier; where all candidates release alike, rounds (or passes) are counted.
    """

    rule: str
    gain: float
    budget: float

    def __post_init__(self) -> None:
        require(self.rule in RULES, "algorithm.choose", f"be one of {', '.join(RULES)}", self.rule)
        for name in ("gain", "budget"):
            object.__setattr__(self, name, number(f"algorithm.choose.{name}", getattr(self, name)))
        require(0 <= self.gain < 1, "algorithm.choose.gain", "lie in [0, 1)", self.gain, "It is a share of the loss.")
        require(0 < self.budget < math.inf, "method.choice.budget", "be positive and finite", self.budget)

    def words(self) -> str:
        """Return the rule in words."""
        return f"again while the loss on public records falls by {self.gain:g} of itself, otherwise the next that fits"


@final
@dataclass(frozen=True, slots=True)
class InOrder:
    """No choice: every segment runs once, in its order. It is false."""

    def __bool__(self) -> Literal[False]:
        return False


IN_ORDER: Final = InOrder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Purse:
    """What is left of a budget, and what each candidate costs: exact numbers, so that no rounding ever overspends.

    >>> purse = Purse(costs=(Fraction(2), Fraction(1)), left=Fraction(3))
    >>> purse.after(0).affords(0), purse.after(0).affords(1)
    (False, True)
    """

    costs: tuple[Fraction, ...]
    left: Fraction

    def affords(self, candidate: int) -> bool:
        """Return whether a candidate's segment can still be run."""
        return self.costs[candidate] <= self.left

    def after(self, candidate: int) -> "Purse":
        """Return the purse once a candidate is chosen; refuse one that costs more than is left.

        It is asked before the first round of the segment, so that what is refused has used no record.
        """
        if not (0 <= candidate < len(self.costs) and self.affords(candidate)):
            asked = float(self.costs[candidate]) if 0 <= candidate < len(self.costs) else math.inf
            raise CannotCertify(
                f"the rule asks for segment {candidate + 1}, which costs {asked:.6g} where {float(self.left):.6g} of"
                " the budget are left: it is refused before its first round"
            )
        return replace(self, left=self.left - self.costs[candidate])


def plateau(choice: Choice, chosen: Sequence[int], losses: Sequence[float], purse: Purse) -> int | None:
    """Return the next candidate: the last one while the public loss falls enough, otherwise the one after it.

    ``losses``: before the first segment and after each. One that the budget no longer pays for is passed over; None
    ends the run. It looks at public records and at released models alone.
    """
    first = 0
    if chosen:
        fell = losses[-2] - losses[-1] >= choice.gain * abs(losses[-2])  # false for NaN
        first = chosen[-1] if fell else min(chosen[-1] + 1, len(purse.costs) - 1)
    return next((one for one in range(first, len(purse.costs)) if purse.affords(one)), None)


def most(values: Sequence[float], costs: Sequence[Fraction], budget: float) -> float:
    """Return an upper bound on the sum of ``values`` over all segments that a budget pays for."""
    ratio = max(Fraction(value) / cost for value, cost in zip(values, costs, strict=True))
    return float(ratio * Fraction(budget)) * (1 + 1e-12)


def widest_grid(grids: Sequence[Grid], costs: Sequence[Fraction], budget: float) -> Grid:
    """Return what the grid costs at most over all segments that a budget pays for."""
    return replace(
        grids[0],
        rounds=max(1, math.floor(most([float(grid.rounds) for grid in grids], costs, budget))),
        distance=math.sqrt(most([grid.distance**2 for grid in grids], costs, budget)) * (1 + 1e-12),
        total_variation=min(1.0, most([grid.total_variation for grid in grids], costs, budget)),
    )


# The [[algorithm.segments]] of a study: rounds in consecutive parts, each with numbers of its own.
#
# van Dijk and Nguyen (2023), section 5.2: less noise in the last passes, for example. Page: docs/segments.md.


_NAME: Final = "algorithm.segments"
_KEYS: Final = ("rounds", "rate", "clip", "noise", "step")
_MOST: Final = 1000


def read_segments(given: Any) -> tuple[Mapping[str, float], ...] | None:
    """Return the segments as plain numbers, each with its ``rounds`` and whatever else it states; None without any.

    Noise must be stated in all segments or in none.
    """
    if given is None:
        return None
    listed = isinstance(given, list | tuple) and 1 <= len(given) <= _MOST
    require(listed, _NAME, f"list 1 to {_MOST} segments", given, "Each is a table, [[algorithm.segments]].")
    result = tuple(_segment(table(part, _NAME)) for part in given)
    stated = sum("noise" in part for part in result)
    hint = "State it in all of them, or in none: then it is calibrated, alike for all."
    require(
        stated in (0, len(result)),
        f"{_NAME}.noise",
        f"be stated in all {len(result)} segments or in none",
        stated,
        hint,
    )
    return result


def _segment(given: Mapping[str, Any]) -> Mapping[str, float]:
    known(given, _KEYS, "a segment")
    result: dict[str, float] = {"rounds": rounds_of(given)}
    for key in _KEYS[1:]:
        if key in given:
            result[key] = number(f"{_NAME}.{key}", given[key])
            require(0 < result[key] < math.inf, f"{_NAME}.{key}", "be positive and finite", given[key])
    return result


def rounds_of(segment: Mapping[str, Any]) -> int:
    """Return how many rounds a segment has, which it must state."""
    require("rounds" in segment, f"{_NAME}.rounds", "be given for every segment", None)
    rounds = whole(f"{_NAME}.rounds", segment["rounds"])
    require(rounds >= 1, f"{_NAME}.rounds", "be at least 1", segment["rounds"])
    return rounds


# Step sizes that rise at first and fall later: constant, linear or cosine, after a warm-up. They look at no data.


Decay = Literal["constant", "linear", "cosine"]


def shaped(step: Any, rounds: int, decay: Decay | None, warm_up: int | None) -> Numbers:
    """Return the steps of all rounds, the largest of which is ``step``; a list is returned as it is.

    A warm-up of w rounds takes 1/w, 2/w, ... of the step. The rounds after it fall from the whole step: linearly to
    ``step / rest`` in the last of them, or by half a cosine.

    >>> shaped(1.0, 6, "linear", 2)
    (0.5, 1.0, 1.0, 0.75, 0.5, 0.25)
    """
    listed = isinstance(step, list | tuple)
    if decay is None and warm_up is None:
        return tuple(step) if listed else float(step)
    hint = "A list states the step of every round."
    stated = (decay, warm_up)
    require(not listed, "algorithm.optimizer: decay and warm_up", "be left out with a list of steps", stated, hint)
    early = warm_up or 0
    rule = f"leave a round of the {rounds} to train at the full step"
    require(early < rounds, "algorithm.optimizer.warm_up", rule, early)
    if decay in (None, "constant") and not early:
        return float(step)
    rest = rounds - early
    done = np.arange(rest) / rest
    falls = {"linear": 1 - done, "cosine": (1 + np.cos(math.pi * done)) / 2}.get(decay or "constant", np.ones(rest))
    rises = np.arange(1, early + 1) / early if early else np.empty(0)
    return tuple((float(step) * np.concatenate([rises, falls])).tolist())


Error = Literal["last", "mean", "max"]
CompressionKind = Literal["none", "random-k", "top-k", "quantised", "rotated"]
OptimizerKind = Literal["sgd", "momentum", "adam"]
ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveClipRequest:
    """[algorithm.clip]: a clip that begins at ``start`` and follows the ``quantile`` of the norms.

    ``rate`` and ``share`` are as in :class:`fedveil.stages.train.adaptive_clip.AdaptiveClip`.
    """

    start: float | None = real(1e-9, 1e9)
    quantile: float | None = real(
        0, 1, open_low=True, open_high=True, hint="It is the share of norms within the clip; 0.5 is their median."
    )
    rate: float | None = real(0, 2, open_low=True)
    share: float | None = real(1e-4, 0.5, hint="It is the part of the budget that the count takes from the sum.")

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.clip")


def adaptive_clip(name: str, given: Any) -> AdaptiveClipRequest | None:
    """Return the request for an adaptive clip: the word, or a table with its settings; None for anything else."""
    if given == ADAPTIVE:
        return AdaptiveClipRequest()
    if isinstance(given, AdaptiveClipRequest):
        return given
    if isinstance(given, dict):
        result: AdaptiveClipRequest = filled(AdaptiveClipRequest, given, name)
        return result
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationRequest:
    """[algorithm.correlation]: noise that is correlated over rounds, by a matrix with ``bands`` or ``buffers``.

    The matrix has the least ``error`` of the models, for units that take part in at most ``participations`` rounds, at
    least ``separation`` apart. An empty table leaves all of it to the design.
    """

    bands: int | None = count(1, MOST_BANDS)
    buffers: int | None = count(1, MOST_BUFFERS)
    error: Error | None = word(Error)
    participations: int | None = count(1, MOST_ROUNDS)
    separation: int | None = count(1, MOST_ROUNDS)

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.correlation")
        one = self.bands is None or self.buffers is None
        hint = "A matrix has one or the other."
        require(one, "algorithm.correlation", "have bands or buffers, not both", (self.bands, self.buffers), hint)


def _momentum() -> Any:
    return real(0, 1, open_high=True)


def _beta2() -> Any:
    return real(0, 1, open_high=True, hint="It is the weight of the past in Adam's mean of squares.")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRequest:
    """[algorithm.optimizer] of clients: how noised sums become steps, and steps a model; it costs no privacy.

    ``kind`` None: with momentum. ``momentum``: the weight of the past; None: what is usual for the kind. ``beta2`` is
    Adam's. ``weight_decay``: the share of the weights that every step takes away, over its step size. ``average``: a
    moving average of the models is released. ``decay`` and ``warm_up`` shape a step that is one number.
    """

    kind: OptimizerKind | None = word(OptimizerKind)
    momentum: float | None = _momentum()
    beta2: float | None = _beta2()
    weight_decay: float | None = real(0, 1e6)
    average: float | None = real(
        0,
        1,
        open_low=True,
        open_high=True,
        rule="lie between 0 and 1, both left out",
        hint="0.99 averages about the last 100 models.",
    )
    decay: Decay | None = word(Decay)
    warm_up: int | None = count(0)

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.optimizer")
        _check_kind(self, ("beta2",))

    def optimiser(self, usual_momentum: float) -> Optimiser:
        """Return the optimiser; ``usual_momentum``: of the algorithm, where neither kind nor momentum is stated."""
        result = _optimiser(self, usual_momentum)
        return replace(result, weight_decay=self.weight_decay or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptimizerRequest:
    """[algorithm.optimizer] of a server that steps along noised sums of updates; ``beta2`` and ``floor`` are Adam's."""

    kind: OptimizerKind | None = word(OptimizerKind)
    momentum: float | None = _momentum()
    beta2: float | None = _beta2()
    floor: float | None = real(1e-30, math.inf, open_high=True, rule="be at least 1e-30 and finite")

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.optimizer")
        _check_kind(self, ("beta2", "floor"))

    def optimiser(self, usual_momentum: float) -> Optimiser:
        """Return the optimiser; ``usual_momentum``: of the algorithm, where neither kind nor momentum is stated."""
        result = _optimiser(self, usual_momentum)
        return result if self.floor is None else replace(result, floor=self.floor)


def _check_kind(request: OptimizerRequest | ServerOptimizerRequest, adams: tuple[str, ...]) -> None:
    """Refuse what belongs to Adam beside another optimiser, and momentum beside plain steps."""
    for name in adams:
        given = getattr(request, name)
        fits = given is None or request.kind == "adam"
        require(fits, f"algorithm.optimizer.{name}", "go with adam alone", given, 'Say kind = "adam".')
    still = request.kind != "sgd" or not request.momentum
    hint = 'Plain steps have none: say kind = "momentum", or leave momentum out.'
    require(still, "algorithm.optimizer.momentum", "be 0 for sgd", request.momentum, hint)


def _optimiser(request: OptimizerRequest | ServerOptimizerRequest, usual_momentum: float) -> Optimiser:
    usual = {"momentum": usual_momentum, "sgd": 0.0, "adam": 0.9}[request.kind or "momentum"]
    momentum = usual if request.momentum is None else request.momentum
    result = Optimiser(kind="adam" if request.kind == "adam" else "momentum", momentum=momentum)
    return result if request.beta2 is None else replace(result, beta2=request.beta2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseRequest:
    """[algorithm.choose]: a rule chooses among the segments while the run goes on.

    ``gain``: by what share the public loss must fall for a segment to be taken again.
    """

    rule: str
    gain: float = real(0, 1, open_high=True, default=USUAL_GAIN, hint="It is a share of the loss.")

    def __post_init__(self) -> None:
        require(self.rule in RULES, "algorithm.choose", f"be one of {', '.join(RULES)}", self.rule)
        check_fields(self, "algorithm.choose")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionRequest:
    """[algorithm.compression]: how noised updates are made smaller.

    ``keep``: the share of coordinates that are sent; ``levels``: the steps between zero and the largest.
    """

    kind: CompressionKind = word(CompressionKind, default="none")
    keep: float = real(0, 1, open_low=True, default=1.0, hint="It is a share of the coordinates.")
    levels: int = count(1, 2**31, default=127)

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.compression")

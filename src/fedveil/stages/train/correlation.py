"""Noise that is correlated over rounds, as a part of a method: its matrix, and how often a unit may take part.

Page: docs/correlated-noise.md; proof: docs/theory/correlated-noise.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.tables import known
from fedveil.core.values import Indices, Vector, whole
from fedveil.privacy.guarantee import Answer, Neighbours
from fedveil.privacy.mechanism import Gaussian, Mechanism, Repeat, SampledGaussian
from fedveil.stages.train.settings import CorrelationRequest, Error
from fedveil.stages.train.share_words import Row
from fedveil.theory.correlated import (
    MOST_ROUNDS,
    Aim,
    Factor,
    best_bands,
    best_buffers,
    majorant,
    squared_error,
    weights_of_last,
)

NAME: Final = "method.correlated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """``factor``: the matrix; a unit takes part in at most ``participations`` rounds, ``separation`` or more apart."""

    factor: Factor
    participations: int
    separation: int
    rounds: int

    def __post_init__(self) -> None:
        for name in ("participations", "separation", "rounds"):
            object.__setattr__(self, name, whole(f"{NAME}.{name}", getattr(self, name)))
        require(
            1 <= self.rounds <= MOST_ROUNDS, "rounds", f"be at most {MOST_ROUNDS} for correlated noise", self.rounds
        )
        for name in ("participations", "separation"):
            value = getattr(self, name)
            require(
                1 <= value <= self.rounds,
                f"algorithm.correlation.{name}",
                f"lie between 1 and the rounds, {self.rounds}",
                value,
            )
        bands = len(self.factor.column)
        hint = "A matrix has no more bands than rounds."
        require(
            bands <= self.rounds, "algorithm.correlation.bands", f"be at most the rounds, {self.rounds}", bands, hint
        )
        followed = self.factor.growth(self.rounds) < math.inf
        require(followed, NAME, "have an inverse that does not grow without bound", self.factor.column[:4])

    @property
    def sensitivity(self) -> float:
        """How far one unit can move all releases together, for contributions of norm at most 1."""
        return self.factor.sensitivity(self.rounds, self.participations, self.separation)

    @property
    def column_norm(self) -> float:
        """How far one participation can move all releases together, for a contribution of norm at most 1."""
        return self.factor.sensitivity(self.rounds, 1, self.separation)

    @property
    def largest_move(self) -> float:
        """How far one unit can move what a single round adds to the releases, for contributions of norm at most 1."""
        ages = majorant(self.factor.coefficients(self.rounds))[:: self.separation][: self.participations]
        return float(np.sum(ages)) * (1 + 1e-9)

    @property
    def growth(self) -> float:
        """By what the largest noise of a round exceeds that of independent noise."""
        return max(1.0, self.factor.growth(self.rounds))

    def round_by_round(self, answer: Answer, seen: Mechanism) -> Answer:
        """Return the answer for one Gaussian, with how far a unit moves each round instead of all rounds at once.

        The rounds are as many releases, each of them a Gaussian given those before: rare errors of the sampler can be
        misjudged by no more than one of them may tell.
        """
        if not isinstance(seen, Gaussian):
            return answer
        moves = ((seen.mu * self.largest_move / self.sensitivity * (1 + 1e-9), self.rounds),)
        rows = (bound if bound.moves is None else replace(bound, moves=moves) for bound in answer.bounds)
        return replace(answer, bounds=tuple(rows))

    def charged(self, noise: float, neighbours: Neighbours) -> Mechanism:
        """Return what all rounds release together: one Gaussian, whoever knows who takes part when."""
        return Gaussian(noise_multiplier=noise / self.sensitivity, neighbours=neighbours)

    def charged_sampled(self, noise: float, rate: float, neighbours: Neighbours) -> Mechanism:
        """Return what is released where a unit joins each round of its own class by a secret coin of this ``rate``.

        There are ``separation`` classes, which take turns, and no more bands than classes.
        """
        apart = self.factor.banded and len(self.factor.column) <= self.separation
        hint = "A participation must have left the noise before the next one."
        require(
            apart,
            "algorithm.correlation.bands",
            f"be at most the {self.separation} classes",
            self.factor.memory + 1,
            hint,
        )
        once = SampledGaussian(
            sampling="poisson", rate=rate, noise_multiplier=noise / self.column_norm, neighbours=neighbours
        )
        return Repeat(of=once, times=-(-self.rounds // self.separation))

    def displaced(self, noise_steps: float, error: float, half: float, step_length: float) -> float:
        """Return how far a round's mean is displaced, for contributions off by ``error`` and rounded by ``half``.

        ``step_length``: the length of one grid step in every coordinate; ``noise_steps``: the deviation in steps.
        """
        own = self.factor.rounding(noise_steps, self.rounds) * step_length
        return self.factor.spread(self.rounds) * (error + half) + own

    def shortened(self, rounds: int) -> "Correlation":
        """Return the same for the first so many rounds alone."""
        factor = Factor(column=self.factor.column[:rounds]) if self.factor.banded else self.factor
        times, apart = min(self.participations, rounds), min(self.separation, rounds)
        return Correlation(factor=factor, participations=times, separation=apart, rounds=rounds)

    def table(self) -> dict[str, Any]:
        """Return the table of a plan that :meth:`read` reads back; its rounds are those of the method."""
        pattern = {"participations": self.participations, "separation": self.separation}
        return {**pattern, **{f.name: value for f in fields(Factor) if (value := getattr(self.factor, f.name))}}

    @classmethod
    def read(cls, table: Mapping[str, Any], rounds: int) -> "Correlation":
        """Return the correlation of the table that :meth:`table` writes, for so many rounds."""
        pattern = ("participations", "separation")
        known(table, [*pattern, *(f.name for f in fields(Factor))], f"[{NAME}]")
        missing = [name for name in pattern if name not in table]
        require(not missing, f"[{NAME}]", "be complete", f"nothing for {', '.join(missing)}")
        factor = Factor(**{key: value for key, value in table.items() if key not in pattern})
        return cls(factor=factor, rounds=rounds, **{key: table[key] for key in pattern})

    def rows(self) -> list[Row]:
        """Return what the guarantee assumes of the noise and of who takes part."""
        pattern = f"at most {self.participations} times, at least {self.separation} rounds apart"
        how = "the rounds of every unit follow from the plan; the run stops at a participation too many or too early"
        moved = "the norm of the sum of the matrix's columns that a unit can use; the whole run is one Gaussian"
        return [
            ("noise over rounds", self.words(), "made by address from the run's key: a restart repeats it"),
            ("a unit takes part", pattern, how),
            ("sensitivity of all rounds together", f"{self.sensitivity:.12g} contributions", moved),
        ]

    def words(self) -> str:
        """Return the matrix in words."""
        if self.factor.banded:
            return f"correlated, {len(self.factor.column)} bands"
        return f"correlated, {len(self.factor.scales)} buffers"


@final
@dataclass(frozen=True, slots=True)
class Independent:
    """The noise of every round by itself, where a unit may take part in any round. It is false."""

    growth: ClassVar[float] = 1.0
    separation: ClassVar[int] = 1

    def __bool__(self) -> Literal[False]:
        return False

    def shortened(self, rounds: int) -> "Independent":
        """Return the same: no round depends on another."""
        return self


INDEPENDENT_NOISE: Final = Independent()


class Attendance:
    """Keeps count of who took part when, and stops a run that asks a unit too often or too early."""

    __slots__ = ("_correlation", "_last", "_times")

    def __init__(self, correlation: Correlation, units: int) -> None:
        self._correlation = correlation
        self._last = np.full(units, -correlation.rounds, dtype=np.int64)
        self._times = np.zeros(units, dtype=np.int64)

    def last_of(self, unit: int) -> int:
        """Return the last round in which a unit took part; far below 0 if it never did."""
        return int(self._last[unit])

    def row(self) -> Indices:
        """Return the whole count as one row of numbers."""
        return np.concatenate([self._last, self._times])

    def restore(self, row: Indices) -> None:
        """Go back to the count that :attr:`row` was."""
        require(row.size == 2 * self._last.size, "attendance", "hold two numbers a unit", row.size)
        self._last, self._times = row[: self._last.size].copy(), row[self._last.size :].copy()

    def allows(self, turn: int, units: Indices) -> bool:
        """Return whether these units may take part in a round, or did."""
        return not self._judged(turn, units)[2].any()

    def _judged(self, turn: int, units: Indices) -> tuple[Indices, Indices, NDArray[np.bool_]]:
        """Return the units that are new in the round, which use of each it is, and whether that breaks the pattern."""
        new = units[self._last[units] != turn]
        allowed, times = self._correlation, self._times[new] + 1
        return new, times, (times > allowed.participations) | (turn - self._last[new] < allowed.separation)

    def note(self, turn: int, units: Indices) -> None:
        """Count the units of a round; refuse the round if one of them breaks the pattern.

        A round that is computed again, as it was, is no further participation.
        """
        new, times, bad = self._judged(turn, units)
        allowed, last = self._correlation, self._last[new]
        if bad.any():
            rule = f"take part at most {allowed.participations} times, at least {allowed.separation} rounds apart"
            first = int(np.flatnonzero(bad)[0])
            got = f"its use number {times[first]} in round {turn + 1}, after round {last[first] + 1}"
            hint = "The plan promises no more than that."
            require(False, "A unit of a run with correlated noise", rule, got, hint)
        self._times[new], self._last[new] = times, turn


# The matrix that is designed for a study's [algorithm.correlation].
#
# Page: docs/correlated-noise.md.


CORRELATED: Final = "correlated"
INDEPENDENT: Final = "independent"
DRAWN: Final = "correlated, drawn"
_MOST_USUAL = 64  # bands if none are asked for: memory grows with them


def design_correlation(
    request: CorrelationRequest, *, rounds: int, groups: int, weights: Vector | None = None, momentum: float = 0.0
) -> Correlation:
    """Return the correlation for rounds in which ``groups`` of units take turns.

    ``weights``: what the last model owes to each release, the latest first; None: steps that are all alike.
    """
    require(rounds <= MOST_ROUNDS, "rounds", f"be at most {MOST_ROUNDS} for correlated noise", rounds)
    groups = min(groups, rounds)
    apart = groups if request.separation is None else request.separation
    hint = "Ask fewer units in a round, or let them come back sooner."
    rule = f"be at most {groups}, the rounds after which a unit is asked again"
    require(apart <= groups, "algorithm.correlation.separation", rule, apart, hint)
    needed = -(-rounds // groups)
    times = needed if request.participations is None else request.participations
    hint = "Take fewer rounds, or ask fewer units in each."
    rule = f"be at least {needed}, the rounds that a unit is asked in"
    require(times >= needed, "algorithm.correlation.participations", rule, times, hint)
    bands = request.bands
    if bands is None and request.buffers is None:
        bands = min(apart, _MOST_USUAL)
    if bands is not None:
        hint = "A matrix has no more bands than rounds."
        require(bands <= rounds, "algorithm.correlation.bands", f"be at most the rounds, {rounds}", bands, hint)
    alike = weights_of_last(np.ones(rounds), momentum)
    wanted = alike if weights is None or request.error in ("mean", "max") else weights
    factor = _factor(tuple(wanted.tolist()), request.error or "last", min(times, rounds), apart, bands, request.buffers)
    return Correlation(factor=factor, participations=min(times, rounds), separation=apart, rounds=rounds)


@lru_cache(maxsize=32)
def _factor(
    weights: tuple[float, ...], error: Error, times: int, apart: int, bands: int | None, buffers: int | None
) -> Factor:
    aimed = Aim.mean if error == "mean" else Aim.last  # with steps that are alike the last model has the largest error
    aim = aimed(np.array(weights), times, apart)
    if bands is not None:
        return Factor(column=best_bands(aim, bands))
    scales, decays = best_buffers(aim, buffers or 1)
    return Factor(scales=scales, decays=decays)


def last_error(correlation: Correlation | Independent, weights: Vector) -> float:
    """Return the deviation of what the noise adds to the last model, for noise of deviation 1.

    ``weights``: what the last model owes to each release, the latest first. Without correlation, of independent noise.
    """
    if not correlation:
        return float(np.sqrt(np.sum(weights * weights)))
    return float(np.sqrt(squared_error(correlation.factor.coefficients(weights.size), weights, np.ones_like(weights))))

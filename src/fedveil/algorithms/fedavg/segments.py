"""Rounds of federated averaging in segments, each with its own cohort, bound, noise and server step.

van Dijk and Nguyen (2023), section 5.2. Page: docs/segments.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from fedveil.account.grid import Grid
from fedveil.checks import require
from fedveil.mechanism import Compose, Mechanism
from fedveil.values import number, whole

if TYPE_CHECKING:
    from fedveil.algorithms.fedavg.method import FedAvg

_SHOWN: Final = 6
_WIDTH: Final = 5  # numbers of a segment in a plan: rounds, cohort, bound on updates, noise multiplier, server step


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a method, as methods of their own."""

    parts: tuple[FedAvg, ...]

    def at(self, turn: int) -> FedAvg:
        """Return the method of a round, counted from 0 through all segments."""
        for part in self.parts:
            if turn < part.rounds:
                return part
            turn -= part.rounds
        return self.parts[-1]


@lru_cache(maxsize=64)
def segments_of(method: FedAvg) -> Segments:
    """Return the segments of a method; one, the method itself, if it has none."""
    if method.segments is None:
        return Segments((method,))
    plain = replace(method, segments=None, rounds=1)
    return Segments(
        tuple(
            replace(
                plain, rounds=int(rounds), cohort=cohort, update_norm=norm, noise_multiplier=noise, server_step=step
            )
            for rounds, cohort, norm, noise, step in method.segments
        )
    )


def checked_rows(given: Any, rounds: int) -> tuple[tuple[float, ...], ...]:
    """Return the rows of a plan's segments as plain numbers; refuse rows that do not add up to its rounds."""
    listed = isinstance(given, list | tuple) and len(given) >= 1
    fits = listed and all(isinstance(row, list | tuple) and len(row) == _WIDTH for row in given)
    require(fits, "fedavg.segments", f"be a list of rows of {_WIDTH} numbers", given)
    rows = tuple((whole("fedavg.segments", row[0]), *(number("fedavg.segments", v) for v in row[1:])) for row in given)
    total = sum(row[0] for row in rows)
    require(total == rounds, "fedavg.segments", f"have {rounds} rounds together", total)
    return rows


def with_noise(method: FedAvg, noise: float) -> tuple[tuple[float, ...], ...] | None:
    """Return the rows of a method's segments, all with this noise multiplier; None if it has none."""
    return None if method.segments is None else tuple((*row[:3], noise, row[4]) for row in method.segments)


def composed(parts: Sequence[Mechanism | None]) -> Mechanism | None:
    """Return the composition of what an observer sees in each segment; None if it knows the noise of one."""
    seen = tuple(part for part in parts if part is not None)
    return Compose(parts=seen) if len(seen) == len(parts) else None


def joined(grids: Sequence[Grid]) -> Grid:
    """Return what the grid costs in all segments: deviations and chances of mishaps add up, and sums are exact."""
    return replace(
        grids[0],
        rounds=sum(grid.rounds for grid in grids),
        distance=max(grid.distance for grid in grids),  # 0 where sums are exact, else infinite
        total_variation=min(1.0, math.fsum(grid.total_variation for grid in grids)),
        mishap=min(1.0, math.fsum(grid.mishap for grid in grids)),
    )


def segment_words(method: FedAvg) -> str:
    """Return how rounds are parted, in words."""
    parts = segments_of(method).parts
    shown = ", ".join(f"{part.rounds} of noise {part.noise_multiplier:.6g}" for part in parts[:_SHOWN])
    return shown + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")

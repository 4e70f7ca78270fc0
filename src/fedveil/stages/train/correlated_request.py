"""The matrix that is designed for a study's [algorithm.correlation].

Page: docs/correlated-noise.md.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.stages.train.correlation import Correlation
from fedveil.stages.train.settings import CorrelationRequest, Error
from fedveil.theory.correlated import squared_error, weights_of_last
from fedveil.theory.correlated_design import Aim, best_bands, best_buffers
from fedveil.theory.factor import MOST_ROUNDS, Factor

CORRELATED: Final = "correlated"
INDEPENDENT: Final = "independent"
DRAWN: Final = "correlated, drawn"
_MOST_USUAL = 64  # bands if none are asked for: memory grows with them


def designed(
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


def last_error(correlation: Correlation | None, weights: Vector) -> float:
    """Return the deviation of what the noise adds to the last model, for noise of deviation 1.

    ``weights``: what the last model owes to each release, the latest first. Without correlation, of independent noise.
    """
    if correlation is None:
        return float(np.sqrt(np.sum(weights * weights)))
    return float(np.sqrt(squared_error(correlation.factor.coefficients(weights.size), weights, np.ones_like(weights))))

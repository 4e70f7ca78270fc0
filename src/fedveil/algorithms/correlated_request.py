"""The keys of a study that ask for correlated noise, and the matrix that is designed for them.

Page: docs/correlated-noise.md.
"""

from functools import lru_cache
from typing import Any, Final, Literal, get_args

import numpy as np

from fedveil.algorithms.correlation import Correlation
from fedveil.checks import require
from fedveil.theory.correlated import squared_error, weights_of_last
from fedveil.theory.correlated_design import Aim, best_bands, best_buffers
from fedveil.theory.factor import MOST_BANDS, MOST_BUFFERS, MOST_ROUNDS, Factor
from fedveil.values import Vector, whole

Error = Literal["last", "mean", "max"]

CORRELATED: Final = "correlated"
INDEPENDENT: Final = "independent"
DRAWN: Final = "correlated, drawn"
KEYS: Final = ("bands", "buffers", "error", "participations", "separation")
_MOST_USUAL = 64  # bands if none are asked for: memory grows with them


def check_keys(request: Any, correlated: bool) -> None:
    """Refuse keys of correlated noise without it, and numbers that no plan could have."""
    for name in KEYS:
        given = getattr(request, name)
        if given is None:
            continue
        require(correlated, f"algorithm.{name}", 'go with noise = "correlated"', given, "Leave it out.")
        if name == "error":
            words = get_args(Error)
            require(given in words, "algorithm.error", f"be one of {', '.join(words)}", given)
            continue
        most = {"bands": MOST_BANDS, "buffers": MOST_BUFFERS}.get(name, MOST_ROUNDS)
        object.__setattr__(request, name, whole(f"algorithm.{name}", given))
        require(1 <= getattr(request, name) <= most, f"algorithm.{name}", f"lie between 1 and {most}", given)
    one = request.bands is None or request.buffers is None
    require(one, "algorithm.buffers", "be left out beside bands", request.buffers, "A matrix has one or the other.")


def designed(
    request: Any, *, rounds: int, groups: int, weights: Vector | None = None, momentum: float = 0.0
) -> Correlation:
    """Return the correlation for rounds in which ``groups`` of units take turns.

    ``weights``: what the last model owes to each release, the latest first; None: steps that are all alike.
    """
    require(rounds <= MOST_ROUNDS, "rounds", f"be at most {MOST_ROUNDS} for correlated noise", rounds)
    groups = min(groups, rounds)
    apart = groups if request.separation is None else request.separation
    hint = "Ask fewer units in a round, or let them come back sooner."
    rule = f"be at most {groups}, the rounds after which a unit is asked again"
    require(apart <= groups, "algorithm.separation", rule, apart, hint)
    needed = -(-rounds // groups)
    times = needed if request.participations is None else request.participations
    hint = "Take fewer rounds, or ask fewer units in each."
    rule = f"be at least {needed}, the rounds that a unit is asked in"
    require(times >= needed, "algorithm.participations", rule, times, hint)
    bands = request.bands
    if bands is None and request.buffers is None:
        bands = min(apart, _MOST_USUAL)
    if bands is not None:
        hint = "A matrix has no more bands than rounds."
        require(bands <= rounds, "algorithm.bands", f"be at most the rounds, {rounds}", bands, hint)
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

"""DP-SGD whose clients correlate their noise over rounds: which rounds that goes with, what it costs, and its grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedveil.core.checks import require
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.mechanism import Mechanism
from fedveil.privacy.target import Target
from fedveil.stages.train.correlation import NAME, Correlation
from fedveil.stages.train.dpsgd.client_settings import ClientSettings, class_rate
from fedveil.stages.train.dpsgd.rounding import float_error
from fedveil.stages.train.setup import Setup
from fedveil.stages.train.share_words import Row

if TYPE_CHECKING:
    from fedveil.stages.train.dpsgd.method import DpSgd


def check_correlation(method: DpSgd) -> None:
    """Refuse what correlated noise is not proved for, and rounds in which records come back too early or too often."""
    found, settings = method.correlated, method.client_settings[0]
    if found is None:
        hint = "Batches that come back in the same order go with [algorithm.correlation]."
        require(method.sampling != "cyclic", "algorithm.sampling", "not be cyclic here", method.sampling, hint)
        return
    hint = "Records must come back at times that the plan fixes, or draw within classes that take turns."
    fits = method.sampling in ("cyclic", "poisson")
    require(fits, "algorithm.sampling", "be cyclic or poisson for correlated noise", method.sampling, hint)
    fits = found.rounds == settings.rounds
    require(fits, NAME, f"be for the {settings.rounds} rounds of the method", found.rounds)
    single = len(method.client_settings) == 1 and not method.segments and not method.stops
    require(single, "algorithm.correlation", "go with settings that all clients share", "others", "One for all.")
    fixed = method.adaptive is None
    require(fixed, "algorithm.clip", "be a number for correlated noise", "adaptive", "The matrix is for equal clips.")
    turns = settings.batches_a_pass if method.sampling == "cyclic" else found.separation
    rule = f"be at most {turns}, the rounds after which a record comes back"
    require(found.separation <= turns, "algorithm.correlation.separation", rule, found.separation)
    needed = -(-settings.rounds // turns)
    rule = f"be at least {needed}, the rounds that a record is used in"
    require(found.participations >= needed, "algorithm.correlation.participations", rule, found.participations)
    if method.sampling == "cyclic":
        even = settings.rate == 1 / settings.batches_a_pass
        require(even, "algorithm.rate", "be one over the rounds of a pass for cyclic batches", settings.rate)
        return
    most = 1 / found.separation
    hint = "A class holds only so many of the records."
    fits = settings.rate <= most * (1 + 1e-12)
    require(fits, "algorithm.rate", f"be at most one over the {found.separation} classes", settings.rate, hint)
    apart = found.factor.banded and len(found.factor.column) <= found.separation
    hint = "With buffers, or more bands, take sampling = cyclic."
    require(apart, NAME, f"have at most as many bands as classes, {found.separation}", found.words(), hint)


def charged_together(method: DpSgd, correlation: Correlation, noise: float, target: Target) -> Mechanism:
    """Return what a client releases in all its rounds: one Gaussian, or sampled ones if records draw for themselves.

    A clipped batch moves by up to 2 * clip where a record takes part, whether it is exchanged or left out.
    """
    neighbours: Neighbours = target.neighbours
    if method.sampling == "cyclic":
        return correlation.charged(noise, "replace-one" if method.clipping == "batch" else neighbours)
    rate = class_rate(method.client_settings[0].rate, correlation.separation)
    return correlation.charged_sampled(noise / 2 if method.clipping == "batch" else noise, rate, neighbours)


def error_of(method: DpSgd, settings: ClientSettings, setup: Setup, exponent: int) -> float:
    """Return how far the mean of a round is displaced, besides the half grid step that every coordinate is rounded by.

    With correlated noise the errors of earlier rounds come back with it, and what it takes off is rounded too.
    """
    error, found = float_error(method, settings, setup, exponent), method.correlated
    if found is None:
        return error
    step, length = 2.0**exponent, 2.0**exponent * math.sqrt(setup.dimension)
    whole = found.displaced(settings.noise * settings.clip / step, error, length / 2, length)
    return max(0.0, whole - length / 2 * (1 - 1e-9))


def correlated_rows(method: DpSgd) -> list[Row]:
    """Return what the guarantee assumes of correlated noise; nothing is said of independent noise."""
    found = method.correlated
    if found is None:
        return []
    if method.sampling == "cyclic":
        return found.rows()
    rate, classes = class_rate(method.client_settings[0].rate, found.separation), found.separation
    how = "classes take turns; a record joins the rounds of its own class alone, each by a coin that nobody learns"
    once = "the norm of a column of the matrix; two participations of a record never meet in the noise"
    return [
        ("noise over rounds", found.words(), "made by address from the client's key: a restart repeats it"),
        ("classes of records", f"{classes}, joining with chance {rate:.6g}", how),
        ("sensitivity of a participation", f"{found.column_norm:.12g} contributions", once),
    ]

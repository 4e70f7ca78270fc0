"""The matrix for a DP-SGD study with correlated noise, from its rounds and steps alone."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from fedveil.algorithms.correlated_request import CORRELATED, DRAWN, INDEPENDENT, designed, last_error
from fedveil.algorithms.correlation import Correlation, Rows, correlation_of
from fedveil.algorithms.dpsgd.client_settings import ClientSettings
from fedveil.algorithms.dpsgd.correlated import charged_together
from fedveil.algorithms.dpsgd.method import DpSgd
from fedveil.algorithms.request import Task
from fedveil.algorithms.settings import CorrelationRequest
from fedveil.algorithms.step_shapes import Decay, shaped
from fedveil.checks import require
from fedveil.mechanism import Mechanism
from fedveil.target import Target
from fedveil.theory.correlated import weights_of_last
from fedveil.values import Vector

_CLASSES: Final = 8  # among which records draw, if nothing else is asked for
ANY: Final[Rows] = ((1.0, 1.0), (1.0,))  # for one round


def check_correlated(request: Any) -> None:
    """Refuse what correlated noise does not go with, before anything is planned."""
    if request.correlation is None:
        return
    buffers = request.correlation.buffers
    drawn = request.sampling != "poisson" or buffers is None
    hint = "With draws a participation must have left the noise before the next: give bands, or sampling = cyclic."
    require(drawn, "algorithm.correlation.buffers", "be left out with poisson batches", buffers, hint)
    for name in ("rate", "rounds", "clip", "noise_multiplier"):
        given = getattr(request, name)
        plain = not isinstance(given, list | tuple)
        require(plain, f"algorithm.{name}", "be one number for all with correlated noise", given)


def correlation_for(request: Any, momentum: float, rate: float, rounds: int, steps: Vector) -> Correlation | None:
    """Return the matrix for these steps and the rounds in which a record comes back; None for independent noise."""
    if request.correlation is None:
        return None
    one = ClientSettings(rate=rate, rounds=rounds, clip=1.0, noise=1.0, step_size=1.0)
    groups = one.batches_a_pass
    if request.sampling == "poisson":
        wanted = request.correlation
        asked = wanted.separation or wanted.bands or min(_CLASSES, rounds, max(1, groups // 4))
        hint = "Each class holds one part of the records, of which a round expects its share: lower the rate."
        fits = asked <= groups
        require(fits, "algorithm.correlation.bands", f"be at most {groups}, one over the sampling rate", asked, hint)
        groups = asked
    weights = weights_of_last(steps, momentum)
    return designed(request.correlation, rounds=rounds, groups=groups, weights=weights, momentum=momentum)


def rows_for(request: Any, task: Task, momentum: float, rate: float, rounds: int) -> Rows | None:
    """Return the matrix and the pattern as a plan writes them; steps that are not stated fall linearly."""
    given = request.steps if request.steps is not None else task.schedule.step_size
    decay: Decay | None = request.optimizer.decay or ("linear" if given is None else None)
    first = 1.0 if given is None else given
    steps = np.asarray(shaped(first, rounds, decay, request.optimizer.warm_up), dtype=np.float64)
    fits = steps.ndim == 0 or steps.shape == (rounds,)
    require(fits, "algorithm.steps", f"be one number or one per round, {rounds}, with correlated noise", given)
    found = correlation_for(request, momentum, rate, rounds, steps * np.ones(rounds))
    return None if found is None else found.table()


def charges_of(method: DpSgd, target: Target) -> list[Mechanism]:
    """Return what each of the client settings releases in all its rounds."""
    found, settings = method.correlated, method.client_settings
    if found is not None:
        return [charged_together(method, found, settings[0].noise, target)]
    return [p.charged(method.sampling, method.clipping, target.neighbours) for p in settings]


def walk_of(rows: Rows | None, settings: ClientSettings, momentum: float) -> float:
    """Return how far noise of deviation 1 moves the last model if steps fall linearly from 1, momentum's gain apart."""
    rounds = settings.rounds
    if rows is None:
        return float(np.sqrt(rounds / 3))
    steps = 1 - np.arange(rounds) / rounds
    return last_error(correlation_of(rows, rounds), weights_of_last(steps, momentum)) * (1 - momentum)


def noises_of(request: Any) -> dict[str, Any]:
    """Return the request with each kind of noise; the last one has records that draw within classes."""
    sampling = "poisson" if request.sampling == "cyclic" else request.sampling
    asked = request.correlation or CorrelationRequest()
    return {
        INDEPENDENT: replace(request, correlation=None, sampling=sampling),
        CORRELATED: replace(request, correlation=asked, sampling="cyclic"),
        DRAWN: replace(request, correlation=replace(asked, buffers=None), sampling="poisson"),
    }

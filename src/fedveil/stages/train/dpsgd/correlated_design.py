"""The matrix for a DP-SGD study with correlated noise, from its rounds and steps alone."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.privacy.mechanism import Mechanism
from fedveil.privacy.target import Target
from fedveil.stages.train.correlation import (
    CORRELATED,
    DRAWN,
    INDEPENDENT,
    INDEPENDENT_NOISE,
    Correlation,
    Independent,
    design_correlation,
    last_error,
)
from fedveil.stages.train.dpsgd.cost import charged_together
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.stages.train.request import Task
from fedveil.stages.train.settings import CorrelationRequest, Decay, shaped
from fedveil.theory.correlated import Factor, weights_of_last

_CLASSES: Final = 8  # among which records draw, if nothing else is asked for
ANY: Final = Correlation(factor=Factor(column=(1.0,)), participations=1, separation=1, rounds=1)


def check_correlated(request: Any) -> None:
    """Refuse what correlated noise does not go with, before anything is planned."""
    if request.correlation is None:
        return
    for name in ("rate", "rounds", "clip", "noise_multiplier"):
        given = getattr(request, name)
        plain = not isinstance(given, list | tuple)
        require(plain, f"algorithm.{name}", "be one number for all with correlated noise", given)


def correlation_for(request: Any, momentum: float, rate: float, rounds: int, steps: Vector) -> Correlation:
    """Return the matrix for these steps and the rounds in which a record comes back."""
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
    return design_correlation(request.correlation, rounds=rounds, groups=groups, weights=weights, momentum=momentum)


def designed_for(request: Any, task: Task, momentum: float, rate: float, rounds: int) -> Correlation | Independent:
    """Return the matrix and the pattern of a study, if it asks for one; steps that are not stated fall linearly."""
    if request.correlation is None:
        return INDEPENDENT_NOISE
    given = request.steps if request.steps is not None else task.schedule.step_size
    decay: Decay | None = request.optimizer.decay or ("linear" if given is None else None)
    first = 1.0 if given is None else given
    steps = np.asarray(shaped(first, rounds, decay, request.optimizer.warm_up), dtype=np.float64)
    fits = steps.ndim == 0 or steps.shape == (rounds,)
    require(fits, "algorithm.steps", f"be one number or one per round, {rounds}, with correlated noise", given)
    return correlation_for(request, momentum, rate, rounds, steps * np.ones(rounds))


def charges_of(method: DpSgd, target: Target) -> list[Mechanism]:
    """Return what each of the client settings releases in all its rounds."""
    result, settings = method.correlated, method.client_settings
    if result:
        return [charged_together(method, result, settings[0].noise, target)]
    return [p.charged(method.sampling, method.clipping, target.neighbours) for p in settings]


def walk_of(found: Correlation | Independent, settings: ClientSettings, momentum: float) -> float:
    """Return how far noise of deviation 1 moves the last model if steps fall linearly from 1, momentum's gain apart."""
    rounds = settings.rounds
    if not found:
        return float(np.sqrt(rounds / 3))
    steps = 1 - np.arange(rounds) / rounds
    return last_error(found, weights_of_last(steps, momentum)) * (1 - momentum)


def noises_of(request: Any) -> dict[str, Any]:
    """Return the request with each kind of noise; the last one has records that draw within classes."""
    sampling = "poisson" if request.sampling == "cyclic" else request.sampling
    asked = request.correlation or CorrelationRequest()
    return {
        INDEPENDENT: replace(request, correlation=None, sampling=sampling),
        CORRELATED: replace(request, correlation=asked, sampling="cyclic"),
        DRAWN: replace(request, correlation=replace(asked, buffers=None), sampling="poisson"),
    }

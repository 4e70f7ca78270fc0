"""What a study of federated averaging says about correlated noise: who takes part when, who adds it, which matrix."""

from dataclasses import replace
from typing import Any, Literal

from fedveil.core.checks import require
from fedveil.stages.train.correlated_request import CORRELATED, INDEPENDENT, designed
from fedveil.stages.train.correlation import Correlation
from fedveil.stages.train.fedavg.method import Noise
from fedveil.stages.train.request import Task
from fedveil.stages.train.settings import CorrelationRequest


def check_correlated(request: Any) -> None:
    """Refuse orders of clients that correlated noise does not go with, before anything is planned."""
    wanted = request.correlation is not None
    fits = wanted or request.sampling != "cyclic"
    hint = "Groups that take turns go with [algorithm.correlation]."
    require(fits, "algorithm.sampling", "not be cyclic here", request.sampling, hint)
    known = not wanted or request.sampling in (None, "cyclic", "all")
    hint = "The plan must fix who takes part when; nothing is gained from a secret cohort."
    require(known, "algorithm.sampling", "be cyclic or all for correlated noise", request.sampling, hint)


def noise_by(request: Any, task: Task) -> Noise:
    """Return who adds the noise: with [trust], and where a server is not to know it, the clients."""
    if request.correlation is None:
        found: Noise = request.noise
        return found
    return "shared" if task.trust.all_send or task.target.adversary.startswith("server") else "central"


def cyclic_cohort(request: Any, clients: int, batch: int | None) -> tuple[Literal["cyclic", "all"], float]:
    """Return how clients take turns, and how many are asked in a round at most: all if no number is given."""
    count = request.cohort if request.cohort is not None else batch
    if count is None:
        require(request.sampling != "cyclic", "algorithm.cohort", "be given for cyclic cohorts", None)
        return "all", float(clients)
    require(count <= clients, "algorithm.cohort", f"be at most the number of clients, {clients}", count)
    every = request.sampling == "all" or count == clients
    require(not every or count == clients, "algorithm.cohort", f"be all {clients} clients when all take part", count)
    return ("all" if every else "cyclic"), float(count)


def designed_for(request: Any, rounds: int, cohort: float, momentum: float, clients: int) -> Correlation | None:
    """Return pattern and matrix of a study; None if noise is independent."""
    if request.correlation is None:
        return None
    return designed(request.correlation, rounds=rounds, groups=-(-clients // int(cohort)), momentum=momentum)


def noises_of(request: Any) -> dict[str, Any]:
    """Return the request with each kind of noise."""
    sampling = None if request.sampling == "cyclic" else request.sampling
    return {
        INDEPENDENT: replace(request, correlation=None, sampling=sampling),
        CORRELATED: replace(
            request, correlation=request.correlation or CorrelationRequest(), noise="central", sampling=None
        ),
    }

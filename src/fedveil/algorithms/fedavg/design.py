"""Design of federated averaging: everything that is not given has a default that does not look at data.

If updates are clipped below what clients usually send, every round moves the model by about the same length, and only
the length of the whole path matters: the design takes the longest for which the noise on a score is acceptable. Page:
docs/fedavg.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedveil.account.calibrate import calibrate
from fedveil.account.grid import choose_grid
from fedveil.algorithms.base import Method
from fedveil.algorithms.fedavg.method import FedAvg, Noise, Sampling, Weights
from fedveil.algorithms.noise_shares import extra_noise
from fedveil.algorithms.request import Draft, Task
from fedveil.algorithms.yardstick import risk_with_momentum, yardstick_of
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.errors import BadValue, CannotCertify
from fedveil.values import number, whole

_EPSILON_SHARE, _DELTA_SHARE = 1e-6, 1e-3  # reserved for the sampler
_ROUNDS = 80
_MOMENTUM = 0.8
_CLIP_SHARE = 0.05  # of the longest possible update of local training, so that most updates are clipped
_SCORE_NOISE = 1.3  # on the score of the longest row, at the end of the path
_LONGEST = 1500.0  # length of the path in units of 1/bound, if there is hardly any noise


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgRequest:
    """Who takes part (``rate`` or ``cohort``), what clients do, how updates are clipped, weighted and noised."""

    sampling: Sampling | None = None
    rate: float | None = None
    cohort: int | None = None
    local_epochs: int = 1
    local_batch: int = 0
    local_step: float | None = None
    update_norm: float | None = None
    server_step: float | None = None
    momentum: float | None = None
    noise: Noise = "central"
    weights: Weights = "uniform"
    most_records: int | None = None

    kind: ClassVar[str] = "fedavg"

    def __post_init__(self) -> None:
        for name in ("local_epochs", "local_batch", "most_records"):
            _settle(self, name, whole, least=0 if name == "local_batch" else 1)
        for name in ("local_step", "update_norm", "server_step"):
            _settle(self, name, number, least=1e-9)
        both = self.rate is not None and self.cohort is not None
        require(not both, "algorithm.rate", "be left out when cohort is given", self.rate)
        if self.rate is not None:
            object.__setattr__(self, "rate", number("algorithm.rate", self.rate))
            require(1e-9 <= self.rate <= 1, "algorithm.rate", "lie in (0, 1]", self.rate, "Is it a cohort?")
            fits = self.sampling in (None, "poisson")
            require(fits, "algorithm.rate", "be left out unless sampling is poisson", self.rate, "Give cohort.")
        if self.cohort is not None:
            object.__setattr__(self, "cohort", whole("algorithm.cohort", self.cohort))
            require(self.cohort >= 1, "algorithm.cohort", "be at least 1", self.cohort)

    def noised_by_clients(self) -> "FedAvgRequest":
        """Return the same, but what the server would add to the sum is added by the clients in shares."""
        return replace(self, noise="shared") if self.noise == "central" else self

    def design(self, task: Task) -> Draft:
        """Set defaults first, then the noise that meets the target."""
        _check_schedule(task)
        plain = self._noiseless(task)
        plain.check(task.data, task.model, task.target)
        if self.noise == "none":
            return Draft(method=self._stepped(plain, task), reason="no noise was asked for: no guarantee")
        method = self._noised(plain, task)
        reason = f"{method.rounds} rounds of {method.cohort:g} clients, their updates clipped to {method.update_norm:g}"
        stepped = self._stepped(method, task)
        passes = stepped.rounds * stepped.cohort / task.data.clients * stepped.local_epochs
        return Draft(method=stepped, reason=reason, risk=_expected_risk(stepped, task), passes=passes)

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds the sum of all clients' updates exactly."""
        found = _fedavg(method)
        noise = found.noise_std if found.noise_std > 0 else found.update_norm
        share = noise / math.sqrt(found.cohort) if found.noise == "shared" and found.cohort > 1 else noise
        largest = noise * math.sqrt(extra_noise(found.cohorts(task.data, task.target), task.trust))
        return choose_grid(task.data.clients * found.update_norm, min(share, noise), largest)

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> FedAvg:
        """Return the same rounds with the noise for another target."""
        return _calibrated(_fedavg(method), task, epsilon, delta)

    def _noiseless(self, task: Task) -> FedAvg:
        """Return the method without noise and without the server's step."""
        constants, schedule, data = task.model.constants(task.data.bound), task.schedule, task.data
        sampling, cohort = self._cohort(data, schedule.batch if isinstance(schedule.batch, int) else None)
        given = self.local_step if self.local_step is not None else schedule.step_size
        step = float(given) if isinstance(given, int | float) else 1 / (constants.smoothness or 1.0)
        most = data.largest_client if self.most_records is None else self.most_records
        norm = _usual_norm(self, step * constants.lipschitz, data) if self.update_norm is None else self.update_norm
        return FedAvg(
            rounds=schedule.rounds if isinstance(schedule.rounds, int) else _ROUNDS,
            sampling=sampling,
            cohort=cohort,
            local_epochs=self.local_epochs,
            local_batch=self.local_batch,
            local_step=step,
            update_norm=norm,
            momentum=self.momentum if self.momentum is not None else _MOMENTUM,
            noise=self.noise,
            noise_multiplier=0.0 if self.noise == "none" else 1.0,
            weights=self.weights,
            most_records=most if self.weights == "records" else 0 if self.most_records is None else most,
        )

    def _cohort(self, data: DataShape, batch: int | None) -> tuple[Sampling, float]:
        """Return the sampling and the expected cohort: all clients unless a rate or a number is given."""
        if self.rate is not None:
            return "poisson", self.rate * data.clients
        count = self.cohort if self.cohort is not None else batch
        if count is None:
            hint = "Say how many are expected in a round: rate, or cohort."
            require(self.sampling in (None, "all"), "algorithm.sampling", "come with a cohort", self.sampling, hint)
            return "all", float(data.clients)
        few = count <= data.clients
        require(few, "algorithm.cohort", f"be at most the number of clients, {data.clients}", count)
        usual: Sampling = "fixed-size" if self.noise == "shared" else "poisson"
        return self.sampling or ("all" if count == data.clients else usual), float(count)

    def _noised(self, plain: FedAvg, task: Task) -> FedAvg:
        given, target = task.schedule.noise_std, task.target
        if given is not None:
            require(isinstance(given, int | float), "schedule.noise_std", "be one number for fedavg", given)
            share = float(given) if isinstance(given, int | float) else 0.0
            shares = task.trust.honest(int(plain.cohort)) if task.trust.shared else plain.cohort
            require(shares > 0, "trust", f"leave an honest client of {plain.cohort:g} in a round", task.trust)
            return replace(plain, noise_multiplier=share * math.sqrt(shares) / plain.update_norm)
        return _calibrated(plain, task, target.epsilon * (1 - _EPSILON_SHARE), target.delta * (1 - _DELTA_SHARE))

    def _stepped(self, method: FedAvg, task: Task) -> FedAvg:
        """Set the server's step: as given, or such that the whole path has its usual length."""
        if self.server_step is not None:
            return replace(method, server_step=self.server_step)
        # Noise on a score at the end over the path: z/divisor of a round's length, and rounds add in quadrature.
        noise = method.noise_multiplier / method.divisor(task.data) / math.sqrt(method.rounds)
        longest = _LONGEST if noise == 0 else min(_LONGEST, _SCORE_NOISE / noise)
        way = longest / task.data.bound
        return replace(method, server_step=way * (1 - method.momentum) / (method.rounds * method.update_norm))


def _expected_risk(method: FedAvg, task: Task) -> float | None:
    """What the yardstick expects if clients have as many records each, drawn alike; None if it has no say."""
    data = task.data
    if task.model.constants(data.bound).smoothness is None:
        return None
    model, each = yardstick_of(task), max(1, data.records // data.clients)
    turns = method.local_epochs * (-(-each // method.local_batch) if method.local_batch else 1)
    whole = model.curvature + model.ridge
    gain = (1 - (1 - np.minimum(method.local_step * whole, 1.0)) ** turns) / whole
    own = model.spread * float(np.sum(model.count * model.curvature * gain**2)) / each
    return risk_with_momentum(
        model,
        np.full(method.rounds, method.server_step),
        momentum=method.momentum,
        noise=(method.noise_std / method.divisor(data)) ** 2,
        gain=gain,
        longest=method.update_norm,
        private=own,
    )


def _settle(request: FedAvgRequest, name: str, kind: Callable[[str, Any], float], least: float) -> None:
    """Convert what the user wrote, if anything, to a plain number."""
    given = getattr(request, name)
    if given is not None:
        object.__setattr__(request, name, kind(f"algorithm.{name}", given))
        require(getattr(request, name) >= least, f"algorithm.{name}", f"be at least {least:g}", given)


def _usual_norm(request: FedAvgRequest, step: float, data: DataShape) -> float:
    """Return a share of the longest possible update of local training."""
    batches = -(-data.largest_client // request.local_batch) if request.local_batch else 1
    return _CLIP_SHARE * request.local_epochs * batches * step


def _calibrated(method: FedAvg, task: Task, epsilon: float, delta: float) -> FedAvg:
    """Calibrate the noise; the multiplier is proportional to that of every observer, so one factor is enough."""
    target = task.target
    plain = replace(method, noise_multiplier=1.0)
    if task.trust.shared:
        task.trust.check(int(method.cohort))
    seen = plain.mechanism(target.adversary, task.data, target.neighbours, task.trust)
    if seen is None:
        raise CannotCertify(
            'a server that adds the noise itself knows it; let clients share it (algorithm.noise = "shared")'
        )
    factor, _ = calibrate(seen, epsilon=epsilon, delta=delta)
    return replace(method, noise_multiplier=factor)


def _check_schedule(task: Task) -> None:
    """Refuse schedule entries other than rounds, batch (the cohort), step_size (of clients), noise_std (a share)."""
    schedule = task.schedule
    counted = schedule.rounds is None or isinstance(schedule.rounds, int)
    require(counted, "schedule.rounds", "be a whole number for fedavg", schedule.rounds)
    require(schedule.passes is None, "schedule.passes", "be left out for fedavg", schedule.passes, "Give rounds.")
    plain = schedule.kind in ("auto", "constant")
    require(plain, "schedule.kind", "be auto or constant for fedavg", schedule.kind)
    for name in ("batch", "step_size"):
        given = getattr(schedule, name)
        require(not isinstance(given, tuple), f"schedule.{name}", "be one number for fedavg", given)


def _fedavg(method: Method) -> FedAvg:
    if not isinstance(method, FedAvg):
        raise BadValue(f"A plan for fedavg was expected, and it is for {method.kind}.")
    return method


REQUEST = FedAvgRequest
WEIGHED_FOR = ("client",)  # the units for which kind = "auto" weighs it

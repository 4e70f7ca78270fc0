"""Design of federated averaging: everything that is not given has a default that does not look at data.

If updates are clipped below what clients usually send, every round moves the model by about the same length, and only
the length of the whole path matters: the design takes the longest for which the noise on a score is acceptable. Page:
docs/fedavg.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal

import numpy as np

from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.grid import choose_grid
from fedveil.core.errors import CannotCertify, require
from fedveil.core.fields import Exclusion, check_exclusions, check_fields, count, group, real, ruled, word
from fedveil.data.records import DataShape
from fedveil.models.loss import ScoredLoss
from fedveil.stages.noise_shares import check_cohorts, extra_noise
from fedveil.stages.train.adaptive_clip import design_clip
from fedveil.stages.train.base import Method, expected
from fedveil.stages.train.correlation import (
    CORRELATED,
    INDEPENDENT,
    INDEPENDENT_NOISE,
    Correlation,
    Independent,
    design_correlation,
    last_error,
)
from fedveil.stages.train.fedavg.method import (
    LARGEST_PULL,
    FedAvg,
    LocalSteps,
    Noise,
    Sampling,
    Weights,
    segments_of,
    with_noise,
)
from fedveil.stages.train.request import Draft, Task, beside, check_beside
from fedveil.stages.train.settings import (
    AdaptiveClipRequest,
    CorrelationRequest,
    ServerOptimizerRequest,
    adaptive_clip,
    read_segments,
)
from fedveil.stages.train.yardstick import risk_with_momentum, yardstick_of

# What a study of federated averaging says about correlated noise: who takes part when, who adds it, which matrix.


def check_correlated(request: "FedAvgRequest") -> None:
    """Refuse orders of clients that correlated noise does not go with, before anything is planned."""
    wanted = request.correlation is not None
    fits = wanted or request.sampling != "cyclic"
    hint = "Groups that take turns go with [algorithm.correlation]."
    require(fits, "algorithm.sampling", "not be cyclic here", request.sampling, hint)
    known = not wanted or request.sampling in (None, "cyclic", "all")
    hint = "The plan must fix who takes part when; nothing is gained from a secret cohort."
    require(known, "algorithm.sampling", "be cyclic or all for correlated noise", request.sampling, hint)


def noise_by(request: "FedAvgRequest", task: Task) -> Noise:
    """Return who adds the noise: with [trust], and where a server is not to know it, the clients."""
    if not request.correlation:
        return request.noise
    return "shared" if task.trust.all_send or task.target.adversary.startswith("server") else "central"


def cyclic_cohort(request: "FedAvgRequest", clients: int, batch: int | None) -> tuple[Literal["cyclic", "all"], float]:
    """Return how clients take turns, and how many are asked in a round at most: all if no number is given."""
    count = request.cohort if request.cohort is not None else batch
    if count is None:
        require(request.sampling != "cyclic", "algorithm.cohort", "be given for cyclic cohorts", None)
        return "all", float(clients)
    require(count <= clients, "algorithm.cohort", f"be at most the number of clients, {clients}", count)
    every = request.sampling == "all" or count == clients
    require(not every or count == clients, "algorithm.cohort", f"be all {clients} clients when all take part", count)
    return ("all" if every else "cyclic"), float(count)


def designed_for(
    request: "FedAvgRequest", rounds: int, cohort: float, momentum: float, clients: int
) -> Correlation | Independent:
    """Return pattern and matrix of a study; empty if noise is independent."""
    if request.correlation is None:
        return INDEPENDENT_NOISE
    return design_correlation(request.correlation, rounds=rounds, groups=-(-clients // int(cohort)), momentum=momentum)


def noises_of(request: "FedAvgRequest") -> dict[str, "FedAvgRequest"]:
    """Return the request with each kind of noise."""
    sampling = None if request.sampling == "cyclic" else request.sampling
    return {
        INDEPENDENT: replace(request, correlation=None, sampling=sampling),
        CORRELATED: replace(
            request, correlation=request.correlation or CorrelationRequest(), noise="central", sampling=None
        ),
    }


_MOMENTUM = 0.8  # of the server, where neither momentum nor another optimizer is stated
_EPSILON_SHARE, _DELTA_SHARE = 1e-6, 1e-3  # reserved for the sampler
_ROUNDS = 80
_CLIP_SHARE = 0.05  # of the longest possible update of local training, so that most updates are clipped
_WIDE = 4  # features for each record of a client, from which products of records save work (benchmarks/clients.py)
_SCORE_NOISE = 1.3  # on the score of the longest row, at the end of the path
_LONGEST = 1500.0  # length of the path in units of 1/bound, if there is hardly any noise


def _adaptive(name: str, given: Any) -> AdaptiveClipRequest:
    """Return the request for an adaptive bound on updates; a fixed one has another name."""
    result = adaptive_clip(name, given)
    require(result is not None, name, "be adaptive for fedavg", given, "A fixed bound on updates is update_norm.")
    return result or AdaptiveClipRequest()


EXCLUSIONS: Final = (
    Exclusion("update_norm", "clip", "start in [algorithm.clip] says where an adaptive bound begins."),
    Exclusion("clip", "segments", "A segment states its own bound on updates."),
    Exclusion("rate", "cohort", "Both say how many clients a round expects."),
    Exclusion("rate", "correlation", "The plan must fix who takes part when: give cohort."),
    Exclusion("clip", "correlation", "The matrix is for equal bounds."),
    Exclusion("segments", "correlation", "The matrix is for rounds that are alike."),
    Exclusion("noise", "correlation", "Who adds correlated noise follows from [trust] and the observer."),
    Exclusion(
        "rate",
        "sampling other than poisson",
        "Give cohort.",
        lambda request: request.sampling not in (None, "poisson"),
    ),
    Exclusion(
        "most_records",
        "uniform weights",
        'Only weights by records count them: say weights = "records".',
        lambda request: request.weights == "uniform",
    ),
)


BESIDE: Final = (
    beside("schedule.passes", "fedavg", "Give rounds."),
    *(
        beside(f"schedule.{name}", "segments", "A segment states it.", attrgetter("request.segments"))
        for name in ("rounds", "noise_std")
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRequest:
    """[algorithm.local]: what a client does with its own records in a round.

    ``batch`` 0: all records at once. ``proximal``: the pull of FedProx towards the global model.
    """

    epochs: int = count(1, default=1)
    batch: int = count(0, default=0)
    step: float | None = real(1e-9, math.inf, rule="be at least 1e-09")
    proximal: float | None = real(
        0,
        LARGEST_PULL,
        open_low=True,
        rule="lie in (0, 1e9]",
        hint="It is the weight of the squared distance from the global model; leave it out for none.",
    )

    def __post_init__(self) -> None:
        check_fields(self, "algorithm.local")


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgRequest:
    """Who takes part (``rate`` or ``cohort``), what clients do, how updates are clipped, weighted and noised.

    Updates are clipped to ``update_norm``, or with an adaptive ``clip`` to a bound that follows their norms.
    ``segments`` state rounds, rate, clip (the bound), noise (the multiplier) and step (the server's) of each segment.
    ``correlation``: noise is correlated over rounds. ``optimizer``: the server's.
    """

    sampling: Sampling | None = word(Sampling)
    rate: float | None = real(1e-9, 1, rule="lie in (0, 1]", hint="Is it a cohort?")
    cohort: int | None = count(1)
    local: LocalRequest = group(LocalRequest, default=LocalRequest())
    update_norm: float | None = real(1e-9, math.inf, rule="be at least 1e-09")
    server_step: float | None = real(1e-9, math.inf, rule="be at least 1e-09")
    noise: Noise = word(Noise, default="central")
    weights: Weights = word(Weights, default="uniform")
    most_records: int | None = count(1)
    clip: AdaptiveClipRequest | None = ruled(_adaptive)
    segments: Any = None
    optimizer: ServerOptimizerRequest = group(ServerOptimizerRequest, short="kind", default=ServerOptimizerRequest())
    correlation: CorrelationRequest | None = group(CorrelationRequest)

    kind: ClassVar[str] = "fedavg"

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")
        check_exclusions(self, "algorithm", EXCLUSIONS)
        if read_segments(self.segments) is not None:
            require(self.noise != "none", "algorithm.noise", "not be none with segments", self.noise)
        check_correlated(self)

    @property
    def noises(self) -> "Mapping[str, FedAvgRequest]":
        """The same with independent noise, and with noise that is correlated over rounds."""
        return noises_of(self)

    def noised_by_clients(self) -> "FedAvgRequest":
        """Return the same, but what the server would add to the sum is added by the clients in shares.

        Who adds correlated noise follows from the observer anyway.
        """
        return replace(self, noise="shared") if self.noise == "central" and self.correlation is None else self

    def design(self, task: Task) -> Draft:
        """Set defaults first, then the noise that meets the target."""
        check_beside(self, task, BESIDE)
        _check_schedule(task)
        plain = self._noiseless(task)
        wanted = read_segments(self.segments)
        if wanted is not None:
            return self._segmented(replace(plain, server_step=self.server_step or 1.0), wanted, task)
        plain.check(task.setup)
        if self.noise == "none":
            return Draft(
                method=self._stepped(self._adapting(plain, task), task), reason="no noise was asked for: no guarantee"
            )
        method = self._adapting(self._noised(plain, task), task)
        reason = f"{method.rounds} rounds of {method.cohort:g} clients, their updates clipped to {method.update_norm:g}"
        stepped = self._stepped(method, task)
        passes = stepped.rounds * stepped.cohort / task.data.clients * stepped.local.epochs
        return Draft(method=stepped, reason=reason, risk=_expected_risk(stepped, task), passes=passes)

    def _adapting(self, method: FedAvg, task: Task) -> FedAvg:
        """Return the method with a rule for its bound, if that is to be adaptive."""
        if self.clip is None:
            return method
        rule = design_clip(self.clip, method.noise_multiplier, method.divisor(task.data), usual_rate=1.0)
        return replace(method, adaptive=rule)

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds the sum of all clients' updates exactly."""
        result = expected(FedAvg, method)
        if result.segments:
            return self._joint_grid(result, task)
        noise = result.noise_std if result.noise_std > 0 else result.scale
        senders = result.senders(task.data.clients)
        share = noise / math.sqrt(senders) if result.noise == "shared" and senders > 1 else noise
        largest = noise * math.sqrt(extra_noise(result.cohorts(task.setup), task.trust)) * result.correlated.growth
        return choose_grid(task.data.clients * result.scale, min(share, noise), largest)

    def _joint_grid(self, method: FedAvg, task: Task) -> int:
        """Return one exponent for all segments, by the largest sum and the least and largest noise of any."""
        parts = segments_of(method).parts
        shares = [p.noise_std / math.sqrt(p.cohort) if p.noise == "shared" else p.noise_std for p in parts]
        extra = math.sqrt(extra_noise(method.cohorts(task.setup), task.trust))
        least = min(min(shares), min(p.noise_std for p in parts))
        return choose_grid(
            task.data.clients * max(p.scale for p in parts), least, extra * max(p.noise_std for p in parts)
        )

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> FedAvg:
        """Return the same rounds with the noise for another target."""
        wanted = read_segments(self.segments)
        if wanted is not None and "noise" in wanted[0]:
            return expected(FedAvg, method)
        return _calibrated(expected(FedAvg, method), task, epsilon, delta)

    def _segmented(self, plain: FedAvg, wanted: Sequence[Mapping[str, float]], task: Task) -> Draft:
        """Return a method in segments; noise that is not stated is calibrated, alike for all."""
        clients, target = task.data.clients, task.target
        rows: list[tuple[float, ...]] = []
        for part in wanted:
            cohort = part["rate"] * clients if "rate" in part else plain.cohort
            cohort = cohort if plain.sampling in ("poisson", "independent") else float(max(1, round(cohort)))
            fits = "rate" not in part or plain.sampling != "all" or cohort == clients
            hint = "Say how clients are drawn: sampling = poisson or fixed-size, and a cohort."
            require(fits, "algorithm.segments.rate", "be left out when all take part", part.get("rate"), hint)
            rows.append((int(part["rounds"]), cohort, part.get("clip", plain.update_norm), part.get("noise", 1.0), 1.0))
        total = sum(int(row[0]) for row in rows)
        method = replace(plain, rounds=total, segments=tuple(rows))
        method.check(task.setup)
        if "noise" not in wanted[0]:
            method = _calibrated(method, task, target.epsilon * (1 - _EPSILON_SHARE), target.delta * (1 - _DELTA_SHARE))
        steps = [
            part["step"] if "step" in part else self._stepped(replace(one, rounds=total), task).server_step
            for part, one in zip(wanted, segments_of(method).parts, strict=True)
        ]
        rows = [(*row[:4], step) for row, step in zip(method.segments, steps, strict=True)]
        said = f"{total} rounds in {len(rows)} segments, each with its own numbers"
        return Draft(method=replace(method, segments=tuple(rows)), reason=said)

    def _noiseless(self, task: Task) -> FedAvg:
        """Return the method without noise and without the server's step."""
        constants, schedule, data = task.model.constants(task.data.bound), task.schedule, task.data
        sampling, cohort = self._cohort(data, schedule.batch if isinstance(schedule.batch, int) else None)
        picks = max(1, round(data.clients / cohort)) if sampling == "independent" else 0
        rounds = max(1, round(_ROUNDS / picks)) * picks if picks else _ROUNDS
        given = self.local.step if self.local.step is not None else schedule.step_size
        pull = self.local.proximal or 0.0
        step = float(given) if isinstance(given, int | float) else 1 / ((constants.smoothness or 1.0) + pull)
        most = data.largest_client if self.most_records is None else self.most_records
        start = self.update_norm if self.clip is None else self.clip.start
        norm = _usual_norm(self, step * constants.lipschitz, data) if start is None else float(start)
        rounds = schedule.rounds if isinstance(schedule.rounds, int) else rounds
        server = self.optimizer.optimiser(_MOMENTUM)
        local = LocalSteps(
            epochs=self.local.epochs,
            batch=self.local.batch,
            step=step,
            proximal=pull,
            mean_gradient=not task.model.linear,
            by_products=self._by_products(task),
        )
        return FedAvg(
            rounds=rounds,
            sampling=sampling,
            cohort=data.clients / picks if picks else cohort,
            picks=picks,
            local=local,
            update_norm=norm,
            optimiser=server,
            correlated=designed_for(self, rounds, cohort, server.momentum, data.clients),
            noise=noise_by(self, task),
            noise_multiplier=0.0 if self.noise == "none" else 1.0,
            most_records=most if self.weights == "records" else 0,
        )

    def _by_products(self, task: Task) -> bool:
        """Return whether scores of later local steps come from products of records: where that is less work."""
        steps = isinstance(task.model.loss, ScoredLoss) and self.local.batch == 0 and self.local.epochs > 1
        return steps and _WIDE * task.data.largest_client <= task.data.features

    def _cohort(self, data: DataShape, batch: int | None) -> tuple[Sampling, float]:
        """Return the sampling and the expected cohort: all clients unless a rate or a number is given."""
        if self.correlation is not None:
            return cyclic_cohort(self, data.clients, batch)
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
            every = task.trust.senders(task.data.clients) if plain.streams else plain.cohort
            senders = task.data.clients if plain.own_draws else every
            shares = task.trust.honest(senders)
            require(shares > 0, "trust", f"leave an honest client of {senders:g} in a round", task.trust)
            return replace(plain, noise_multiplier=share * math.sqrt(shares) / plain.update_norm)
        return _calibrated(plain, task, target.epsilon * (1 - _EPSILON_SHARE), target.delta * (1 - _DELTA_SHARE))

    def _stepped(self, method: FedAvg, task: Task) -> FedAvg:
        """Set the server's step: as given, or such that the whole path has its usual length."""
        if self.server_step is not None:
            return replace(method, server_step=self.server_step)
        hint = "Adam's steps have the length that is stated, whatever the updates are; 0.001 to 0.1 is usual."
        require(self.optimizer.kind != "adam", "algorithm.server_step", "be given for adam", None, hint)
        # Noise on a score at the end over the path: z/divisor of a round's length, and rounds add in quadrature.
        noise = method.noise_multiplier / method.divisor(task.data) / math.sqrt(method.rounds)
        if method.correlated:
            noise *= last_error(method.correlated, np.ones(method.rounds)) / math.sqrt(method.rounds)
        longest = _LONGEST if noise == 0 else min(_LONGEST, _SCORE_NOISE / noise)
        way = longest / task.data.bound
        return replace(method, server_step=way * (1 - method.optimiser.momentum) / (method.rounds * method.update_norm))


def _expected_risk(method: FedAvg, task: Task) -> float | None:
    """What the yardstick expects if clients have as many records each, drawn alike; None if it has no say."""
    data = task.data
    if task.model.constants(data.bound).smoothness is None or method.adaptive or method.segments:
        return None
    if method.optimiser.kind == "adam" or method.local.proximal or method.correlated:
        return None
    model, each = yardstick_of(task), max(1, data.records // data.clients)
    turns = method.local.epochs * (-(-each // method.local.batch) if method.local.batch else 1)
    whole = model.curvature + model.ridge
    gain = (1 - (1 - np.minimum(method.local.step * whole, 1.0)) ** turns) / whole
    own = model.spread * float(np.sum(model.count * model.curvature * gain**2)) / each
    return risk_with_momentum(
        model,
        np.full(method.rounds, method.server_step),
        momentum=method.optimiser.momentum,
        noise=(method.noise_std / method.divisor(data)) ** 2,
        gain=gain,
        longest=method.update_norm,
        private=own,
    )


def _usual_norm(request: "FedAvgRequest", step: float, data: DataShape) -> float:
    """Return a share of the longest possible update of local training."""
    batches = -(-data.largest_client // request.local.batch) if request.local.batch else 1
    return _CLIP_SHARE * request.local.epochs * batches * step


def _calibrated(method: FedAvg, task: Task, epsilon: float, delta: float) -> FedAvg:
    """Calibrate the noise; the multiplier is proportional to that of every observer, so one factor is enough."""
    plain = replace(method, noise_multiplier=1.0, segments=with_noise(method, 1.0))
    check_cohorts(method.cohorts(task.setup), task.trust)
    seen = plain.mechanism(task.target.adversary, task.setup)
    if seen is None:
        raise CannotCertify(
            'a server that adds the noise itself knows it; let clients share it (algorithm.noise = "shared")'
        )
    factor, _ = calibrate(seen, epsilon=epsilon, delta=delta)
    return replace(method, noise_multiplier=factor, segments=with_noise(method, factor))


def _check_schedule(task: Task) -> None:
    """Refuse schedule entries other than rounds, batch (the cohort), step_size (of clients), noise_std (a share)."""
    schedule = task.schedule
    counted = schedule.rounds is None or isinstance(schedule.rounds, int)
    require(counted, "schedule.rounds", "be a whole number for fedavg", schedule.rounds)
    plain = schedule.kind in ("auto", "constant")
    require(plain, "schedule.kind", "be auto or constant for fedavg", schedule.kind)
    for name in ("batch", "step_size"):
        given = getattr(schedule, name)
        require(not isinstance(given, tuple), f"schedule.{name}", "be one number for fedavg", given)


REQUEST = FedAvgRequest
WEIGHED_FOR = ("client",)  # the units for which kind = "auto" weighs it
REFUSED = {
    "choose": "It is proved and built for dpsgd; state segments that are all run."
}  # settings of other algorithms, and why this one has none of them

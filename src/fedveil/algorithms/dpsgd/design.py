"""DP-SGD, designed by a rule that looks at no data; the noise of every client is calibrated for its own rounds."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from fedveil.account.calibrate import calibrate
from fedveil.account.grid import choose_grid
from fedveil.algorithms.base import Method
from fedveil.algorithms.dpsgd.client_settings import ClientSettings, Clipping, Sampling
from fedveil.algorithms.dpsgd.method import MOST_MESSAGES, Compression, DpSgd, check_picks
from fedveil.algorithms.dpsgd.network import Network
from fedveil.algorithms.request import Draft, Task
from fedveil.algorithms.yardstick import risk_with_momentum, yardstick_of
from fedveil.checks import require
from fedveil.mechanism import Mechanism, Numbers
from fedveil.values import number, whole

_EPSILON_SHARE, _DELTA_SHARE = 1e-4, 1e-3  # kept back for what the grid costs
_RATE, _LEAST_BATCH, _PASSES = 0.05, 10, 20
_STEP = 3.0  # over the smoothness: below 2 (1 + momentum), where a step with momentum still contracts
_WALK = 1.0  # most that the noise of all rounds may move a score, in standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgdRequest:
    """What clients do. ``rate``, ``rounds``, ``clip``, ``noise_multiplier``, ``steps``: one for all, or one for each.

    ``rounds`` are those of all passes. ``steps``: a step size, or a list of one per round, for each client. With
    independent sampling there is no ``rate``: [schedule] says among how many rounds of a pass a record picks. The rest
    is as in :class:`DpSgd` and :class:`Network`.
    """

    sampling: Sampling = "poisson"
    clipping: Clipping = "individual"
    rate: Numbers | None = None
    rounds: int | tuple[int, ...] | None = None
    clip: Numbers | None = None
    noise_multiplier: Numbers | None = None
    steps: Any = None
    momentum: float = 0.9
    compression: Compression = "none"
    keep: float = 1.0
    levels: int = 127
    weights: tuple[float, ...] = ()
    speeds: tuple[float, ...] = ()
    jitter: float = 0.0
    delay: float = 0.0
    loss: float = 0.0
    window: float = 1.0
    max_lag: int = 10
    network_seed: int = 0

    kind: ClassVar[str] = "dpsgd"

    def __post_init__(self) -> None:
        self._with((ClientSettings(rate=1.0, rounds=1, clip=1.0, noise=1.0, step_size=1.0),))  # refuses what never fits
        for name in ("rate", "clip", "noise_multiplier"):
            for value in _listed(getattr(self, name)):
                fine = value is None or 0 < number(f"algorithm.{name}", value) < math.inf
                require(fine, f"algorithm.{name}", "be positive and finite", value)
        hint = "Every record picks one round of each pass: [schedule] rounds says how many rounds a pass has."
        drawn = self.sampling != "independent" or self.rate is None
        require(drawn, "algorithm.rate", 'be left out with sampling = "independent"', self.rate, hint)

    def _with(self, client_settings: tuple[ClientSettings, ...]) -> DpSgd:
        network = Network(
            speeds=self.speeds,
            jitter=self.jitter,
            delay=self.delay,
            loss=self.loss,
            window=self.window,
            max_lag=self.max_lag,
            network_seed=self.network_seed,
        )
        return DpSgd(
            client_settings=client_settings,
            sampling=self.sampling,
            clipping=self.clipping,
            momentum=self.momentum,
            compression=self.compression,
            keep=self.keep,
            levels=self.levels,
            weights=self.weights,
            network=network,
        )

    def design(self, task: Task) -> Draft:
        """Set rate, rounds and steps by rule if they are not given, and the least noise that meets the target."""
        hint = 'Use kind = "fedavg" to protect whole clients.'
        require(task.target.unit == "record", "privacy.unit", "be record for dpsgd", task.target.unit, hint)
        target = task.target
        aims = target.epsilon * (1 - _EPSILON_SHARE), target.delta * (1 - _DELTA_SHARE)
        client_settings = tuple(self._settings(task, client, *aims) for client in range(self._kinds(task)))
        method = self._with(client_settings)
        method.check(task.data, task.model, target)
        said = f"{self.sampling} batches, {method.total} rounds; noise calibrated for the worst client"
        return Draft(method=method, reason=said, risk=_expected_risk(method, task), passes=_passes(method))

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds every noised sum exactly."""
        found = _dpsgd(method)
        noise = [settings.noise * settings.clip for settings in found.client_settings]
        rows = (found.most_rows(settings, task.data.largest_client) for settings in found.client_settings)
        each = rows if found.clipping == "individual" else (1 for _ in found.client_settings)
        most = max(settings.clip * count for settings, count in zip(found.client_settings, each, strict=True))
        return choose_grid(most, min(noise), max(noise))

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> DpSgd:
        """Return the same rounds; noise that was not given is calibrated for the other target."""
        found = _dpsgd(method)
        if self.noise_multiplier is not None:
            return found
        rows = (p.charged(found.sampling, found.clipping, task.target.neighbours) for p in found.client_settings)
        factors = [_factor(row, epsilon, delta) for row in rows]
        client_settings = (replace(p, noise=p.noise * f) for p, f in zip(found.client_settings, factors, strict=True))
        return replace(found, client_settings=tuple(client_settings))

    def _kinds(self, task: Task) -> int:
        """Return the number of different settings: one for all clients, or one for each if a list was given."""
        counts = {}
        for name in ("rate", "rounds", "clip", "noise_multiplier", "steps"):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                counts[name] = len(value)
                rule = f"have one entry for each of {task.data.clients} clients"
                require(len(value) == task.data.clients, f"algorithm.{name}", rule, len(value))
        return task.data.clients if counts else 1

    def _settings(self, task: Task, client: int, epsilon: float, delta: float) -> ClientSettings:
        clip = _of(self.clip, client)
        clip = task.model.constants(task.data.bound).lipschitz if clip is None else clip
        rate, rounds = self._rounds(task, client)
        noise, charged = _of(self.noise_multiplier, client), task.schedule.noise_std
        if noise is None and charged is not None:
            require(isinstance(charged, int | float), "schedule.noise_std", "be one number for dpsgd", charged)
            noise = number("schedule.noise_std", charged) / clip
        one = ClientSettings(rate=rate, rounds=rounds, clip=clip, noise=1.0 if noise is None else noise, step_size=1.0)
        if noise is None:
            mechanism = one.charged(self.sampling, self.clipping, task.target.neighbours)
            one = replace(one, noise=_factor(mechanism, epsilon, delta))
        return replace(one, step_size=self._steps(task, client, one))

    def _rounds(self, task: Task, client: int) -> tuple[float, int]:
        """Return the sampling rate and the rounds of all passes."""
        schedule, rate, rounds = task.schedule, _of(self.rate, client), _of(self.rounds, client)
        require(not isinstance(schedule.batch, tuple), "schedule.batch", "be one number for dpsgd", schedule.batch)
        require(not isinstance(schedule.rounds, str), "schedule.rounds", "be a number for dpsgd", schedule.rounds)
        if self.sampling == "independent":
            rate = 1 / _picked_among(task)
        if rate is None and isinstance(schedule.batch, int):
            _check_batch(schedule.batch, task.data.records)
            rate = _share(schedule.batch, task.data.records)
        if rate is None and isinstance(schedule.rounds, int):
            rate = _share(1, schedule.rounds)
        if rate is None:
            rate = min(1.0, max(_RATE, _share(min(_LEAST_BATCH, task.data.smallest_client), task.data.smallest_client)))
        if rounds is None:
            a_pass = schedule.rounds if isinstance(schedule.rounds, int) else max(1, round(1 / rate))
            rounds = a_pass * (schedule.passes or _PASSES)
        count = whole("algorithm.rounds", rounds)
        hint = "Give fewer passes, or a larger rate."
        require(count <= MOST_MESSAGES, "The rounds of all passes", f"be at most {MOST_MESSAGES}", count, hint)
        return float(rate), count

    def _steps(self, task: Task, client: int, settings: ClientSettings) -> Numbers:
        """Return the given steps, or steps that fall linearly from a multiple of 1 / smoothness, less if noise
        dominates.
        """
        given = _of(self.steps, client)
        given = task.schedule.step_size if given is None else given
        if given is not None:
            return given if isinstance(given, tuple) else tuple(given) if isinstance(given, list) else float(given)
        data, rounds = task.data, settings.rounds
        smooth = task.model.constants(data.bound).known_smoothness
        first = _STEP / smooth * (1 if self.momentum > 0.5 else 0.5)
        deviation = settings.noise * settings.clip * math.sqrt(data.clients)
        if self.clipping == "individual":
            deviation /= settings.rate * data.records
        walk = data.bound * first / (1 - self.momentum) * deviation * math.sqrt(rounds / 3)
        first *= min(1.0, _WALK / walk)
        return tuple((first * (1 - np.arange(rounds) / rounds)).tolist())


def _expected_risk(method: DpSgd, task: Task) -> float | None:
    """What the yardstick expects if all clients are like the first and answer at once; None if it has no say."""
    one, data = method.client_settings[0], task.data
    plain = len(method.client_settings) == 1 and method.clipping == "individual" and method.compression == "none"
    if task.model.constants(data.bound).smoothness is None or not plain:
        return None
    model, batch = yardstick_of(task), one.rate * data.records
    steps = np.broadcast_to(np.asarray(one.step_size, dtype=np.float64), (one.rounds,))
    return risk_with_momentum(
        model,
        steps,
        momentum=method.momentum,
        noise=(one.noise * one.clip) ** 2 * data.clients / batch**2,
        dealing=model.spread * (1 - one.rate) / batch,
    )


def _passes(method: DpSgd) -> float:
    return max(settings.rate * settings.rounds for settings in method.client_settings)


def _picked_among(task: Task) -> int:
    """Among how many rounds of a pass every record picks one: as the schedule says, else by the usual rule."""
    schedule, data = task.schedule, task.data
    if isinstance(schedule.rounds, int):
        fits = not isinstance(schedule.batch, int) or data.records // schedule.batch == schedule.rounds
        rule = f"be left out beside schedule.rounds = {schedule.rounds} when records pick their rounds"
        hint = "The planned batch is the records over the rounds of a pass."
        require(fits, "schedule.batch", rule, schedule.batch, hint)
        found = schedule.rounds
    elif isinstance(schedule.batch, int):
        _check_batch(schedule.batch, data.records)
        found = data.records // schedule.batch
    else:
        found = max(1, min(round(1 / _RATE), data.smallest_client // _LEAST_BATCH))
    check_picks(found, data)
    return found


def _check_batch(batch: int, records: int) -> None:
    require(batch <= records, "schedule.batch", f"be at most the {records} records", batch)


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _of(value: Any, client: int) -> Any:
    return value[client] if isinstance(value, list | tuple) else value


def _share(part: int, of: int) -> float:
    """Return the smallest float that is not below part / of, so that a batch of that share holds all of its records."""
    rate = part / of
    return rate if Fraction(rate) * of >= part else math.nextafter(rate, 2.0)


@lru_cache(maxsize=256)
def _factor(mechanism: Mechanism, epsilon: float, delta: float) -> float:
    return calibrate(mechanism, epsilon=epsilon, delta=delta)[0]


def _dpsgd(method: Method) -> DpSgd:
    if not isinstance(method, DpSgd):
        raise TypeError("a dpsgd method was expected")
    return method


REQUEST = DpSgdRequest
WEIGHED_FOR = ("record",)  # the units for which kind = "auto" weighs it

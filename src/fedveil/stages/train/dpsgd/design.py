"""DP-SGD, designed by a rule that looks at no data; the noise of every client is calibrated for its own rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Final

import numpy as np

from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.grid import choose_grid
from fedveil.core.errors import require
from fedveil.core.fields import Exclusion, check_exclusions, check_fields, group, ruled, word
from fedveil.core.values import number, whole
from fedveil.privacy.mechanism import Mechanism, Numbers
from fedveil.stages.train.adaptive_clip import design_clip
from fedveil.stages.train.base import Method, Setup, expected
from fedveil.stages.train.correlation import INDEPENDENT_NOISE, Correlation, Independent
from fedveil.stages.train.dpsgd.correlated_design import (
    ANY,
    charges_of,
    check_correlated,
    designed_for,
    noises_of,
    walk_of,
)
from fedveil.stages.train.dpsgd.cost import affordable, charged, fitting_budget, joint_cost
from fedveil.stages.train.dpsgd.method import MOST_MESSAGES, DpSgd
from fedveil.stages.train.dpsgd.mixing import mean_divisor, mixture, noise_left, round_noise, spread_of
from fedveil.stages.train.dpsgd.settings import ClientSettings, Clipping, Network, Sampling, check_picks
from fedveil.stages.train.optimiser import Optimiser
from fedveil.stages.train.request import Draft, Task, beside, check_beside
from fedveil.stages.train.settings import (
    IN_ORDER,
    AdaptiveClipRequest,
    Choice,
    ChooseRequest,
    CompressionRequest,
    CorrelationRequest,
    OptimizerRequest,
    adaptive_clip,
    read_segments,
    shaped,
)
from fedveil.stages.train.yardstick import risk_with_momentum, yardstick_of

# How large the batches of DP-SGD are where a study does not say: by rules that look at public numbers.


USUAL_RATE: Final = 0.05
LEAST_BATCH: Final = 10


def picked_among(task: Task, clipping: Clipping) -> int:
    """Among how many rounds of a pass every record picks one: as the schedule says, else by the usual rule."""
    schedule, data = task.schedule, task.data
    if isinstance(schedule.rounds, int):
        fits = not isinstance(schedule.batch, int) or data.records // schedule.batch == schedule.rounds
        rule = f"make the {schedule.rounds} rounds of a pass that schedule.rounds states"
        hint = "Leave it out: where records pick their rounds, a batch is the records over the rounds of a pass."
        require(fits, "schedule.batch", rule, schedule.batch, hint)
        result = schedule.rounds
    elif isinstance(schedule.batch, int):
        check_batch(schedule.batch, data.records)
        result = data.records // schedule.batch
    else:
        usual = min(round(1 / USUAL_RATE), data.smallest_client // LEAST_BATCH)
        result = max(1, usual if clipping == "individual" else min(data.smallest_client, _MOST_SMALL_BATCHES))
    check_picks(result, data)
    return result


def usual_rate(records: int, clipping: Clipping) -> float:
    """Return the sampling rate of a client with so many records where nothing states it.

    Individual clipping: a twentieth of the records. Batch clipping: batches of one record. A clipped mean moves by
    twice its bound whatever the batch's size: a larger batch needs as much noise, and only the smaller chance to be in
    a small one protects a record (docs/dpsgd.md).
    """
    if clipping == "batch":
        return share(1, records)
    return min(1.0, max(USUAL_RATE, share(min(LEAST_BATCH, records), records)))


def usual_passes(a_pass: int, clipping: Clipping) -> int:
    """Return the passes of so many rounds each where nothing states them: fewer where small batches make them long."""
    return _PASSES if clipping == "individual" else max(1, min(_PASSES, _MOST_SMALL_BATCHES // a_pass))


def check_batch(batch: int, records: int) -> None:
    """Refuse a batch of more records than there are."""
    require(batch <= records, "schedule.batch", f"be at most the {records} records", batch)


def share(part: int, of: int) -> float:
    """Return the smallest float that is not below part / of, so that a batch of that share holds all of its records."""
    rate = part / of
    return rate if Fraction(rate) * of >= part else math.nextafter(rate, 2.0)


# What the yardstick that all designs share expects of a DP-SGD plan, and how much work it is.


def expected_risk(method: DpSgd, task: Task) -> float | None:
    """What the yardstick expects if all clients are like the first and answer at once; None if it has no say."""
    one, data = method.client_settings[0], task.data
    plain = len(method.client_settings) == 1 and method.compression.kind == "none"
    plain = plain and not method.adaptive and not method.segments and method.optimiser.kind == "momentum"
    plain = plain and not method.correlated
    if task.model.constants(data.bound).smoothness is None or not plain:
        return None
    model, batch = yardstick_of(task), one.rate * data.records
    steps = np.broadcast_to(np.asarray(one.step_size, dtype=np.float64), (one.rounds,))
    return risk_with_momentum(
        model,
        steps,
        momentum=method.optimiser.momentum,
        noise=(one.noise * one.clip) ** 2 * spread_of(method, task.setup) / mean_divisor(method, one, task.setup) ** 2,
        dealing=model.spread * (1 - one.rate) / batch,
    )


def passes_of(method: DpSgd) -> float:
    """Return how often a run computes the gradients of all records."""
    each = [settings.rate * settings.rounds for settings in method.client_settings]
    return math.fsum(each) if method.segments else max(each)


# A smaller clip with longer steps, where the noise limits the steps of DP-SGD and all is left to the design.
#
# Clipped to a half, records that the model still gets wrong pull as before, relative to the noise, and records that it
# nearly gets right pull more. The noise moves the model as far as it did. Page: dpsgd.md.


_TIGHTEST: Final = 0.5  # of the model's clip
_PLANNED: Final = ("rounds", "passes", "batch", "step_size", "noise_std")
_ASKED: Final = ("clip", "steps", "rate", "rounds", "noise_multiplier", "segments", "own_epsilon", "correlation")


def undesigned(request: DpSgdRequest, task: Task) -> bool:
    """Return whether a study states nothing of clip, noise, rates, rounds and steps."""
    stated = [getattr(task.schedule, name) for name in _PLANNED] + [getattr(request, name) for name in _ASKED]
    return all(value is None for value in stated)


def leaves_open(request: DpSgdRequest, task: Task) -> bool:
    """Return whether clip, steps, rates and rounds are all left to the design: what is stated keeps its meaning."""
    model = task.model
    usual = model.clip == model.loss.usual_clip(task.data.bound)
    free = undesigned(request, task) and request.clipping == "individual"
    return usual and free and replace(request.optimizer, momentum=None) == OptimizerRequest()


def check_batch_clipping(request: DpSgdRequest, task: Task, risk: float) -> None:
    """Refuse batch clipping that is left to the design where the yardstick expects it to leave too much unlearned."""
    if request.clipping == "individual" or not undesigned(request, task):
        return
    hint = (
        "A clipped mean moves by up to twice its clip however large its batch is, and the noise for that leaves too "
        "little to learn from so few records. Or state algorithm.rate, rounds and steps yourself."
    )
    promising = risk <= _MOST_UNLEARNED * yardstick_of(task).learnable
    require(promising, "algorithm.clipping", "be individual where the rest is left to the design", "batch", hint)


def tightened(method: DpSgd, room: float) -> DpSgd:
    """Return the method with a smaller clip and longer steps; ``room``: what the noise leaves of the first step.

    The yardstick that compares designs knows nothing of it.
    """
    one = method.client_settings[0]
    factor = max(_TIGHTEST, min(1.0, room))
    steps = tuple((one.steps() / factor).tolist())
    return replace(method, client_settings=(replace(one, clip=one.clip * factor, step_size=steps),))


_MOMENTUM = 0.9  # where neither momentum nor another optimizer is stated
_EPSILON_SHARE, _DELTA_SHARE = 1e-4, 1e-3  # kept back for what the grid costs
_OWN_SHARE = 1e-3  # of a client's own epsilon, kept back for the grid and for calibrating once more
_PASSES = 20
_MOST_SMALL_BATCHES = 20_000  # rounds of batch clipping
_MOST_UNLEARNED = 0.4  # of all that there is to learn; from 0.48 on runs ended below the best constant answer
_STEP = 3.0  # over the smoothness: below 2 (1 + momentum), where a step with momentum still contracts
_WALK = 1.0  # most that the noise of all rounds may move a score, in standard deviations
_BATCH_WALK = 2.0  # the same where batch clipping is designed here: there the yardstick's risk is least


def _clip(name: str, given: Any) -> Any:
    """Return a clip: a number, or one for each client, or the request for an adaptive one."""
    result = adaptive_clip(name, given)
    return _positive(name, given) if result is None else result


def _positive(name: str, given: Any) -> Any:
    """Return positive, finite numbers: one for all clients, or one for each."""
    values = tuple(number(name, value) for value in _listed(given))
    require(values and all(0 < value < math.inf for value in values), name, "be positive and finite", given)
    return values if isinstance(given, list | tuple) else values[0]


def _adapts(request: DpSgdRequest) -> bool:
    return isinstance(request.clip, AdaptiveClipRequest)


def _shapes_steps(request: DpSgdRequest) -> bool:
    return request.optimizer.decay is not None or request.optimizer.warm_up is not None


EXCLUSIONS: Final = (
    *(Exclusion(name, "segments", "A segment states it.") for name in ("rounds", "noise_multiplier", "steps")),
    Exclusion("own_epsilon", "segments", "A segment states the noise of its own rounds."),
    Exclusion("segments", "a decay or warm-up of steps", "A segment states its step.", _shapes_steps),
    Exclusion("segments", "an adaptive clip", "A segment's cost is planned for a fixed clip.", _adapts),
    Exclusion("correlation", "an adaptive clip", "The matrix is for equal clips.", _adapts),
    Exclusion("own_epsilon", "correlation", "A client that stops would leave later noise without its part."),
    Exclusion("segments", "correlation", "The matrix is for rounds that are alike."),
    Exclusion(
        "rate",
        'sampling = "independent"',
        "Every record picks one round of each pass: [schedule] rounds says how many rounds a pass has.",
        lambda request: request.sampling == "independent",
    ),
    Exclusion(
        "algorithm.correlation.buffers",
        "poisson batches",
        "A participation must have left the noise before the next: give bands, or sampling = cyclic.",
        lambda request: request.sampling == "poisson",
        lambda request: request.correlation and request.correlation.buffers,
    ),
)


BESIDE: Final = tuple(
    beside(f"schedule.{name}", "segments", "A segment states it.", attrgetter("request.segments"))
    for name in ("rounds", "passes", "batch", "noise_std", "step_size")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgdRequest:
    """What clients do. ``rate``, ``rounds``, ``clip``, ``noise_multiplier``, ``steps``: one for all, or one for each.

    ``rounds`` are those of all passes. ``steps``: a step size, or a list of one per round, for each client. With
    independent sampling there is no ``rate``: [schedule] says among how many rounds of a pass a record picks.
    ``segments`` state rounds, rate, clip, noise and step of consecutive segments; with ``choose`` a rule chooses among
    them. A client with an ``own_epsilon`` sends noise alone when that is used up. ``correlation``: noise is correlated
    over rounds. ``weights``: how the server mixes updates.
    """

    sampling: Sampling = word(Sampling, default="poisson")
    clipping: Clipping = word(Clipping, default="individual")
    rate: Numbers | None = ruled(_positive)
    rounds: int | tuple[int, ...] | None = None
    clip: Numbers | AdaptiveClipRequest | None = ruled(_clip)
    noise_multiplier: Numbers | None = ruled(_positive)
    steps: Any = None
    weights: tuple[float, ...] = ()
    segments: Any = None
    choose: ChooseRequest | None = group(ChooseRequest, short="rule")
    own_epsilon: Numbers | None = ruled(_positive)
    optimizer: OptimizerRequest = group(OptimizerRequest, short="kind", default=OptimizerRequest())
    compression: CompressionRequest = group(CompressionRequest, short="kind", default=CompressionRequest())
    correlation: CorrelationRequest | None = group(CorrelationRequest)
    network: Network = group(Network, default=Network())

    kind: ClassVar[str] = "dpsgd"

    def __post_init__(self) -> None:
        check_fields(self, "algorithm")
        self._any  # noqa: B018  refuses what never fits
        wanted = read_segments(self.segments)
        check_exclusions(self, "algorithm", EXCLUSIONS)
        check_correlated(self)
        hint = "Each of [[algorithm.segments]] is then a candidate."
        fits = self.choose is None or wanted is not None
        require(fits, "algorithm.choose", "go with segments to choose from", self.choose, hint)
        for name in ("rate", "clip") if wanted is not None else ():
            given = getattr(self, name)
            require(not isinstance(given, tuple), f"algorithm.{name}", "be one number with segments", given)

    def _with(
        self, client_settings: tuple[ClientSettings, ...], correlated: Correlation | Independent = INDEPENDENT_NOISE
    ) -> DpSgd:
        return DpSgd(
            client_settings=client_settings,
            sampling=self.sampling,
            clipping=self.clipping,
            weights=self.weights,
            network=self.network,
            compression=self.compression,
            optimiser=self._optimiser,
            average=self.optimizer.average,
            correlated=correlated,
        )

    @property
    def _any(self) -> DpSgd:
        """Some method of this request, for what depends on neither rounds nor noise."""
        one = ClientSettings(rate=1.0, rounds=1, clip=1.0, noise=1.0, step_size=1.0)
        return self._with((one,), ANY if self.correlation else INDEPENDENT_NOISE)

    @property
    def adapts(self) -> bool:
        """Whether the clip follows the norms."""
        return _adapts(self)

    @property
    def _optimiser(self) -> Optimiser:
        return self.optimizer.optimiser(_MOMENTUM)

    @property
    def noises(self) -> Mapping[str, DpSgdRequest]:
        """The same with independent noise, and with noise that is correlated over rounds."""
        return noises_of(self)

    def design(self, task: Task) -> Draft:
        """Set rate, rounds and steps by rule if they are not given, and the least noise that meets the target."""
        hint = 'Use kind = "fedavg" to protect whole clients.'
        require(task.target.unit != "client", "privacy.unit", "be record or person for dpsgd", task.target.unit, hint)
        target = task.target
        single = self._any.local(task.setup) or not isinstance(self.steps, list | tuple)
        hint = 'The server makes one step for all clients. Or let each add all of its noise: [trust] noise = "local".'
        require(single, "algorithm.steps", "be one step size where clients share their noise", self.steps, hint)
        aims = target.epsilon * (1 - _EPSILON_SHARE), target.delta * (1 - _DELTA_SHARE)
        wanted = read_segments(self.segments)
        if wanted is not None:
            method = replace(self._with(self._segmented(task, wanted, *aims)), segments=True)
            method = self._choosing(method, task, "noise" in wanted[0], *aims)
        else:
            found = designed_for(self, task, self._momentum, *self._rounds(task, 0))
            client_settings = tuple(self._settings(task, client, found, *aims) for client in range(self._kinds(task)))
            method = self._adapting(self._with(client_settings, found), task)
        method = evened(self._stopping(method, task), task.setup)
        risk = expected_risk(method, task)
        if leaves_open(self, task):
            method = tightened(method, _WALK / self._walk(task, method.client_settings[0], self._first_step(task)))
        method.check(task.setup)
        check_company(method, task)
        if risk is not None:
            check_batch_clipping(self, task, risk)
        said = f"{self.sampling} batches, {method.total} rounds; noise calibrated for the worst client"
        return Draft(method=method, reason=said, risk=risk, passes=passes_of(method))

    def _adapting(self, method: DpSgd, task: Task) -> DpSgd:
        """Return the method with a rule for its clips, if they are to be adaptive."""
        one, data = method.client_settings[0], task.data
        if not isinstance(self.clip, AdaptiveClipRequest):
            return method
        rule = design_clip(self.clip, one.noise, one.rate * data.records / data.clients, usual_rate=None)
        steps = (settings.step(0) for settings in method.client_settings)
        pairs = zip(method.client_settings, steps, strict=True)
        limits = tuple(_WALK * p.clip / self._walk(task, p, first) * rule.of_sum for p, first in pairs)
        return replace(method, adaptive=rule, clip_limits=limits)

    def _choosing(self, method: DpSgd, task: Task, stated: bool, epsilon: float, delta: float) -> DpSgd:
        """Return the method with a budget for its rule: what the target pays for, or all segments once.

        Where noise is not stated it was calibrated for all segments once, so that the budget is what they cost.
        """
        if self.choose is None:
            return method
        budget = fitting_budget(method, task.target, epsilon, delta, self._left(task)) if stated else joint_cost(method)
        return replace(method, choice=Choice(rule=self.choose.rule, gain=self.choose.gain, budget=budget))

    def _stopping(self, method: DpSgd, task: Task) -> DpSgd:
        """Return the method with the rounds after which clients stop using records, where they have own budgets."""
        if self.own_epsilon is None:
            return method
        delta, result = task.target.delta * (1 - _DELTA_SHARE), []
        for client, settings in enumerate(method.client_settings):
            own = _of(self.own_epsilon, client) * (1 - _OWN_SHARE)
            settings = replace(settings, noise=settings.noise * noise_left(method, task.setup, task.target.adversary))
            last = affordable(settings, method.sampling, method.clipping, task.target, own, delta)
            rule = f"pay for one round of client {client + 1} at least, which costs more"
            require(last >= 1, "algorithm.own_epsilon", rule, _of(self.own_epsilon, client), "Or take more noise.")
            result.append(last)
        return replace(method, stops=tuple(result))

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the finest grid on which float64 holds every noised sum exactly."""
        result, setup = expected(DpSgd, method), task.setup
        noise = [settings.noise * result.scale(settings) for settings in result.client_settings]
        rows = (result.most_rows(settings, task.data.largest_client) for settings in result.client_settings)
        each = rows if result.clipping == "individual" else (1 for _ in result.client_settings)
        most = max(result.scale(settings) * count for settings, count in zip(result.client_settings, each, strict=True))
        if result.local(setup):
            return choose_grid(most, min(noise), max(noise) * result.correlated.growth)
        planned, clients = round_noise(result, setup), result.asked(setup)
        share = 1.0 if not task.trust.shared else 1 / math.sqrt(task.trust.honest(clients))
        largest = float(planned.max()) * math.sqrt(result.window * task.trust.surplus(clients))
        return choose_grid(
            clients * result.window * most, float(planned.min()) * share, largest * result.correlated.growth
        )

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> DpSgd:
        """Return the same rounds; noise that was not given is calibrated for the other target."""
        result = expected(DpSgd, method)
        wanted = read_segments(self.segments)
        if wanted is not None and "noise" in wanted[0]:
            return self._choosing(result, task, True, epsilon, delta)
        if self.noise_multiplier is not None:
            return result
        if wanted is not None:
            factor = _factor(
                charged(result.client_settings, result.sampling, result.clipping, task.target), epsilon, delta
            )
            parts = tuple(replace(p, noise=p.noise * factor / self._left(task)) for p in result.client_settings)
            plain = replace(result, client_settings=parts, choice=IN_ORDER)
            return self._choosing(plain, task, False, epsilon, delta)
        left = self._left(task)
        factors = [_factor(row, epsilon, delta) / left for row in charges_of(result, task.target)]
        client_settings = (replace(p, noise=p.noise * f) for p, f in zip(result.client_settings, factors, strict=True))
        return evened(replace(result, client_settings=tuple(client_settings)), task.setup)

    def _left(self, task: Task) -> float:
        """Return the part of the noise's deviation that the study's observer does not know."""
        return noise_left(self._any, task.setup, task.target.adversary)

    def _segmented(
        self, task: Task, wanted: Sequence[Mapping[str, float]], epsilon: float, delta: float
    ) -> tuple[ClientSettings, ...]:
        """Return the settings of every segment; noise that is not stated is calibrated, alike for all."""
        check_beside(self, task, BESIDE)
        usual, _ = self._rounds(task, 0)
        clip = task.model.constants(task.data.bound).lipschitz
        clip = clip if self.clip is None else number("algorithm.clip", self.clip)
        parts = tuple(
            ClientSettings(
                rate=part.get("rate", usual),
                rounds=int(part["rounds"]),
                clip=part.get("clip", clip),
                noise=part.get("noise", 1.0),
                step_size=part.get("step", 1.0),
            )
            for part in wanted
        )
        if "noise" not in wanted[0]:
            factor = _factor(charged(parts, self.sampling, self.clipping, task.target), epsilon, delta)
            parts = tuple(replace(part, noise=factor / self._left(task)) for part in parts)
        return self._segment_steps(task, wanted, parts)

    def _segment_steps(
        self, task: Task, wanted: Sequence[Mapping[str, float]], parts: tuple[ClientSettings, ...]
    ) -> tuple[ClientSettings, ...]:
        """Set the steps that are not stated: falling linearly through all segments, as short as the noise asks.

        Where a rule chooses nobody knows how far the end is: steps are then half of the first one throughout.
        """
        total, done, result = sum(part.rounds for part in parts), 0, []
        for part, stated in zip(parts, wanted, strict=True):
            if "step" not in stated:
                first = self._first_step(task)
                first *= min(1.0, _WALK / self._walk(task, replace(part, rounds=total), first))
                turns = 1 - np.arange(done, done + part.rounds) / total
                turns = turns if self.choose is None else np.full(part.rounds, 0.5)
                part = replace(part, step_size=tuple((first * turns).tolist()))
            result.append(part)
            done += part.rounds
        return tuple(result)

    def _first_step(self, task: Task) -> float:
        return _STEP / task.model.constants(task.data.bound).known_smoothness * (1 if self._momentum > 0.5 else 0.5)

    @property
    def _momentum(self) -> float:
        return self._optimiser.momentum

    def _kinds(self, task: Task) -> int:
        """Return the number of different settings: one for all clients, or one for each if a list was given."""
        counts = {}
        for name in ("rate", "rounds", "clip", "noise_multiplier", "steps", "own_epsilon"):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                counts[name] = len(value)
                rule = f"have one entry for each of {task.data.clients} clients"
                require(len(value) == task.data.clients, f"algorithm.{name}", rule, len(value))
        return task.data.clients if counts else 1

    def _settings(
        self, task: Task, client: int, correlated: Correlation | Independent, epsilon: float, delta: float
    ) -> ClientSettings:
        clip = self.clip.start if isinstance(self.clip, AdaptiveClipRequest) else _of(self.clip, client)
        clip = task.model.constants(task.data.bound).lipschitz if clip is None else clip
        rate, rounds = self._rounds(task, client)
        noise, charged = _of(self.noise_multiplier, client), task.schedule.noise_std
        if noise is None and charged is not None:
            require(isinstance(charged, int | float), "schedule.noise_std", "be one number for dpsgd", charged)
            noise = number("schedule.noise_std", charged) / clip
        one = ClientSettings(rate=rate, rounds=rounds, clip=clip, noise=1.0 if noise is None else noise, step_size=1.0)
        if noise is None:
            mechanism = one.charged(self.sampling, self.clipping, task.target.neighbours)
            if correlated:
                mechanism = charges_of(self._with((one,), correlated), task.target)[0]
            one = replace(one, noise=_factor(mechanism, epsilon, delta) / self._left(task))
        return replace(one, step_size=self._steps(task, client, one, correlated))

    def _rounds(self, task: Task, client: int) -> tuple[float, int]:
        """Return the sampling rate and the rounds of all passes."""
        schedule, rate, rounds = task.schedule, _of(self.rate, client), _of(self.rounds, client)
        require(not isinstance(schedule.batch, tuple), "schedule.batch", "be one number for dpsgd", schedule.batch)
        require(not isinstance(schedule.rounds, str), "schedule.rounds", "be a number for dpsgd", schedule.rounds)
        if self.sampling == "independent":
            rate = 1 / picked_among(task, self.clipping)
        if rate is None and isinstance(schedule.batch, int):
            check_batch(schedule.batch, task.data.records)
            rate = share(schedule.batch, task.data.records)
        if rate is None and isinstance(schedule.rounds, int):
            rate = share(1, schedule.rounds)
        if rate is None:
            rate = usual_rate(task.data.smallest_client, self.clipping)
        if rounds is None:
            a_pass = schedule.rounds if isinstance(schedule.rounds, int) else max(1, round(1 / rate))
            rounds = a_pass * (schedule.passes or usual_passes(a_pass, self.clipping))
            if self.clipping == "batch" and schedule.passes is None and not isinstance(schedule.rounds, int):
                rounds = min(rounds, _MOST_SMALL_BATCHES)
        rate = rate if self.sampling != "cyclic" else 1 / max(1, math.floor(1 / rate * (1 + 4e-16)))
        count = whole("algorithm.rounds", rounds)
        hint = "Give fewer passes, or a larger rate."
        require(count <= MOST_MESSAGES, "The rounds of all passes", f"be at most {MOST_MESSAGES}", count, hint)
        return float(rate), count

    def _steps(
        self,
        task: Task,
        client: int,
        settings: ClientSettings,
        correlated: Correlation | Independent = INDEPENDENT_NOISE,
    ) -> Numbers:
        """Return the given steps, or steps that fall linearly from as much as smoothness and noise allow."""
        given = task.schedule.step_size if (own := _of(self.steps, client)) is None else own
        if given is not None:
            return shaped(given, settings.rounds, self.optimizer.decay, self.optimizer.warm_up)
        hint = "Adam's steps have the length that is stated, whatever the gradients are; 0.001 to 0.01 is usual."
        require(self.optimizer.kind != "adam", "schedule.step_size", "be given for adam", None, hint)
        if task.model.linear:
            first = self._first_step(task)
            if not self.adapts:  # otherwise round by round, as the clip moves
                walk = _WALK
                if self.clipping == "batch" and undesigned(self, task):
                    walk = _BATCH_WALK * mean_divisor(self._any, settings, task.setup)
                first *= min(1.0, walk / self._walk(task, settings, first, correlated))
        else:
            first = deep_step(task, settings.clip, self._momentum, self._walk(task, settings, 1.0, correlated))
        return shaped(first, settings.rounds, self.optimizer.decay or "linear", self.optimizer.warm_up)

    def _walk(
        self,
        task: Task,
        settings: ClientSettings,
        first: float,
        correlated: Correlation | Independent = INDEPENDENT_NOISE,
    ) -> float:
        """Return how far the noise of all rounds moves a score if steps fall linearly from ``first``."""
        data = task.data
        deviation = settings.noise * settings.clip * math.sqrt(spread_of(self._any, task.setup))
        if self.clipping == "individual":
            deviation /= settings.rate * data.records
        own = walk_of(correlated, settings, self._momentum)
        return data.bound * first / (1 - self._momentum) * deviation * own


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _of(value: Any, client: int) -> Any:
    return value[client] if isinstance(value, list | tuple) else value


def evened(method: DpSgd, setup: Setup) -> DpSgd:
    """Return the method with the noise that the records of each client get from a noise that all clients share."""
    if method.local(setup) or len(method.client_settings) == 1 or method.segments:
        return method
    mixed = mixture(method, setup)
    rows = zip(method.client_settings, mixed.factors, strict=True)
    most = ((settings, mixed.noise / (factor * method.scale(settings))) for settings, factor in rows)
    settings = tuple(replace(one, noise=max(one.noise, noise * (1 - 1e-12))) for one, noise in most)
    return replace(method, client_settings=settings)


@lru_cache(maxsize=256)
def _factor(mechanism: Mechanism, epsilon: float, delta: float) -> float:
    return calibrate(mechanism, epsilon=epsilon, delta=delta)[0]


# Torch models, about whose gradients nothing is known but the clip. Page: docs/torch.md.

# In lengths of the starting parameters, chosen on two networks for scikit-learn's digits: how far
_DEEP_WALK: Final = 3.0  # the noise of all rounds may move the model,
_STRIDE: Final = 1.0  # and a round may, if every record pulls the same way


def deep_step(task: Task, clip: float, momentum: float, walk: float) -> float:
    """Return the first of steps that fall linearly for a torch model, from public numbers alone.

    ``walk``: how far the noise of all rounds moves the score of the longest row if the first step is 1. The starting
    parameters are public, and their length is the one scale that is known of a module; it counts as 1 at least, since
    all of them may be zero.
    """
    require(not task.model.linear, "The model", "be a torch model", task.model.kind)
    start = task.model.loss.start(task.data.features)
    length = max(1.0, float(np.linalg.norm(start)))
    noise = walk / task.data.bound * math.sqrt(start.size)  # of the whole model
    return length * min(_DEEP_WALK / noise, _STRIDE * (1 - momentum) / clip)


def check_company(method: DpSgd, task: Task) -> None:
    """Try whether a torch module gives a record the same bits in any company, where batches are drawn."""
    loss = task.model.loss
    if method.apart(task.model):
        loss.check_sampling(task.data.features)
    if loss.answers(task.data.features):
        _check_pair(method, task)


def _check_pair(method: DpSgd, task: Task) -> None:
    """Refuse an adversarial pair where its answer would be added up with others' or a step could be of any length."""
    hint = 'Several holders of one pair are not there yet: [clients] kind = "equal", count = 1.'
    require(task.data.clients == 1, "[clients]", "be one for an adversarial pair", task.data.clients, hint)
    require(not task.trust.tables(), "[trust]", "be left out with an adversarial pair", task.trust.server)
    hint = "Its steps have a length whatever the judge says."
    adam = method.optimiser.kind == "adam"
    require(adam, "algorithm.optimizer", "be adam for an adversarial pair", method.optimiser.kind, hint)
    plain = not method.correlated and not method.choice and not method.segments
    require(plain, "[algorithm]", "have neither correlated noise nor segments with an adversarial pair", "one of them")


REQUEST = DpSgdRequest
WEIGHED_FOR = ("record",)  # the units for which kind = "auto" weighs it

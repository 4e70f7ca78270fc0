"""Tuning: what a study asks of it, the candidates, and the plan that pays for choosing among them."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from fedveil.core.errors import BadValue, CannotCertify, FedveilError, require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.tables import filled, known, table
from fedveil.core.values import number, whole
from fedveil.models.spec import ModelPlan
from fedveil.planning.design import Planned, read_request
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.promises import promise
from fedveil.planning.selection import METRICS, MOST_CANDIDATES, PRIVATE_METRICS, Metric, Score, Selection
from fedveil.privacy.target import Target
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.train.request import AlgorithmRequest, Draft, ScheduleRequest
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.selection import TruncatedNegativeBinomial, selected_epsilon

# The [tune] table of a study: which settings may vary, how many trials, and how they are scored.
#
# What may vary are settings of the model, the algorithm and the schedule. Data, target, trust and noise may not: the
# first three are what the promise is about, and the noise is what keeps it.

_ALGORITHM: Final = (
    "kind order rate stopping sampling clipping rounds clip steps cohort update_norm server_step weights "
    "optimizer optimizer.kind optimizer.momentum optimizer.beta2 optimizer.floor optimizer.weight_decay "
    "optimizer.average optimizer.decay optimizer.warm_up compression compression.kind compression.keep "
    "compression.levels correlation.bands correlation.buffers correlation.error local.epochs local.batch local.step "
    "local.proximal"
)
_ALLOWED: Final = {
    "model": ("kind", "smoothing", "threshold", "l2", "clip", "radius", "class_weights", "decision_threshold"),
    "algorithm": tuple(_ALGORITHM.split()),
    "schedule": ("kind", "rounds", "passes", "batch", "step_size"),
}
_KEYS: Final = tuple(f"{name}.{key}" for name, keys in _ALLOWED.items() for key in keys)


def _stated(name: str, key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda tables: table(tables.get(name, {}), name).get(key)


EXCLUSIONS: Final = tuple(  # of the tables of a study that is tuned
    Exclusion(
        f"{name}.{key}",
        "[tune]",
        "It is calibrated so that the tuned model meets privacy.epsilon.",
        lambda tables: True,
        _stated(name, key),
    )
    for name, key in (("schedule", "noise_std"), ("algorithm", "noise_multiplier"))
)
Values = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One point of the search space: its values by key, and the parts of a study that they give."""

    values: Values
    model: ModelPlan
    algorithm: AlgorithmRequest
    schedule: ScheduleRequest

    @property
    def words(self) -> str:
        """The values, for people."""
        return ", ".join(f"{key} = {value}" for key, value in self.values) or "as the study states"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What a study says about tuning: ``trials`` is the expected number; ``eta`` the shape of its law.

    ``metric`` None: accuracy for classes, the mean absolute error for numbers. Without candidates it is false: nothing
    is tuned (:data:`NOT_TUNED`).
    """

    candidates: tuple[Candidate, ...]
    trials: float = 10.0
    eta: float = 1.0
    score: Score = "public"
    metric: Metric | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "eta"):
            object.__setattr__(self, name, number(f"tune.{name}", getattr(self, name)))
        require(1 < self.trials <= 1000, "tune.trials", "lie above 1, up to 1000", self.trials)
        require(-1 < self.eta <= 10, "tune.eta", "lie in (-1, 10]", self.eta, "1 is the geometric law.")
        require(self.score in get_args(Score), "tune.score", f"be one of {', '.join(get_args(Score))}", self.score)
        right = self.metric is None or self.metric in METRICS
        require(right, "tune.metric", f"be one of {', '.join(METRICS)}", self.metric)
        fits = self.score == "public" or self.metric is None or self.metric in PRIVATE_METRICS
        hint = "Others are no sums over records, so their noise is not known."
        require(fits, "tune.metric", f"be one of {', '.join(PRIVATE_METRICS)} for a private score", self.metric, hint)

    def __bool__(self) -> bool:
        return len(self.candidates) > 0

    def metric_for(self, classes: int) -> Metric:
        """Return the metric, for data of so many classes (0: numbers)."""
        usual: Metric = "accuracy" if classes else "mae"
        result = usual if self.metric is None else self.metric
        fits = (result == "mae") == (classes == 0)
        require(fits, "tune.metric", "be mae for numbers, and another for classes", result)
        return result


NOT_TUNED = TuneRequest(candidates=())


def read_tune(tables: Mapping[str, Any]) -> TuneRequest:
    """Read the [tune] table of a study, with what each candidate makes of its other tables."""
    if "tune" not in tables:
        return NOT_TUNED
    given = dict(table(tables["tune"], "tune"))
    known(given, ["space", "candidates", "trials", "eta", "score", "metric"], "[tune]")
    space, listed = given.pop("space", None), given.pop("candidates", None)
    one = (space is None) != (listed is None)
    hint = 'For example [tune.space] with "model.l2" = [0.0, 0.01].'
    require(one, "[tune]", "have either a space or candidates", sorted(tables["tune"]), hint)
    check_exclusions(tables, "", EXCLUSIONS)
    points = _product(_flat(table(space, "tune.space"), "tune.space")) if listed is None else _listed(listed)
    candidates = tuple(_candidate(tables, point) for point in points)
    try:
        return TuneRequest(candidates=candidates, **given)
    except TypeError as error:
        raise BadValue(f"[tune] must be complete: {error}.") from error


def _flat(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return dotted keys with their values; refuse keys that may not vary."""
    result: dict[str, Any] = {}
    for key, value in given.items():
        inner = isinstance(value, dict) and "from" not in value  # a table of settings, and no range of one
        result |= _joined(key, value) if inner else {key: value}
    for key in result:
        hint = f"These may: {', '.join(_KEYS)}."
        require(key in _KEYS, f"Key {key!r} of {where}", "be a setting that tuning may vary", key, hint)
    return result


def _joined(name: str, inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table inside a table under their dotted names."""
    result: dict[str, Any] = {}
    for key, value in inner.items():
        nested = isinstance(value, dict) and "from" not in value
        result |= _joined(f"{name}.{key}", value) if nested else {f"{name}.{key}": value}
    return result


def _product(space: Mapping[str, Any]) -> list[Values]:
    """Return all combinations of the values of a space."""
    require(len(space) >= 1, "tune.space", "name at least one setting", "an empty space", f"Known: {', '.join(_KEYS)}.")
    axes = {key: _axis(key, value) for key, value in space.items()}
    count = math.prod(len(axis) for axis in axes.values())
    hint = "Each is designed and calibrated; list the ones that matter as [[tune.candidates]]."
    require(count <= MOST_CANDIDATES, "tune.space", f"have at most {MOST_CANDIDATES} combinations", count, hint)
    return [tuple(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _axis(key: str, given: Any) -> Sequence[Any]:
    """Return the values of one setting: a list, or a range {from, to, count, scale}."""
    name = f"tune.space {key}"
    if isinstance(given, dict):
        return _range(name, given)
    require(isinstance(given, list), name, "be a list of values, or a table with from, to and count", given)
    require(len(given) >= 1, name, "have at least one value", given)
    return [tuple(value) if isinstance(value, list) else value for value in given]


def _range(name: str, given: Mapping[str, Any]) -> list[float | int]:
    known(given, ["from", "to", "count", "scale"], name)
    for key in ("from", "to", "count"):
        require(key in given, name, f"state {key}", sorted(given))
    low, high = number(f"{name}.from", given["from"]), number(f"{name}.to", given["to"])
    count, scale = whole(f"{name}.count", given["count"]), given.get("scale", "linear")
    require(scale in ("linear", "log"), f"{name}.scale", "be linear or log", scale)
    require(1 <= count <= MOST_CANDIDATES, f"{name}.count", f"lie between 1 and {MOST_CANDIDATES}", count)
    require(-math.inf < low <= high < math.inf, name, "go from a number to one that is no smaller", (low, high))
    require(scale == "linear" or low > 0, f"{name}.from", "be positive on a log scale", low)
    shares = [place / max(count - 1, 1) for place in range(count)]
    if scale == "log":
        result = [low * (high / low) ** share for share in shares]
    else:
        result = [low + (high - low) * share for share in shares]
    exact = isinstance(given["from"], int) and isinstance(given["to"], int)
    return sorted({round(value) for value in result}) if exact else list(result)


def _listed(given: Any) -> list[Values]:
    require(isinstance(given, list), "tune.candidates", "be a list of tables", given)
    require(1 <= len(given) <= MOST_CANDIDATES, "tune.candidates", f"be 1 to {MOST_CANDIDATES} tables", len(given))
    points = []
    for number_, row in enumerate(given, 1):
        where = f"tune.candidates {number_}"
        values = _flat(table(row, where), where)
        points.append(tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in values.items()))
    return points


def _candidate(tables: Mapping[str, Any], values: Values) -> Candidate:
    parts = {name: dict(table(tables.get(name, {}), name)) for name in _ALLOWED}
    for key, value in values:
        *tables_of, own = key.split(".")
        _inside(parts, tables_of)[own] = value
    return Candidate(
        values=values,
        model=ModelPlan.parse(parts["model"]),
        algorithm=read_request(parts["algorithm"]),
        schedule=filled(ScheduleRequest, parts["schedule"], "schedule"),
    )


def _inside(parts: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the table of this path, as a copy that may be changed; one that is not there yet is empty."""
    result = parts
    for depth, name in enumerate(names, 1):
        inner = result.get(name, {})
        hint = "The study states a single value there: state a table."
        require(isinstance(inner, dict), ".".join(names[:depth]), "be a table where tuning varies a part", inner, hint)
        result[name] = dict(inner)
        result = result[name]
    return result


# From candidates to one plan: calibrate what each trial may spend, so that the selected model meets the target.
#
# All candidates get the same inner target. Its delta is what the selection theorem leaves of the whole delta; its
# epsilon is the largest found at which the whole promise still holds.

_TAIL = 1e-5  # of delta over exp(epsilon), that the trials beyond the most may take
_INNER = 0.999  # of delta over the expected number of trials, for each trial
_CLOSE = 0.99  # a promise this close to the target is good enough
_TRIES = 6
_LEAST = 1e-4  # least epsilon and delta of a target
_LEAST_DELTA = 1e-12
Design = Callable[[Candidate, Target], Planned]


def tuned(request: TuneRequest, target: Target, design: Design) -> Planned:
    """Return the plan of the best of several candidates; ``design`` plans one of them for a target of its own."""
    hint = "Whoever sees every trial is promised their composition, which no selection makes cheaper."
    final = target.adversary == "final-model"
    require(final, "privacy.adversary", "be final-model for a tuned study", target.adversary, hint)
    law = TruncatedNegativeBinomial.of_mean(request.eta, request.trials)
    most = law.cut(_TAIL * target.delta / (1 + math.exp(target.epsilon)))
    delta = _INNER * target.delta / law.mean
    hint = "Raise privacy.delta or lower tune.trials."
    require(delta >= _LEAST_DELTA, "privacy.delta", f"leave {_LEAST_DELTA:g} for each trial", delta, hint)
    inner = _first_guess(law, most, target, delta)
    low, high, best, found = 0.0, math.inf, None, math.inf
    for _ in range(_TRIES):
        if not _LEAST <= inner <= 40:
            break
        aim = replace(target, epsilon=inner, delta=delta)
        drafts = [_designed(design, request, place, aim) for place in range(len(request.candidates))]
        plan = _together([draft.plan for draft in drafts], request, law, most, target)
        found = promise(plan, target.adversary).epsilon
        if found <= target.epsilon:
            low, best = inner, (plan, drafts)
            if found >= _CLOSE * target.epsilon:
                break
        else:
            high = inner
        inner = _next(inner, found, target.epsilon, low, high)
        if high < math.inf and high - low <= 1e-3 * high:
            break
    if best is None:
        raise CannotCertify(
            f"the best of {request.trials:g} expected trials cannot meet epsilon {target.epsilon:g}: the least found "
            f"is {found:.4g}; raise privacy.epsilon or lower tune.trials"
        )
    return _planned(best[0], best[1], request)


def _designed(design: Design, request: TuneRequest, place: int, aim: Target) -> Planned:
    """Plan one candidate; a refusal names it."""
    candidate = request.candidates[place]
    try:
        return design(candidate, aim)
    except FedveilError as error:
        raise type(error)(f"Candidate {place + 1} of [tune] ({candidate.words}) cannot be planned: {error}") from error


def _first_guess(law: TruncatedNegativeBinomial, most: int, target: Target, delta: float) -> float:
    """Return the epsilon of one trial if its curve were that of a Gaussian mechanism."""

    def whole(mu: float) -> float:
        return selected_epsilon(lambda e: gaussian_delta(e, mu), law, target.delta, most, 0.0)

    low, high = 1e-5, 60.0
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if whole(middle) <= target.epsilon else (low, middle)
    return gaussian_epsilon(low, delta)


def _next(inner: float, found: float, target: float, low: float, high: float) -> float:
    """Return where to look next: what the last promise suggests, kept inside of what is known."""
    guess = inner * 0.997 * target / found if 0 < found < math.inf else inner / 2
    if low < guess < high:
        return guess
    return (low + high) / 2 if high < math.inf else low * 1.02


def _together(
    plans: Sequence[Plan], request: TuneRequest, law: TruncatedNegativeBinomial, most: int, target: Target
) -> Plan:
    """Return the plan of the best of these; none of them is chosen yet."""
    first = plans[0]
    for plan in plans:
        hint = "A candidate without noise promises nothing."
        require(not plan.method.noiseless, "tune", "have noise in every candidate", plan.method.kind, hint)
    mu = total_mu(first.target)
    selection = Selection(
        eta=law.eta,
        gamma=law.gamma,
        most=most,
        score=request.score,
        metric=request.metric_for(first.data.classes),
        score_noise=1 / mu if request.score == "private" else 0.0,
        candidates=tuple(write_plan(plan) for plan in plans),
    )
    return replace(first, target=target, selection=selection)


def _planned(plan: Plan, drafts: Sequence[Planned], request: TuneRequest) -> Planned:
    inner = plan.candidates[0].target
    pairs = enumerate(zip(request.candidates, drafts, strict=True), 1)
    rows = [f"({place}) {candidate.words}: {draft.plan.method.kind}" for place, (candidate, draft) in pairs]
    shown = "; ".join(rows[:12]) + (f"; and {len(rows) - 12} more" if len(rows) > 12 else "")
    reason = (
        f"the best of {request.trials:g} expected trials among {len(rows)} candidates, each trial at epsilon "
        f"{inner.epsilon:.4g} and delta {inner.delta:.3g}: {shown}"
    )
    return Planned(plan=plan, draft=Draft(method=plan.method, reason=reason))

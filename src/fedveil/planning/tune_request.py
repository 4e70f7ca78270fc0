"""The [tune] table of a study: which settings may vary, how many trials, and how they are scored.

What may vary are settings of the model, the algorithm and the schedule. Data, target, trust and noise may not: the
first three are what the promise is about, and the noise is what keeps it.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from fedveil.core.errors import BadValue, require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.tables import filled, known, table
from fedveil.core.values import number, whole
from fedveil.models.spec import ModelPlan
from fedveil.planning.design import read_request
from fedveil.planning.selection import METRICS, MOST_CANDIDATES, PRIVATE_METRICS, Metric, Score
from fedveil.stages.train.request import AlgorithmRequest, ScheduleRequest

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
        found = usual if self.metric is None else self.metric
        fits = (found == "mae") == (classes == 0)
        require(fits, "tune.metric", "be mae for numbers, and another for classes", found)
        return found


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
    found: dict[str, Any] = {}
    for key, value in given.items():
        inner = isinstance(value, dict) and "from" not in value  # a table of settings, and no range of one
        found |= _joined(key, value) if inner else {key: value}
    for key in found:
        hint = f"These may: {', '.join(_KEYS)}."
        require(key in _KEYS, f"Key {key!r} of {where}", "be a setting that tuning may vary", key, hint)
    return found


def _joined(name: str, inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table inside a table under their dotted names."""
    found: dict[str, Any] = {}
    for key, value in inner.items():
        nested = isinstance(value, dict) and "from" not in value
        found |= _joined(f"{name}.{key}", value) if nested else {f"{name}.{key}": value}
    return found


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
        found = [low * (high / low) ** share for share in shares]
    else:
        found = [low + (high - low) * share for share in shares]
    exact = isinstance(given["from"], int) and isinstance(given["to"], int)
    return sorted({round(value) for value in found}) if exact else list(found)


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
        model=filled(ModelPlan, parts["model"], "model"),
        algorithm=read_request(parts["algorithm"]),
        schedule=filled(ScheduleRequest, parts["schedule"], "schedule"),
    )


def _inside(parts: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the table of this path, as a copy that may be changed; one that is not there yet is empty."""
    found = parts
    for depth, name in enumerate(names, 1):
        inner = found.get(name, {})
        hint = "The study states a single value there: state a table."
        require(isinstance(inner, dict), ".".join(names[:depth]), "be a table where tuning varies a part", inner, hint)
        found[name] = dict(inner)
        found = found[name]
    return found

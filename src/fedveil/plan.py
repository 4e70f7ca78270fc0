"""The frozen intention: what will run, and so what is accounted for. Its hash is its name.

Trainer and accountant read this and nothing else. It holds public quantities only: the shape of the data, never a value
of it, nor a hash of one (a hash of private data can be tested against guesses, so it is a release).
"""

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from fedveil.account.hidden import per_round
from fedveil.account.observers import Participation
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.guarantee import Adversary, Neighbours, Unit
from fedveil.mechanism import LastIterate, number, whole
from fedveil.mechanism_file import last_iterate_table, mechanism_of
from fedveil.model.loss import Constants, Loss, with_l2
from fedveil.model.named import KINDS, loss_named
from fedveil.tables import known, read_tables, table, write_tables

Deal = Literal["records", "clients"]
FORMAT = 1
_NORM_ROUNDING = 1e-9  # a computed norm of up to a million numbers is that exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What must be met, for whom, against whom."""

    epsilon: float
    delta: float
    adversary: Adversary = "final-model"
    unit: Unit = "record"
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", number("privacy.epsilon", self.epsilon))
        object.__setattr__(self, "delta", number("privacy.delta", self.delta))
        hint = "Beyond 40 nothing is private."
        require(1e-4 <= self.epsilon <= 40, "privacy.epsilon", "lie in [1e-4, 40]", self.epsilon, hint)
        require(1e-12 <= self.delta < 1, "privacy.delta", "lie in [1e-12, 1)", self.delta)
        for name, choices in (("adversary", Adversary), ("unit", Unit), ("neighbours", Neighbours)):
            given, words = getattr(self, name), get_args(choices)
            require(given in words, f"privacy.{name}", f"be one of {', '.join(words)}", given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The loss and what is enforced around it: clipping, l2, and the ball the model is kept in.

    ``classes`` is what the data have (0 for regression); None until the data are known.
    """

    kind: str
    classes: int | None = None
    smoothing: float | None = None
    threshold: float | None = None
    l2: float = 0.0
    clip: float | None = None
    radius: float | None = None

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "model.kind", f"be one of {', '.join(KINDS)}", self.kind)
        if self.classes is not None:
            object.__setattr__(self, "classes", whole("model.classes", self.classes))
            _ = self.loss  # refuses a loss that does not go with so many classes
        for name in ("smoothing", "threshold", "clip", "radius"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, number(f"model.{name}", given))
                require(1e-9 <= getattr(self, name) <= 1e9, f"model.{name}", "lie in [1e-9, 1e9]", given)
        object.__setattr__(self, "l2", number("model.l2", self.l2))
        require(0 <= self.l2 <= 1e9, "model.l2", "lie in [0, 1e9]", self.l2)

    @property
    def loss(self) -> Loss:
        """The loss by its name."""
        return loss_named(self.kind, classes=self.classes, smoothing=self.smoothing, threshold=self.threshold)

    def constants(self, bound: float) -> Constants:
        """Lipschitz, smoothness and strong convexity on rows of norm at most ``bound``, as far as floats can tell."""
        return with_l2(self.loss.constants(bound * (1 + _NORM_ROUNDING), self.clip), self.l2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run.

    ``deal``: whether single records or whole clients are dealt into rounds; ``run``: the schedule, with its noise;
    ``grid``: the state lies on multiples of 2**grid; ``seeded``: the noise comes from a seed that others know.
    """

    name: str
    algorithm: Literal["hidden"] = "hidden"
    data: DataShape
    model: ModelPlan
    target: Target
    deal: Deal
    run: LastIterate
    grid: int
    seeded: bool = False
    test_records: int = 0
    test_public: bool = True
    training_public: bool = False
    baselines: bool = False

    def __post_init__(self) -> None:
        require(self.deal in get_args(Deal), "plan.deal", "be records or clients", self.deal)
        hint = "A certificate speaks for every unit."
        require(self.run.place is None, "plan.run.place", "be left out", self.run.place, hint)
        require(-1000 <= self.grid <= 1000, "plan.grid", "lie in [-1000, 1000]", self.grid)
        self._check_units()
        self._check_constants()

    def _check_units(self) -> None:
        unit, data = self.target.unit, self.data
        require(
            unit == "record" or self.deal == "clients", "plan.deal", "be clients when clients are protected", self.deal
        )
        if unit == "record" and self.deal == "clients":
            even = data.largest_client == data.smallest_client
            sizes = f"{data.smallest_client} to {data.largest_client}"
            hint = 'Deal records, or protect clients (privacy.unit = "client").'
            require(even, "Clients", "be of one size when they are dealt whole but records are protected", sizes, hint)
            batches = self.run.batch if isinstance(self.run.batch, tuple) else (self.run.batch,)
            whole_clients = all(count % data.largest_client == 0 for count in batches)
            require(whole_clients, "plan.run.batch", f"hold whole clients of {data.largest_client}", self.run.batch)
        require(
            self.run.records == self.units,
            "plan.run.records",
            f"be the number of units, {self.units}",
            self.run.records,
        )
        require(
            self.run.neighbours == self.target.neighbours,
            "plan.run.neighbours",
            "match the target",
            self.run.neighbours,
        )

    def _check_constants(self) -> None:
        """What is accounted for is what the model's enforced constants say, never less."""
        real, run = self.constants, self.run
        require(run.lipschitz >= real.lipschitz, "plan.run.lipschitz", f"be at least {real.lipschitz}", run.lipschitz)
        require(run.convex <= real.convex, "plan.run.convex", "be true only for a convex loss", run.convex)
        if run.smoothness is not None:
            least = math.inf if real.smoothness is None else real.smoothness
            require(run.smoothness >= least, "plan.run.smoothness", f"be at least {least}", run.smoothness)
        most = real.strong_convexity
        require(run.strong_convexity <= most, "plan.run.strong_convexity", f"be at most {most}", run.strong_convexity)
        radius = self.model.radius
        kept = run.diameter is None or (radius is not None and run.diameter >= 2 * radius)
        require(kept, "plan.run.diameter", "be at least twice the radius", run.diameter)

    @property
    def units(self) -> int:
        """How many units are dealt into rounds."""
        return self.data.clients if self.target.unit == "client" else self.data.records

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.model.loss.size(self.data.features)

    @property
    def radius(self) -> float:
        """Of the ball the model is kept in: as stated, or too large to be reached by steps and noise in practice."""
        if self.model.radius is not None:
            return self.model.radius
        run = self.run
        step, batch, std = (per_round(v, run) for v in (run.step_size, run.batch, run.noise_std))
        noise = float(np.sqrt(np.sum((step * std) ** 2 / batch) * self.dimension))
        return 2.0 ** math.ceil(math.log2(float(step.sum()) * run.lipschitz + 10 * noise))

    @property
    def constants(self) -> Constants:
        """The model's constants on this plan's rows."""
        return self.model.constants(self.data.bound)

    @property
    def participation(self) -> Participation:
        """How often clients take part, as the observers' accounting wants to know."""
        held = 1 if self.target.unit == "client" else self.data.largest_client
        often = self.deal == "records" and held > 1
        return Participation(largest_client=held, clients=self.data.clients, every_round=often)

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's text."""
        return hashlib.sha256(write_plan(self).encode()).hexdigest()


def write_plan(plan: Plan) -> str:
    """The plan as TOML; reading it gives an equal plan."""
    head = {key: getattr(plan, key) for key in _HEAD}
    tables = {
        "plan": {"format": FORMAT, **head},
        "data": _values(plan.data),
        "model": _values(plan.model),
        "privacy": _values(plan.target),
        "mechanism": last_iterate_table(plan.run),
    }
    return write_tables(tables)


def read_plan(text: str) -> Plan:
    """The plan that a text holds."""
    tables = read_tables(text, "The plan")
    known(tables, ["plan", "data", "model", "privacy", "mechanism"], "a plan")
    for name in ("plan", "data", "model", "privacy", "mechanism"):
        require(name in tables, "The plan", f"have a [{name}] table", sorted(tables))
    head = dict(table(tables["plan"], "plan"))
    form = head.pop("format", None)
    require(form == FORMAT, "plan.format", f"be {FORMAT}", form, "It was written by another version of fedveil.")
    known(head, _HEAD, "[plan]")
    run = mechanism_of(tables["mechanism"])
    require(isinstance(run, LastIterate), "The plan's mechanism", "be a last-iterate one", type(run).__name__)
    parts: dict[str, Any] = {
        "data": _read(DataShape, tables["data"], "data"),
        "model": _read(ModelPlan, tables["model"], "model"),
        "target": _read(Target, tables["privacy"], "privacy"),
    }
    try:
        return Plan(run=run, **parts, **head)  # type: ignore[arg-type]
    except TypeError as error:
        require(False, "The plan", "be complete", str(error))
        raise


_HEAD = [f.name for f in fields(Plan) if f.name not in ("data", "model", "target", "run")]


def _values(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in fields(part)}


def _read(kind: Any, given: Any, name: str) -> Any:
    values = table(given, name)
    known(values, [f.name for f in fields(kind)], f"[{name}]")
    try:
        return kind(**values)
    except TypeError as error:
        require(False, f"[{name}]", "be complete", str(error))
        raise

"""The plan: a frozen description of what will run, and so of what is accounted for. Its hash identifies it.

The trainer and the accountant read the plan and nothing else. It holds public quantities only: the shape of the data,
never a value, nor a hash of values (guesses can be tested against a hash of private data, so a hash is a release).
"""

import hashlib
from dataclasses import dataclass, fields
from typing import Any

from fedveil.account.observers import Participation
from fedveil.algorithms.base import Method
from fedveil.algorithms.hidden.method import Deal, Hidden
from fedveil.algorithms.registry import KINDS, pulls_when_empty, read_method
from fedveil.checks import require
from fedveil.data.canaries import check_count
from fedveil.data.records import DataShape
from fedveil.data.spec import PLACES, Places
from fedveil.errors import BadValue
from fedveil.mechanism import LastIterate
from fedveil.model.loss import Constants
from fedveil.model.spec import ModelPlan
from fedveil.prepare.statement import Preparation
from fedveil.tables import known, read_tables, table, write_tables
from fedveil.target import Target
from fedveil.trust import CENTRAL, Trust
from fedveil.values import whole

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run.

    ``grid``: state and noise are whole multiples of 2**grid. ``seeded``: the noise comes from a seed that others know.
    ``canaries``: how many of the records are slots of an audit; as many features belong to them. None without an audit.
    ``trust``: who draws the noise, and whom the clients trust with what.
    ``places``: what decides who holds which record, where that is more than row numbers; None, and then not written,
    for row numbers, for records that came as arrays, and in plans made before this was recorded. ``blank_rows``: rows
    with a missing value stay, as records that contribute nothing (not written where there can be none).
    ``preparation``: what is measured, with noise, before training; None, and then not written, where nothing is.
    """

    name: str
    method: Method
    data: DataShape
    model: ModelPlan
    target: Target
    grid: int
    seeded: bool = False
    test_records: int = 0
    test_public: bool = True
    training_public: bool = False
    baselines: bool = False
    canaries: int | None = None
    trust: Trust = CENTRAL
    places: Places | None = None
    blank_rows: bool = False
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        # A name must not contain line breaks, or it could fake further lines of the page that an operator reads.
        plain = isinstance(self.name, str) and self.name.isprintable() and len(self.name) <= 200
        require(plain, "plan.name", "be one line of at most 200 printable characters", str(self.name)[:60])
        for name in ("seeded", "test_public", "training_public", "baselines", "blank_rows"):
            require(type(getattr(self, name)) is bool, f"plan.{name}", "be true or false", getattr(self, name))
        for name in ("grid", "test_records"):
            object.__setattr__(self, name, whole(f"plan.{name}", getattr(self, name)))
        known_places = self.places is None or self.places in PLACES.values()
        require(known_places, "plan.places", f"be one of {', '.join(PLACES.values())}", self.places)
        require(self.test_records >= 0, "plan.test_records", "be 0 or more", self.test_records)
        require(-1000 <= self.grid <= 1000, "plan.grid", "lie in [-1000, 1000]", self.grid)
        self.method.check(self.data, self.model, self.target)
        if self.canaries is not None:
            check_canaries(self.canaries, self.data, self.model, self.method.kind, self.target)
        require(isinstance(self.trust, Trust), "plan.trust", "be a Trust", self.trust)
        if self.trust.shared:
            self.method.check_shares(self.trust, self.grid, self.data, self.model, self.target)
        if self.preparation is not None:
            self._check_preparation(self.preparation)

    def _check_preparation(self, preparation: object) -> None:
        if not isinstance(preparation, Preparation):
            raise BadValue(f"plan.preparation must be a Preparation, got {preparation!r}.")
        preparation.check(self.data)
        hint = "Canaries are rows of the features that a study states; leave [audit] out, or state the preparation."
        require(self.canaries is None, "audit.canaries", "be left out where preparation is private", None, hint)

    @property
    def real_features(self) -> int:
        """Number of features of the records themselves, without those of canaries."""
        return self.data.features - (self.canaries or 0)

    @property
    def told_by_places(self) -> bool:
        """True if the rule of who holds which record reveals private values.

        Noise does not cover that, so no number of this plan would hold.
        """
        return self.places == "labels" and not self.training_public

    @property
    def voided(self) -> bool:
        """True if there is noise, but its guarantee does not hold for this run."""
        return self.seeded or self.told_by_places

    @property
    def private(self) -> bool:
        """True if secret noise covers everything that leaves the clients; otherwise nothing is promised."""
        return not self.voided and not self.method.noiseless

    @property
    def exposed_by(self) -> str | None:
        """The reason why nothing is promised, in words; None if something is promised."""
        if self.private:
            return None
        if self.seeded:
            return "the noise comes from a seed that the study names"
        if self.told_by_places:
            return "the split among clients depends on labels, and data.public does not declare the records public"
        return "there is no noise"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a reader of the numbers should know."""
        loose = self.target.loose_delta(self.units)
        return () if loose is None else (loose,)

    @property
    def unprotected(self) -> bool:
        """True if something leaves the clients without noise.

        Every observer is then charged as if it learned everything.
        """
        return not self.private or (self.baselines and not self.training_public)

    @property
    def hidden(self) -> Hidden:
        """The method, if it is the hidden one; refused otherwise."""
        if not isinstance(self.method, Hidden):
            raise BadValue(f"The plan must be for hidden training here, and it is for {self.method.kind}.")
        return self.method

    @property
    def run(self) -> LastIterate:
        """The schedule of a hidden method."""
        return self.hidden.run

    @property
    def deal(self) -> Deal:
        """The rule by which a hidden method deals units into rounds."""
        return self.hidden.deal

    @property
    def units(self) -> int:
        """Number of units (records or clients) to protect."""
        return self.data.clients if self.target.unit == "client" else self.data.records

    @property
    def dimension(self) -> int:
        """Number of model parameters."""
        return self.model.loss.size(self.data.features)

    @property
    def radius(self) -> float:
        """Radius of the ball that the model is kept in."""
        return self.method.radius(self.data, self.model)

    @property
    def constants(self) -> Constants:
        """Constants of the model (Lipschitz, smoothness, ...) on rows of this plan."""
        return self.model.constants(self.data.bound)

    @property
    def participation(self) -> Participation:
        """How often clients take part in a hidden method."""
        return self.hidden.participation(self.data, self.target)

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's text."""
        return hashlib.sha256(write_plan(self).encode()).hexdigest()


_HEAD = [f.name for f in fields(Plan) if f.name not in ("data", "model", "target", "method", "trust", "preparation")]


def write_plan(plan: Plan) -> str:
    """Return the plan as TOML text; reading it back gives an equal plan."""
    head = {key: getattr(plan, key) for key in _HEAD}
    if not plan.blank_rows:  # written only if set, so that older plans keep their text
        del head["blank_rows"]
    tables = {
        "plan": {"format": FORMAT, "algorithm": plan.method.kind, **head},
        "data": _values(plan.data),
        "model": _values(plan.model),
        "privacy": _values(plan.target),
        "method": plan.method.table(),
    }
    if plan.trust.shared:  # written only if shared, so that older plans keep their text and their hash
        tables["trust"] = {key: value for key, value in _values(plan.trust).items() if key != "noise"}
    if plan.preparation is not None:
        tables["prepare"] = plan.preparation.table()
    return write_tables(tables)


def read_plan(text: str) -> Plan:
    """Return the plan that a text describes."""
    tables, names = read_tables(text, "The plan"), ["plan", "data", "model", "privacy", "method"]
    known(tables, [*names, "trust", "prepare"], "a plan")
    for name in names:
        require(name in tables, "The plan", f"have a [{name}] table", sorted(tables))
    head = dict(table(tables["plan"], "plan"))
    form, kind = head.pop("format", None), head.pop("algorithm", None)
    require(form == FORMAT, "plan.format", f"be {FORMAT}", form, "It was written by another version of fedveil.")
    require(kind in KINDS, "plan.algorithm", f"be one of {', '.join(KINDS)}", kind)
    known(head, _HEAD, "[plan]")
    parts: dict[str, Any] = {
        "data": _read(DataShape, tables["data"], "data"),
        "model": _read(ModelPlan, tables["model"], "model"),
        "target": _read(Target, tables["privacy"], "privacy"),
        "method": read_method(str(kind), table(tables["method"], "method")),
    }
    # Without the number in the file we would count parameters in the module, and reading a plan would run its code.
    counted = parts["model"].kind != "torch" or parts["model"].parameters is not None
    require(counted, "model.parameters", "be stated in the plan of a torch model", None)
    if "trust" in tables:
        parts["trust"] = _read(Trust, tables["trust"], "trust")
    if "prepare" in tables:
        parts["preparation"] = Preparation.read(table(tables["prepare"], "prepare"))
    try:
        return Plan(**parts, **head)
    except TypeError as error:
        raise BadValue(f"The plan must be complete: {error}.") from error


def check_canaries(count: int, data: DataShape, model: ModelPlan, kind: str, target: Target) -> None:
    """Refuse canaries where leaving one out is not what neighbours means, or where no attack knows how to look for
    them.
    """
    check_count(count)
    fits = count < min(data.records, data.features)
    require(fits, "plan.canaries", "leave other records and features", (data.records, data.features))
    hint = "Canaries are rows that linear scores are looked at for; leave [audit] out."
    require(model.kind != "torch", "audit.canaries", "be left out for a torch model", count, hint)
    pulled = pulls_when_empty(kind) and model.l2 > 0 and target.neighbours == "zero-out"
    hint = "A client without records would still send the penalty's pull: take replace-one neighbours."
    require(not pulled, "audit.canaries", f"be left out for {kind} with l2 and zero-out neighbours", count, hint)


def _values(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in fields(part)}


def _read(kind: Any, given: Any, name: str) -> Any:
    values = table(given, name)
    known(values, [f.name for f in fields(kind)], f"[{name}]")
    try:
        return kind(**values)
    except TypeError as error:
        raise BadValue(f"[{name}] must be complete: {error}.") from error

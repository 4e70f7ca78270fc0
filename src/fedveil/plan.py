"""The plan: a frozen description of what will run, and so of what is accounted for. Its hash identifies it.

The trainer and the accountant read the plan and nothing else. It holds public quantities only: the shape of the data,
never a value, nor a hash of values (guesses can be tested against a hash of private data, so a hash is a release).
"""

import hashlib
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, get_args

from fedveil.account.observers import Participation
from fedveil.algorithms.base import Method, expected
from fedveil.algorithms.hidden.method import Deal, Hidden
from fedveil.algorithms.registry import KINDS, pulls_when_empty, read_method
from fedveil.algorithms.setup import Setup
from fedveil.checks import require
from fedveil.data.canaries import check_count
from fedveil.data.feature_map import check_map
from fedveil.data.records import DataShape
from fedveil.data.spec import PLACES, Places
from fedveil.errors import BadValue
from fedveil.evaluate.request import Apart
from fedveil.evaluate.statement import Evaluation
from fedveil.mechanism import LastIterate
from fedveil.model.loss import Constants
from fedveil.model.personal_request import PersonalRequest
from fedveil.model.spec import ModelPlan
from fedveil.selection import Selection
from fedveil.stages.sums import NoisySums
from fedveil.tables import known, read_tables, table, write_tables
from fedveil.target import Target
from fedveil.trust import CENTRAL, Trust
from fedveil.values import whole

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run.

    ``grid``: state and noise are whole multiples of 2**grid. ``seeded``: the noise comes from a seed that others know.
    ``canaries``: how many of the records are slots of an audit; None without one. Where scores are linear, as many
    features belong to them.
    ``trust``: who draws the noise, and whom the clients trust with what.
    ``places``: what decides who holds which record, where that is more than row numbers; None, and then not written,
    for row numbers, for records that came as arrays, and in plans made before this was recorded. ``blank_rows``: rows
    with a missing value stay, as records that contribute nothing (not written where there can be none).
    ``feature_map``: the public function that every record went through first; None, and then not written, without one.
    ``preparation``: what is measured, with noise, before training; None, and then not written, where nothing is.
    ``evaluation``: likewise, what is counted after training. ``personal``: likewise, how parties make their own models.
    ``selection``: the plan is the best of several candidates, each with a target of its own; None, and then not
    written, for one run.
    ``test_exact``: what is measured on held-out records that are not public is published without noise (not written
    where it is not so). ``test_apart``: why no held-out row that is counted privately trains; None, and then not
    written, where nothing is counted, or where nothing but a declaration says so.
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
    preparation: NoisySums | None = None
    evaluation: Evaluation | None = None
    personal: PersonalRequest | None = None
    selection: Selection | None = None
    feature_map: str | None = None
    test_exact: bool = False
    test_apart: Apart | None = None

    def __post_init__(self) -> None:
        # A name must not contain line breaks, or it could fake further lines of the page that an operator reads.
        plain = isinstance(self.name, str) and self.name.isprintable() and len(self.name) <= 200
        require(plain, "plan.name", "be one line of at most 200 printable characters", str(self.name)[:60])
        for name in ("seeded", "test_public", "training_public", "baselines", "blank_rows", "test_exact"):
            require(type(getattr(self, name)) is bool, f"plan.{name}", "be true or false", getattr(self, name))
        for name in ("grid", "test_records"):
            object.__setattr__(self, name, whole(f"plan.{name}", getattr(self, name)))
        known_places = self.places is None or self.places in PLACES.values()
        require(known_places, "plan.places", f"be one of {', '.join(PLACES.values())}", self.places)
        require(self.test_records >= 0, "plan.test_records", "be 0 or more", self.test_records)
        words = (None, *get_args(Apart))
        require(self.test_apart in words, "plan.test_apart", f"be one of {', '.join(get_args(Apart))}", self.test_apart)
        told = not self.test_exact or (self.test_records > 0 and not self.test_public)
        require(told, "plan.test_exact", "be about held-out records that are not public", self.test_exact)
        require(-1000 <= self.grid <= 1000, "plan.grid", "lie in [-1000, 1000]", self.grid)
        check_map(self.feature_map, self.canaries)
        self.method.check(self.setup)
        if self.canaries is not None:
            check_canaries(self.canaries, self.data, self.model, self.method.kind, self.target)
        require(isinstance(self.trust, Trust), "plan.trust", "be a Trust", self.trust)
        if self.trust.shared:
            self.method.check_shares(self.setup, self.grid)
        if self.preparation is not None:
            self._check_preparation(self.preparation)
        if self.evaluation is not None:
            self._check_evaluation(self.evaluation)
        if self.personal is not None:
            self._check_personal(self.personal)
        if self.selection is not None:
            self._check_selection(self.selection)

    def _check_preparation(self, preparation: object) -> None:
        if not isinstance(preparation, NoisySums):
            raise BadValue(f"plan.preparation must be a NoisySums, got {preparation!r}.")
        preparation.check(self.data)
        hint = "Canaries are rows of the features that a study states; leave [audit] out, or state the preparation."
        require(self.canaries is None, "audit.canaries", "be left out where preparation is private", None, hint)

    def _check_evaluation(self, evaluation: object) -> None:
        if not isinstance(evaluation, Evaluation):
            raise BadValue(f"plan.evaluation must be an Evaluation, got {evaluation!r}.")
        evaluation.check(self.data, self.target, self.trust)
        hint = "Hold public records out, to measure it on them."
        require(self.model.kind != "survival", "[evaluation]", "be left out of a survival study", "survival", hint)
        hint = "Counts tell classes apart where their scores are equal."
        stated = self.model.decision_threshold
        require(stated is None, "model.decision_threshold", "be left out with a private evaluation", stated, hint)
        hint = "Canaries would be counted among the records; leave [audit] or [evaluation] out."
        require(self.canaries is None, "audit.canaries", "be left out with a private evaluation", None, hint)
        if evaluation.trains:
            return
        hint = "Public records need no private evaluation."
        held = evaluation.held is not None and evaluation.held[0] == self.test_records and not self.test_public
        require(held, "evaluation.held_records", "be the plan's held-out records, which are not public", None, hint)
        hint = "Their metrics would be computed on the same private records, without noise."
        require(not self.baselines, "report.baselines", "be left out with a private evaluation", True, hint)
        require(not self.test_exact, "plan.test_exact", "be false with a private evaluation", True)

    def _check_personal(self, personal: object) -> None:
        if not isinstance(personal, PersonalRequest):
            raise BadValue(f"plan.personal must be a PersonalRequest, got {personal!r}.")
        require(self.model.kind != "survival", "[personal]", "be left out of a survival study", self.model.kind)
        stated, hint = self.model.decision_threshold, "Every party finds its own threshold."
        require(stated is None, "model.decision_threshold", "be left out with [personal]", stated, hint)
        linear = self.model.kind != "torch"
        require(
            linear, "[personal]", "be left out of a study with a torch model", self.model.kind, "Linear models alone."
        )
        require(self.canaries is None, "audit.canaries", "be left out with [personal]", self.canaries)

    def _check_selection(self, selection: object) -> None:
        if not isinstance(selection, Selection):
            raise BadValue(f"plan.selection must be a Selection, got {selection!r}.")
        alone = self.evaluation is None and self.personal is None
        hint = "Measure or personalise the model of one run."
        require(alone, "[evaluation] and [personal]", "be left out of a tuned study", "one of them", hint)
        hint = "Canaries are looked for in the model of one run; leave [audit] out."
        require(self.canaries is None, "audit.canaries", "be left out of a tuned study", self.canaries, hint)
        hint = "Whoever sees every trial is promised their composition, which no selection makes cheaper."
        final = self.target.adversary == "final-model"
        require(final, "privacy.adversary", "be final-model for a tuned study", self.target.adversary, hint)
        found = self.candidates
        for plan in found:
            single = plan.selection is None and not plan.method.noiseless
            require(single, "plan.candidates", "be plans of one run each, with noise", plan.method.kind)
            same = all(getattr(plan, key) == getattr(self, key) for key in _ALIKE)
            same = same and _asked(plan.target) == _asked(self.target)
            require(same, "plan.candidates", "differ in model, method and grid alone", plan.name)
        own = found[selection.chosen]
        same = (own.method, own.model, own.grid) == (self.method, self.model, self.grid)
        require(same, "plan.method", "be that of the chosen candidate", selection.chosen)

    @property
    def hides(self) -> bool:
        """True if the promise is that of one run of which only the last model is seen."""
        return self.method.hides and self.selection is None

    @property
    def candidates(self) -> "tuple[Plan, ...]":
        """The plans that a trial draws from; empty for a plan of one run."""
        return () if self.selection is None else tuple(_read_once(text) for text in self.selection.candidates)

    def with_chosen(self, number: int) -> "Plan":
        """The same plan, with the candidate of this number as the one that was selected; its hash stays."""
        if self.selection is None:
            raise BadValue("The plan must be for several candidates here, and it is for one run.")
        own = self.candidates[number]
        chosen = replace(self.selection, chosen=number)
        return replace(self, method=own.method, model=own.model, grid=own.grid, selection=chosen)

    @property
    def charged_rounds(self) -> int:
        """How many rounds a charge is for: of all trials, if there are as many as there can be."""
        if self.selection is None:
            return self.method.total
        return self.selection.most * max(plan.method.total for plan in self.candidates)

    @property
    def measured(self) -> tuple[tuple[NoisySums, DataShape], ...]:
        """The noisy sums over units that train the model, which are composed with training; and over which data."""
        found = () if self.preparation is None else ((self.preparation, self.data),)
        counted = self.evaluation if self.evaluation is not None and self.evaluation.composed else None
        return found if counted is None else (*found, (counted.sums, counted.shape(self.data)))

    @property
    def setup(self) -> Setup:
        """What the method is asked about: data, model, target and trust."""
        return Setup(data=self.data, model=self.model, target=self.target, trust=self.trust)

    @property
    def real_features(self) -> int:
        """Number of features of the records themselves, without those of canaries."""
        return self.data.features - (self.canaries or 0) * (self.model.kind != "torch")

    @property
    def test_decides(self) -> bool:
        """True if something that is released depends on the held-out records, beside exact metrics on public ones."""
        chooses = self.selection is not None or getattr(self.method, "choose", None) is not None
        return self.test_records > 0 and (chooses or not self.test_public)

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
        exact = None
        if self.test_exact:
            exact = (
                f"Exact metrics on {self.test_records:,} held-out records that are not public are published: every "
                "observer is charged an infinite epsilon."
            )
        return tuple(text for text in (exact, loose) if text is not None)

    @property
    def unprotected(self) -> bool:
        """True if something leaves the clients without noise.

        Every observer is then charged as if it learned everything.
        """
        return not self.private or self.test_exact or (self.baselines and not self.training_public)

    @property
    def hidden(self) -> Hidden:
        """The method, if it is the hidden one; refused otherwise."""
        return expected(Hidden, self.method)

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
        return self.setup.units

    @property
    def dimension(self) -> int:
        """Number of model parameters."""
        return self.setup.dimension

    @property
    def sum_length(self) -> int:
        """Number of values that the clients of a round send and the server adds up."""
        return self.dimension + self.method.extra_sums

    @property
    def radius(self) -> float:
        """Radius of the ball that the model is kept in."""
        return self.method.radius(self.setup)

    @property
    def constants(self) -> Constants:
        """Constants of the model (Lipschitz, smoothness, ...) on rows of this plan."""
        return self.model.constants(self.data.bound)

    @property
    def participation(self) -> Participation:
        """How often clients take part in a hidden method."""
        return self.hidden.participation(self.setup)

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's text; of a selection, before it is known which candidate is chosen."""
        if self.selection is not None and self.selection.chosen != 0:
            return self.with_chosen(0).hash
        return hashlib.sha256(write_plan(self).encode()).hexdigest()


# each is a table of its own
_TABLES = ("data", "model", "target", "method", "trust", "preparation", "evaluation", "personal", "selection")
_OWN = ("method", "model", "grid", "target", "selection")  # in which candidates of a selection may differ
_ALIKE = [f.name for f in fields(Plan) if f.name not in _OWN]
_HEAD = [f.name for f in fields(Plan) if f.name not in _TABLES]


def write_plan(plan: Plan) -> str:
    """Return the plan as TOML text; reading it back gives an equal plan."""
    head = {key: getattr(plan, key) for key in _HEAD}
    for key in ("blank_rows", "test_exact"):  # written only if set
        if not head[key]:
            del head[key]
    tables = {
        "plan": {"format": FORMAT, "algorithm": plan.method.kind, **head},
        "data": _values(plan.data),
        "model": _values(plan.model),
        "privacy": _values(plan.target),
        "method": plan.method.table(),
    }
    tables |= plan.trust.tables()
    if plan.preparation is not None:
        tables["prepare"] = plan.preparation.table()
    if plan.evaluation is not None:
        tables["evaluation"] = plan.evaluation.table()
    if plan.personal is not None:
        tables["personal"] = plan.personal.table()
    if plan.selection is not None:
        tables["tune"] = plan.selection.table()
    return write_tables(tables)


def read_plan(text: str) -> Plan:
    """Return the plan that a text describes."""
    tables, names = read_tables(text, "The plan"), ["plan", "data", "model", "privacy", "method"]
    known(tables, [*names, "trust", "prepare", "evaluation", "personal", "tune"], "a plan")
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
    read: dict[str, tuple[str, Any]] = {"prepare": ("preparation", NoisySums), "tune": ("selection", Selection)}
    read |= {"evaluation": ("evaluation", Evaluation), "personal": ("personal", PersonalRequest)}
    for name, (key, part) in read.items():
        if name in tables:
            parts[key] = part.read(table(tables[name], name))
    try:
        return Plan(**parts, **head)
    except TypeError as error:
        raise BadValue(f"The plan must be complete: {error}.") from error


@lru_cache(maxsize=256)
def _read_once(text: str) -> Plan:
    """Return the plan of a text; those of a selection are asked for again and again."""
    return read_plan(text)


def _asked(target: Target) -> tuple[str, str, str]:
    return target.adversary, target.unit, target.neighbours


def check_canaries(count: int, data: DataShape, model: ModelPlan, kind: str, target: Target) -> None:
    """Refuse canaries where leaving one out is not what neighbours means, or where no attack knows how to look for
    them.
    """
    check_count(count)
    fits = count < (data.records if model.kind == "torch" else min(data.records, data.features))
    require(fits, "plan.canaries", "leave other records and features", (data.records, data.features))
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

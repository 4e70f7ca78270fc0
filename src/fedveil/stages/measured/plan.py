"""The plan of a job that trains nothing, frozen before anything is measured: one stage of noisy sums.

A profile, a generator, the evaluation of a released model, a statistic: all sums together are one Gaussian mechanism,
or, with Laplace noise, a pure one (fedveil.stages.sums). What the stage computes from them is post-processing; reading
or certifying a plan loads none of its code. Proof: docs/theory/preparation.md.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final

from fedveil.accounting.evaluator import bound_of, least_of, withdrawn
from fedveil.accounting.grid import Grid, on_grid
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.core.strict_json import read_object
from fedveil.core.tables import filled, known, read_tables, table, write_tables
from fedveil.data.records import DataShape
from fedveil.data.spec import PLACES, Places
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import ApproximateDP, Gaussian
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.evaluate.statement import NO_EVALUATION, Evaluation
from fedveil.stages.noise_shares import check_punctual
from fedveil.stages.stage import Stage, SumsStage
from fedveil.stages.sums import COUNTED, ERRORS, EVALUATED, NAMES, NO_SUMS, STEPS, SYNTHESISED, NoisySums

Settings = Mapping[str, Any]
FORMAT: Final = 1
PROFILE, GENERATOR, EVALUATION, ASK = "profile", "generator", "evaluation", "ask"  # stages that fedveil ships, by name
_FILE: Final = re.compile(r"[a-z][a-z0-9_]{0,40}\.(json|csv|txt)")
_TAKEN: Final = ("certificate.json", "metrics.json", "preparation.json")  # of every job
_HEAD: Final = ("name", "stage", "settings", "file", "places", "training_public", "blank_rows")
_SHARES: Final = (0.9995, 0.998, 0.99, 0.98, 0.95, 0.9, 0.7)  # of the budget, in turn: what the grid and delta leave
_SHIPPED: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {  # sums that a stage may and must have
    PROFILE: (NAMES, ()),
    GENERATOR: (SYNTHESISED, COUNTED),
    EVALUATION: (EVALUATED + ERRORS, ()),
}
_NOUNS: Final = {PROFILE: "profile", GENERATOR: "generator", EVALUATION: "evaluation", ASK: "answers"}
_EXPONENT: Final = -(STEPS.bit_length() - 1)
_ALL_KNOWN: Final = "it knows all of the noise, or there is no other client"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan:
    """Which stage, its settings as canonical JSON, whom the clients trust, and the sums with their noise.

    ``file``: the name of what is released. ``evaluation``: of a stage that counts how good a released model is, what it
    counts; its sums are then all ``sums``. ``places``: what decides who holds which record, where that is more than row
    numbers. ``training_public``: the records are declared public. ``blank_rows``: as in a plan of training.
    ``data.features``: how many columns are measured.
    """

    name: str
    stage: str
    file: str
    data: DataShape
    target: Target
    settings: str = "{}"
    sums: NoisySums = NO_SUMS
    evaluation: Evaluation = NO_EVALUATION
    trust: Trust = CENTRAL
    places: Places | None = None
    training_public: bool = False
    blank_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("training_public", "blank_rows"):
            require(type(getattr(self, name)) is bool, f"measured.{name}", "be true or false", getattr(self, name))
        for name in ("name", "stage"):
            text = getattr(self, name)
            one_line = isinstance(text, str) and text.isprintable() and 1 <= len(text) <= 200
            require(one_line, f"measured.{name}", "be one line of at most 200 printable characters", str(text)[:60])
        self._check_places()
        read = self.target.unit != "person" or self.stage == GENERATOR
        hint = "Only training and generators read the column that names persons."
        require(read, "privacy.unit", "be record or client here", self.target.unit, hint)
        canonical = canonical_text(read_object(self.settings.encode(), "measured.settings"))
        require(self.settings == canonical, "measured.settings", "be canonical JSON", self.settings[:60])
        own_file = isinstance(self.file, str) and _FILE.fullmatch(self.file) is not None and self.file not in _TAKEN
        require(own_file, "measured.file", "be the name of a file of its own, such as mean.json", self.file)
        require(isinstance(self.trust, Trust), "measured.trust", "be a Trust", self.trust)
        self.trust.check(self.data.clients)
        check_punctual(self.trust, "a generator" if self.stage == GENERATOR else "sums")
        if self.evaluation:
            self._check_evaluation(self.evaluation)
        self._check_shipped()
        self.sums.check(self.data)
        if self.sums.law == "laplace":
            alone = self.data.clients == 1 and self.trust == CENTRAL
            hint = "A sum of Laplace shares is no Laplace noise."
            require(alone, "prepare.law", "be gaussian unless one holder has all records", self.sums.law, hint)

    def _check_places(self) -> None:
        """Refuse places that noise does not cover: labels, unless they are public."""
        known_places = self.places is None or self.places in PLACES.values()
        require(known_places, "measured.places", f"be one of {', '.join(PLACES.values())}", self.places)
        hint = "Split by a column or by row numbers, or declare data.public."
        covered = self.places != "labels" or self.training_public
        require(covered, "measured.places", "not be labels, which noise does not cover", self.places, hint)

    def _check_evaluation(self, evaluation: Evaluation) -> None:
        object.__setattr__(self, "sums", evaluation.sums)
        evaluation.check(self.data, self.target, self.trust)
        apart = not evaluation.composed and evaluation.shape(self.data) == self.data
        require(apart, "evaluation.held_records", "be the plan's records, which train nothing", evaluation.held)

    def _check_shipped(self) -> None:
        """Refuse sums that a stage which fedveil ships does not ask for."""
        evaluates = (self.stage == EVALUATION) == bool(self.evaluation)
        require(evaluates, "measured.stage", f"be {EVALUATION} with an [evaluation] table, and only then", self.stage)
        names = [one.name for one in self.sums.measurements]
        require(names, "[prepare]", "list at least one sum", names)
        may, must = _SHIPPED.get(self.stage, (tuple(names), ()))
        right = set(must) <= set(names) <= set(may)
        require(right, "[prepare]", f"measure what a {self.stage} asks for: {', '.join(may)}", names)

    @property
    def stated(self) -> Settings:
        """The settings of the stage."""
        found: Settings = read_object(self.settings.encode(), "measured.settings")
        return found

    @property
    def noun(self) -> str:
        """How messages call the job."""
        return _NOUNS.get(self.stage, "result")

    @property
    def output(self) -> str:
        """The file that is released."""
        return self.file

    @property
    def named(self) -> dict[str, str]:
        """What it is, by name."""
        return {"stage": self.stage, "name": self.name}

    @property
    def preparation(self) -> NoisySums:
        """No sums: nothing is learned before the stage."""
        return NO_SUMS

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is asked of the clients, in order."""
        return (SumsStage(self.stage, self.sums, self.data.clients),)

    @property
    def seeded(self) -> bool:
        """False: no seed that others know decides its noise."""
        return False

    @property
    def private(self) -> bool:
        """True: secret noise covers everything that leaves the clients."""
        return True

    @property
    def voided(self) -> bool:
        """False: its guarantee holds whenever it ran as planned."""
        return False

    @property
    def unprotected(self) -> bool:
        """False: nothing leaves it without noise."""
        return False

    @property
    def charged_rounds(self) -> int:
        """How many rounds a charge is for: what trains nothing counts as one."""
        return 1

    @property
    def units(self) -> int:
        """Number of units (records or clients) to protect."""
        return self.data.clients if self.target.unit == "client" else self.data.records

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a reader of the numbers should know."""
        loose = self.target.loose_delta(self.units)
        return () if loose is None else (loose,)

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's text."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def mechanism_seen_by(self, adversary: Adversary) -> Gaussian | ApproximateDP | None:
        """Return all sums as this observer hears them; None where it knows all of the noise."""
        if self.sums.law == "laplace":
            return self.sums.pure(self.target.neighbours)  # one holder draws all of the noise: nobody else knows any
        return self.sums.mechanism_seen_by(adversary, self.data, self.target, self.trust)

    def promise(self, adversary: Adversary, delta: float | None = None) -> Answer:
        """Return the smallest epsilon that is proved against this observer, at the target's delta or another."""
        return _promise(self, adversary, self.target.delta if delta is None else delta)

    def text(self) -> str:
        """Return the plan as TOML text; reading it back gives an equal plan."""
        part = ("evaluation", self.evaluation.table()) if self.evaluation else ("prepare", self.sums.table())
        tables: dict[str, Mapping[str, Any]] = {
            "measured": {"format": FORMAT, **{key: getattr(self, key) for key in _HEAD}},
            "data": {f.name: getattr(self.data, f.name) for f in fields(self.data)},
            "privacy": self.target.table(),
            **self.trust.tables(),
            part[0]: part[1],
        }
        return write_tables(tables)

    @classmethod
    def describes(cls, text: str) -> bool:
        """Return whether a plan's text is one of this kind."""
        return any(line.strip() == "[measured]" for line in text.splitlines())

    @classmethod
    def read(cls, text: str) -> "MeasuredPlan":
        """Return the plan that a text describes."""
        tables = read_tables(text, "The plan")
        known(tables, ["measured", "data", "privacy", "trust", "prepare", "evaluation"], "a plan of noisy sums")
        for name in ("measured", "data", "privacy"):
            require(name in tables, "The plan", f"have a [{name}] table", sorted(tables))
        one = ("prepare" in tables) != ("evaluation" in tables)
        require(one, "The plan", "have either a [prepare] or an [evaluation] table", sorted(tables))
        head = dict(table(tables["measured"], "measured"))
        form, hint = head.pop("format", None), "It was written by another version of fedveil."
        require(form == FORMAT, "measured.format", f"be {FORMAT}", form, hint)
        known(head, _HEAD, "[measured]")
        if "trust" in tables:
            head["trust"] = filled(Trust, table(tables["trust"], "trust"), "trust")
        if "evaluation" in tables:
            head["evaluation"] = Evaluation.read(table(tables["evaluation"], "evaluation"))
        else:
            head["sums"] = NoisySums.read(table(tables["prepare"], "prepare"), None)
        try:
            return cls(
                data=filled(DataShape, table(tables["data"], "data"), "data"),
                target=filled(Target, table(tables["privacy"], "privacy"), "privacy"),
                **head,
            )
        except TypeError as error:
            raise BadValue(f"The plan must be complete: {error}.") from error


@lru_cache(maxsize=64)
def _promise(plan: MeasuredPlan, adversary: Adversary, delta: float) -> Answer:
    """Return what is proved of all sums together, on their grid.

    Contributions are whole numbers of steps, so nothing is displaced: docs/theory/preparation.md.
    """
    if plan.evaluation:
        return plan.evaluation.answer(adversary, plan.data, plan.target, plan.trust, delta)
    from fedveil.accounting.compare import account_for  # a site's rounds need no accountant

    seen = plan.mechanism_seen_by(adversary)
    if seen is None:
        return least_of([bound_of(withdrawn("loss-distribution", _ALL_KNOWN), delta, None)], delta, None)
    grid = Grid(
        exponent=_EXPONENT,
        dimension=1,
        rounds=1,
        distance=0.0,
        total_variation=plan.sums.total_variation(plan.data, plan.trust),
        mishap=plan.sums.mishap(adversary, plan.trust),
    )
    return on_grid(grid, lambda inner: account_for(seen, delta=inner), delta)


def spend_budget(make: Callable[[float], MeasuredPlan], target: Target, what: str, most: float = 1.0) -> MeasuredPlan:
    """Return the first plan that meets the target; ``make``: the plan whose sums take this share of the budget.

    What the grid and the thresholds cost is known only of a whole plan, so smaller shares, beginning below ``most``,
    are tried in turn.
    """
    target.check_delta()
    for share in (one for one in _SHARES if one <= most):
        plan = make(share)
        if plan.promise(target.adversary).epsilon <= target.epsilon:
            return plan
    raise CannotCertify(
        f"The target, epsilon {target.epsilon:g} at delta {target.delta:g} against {target.adversary}, is out of reach "
        f"for {what}. Raise epsilon or delta."
    )


def canonical_text(settings: Settings) -> str:
    """Return settings as the one JSON text that stands for them.

    >>> canonical_text({"b": 1, "a": [2.5]})
    '{"a":[2.5],"b":1}'
    """
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)

"""Everything that the report says, as values read from a run's records; the page only formats it."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.accounting.sampling_alone import SeenByAll
from fedveil.audit.record import FILE as AUDIT
from fedveil.audit.record import read_audit
from fedveil.certificate.assumptions import Assumption
from fedveil.certificate.data_set import sentence
from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.models.metrics import no_better
from fedveil.planning.plan import Plan, read_plan
from fedveil.planning.promises import ADVERSARIES, every_model_seen
from fedveil.privacy.guarantee import Adversary, Bound
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.report.audit_view import AuditView, audit_view
from fedveil.report.outlook import Curve, Places, curve_of, places_of
from fedveil.report.quality import PrivateEvaluation, Quality, answer_name, counted_of, intervals_of, quality_of
from fedveil.report.shapes import Shape, shapes_in
from fedveil.report.timeline import Timeline, timeline_in
from fedveil.signing import signature_in

_MOST_POINTS = 120  # most points of a schedule's lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """What is promised against one observer; nothing if there is no epsilon."""

    adversary: Adversary
    sees: str
    epsilon: float | None
    delta: float
    certified_by: str | None
    bounds: tuple[Bound, ...]
    assumptions: tuple[Assumption, ...]

    @property
    def least(self) -> float | None:
        """The least epsilon that a bound proves; it counts only if the noise was secret."""
        proved = [b.epsilon for b in self.bounds if b.status == "certified" and b.epsilon is not None]
        return min(proved, default=self.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedItem:
    """One released thing, and whether the guarantee covers it."""

    what: str
    file: str
    covered: bool
    sha256: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """One model on the test records: every metric that was given, by its name; and 95% intervals of some of them."""

    name: str
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """How well the released model does, and others beside it; the released one comes first.

    ``constant``: the best constant answer, as one of the others; ``useless``: a sentence where the model does no
    better. ``quality``: class by class, and how far its probabilities can be trusted.
    """

    task: str
    records: int
    public: bool
    scores: tuple[Score, ...]
    per_client: Mapping[str, float] = field(default_factory=dict)
    constant: Score | None = None
    useless: str | None = None
    quality: Quality | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Numbers of each round (of some, if there are many): step size, noise per unit, noise on the model, batch."""

    rounds: tuple[int, ...]
    step: tuple[float, ...]
    noise: tuple[float, ...]
    added: tuple[float, ...]
    batch: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How the numbers come about. ``places``, ``schedule`` and ``alone`` are of hidden runs only.

    ``alone``: what secret sampling gives at the noise of a hidden run when every model is seen.
    """

    curves: tuple[Curve, ...]
    places: Places | None = None
    schedule: Schedule | None = None
    alone: SeenByAll | None = None


@dataclass(frozen=True, slots=True)
class Signed:
    """The fingerprint of the key that signed the certificate, if one did, and whether its signature is valid."""

    signer: str | None = None
    valid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One run, ready to be shown.

    ``clients``: each client's own epsilon (None: no guarantee), if the method gives clients different ones; ``audit``:
    what attacks achieved, if the run was attacked; ``counted``: a private evaluation; ``shapes``: what each column adds
    to the score, the most important first; ``data_set``: how many runs the ledger of the data had when this one ended,
    and their total (observer, epsilon, delta), where there are others; ``timeline``: of one round, where it was traced.
    """

    plan: Plan
    plan_hash: str
    run: str
    version: str
    private: bool
    observers: tuple[Observer, ...]
    released: tuple[ReleasedItem, ...]
    proof: Proof
    utility: Utility | None
    clients: tuple[tuple[int, float | None], ...] = ()
    audit: AuditView | None = None
    signed: Signed = Signed()
    counted: PrivateEvaluation | None = None
    shapes: tuple[Shape, ...] = ()
    data_set: tuple[int, tuple[tuple[str, float | None, float], ...]] = (1, ())
    timeline: Timeline | None = None

    @property
    def hidden(self) -> bool:
        """True if only the last of many models is released, and the promise depends on that."""
        return self.plan.hides

    def observer(self, adversary: str) -> Observer | None:
        """Return what is promised against this observer, if the certificate names it."""
        return next((one for one in self.observers if one.adversary == adversary), None)

    @property
    def total(self) -> str:
        """What all runs on the data set cost together, in words."""
        runs, totals = self.data_set
        who = self.plan.target.adversary
        epsilon, delta = next(((e, d) for adversary, e, d in totals if adversary == who), (None, 0.0))
        return sentence(runs, epsilon, delta, who)

    @property
    def target(self) -> Observer:
        """The observer that the plan was made against."""
        observer = self.observer(self.plan.target.adversary)
        require(observer is not None, "certificate.guarantees", "name the plan's adversary", self.plan.target.adversary)
        return observer or self.observers[0]


def view_of(folder: Path) -> View:
    """Return the view of a finished run; refuse records that do not belong together."""
    plan = read_plan(_text(folder / "plan.toml"))
    certificate = _json(folder / "certificate.json")
    metrics = _json(folder / "metrics.json")
    try:
        observers = tuple(_observer(given) for given in certificate["guarantees"])
        released = (
            *(_released_items(given) for given in certificate["released"]),
            *_bundle_item(folder, certificate["released"]),
        )
        stated, private = certificate["plan"], certificate["private"]
        named = {key: str(certificate[key]) for key in ("run", "version")}
        utility = _utility(metrics)
        counted = counted_of(metrics.get("evaluation"))
        whole = certificate.get("data_set", {"runs": 1, "guarantees": []})
        totals = tuple(
            (str(row["adversary"]), _number(row["epsilon"]), float(row["delta"])) for row in whole["guarantees"]
        )
        data_set = int(whole["runs"]), totals
        clients = tuple((int(row["client"]), _number(row["epsilon"])) for row in certificate.get("clients", ()))
    except BadValue:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadValue(f"certificate.json and metrics.json must be complete: {error!r}. Certify again.") from error
    hint = "certificate.json is of another run; write it again with: fedveil certify."
    require(stated == plan.hash, "plan.toml", f"be the plan that was certified, {stated}", plan.hash, hint)
    _check_model(folder / "model.npz", released)
    signature = signature_in(folder)
    hidden = plan.hides
    final = any(one.adversary == "final-model" for one in observers)
    return View(
        plan=plan,
        plan_hash=stated,
        private=private is True,  # in doubt, "not private"
        observers=observers,
        released=released,
        proof=Proof(
            curves=tuple(
                curve_of(plan, seen.adversary, seen.bounds, (seen.delta, seen.epsilon))
                for seen in _curve_observers(plan, observers)
            ),
            places=places_of(plan) if hidden and final and not plan.measured else None,
            schedule=_schedule(plan) if hidden else None,
            alone=every_model_seen(plan) if hidden and final else None,
        ),
        counted=counted,
        shapes=shapes_in(folder, plan),
        data_set=data_set,
        timeline=timeline_in(folder),
        utility=utility,
        clients=clients,
        audit=_audit(folder / AUDIT, stated, named["run"]),
        signed=Signed()
        if signature is None
        else Signed(signature.signer.fingerprint, signature.fits((folder / "certificate.json").read_bytes())),
        **named,
    )


def _audit(path: Path, plan: str, run: str) -> AuditView | None:
    if not path.exists():
        return None
    audit = read_audit(_text(path))
    audit.check(plan=plan, run=run)
    return audit_view(audit)


def _curve_observers(plan: Plan, observers: Sequence[Observer]) -> list[Observer]:
    """Return the observers whose curves are shown: those that hiding is about, or the plan's and the best informed."""
    if plan.hides:
        return [seen for seen in observers if seen.adversary in ("final-model", "every-model")]
    able = [(seen.least, seen) for seen in observers if seen.least is not None]
    most = max((least for least, _ in able), default=0.0)
    main = [seen for _, seen in able if seen.adversary == plan.target.adversary]
    worst = [seen for least, seen in able if least == most and (not main or least != main[0].least)]
    return [*main, *worst[:1]]


def _observer(given: Mapping[str, Any]) -> Observer:
    bounds = tuple(
        Bound(name=str(b["name"]), status=b["status"], reason=str(b["reason"]), epsilon=_number(b["epsilon"]))
        for b in given["bounds"]
    )
    rows = tuple(Assumption(str(a["name"]), str(a["value"]), str(a["enforced_by"])) for a in given["assumptions"])
    return Observer(
        adversary=_adversary(given["adversary"]),
        sees=str(given["sees"]),
        epsilon=_number(given["epsilon"]),
        delta=float(given["delta"]),
        certified_by=None if given["certified_by"] is None else str(given["certified_by"]),
        bounds=bounds,
        assumptions=rows,
    )


def _adversary(name: Any) -> Adversary:
    words: dict[str, Adversary] = {known: known for known in ADVERSARIES}
    require(name in words, "certificate: adversary", f"be one of {', '.join(words)}", name)
    return words[name]


def _released_items(given: Mapping[str, Any]) -> ReleasedItem:
    digest = given.get("sha256")
    return ReleasedItem(
        what=str(given["what"]),
        file=str(given["file"]),
        covered=given["covered"] is True,
        sha256=None if digest is None else str(digest),
        note=str(given.get("note", "")),
    )


def _bundle_item(folder: Path, listed: Sequence[Mapping[str, Any]]) -> list[ReleasedItem]:
    """The bundle, which holds the certificate and so is not named in it: it is covered where the model is."""
    model = [row for row in listed if row["file"] == "model.npz"]
    if not model or not (folder / BUNDLE).exists():
        return []
    note = "the plan, the model and the certificate as they are, and what the study states about the columns"
    return [
        ReleasedItem(
            what="the same model, with all that a prediction needs",
            file=BUNDLE,
            covered=model[0]["covered"] is True,
            note=note,
        )
    ]


def _utility(metrics: Mapping[str, Any]) -> Utility | None:
    test = metrics["test"]
    if test is None:
        return None
    others = [Score(str(name), _scores(given)) for name, given in (metrics.get("baselines") or {}).items()]
    constant = test.get("baseline")
    always = None if constant is None else Score(answer_name(constant), _scores(constant))
    released = Score("released model", _scores(test), intervals_of(test))
    return Utility(
        task=str(metrics["task"]),
        records=int(test["records"]),
        public=test["public"] is True,
        scores=(released, *([] if always is None else [always]), *others),
        per_client=_per_client(test.get("per_client") or {}),
        constant=always,
        useless=no_better(test),
        quality=quality_of(test),
    )


def _scores(given: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics by name; one that could not be computed (null) is left out."""
    keys = ("accuracy", "auc", "log_loss", "brier", "loss", "r2", "mae", "rmse", "deviance", "concordance")
    scores = {key: _number(given.get(key)) for key in keys}
    if scores["mae"] is None:  # before it was given in the target's own unit
        scores["mae"] = _number(given.get("mean_absolute_error"))
    return {key: value for key, value in scores.items() if value is not None}


def _per_client(given: Mapping[str, Any]) -> dict[str, float]:
    """Return one number per client: its accuracy, or its mean absolute error."""
    rows = {str(name): _scores(row if isinstance(row, Mapping) else {"accuracy": row}) for name, row in given.items()}
    scores = {name: row.get("accuracy", row.get("mae")) for name, row in rows.items()}
    return {name: value for name, value in scores.items() if value is not None}


def _number(value: Any) -> float | None:
    """Return a finite number, or None."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _schedule(plan: Plan) -> Schedule:
    run = plan.run
    step, noise, batch = (per_round(v, run) for v in (run.step_size, run.noise_std, run.batch))
    added = step * noise / (np.sqrt(batch) if run.noise == "gaussian" else 1.0)
    count = min(run.total, _MOST_POINTS)
    kept = np.unique(np.linspace(0, run.total - 1, count).round().astype(np.intp))
    chosen: Sequence[tuple[float, ...]] = [tuple(float(x) for x in v[kept]) for v in (step, noise, added, batch)]
    return Schedule(
        rounds=tuple(int(k) + 1 for k in kept), step=chosen[0], noise=chosen[1], added=chosen[2], batch=chosen[3]
    )


def _check_model(path: Path, released: Sequence[ReleasedItem]) -> None:
    """Refuse a model file that is not the released one, because a page about another model would mislead."""
    stated = next((row.sha256 for row in released if row.file == "model.npz"), None)
    if stated is None or not path.exists():
        return
    digest = hashlib.sha256(read_file(path)).hexdigest()
    require(digest == stated, "model.npz", f"be the model that was certified, {stated}", digest)


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The run's record {path.name} must be readable: {why(error)}.") from error


def _json(path: Path) -> dict[str, Any]:
    content = read_object(_text(path), f"The run's record {path.name}")
    require(content.get("format") == 1, f"{path.name}: format", "be 1", content.get("format"))
    return content

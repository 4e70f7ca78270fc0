"""The certificate of a job, computed from its records alone: without training code and without data.

``plan.toml`` says what was to be done, ``ledger.jsonl`` what was charged and released; a model, a profile, a generator
or another result was released. One composition serves every plan: each observer is promised what the plan's stages
together promise.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Generic, Protocol, TypeGuard, TypeVar, final

from fedveil.accounting.grid import on_grid
from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.data_set import DataSet, data_set_of
from fedveil.certificate.stage_words import MODEL, released_rows, words_of
from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.data.read_formats import model_arrays
from fedveil.ledger.budget import Cost, total
from fedveil.ledger.costs import cost_of, covered
from fedveil.ledger.entry import Entry, parse_export, read_export
from fedveil.planning.plan import AnyPlan, Plan, read_any_plan
from fedveil.planning.promises import ADVERSARIES, forgotten, grid_of, promise
from fedveil.privacy.guarantee import Adversary, Answer, finite_or_none
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.stages.train.base import Setup

_DIGITS = 1e-7  # by which accounts of the same run may differ from version to version
_PERSONAL = {
    "what": "parties make models of their own from the final model and their own records, each at that party",
    "if_they_stay": "free: nothing leaves the party, and no guarantee above changes",
    "if_shown": "a party's own model has no guarantee for that party's records (epsilon infinite): it is fitted "
    "without noise; the records of all other parties stay covered as stated above",
    "epsilon_if_shown": None,
}
P = TypeVar("P", Plan, MeasuredPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What is promised against one observer, by which bound, and on which assumptions."""

    adversary: Adversary
    answer: Answer
    assumptions: tuple[Assumption, ...]


class PerClient(Protocol):
    """A method that gives each client a guarantee of its own, against the target's observer."""

    def clients(self, delta: float, setup: Setup) -> Sequence[tuple[int, float]]:
        """Return every client's index and its epsilon with ideal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified(Generic[P]):
    """All guarantees of one job.

    ``clients``: the epsilon of each client, if the method tells clients apart. ``ledger``: the hash of the job's last
    entry, and so of everything in the books before it; None without books. ``charged_more``: sentences that say where
    the books charged more than the plan costs; they are not written to the file. ``data_set``: what all runs on the
    data cost together when this one ended; written where there are others.
    """

    plan: P
    run: str
    version: str
    guarantees: tuple[Guarantee, ...]
    released: tuple[dict[str, Any], ...]
    clients: tuple[tuple[int, float], ...] = ()
    ledger: str | None = None
    charged_more: tuple[str, ...] = ()
    data_set: DataSet | None = None

    @property
    def private(self) -> bool:
        """True if anything is promised.

        Not for a known seed, without noise, or if private labels decide who holds a record.
        """
        return self.plan.private

    @property
    def sees(self) -> Mapping[Adversary, str]:
        """In words, what each observer sees."""
        return words_of(self.plan).sees

    @property
    def kind(self) -> str:
        """What people call the job: a run, a profile."""
        return words_of(self.plan).kind

    def _repr_html_(self) -> str:
        """Return a table of the guarantees for a notebook; every text is escaped."""
        target = self.plan.target
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{one.adversary}</th>'
            f"<td>{_shown(one.answer.epsilon if self.private else math.inf)}</td>"
            f'<td style="text-align:left">{escape(self.sees[one.adversary])}</td></tr>'
            for one in self.guarantees
        )
        title = f"Certificate for one {target.unit} ({target.neighbours}), delta {target.delta:g}"
        state = "" if self.private else " <strong>NOT PRIVATE</strong>"
        heads = "".join(f'<th scope="col">{head}</th>' for head in ("observer", "epsilon", "sees"))
        caption = f'<caption style="text-align:left">{title}{state}</caption>'
        return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"

    def as_json(self) -> dict[str, Any]:
        """Return the certificate as values for JSON."""
        return {
            "format": 1,
            "version": self.version,
            **self.plan.named,
            "plan": self.plan.hash,
            "run": self.run,
            **({"ledger": self.ledger} if self.ledger is not None else {}),
            "private": self.private,
            "guarantees": [guarantee_row(self.plan, one) for one in self.guarantees],
            **({"clients": self._client_rows()} if self.clients else {}),
            **({} if self.data_set is None else self.data_set.written()),
            "released": list(self.released),
            **self._further(),
        }

    def _further(self) -> dict[str, Any]:
        """Return what is said of things that are made from what was released: nothing."""
        return {}

    def _client_rows(self) -> list[dict[str, Any]]:
        return [
            {"client": client, "epsilon": None if self.plan.voided else finite_or_none(epsilon)}
            for client, epsilon in self.clients
        ]

    def text(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"


@final
class Certificate(Certified[Plan]):
    """The certificate of a run that trains.

    Example::

        certificate = fedveil.run_study("study.toml", out="results").certificate
        for guarantee in certificate.guarantees:
            print(guarantee.adversary, guarantee.answer.epsilon)
    """

    __slots__ = ()

    def _further(self) -> dict[str, Any]:
        """Return what is said of models that parties make of the released one."""
        personal = {"personal": _PERSONAL} if self.plan.personal else {}
        return personal | ({"forgotten": _forgotten(self.plan)} if self.plan.forgetting else {})


@final
class MeasuredCertificate(Certified[MeasuredPlan]):
    """The certificate of a stage of noisy sums that trains nothing: a profile, a generator, an evaluation, a result."""

    __slots__ = ()


def _shown(epsilon: float) -> str:
    """Four decimals, rounded up; infinity is no guarantee."""
    return f"{math.ceil(epsilon * 10_000) / 10_000:g}" if math.isfinite(epsilon) else "no guarantee"


def _forgotten(plan: Plan) -> dict[str, Any]:
    """Return what is promised to those who left before this model was released."""
    rows = [
        {
            "units": row.units,
            "together": row.together,
            "left_with": row.left,
            "delta": row.new_model.delta,
            "epsilon_new_model_only": finite_or_none(row.new_model.epsilon),
            "epsilon_all_models": finite_or_none(row.every_model.epsilon),
        }
        for row in forgotten(plan)
    ]
    return {
        "units": rows,
        "assumes": "for new_model_only, that all models before are withdrawn, with all that was released with them",
    }


def certify(folder: Path, version: str) -> Certificate:
    """Return the certificate that the records in ``folder`` support; refuse if a record is missing or was altered."""
    plan, entries = read_records(folder)
    return Certificate(plan=plan, version=version, clients=client_epsilons(plan), **_checked(folder, plan, entries))


def certify_measured(folder: Path, version: str) -> MeasuredCertificate:
    """Return the certificate of a job that trains nothing; refuse if a record is missing or was altered."""
    plan, entries = _read_records(folder)
    hint = "It holds a run: all there is of it is in certify."
    if not isinstance(plan, MeasuredPlan):
        raise BadValue(f"{folder} must be the folder of a job that trains nothing. {hint}")
    return MeasuredCertificate(plan=plan, version=version, **_checked(folder, plan, entries))


def certify_any(folder: Path, version: str) -> Certificate | MeasuredCertificate:
    """Return the certificate of whatever a folder holds the records of."""
    return certify_measured(folder, version) if is_measured(folder) else certify(folder, version)


def is_measured(folder: Path, stage: str | None = None) -> bool:
    """Return whether a folder holds the records of a job that trains nothing; of this stage, if one is named."""
    path = folder / "plan.toml"
    if not path.is_file():
        return False
    text = read_file(path).decode("utf-8", "replace")
    return MeasuredPlan.describes(text) and (stage is None or MeasuredPlan.read(text).stage == stage)


def _checked(folder: Path, plan: AnyPlan, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what the records support: everything of a certificate that every plan has."""
    words, charge, release = words_of(plan), entries[0], entries[-1]
    require(charge.kind == "charge", "The ledger", "begin with a charge", charge.kind)
    named = charge.payload.get("plan")
    require(named == plan.hash, "plan.toml", f"be the plan that was charged, {named}", plan.hash)
    more = check_charge(plan, charge)
    hint = f"The {plan.noun} did not finish; {words.resume}."
    require(release.kind == "release", "The ledger", "end with a release", release.kind, hint)
    digest, stated = _digest(folder / plan.output), release.payload.get("model")
    require(
        digest == stated, plan.output, f"be the {plan.output.partition('.')[0]} that was released, {stated}", digest
    )
    digests = {plan.output: digest}
    if plan.preparation:
        digests[PREPARATION] = _learned_digest(folder)
    return {
        "run": charge.run,
        "ledger": release.hash,
        "guarantees": tuple(
            Guarantee(adversary=who, answer=promise(plan, who), assumptions=assumptions(plan, who))
            for who in ADVERSARIES
        ),
        "released": released_rows(plan, digests, covered(plan)),
        "charged_more": more,
        "data_set": data_set_of(parse_export(read_bytes(folder / "ledger.jsonl"))),
    }


def check_charge(plan: AnyPlan, charge: Entry) -> tuple[str, ...]:
    """Refuse a charge below what the plan costs; return sentences that say where more was charged.

    Charging more is safe: all sums in the books are then larger than necessary. It happens if a later version proves a
    smaller cost than the version that charged. Another version may also round the last digits otherwise; so little is
    not refused, and the certificate states what this version proves.
    """
    try:
        stated = [Cost.read(cost) for cost in charge.payload["costs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadValue(f"The charge must state its costs, and they cannot be read: {error}.") from error
    more = []
    for adversary in ADVERSARIES:
        owed = cost_of(plan, adversary)
        booked = total([stated], adversary, owed.unit, owed.neighbours)  # in the form that the books use
        enough = booked.epsilon * (1 + _DIGITS) >= owed.epsilon and booked.delta >= owed.delta
        rule = f"be at least what the plan costs, epsilon {owed.epsilon} and delta {owed.delta}"
        require(enough, f"The charge for {adversary}", rule, (booked.epsilon, booked.delta))
        if booked != owed and booked.epsilon >= owed.epsilon:
            more.append(
                f"The books charged more than the plan costs against {adversary}: epsilon {booked.epsilon:.6g}, delta "
                f"{booked.delta:.6g}, and epsilon {owed.epsilon:.6g}, delta {owed.delta:.6g} is proved. The charge "
                "stands, and the certificate states what is proved."
            )
    rounds, owed_rounds = charge.payload.get("rounds"), plan.charged_rounds
    require(rounds == owed_rounds, "The charge", f"be for {owed_rounds} rounds", rounds)
    return tuple(more)


def _read_records(folder: Path) -> tuple[AnyPlan, list[Entry]]:
    """Return the plan, and the job's own entries of the ledger with their hash chain checked."""
    plan = read_any_plan(_read(folder / "plan.toml"))
    entries = read_export(folder / "ledger.jsonl")
    require(len(entries) >= 1, "ledger.jsonl", f"hold the {plan.noun}'s entries", 0)
    return plan, entries


def read_records(folder: Path) -> tuple[Plan, list[Entry]]:
    """Return the same of a run that trains, and refuse any other job."""
    plan = read_any_plan(_read(folder / "plan.toml"))
    hint = "It trained nothing: all there is of it is its certificate, fedveil certify."
    if not isinstance(plan, Plan):
        raise BadValue(f"{folder} must be the folder of a run, got {words_of(plan).kind!r}. {hint}")
    return plan, _read_records(folder)[1]


def certify_written(folder: Path, version: str) -> tuple[Certificate, list[str]]:
    """Return the certificate that the records support, and how the written one differs from it.

    The comparison is byte by byte; stating another version is a difference.
    """
    _read(folder / "plan.toml")  # first, so that a folder without a run is reported as such
    stated = read_bytes(folder / "certificate.json")
    result = certify(folder, version)
    return result, differences(result, stated)


def differences(found: Certificate | MeasuredCertificate, stated: str | bytes) -> list[str]:
    """List how a recomputed certificate and a written one differ; an empty list means that they are the same bytes."""
    data = stated.encode("utf-8", "surrogatepass") if isinstance(stated, str) else stated
    own = found.text()
    if data == own.encode():
        return []
    try:
        given, computed = read_object(data, "certificate.json"), read_object(own, "the certificate")
    except BadValue as error:
        return [str(error).rstrip(".")]
    if given.get("version") != computed["version"]:
        known = f"version is {str(given.get('version'))[:40]!r}, and this fedveil knows {computed['version']!r}"
        return [known, *_changed({**given, "version": computed["version"]}, computed)]
    return _changed(given, computed) or ["the values are the same but the bytes are not, so fedveil did not write it"]


def _changed(given: dict[str, Any], computed: dict[str, Any]) -> list[str]:
    keys = sorted(set(given) | set(computed))
    different = [key for key in keys if key not in given or given[key] != computed.get(key)]
    return [f"{key} differs{_epsilons_changed(given, computed) if key == 'guarantees' else ''}" for key in different]


def _epsilons_changed(given: dict[str, Any], computed: dict[str, Any]) -> str:
    """Return a sentence about the epsilons that differ between file and computation.

    Empty if no guarantees are listed.
    """
    try:
        stated = {row["adversary"]: row["epsilon"] for row in given["guarantees"]}
        found = {row["adversary"]: row["epsilon"] for row in computed["guarantees"]}
        pairs = [(name, stated[name], found[name]) for name in found if stated[name] != found[name]]
        told = [f"{name}: {_told(old)} is stated, {_told(new)} is computed" for name, old, new in pairs]
        weaker = all(new is not None and (old is None or old > new) for _, old, new in pairs)
    except (KeyError, TypeError):
        return ""
    if not told:
        return ""
    hint = "; what is stated promises less than what is proved" if weaker else ""
    return f" (epsilon for {', for '.join(told)}{hint})"


def _told(epsilon: object) -> str:
    return "none" if epsilon is None else f"{epsilon:.6g}" if isinstance(epsilon, float | int) else str(epsilon)[:40]


def client_epsilons(plan: Plan) -> tuple[tuple[int, float], ...]:
    """Return each client's own epsilon for the run on its grid, at the target's delta.

    Return nothing if the method does not tell clients apart. What is proved for all clients holds for each, so no
    client gets a larger epsilon than all clients together.
    """
    method: object = plan.method
    # Preparation, evaluation and selection cost all clients alike: one row for all.
    if not _per_client(method) or plan.measured or plan.evaluation or plan.selection:
        return ()
    target = plan.target
    grid, together = grid_of(plan, target.adversary), promise(plan, target.adversary).epsilon

    @cache
    def ideal(inner: float) -> dict[int, float]:
        return dict(method.clients(inner, plan.setup))

    def own(client: int) -> float:
        def answer(inner: float) -> Answer:
            return Answer(epsilon=ideal(inner)[client], delta=inner, certified_by="its own", bounds=())

        return on_grid(grid, answer, target.delta).epsilon

    listed = sorted(ideal(target.delta))
    if listed != list(range(plan.data.clients)) or len(listed) < 2:
        return ()  # there is only one row, and it is the same guarantee
    return tuple((client, min(own(client), together)) for client in listed)


def _per_client(method: object) -> TypeGuard[PerClient]:
    return callable(getattr(method, "clients", None))


def _learned_digest(folder: Path) -> str:
    """The digest of the learned preparation, which must be the one that the released model names."""
    result = _digest(folder / PREPARATION)
    try:
        with model_arrays(read_file(folder / MODEL)) as model:
            named = str(model["preparation"])
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"model.npz must name the preparation that it was trained with: {why(error)}.") from error
    require(result == named, PREPARATION, f"be the preparation that the model names, {named}", result)
    return result


def guarantee_row(plan: AnyPlan, guarantee: Guarantee) -> dict[str, Any]:
    """Return a guarantee as values for JSON; a number that does not hold for what ran is left out."""
    answer, target, voided = guarantee.answer, plan.target, plan.voided
    bounds = [
        {"name": b.name, "epsilon": finite_or_none(b.epsilon), "status": b.status, "reason": b.reason}
        for b in answer.bounds
    ]
    return {
        "adversary": guarantee.adversary,
        "sees": words_of(plan).sees[guarantee.adversary],
        "unit": target.unit,
        "neighbours": target.neighbours,
        "epsilon": None if voided else finite_or_none(answer.epsilon),
        "delta": answer.delta,
        "certified_by": None if voided else answer.certified_by,
        "bounds": bounds,
        "assumptions": [
            {"name": a.name, "value": a.value, "enforced_by": a.enforced_by} for a in guarantee.assumptions
        ],
    }


def _read(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The run's record {path.name} must be readable: {why(error)}.") from error


def _digest(path: Path) -> str:
    return hashlib.sha256(read_bytes(path)).hexdigest()


def read_bytes(path: Path) -> bytes:
    """Return the content of one of a run's records."""
    try:
        return read_file(path)
    except OSError as error:
        raise BadValue(f"The run's record {path.name} must be readable: {why(error)}.") from error

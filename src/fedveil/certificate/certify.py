"""The certificate of a run, computed from its records alone: without training code and without data.

``plan.toml`` says what was to run, ``ledger.jsonl`` what was charged and released; ``model.npz`` was released.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from fedveil.accounting.grid import on_grid
from fedveil.certificate.assumptions import Assumption, assumptions
from fedveil.certificate.data_set import DataSet, data_set_of
from fedveil.core.checks import require
from fedveil.core.errors import BadValue, why
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.data.read_npz import model_arrays
from fedveil.ledger import Cost, Entry, parse_export, read_export
from fedveil.ledger.budget import total
from fedveil.ledger.costs import Chargeable, cost_of, covered, rounds_of
from fedveil.planning.plan import Plan, read_plan
from fedveil.planning.promises import ADVERSARIES, grid_of, promise
from fedveil.privacy.guarantee import Adversary, Answer, finite_or_none
from fedveil.privacy.target import Target
from fedveil.stages.evaluate.plan import EvaluationPlan
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.profile.plan import ProfilePlan
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.stages.synthesise.plan import SynthesisPlan

_DIGITS = 1e-7  # by which accounts of the same run may differ from version to version
_PERSONAL = {
    "what": "parties make models of their own from the final model and their own records, each at that party",
    "if_they_stay": "free: nothing leaves the party, and no guarantee above changes",
    "if_shown": "a party's own model has no guarantee for that party's records (epsilon infinite): it is fitted "
    "without noise; the records of all other parties stay covered as stated above",
    "epsilon_if_shown": None,
}
SEES: dict[Adversary, str] = {
    "final-model": "the released model",
    "curious-client": "the models it was sent, its own noise, and the released model",
    "every-model": "the model after every round",
    "server-with-secure-aggregation": "the noised sum of every round, and who took part in it",
    "server": "every client's own noised update",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What is promised against one observer, by which bound, and on which assumptions."""

    adversary: Adversary
    answer: Answer
    assumptions: tuple[Assumption, ...]


class Written(Protocol):
    """A certificate that can be written down."""

    def text(self) -> str:
        """Return it as JSON."""


class PerClient(Protocol):
    """A method that gives each client a guarantee of its own, against the target's observer."""

    def clients(self, delta: float, target: Target) -> Sequence[tuple[int, float]]:
        """Return every client's index and its epsilon with ideal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """All guarantees of one run.

    ``clients``: the epsilon of each client, if the method tells clients apart. ``ledger``: the hash of the run's last
    entry, and so of everything in the books before it; None without books. ``charged_more``: sentences that say where
    the books charged more than the plan costs; they are not written to the file. ``data_set``: what all runs on the
    data cost together when this one ended; written where there are others.
    """

    plan: Plan
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

    def text(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(_as_json(self), indent=1, allow_nan=False) + "\n"


# jobs that leave a plan of another kind
_OTHERS = {
    "a profile": ProfilePlan.describes,
    "a generator": SynthesisPlan.describes,
    "an evaluation of a model": EvaluationPlan.describes,
    "noisy sums": MeasuredPlan.describes,
}


def certify(folder: Path, version: str) -> Certificate:
    """Return the certificate that the records in ``folder`` support; refuse if a record is missing or was altered."""
    plan, entries = read_records(folder)
    charge, release = entries[0], entries[-1]
    require(charge.kind == "charge", "The ledger", "begin with a charge", charge.kind)
    named = charge.payload.get("plan")
    require(named == plan.hash, "plan.toml", f"be the plan that was charged, {named}", plan.hash)
    more = check_charge(plan, charge)
    hint = "The run did not finish; go on with: fedveil run --resume."
    require(release.kind == "release", "The ledger", "end with a release", release.kind, hint)
    model, stated = _digest(folder / "model.npz"), release.payload.get("model")
    require(model == stated, "model.npz", f"be the model that was released, {stated}", model)
    learned = _learned_digest(folder) if plan.preparation else None
    guarantees = tuple(_guarantee(plan, adversary) for adversary in ADVERSARIES)
    return Certificate(
        plan=plan,
        run=charge.run,
        ledger=release.hash,
        version=version,
        guarantees=guarantees,
        released=_released(plan, model, learned),
        clients=client_epsilons(plan),
        charged_more=more,
        data_set=data_set_of(parse_export(read_bytes(folder / "ledger.jsonl"))),
    )


def check_charge(plan: Chargeable, charge: Entry) -> tuple[str, ...]:
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
    rounds, owed_rounds = charge.payload.get("rounds"), rounds_of(plan)
    require(rounds == owed_rounds, "The charge", f"be for {owed_rounds} rounds", rounds)
    return tuple(more)


def read_records(folder: Path) -> tuple[Plan, list[Entry]]:
    """Return the plan, and the run's own entries of the ledger with their hash chain checked."""
    text = _read(folder / "plan.toml")
    other = next((what for what, is_it in _OTHERS.items() if is_it(text)), None)
    hint = "It trained nothing: all there is of it is its certificate, fedveil certify."
    require(other is None, str(folder), "be the folder of a run", other, hint)
    plan = read_plan(text)
    entries = read_export(folder / "ledger.jsonl")
    require(len(entries) >= 1, "ledger.jsonl", "hold the run's entries", 0)
    return plan, entries


def certify_written(folder: Path, version: str) -> tuple[Certificate, list[str]]:
    """Return the certificate that the records support, and how the written one differs from it.

    The comparison is byte by byte; stating another version is a difference.
    """
    _read(folder / "plan.toml")  # first, so that a folder without a run is reported as such
    stated = read_bytes(folder / "certificate.json")
    found = certify(folder, version)
    return found, differences(found, stated)


def differences(found: Written, stated: str | bytes) -> list[str]:
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


def _guarantee(plan: Plan, adversary: Adversary) -> Guarantee:
    return Guarantee(adversary=adversary, answer=promise(plan, adversary), assumptions=assumptions(plan, adversary))


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
        return dict(method.clients(inner, target))

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
    found = _digest(folder / PREPARATION)
    try:
        with model_arrays(read_file(folder / "model.npz")) as model:
            named = str(model["preparation"])
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"model.npz must name the preparation that it was trained with: {why(error)}.") from error
    require(found == named, PREPARATION, f"be the preparation that the model names, {named}", found)
    return found


def _released(plan: Plan, model: str, learned: str | None = None) -> tuple[dict[str, Any], ...]:
    """Return everything that leaves the run, each with what is promised for it."""
    rows: list[dict[str, Any]] = [{"what": _what(plan), "file": "model.npz", "sha256": model, "covered": covered(plan)}]
    if learned is not None:
        what = "the learned preparation, which is part of the model"
        rows.append({"what": what, "file": PREPARATION, "sha256": learned, "covered": covered(plan)})
    if plan.evaluation:
        count = plan.evaluation.shape(plan.data).records
        what = f"a private evaluation: noisy counts of {count} {plan.evaluation.records} records by their scores"
        if not plan.data.classes:
            what = f"a private evaluation: noisy sums of the errors on {count} {plan.evaluation.records} records"
        rows.append({"what": what, "file": "metrics.json", "covered": covered(plan)})
    if plan.selection.private:
        what = "the noisy score of the selected trial"
        rows.append({"what": what, "file": "metrics.json", "covered": covered(plan)})
    elif plan.held_out.exact:
        rows.append(
            {
                "what": f"metrics on {plan.held_out.records} held-out records that were not declared public",
                "file": "metrics.json",
                "covered": False,
                "note": "computed without noise: no guarantee holds for the held-out records and their clients: "
                "charged as infinite",
            }
        )
    if plan.held_out.baselines:
        rows.append(
            {
                "what": "metrics of baselines trained without privacy",
                "file": "metrics.json",
                "covered": False,
                "note": "computed from the training records without noise; "
                + ("these were declared public" if plan.origin.public else "no guarantee holds: charged as infinite"),
            }
        )
    return tuple(rows)


def _what(plan: Plan) -> str:
    if not plan.selection:
        more = ", a generator, and rows drawn from it, as many as wanted" if plan.model.generates else ""
        return f"the final model{more}"
    return "the final model of the best trial, and which of the candidates it was"


def _as_json(certificate: Certificate) -> dict[str, Any]:
    plan = certificate.plan
    own = [
        {"client": client, "epsilon": None if plan.voided else finite_or_none(epsilon)}
        for client, epsilon in certificate.clients
    ]
    return {
        "format": 1,
        "version": certificate.version,
        "study": plan.name,
        "plan": plan.hash,
        "run": certificate.run,
        **({"ledger": certificate.ledger} if certificate.ledger is not None else {}),
        "private": certificate.private,
        "guarantees": [
            guarantee_row(plan.target, one, SEES[one.adversary], voided=plan.voided) for one in certificate.guarantees
        ],
        **({"clients": own} if own else {}),
        **({} if certificate.data_set is None else certificate.data_set.written()),
        "released": list(certificate.released),
        **({"personal": _PERSONAL} if plan.personal else {}),
    }


def guarantee_row(target: Target, guarantee: Guarantee, sees: str, *, voided: bool) -> dict[str, Any]:
    """Return a guarantee as plain values; ``voided``: its number does not hold for what ran."""
    answer = guarantee.answer
    bounds = [
        {"name": b.name, "epsilon": finite_or_none(b.epsilon), "status": b.status, "reason": b.reason}
        for b in answer.bounds
    ]
    return {
        "adversary": guarantee.adversary,
        "sees": sees,
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

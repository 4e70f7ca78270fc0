"""Carry out a comparison: plan all, charge all, train all, measure."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.core.values import Vector
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.held_out import ledgers_beside
from fedveil.engine.measure import centralised
from fedveil.engine.study import learned_from
from fedveil.engine.train import train
from fedveil.jobs.compare.candidates import candidates, planned_entry
from fedveil.jobs.compare.result import Comparison, Entry, View
from fedveil.jobs.local import Given, Wanted, open_any_study, refuse_evaluation
from fedveil.ledger.place import books_of, open_books
from fedveil.ledger.transaction import Transaction, caps_of, costs_of
from fedveil.models.metrics import evaluate_classes, evaluate_numbers, majority, no_better, scores
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.study import Study
from fedveil.planning.tune_request import NOT_TUNED
from fedveil.stages.evaluate.request import UNSAID, EvaluationRequest
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.train.acting import Trained


def charge(comparison: Comparison, loaded: Loaded | Unprepared, plans: Sequence[Plan]) -> str:
    """Charge everything or nothing, under one name, before the first model is trained; return the name."""
    study, name = comparison.study, f"compare-{os.urandom(12).hex()}"
    with _opened(study, loaded, plans, name) as transaction:
        transaction.charge_together(
            [(plan, comparison.runs) for plan in plans],
            study.target,
            extra={"comparison": [plan.hash for plan in plans], "runs": comparison.runs},
            caps=caps_of(study.books, study.target),
        )
    return name


def record(comparison: Comparison, loaded: Loaded | Unprepared, plans: Sequence[Plan], name: str) -> None:
    """Record the outcome by the hash of compare.json; the models themselves are not kept."""
    with _opened(comparison.study, loaded, plans, name) as transaction:
        transaction.release(comparison.text().encode(), also=["compare.json"])


@contextmanager
def _opened(study: Study, loaded: Loaded | Unprepared, plans: Sequence[Plan], name: str) -> Iterator[Transaction]:
    """Open the ledger of the training data, and that of a held-out source that exact scores are released about."""
    if books_of(study, None) is None:
        raise BadValue("The study must name a ledger to be charged.")
    with (
        open_books(study, None, loaded.fingerprint) as ledger,
        ledgers_beside(study, plans[0], loaded, ledger.path) as beside,
    ):
        yield Transaction(ledger, name, beside=beside)


def compare(
    study: Wanted,
    data: Given = None,
    *,
    algorithms: Sequence[str] = (),
    view: View = "algorithms",
    runs: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    watch: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Train every algorithm ``runs`` times for the study's own target.

    What a study leaves to be learned about its columns is learned anew for each model, as in a run of its own: it is
    part of each plan, and so of what each model costs.

    ``algorithms``: kinds, or kinds with settings as ``hidden:order=public``; none means all (for ``trust``, the study's
    own). A study with books (docs/ledger.md) is charged for everything before anything is trained. ``watch`` is called
    with what comes next.
    """
    require(view in get_args(View), "view", f"be one of {', '.join(get_args(View))}", view)
    require(isinstance(runs, int) and 1 <= runs <= 1000, "runs", "lie between 1 and 1000", runs)
    found, loaded = open_any_study(study, data)
    refuse_evaluation(found)
    hint = "Declare them public, or say [evaluation] private = false: then every observer is charged infinity."
    free = loaded.test is None or loaded.test_public or found.exact
    require(free, "[data.held_out]", "be public where algorithms are compared on it exactly", "private records", hint)
    rule = "be of classes or of a number to be compared"
    require(not found.model.survival, "model.kind", rule, found.model.kind)
    # canaries are for a run that is audited, and a search is for one that is tuned; scores are exact
    exact = EvaluationRequest(private=False) if found.exact else UNSAID
    found = replace(found, canaries=0, tune=NOT_TUNED, evaluation=exact)
    planned: list[tuple[Entry, Plan | None]] = []
    for entry, one in candidates(found, view, algorithms):
        watch(f"planning {entry.label}")
        planned.append(planned_entry(entry, one, loaded))
    plans = [plan for _, plan in planned if plan is not None]
    comparison = Comparison(
        study=found,
        view=view,
        runs=runs,
        metric="accuracy" if loaded.train.classes else "r2",
        entries=tuple(entry for entry, _ in planned),
        costs=costs_of([(plan, runs) for plan in plans], found.target),
        records=len(loaded.train),
        clients=loaded.train.clients,
        test_records=0 if loaded.test is None else len(loaded.test),
        test_public=loaded.test_public,
        charged=books_of(found, None) is not None and bool(plans),
    )
    name = charge(comparison, loaded, plans) if comparison.charged else None
    entries = []
    for entry, plan in planned:
        watch(f"training {entry.label}")
        entries.append(entry if plan is None else _measured(entry, plan, loaded, found.seed, runs, clock))
    baseline, constant = _constant(loaded)
    comparison = replace(
        comparison,
        entries=tuple(entries),
        reference=_reference(found, plans, loaded),
        baseline=baseline,
        constant=constant,
    )
    if name is not None:
        record(comparison, loaded, plans, name)
    return comparison


def _measured(
    entry: Entry, plan: Plan, given: Loaded | Unprepared, seed: int | None, runs: int, clock: Callable[[], float]
) -> Entry:
    """Train and measure; a refusal of the data is reported like a refusal of the plan."""
    found: list[Trained] = []
    scored: list[dict[str, Any]] = []
    began = clock()
    try:
        for run in range(runs):
            entropy = Entropy.from_system() if seed is None else Entropy.from_seed(seed + run)
            loaded = _loaded(given, plan, entropy)
            found.append(train(plan, loaded.train, entropy))
            if loaded.test is not None:
                scored.append(_score(plan, found[-1].model, loaded.test))
    except (FedveilError, ValueError) as error:
        return replace(entry, refused=" ".join(str(error).split()))
    seconds, spread = (clock() - began) / runs, None
    if runs > 1 and not isinstance(
        given, Unprepared
    ):  # weights of rows that were made by different rules do not compare
        spread = float(np.sqrt(np.mean(np.var([one.model for one in found], axis=0, ddof=1))))
    return replace(
        entry,
        scores=tuple(one["score"] for one in scored),
        areas=tuple(one["auc"] for one in scored if one.get("auc") is not None),
        useless=bool(scored) and all(no_better(one) is not None for one in scored),
        model_spread=spread,
        bytes_up=round(sum(one.bytes_up for one in found) / runs),
        bytes_down=round(sum(one.bytes_down for one in found) / runs),
        seconds=seconds,
    )


def _loaded(given: Loaded | Unprepared, plan: Plan, entropy: Entropy) -> Loaded:
    """The records; where the rule for rows is to be learned, by this plan's noisy sums with this randomness."""
    return given.loaded(learned_from(plan, given, entropy)) if isinstance(given, Unprepared) else given


def _score(plan: Plan, model: Vector, held: Records) -> dict[str, Any]:
    """Return all metrics, and the one that algorithms are compared by as ``score``."""
    held, loss = held.present(), plan.model.loss
    found = scores(loss, model, held.features, held.targets)
    if not plan.data.classes:
        more = evaluate_numbers(loss.predict(model, held.features), held.targets)
        return {**more, "score": found["r2"]}
    names = [str(k) for k in range(held.classes)]
    return {**evaluate_classes(loss, model, held.features, held.targets, names), **found, "score": found["accuracy"]}


def _constant(loaded: Loaded | Unprepared) -> tuple[float | None, str]:
    """Return the best constant answer on the held-out records, by the same metric, and what it is called."""
    if loaded.test is None:
        return None, ""
    held = loaded.test.present()
    if not held.classes:
        return evaluate_numbers(held.targets, held.targets)["baseline"]["r2"], "always the median"
    known = loaded.reading if isinstance(loaded, Unprepared) else loaded.preparation
    names = [str(k) for k in range(held.classes)] if known is None else known.labels.classes
    found = majority(held.targets.astype(np.int64), names)
    return found["accuracy"], f"always {found['class']!r}"


def _reference(study: Study, plans: Sequence[Plan], given: Loaded | Unprepared) -> float | None:
    """Train on pooled data without noise, if the study asks for baselines and says that its records are public."""
    if not (study.baselines and study.data.public) or given.test is None or not plans:
        return None
    seed = study.seed
    loaded = _loaded(given, plans[0], Entropy.from_system() if seed is None else Entropy.from_seed(seed))
    assert loaded.test is not None  # noqa: S101  as it was given
    score: float = _score(plans[0], centralised(plans[0].model, loaded.train.present()), loaded.test)["score"]
    return score

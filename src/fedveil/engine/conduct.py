"""Carry out a study in a folder, in the order of every job (job.py): charge, train, record, release.

Rounds run between the charge and the release, with private checkpoints.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedveil.core.errors import FedveilError, Interrupted
from fedveil.core.values import Vector
from fedveil.data.canaries import Canaries
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine import answers, coins
from fedveil.engine.answers import Answers
from fedveil.engine.coins import Kept, check_commitment
from fedveil.engine.ending import end_release, has_released, written_metrics
from fedveil.engine.evaluating import evaluated
from fedveil.engine.held_out import ledgers_beside, note_of, planned_with
from fedveil.engine.job import PLAN, Release, begun_before, carried_out, charged, work_in
from fedveil.engine.keeper import Keeper
from fedveil.engine.measure import measure, plain, published
from fedveil.engine.model_file import model_file
from fedveil.engine.preparing import learned_from, notes_of, planned_columns, write_notes
from fedveil.engine.settling import settle_canaries, settle_plan, settle_run
from fedveil.engine.sums import summing_of, summing_of_evaluation, summing_of_preparation
from fedveil.engine.system import Progress, System
from fedveil.engine.train import train
from fedveil.engine.tuning import Prepare, train_best
from fedveil.ledger import Entry
from fedveil.ledger.costs import cost_of
from fedveil.ledger.transaction import Transaction
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import Planned
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.study import Study
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.prepare.notes import notes_for_rows
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.stages.train.acting import Done, Interim


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run whose plan and key are settled: what is carried out, with which randomness, and where."""

    plan: Plan
    name: str
    entropy: Entropy
    folder: Path
    system: System
    watch: Callable[[Progress], None] | None

    @property
    def private(self) -> Path:
        """Return the folder of what must stay hidden."""
        return self.folder / "private"

    @property
    def charged(self) -> float:
        """Return the epsilon that the run was charged, against the observer that it was planned for."""
        return cost_of(self.plan, self.plan.target.adversary).epsilon


def conduct(
    study: Study,
    loaded: Loaded | Unprepared,
    folder: Path,
    *,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System,
) -> dict[str, Any]:
    """Run the study in ``folder`` and return the metrics that were written."""
    with work_in(folder):
        begun = begun_before(folder, resume)
        system.tell("planning: looking for the schedule of least risk")
        plan = settle_plan(_planned(study, loaded).plan, folder, begun)
        if has_released(folder):
            end_release(folder)
            return written_metrics(folder)
        if isinstance(loaded, Unprepared):
            return _conduct_prepared(study, plan, loaded, folder, begun, watch, system)
        slots = study.slots
        kept = None if slots is None else settle_canaries(study, slots, folder, system)
        train = loaded.train if slots is None or kept is None else slots.placed(loaded.train, kept.coins)
        prints = loaded.train.fingerprint, loaded.held_fingerprint
        name, entropy = settle_run(study, plan, *prints, folder, system, kept)
        run = _Run(plan=plan, name=name, entropy=entropy, folder=folder, system=system, watch=watch)

        def stages() -> Release:
            for text in [] if begun else [*loaded.notes, *notes_for_rows(loaded.train, loaded.preparation)]:
                system.note(text)
            if plan.selection:
                return _tuned(run, lambda *_: (loaded, None), _both(train.fingerprint, loaded))
            measured = loaded if slots is None else _widened(loaded, slots)
            trained = _train(run, train, measured)
            return _release(run, measured, trained, told=_evaluate(run, measured, trained))

        carried_out(_charged(run, study, loaded, kept, begun), stages, folder)
        return written_metrics(folder)


def _conduct_prepared(
    study: Study,
    plan: Plan,
    found: Unprepared,
    folder: Path,
    begun: bool,
    watch: Callable[[Progress], None] | None,
    system: System,
) -> dict[str, Any]:
    """The same for a study whose preparation is learned: after the charge, and before training."""
    name, entropy = settle_run(study, plan, found.cells_fingerprint, found.held_fingerprint, folder, system)
    run = _Run(plan=plan, name=name, entropy=entropy, folder=folder, system=system, watch=watch)

    def stages() -> Release:
        if plan.selection:

            def prepare(one: Plan, own: Entropy) -> tuple[Loaded, LearnedRule]:
                learnt = learned_from(one, found, own)
                return found.loaded(learnt), learnt

            return _tuned(run, prepare, _both(found.cells_fingerprint, found))
        system.tell("preparing: measuring with noise what the study does not state")
        learned = _learn(run, found)
        loaded = found.loaded(learned)
        for text in write_notes(notes_of(found, learned), run.private):
            system.note(text)
        trained = _train(run, loaded.train, loaded)
        return _release(run, loaded, trained, learned, told=_evaluate(run, loaded, trained))

    carried_out(_charged(run, study, found, None, begun), stages, folder)
    return written_metrics(folder)


def _learn(run: _Run, found: Unprepared) -> LearnedRule:
    """Return what is learned of the columns; a run begun again measures the same numbers of the same clients."""
    sums = summing_of_preparation(run.plan, run.entropy)
    asked = Answers.open(run.private / answers.OF_PREPARATION, run.name, run.system.fails, sums)
    return learned_from(run.plan, found, run.entropy, asked.add_up, asked.fails)


def _evaluate(run: _Run, loaded: Loaded, model: Vector) -> dict[str, Any] | None:
    """Return what noisy counts say of the model, where the plan asks for it; a run begun again counts the same."""
    if not run.plan.evaluation:
        return None
    run.system.tell("counting with noise how good the model is")
    sums = summing_of_evaluation(run.plan, run.entropy)
    asked = Answers.open(run.private / answers.OF_EVALUATION, run.name, run.system.fails, sums)
    return evaluated(run.plan, loaded, model, run.entropy, asked.add_up, asked.fails)


def _planned(study: Study, loaded: Loaded | Unprepared) -> Planned:
    return planned_columns(study, loaded) if isinstance(loaded, Unprepared) else planned_rows(study, loaded)


def planned_rows(study: Study, loaded: Loaded, *, at_sites: bool = False) -> Planned:
    """Return the plan of a study whose rows are made, with room for its canaries."""
    blank = loaded.train if study.slots is None else study.slots.blank(loaded.train)
    return study.planned(blank.shape, **planned_with(study, loaded, at_sites=at_sites))


def _widened(loaded: Loaded, slots: Canaries) -> Loaded:
    """Add the canaries' columns, if they have any, but no canaries to the records for measuring and baselines."""
    test = None if loaded.test is None else slots.widened(loaded.test)
    return replace(loaded, train=slots.widened(loaded.train), test=test)


def _charged(
    run: _Run, study: Study, loaded: Loaded | Unprepared, kept: Kept | None, begun: bool
) -> AbstractContextManager[Transaction]:
    """Charge the cost of the whole run; ``kept``: the coins of its canaries, which the charge commits to.

    Held-out records with a ledger of their own are charged there too: in both or in neither.
    """
    note = None if begun else note_of(study, run.plan)
    if note is not None:
        run.system.note(note)
    run.system.tell("charging the ledger")

    def check(entry: Entry) -> None:  # a resumed run must have the coins it was charged with
        if kept is not None:
            check_commitment(kept, entry.payload["extra"].get(coins.CHARGED))

    return charged(
        study,
        run.plan,
        run.name,
        run.folder,
        loaded.fingerprint,
        run.system,
        begun=begun,
        extra=None if kept is None else {coins.CHARGED: kept.commitment},
        check=check,
        made=[] if kept is None else [coins.NAME],
        beside=lambda ledger: ledgers_beside(study, run.plan, loaded, ledger.path, run.system.random),
    )


def _both(fingerprint: Callable[[bytes], str], loaded: Loaded | Unprepared) -> Callable[[bytes], str]:
    """Return the fingerprint of the records that trials are trained on, and scored on."""
    return lambda key: fingerprint(key) + loaded.held_fingerprint(key)


def _train(run: _Run, records: Records, loaded: Loaded) -> Vector:
    """Train and return the last model; ``loaded`` has the held-out records, which a rule may use if they are public.

    Algorithms that can resume keep private checkpoints; the others repeat the run with the same bytes.
    """
    run.system.tell("training")
    plan, charged, began = run.plan, run.charged, run.system.seconds()
    # identifies plan and data
    mark = sha256((plan.hash + records.fingerprint(run.name.encode())).encode()).hexdigest()
    kept = Keeper(run.private / "checkpoint", mark, run.name, Interim.read, run.system)
    begun = kept.begun()
    first = 0 if begun is None else begun.round

    def after(state: Done) -> None:
        kept.note(state)
        if run.watch is not None:
            passed = run.system.seconds() - began
            rate = (state.round - first) / passed if passed > 0 else 0.0
            run.watch(Progress(state.round, plan.method.total, rate, charged))

    sums = summing_of(plan, run.entropy)
    asked = Answers.open(run.private / answers.NAME, run.name, run.system.fails, sums)
    try:
        public = loaded.test if loaded.test_public else None
        how: dict[str, Any] = {"add_up": asked.add_up, "fails": asked.fails, "public": public}
        trained = train(plan, records, run.entropy, begun=begun, watch=after, **how)
    except FedveilError:
        kept.save()  # resuming asks for a refused round again, with the same noise
        raise
    except KeyboardInterrupt as error:
        kept.save()
        raise Interrupted(kept.advice(plan.method.total)) from error
    kept.save()  # after a crash during the release, it need not be computed again
    if trained.chosen:
        run.system.tell(f"chosen segments: {', '.join(str(index + 1) for index in trained.chosen)}")
    return trained.model


def _tuned(run: _Run, prepare: Prepare, fingerprint: Callable[[bytes], str]) -> Release:
    """Train the best of several candidates and release it, with neither the number of trials nor the time they took."""
    charged, began = run.charged, run.system.seconds()

    def after(done: int, count: int) -> None:
        if run.watch is not None:
            passed = run.system.seconds() - began
            run.watch(Progress(done, count, done / passed if passed > 0 else 0.0, charged))

    run.system.tell("training the trials")
    try:
        best = train_best(run.plan, prepare, fingerprint, run.name, run.entropy, run.private, after)
    except KeyboardInterrupt as error:
        raise Interrupted("Stopped; go on with the same command and --resume.") from error
    return _release(replace(run, plan=best.plan), best.loaded, best.model, best.learned, tuning=best.told)


def _release(
    run: _Run,
    loaded: Loaded,
    model: Vector,
    learned: LearnedRule | None = None,
    *,
    told: dict[str, Any] | None = None,
    tuning: dict[str, Any] | None = None,
) -> Release:
    """Return the model with all that may be said of it.

    ``told``: what noisy counts say of the model. ``tuning``: what may be said of the trials.
    """
    plan = run.plan
    metrics = published(plan, measure(plan, loaded, model, run.entropy), run.private)
    if told is not None:
        metrics["evaluation"] = plain(told)
    if tuning is not None:
        metrics = {**metrics, "tuning": tuning}
    data = model_file(plan, model, learned)
    also = ["metrics.json"] if metrics["test"] or told is not None or tuning is not None else []
    files = {"model.npz": data, "metrics.json": (json.dumps(metrics, indent=1, allow_nan=False) + "\n").encode()}
    if learned is not None:
        also.append(PREPARATION)
        files = {PREPARATION: learned.text().encode(), **files}
    if tuning is not None:  # the plan now names the candidate that was chosen, which is a part of the release
        files = {PLAN: write_plan(plan).encode(), **files}
    return Release(output=data, files=files, also=also, timed=tuning is None)

"""Carry out a study in a folder: charge, train, record, release. A crash at any moment loses no charge.

Order: the key and the plan are written, the ledger is charged, rounds run (with private checkpoints), the release is
recorded, and only then does the model appear. Everything that must stay hidden is in ``private``; the rest may be
published.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedveil.algorithms.acting import Done
from fedveil.algorithms.registry import acts_of
from fedveil.data.canaries import Canaries
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape, Records, may_share_clients
from fedveil.errors import BadValue, FedveilError, Interrupted, why
from fedveil.files import public_folder
from fedveil.ledger import Ledger
from fedveil.ledger.costs import cost_of
from fedveil.ledger.place import POINTER, settled_place
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan, write_plan
from fedveil.prepare.learned import LearnedPreparation
from fedveil.prepare.loading import Unprepared
from fedveil.prepare.notes import notes_for_rows
from fedveil.prepare.statement import FILE as PREPARATION
from fedveil.run import answers, coins
from fedveil.run.answers import Answers
from fedveil.run.coins import Kept, check_commitment
from fedveil.run.ending import LAST, destroy_secrets, ended, has_released
from fedveil.run.evaluating import evaluated
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.keeper import Keeper
from fedveil.run.measure import measure, plain, published
from fedveil.run.model_file import model_file
from fedveil.run.preparing import learned_from, notes_of, planned_columns, write_notes
from fedveil.run.settling import settle_canaries, settle_key, settle_plan
from fedveil.run.sums import summing_of, summing_of_evaluation, summing_of_preparation
from fedveil.run.system import Progress, System
from fedveil.run.train import train
from fedveil.run.tuning import Prepare, train_best
from fedveil.study import Study
from fedveil.values import Vector


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
    try:
        public_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {why(error)}.") from error
    with sole_use(private_folder(folder / "private")), _stopped_clearly(folder):
        if resume and has_released(folder):
            return ended(folder)
        system.tell("planning: looking for the schedule of least risk")
        if isinstance(loaded, Unprepared):
            return _conduct_prepared(study, loaded, folder, resume, watch, system)
        slots = study.slots
        blank = loaded.train if slots is None else slots.blank(loaded.train)
        plan = settle_plan(study, loaded, blank.shape, folder, resume, lambda: planned_rows(study, loaded, blank.shape))
        kept = None if slots is None else settle_canaries(study, slots, folder, system)
        train = loaded.train if slots is None or kept is None else slots.placed(loaded.train, kept.coins)
        name, entropy = settle_key(study, plan, train.fingerprint, folder, system)
        prints = loaded.fingerprint, loaded.train.fingerprint
        run = _Run(plan=plan, name=name, entropy=entropy, folder=folder, system=system, watch=watch)
        with _charged(run, study, kept, prints, resume) as books:
            for text in [] if resume else [*loaded.notes, *notes_for_rows(loaded.train, loaded.preparation)]:
                system.note(text)
            if plan.selection is not None:
                return _tuned(run, lambda *_: (loaded, None), train.fingerprint, books)
            measured = loaded if slots is None else _widened(loaded, slots)
            trained = _train(run, train, measured)
            return _release(run, measured, trained, books, told=_evaluate(run, measured, trained))


@contextmanager
def _stopped_clearly(folder: Path) -> Iterator[None]:
    """Say whether a run that is stopped can go on: only one whose plan is on the disk has begun."""
    try:
        yield
    except KeyboardInterrupt as error:
        begun = (folder / "plan.toml").exists()
        went = "Stopped; go on with the same command and --resume."
        never = "Stopped before anything was charged; begin again with the same command."
        raise Interrupted(went if begun else never) from error


def _conduct_prepared(
    study: Study,
    found: Unprepared,
    folder: Path,
    resume: bool,
    watch: Callable[[Progress], None] | None,
    system: System,
) -> dict[str, Any]:
    """The same for a study whose preparation is learned: after the charge, and before training."""
    planned = planned_columns(study, found).plan  # from public numbers alone; a run to be resumed has the same
    shape = planned.data
    plan = settle_plan(study, found, shape, folder, resume, lambda: planned)
    name, entropy = settle_key(study, plan, found.cells_fingerprint, folder, system)
    prints = found.fingerprint, found.cells_fingerprint
    run = _Run(plan=plan, name=name, entropy=entropy, folder=folder, system=system, watch=watch)
    with _charged(run, study, None, prints, resume) as books:
        if plan.selection is not None:

            def prepare(one: Plan, own: Entropy) -> tuple[Loaded, LearnedPreparation]:
                learnt = learned_from(one, found, own)
                return found.loaded(learnt), learnt

            return _tuned(run, prepare, found.cells_fingerprint, books)
        system.tell("preparing: measuring with noise what the study does not state")
        learned = _learn(run, found)
        loaded = found.loaded(learned)
        for text in write_notes(notes_of(found, learned), run.private):
            system.note(text)
        trained = _train(run, loaded.train, loaded)
        return _release(run, loaded, trained, books, learned, told=_evaluate(run, loaded, trained))


def _learn(run: _Run, found: Unprepared) -> LearnedPreparation:
    """Return what is learned of the columns; a run begun again measures the same numbers of the same clients."""
    sums = summing_of_preparation(run.plan, run.entropy)
    asked = Answers.open(run.private / answers.OF_PREPARATION, run.name, run.system.fails, sums)
    return learned_from(run.plan, found, run.entropy, asked.add_up, asked.fails)


def _evaluate(run: _Run, loaded: Loaded, model: Vector) -> dict[str, Any] | None:
    """Return what noisy counts say of the model, where the plan asks for it; a run begun again counts the same."""
    if run.plan.evaluation is None:
        return None
    run.system.tell("counting with noise how good the model is")
    sums = summing_of_evaluation(run.plan, run.entropy)
    asked = Answers.open(run.private / answers.OF_EVALUATION, run.name, run.system.fails, sums)
    return evaluated(run.plan, loaded, model, run.entropy, asked.add_up, asked.fails)


def planned_rows(study: Study, loaded: Loaded, shape: DataShape | None = None) -> Plan:
    """Return the plan of a study whose rows are made; ``shape``: of training records that have room for canaries."""
    shape = loaded.train.shape if shape is None else shape
    held = 0 if loaded.test is None else loaded.test.targets.size
    private = None if loaded.test is None else loaded.test.shape
    joint = loaded.test is not None and may_share_clients(loaded.train, loaded.test)
    return study.planned(shape, held, loaded.test_public if held else True, held=private, joint=joint).plan


def _widened(loaded: Loaded, slots: Canaries) -> Loaded:
    """Add the canaries' columns, if they have any, but no canaries to the records for measuring and baselines."""
    test = None if loaded.test is None else slots.widened(loaded.test)
    return replace(loaded, train=slots.widened(loaded.train), test=test)


@contextmanager
def _charged(
    run: _Run,
    study: Study,
    kept: Kept | None,
    prints: tuple[Callable[[bytes], str], Callable[[bytes], str]],
    resume: bool,
) -> Iterator[Transaction]:
    """Open the ledger and charge the cost of the whole run; a new run that is refused leaves nothing behind."""
    own, system = run.private / "ledger.sqlite", run.system
    system.tell("charging the ledger")
    with ExitStack() as stack:
        try:
            fingerprint, older = prints
            books = settled_place(study, own, fingerprint, older, begun=resume, urandom=system.random) or own
            write_atomically(run.private / POINTER, f"{books.absolute()}\n".encode())
            opened = Ledger.open(books, fingerprint, older=older, urandom=system.random)
            ledger = stack.enter_context(opened)
            transaction = Transaction(ledger, run.name, moment(run.plan, system.now()))
            extra = None if kept is None else {coins.CHARGED: kept.commitment}
            entry = transaction.charge(run.plan, caps=caps_of(study.books, study.target), extra=extra)
            if kept is not None:  # a resumed run must have the coins it was charged with
                check_commitment(kept, entry.payload["extra"].get(coins.CHARGED))
        except FedveilError:
            for made in [] if resume else ["plan.toml", "private/key", f"private/{coins.NAME}", f"private/{POINTER}"]:
                (run.folder / made).unlink(missing_ok=True)
            raise
        yield transaction


def _train(run: _Run, records: Records, loaded: Loaded) -> Vector:
    """Train and return the last model; ``loaded`` has the held-out records, which a rule may use if they are public.

    Algorithms that can resume keep private checkpoints; the others repeat the run with the same bytes.
    """
    run.system.tell("training")
    plan, charged, began = run.plan, run.charged, run.system.seconds()
    # identifies plan and data
    mark = sha256((plan.hash + records.fingerprint(run.name.encode())).encode()).hexdigest()
    kept = Keeper(run.private / "checkpoint", mark, run.name, acts_of(plan.method.kind).resumed, run.system)
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


def _tuned(run: _Run, prepare: Prepare, fingerprint: Callable[[bytes], str], books: Transaction) -> dict[str, Any]:
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
    write_atomically(run.folder / "plan.toml", write_plan(best.plan).encode(), mode=PUBLIC)
    chosen, untimed = replace(run, plan=best.plan), replace(books, at=None)
    return _release(chosen, best.loaded, best.model, untimed, best.learned, tuning=best.told)


def _release(
    run: _Run,
    loaded: Loaded,
    model: Vector,
    books: Transaction,
    learned: LearnedPreparation | None = None,
    *,
    told: dict[str, Any] | None = None,
    tuning: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Record the release, then publish the model; afterwards destroy the key and the hidden state.

    ``told``: what noisy counts say of the model. ``tuning``: what may be said of the trials.
    """
    plan, folder = run.plan, run.folder
    metrics = published(plan, measure(plan, loaded, model, run.entropy), run.private)
    if told is not None:
        metrics["evaluation"] = plain(told)
    if tuning is not None:
        metrics = {**metrics, "tuning": tuning}
    data = model_file(plan, model, learned)
    also = ["metrics.json"] if metrics["test"] or told is not None or tuning is not None else []
    if learned is not None:
        also.append(PREPARATION)
    books.release(data, also=also)
    if learned is not None:
        write_atomically(folder / PREPARATION, learned.text().encode(), mode=PUBLIC)
    write_atomically(folder / "model.npz", data, mode=PUBLIC)
    text = json.dumps(metrics, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "metrics.json", text.encode(), mode=PUBLIC)
    write_atomically(folder / LAST, books.export(), mode=PUBLIC)
    destroy_secrets(folder)
    return metrics

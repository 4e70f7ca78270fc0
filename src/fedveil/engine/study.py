"""A study in this process: planned on public numbers, and carried out in a folder in the order of every job (job.py).

What the plan's preparation learns makes the rows that train; without one the rows are there from the start.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from fedveil.core.errors import Interrupted
from fedveil.core.values import Vector
from fedveil.data.expiry import by_month, check_unexpired
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.data.row_rule import Labels
from fedveil.engine import coins
from fedveil.engine.best_of import Trials, train_best
from fedveil.engine.coins import Kept, check_commitment, settle_coins
from fedveil.engine.ending import written_metrics
from fedveil.engine.files import write_notes
from fedveil.engine.held_out import ledgers_beside, note_of, planned_with
from fedveil.engine.here import Here, KeptHere
from fedveil.engine.job import PLAN, Bound, Job, Release, Started, conduct
from fedveil.engine.measure import measure
from fedveil.engine.run import Cells, Released, Rows, evaluate, prepare, release_of, run_stages
from fedveil.engine.system import Progress, System
from fedveil.ledger.books import Ledger
from fedveil.ledger.entry import Entry
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import Planned
from fedveil.planning.plan import Plan, starting_from
from fedveil.planning.study import Study
from fedveil.planning.tuning import Candidate
from fedveil.privacy.target import Target
from fedveil.stages.measuring import Known
from fedveil.stages.prepare.budget import fitting, settle_preparation
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.prepare.notes import notes_for_holder, notes_for_rows
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.prepare.shape import settle_shape, with_shape

Opened = Loaded | Unprepared  # what a study's source holds: rows, or cells whose rule is to be learned


def planned_for(study: Study, opened: Opened, *, at_sites: bool = False) -> Planned:
    """Return the plan of a study; it depends on no cell. ``at_sites``: the plan is for sites."""
    held = planned_with(study, opened, at_sites=at_sites)
    if not isinstance(opened, Unprepared):
        blank = opened.train if study.slots is None else study.slots.blank(opened.train)
        return study.planned(blank.shape, **held)
    if study.tune:
        apart = {key: value for key, value in held.items() if key not in ("held", "joint")}

        def design(candidate: Candidate, target: Target) -> Planned:
            return _planned_columns(study.candidate(candidate, target), opened, apart)

        return study.tuned(design, held.get("test_records", 0), held.get("test_public", True))
    return _planned_columns(study, opened, held)


def _planned_columns(study: Study, opened: Unprepared, held: Mapping[str, Any]) -> Planned:
    request, shape = study.prepare or PrepareRequest(), opened.train.shape
    model, outline, why = settle_shape(study.model, opened.outline, shape, study.target, study.trust)
    preparation, outline = settle_preparation(request, outline, shape, study.target, study.trust)
    planned = replace(study, model=model).planned(opened.shape(outline), preparation=preparation, **held)
    return replace(planned, draft=replace(planned.draft, reason=f"{planned.draft.reason} {why}".strip()))


def learned_from(plan: Plan, opened: Unprepared, entropy: Entropy) -> LearnedRule:
    """Return what the plan's preparation learns from these cells, with the noise of this key."""
    data = CellsHere(opened, entropy)
    result: LearnedRule = data.stated(plan).get("preparation") or prepare(plan, data, Here(plan, entropy), {})
    return result


def evaluated(plan: Plan, loaded: Loaded, model: Vector, entropy: Entropy) -> dict[str, Any]:
    """Return what noisy counts say of a model, on the records that the plan names, with the noise of this key."""
    return evaluate(plan, RowsHere(loaded, loaded.train, entropy), Here(plan, entropy), {"training": model})


def open_data(opened: Opened, entropy: Entropy) -> "RowsHere | CellsHere":
    """Return the records of a run in this process, with the randomness of its baselines."""
    return CellsHere(opened, entropy) if isinstance(opened, Unprepared) else RowsHere(opened, opened.train, entropy)


class _InThisProcess:
    """What rows and cells have in common, once there are rows."""

    entropy: Entropy

    def stated(self, plan: Plan) -> Released:
        """Return what is known before the first stage: nothing."""
        return {}

    def loaded(self, released: Released) -> Loaded:
        """Return the rows, and those held out."""
        raise NotImplementedError

    def train(self, released: Released) -> Records:
        """Return the records that train."""
        return self.loaded(released).train

    def public_test(self, released: Released) -> Records | None:
        """Return held-out records that are public, None where there are none."""
        loaded = self.loaded(released)
        return loaded.test if loaded.test_public else None

    def counted(self, plan: Plan, released: Released) -> tuple[Records | None, Labels | None]:
        """Return the records that the plan's evaluation counts, and how the target is called."""
        loaded = self.loaded(released)
        rule = loaded.preparation
        return loaded.train if plan.evaluation.trains else loaded.test, None if rule is None else rule.labels

    def metrics(self, plan: Plan, released: Released) -> dict[str, Any]:
        """Return what the held-out records say of the model."""
        return measure(plan, self.loaded(released), released["training"], self.entropy)

    def cells(self, plan: Plan) -> Cells:
        """Refuse to give columns: a study that states its rule has rows from the start."""
        raise TypeError("there is nothing to prepare")


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowsHere(_InThisProcess):
    """Implements Data with rows that are made already; ``records``: those that train, canaries among them."""

    rows: Loaded
    records: Records
    entropy: Entropy

    def loaded(self, released: Released) -> Loaded:
        """Return the rows, and those held out."""
        return self.rows

    def train(self, released: Released) -> Records:
        """Return the records that train."""
        return self.records


@final
@dataclass(slots=True, eq=False)
class CellsHere(_InThisProcess):
    """Implements Data with cells, of which a learned rule makes rows; ``note`` is told what only the holder knows."""

    found: Unprepared
    entropy: Entropy
    note: Callable[[list[str]], None] = lambda notes: None
    _rows: tuple[LearnedRule, Loaded] | None = field(default=None, init=False)

    def stated(self, plan: Plan) -> Released:
        """Return the rule for rows where the study states all of it, so that no sum is measured."""
        if plan.preparation:
            return {}
        cells, nothing = self.cells(plan), Known([], self.found.present)
        args = cells.outline, cells.columns, cells.targets, cells.classes, plan.units
        return {"preparation": learn(plan.preparation, *args, nothing)}

    def cells(self, plan: Plan) -> Cells:
        """Return the columns that the plan's preparation measures."""
        found, train = self.found, self.found.train
        first = plan.lineage[0].preparation  # by which the rows were laid out, also where they are learned again
        return Cells(
            outline=fitting(with_shape(found.outline, plan.model), first, plan.data, plan.target),
            columns=found.training_columns,
            targets=train.targets,
            classes=train.classes,
            rows=Rows(train.owner, train.clients, found.present),
        )

    def loaded(self, released: Released) -> Loaded:
        """Return the rows that the learned rule makes; they are made once."""
        learned = released["preparation"]
        if self._rows is None or self._rows[0] is not learned:
            self._rows = learned, self.found.loaded(learned)
            self.note(self._notes(learned))
        return self._rows[1]

    def _notes(self, learned: LearnedRule) -> list[str]:
        """Return what the data holder should know, and nobody else: it is computed from the records without noise."""
        train, present = self.found.train, self.found.present
        columns, targets = self.found.training_columns.rows(present), train.targets[present]
        return [*self.found.notes, *notes_for_holder(columns, targets, train, learned)]


def conduct_study(
    study: Study,
    opened: Opened,
    folder: Path,
    *,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System,
    start: Vector | None = None,
) -> dict[str, Any]:
    """Run the study in ``folder`` and return the metrics that were written.

    ``start``: public parameters that hidden training starts from; zeros if left out.
    """

    if not (folder / PLAN).exists():  # a run that goes on is not stopped by what expires meanwhile
        check_unexpired(opened.expires, system.now().date())

    def make() -> Job:
        system.tell("planning: looking for the schedule of least risk")
        plan = planned_for(study, opened).plan
        plan = plan if start is None else starting_from(plan, start)
        return _StudyJob(study, opened, plan, folder, system, watch).job()

    conduct(make, folder, resume=resume, system=system)
    return written_metrics(folder)


@final
@dataclass(frozen=True, eq=False)
class _StudyJob:
    """One start of a study in its folder."""

    study: Study
    opened: Opened
    plan: Plan
    folder: Path
    system: System
    watch: Callable[[Progress], None] | None

    def job(self) -> Job:
        """Return the job; held-out records count only if something that is released depends on them."""
        opened, note = self.opened, note_of(self.study, self.plan)
        return Job(
            what="study",
            plan=self.plan,
            output="model.npz",
            sited=self.study,
            fingerprint=opened.fingerprint,
            records=opened.cells_fingerprint,
            stages=self.stages,
            seed=self.study.seed,
            expires=by_month(opened.expires),
            notes=() if note is None else (note,),
            bound=Bound() if self.study.slots is None else self._canaries(),
            beside=self._charged_beside,
            **({"held": opened.held_fingerprint} if self.plan.test_decides else {}),
        )

    @cached_property
    def coins(self) -> Kept:
        """Which canaries are in: drawn once, on the disk before anything is charged."""
        assert self.study.slots is not None  # noqa: S101  there are canaries
        draw, finished = self.system.random, (self.folder / "model.npz").exists()
        if self.study.seed is not None:
            stream = Entropy.from_seed(self.study.seed).stream("canaries")

            def draw(count: int) -> bytes:
                return stream.words(-(-count // 8)).tobytes()[:count]

        path = self.folder / "private" / coins.NAME
        return settle_coins(path, self.study.slots.count, draw, finished=finished)

    def _canaries(self) -> Bound:
        def check(entry: Entry) -> None:  # a resumed run must have the coins it was charged with
            check_commitment(self.coins, entry.payload["extra"].get(coins.CHARGED))

        return Bound(files=(coins.NAME,), digests=lambda: {coins.CHARGED: self.coins.commitment}, check=check)

    @contextmanager
    def _charged_beside(self, ledger: Ledger) -> Iterator[tuple[Ledger, ...]]:
        """Open the ledger of held-out records that have one of their own."""
        args = self.study, self.plan, self.opened, ledger.path, self.system.random
        with ledgers_beside(*args) as others:
            yield others

    def stages(self, started: Started) -> Release:
        """Carry out the stages, and return what is released."""
        adder = KeptHere(self.plan, started.entropy, started.name, self.folder, self.system, self.watch)
        if self.plan.selection:
            return self._best(adder)
        data = self._data(started)
        return release_of(self.plan, data, run_stages(self.plan, data, adder), adder.private)

    def _data(self, started: Started) -> RowsHere | CellsHere:
        """Return the records, and tell the data holder what only it may know of them."""
        slots, data, private = self.study.slots, open_data(self.opened, started.entropy), self.folder / "private"
        if isinstance(data, CellsHere):
            return replace(data, note=lambda notes: self._tell(write_notes(notes, private)))
        opened = data.rows
        if not started.resumed:
            self._tell([*opened.notes, *notes_for_rows(opened.train, opened.preparation)])
        if slots is None:
            return data
        # The canaries' columns, if they have any, but no canaries, are among the records for measuring and baselines.
        test = None if opened.test is None else slots.widened(opened.test)
        rows = replace(opened, train=slots.widened(opened.train), test=test)
        return RowsHere(rows, slots.placed(opened.train, self.coins.coins), started.entropy)

    def _tell(self, notes: list[str]) -> None:
        for text in notes:
            self.system.note(text)

    def _best(self, adder: KeptHere) -> Release:
        """Train the best of several candidates and release it, with neither the number of trials nor their time."""
        self.system.tell("training the trials")
        opened, key = self.opened, adder.name.encode()
        records = opened.cells_fingerprint(key) + opened.held_fingerprint(key)  # those that train, and those that score
        trials = Trials(self.plan, adder.entropy, lambda own: open_data(opened, own), adder.private, adder.progress())
        try:
            best = train_best(trials, records)
        except KeyboardInterrupt as error:
            raise Interrupted("Stopped; go on with the same command and --resume.") from error
        data = open_data(opened, adder.entropy)
        return release_of(best.plan, data, best.released, adder.private, best.search)

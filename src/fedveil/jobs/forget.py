"""Forget records or a client: go on from a released model for some rounds without them, certified and charged.

>>> from fedveil import forget
>>> result = forget("results", rows=[17, 41], epsilon=0.1, out="results-2")  # doctest: +SKIP
>>> result.forgotten.new_model.epsilon  # doctest: +SKIP
0.0998
"""

import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedveil.core.errors import AlreadyFinished, BadValue, require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices
from fedveil.data.cells import canonical
from fedveil.data.expiry import by_month, day_of
from fedveil.data.expiry import expired as expired_on
from fedveil.data.load import Loaded, places_of
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.data.sources import read as read_source
from fedveil.data.spec import Source
from fedveil.engine.files import PUBLIC, wait_for_user, write_atomically
from fedveil.engine.here import KeptHere
from fedveil.engine.job import PLAN, Job, Release, Started, conduct
from fedveil.engine.run import BEFORE, release_of, run_stages
from fedveil.engine.study import CellsHere, RowsHere
from fedveil.engine.system import Progress, System
from fedveil.jobs.local import AS_OF, STUDY, Result, Sign, Wanted, conclude, open_any_study, signing_key
from fedveil.noise.entropy import Entropy
from fedveil.planning.forget_design import ForgetDesign, Leaving, design_forgetting
from fedveil.planning.plan import Plan
from fedveil.planning.promises import Forgotten, forgotten
from fedveil.planning.study import Study
from fedveil.release.bundle import FILE as BUNDLE
from fedveil.release.bundle import Bundle
from fedveil.signing import Signature, SigningKey
from fedveil.stages.prepare.learned import LearnedRule
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.sums import FILE as LEARNED

WHO: Final = "forgotten.json"  # in the private folder: which training records have left, by their numbers
RECEIPT: Final = "receipt"  # .json, .html and, signed, .sig


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(Result):
    """A finished request: the new model as a run's result, and what is promised to whoever left.

    Example::

        result = fedveil.forget("results", rows=[17], out="results-2")
        labels = result.model.predict(frame)
    """

    forgotten: Forgotten
    design: ForgetDesign


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is to be left of whoever leaves, and the most that it may cost the others.

    ``rounds``, ``keep``: how many, and the part of the model that they begin with, if that is decided.
    """

    epsilon: float = 0.1
    others: float | None = None
    rounds: int | None = None
    keep: float | None = None

    def design(self, before: Bundle, leaving: Leaving) -> ForgetDesign:
        """Return the rounds that reach it from a released model."""
        how = {field.name: getattr(self, field.name) for field in fields(self)}
        return design_forgetting(before.plan, leaving, **how)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """Who leaves which run, on which data; ``leaving``: numbers of training records; ``gone``: of earlier ones.

    ``who``: the same as the planner needs it. ``expired``: the last day by which all that expired have left, if any.
    ``opened``: rows, as the run before made them; ``cells``: of what they were made, if their rule was ``learned``.
    """

    study: Study
    opened: Loaded
    cells: Unprepared | None
    learned: LearnedRule | None
    before: Bundle
    source: Path
    leaving: Indices
    gone: Indices
    who: Leaving
    expired: date | None = None

    @property
    def away(self) -> Indices:
        """The training records of all who left: each is blank, so it counts in every size and contributes nothing."""
        return np.union1d(self.leaving, self.gone)

    def remaining(self, plan: Plan, entropy: Entropy) -> "RowsHere | CellsHere":
        """Return the records without those who left: as rows, or as columns whose rule is learned again."""
        if plan.preparation and self.cells is not None:
            return CellsHere(self.cells.without(self.away), entropy)
        return RowsHere(self.opened, self._rows, entropy)

    @property
    def _rows(self) -> Records:
        """The rows without those who left; where a rule makes them, they are made when they are read."""
        if self.cells is not None and self.learned is not None:
            return self.cells.without(self.away).loaded(self.learned).train
        return self.opened.train.without(self.away)

    def met(self, plan: Plan, key: bytes) -> str:
        """Return the keyed fingerprint of what the noise of a request meets: records, and the model it goes on from."""
        if plan.preparation and self.cells is not None:
            records = self.cells.without(self.away).cells_fingerprint(key)
        else:
            records = self._rows.fingerprint(key)
        return records + hmac.digest(key, self.before.parameters.tobytes(), "sha256").hex()

    def rule(self, plan: Plan, folder: Path) -> RowRule | None:
        """Return how records become rows for the new model."""
        if plan.preparation and self.cells is not None:
            return self.cells.rule(LearnedRule.read((folder / LEARNED).read_bytes()))
        return self.opened.preparation


def plan_forgetting(
    folder: str | Path,
    *,
    study: Wanted | None = None,
    rows: Sequence[int] = (),
    records: str | Path | None = None,
    persons: Sequence[str] = (),
    client: str | None = None,
    expired: date | str | bool = False,
    epsilon: float = 0.1,
    others: float | None = None,
    rounds: int | None = None,
    keep: float | None = None,
    system: System | None = None,
) -> ForgetDesign:
    """Return what forgetting would take and cost, without charging anything or touching a record's values.

    Who leaves, and what else may be stated: as for :func:`forget`.

    Example::

        design = fedveil.plan_forgetting("results", rows=[17, 41], epsilon=0.1)  # charges nothing
    """
    system = system or System()
    request = _request(Path(folder), study, _Named(rows, records, persons, client, _as_of(expired, system)), system)
    return Aim(epsilon=epsilon, others=others, rounds=rounds, keep=keep).design(request.before, request.who)


def forget(
    folder: str | Path,
    *,
    out: str | Path,
    study: Wanted | None = None,
    rows: Sequence[int] = (),
    records: str | Path | None = None,
    persons: Sequence[str] = (),
    client: str | None = None,
    expired: date | str | bool = False,
    epsilon: float = 0.1,
    others: float | None = None,
    rounds: int | None = None,
    keep: float | None = None,
    resume: bool = False,
    sign: Sign = None,
    system: System | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> ForgetResult:
    """Go on from the model in ``folder`` without some units until they are forgotten, into the folder ``out``.

    ``rows``: numbers of rows of the source, from 1; ``records``: a file that holds the same rows; ``persons``: their
    names in the study's person_column, with all their rows, where the run protected persons; ``client``: a data holder,
    with all that it has; ``expired``: all whose date in the study's expires_column has passed, as of a day, or with
    True today. ``epsilon``: what is to be left for whoever has only the new model;
    ``others``: the largest epsilon that everybody else may be charged. ``rounds``, ``keep``: how many, and the part of
    the model that they begin with (1, a half, a quarter, ..., or 0), chosen if left out. ``study``: where the run's own
    is not known.

    Example::

        result = fedveil.forget("results", rows=[17, 41], epsilon=0.1, out="results-2")
        print(result.forgotten)
    """
    key, system, target = signing_key(sign), system or System(), Path(out)
    if resume and (target / f"{RECEIPT}.html").exists():
        raise AlreadyFinished(str(target))
    request = _request(Path(folder), study, _Named(rows, records, persons, client, _as_of(expired, system)), system)
    design = Aim(epsilon=epsilon, others=others, rounds=rounds, keep=keep).design(request.before, request.who)
    plan = design.chosen.plan
    conduct(lambda: _job(request, plan, target, system, watch), target, resume=resume, system=system)
    note: dict[str, Any] = {"format": 1, "records": request.away.tolist()}
    note |= {} if request.expired is None else {"expired": request.expired.isoformat()}
    kept = json.dumps(note) + "\n"
    write_atomically(target / "private" / WHO, kept.encode())
    metrics = read_object((target / "metrics.json").read_bytes(), "metrics.json")
    return finish_request(request.source, conclude(target, metrics, key, request.rule(plan, target)), design, key)


def finish_request(source: Path, result: Result, design: ForgetDesign, key: SigningKey | None) -> ForgetResult:
    """Write what follows the certificate of a request: what a later one needs to know, and the receipt."""
    _remember(source, result.folder, anew=bool(design.chosen.plan.preparation))
    left = forgotten(design.chosen.plan)[-1]
    _write_receipt(result.folder, design, left, key)
    return ForgetResult(
        folder=result.folder,
        certificate=result.certificate,
        metrics=result.metrics,
        signature=result.signature,
        forgotten=left,
        design=design,
    )


def row_numbers(text: str) -> list[int]:
    """Return the numbers of rows that a text lists.

    >>> row_numbers("17,41")
    [17, 41]
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadValue(f"--rows must be numbers of rows, such as 17,41, got {text!r}.") from error
    require(all(number >= 1 for number in numbers), "--rows", "be counted from 1", text)
    return numbers


@dataclass(frozen=True, slots=True)
class _Named:
    """Who leaves, in one of five ways; ``expired``: all who have expired by that day."""

    rows: Sequence[int] = ()
    records: str | Path | None = None
    persons: Sequence[str] = ()
    client: str | None = None
    expired: date | None = None

    def __post_init__(self) -> None:
        listed = (bool(len(one)) for one in (self.rows, self.persons))
        ways = sum([*listed, *(one is not None for one in (self.records, self.client, self.expired))])
        hint = "Name rows, a file of records, persons, a client, or those that have expired."
        require(ways == 1, "forget", "be told who leaves, in one way", f"{ways} ways", hint)


def _as_of(given: date | str | bool, system: System) -> date | None:
    """Return the day whose expired records leave, None where none do for that reason."""
    if isinstance(given, bool):
        return system.now().date() if given else None
    return day_of("--as-of", given)


def _request(folder: Path, study: Wanted | None, named: _Named, system: System) -> Request:
    """Return who leaves, found in the data of the run; a run that is still going on is waited for."""
    bundle, words = folder / BUNDLE, f"waiting for the run in {folder} to end"
    wait_for_user(folder / "private", bundle.exists, lambda: system.tell(words))
    unfinished = (folder / PLAN).exists() and not bundle.exists()
    hint = "Finish it first, by the command that began it with --resume."
    require(not unfinished, str(folder), "hold a finished run", "one that was interrupted", hint)
    before = Bundle.read(folder)
    require(before.personal is None, "The model", "be the shared one", "a party's own model")
    opened_study, opened = open_any_study(study_of(folder) if study is None else study)
    cells = opened if isinstance(opened, Unprepared) else None
    learned = None if cells is None else LearnedRule.read((_origin(folder) / LEARNED).read_bytes())
    loaded = opened.loaded(learned) if isinstance(opened, Unprepared) and learned is not None else opened
    assert isinstance(loaded, Loaded)  # noqa: S101  for the type checker
    _check_day(folder, opened_study)
    plan = before.plan
    hint = "Name the study that the run was of, with the same data: --study."
    require(loaded.train.shape == plan.data, "The data", "have the shape of the run's plan", loaded.train.shape, hint)
    gone = gone_from(folder)
    leaving, who = _leaving(plan, opened_study, loaded, named, gone)
    again = np.intersect1d(leaving, gone)
    require(again.size == 0, "forget", "name units that are still there", f"{again.size} that were forgotten already")
    last = max((day for day in (named.expired, _expired_before(folder)) if day is not None), default=None)
    return Request(
        study=opened_study,
        opened=loaded,
        cells=cells,
        learned=learned,
        before=before,
        source=folder,
        leaving=leaving,
        gone=gone,
        who=who,
        expired=last,
    )


def _leaving(plan: Plan, study: Study, loaded: Loaded, named: _Named, gone: Indices) -> tuple[Indices, Leaving]:
    """Return the training records that leave, and how many units of the plan they are.

    A client of a run that protected records leaves with all of them as one.
    """
    train, unit, client = loaded.train, plan.target.unit, named.client
    if client is not None:
        names = [train.name(index) for index in range(train.clients)]
        require(client in names, "--client", f"be one of {', '.join(names[:12])}", client)
        own = np.flatnonzero(train.owner == names.index(client)).astype(np.int64)
        held = own.size if unit == "record" else 1 if unit == "client" else np.unique(_persons(study, loaded)[own]).size
        return own, Leaving(units=held, together=held)
    if named.persons:
        hint = "Name rows or a client: only a run that protected persons knows whose a record is."
        require(unit == "person", "--person", "leave a run that protected persons", unit, hint)
        return _leaving_persons(study, loaded, named.persons)
    way = "--rows" if named.expired is None else "--expired"
    hint = "Name persons: --person." if unit == "person" else "Name a client: --client."
    require(unit == "record", way, "leave a run that protected records", unit, hint)
    if named.expired is not None:
        places = _expired(loaded, named.expired, gone)
        return places, Leaving(units=int(places.size))
    given = named.records
    wanted = _matching(study, given) if given is not None else np.array(sorted(set(named.rows)), dtype=np.int64) - 1
    places = places_of(loaded.rows, wanted, "--rows")
    return places, Leaving(units=int(places.size))


def _persons(study: Study, loaded: Loaded) -> Indices:
    """Return a number for the person of each training record."""
    words, codes = _named_persons(study)
    return np.unique(np.array(words)[codes[loaded.rows]], return_inverse=True)[1].astype(np.int64)


def _named_persons(study: Study) -> tuple[list[str], Indices]:
    """Return the names of persons, and whose each row of the source is."""
    source = study.source
    if source is None:
        raise BadValue("--person must name persons of a source, and the study names none.")
    whole, _ = read_source(source, study.base)
    require(whole.choice.person is not None, "--person", "come with data.person_column", "none")
    named = whole.texts(whole.choice.person or "").respelt(canonical)
    return list(named.words), named.codes


def _leaving_persons(study: Study, loaded: Loaded, names: Sequence[str]) -> tuple[Indices, Leaving]:
    """Return all training records of these persons; where the data name clients, one at two of them is two persons."""
    words, codes = _named_persons(study)
    places, units = np.zeros(0, dtype=np.int64), 0
    for name in dict.fromkeys(canonical(one) for one in names):
        own = np.flatnonzero(np.isin(loaded.rows, np.flatnonzero(codes == words.index(name)) if name in words else []))
        hint = "Their names stand in data.person_column; held-out records train nothing."
        require(own.size > 0, "--person", "name persons whose records train", name, hint)
        places, units = np.union1d(places, own).astype(np.int64), units + np.unique(loaded.train.owner[own]).size
    return places, Leaving(units=units)


def _expired(loaded: Loaded, today: date, gone: Indices) -> Indices:
    """Return the training records that have expired by a day, without those that have left already."""
    hint = "Name a column of dates: data.expires_column."
    require(loaded.expires.size > 0, "--expired", "come with a study that says when records expire", "none", hint)
    found = expired_on(loaded.expires, today)
    result = np.setdiff1d(found, gone).astype(np.int64)
    left = f"none by {today}" if not found.size else f"{found.size} by {today}, which were forgotten already"
    months = ", ".join(f"{count} in {month}" for month, count in list(by_month(loaded.expires, today).items())[:1])
    require(result.size > 0, "--expired", "find a record whose date has passed", left, f"Next: {months or 'none'}.")
    return result


def _matching(study: Study, records: str | Path) -> Indices:
    """Return the rows of the source that hold the same values as the rows of a file, each at most once."""
    source = study.source
    if source is None:
        raise BadValue("--records must be rows of a source, and the study names none.")
    own, wanted = (
        _row_keys(one, study.base) for one in (source, replace(source, source=str(Path(records).absolute())))
    )
    free: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(own):
        free.setdefault(key, []).append(row)
    rows = []
    for number, key in enumerate(wanted, start=1):
        hint = "Compare its columns and values with the source's."
        require(bool(free.get(key)), "--records", "hold rows of the source", f"row {number}, which is not in it", hint)
        rows.append(free[key].pop())
    return np.array(sorted(rows), dtype=np.int64)


def _row_keys(source: Source, base: Path) -> list[tuple[Any, ...]]:
    table, _ = read_source(source, base)
    raw = table.raw
    if raw is None:
        raise BadValue(f"{source.source} must be a table of rows to find records in.")
    return raw.row_keys()


def _job(request: Request, plan: Plan, folder: Path, system: System, watch: Callable[[Progress], None] | None) -> Job:
    def stages(started: Started) -> Release:
        adder = KeptHere(plan, started.entropy, started.name, folder, system, watch)
        data = request.remaining(plan, started.entropy)
        released = run_stages(plan, data, adder, {BEFORE: request.before.parameters})
        return release_of(plan, data, released, adder.private)

    return Job(
        what="request",
        plan=plan,
        output="model.npz",
        sited=request.study,
        fingerprint=request.opened.fingerprint,
        records=partial(request.met, plan),
        expires=by_month(request.opened.expires, request.expired),
        stages=stages,
    )


# What a later request needs to know stays in the private folder.


def study_of(folder: Path, stated: Path | None = None) -> Path:
    """Return the path of the run's study, as stated or as the run noted it."""
    if stated is not None:
        return stated
    note = folder / "private" / STUDY
    hint = "Name it: --study."
    require(note.is_file(), str(folder), "say which study it is of, in its private folder", "nothing", hint)
    return Path(note.read_text(encoding="utf-8").rstrip("\n"))


def _check_day(folder: Path, study: Study) -> None:
    """Refuse a study that leaves out others than the run did: whom the run had must leave by a request."""
    note = folder / "private" / AS_OF
    began = note.read_text(encoding="utf-8").rstrip("\n") if note.is_file() else None
    now = None if study.source is None else study.source.as_of
    hint = "Name a copy of the study as it was then: --study; forget --expired takes out those that expired since."
    require(now == began, "data.as_of", f"be {began or 'left out'}, as in the run", now, hint)


def _origin(folder: Path) -> Path:
    """Return the folder of the run that learned the rule for rows: this one, or the one that a request went on from."""
    note = folder / "private" / "origin"
    return Path(note.read_text(encoding="utf-8").rstrip("\n")) if note.is_file() else folder


def _remember(source: Path, folder: Path, *, anew: bool) -> None:
    """Note what a later request needs; ``anew``: the columns were learned again, so the new folder has their rule."""
    for name in (STUDY, AS_OF):
        note = source / "private" / name
        if note.is_file():
            write_atomically(folder / "private" / name, note.read_bytes())
    if not anew:
        write_atomically(folder / "private" / "origin", f"{_origin(source).absolute()}\n".encode())


def gone_from(folder: Path) -> Indices:
    """Return the numbers of the training records that have left the run in this folder."""
    path = folder / "private" / WHO
    if not path.is_file():
        return np.zeros(0, dtype=np.int64)
    return np.array(read_object(path.read_bytes(), WHO)["records"], dtype=np.int64)


def _expired_before(folder: Path) -> date | None:
    """Return the day by which all that expired have left the run in this folder, None where none left for that."""
    path = folder / "private" / WHO
    day = read_object(path.read_bytes(), WHO).get("expired") if path.is_file() else None
    return None if day is None else day_of(WHO, day)


def _write_receipt(folder: Path, design: ForgetDesign, left: Forgotten, key: SigningKey | None) -> None:
    """Write the receipt for whoever left: values, page, and a signature where there is a key."""
    from fedveil.report.receipt import receipt_of, receipt_page  # imported here because drawing is slow to import

    released = read_object((folder / "certificate.json").read_bytes(), "certificate.json")["released"]
    values = receipt_of(design.chosen.plan, left, str(released[0]["sha256"]))
    data = (json.dumps(values, indent=1, allow_nan=False) + "\n").encode()
    write_atomically(folder / f"{RECEIPT}.json", data, mode=PUBLIC)
    if key is not None:
        write_atomically(folder / f"{RECEIPT}.sig", Signature.of(data, key).text(), mode=PUBLIC)
    signature = f"{RECEIPT}.sig" if key is not None else None
    write_atomically(folder / f"{RECEIPT}.html", receipt_page(values, signature=signature).encode(), mode=PUBLIC)

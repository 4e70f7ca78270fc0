"""The held-out records of a study: what a plan is told of them, and in which ledger beside the training data's they are
charged.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.errors import BadValue, require
from fedveil.data.load import Loaded
from fedveil.data.records import may_share_clients
from fedveil.data.spec import Source
from fedveil.ledger.books import Ledger
from fedveil.ledger.place import default_place, open_books
from fedveil.planning.plan import Plan
from fedveil.planning.study import Books, Study
from fedveil.stages.evaluate.request import Apart
from fedveil.stages.evaluate.words import faint
from fedveil.stages.prepare.loading import Unprepared


def planned_with(study: Study, loaded: Loaded | Unprepared, *, at_sites: bool = False) -> dict[str, Any]:
    """Return what a plan is told of the held-out records, as arguments of ``Study.planned``.

    ``at_sites``: the plan is for sites, which count nothing that no study asks for.
    """
    if loaded.test is None:
        return {}
    told: dict[str, Any] = {"test_records": loaded.test.targets.size, "test_public": loaded.test_public}
    joint = may_share_clients(loaded.train, loaded.test)
    # What would take a part of training's budget is counted only if the study asks for it.
    if not study.evaluation and (at_sites or (joint and study.target.unit == "client")):
        return told
    return told | {"held": loaded.test.shape, "joint": joint, "apart": _apart(study, loaded, joint)}


def _apart(study: Study, loaded: Loaded | Unprepared, joint: bool) -> Apart | None:
    """Return why no held-out row trains, where a guarantee rests on it; refuse two sources that share rows.

    A refusal tells the data holder alone, and nothing is published: whether rows are shared changes no plan.
    """
    counted = study.counting
    both = joint and study.target.unit == "client"
    alone = counted and counted.records != "training" and counted.share is None and not both
    scored = study.tune.score == "private"
    if loaded.test_public or not (alone or scored):
        return None
    if loaded.apart is None:
        return "split"
    hint = "A person may stand in both sources: hold a fraction of one source out, or state a share in [evaluation]."
    persons = study.target.unit == "person"
    require(not persons, "[data.held_out]", "be public or of the same source where persons are protected", "not", hint)
    shared = loaded.apart.shared()
    other = (
        'or say that they may be the same records: [evaluation] records = "held-out" with a share of the budget, which '
        "charges every record for both"
        if alone
        else "or score on public records"
    )
    hint = f"Hold a fraction of one source out, {other}."
    rule = "hold no row that trains too (as the study reads it, whoever it is of)"
    require(shared == 0, "[data.held_out]", rule, f"{shared:,} such rows", hint)
    return "compared"


def note_of(study: Study, plan: Plan) -> str | None:
    """Return what to tell whoever starts the run, before the charge, about its private held-out records."""
    if not plan.held_out.private or plan.held_out.exact or plan.selection.private:
        return None
    if not plan.evaluation.trains:
        return faint(plan.evaluation, plan.target, plan.data)
    if plan.model.generates:
        return None  # how good a generator is, its rows tell
    shared = "clients are protected, and a client may own records of both kinds"
    reason = study.uncounted or ("the study counts training records" if study.evaluation else shared)
    return (
        f"Nothing about the {plan.held_out.records:,} held-out records will be published: they are not public, and "
        f"{reason}. Exact metrics on them stay in private/metrics.json; [evaluation] private = false publishes them, "
        "and makes the ledger say no guarantee for every observer."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sited:
    """Where the held-out source lies, and what the study says of its ledger."""

    source: Source | None
    base: Path
    books: Books


@contextmanager
def ledgers_beside(
    study: Study, plan: Plan, loaded: Loaded | Unprepared, main: Path, random: Callable[[int], bytes] = os.urandom
) -> Iterator[tuple[Ledger, ...]]:
    """Open the ledger of the held-out source, if what is released of it is charged there too.

    Not if it is public, if nothing of it is released, if it has no place that several runs could share, or if its
    ledger is that of the training data, ``main``.
    """
    found = _ledger(study, plan, loaded, main, random)
    if found is None:
        yield ()
        return
    with found as ledger:
        yield (ledger,)


def _ledger(
    study: Study, plan: Plan, loaded: Loaded | Unprepared, main: Path, random: Callable[[int], bytes]
) -> Ledger | None:
    counted = not plan.evaluation.trains
    raw = None if loaded.apart is None else loaded.apart.raw
    released = plan.held_out.private and (counted or plan.selection.private or plan.held_out.exact)
    if not released or raw is None:
        return None
    own = None if study.data.held_out is None else study.data.held_out.source
    books = replace(study.books, ledger=study.books.held_out)
    where = _Sited(source=own, base=study.base, books=books)
    usual = default_place(where)
    if books.ledger is None and (usual is None or usual == default_place(study)):
        return None  # in one database file, both have one ledger
    try:
        found = open_books(where, None, raw.fingerprint, urandom=random)
    except BadValue as error:  # a study names the ledger of held-out records by another key
        raise BadValue(str(error).replace("[books] ledger", "[books] held_out")) from error
    if found.path.resolve() != main.resolve():
        return found
    found.close()
    return None

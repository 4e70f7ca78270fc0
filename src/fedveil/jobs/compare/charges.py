"""What a comparison costs, and the one entry in the study's ledger that pays for it."""

import os
from collections.abc import Sequence

from fedveil.data.load import Loaded
from fedveil.errors import BadValue
from fedveil.jobs.compare.result import Comparison
from fedveil.ledger import Ledger
from fedveil.ledger.place import settled_place
from fedveil.ledger.transaction import Transaction, caps_of
from fedveil.plan import Plan
from fedveil.prepare.loading import Unprepared
from fedveil.study import Study


def charge(comparison: Comparison, loaded: Loaded | Unprepared, plans: Sequence[Plan]) -> str:
    """Charge everything or nothing, under one name, before the first model is trained; return the name."""
    study, name = comparison.study, f"compare-{os.urandom(12).hex()}"
    with _books(study, loaded) as ledger:
        Transaction(ledger, name).charge_together(
            [(plan, comparison.runs) for plan in plans],
            study.target,
            extra={"comparison": [plan.hash for plan in plans], "runs": comparison.runs},
            caps=caps_of(study.books, study.target),
        )
    return name


def record(comparison: Comparison, loaded: Loaded | Unprepared, name: str) -> None:
    """Record the outcome by the hash of compare.json; the models themselves are not kept."""
    with _books(comparison.study, loaded) as ledger:
        Transaction(ledger, name).release(comparison.text().encode(), also=["compare.json"])


def _books(study: Study, loaded: Loaded | Unprepared) -> Ledger:
    own = loaded.cells_fingerprint if isinstance(loaded, Unprepared) else loaded.train.fingerprint
    place = settled_place(study, None, loaded.fingerprint, own)
    if place is None:
        raise BadValue("The study must name a ledger to be charged.")
    return Ledger.open(place, loaded.fingerprint, older=own)

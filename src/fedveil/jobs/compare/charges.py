"""What a comparison costs, and the one entry in the study's ledger that pays for it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedveil.core.errors import BadValue
from fedveil.data.load import Loaded
from fedveil.engine.held_out import ledgers_beside
from fedveil.jobs.compare.result import Comparison
from fedveil.ledger.place import books_of, open_books
from fedveil.ledger.transaction import Transaction, caps_of
from fedveil.planning.plan import Plan
from fedveil.planning.study import Study
from fedveil.stages.prepare.loading import Unprepared


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

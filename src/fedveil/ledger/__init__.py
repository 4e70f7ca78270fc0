"""The ledger of a data set: what was run on it and what privacy it cost.

Append-only, shared by all runs, crash-safe.
"""

from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, CapExceeded, Cost
from fedveil.ledger.entry import Entry, LedgerBroken
from fedveil.ledger.export import Export, parse_export, read_export
from fedveil.ledger.store import LedgerUnusable

__all__ = [
    "Cap",
    "CapExceeded",
    "Cost",
    "Entry",
    "Export",
    "Ledger",
    "LedgerBroken",
    "LedgerUnusable",
    "parse_export",
    "read_export",
]

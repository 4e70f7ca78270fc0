"""The ledger of a study's data: what was spent, by which runs, and what is left. Runs in a worker."""

from pathlib import Path
from typing import Any

from fedveil.core.files import read_file
from fedveil.ledger import Ledger
from fedveil.ledger.costs import charged
from fedveil.ledger.odometer import ObserverRow, observers, runs_of
from fedveil.ledger.place import default_place
from fedveil.privacy.guarantee import finite_or_none
from fedveil.studio.places import Folder
from fedveil.studio.questions import read


def books(study: str, root: str) -> dict[str, Any]:
    """Return the ledger of the data that a study names; ``where`` is None if each run keeps one of its own."""
    path = Folder(Path(root)).existing(study, "The study file")
    wanted = read(read_file(path).decode("utf-8-sig"), str(path.parent), root)
    place = wanted.books.ledger or default_place(wanted)
    stated = [{"adversary": who, "epsilon": epsilon, "delta": delta} for who, epsilon, delta in wanted.books.caps]
    if place is None or not place.exists():
        return {"where": None if place is None else str(place), "runs": [], "observers": [], "caps": stated}
    with Ledger.look(place) as ledger:
        entries, caps = ledger.entries(), ledger.caps()
    rows = observers(charged(entries), caps)
    return {
        "where": str(place),
        "runs": [
            {"study": run.study or "–", "at": (run.at or "–")[:16], "ended": run.ended, "cost": _cost(run.costs)}
            for run in runs_of(entries)
        ],
        "observers": [_row(row) for row in rows],
        "caps": stated,
    }


def _cost(costs: Any) -> float | None:
    epsilon = next((cost.epsilon for cost in costs if cost.adversary == "final-model"), None)
    return finite_or_none(epsilon)


def _row(row: ObserverRow) -> dict[str, Any]:
    left = row.left
    return {
        "adversary": row.question[0],
        "unit": row.question[1],
        "neighbours": row.question[2],
        "spent": finite_or_none(row.added.epsilon),
        "delta": row.added.delta,
        "cap": None if left is None else left.cap.epsilon,
        "share": None if left is None else left.share,
        "more": None if left is None else left.more,
    }

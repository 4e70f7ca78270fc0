"""A study drafted for a table: the names and types of its columns, and the file that ``fedveil init`` writes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveil.jobs.entry import Wish, draft_study, init_study
from fedveil.studio.places import Folder


def columns(data: str, root: str) -> dict[str, Any]:
    """Return the columns of a table by name and type, the column that is probably to be predicted, and its rows."""
    path = Folder(Path(root)).existing(data, "The table")
    draft, drafted = draft_study(Wish(data=str(path)))
    return {
        "columns": dict(drafted.kinds),
        "records": drafted.records,
        "target": str(draft.target.column),
        "left_out": dict(draft.columns.unused),
        "doubtful": [*draft.columns.mixed, *draft.columns.unsettled, *draft.columns.identifiers],
    }


def draft(
    data: str,
    root: str,
    target: str | None,
    classes: list[str],
    between: list[float],
    client: str | None,
    ignore: list[str],
    out: str,
) -> dict[str, Any]:
    """Write the study for a table to the new file ``out``; return what it leaves open."""
    folder = Folder(Path(root))
    path, file = folder.existing(data, "The table"), folder.inside(out, "The study file")
    ignore = [name for name in ignore if name not in (target, client)]
    wish = Wish(
        data=str(path),
        target=target,
        classes=classes,
        range=(between[0], between[1]) if between else None,
        client_column=client,
        ignore=ignore,
        unit="record",
    )
    # Whoever takes an identifier off the list that the page proposes wants it to be used.
    _, drafted = draft_study(wish)
    keep = [name for name in drafted.identifiers if name not in (*ignore, target, client)]
    made, _ = init_study(replace(wish, keep=keep), file)
    return {"study": out, "open": [one.question for one in made.questions], "complete": made.complete}

"""Persons who were watched for a time: from a column of times and one of events to the labels of survival models.

The intervals are public. A person is labelled by the last interval it was seen in: "3" for the event in the third,
"2+" for last seen without one after the end of the second, "0+" if it was not even seen to the end of the first. The
last kind says nothing, and is left out like a label that nobody declared.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fedveil.checks import require
from fedveil.data.cells import canonical
from fedveil.data.spec import Source
from fedveil.data.table import Array, Table

_EVENT: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_watched(source: Source, read: Callable[[Source], tuple[Table, Source]]) -> tuple[Table, Source]:
    """Read a source with a column of events; the table's target is then the label of each person, or a missing one.

    ``read`` reads a source whose target is a number, and which has the column of events among its features.
    """
    event = str(source.event)
    hint = "It says whether the event was seen, and nothing may be predicted from it."
    require(event not in source.ignore and event not in source.columns, "data.event", "name no feature", event, hint)
    apart = event not in (source.target, source.client_column)
    require(apart, "data.event", "differ from data.target and data.client_column", event)
    inner = replace(
        source,
        event=None,
        intervals=(),
        classes=None,
        unlisted="refuse",
        target_scale=(0.0, 1.0),  # a number; its range is not used
        categories={**source.categories, event: ("0", "1")},
        columns=(*source.columns, event) if source.columns else (),
        fill={name: value for name, value in source.fill.items() if name != event},
    )
    table, _ = read(inner)
    kept = tuple(name for name in table.choice.features if name != event)
    require(kept, "The columns of the data", "leave at least one feature", table.choice.features)
    texts = {name: cells for name, cells in table.texts.items() if name != event}
    target = _labels(table, table.texts[event], source)
    choice = replace(table.choice, features=kept, target_is_text=True)
    return replace(table, choice=choice, texts=texts, target=target), source


def _labels(table: Table, events: Array, source: Source) -> Array:
    """The label of each person; a missing mark where time or event is missing."""
    times = np.asarray(table.target, dtype=np.float64)
    gone = np.isnan(times) | np.isin(events, list(source.missing))
    wrong = np.flatnonzero(~gone & ~((times >= 0) & np.isfinite(times)))
    if wrong.size:
        row = int(wrong[0])
        name = f"{table.place(row)}, column {source.target!r}"
        require(False, name, "be a time: finite and not negative", float(times[row]))
    happened = np.zeros(times.size, dtype=np.bool_)
    for row in np.flatnonzero(~gone).tolist():
        word = canonical(events[row]).lower()
        rule = "say whether the event was seen: 1 or 0, true or false, yes or no"
        require(word in _EVENT, f"{table.place(row)}, column {source.event!r}", rule, str(events[row]))
        happened[row] = _EVENT[word]
    found = labelled(np.where(gone, 0.0, times), happened, source.intervals)
    if gone.any():
        row = int(np.flatnonzero(gone)[0])
        hint = "State data.missing with the mark of a missing value, or leave such rows out of the data."
        require(source.missing, table.place(row), "have a time and an event", "a missing one", hint)
        found[gone] = source.missing[0]
    return found


def labelled(times: Array, happened: Array, ends: Sequence[float]) -> Array:
    """Return the labels of persons seen for ``times``, for intervals that end at ``ends``.

    >>> labelled(np.array([0.5, 1.5, 9.0, 0.2]), np.array([True, False, False, False]), [1.0, 2.0, 3.0]).tolist()
    ['1', '1+', '3+', '0+']
    """
    edges = np.asarray(ends, dtype=np.float64)
    before = np.searchsorted(edges, times, side="left")  # intervals that ended before
    inside = happened & (before < edges.size)
    seen = np.searchsorted(edges, times, side="right")  # intervals that were seen whole
    words = np.array([*(f"{k}+" for k in range(edges.size + 1)), *(f"{k + 1}" for k in range(edges.size))])
    return np.asarray(words[np.where(inside, edges.size + 1 + before, seen)])

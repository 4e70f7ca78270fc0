"""Persons who were watched for a time: from a column of times and one of events to the labels of survival models.

The intervals are public. A person is labelled by the last interval it was seen in: "3" for the event in the third,
"2+" for last seen without one after the end of the second, "0+" if it was not even seen to the end of the first. The
last kind says nothing, and is left out like a label that nobody declared.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.checks import require
from fedveil.core.values import Vector
from fedveil.data.cells import Texts, canonical
from fedveil.data.missing import numbers_with_gaps
from fedveil.data.spec import Source
from fedveil.data.table import Table
from fedveil.data.typed import coded

Mask = NDArray[np.bool_]
_EVENT: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_watched(source: Source, read: Callable[[Source], tuple[Table, Source]]) -> tuple[Table, Source]:
    """Read a source with a column of events; the table's target is then the label of each person, or a missing one.

    ``read`` reads a source whose target is a number, and which has the column of events among its features.
    """
    event = str(source.labelling.event)
    hint = "It says whether the event was seen, and nothing may be predicted from it."
    used = (*source.features.ignore, *source.features.columns)
    require(event not in used, "data.event", "name no feature", event, hint)
    apart = event not in (source.labelling.target, source.client_column)
    require(apart, "data.event", "differ from data.target and data.client_column", event)
    inner = source.with_keys(
        event=None,
        intervals=(),
        classes=None,
        unlisted="refuse",
        target_scale=(0.0, 1.0),  # a number; its range is not used
        categories={**source.features.categories, event: ("0", "1")},
        columns=(*source.features.columns, event) if source.features.columns else (),
        fill={name: value for name, value in source.features.fill.items() if name != event},
    )
    table, _ = read(inner)
    kept = tuple(name for name in table.choice.features if name != event)
    require(kept, "The columns of the data", "leave at least one feature", table.choice.features)
    choice = replace(table.choice, features=kept, target_is_text=True)
    return replace(table, choice=choice, target=coded(_labels(table, table.texts(event), source))), source


def _labels(table: Table, events: Texts, source: Source) -> Texts:
    """The label of each person; the empty one where time or event is missing."""
    times = numbers_with_gaps(table, source, None)
    gone = np.isnan(times) | events.among({"", *source.reading.missing})
    wrong = np.flatnonzero(~gone & ~((times >= 0) & np.isfinite(times)))
    if wrong.size:
        row = int(wrong[0])
        name = f"{table.place(row)}, column {source.labelling.target!r}"
        require(False, name, "be a time: finite and not negative", float(times[row]))
    happened = events.where(lambda word: _EVENT.get(canonical(word).lower(), False))
    strange = np.flatnonzero(~gone & events.where(lambda word: canonical(word).lower() not in _EVENT))
    if strange.size:
        row = int(strange[0])
        rule = "say whether the event was seen: 1 or 0, true or false, yes or no"
        got = events.words[int(events.codes[row])]
        require(False, f"{table.place(row)}, column {source.labelling.event!r}", rule, got)
    found = labelled(np.where(gone, 0.0, times), happened, source.labelling.intervals)
    return Texts(["", *found.words], np.where(gone, 0, 1 + found.codes))


def labelled(times: Vector, happened: Mask, ends: Sequence[float]) -> Texts:
    """Return the labels of persons seen for ``times``, for intervals that end at ``ends``.

    >>> found = labelled(np.array([0.5, 1.5, 9.0, 0.2]), np.array([True, False, False, False]), [1.0, 2.0, 3.0])
    >>> [found.words[code] for code in found.codes]
    ['1', '1+', '3+', '0+']
    """
    edges = np.asarray(ends, dtype=np.float64)
    before = np.searchsorted(edges, times, side="left")  # intervals that ended before
    inside = happened & (before < edges.size)
    seen = np.searchsorted(edges, times, side="right")  # intervals that were seen whole
    words = [*(f"{k}+" for k in range(edges.size + 1)), *(f"{k + 1}" for k in range(edges.size))]
    return Texts(words, np.where(inside, edges.size + 1 + before, seen))

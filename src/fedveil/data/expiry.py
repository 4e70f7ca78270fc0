"""From which day on each record may no longer be in a released model, by a column of dates.

The dates are public, as the names in the client column are: how many records expire when is shown in plans and in the
ledger. A record that has expired by the study's ``as_of`` is blank: it counts in every size and contributes nothing.
Which records are blank depends on the study and each record's own date alone, never on the day of reading, so that a
resumed run and a later request see the records that the run began with.
"""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices
from fedveil.data.cells import canonical
from fedveil.data.missing import Mask
from fedveil.data.spec import Source
from fedveil.data.table import Table

NEVER: Final = 2**40  # after every day that a date can name
_DATE: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ]00:00(?::00(?:\.0*)?)?)?")  # with a midnight, as libraries write it


def day_of(name: str, given: date | str) -> date:
    """Return the date that this is.

    >>> day_of("--as-of", "2027-01-31")
    datetime.date(2027, 1, 31)
    """
    if isinstance(given, date):
        return date(given.year, given.month, given.day)
    found = _day(given) if isinstance(given, str) else None
    if found is None:
        raise BadValue(f"{name} must be a date such as 2027-01-31, got {given!r}.")
    return found


def _day(written: str) -> date | None:
    match = _DATE.fullmatch(written)
    try:
        return None if match is None else date.fromisoformat(match[1])
    except ValueError:
        return None


def expiry_of(table: Table, source: Source, dropped: Mask) -> tuple[Indices, tuple[str, ...]]:
    """Return the day from which each row may be in no model, and add to ``dropped`` those that have expired.

    Days are counted as :meth:`datetime.date.toordinal` does; ``NEVER`` for a row without one, and for one that expired
    by the study's ``as_of``, since it is in no model. The second are notes for the data holder. Both are empty where
    the study names no such column.
    """
    name = table.choice.expires
    if name is None:
        return np.zeros(0, dtype=np.int64), ()
    written, never = table.texts(name), {"", *map(canonical, source.reading.missing)}
    days = np.empty(len(written.words), dtype=np.int64)
    for code, word in enumerate(written.words):
        found = None if canonical(word) in never else _day(word.strip())
        if found is None and canonical(word) not in never:
            rows = np.flatnonzero(written.codes == code)
            if not rows.size:  # a word that no row uses
                continue
            hint = "An empty cell stands for never."
            require(False, f"{table.place(int(rows[0]))}: {name}", "be a date such as 2027-01-31", word, hint)
        days[code] = NEVER if found is None else found.toordinal()
    result = days[written.codes]
    if source.as_of is None:
        return result, ()
    left_out = result <= date.fromisoformat(source.as_of).toordinal()
    dropped |= left_out
    require(not dropped.all(), "data.as_of", "leave a record that has not expired", source.as_of)
    count = int(left_out.sum())
    notes = (f"{count:,} records had expired by {source.as_of} (data.as_of); they are blank.",) if count else ()
    return np.where(left_out, NEVER, result), notes


def expired(days: Indices, today: date) -> Indices:
    """Return the places of those that have expired on that day.

    >>> expired(np.array([date(2027, 1, 31).toordinal(), NEVER]), date(2027, 1, 31)).tolist()
    [0]
    """
    return np.flatnonzero(days <= today.toordinal()).astype(np.int64)


def check_unexpired(days: Indices, today: date) -> None:
    """Refuse records that have expired already; called when a run begins, never when it goes on."""
    count = expired(days, today).size
    hint = f'State data.as_of = "{today}" to leave them out: they then count as blank.'
    require(count == 0, f"The number of records that have expired by {today}", "be 0", count, hint)


def by_month(days: Indices, after: date | None = None) -> Mapping[str, int]:
    """Return how many expire in each month that has any, but for those that expired by a day.

    >>> by_month(np.array([date(2027, 1, 31).toordinal(), date(2027, 1, 1).toordinal(), NEVER]))
    {'2027-01': 2}
    """
    first = 0 if after is None else after.toordinal()
    counts = Counter(date.fromordinal(int(day)).isoformat()[:7] for day in days if first < day < NEVER)
    return dict(sorted(counts.items()))

"""Persons behind the records: whose each row is, and which rows of a person are used.

A person's first rows are used, as many as the study states, and the others count as blank. The choice depends on row
numbers alone, one person at a time, so no other person's rows move it. Where the data name the clients, a person
belongs to one of them: the same name at two clients is two persons, each with a guarantee of its own. Theory page:
persons.md.
"""

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Indices
from fedveil.data.cells import Texts, canonical
from fedveil.data.missing import Mask
from fedveil.data.spec import Source
from fedveil.data.table import Table


def persons_of(table: Table, source: Source, client: Texts | None, dropped: Mask) -> Texts | None:
    """Return the person of each row, and add to ``dropped`` the rows of nobody and those beyond the stated number.

    None where the study names no persons.
    """
    if table.choice.person is None or source.largest_person is None:
        return None
    named = table.texts(table.choice.person).respelt(canonical)
    dropped |= named.among({"", *map(canonical, source.reading.missing)})
    if client is not None:
        kinds, codes = np.unique(np.stack([client.codes, named.codes]), axis=1, return_inverse=True)
        words = [f"{client.words[held]}\n{named.words[own]}" for held, own in kinds.T.tolist()]
        named = Texts(words, codes.reshape(-1).astype(np.int64))
    dropped |= ranks(named.codes) >= source.largest_person
    require(not dropped.all(), "data.person_column", "name the person of some row", table.choice.person)
    return named


def ranks(persons: Indices) -> Indices:
    """Return how many rows of the same person stand before each row.

    >>> ranks(np.array([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(persons, kind="stable")
    ranked = persons[order]
    first = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    result = np.empty(persons.size, dtype=np.int64)
    result[order] = np.arange(persons.size) - np.repeat(first, np.diff(np.append(first, persons.size)))
    return result

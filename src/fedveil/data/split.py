"""Who owns which record, and which records are held out. In every split, each client has at least one record.

Others see who holds what, and how much. So a split may depend on row numbers and on what the study declares public (the
client column, the names of files), and on nothing else. The one exception is ``dirichlet``, which looks at labels; a
run that uses it is not private unless its records are public (fedveil.planning.plan).
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.data.cells import Texts
from fedveil.data.spec import Split

Generator = np.random.Generator


def owners(split: Split, targets: Vector, generator: Generator) -> tuple[Indices, int]:
    """Return the owner of each record by the study's rule, and the number of clients.

    Only the number of ``targets`` matters, except for ``dirichlet``.
    """
    require(not split.natural, "clients.kind", "be one that deals records", split.kind)
    rows, count = targets.size, split.count or targets.size
    hint = "Nobody may be left without a record."
    require(count <= rows, "clients.count", f"be at most the number of records, {rows}", count, hint)
    alpha = split.alpha or 0.0
    match split.kind:
        case "record":
            return np.arange(rows, dtype=np.int64), rows
        case "dirichlet":
            return nobody_empty(dirichlet(targets, count, alpha, generator), count, generator), count
        case _:
            sizes = uneven_sizes(rows, count, alpha if split.kind == "uneven" else 0.0)
            dealt = np.repeat(np.arange(count, dtype=np.int64), sizes)
            return generator.permutation(dealt), count


def natural_owners(labels: Texts | NDArray[Any]) -> tuple[Indices, tuple[str, ...]]:
    """Return the owner of each row and the clients that the data name, in the order of their names.

    Clients that a program names by whole numbers are in the order of these.
    """
    if isinstance(labels, np.ndarray):
        values, owner = np.unique(labels, return_inverse=True)
        return owner.astype(np.int64).reshape(-1), tuple(str(value) for value in values.tolist())
    held = np.unique(labels.codes)
    names = sorted((labels.words[code], code) for code in held.tolist())
    place = np.zeros(len(labels.words), dtype=np.int64)
    place[[code for _, code in names]] = np.arange(len(names))
    return place[labels.codes], tuple(name for name, _ in names)


def uneven_sizes(rows: int, count: int, alpha: float) -> Indices:
    """Return sizes: one record for each client, and the rest in proportion to i**-alpha (equally for alpha 0).

    >>> uneven_sizes(10, 3, 0.0).tolist(), uneven_sizes(14, 3, 1.0).tolist()
    ([4, 3, 3], [7, 4, 3])
    """
    weights = np.arange(1, count + 1, dtype=np.float64) ** -alpha
    shares = weights / weights.sum() * (rows - count)
    sizes = np.floor(shares).astype(np.int64)
    spare = rows - count - int(sizes.sum())
    largest_remainders = np.argsort(sizes - shares, kind="stable")
    sizes[largest_remainders[: max(spare, 0)]] += 1
    sizes[: max(-spare, 0)] -= 1  # rounding of the shares gave a record too many
    return np.asarray(sizes + 1)


def dirichlet(targets: Vector, count: int, alpha: float, generator: Generator) -> Indices:
    """Spread each class over the clients in its own proportions, drawn from Dirichlet(alpha)."""
    owner = np.empty(targets.size, dtype=np.int64)
    kinds, kind_of = np.unique(targets, return_inverse=True)  # blank records (NaN) are a class of their own
    for kind in range(kinds.size):
        members = generator.permutation(np.flatnonzero(kind_of == kind))
        weights = generator.standard_gamma(alpha, size=count)
        total = np.cumsum(weights)
        if not total[-1] > 0:  # all underflowed: extreme skew, so one client gets everything
            owner[members] = generator.integers(count)
            continue
        points = (np.arange(members.size) + generator.random()) / members.size * total[-1]
        owner[members] = np.minimum(np.searchsorted(total, points, side="right"), count - 1)
    return owner


def nobody_empty(owner: Indices, count: int, generator: Generator) -> Indices:
    """Give each empty client one record, taken at random from those who keep at least one."""
    empty = np.flatnonzero(np.bincount(owner, minlength=count) == 0)
    if not empty.size:
        return owner
    spare = _spare(owner)
    given = generator.choice(spare, size=empty.size, replace=False, shuffle=True)
    owner = owner.copy()
    owner[given] = empty
    return owner


def held_out_rows(rows: int, fraction: float, generator: Generator) -> NDArray[np.bool_]:
    """Return a random choice of rows to keep from training, regardless of their content and owners."""
    wanted = round(fraction * rows)
    hint = "Take another fraction, or a source of its own."
    require(1 <= wanted < rows, "data.held_out.fraction", f"leave records on both sides of {rows}", fraction, hint)
    chosen = np.zeros(rows, dtype=np.bool_)
    chosen[generator.permutation(rows)[:wanted]] = True
    return chosen


def held_out_whole(labels: Texts, fraction: float, seed: int, what: str) -> NDArray[np.bool_]:
    """Return the rows of whole clients or persons (``what``) to keep from training, each chosen by its own name.

    A client is held out if a hash of the seed and its name falls below the fraction. So the choice of one client
    depends on no other client and no record: changing the client of a row moves only that row.
    """
    owner, names = natural_owners(labels)
    chosen = _drawn(names, fraction, seed)
    count, total = int(chosen.sum()), len(names)
    rule = f"hold out some of the {total} {what} and leave some, each being drawn by itself"
    require(1 <= count < total, "data.held_out.fraction", rule, f"{count} of them", _other_seed(names, fraction))
    return np.asarray(chosen[owner])


def _drawn(names: tuple[str, ...], fraction: float, seed: int) -> NDArray[np.bool_]:
    words = [blake2b(f"{seed} {name}".encode(), digest_size=8).digest() for name in names]
    return np.array([int.from_bytes(word, "little") < fraction * 2.0**64 for word in words], dtype=np.bool_)


def _other_seed(names: tuple[str, ...], fraction: float) -> str:
    """Return a hint: the first seed that holds out about as many clients as requested."""
    wanted = min(max(1, round(fraction * len(names))), len(names) - 1)
    result = next((seed for seed in range(100) if _drawn(names, fraction, seed).sum() == wanted), None)
    if wanted < 1 or result is None:
        return "Take another fraction, or a source of its own."
    return f"With data.held_out.seed = {result} it holds out {wanted}."


def _spare(owner: Indices) -> Indices:
    """Return all positions except the first of each owner."""
    order = np.argsort(owner, kind="stable")
    ranked = owner[order]
    first = np.ones(owner.size, dtype=np.bool_)
    first[1:] = ranked[1:] != ranked[:-1]
    return np.sort(order[~first])

"""Records ready for training: bounded rows, targets, and the client that owns each; checked when created."""

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices, Matrix, Vector, number, whole
from fedveil.data.fingerprint import RawRows
from fedveil.data.lazy_rows import LazyRows
from fedveil.data.row_rule import RowRule
from fedveil.data.rows import row_norms

_MOST = 2**53  # so that counts are exact as floats


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShape:
    """What a plan may know about the data: counts and the bound, never a value."""

    records: int
    features: int
    classes: int
    clients: int
    largest_client: int
    smallest_client: int
    bound: float

    def __post_init__(self) -> None:
        for name in ("records", "features", "classes", "clients", "largest_client", "smallest_client"):
            value, least = whole(f"data.{name}", getattr(self, name)), int(name != "classes")
            require(least <= value <= _MOST, f"data.{name}", f"lie between {least} and 2**53", value)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "bound", number("data.bound", self.bound))
        require(self.bound > 0, "data.bound", "be positive", self.bound)

    @property
    def holders(self) -> str:
        """How many clients there are, in words."""
        return "one client" if self.clients == 1 else f"{self.clients:,} clients"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Rows of norm at most ``bound``, their targets (a class index, or a number in [-1, 1]) and their owners.

    ``classes`` is 0 for regression. ``names`` may be empty: clients are then called by their number.

    A record whose row is zero and whose target is NaN is *blank*: it stands for a row that was dropped. It counts in
    every size and is dealt like any other, but every loss leaves it out of its sums, so it contributes exactly zero.
    """

    features: Matrix
    targets: Vector
    owner: Indices
    clients: int
    bound: float
    classes: int
    names: tuple[str, ...] = ()
    raw: RawRows | None = field(default=None, repr=False)  # the rows they were made from, where that is known
    preparation: RowRule | None = field(default=None, repr=False)  # how they were made from them, likewise
    sizes: Indices = field(init=False, repr=False)  # records of each client

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_values(self)
        sizes = np.bincount(self.owner, minlength=self.clients)
        empty = np.flatnonzero(sizes == 0)
        if empty.size:
            require(False, "Records.owner", "give every client a record", f"none for {self.name(int(empty[0]))}")
        object.__setattr__(self, "sizes", sizes)
        for name in ("features", "targets", "owner", "sizes"):
            if isinstance(values := getattr(self, name), np.ndarray):
                view = values.view()  # a view, so that the caller's own array stays writable
                view.setflags(write=False)
                object.__setattr__(self, name, view)

    def __len__(self) -> int:
        return int(self.targets.size)

    def name(self, client: int) -> str:
        """Return the name of a client."""
        return self.names[client] if self.names else f"client {client + 1}"

    @property
    def blank(self) -> NDArray[np.bool_]:
        """Which records stand for dropped rows. It depends on values, so never publish it, nor its count."""
        return np.isnan(self.targets)

    @property
    def shape(self) -> DataShape:
        """The public quantities of these records: counts and the bound."""
        return DataShape(
            records=len(self),
            features=int(self.features.shape[1]),
            classes=self.classes,
            clients=self.clients,
            largest_client=int(self.sizes.max()),
            smallest_client=int(self.sizes.min()),
            bound=self.bound,
        )

    def present(self) -> "Records":
        """Return the records that are not blank, for measuring; a client without any is left out."""
        blank = self.blank
        if not blank.any():
            return self
        kept, owner = np.unique(self.owner[~blank], return_inverse=True)
        return Records(
            features=self.features[~blank],
            targets=self.targets[~blank],
            owner=owner.astype(np.int64),
            clients=int(kept.size),
            bound=self.bound,
            classes=self.classes,
            names=tuple(self.names[client] for client in kept) if self.names else (),
        )

    def without(self, gone: Indices) -> "Records":
        """Return the records with some of them blank: they count in every size and contribute nothing."""
        features, targets = self.features.copy(), self.targets.copy()
        features[gone], targets[gone] = 0.0, np.nan
        return replace(self, features=features, targets=targets)

    def by_client(self) -> tuple[Indices, Indices]:
        """Return an order that puts the records of each client together, and where each client starts in it.

        The last entry of the starts is the number of records.
        """
        order = np.argsort(self.owner, kind="stable")
        return order, np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed hash of everything here.

        It is keyed, because a plain hash would let anyone test guesses of the data.
        """
        right = isinstance(key, bytes) and 16 <= len(key) <= 64
        require(right, "The key of a fingerprint", "be 16 to 64 secret bytes", type(key).__name__)
        digest = hashlib.blake2b(key=key, digest_size=32)
        shape = (*self.features.shape, self.clients, self.classes, self.bound, self.names)
        head = repr(shape).encode()
        digest.update(len(head).to_bytes(8, "little") + head)
        features: Any = self.features
        if isinstance(features, LazyRows):  # of their cells, which are far fewer than the numbers made of them
            digest.update(features.identity(key))
            features = features.chosen
        for values in (features, self.targets, self.owner):
            little = values.astype(values.dtype.newbyteorder("<"), copy=False)
            digest.update(np.ascontiguousarray(little).data)
        return digest.hexdigest()


def may_share_clients(train: Records, held: Records) -> bool:
    """Return whether a client may own records of both kinds: yes, unless all are named and no name is on both sides."""
    named = bool(train.names) and bool(held.names)
    return not named or bool(set(train.names) & set(held.names))


def _check_arrays(records: Records) -> None:
    features, rows = records.features, len(records.targets)
    array = isinstance(features, np.ndarray) and features.dtype == np.float64 and features.flags.c_contiguous
    fine = array or isinstance(features, LazyRows)
    require(fine, "Records.features", "be a C-contiguous array of float64", getattr(features, "dtype", type(features)))
    require(features.ndim == 2 and features.shape[1] >= 1, "Records.features", "have rows and columns", features.shape)
    require(rows >= 1, "Records", "hold at least one record", rows)
    require(features.shape[0] == rows, "Records.features", f"have one row for each target, {rows}", features.shape[0])
    for name, dtype in (("targets", np.float64), ("owner", np.int64)):
        values = getattr(records, name)
        fine = values.dtype == dtype and values.shape == (rows,)
        require(fine, f"Records.{name}", f"be {rows} values of {np.dtype(dtype)}", (values.dtype, values.shape))


def _check_values(records: Records) -> None:
    require(0 < records.bound < math.inf, "Records.bound", "be finite and positive", records.bound)
    _check_rows(records)
    require(records.classes == 0 or records.classes >= 2, "Records.classes", "be 0 or at least 2", records.classes)
    blank = records.blank
    targets = records.targets[~blank] if blank.any() else records.targets
    require(np.isfinite(targets).all(), "Records.targets", "be finite", "infinity")
    if records.classes:
        whole = (targets == np.floor(targets)) & (targets >= 0) & (targets < records.classes)
        require(whole.all(), "Records.targets", f"be classes 0 to {records.classes - 1}", "something else")
    clients = records.clients
    require(1 <= clients <= len(records), "Records.clients", f"lie between 1 and {len(records)} records", clients)
    inside = (records.owner >= 0) & (records.owner < clients)
    require(inside.all(), "Records.owner", f"lie between 0 and {clients - 1}", "something else")
    right = not records.names or len(records.names) == clients
    require(right, "Records.names", f"name all {clients} clients or none", len(records.names))


def _check_rows(records: Records) -> None:
    """Refuse rows beyond the bound, and blank records with content; rows made when they are read are checked then."""
    blank, features = records.blank, cast(Matrix | LazyRows, records.features)
    if isinstance(features, LazyRows):
        fits = features.bound == records.bound and bool(np.all(features.chosen[blank] < 0))
        require(fits, "Records.features", f"have the bound {records.bound!r} and blank rows", features.bound)
        return
    norms = row_norms(features)
    wrong = np.flatnonzero(~(norms <= records.bound))
    if wrong.size:
        row = int(wrong[0])
        rule = f"be finite with norm at most {records.bound!r}"
        require(False, f"Records.features, row {row}", rule, float(norms[row]), "Cut it with cut_rows.")
    hint = "A blank record has a row of zeros and the target NaN."
    require(not features[blank].any(), "Records.targets", "be finite", "NaN", hint)

"""Everything public about one round of masked sums, fixed before it begins and the same for everybody.

What a party of a masked sum refuses; the message says in one sentence who caused it and why.

::

    FedveilError
    └── Refused                 anything below; the round goes on without the party that caused it, or ends
        ├── BadMessage          wrong type, kind or size, or impossible content
        ├── OtherRun            it belongs to another run
        ├── OtherRound          it belongs to another round
        ├── OtherParty          it is from or for another party
        ├── OutOfTurn           it is not expected at this stage, or this party has left the round
        ├── Duplicate           this client has already answered at this stage
        ├── RoundReused         this client has already been in this round, or in a later one
        ├── BadKey              a public key that is malformed, of low order, or used by two clients
        ├── BadSignature        an identity key did not sign this
        ├── BadEnvelope         a sealed share was changed in transit, or made wrong; names who sealed it
        ├── BadShare            a share does not fit its commitment; names who gave it
        ├── BadList             a list of participants that cannot follow from the earlier lists
        ├── ListsDiffer         others were told another list of participants
        ├── AliveAndGone        a client is said to be both in the sum and lost
        ├── ShareSpent          the shares of this round have already been given
        ├── TooFew              fewer participants than the plan promises, or than the threshold
        └── OutOfBounds         an input of the wrong type, length, range or norm
"""

import hashlib
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

import numpy as np

from fedveil.core.errors import FedveilError, require
from fedveil.sums.exact import LIMIT, largest, squared_norm
from fedveil.sums.seam import Whole

RUN_BYTES: Final = 32
MOST_LENGTH: Final = 2**31  # most values of a vector; 16 GiB a message
MOST_NUMBER: Final = 2**32 - 1  # largest number of a client
LAST_ROUND: Final = 2**63 - 1
IDENTITY_BYTES: Final = 32  # an Ed25519 public key


def _whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One round: who may take part, who is whose neighbour, and how many must remain.

    ``run``: 32 public bytes, fixed after the colluders (if any) and before the round; they decide the graph.
    ``neighbours``: of each client; with itself they hold its shares, and any ``threshold`` of them recover its secrets.
    ``least``: fewer clients in the sum are refused. ``colluders``: clients that may side with the server.
    ``identities``: Ed25519 public keys in the order of ``clients``, or none; without them an active server can pose as
    any client, see docs/secure.md.
    """

    run: bytes
    round: int
    clients: tuple[int, ...]
    neighbours: int
    threshold: int
    least: int
    length: int
    colluders: int = 0
    identities: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        right = isinstance(self.run, bytes) and len(self.run) == RUN_BYTES
        require(right, "Setting.run", f"be {RUN_BYTES} bytes", self.run, "Hash the plan and the round's public salt.")
        require(_whole(self.round, 0, LAST_ROUND), "Setting.round", "be a whole number, 0 or more", self.round)
        self._check_clients()
        size = len(self.clients)
        even = self.neighbours % 2 == 0 or size % 2 == 0 if _whole(self.neighbours, 1, size - 1) else False
        way_out = "An odd number of clients needs an even number."
        require(even, "Setting.neighbours", f"lie between 1 and {size - 1} and fit a graph", self.neighbours, way_out)
        holders, given = self.neighbours + 1, self.threshold
        most = _whole(given, 2, holders)
        require(most, "Setting.threshold", f"lie between 2 and {holders}, the holders of a share", given)
        why = "Otherwise a server that tells half of them another story gets both secrets of a client."
        require(2 * given > holders, "Setting.threshold", f"be above half of the {holders} holders", given, why)
        require(
            _whole(self.colluders, 0, size - 1), "Setting.colluders", "be whole and below the clients", self.colluders
        )
        rule = f"lie between {self.quorum}, above half of clients and colluders, and {size}"
        require(_whole(self.least, self.quorum, size), "Setting.least", rule, self.least, "Tolerate fewer dropouts.")
        require(_whole(self.length, 1, MOST_LENGTH), "Setting.length", f"lie between 1 and {MOST_LENGTH}", self.length)

    def _check_clients(self) -> None:
        clients, identities = self.clients, self.identities
        whole = isinstance(clients, tuple) and all(_whole(client, 0, MOST_NUMBER) for client in clients)
        ascending = whole and all(a < b for a, b in pairwise(clients))
        require(ascending, "Setting.clients", "be client numbers in ascending order, each once", clients)
        require(len(clients) >= 2, "Setting.clients", "be at least two", len(clients), "One client's sum is its input.")
        right = isinstance(identities, tuple) and len(identities) in (0, len(clients))
        require(right, "Setting.identities", "be none, or one for each client", len(identities))
        keys = all(isinstance(key, bytes) and len(key) == IDENTITY_BYTES for key in identities)
        require(keys, "Setting.identities", f"be of {IDENTITY_BYTES} bytes each", [len(key) for key in identities])
        once = len(set(identities)) == len(identities)
        require(once, "Setting.identities", "be different from each other", "a key that two clients share")

    @property
    def quorum(self) -> int:
        """How many must agree on one list. Two lists cannot both have so many, because only colluders sign twice."""
        return (len(self.clients) + self.colluders) // 2 + 1

    def address(self) -> bytes:
        """Return run and round in the form used in every derived key."""
        return self.run + struct.pack("<Q", self.round)

    def digest(self) -> bytes:
        """Return a hash of the whole setting.

        Fields of fixed length come first, so that no two settings give the same bytes.
        """
        numbers = (self.neighbours, self.threshold, self.least, self.length, self.colluders, len(self.clients))
        words = struct.pack("<6Q", *numbers) + struct.pack(f"<{len(self.clients)}I", *self.clients)
        return hashlib.sha256(b"fedveil setting" + self.address() + words + b"".join(self.identities)).digest()

    def identity(self, client: int) -> bytes | None:
        """Return the public key that signs for this client, or None if the deployment has no such keys."""
        return self.identities[self.clients.index(client)] if self.identities else None


class Refused(FedveilError):
    """A party of a masked sum refuses to continue."""


class BadMessage(Refused):
    """A message of wrong type, kind or size, or with impossible content."""


class OtherRun(Refused):
    """The message belongs to another run."""


class OtherRound(Refused):
    """The message belongs to another round."""


class OtherParty(Refused):
    """The message is from or for another party."""


class OutOfTurn(Refused):
    """The message is not expected at this stage, or this party has left the round."""


class Duplicate(Refused):
    """This client has already answered at this stage; its first answer counts."""


class RoundReused(Refused):
    """This client has already been in this round, or in a later one."""


class BadKey(Refused):
    """A public key that is malformed, of low order, or used by two clients."""


class BadSignature(Refused):
    """An identity key did not sign this."""


class BadEnvelope(Refused):
    """A sealed share was changed in transit, or made wrong."""


class BadShare(Refused):
    """A share does not fit its commitment."""


class BadList(Refused):
    """A list of participants that cannot follow from the earlier lists."""


class ListsDiffer(Refused):
    """Others were told another list of participants."""


class AliveAndGone(Refused):
    """A client is said to be both in the sum and lost."""


class ShareSpent(Refused):
    """The shares of this round have already been given."""


class TooFew(Refused):
    """Fewer participants than the plan promises, or than the threshold."""


class OutOfBounds(Refused):
    """An input of the wrong type, length, range or norm."""


# Bounds on a client's vector, checked in exact integers before masking, because nobody can check it afterwards.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds on a vector of ``length`` whole numbers: on each absolute value, and on the norm if one is given."""

    length: int
    largest: int = LIMIT
    squared_norm: int | None = None

    def __post_init__(self) -> None:
        require(self.length >= 1, "Bounds.length", "be at least 1", self.length)
        require(0 <= self.largest <= LIMIT, "Bounds.largest", f"lie between 0 and {LIMIT}", self.largest)
        right = self.squared_norm is None or self.squared_norm >= 0
        require(right, "Bounds.squared_norm", "be non-negative", self.squared_norm)


def admit(values: object, bounds: Bounds) -> Whole:
    """Return the vector if it keeps its bounds; otherwise raise, and the client counts as a dropout.

    >>> admit(np.array([0.5, float("nan")]), Bounds(length=2))
    Traceback (most recent call last):
    fedveil.sums.masks.setting.OutOfBounds: An input must be a vector of int64, got float64.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.ndim != 1:
        got = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        shape = f" of {values.ndim} dimensions" if isinstance(values, np.ndarray) and values.ndim != 1 else ""
        raise OutOfBounds(f"An input must be a vector of int64, got {got}{shape}.")
    if values.size != bounds.length:
        raise OutOfBounds(f"An input must have {bounds.length} values, got {values.size}.")
    if not largest(values) <= bounds.largest:
        raise OutOfBounds(f"An input's values must not exceed {bounds.largest} in absolute value.")
    if bounds.squared_norm is not None and not squared_norm(values) <= bounds.squared_norm:
        raise OutOfBounds("An input's norm exceeds its bound.")  # by how much is the client's secret
    return values

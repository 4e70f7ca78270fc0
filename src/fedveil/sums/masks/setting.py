"""Everything public about one round of masked sums, fixed before it begins and the same for everybody."""

import hashlib
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from fedveil.core.checks import require

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

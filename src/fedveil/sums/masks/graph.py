"""The neighbour graph of a round: a ring in an order given by run and round, where each client is tied to the nearest.

Every party computes the graph itself. See docs/theory/secure-aggregation.md.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import final

from fedveil.sums.masks.setting import Setting


@final
@dataclass(frozen=True, slots=True)
class Graph:
    """The clients in the order of the ring, and the place of each client in it."""

    ring: tuple[int, ...]
    place: dict[int, int]
    neighbours: int

    def hood(self, client: int) -> tuple[int, ...]:
        """Return a client and its neighbours in ascending order.

        They hold the shares of its secrets: share x belongs to the x-th of them.
        """
        size, at, half = len(self.ring), self.place[client], self.neighbours // 2
        near = {self.ring[(at + step) % size] for step in range(-half, half + 1)}
        if self.neighbours % 2:
            near.add(self.ring[(at + size // 2) % size])
        return tuple(sorted(near))

    def around(self, client: int) -> tuple[int, ...]:
        """Return the neighbours of a client in ascending order."""
        return tuple(other for other in self.hood(client) if other != client)


def graph_of(setting: Setting) -> Graph:
    """Return the graph of a round.

    The place of a client follows from a hash of run, round and its number, so the choice of other clients does not move
    it. Each client has exactly ``neighbours``; the graph stays connected if fewer than that many clients are removed.
    """
    address = b"fedveil graph" + setting.address()

    def rank(client: int) -> bytes:
        return hashlib.sha256(address + struct.pack("<I", client)).digest()

    ring = tuple(sorted(setting.clients, key=rank))
    return Graph(ring, {client: at for at, client in enumerate(ring)}, setting.neighbours)

"""Who is whose neighbour: a ring in an order that only the run and the round decide, each tied to the nearest.

Every party works the graph out for itself; nobody is told it. See docs/theory/secure-aggregation.md.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import final

from fedveil.sums.masks.setting import Setting


@final
@dataclass(frozen=True, slots=True)
class Graph:
    """The clients in the order of the ring, and each client's place in it."""

    ring: tuple[int, ...]
    place: dict[int, int]
    neighbours: int

    def hood(self, client: int) -> tuple[int, ...]:
        """A client and its neighbours in ascending order: the holders of its shares, share x to the x-th of them."""
        size, at, half = len(self.ring), self.place[client], self.neighbours // 2
        near = {self.ring[(at + step) % size] for step in range(-half, half + 1)}
        if self.neighbours % 2:
            near.add(self.ring[(at + size // 2) % size])
        return tuple(sorted(near))

    def around(self, client: int) -> tuple[int, ...]:
        """Its neighbours in ascending order."""
        return tuple(other for other in self.hood(client) if other != client)


def graph_of(setting: Setting) -> Graph:
    """The graph of a round.

    The place of a client follows from a hash of run, round and its number, so that no choice of the other clients moves
    it among them. Each client has exactly ``neighbours``; the graph stays connected when fewer than that are taken out.
    """
    address = b"fedveil graph" + setting.address()

    def rank(client: int) -> bytes:
        return hashlib.sha256(address + struct.pack("<I", client)).digest()

    ring = tuple(sorted(setting.clients, key=rank))
    return Graph(ring, {client: at for at, client in enumerate(ring)}, setting.neighbours)

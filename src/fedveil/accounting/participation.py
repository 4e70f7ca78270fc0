"""Who takes part with how much, as far as an observer inside the run is concerned."""

from dataclasses import dataclass
from typing import Final

from fedveil.accounting.hidden import per_round
from fedveil.core.checks import require
from fedveil.core.values import whole
from fedveil.privacy.mechanism import LastIterate

SERVERS: Final = ("server-with-secure-aggregation", "server")
ONE_HOLDER: Final = "one client holds all units and adds all of the noise: its update is the round's noised sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """How units and clients belong together. Units are those of the run: records, or clients.

    ``largest_client``: the most units that one client holds; ``clients``: how many there are. ``every_round``: units
    are dealt one by one, so a client with several may take part in any round; otherwise a client takes part once in a
    pass, with all its units. In a round, at most ``colluders`` units belong to clients who tell the server their noise,
    and the noise of at most ``dropouts`` units is missing.
    """

    largest_client: int = 1
    clients: int
    every_round: bool
    colluders: int = 0
    dropouts: int = 0

    def __post_init__(self) -> None:
        for name, least in (("largest_client", 1), ("clients", 1), ("colluders", 0), ("dropouts", 0)):
            value = whole(f"Participation.{name}", getattr(self, name))
            require(least <= value <= 10**18, f"Participation.{name}", f"be at least {least}", value)
            object.__setattr__(self, name, value)
        require(self.every_round in (True, False), "Participation.every_round", "be true or false", self.every_round)

    @property
    def alone(self) -> bool:
        """True if one client holds all units, deals them and adds all of the noise: a server gets its noised sums."""
        return self.clients == 1 and self.colluders == 0 and self.dropouts == 0

    @property
    def whole_clients(self) -> bool:
        """True if clients with several units are dealt as a whole; a client with one unit is that unit."""
        return not self.every_round and self.largest_client > 1

    def uniform(self, run: LastIterate) -> bool:
        """Return whether every slot is equally likely to belong to a client.

        Then a secret order helps against that client.
        """
        if self.every_round:
            return True
        sizes = run.batch if isinstance(run.batch, tuple) else (run.batch,)
        even = all(size % self.largest_client == 0 for size in sizes)
        return even and units_of(run) == self.clients * self.largest_client


def units_of(run: LastIterate) -> int:
    """Return the number of units; if it is not stated, the number of those that are used."""
    return run.records if run.records is not None else round(float(per_round(run.batch, run)[: run.rounds].sum()))

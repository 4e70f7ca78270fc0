"""Who takes part in a run with how many units, and who shares the noise: what observers inside the run depend on."""

from dataclasses import dataclass

import numpy as np

from fedveil.accounting.hidden import per_round
from fedveil.core.errors import CannotCertify, require
from fedveil.core.values import Vector, whole
from fedveil.privacy.mechanism import LastIterate


def units_of(run: LastIterate) -> int:
    """Return the number of units; if it is not stated, the number of those that are used."""
    return run.records if run.records is not None else round(float(per_round(run.batch, run)[: run.rounds].sum()))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who shares the noise of a round: ``cohort`` clients, one number or one for each round of a pass.

    ``dropouts`` of them may be missing, and ``colluders`` may tell the server what they added. ``everyone``: all
    clients take part in every round, and so are sent every model. ``opened``: clients see every sum; ``named``: they
    learn who else is in their rounds. ``together``: clients of one site, which look together.
    """

    cohort: int | tuple[int, ...]
    dropouts: int = 0
    colluders: int = 0
    everyone: bool
    opened: bool = False
    named: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        sizes = self.cohort if isinstance(self.cohort, tuple) else (self.cohort,)
        require(len(sizes) >= 1 and min(sizes) >= 1, "Shares.cohort", "be at least 1", self.cohort)
        for name in ("dropouts", "colluders"):
            require(getattr(self, name) >= 0, f"Shares.{name}", "be non-negative", getattr(self, name))
        require(self.together >= 1, "Shares.together", "be at least 1", self.together)

    @property
    def steady(self) -> bool:
        """True if the number of answers in a round cannot depend on which clients were dealt into it."""
        return self.everyone or self.dropouts == 0

    def honest(self, run: LastIterate) -> Vector:
        """Return the number of honest clients that surely answer, in each round."""
        result = per_round(self.cohort, run) - self.dropouts - self.colluders
        if not bool(np.all(result >= 1)):
            missing = f"{self.dropouts} dropouts and {self.colluders} colluders"
            raise CannotCertify(f"a round of {per_round(self.cohort, run).min():g} clients tolerates no {missing}")
        return result

    def beside(self, run: LastIterate) -> Vector:
        """Return the share of each round's planned variance that a site with clients in it does not know.

        Besides its clients at least the victim answers, and no fewer than ``cohort - dropouts`` in all; what exceeds
        the plan is not counted.
        """
        honest = self.honest(run)
        return np.minimum(1.0, np.maximum(honest + self.colluders - self.together, 1.0) / honest)

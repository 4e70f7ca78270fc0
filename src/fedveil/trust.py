"""Whom the clients trust with what: who draws the noise, who adds up the updates, how many may be missing or collude.

Every plan has one. ``CENTRAL``: one trusted party draws the noise of each round. Otherwise every client adds its own
share of the noise to its update, in whole numbers, before the update leaves it. Page: docs/trust.md; proof:
docs/theory/noise-shares.md.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from fedveil.checks import require
from fedveil.values import whole

Noise = Literal["shares", "central"]
Server = Literal["trusted", "secure-aggregation", "homomorphic"]
KeyHolder = Literal["clients", "third-party"]
Identities = Literal["sites"]
_MOST = 10**9
_LONGEST = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The trust assumptions of a plan.

    ``noise``: "central" if one trusted party draws it (then nothing else applies), else the clients add it in shares.
    ``dropouts``: clients that may be missing from a round. ``colluders``: clients in a round that may tell the server
    their noise. ``key_holder``: who can open encrypted sums, for a homomorphic server only; by default the clients.
    ``identities``, for masked sums only: "sites" vouch for a key of each client, with which it signs. ``timeout``:
    seconds that a round waits for clients on other machines. ``patience``, for DP-SGD without secure sums only: seconds
    after which a window goes on without late clients, whose updates join a later window. ``together``: the most clients
    that one site holds, which count as one curious observer. None: each client by itself.
    """

    server: Server = "trusted"
    dropouts: int = 0
    colluders: int = 0
    key_holder: KeyHolder | None = None
    timeout: float = 600.0
    identities: Identities | None = None
    patience: float | None = None
    together: int | None = None
    noise: Noise = "shares"

    def __post_init__(self) -> None:
        require(self.noise in get_args(Noise), "trust.noise", f"be one of {', '.join(get_args(Noise))}", self.noise)
        require(
            self.server in get_args(Server), "trust.server", f"be one of {', '.join(get_args(Server))}", self.server
        )
        for name in ("dropouts", "colluders"):
            value = whole(f"trust.{name}", getattr(self, name))
            require(0 <= value <= _MOST, f"trust.{name}", f"lie between 0 and {_MOST}", value)
            object.__setattr__(self, name, value)
        require(1 <= self.timeout <= _LONGEST, "trust.timeout", f"lie between 1 and {_LONGEST} seconds", self.timeout)
        object.__setattr__(self, "timeout", float(self.timeout))
        if self.together is not None:
            object.__setattr__(self, "together", whole("trust.together", self.together))
            require(1 <= self.hand <= _MOST, "trust.together", f"lie between 1 and {_MOST}", self.together)
        self._check_key()
        self._check_identities()
        self._check_patience()
        self._check_central()

    def _check_central(self) -> None:
        if self.shared:
            return
        hint = "Whoever draws all of the noise is trusted with every update: there is nothing to state beside it."
        stray = next((f.name for f in fields(self) if f.name != "noise" and getattr(self, f.name) != f.default), None)
        require(
            stray is None, f"trust.{stray}", "be left out with central noise", getattr(self, stray or "noise"), hint
        )

    def _check_identities(self) -> None:
        known = self.identities is None or self.identities in get_args(Identities)
        require(known, "trust.identities", "be sites, or left out", self.identities)
        hint = "Only masks are signed."
        masked = self.identities is None or self.server == "secure-aggregation"
        require(masked, "trust.identities", "be left out here", self.identities, hint)

    def _check_patience(self) -> None:
        if self.patience is None:
            return
        hint = "Masked and encrypted sums need everybody of a round at once."
        require(self.server == "trusted", "trust.patience", "be left out here", self.patience, hint)
        most = f"lie between 0 and trust.timeout, {self.timeout:g} seconds"
        require(0 <= self.patience <= self.timeout, "trust.patience", most, self.patience)
        object.__setattr__(self, "patience", float(self.patience))

    def _check_key(self) -> None:
        encrypted, words = self.server == "homomorphic", get_args(KeyHolder)
        if not encrypted:
            hint = "Only a homomorphic server has a key to be held."
            require(self.key_holder is None, "trust.key_holder", "be left out here", self.key_holder, hint)
            return
        if self.key_holder is None:
            object.__setattr__(self, "key_holder", "clients")
        hint = "Whoever holds it can open single updates: it must never be the server."
        require(self.key_holder in words, "trust.key_holder", f"be one of {', '.join(words)}", self.key_holder, hint)
        alone = self.key_holder != "clients" or self.colluders == 0
        hint = "A client that hands the server the key opens every update; let a third party hold it."
        require(alone, "trust.colluders", "be 0 when the clients hold the key", self.colluders, hint)

    @property
    def shared(self) -> bool:
        """True if the clients add the noise in shares."""
        return self.noise == "shares"

    @property
    def hand(self) -> int:
        """Number of clients that look together as one curious observer."""
        return 1 if self.together is None else self.together

    def honest(self, cohort: int) -> int:
        """Return how many of ``cohort`` clients surely add their share of noise and keep it secret from the server."""
        return cohort - self.dropouts - self.colluders

    def least(self, cohort: int) -> int:
        """Return how many of ``cohort`` clients must answer; with fewer, the round is refused."""
        return cohort - self.dropouts

    def check(self, cohort: int) -> None:
        """Refuse a round in which no client might be left whose noise protects the others."""
        left = self.honest(cohort)
        rule = f"leave an honest client of the {cohort} in a round, with dropouts and colluders taken off"
        given = f"{self.dropouts} dropouts and {self.colluders} colluders"
        require(left >= 1, "trust", rule, given)
        # the same condition that fedveil.sums.masks.setting requires of every round
        if self.server == "secure-aggregation":
            most = f"leave more than half of {cohort} clients and the colluders answering, and at least two clients"
            enough = cohort >= 2 and 2 * self.least(cohort) > cohort + self.colluders
            require(enough, "trust", most, given, "Masks protect nobody below that.")


CENTRAL = Trust(noise="central")

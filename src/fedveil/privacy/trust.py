"""Whom the clients trust with what: who draws the noise, who adds up the updates, how many may be missing or collude.

Every plan has one. ``CENTRAL``: one trusted party draws the noise of each round. Otherwise every client adds its own
share of the noise to its update (or, with ``noise = "local"``, all of it), in whole numbers, before the update leaves
it. What differs between the two is
answered here, by :class:`Trust` and :class:`Central`, so that hardly anybody asks which of them it has. Page:
docs/trust.md; proof: docs/theory/noise-shares.md.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Literal, TypeVar, final, get_args

from fedveil.core.errors import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.values import whole
from fedveil.privacy.guarantee import Adversary

Noise = Literal["shares", "local", "central"]
Server = Literal["trusted", "secure-aggregation", "homomorphic"]
KeyHolder = Literal["clients", "third-party"]
Identities = Literal["sites"]
Count = TypeVar("Count", int, float)
_MOST = 10**9
_LONGEST = 86400


EXCLUSIONS: Final = (
    Exclusion(
        "identities",
        "a server other than secure-aggregation",
        "Only masks are signed.",
        lambda trust: trust.server != "secure-aggregation",
    ),
    Exclusion(
        "patience",
        "a server other than trusted",
        "Masked and encrypted sums need everybody of a round at once.",
        lambda trust: trust.server != "trusted",
    ),
    Exclusion(
        "key_holder",
        "a server other than homomorphic",
        "Only a homomorphic server has a key to be held.",
        lambda trust: trust.server != "homomorphic",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The trust assumptions of a plan whose clients add the noise: in shares, or each the whole of it.

    ``noise``: "shares" make up the planned noise together; "local": every client's update carries all of the noise that
    it needs, so that no other client has to be trusted (DP-SGD only).
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

    all_send: ClassVar[bool] = True  # every client of a round, if only its noise: nobody sees who has something to send

    def __post_init__(self) -> None:
        require(
            self.server in get_args(Server), "trust.server", f"be one of {', '.join(get_args(Server))}", self.server
        )
        hint = "A study without [trust] has central noise."
        drawn = self.noise in ("shares", "local")
        require(drawn, "trust.noise", "be shares or local", self.noise, hint)
        for name in ("dropouts", "colluders"):
            value = whole(f"trust.{name}", getattr(self, name))
            require(0 <= value <= _MOST, f"trust.{name}", f"lie between 0 and {_MOST}", value)
            object.__setattr__(self, name, value)
        require(1 <= self.timeout <= _LONGEST, "trust.timeout", f"lie between 1 and {_LONGEST} seconds", self.timeout)
        object.__setattr__(self, "timeout", float(self.timeout))
        if self.together is not None:
            object.__setattr__(self, "together", whole("trust.together", self.together))
            require(1 <= self.hand <= _MOST, "trust.together", f"lie between 1 and {_MOST}", self.together)
        known = self.identities is None or self.identities in get_args(Identities)
        require(known, "trust.identities", "be sites, or left out", self.identities)
        check_exclusions(self, "trust", EXCLUSIONS)
        if self.patience is not None:
            most = f"lie between 0 and trust.timeout, {self.timeout:g} seconds"
            require(0 <= self.patience <= self.timeout, "trust.patience", most, self.patience)
            object.__setattr__(self, "patience", float(self.patience))
        if self.server == "homomorphic":
            self._check_key()

    def _check_key(self) -> None:
        words = get_args(KeyHolder)
        if self.key_holder is None:
            object.__setattr__(self, "key_holder", "clients")
        hint = "Whoever holds it can open single updates: it must never be the server."
        require(self.key_holder in words, "trust.key_holder", f"be one of {', '.join(words)}", self.key_holder, hint)
        alone = self.key_holder != "clients" or self.colluders == 0
        hint = "A client that hands the server the key opens every update; let a third party hold it."
        require(alone, "trust.colluders", "be 0 when the clients hold the key", self.colluders, hint)

    @property
    def shared(self) -> bool:
        """True if the clients add the noise, each to its own update."""
        return self.noise != "central"

    @property
    def hand(self) -> int:
        """Number of clients that look together as one curious observer."""
        return 1 if self.together is None else self.together

    @property
    def sentences(self) -> str:
        """Who has to be trusted with what, in sentences."""
        how = {
            "trusted": "the server sees each client's noised update",
            "secure-aggregation": "the server sees masked sums only",
            "homomorphic": "the server sees encrypted sums only",
        }[self.server]
        drawn = "its own share of the noise" if self.noise == "shares" else "all the noise that its update needs"
        text = f"Each client adds {drawn} before anything leaves it; {how}. Up to {self.dropouts:,} "
        return f"{text}clients may be missing from a round and {self.colluders:,} may collude with the server."

    def honest(self, cohort: Count) -> Count:
        """Return how many of ``cohort`` clients surely add their share of noise and keep it secret from the server."""
        return cohort - self.dropouts - self.colluders

    def surplus(self, cohort: int) -> float:
        """Return the ratio of a round's variance to the planned one if all of its clients answer."""
        self.check(cohort)
        return cohort / self.honest(cohort)

    def left(self, adversary: Adversary, cohort: float) -> float:
        """Return the variance of a round that this observer surely does not know, over the planned one.

        A server that sees single messages does not know one share; who sees sums alone does not know those of the
        honest clients; clients who look together know their own, and everybody outside knows none.
        """
        honest = self.honest(cohort)
        match adversary:
            case "server":
                return 1 / honest
            case "server-with-secure-aggregation":
                return 1.0
            case "curious-client":  # at least the victim answers besides them
                return max(honest + self.colluders - self.hand, 1) / honest
            case _:
                return (honest + self.colluders) / honest

    def senders(self, clients: int) -> int:
        """Return how many parties each add noise of their own to a sum over so many clients."""
        return clients

    def charged(self, clients: int, units: int, held: int) -> tuple[int, int]:
        """Return into how many equal shares the noise of a sum is counted, and how many of them a curious client knows.

        ``units``: units in the sum; ``held``: the most that one client holds. At least the victim adds a share that
        the curious client does not know.
        """
        honest = self.honest(clients)
        return honest, min(self.hand - self.colluders, honest - 1)

    def joined(self, most: int) -> "Trust":
        """Return the trust under which ``most`` clients of one site look together, or more where more is stated."""
        return self if most <= self.hand else replace(self, together=most)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of a plan file that read back to this value."""
        return {"trust": {f.name: getattr(self, f.name) for f in fields(self)}}

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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Central(Trust):
    """One trusted party draws the noise of each round, so it is trusted with every update.

    Observers inside the federation are charged as if every unit had added an equal share of the noise, and all did.
    """

    noise: Noise = "central"

    all_send: ClassVar[bool] = False

    def __post_init__(self) -> None:
        hint = "Whoever draws all of the noise is trusted with every update: there is nothing to state beside it."
        for f in fields(self):
            value = getattr(self, f.name)
            require(value == f.default, f"trust.{f.name}", "be left out with central noise", value, hint)

    @property
    def sentences(self) -> str:
        """Who has to be trusted with what, in sentences."""
        text = "Central: one party draws the noise and sees every update. Its own row of the certificate says what is "
        return f"{text}promised against it; readers of the model need not be trusted."

    def check(self, cohort: int) -> None:
        """Accept any round: its noise does not depend on who answers."""

    def surplus(self, cohort: int) -> float:
        """Return 1: the noise is the planned one, whoever answers."""
        return 1.0

    def senders(self, clients: int) -> int:
        """Return 1: the noise is one share, of whoever draws it."""
        return 1

    def charged(self, clients: int, units: int, held: int) -> tuple[int, int]:
        """Return the units, and those of one client."""
        return units, held

    def joined(self, most: int) -> Trust:
        """Return the same: no client adds noise that another could know."""
        return self

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return none: a plan that states no trust has central noise."""
        return {}


CENTRAL = Central()

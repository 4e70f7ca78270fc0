r"""How many neighbours a masked sum needs: bounds on the chance that a random ring betrays somebody, or gets stuck.

Clients stand on a ring in a uniformly random order, each tied to the ``neighbours // 2`` nearest on either side (and to
the opposite one if the number is odd); a client and its neighbours hold the shares of its secrets. For proofs
see docs/theory/secure-aggregation.md. Everything is exact integer arithmetic, rounded up at the end.

References:
    [B20] Bell et al. Secure Single-Server Aggregation with (Poly)Logarithmic Overhead. CCS 2020.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

from fedveil.checks import require
from fedveil.errors import CannotCertify

SAFE: Final = 2.0**-40  # the chance of a betrayal that a design allows
STUCK: Final = 1e-6  # ... and of a round that must be given up


def _rounded_up(value: Fraction) -> float:
    return min(1.0, math.nextafter(float(value), math.inf)) if value > 0 else 0.0


def _tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """Chance that at least ``least`` of ``drawn`` without replacement are marked: the hypergeometric tail."""
    if least <= 0:
        return Fraction(1)
    others = population - marked
    first, last = max(least, drawn - others), min(marked, drawn)
    if first > last:
        return Fraction(0)
    ways, term = 0, math.comb(marked, first) * math.comb(others, drawn - first)
    for hits in range(first, last + 1):  # each term from the one before; the divisions leave nothing over
        ways += term
        term = term * (marked - hits) * (drawn - hits) // ((hits + 1) * (others - drawn + hits + 1))
    return Fraction(ways, math.comb(population, drawn))


def _check(clients: int, neighbours: int, threshold: int, colluders: int, dropouts: int) -> None:
    require(clients >= 2, "clients", "be at least 2", clients)
    require(1 <= neighbours < clients, "neighbours", "lie between 1 and clients - 1", neighbours)
    require(2 <= threshold <= neighbours + 1, "threshold", f"lie between 2 and {neighbours + 1}", threshold)
    require(colluders >= 0, "colluders", "be non-negative", colluders)
    require(dropouts >= 0, "dropouts", "be non-negative", dropouts)
    rule = "leave at least one honest survivor"
    require(colluders + dropouts < clients, "colluders and dropouts", rule, colluders + dropouts)


def _exposed(clients: int, neighbours: int, threshold: int, colluders: int) -> Fraction:
    """Some honest client has so many colluders around that both of its secrets come out.

    Honest holders all give the same one of the two: a curious server asks for one, and an active one gets answers to
    one list only, as two cannot both have the quorum's signatures.
    """
    return (clients - colluders) * _tail(clients - 1, colluders, neighbours, threshold)


def _torn(clients: int, neighbours: int, colluders: int, dropouts: int, active: bool) -> Fraction:
    """Honest survivors fall into groups without a mask between them."""
    half = neighbours // 2
    window = 2 * half
    if neighbours == clients - 1 or colluders + dropouts < window:
        return Fraction(0)
    # Two groups are parted by two stretches of at least ``half`` missing clients each, with a survivor between.
    pairs = Fraction(clients * max(clients - window - 1, 0), 2)
    if active:  # colluders fall into the two stretches by chance, dropouts where they are needed
        return pairs * _tail(clients, colluders, window, window - dropouts)
    return pairs * _tail(clients, colluders + dropouts, window, window)


def graph_failure(
    clients: int, neighbours: int, threshold: int, colluders: int, dropouts: int, *, active: bool = False
) -> float:
    """At most this is the chance, over the ring, that the server learns more than the sum of all honest survivors.

    Colluders stand where chance put them. Dropouts too for a curious server; an ``active`` one chooses them, knowing
    the ring and the colluders' places. Against an active one clients need identity keys, or nothing is promised.

    >>> graph_failure(clients=1000, neighbours=60, threshold=40, colluders=100, dropouts=100) < 2**-40
    True
    >>> graph_failure(clients=20, neighbours=19, threshold=15, colluders=5, dropouts=5, active=True)
    0.0
    """
    _check(clients, neighbours, threshold, colluders, dropouts)
    exposed = _exposed(clients, neighbours, threshold, colluders)
    return _rounded_up(exposed + _torn(clients, neighbours, colluders, dropouts, active))


def recovery_failure(clients: int, neighbours: int, threshold: int, dropouts: int) -> float:
    """At most this is the chance that, with random dropouts, some client's shares are too few and the round is lost."""
    _check(clients, neighbours, threshold, 0, dropouts)
    stays = (clients - dropouts) * _tail(clients - 1, dropouts, neighbours, neighbours + 2 - threshold)
    goes = dropouts * _tail(clients - 1, dropouts - 1, neighbours, neighbours + 1 - threshold) if dropouts else 0
    return _rounded_up(Fraction(stays + goes))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """A degree and a threshold, with the chances of a betrayal and of a lost round that come with them."""

    neighbours: int
    threshold: int
    failure: float
    stuck: float


def least_neighbours(
    clients: int, colluders: int, dropouts: int, *, active: bool = False, safe: float = SAFE, stuck: float = STUCK
) -> Neighbourhood:
    """The smallest degree, and the highest threshold with it, that keep both chances; at worst all are neighbours.

    >>> least_neighbours(clients=50, colluders=5, dropouts=5).neighbours
    12
    """
    _check(clients, clients - 1, 2, colluders, dropouts)

    def tried(neighbours: int) -> Neighbourhood | None:
        threshold = _highest_threshold(clients, neighbours, dropouts, stuck)
        if threshold is None:
            return None
        chance = graph_failure(clients, neighbours, threshold, colluders, dropouts, active=active)
        lost = recovery_failure(clients, neighbours, threshold, dropouts)
        found = Neighbourhood(neighbours=neighbours, threshold=threshold, failure=chance, stuck=lost)
        return found if chance <= safe else None

    best = tried(clients - 1)
    if best is None:
        raise CannotCertify(
            f"No graph on {clients} clients is safe with {colluders} colluders and {dropouts} dropouts; tolerate fewer."
        )
    low, high = 0, clients // 2  # halves of degrees; where the chances are not monotone, the degree is only not least
    while high - low > 1:
        middle = (low + high) // 2
        found = tried(2 * middle) if 2 * middle < clients - 1 else best
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    return best


def _highest_threshold(clients: int, neighbours: int, dropouts: int, stuck: float) -> int | None:
    """The highest with which a round is lost with chance ``stuck`` at most; None if half the holders are more."""
    low, high = max(2, (neighbours + 1) // 2 + 1), neighbours + 2
    if not recovery_failure(clients, neighbours, low, dropouts) <= stuck:
        return None
    while high - low > 1:  # the chance grows with the threshold
        middle = (low + high) // 2
        fits = recovery_failure(clients, neighbours, middle, dropouts) <= stuck
        low, high = (middle, high) if fits else (low, middle)
    return low

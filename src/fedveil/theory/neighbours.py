r"""How many neighbours a masked sum needs: bounds on the chance that a random ring reveals a client, or gets stuck.

Clients stand on a ring in a uniformly random order, each tied to the ``neighbours // 2`` nearest on either side (and to
the opposite one if the number is odd); a client and its neighbours hold the shares of its secrets. Proofs:
docs/theory/secure-aggregation.md. Everything is exact integer arithmetic, rounded up at the end.

References:
    [B20] Bell et al. Secure Single-Server Aggregation with (Poly)Logarithmic Overhead. CCS 2020.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, final

from fedveil.core.errors import CannotCertify, require

SAFE: Final = 2.0**-40  # the largest chance that a design reveals a client
STUCK: Final = 1e-6  # ... and that a round must be given up


def _rounded_up(value: Fraction) -> float:
    return min(1.0, math.nextafter(float(value), math.inf)) if value > 0 else 0.0


def _tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """Return the chance that at least ``least`` of ``drawn`` without replacement are marked (hypergeometric tail)."""
    if least <= 0:
        return Fraction(1)
    others = population - marked
    first, last = max(least, drawn - others), min(marked, drawn)
    if first > last:
        return Fraction(0)
    ways, term = 0, math.comb(marked, first) * math.comb(others, drawn - first)
    for hits in range(first, last + 1):  # each term follows from the one before; the divisions are exact
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
    """Bound the chance that some honest client has so many colluders around that both of its secrets are revealed.

    All honest holders reveal the same one of the two secrets: a curious server asks for one, and an active server gets
    answers to one list only, because two lists cannot both have the quorum's signatures.
    """
    return (clients - colluders) * _tail(clients - 1, colluders, neighbours, threshold)


def _torn(clients: int, neighbours: int, colluders: int, dropouts: int, active: bool) -> Fraction:
    """Bound the chance that honest survivors fall into groups without a mask between them."""
    half = neighbours // 2
    window = 2 * half
    if neighbours == clients - 1 or colluders + dropouts < window:
        return Fraction(0)
    # Two groups are separated by two stretches of at least ``half`` missing clients each, with a survivor between.
    pairs = Fraction(clients * max(clients - window - 1, 0), 2)
    if active:  # colluders fall into the two stretches by chance, dropouts are placed by the server
        return pairs * _tail(clients, colluders, window, window - dropouts)
    return pairs * _tail(clients, colluders + dropouts, window, window)


def graph_failure(
    clients: int, neighbours: int, threshold: int, colluders: int, dropouts: int, *, active: bool = False
) -> float:
    """Return a bound on the chance, over the ring, that the server learns more than the sum of all honest survivors.

    Colluders have random places. So have dropouts for a curious server; an ``active`` server chooses them, knowing the
    ring and the colluders' places. Against an active server clients need identity keys, otherwise nothing is promised.

    >>> graph_failure(clients=1000, neighbours=60, threshold=40, colluders=100, dropouts=100) < 2**-40
    True
    >>> graph_failure(clients=20, neighbours=19, threshold=15, colluders=5, dropouts=5, active=True)
    0.0
    """
    _check(clients, neighbours, threshold, colluders, dropouts)
    exposed = _exposed(clients, neighbours, threshold, colluders)
    return _rounded_up(exposed + _torn(clients, neighbours, colluders, dropouts, active))


def recovery_failure(clients: int, neighbours: int, threshold: int, dropouts: int) -> float:
    """Return a bound on the chance that, with random dropouts, a client has too few shares and the round is lost."""
    _check(clients, neighbours, threshold, 0, dropouts)
    stays = (clients - dropouts) * _tail(clients - 1, dropouts, neighbours, neighbours + 2 - threshold)
    goes = dropouts * _tail(clients - 1, dropouts - 1, neighbours, neighbours + 1 - threshold) if dropouts else 0
    return _rounded_up(Fraction(stays + goes))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """A degree and a threshold, with the chances that a client is revealed and that a round is lost."""

    neighbours: int
    threshold: int
    failure: float
    stuck: float


def least_neighbours(
    clients: int, colluders: int, dropouts: int, *, active: bool = False, safe: float = SAFE, stuck: float = STUCK
) -> Neighbourhood:
    """Return the smallest degree, with its highest threshold, that keeps both chances.

    In the worst case all clients are neighbours.

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
        result = Neighbourhood(neighbours=neighbours, threshold=threshold, failure=chance, stuck=lost)
        return result if chance <= safe else None

    best = tried(clients - 1)
    if best is None:
        raise CannotCertify(
            f"No graph on {clients} clients is safe with {colluders} colluders and {dropouts} dropouts; tolerate fewer."
        )
    low, high = 0, clients // 2  # halves of degrees; if the chances are not monotone, the degree may not be the least
    while high - low > 1:
        middle = (low + high) // 2
        result = tried(2 * middle) if 2 * middle < clients - 1 else best
        low, high, best = (middle, high, best) if result is None else (low, middle, result)
    return best


def _highest_threshold(clients: int, neighbours: int, dropouts: int, stuck: float) -> int | None:
    """Return the highest threshold at which a round is lost with a chance of at most ``stuck``.

    None if it is not more than half of the holders.
    """
    low, high = max(2, (neighbours + 1) // 2 + 1), neighbours + 2
    if not recovery_failure(clients, neighbours, low, dropouts) <= stuck:
        return None
    while high - low > 1:  # the chance grows with the threshold
        middle = (low + high) // 2
        fits = recovery_failure(clients, neighbours, middle, dropouts) <= stuck
        low, high = (middle, high) if fits else (low, middle)
    return low

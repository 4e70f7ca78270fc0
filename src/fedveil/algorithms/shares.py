"""A round in which every client adds its own share of the noise to its whole numbers, and what adds them up.

The same functions run in one process here and on many machines in a deployment: sites call ``contribution`` (of the
algorithm's own file), ``share`` and ``message``; whoever adds up is a ``Summing``; the server calls ``advance``. So
both give the same bits. Proof of what the shares hide: docs/theory/noise-shares.md.
"""

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from math import sqrt

import numpy as np

from fedveil.checks import require
from fedveil.errors import TooFewSurvivors
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Summed, Summing, Whole
from fedveil.values import Vector

Fails = Callable[[int, int], bool]  # (round, client) -> whether the client fails to answer in it; tests pass their own
Answers = Callable[[int], Whole | None]  # what a client sends in this round; None if it cannot answer

LARGEST_PART = 2**52  # most grid steps in one coordinate of one client's contribution
_LOOSE = 1 + 2.0**-20  # float errors of a sum of up to 2**30 clipped gradients are far below


def nobody_fails(turn: int, client: int) -> bool:
    """Return False: every client answers."""
    return False


def plain_sum(turn: int, parts: Mapping[int, Whole], /) -> Summed:
    """Add up in the open, at a server that is trusted with every client's message."""
    survivors = tuple(sorted(parts))
    require(len(survivors) >= 1, "parts", "hold at least one client's vector", 0)
    total = np.zeros_like(parts[survivors[0]])
    for client in survivors:
        total += parts[client]  # modulo 2**64, as in every other way of adding up
    return Summed(total, survivors)


def share(entropy: Entropy, client: int, turn: int, steps: float, size: int) -> Whole:
    """Return a client's share of a round's noise, with a deviation of ``steps`` grid steps.

    It is a function of the key, the client's number and the round. A round that is computed again after a crash has the
    same share; it must never be drawn anew.
    """
    return rounded_normal(entropy.stream(f"share {client}", turn), steps, size)


def message(part: Whole | None, noise: Whole) -> Whole | None:
    """Return what leaves a client; nothing leaves without its noise."""
    return None if part is None else part + noise


def bounded(steps: Vector, norm: Fraction) -> Whole | None:
    """Return whole numbers as int64 if each is small enough and their norm is at most ``norm`` grid steps, else None.

    The norm is checked in exact integers. What a client computes as planned always passes, whatever its records are, so
    a missing answer reveals nothing about them. The check stops what was not computed as planned.

    >>> five = Fraction(5)
    >>> bounded(np.array([3.0, -4.0]), five), bounded(np.array([3.0, 5.0]), five), bounded(np.array([np.nan]), five)
    (array([ 3, -4]), None, None)
    """
    if not bool(np.all(np.abs(steps) <= LARGEST_PART)):  # also false for NaN
        return None
    found = steps.astype(np.int64)
    return found if squared_norm(found) <= norm * norm else None


def rounded_norm(norm: float, size: int) -> Fraction:
    """Return the norm with room for float errors and for rounding each of ``size`` numbers by half a step."""
    return Fraction(norm * _LOOSE + sqrt(size))


def gathered(turn: int, cohort: Iterable[int], answer: Answers, add_up: Summing, least: int, fails: Fails) -> Summed:
    """Carry out one round in this process: the clients that do not fail answer, and the answers are added up.

    Fewer than ``least`` are refused: before anything is added, and again if some were lost while adding up.
    """
    parts = {}
    for client in cohort:
        sent = None if fails(turn, client) else answer(client)
        if sent is not None:
            parts[client] = sent
    _enough(turn, len(parts), least)
    found = add_up(turn, parts)
    _enough(turn, len(found.survivors), least)
    stray = set(found.survivors) - set(parts)
    require(not stray, "Summed.survivors", "be clients that answered", sorted(stray))
    return found


def _enough(turn: int, count: int, least: int) -> None:
    if not count >= max(least, 1):
        raise TooFewSurvivors(
            f"Round {turn + 1} has the answers of {count} clients and needs {least}: its sum may lack noise and is not"
            " used. What was charged stays charged; go on with --resume when the clients are back."
        )

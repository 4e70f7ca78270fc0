"""How a sum comes about, and who draws its noise: the one place that knows, whatever the stage.

At once: one party computes all contributions and draws the noise. In shares: every client adds its own share before its
numbers leave it, and whoever adds up (in the open, behind masks, encrypted: a ``Summing``) sees no more than that way
of adding up shows. Across sites the same function adds the shares at every site. So all ways give the same bits.
Proof of what the shares hide: docs/theory/noise-shares.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt

import numpy as np

from fedveil.core.errors import TooFewSurvivors, require
from fedveil.core.values import Vector
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.privacy.trust import Trust
from fedveil.stages.noise_shares import share_deviation as share_deviation
from fedveil.stages.protocol import Answering, Total
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Summed, Summing, Whole
from fedveil.wire.content import Content

Fails = Callable[[int, int], bool]  # (turn, client) -> whether the client fails to answer in it; tests pass their own

LARGEST_PART = 2**52  # most grid steps in one coordinate of one client's contribution
_LOOSE = 1 + 2.0**-20  # float errors of a sum of up to 2**30 clipped gradients are far below


@dataclass(frozen=True, slots=True, eq=False)
class Noising:
    """The noise of a stage's turns, in whole grid steps.

    ``whole``: all of a turn's noise, where one party draws it. ``share``: the deviation of one client's share, where
    the clients do; 0 where each client's numbers carry their own noise already. ``size``: how many numbers a turn's sum
    has. ``label``: the address of a client's share, and its index there. ``draw``: a client's share itself, where that
    depends on its shares of earlier turns.
    """

    whole: Callable[[int], Whole | Vector]
    share: Callable[[int], float]
    size: Callable[[int], int]
    label: Callable[[int, int], tuple[str, int]] = lambda turn, client: (f"share {client}", turn)
    draw: Callable[[int, int], Whole] | None = None


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


def at_once(answering: Answering, noising: Noising, turn: int, asked: Content) -> Total:
    """Return the sum of a turn where one party computes all contributions and draws the noise."""
    return Total(answering.whole(turn, asked), np.asarray(noising.whole(turn), dtype=np.int64))


def noised(parts: Mapping[int, Whole], noising: Noising, turn: int, entropy: Entropy) -> dict[int, Whole]:
    """Return what leaves the clients: each contribution with the client's share of the noise, and nothing without it.

    A share is a function of the key, the client's number and the turn: a turn that is computed again after a crash has
    the same share; it must never be drawn anew.
    """
    steps, size = noising.share(turn), noising.size(turn)
    result: dict[int, Whole] = {}
    for client, part in parts.items():
        require(part.size <= size, "A contribution", f"have at most {size} numbers", part.size)
        sent = np.zeros(size, dtype=np.int64)
        sent[: part.size] = part
        if noising.draw is not None:
            sent += noising.draw(turn, client)
        elif steps != 0:  # also for a share that is no number, which the sampler refuses
            sent += rounded_normal(entropy.stream(*noising.label(turn, client)), steps, size)
        result[client] = sent
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adder:
    """Adds up the turns of a stage in this process, as the trust says.

    ``add_up`` and ``fails`` matter where the clients share the noise: what adds up, and who does not answer.
    ``cohort``: how many clients are to answer in a turn, by which the least number of answers is decided.
    """

    answering: Answering
    noising: Noising
    entropy: Entropy
    trust: Trust
    cohort: Callable[[int], int]
    shared: bool
    add_up: Summing = plain_sum
    fails: Fails = nobody_fails

    def total(self, turn: int, asked: Content) -> Total:
        """Return the noisy sum of a turn; too few answers are refused, before and after adding up."""
        if not self.shared:
            return at_once(self.answering, self.noising, turn, asked)
        here = self.answering.parts(turn, asked, lambda client: self.fails(turn, client))
        least = self.trust.least(self.cohort(turn))
        enough(turn, len(here), least)
        result = self.add_up(turn, noised(here, self.noising, turn, self.entropy))
        enough(turn, len(result.survivors), least)
        stray = set(result.survivors) - set(here)
        require(not stray, "Summed.survivors", "be clients that answered", sorted(stray))
        return Total(result.total)


def enough(turn: int, count: int, least: int) -> None:
    """Refuse a sum of too few clients: it may lack noise."""
    if not count >= max(least, 1):
        raise TooFewSurvivors(
            f"Round {turn + 1} has the answers of {count} clients and needs {least}: its sum may lack noise and is not"
            " used. What was charged stays charged; go on with --resume when the clients are back."
        )


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

"""What will be measured before training, as a frozen part of the plan: noisy sums of bounded contributions.

Trainer and accountant both read it. Every measurement adds up one vector of whole numbers for each unit (a record, or
a whole client), of norm at most ``bound`` in the units of the measurement, and adds Gaussian noise of ``noise * bound``
on the same grid. So all measurements of a plan together are one Gaussian mechanism, which composes exactly with
training. Where one party draws all noise, that may be Laplace noise: ``bound`` then limits the sum of magnitudes, and
the epsilons of all measurements add up. Proofs: docs/theory/preparation.md, statistics.md.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

import numpy as np

from fedveil.core.errors import require
from fedveil.core.tables import known
from fedveil.core.values import Indices, number, whole
from fedveil.data.records import DataShape
from fedveil.privacy.guarantee import Adversary, Neighbours
from fedveil.privacy.mechanism import ApproximateDP, Gaussian, sensitivity
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.sums.seam import Whole
from fedveil.theory.grid import SAMPLER_DISTANCE, NoiseLaw, log_aliasing
from fedveil.theory.neighbours import SAFE

Sums = Callable[[Indices], Whole]  # the sum of the contributions of these rows


def root_up(count: int) -> float:
    """The least float that is surely not below the root of a whole number."""
    found = math.sqrt(count)
    return found if found == int(found) else math.nextafter(found, math.inf)


def counted(counts: bool, neighbours: Neighbours) -> float:
    """Return how many times less than twice its bound replacing a unit moves a sum, rounded down.

    More than 1 for counts alone: vectors without a negative number are at most the root of 2 times their norm apart.
    """
    return COUNTS if counts and neighbours == "replace-one" else 1.0


def whole_client(add_up: Sums) -> Sums:
    """The mean of a client's contributions, cut toward zero, in place of their sum."""

    def mean(rows: Indices) -> Whole:
        total = add_up(rows)
        return np.asarray(np.sign(total) * (np.abs(total) // max(rows.size, 1)), dtype=np.int64)

    return mean


def by_client(owner: Indices, clients: int, present: Indices) -> Iterator[Indices]:
    """The rows of each client in turn, blank ones left out."""
    order = present[np.argsort(owner[present], kind="stable")]
    ends = np.cumsum(np.bincount(owner[present], minlength=clients))
    start = 0
    for end in ends.tolist():
        yield order[start:end]
        start = end


FILE: Final = "preparation.json"  # what was learned, beside the model
STEPS: Final = 2**20  # grid steps in one unit of every measurement
NAMES: Final = (
    "ranges",
    "categories",
    "classes",
    "means",
    "spreads",
    "cells",
    "moments",
)  # in the order in which they are measured
EVALUATED: Final = ("places", "scores")  # those of an evaluation, after training (fedveil.stages.evaluate)
ERRORS: Final = ("errors",)  # that of a model of a number, in their place
COUNTED: Final = ("ones", "pairs", "cliques")  # tables of counts, from which a generator is made (synthesis)
SYNTHESISED: Final = ("ranges", "categories", *COUNTED)
# the place of a name says which round of sums it is, so new ones go last
ALL: Final = (*(name for name in NAMES if name != "cells"), *EVALUATED, *ERRORS, *COUNTED, "cells")
SIGNED: Final = ("means", "moments", *EVALUATED, *ERRORS)  # contributions to these may point apart, or count as if
COUNTS: Final = math.sqrt(2) * (1 - 2.0**-40)  # how much less replacing a unit moves counts than twice their norm
_MOST_SIZE = 10**12
_LARGEST = 2.0**20  # of a bound
_ROOM = 2.0**62  # grid steps that a sum may have, so that 64 bits hold it with its noise
_SAMPLE: Final[Mapping[NoiseLaw, float]] = {"gaussian": 13.0, "laplace": 71.0}  # deviations or scales: none is beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One noisy sum. ``size``: how many numbers at most; ``bound``: norm of one unit's contribution.

    ``noise``: standard deviation (of Laplace noise: its scale) over ``bound``. ``threshold``: only numbers above it are
    shown (categories alone), and ``slip`` bounds the chance that one which a single unit made up is shown all the same.
    ``counts``: no number of a contribution is negative, so that two are at most the root of 2 times ``bound`` apart.
    """

    name: str
    size: int
    bound: float
    noise: float
    threshold: float | None = None
    slip: float = 0.0
    law: NoiseLaw = "gaussian"
    counts: bool = False

    def __post_init__(self) -> None:
        plain = isinstance(self.name, str) and self.name.isprintable() and 1 <= len(self.name) <= 80
        require(plain, "prepare.name", "be one line of at most 80 printable characters", self.name)
        object.__setattr__(self, "size", whole("prepare.size", self.size))
        for name in ("bound", "noise", "slip"):
            object.__setattr__(self, name, number(f"prepare.{name}", getattr(self, name)))
        require(1 <= self.size <= _MOST_SIZE, "prepare.size", f"lie in [1, {_MOST_SIZE:g}]", self.size)
        require(2.0**-10 <= self.bound <= _LARGEST, "prepare.bound", "lie in [2**-10, 2**20]", self.bound)
        require(1e-3 <= self.noise <= 1e6, "prepare.noise", "lie in [1e-3, 1e6]", self.noise)
        require(0 <= self.slip < 1, "prepare.slip", "lie in [0, 1)", self.slip)
        least = self.threshold is None or self.threshold > 1
        require(least, "prepare.threshold", "be above what one unit makes up, 1", self.threshold)
        thresholded = (self.name == "categories") == (self.threshold is not None)
        require(thresholded, "prepare.threshold", "be given for categories alone", self.threshold)
        known_law = self.law in get_args(NoiseLaw) and (self.law == "gaussian" or self.threshold is None)
        require(known_law, "prepare.law", "be gaussian, or laplace where nothing is thresholded", self.law)
        signed = self.name in SIGNED or self.law == "laplace"  # magnitudes that are added up move by twice their bound
        right = self.counts is False or (self.counts is True and not signed)
        require(right, "prepare.counts", f"be true or false, and false for {', '.join(SIGNED)}, laplace", self.counts)

    @property
    def deviation(self) -> float:
        """The noise's deviation (or scale) in grid steps, rounded up so that it is never below ``noise * bound``."""
        return self.noise * self.bound * STEPS * (1 + 2.0**-40)

    def relative_noise(self, neighbours: Neighbours) -> float:
        """Return the noise over the bound that a Gaussian mechanism for these neighbours would have for as much."""
        return self.noise * counted(self.counts, neighbours)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySums:
    """All measurements, in order; ``share``: of the budget (of mu squared) that they were designed to take.

    Without measurements it is false, and takes nothing of the budget.
    """

    measurements: tuple[Measurement, ...] = ()
    share: float = 0.0

    def __post_init__(self) -> None:
        names = [one.name for one in self.measurements]
        ends = ((EVALUATED, EVALUATED), (ERRORS, ERRORS), (SYNTHESISED, COUNTED))
        kinds = next((kind for kind, last in ends if names and names[-1] in last), NAMES)
        if any(name in ALL for name in names):  # of a stage that fedveil ships; others have names of their own
            ordered = names == [name for name in kinds if name in names]
            rule = f"list some of {', '.join(NAMES)}, in this order, once each"
            require(ordered, "prepare.name", rule, names)
        require(len(set(names)) == len(names), "prepare.name", "name each sum once", names[:5])
        laws = {one.law for one in self.measurements}
        require(len(laws) <= 1, "prepare.law", "be one for all sums", sorted(laws))
        object.__setattr__(self, "share", number("prepare.share", self.share))
        right = 0 < self.share < 1 if names else self.share == 0
        rule = "lie strictly between 0 and 1" if names else "be 0 where nothing is measured"
        require(right, "prepare.share", rule, self.share)

    def __bool__(self) -> bool:
        return len(self.measurements) > 0

    def __getitem__(self, name: str) -> Measurement:
        return next(one for one in self.measurements if one.name == name)

    def __contains__(self, name: object) -> bool:
        return any(one.name == name for one in self.measurements)

    def check(self, data: DataShape) -> None:
        """Refuse sums that could leave 64 bits."""
        for one in self.measurements:
            most = data.records * one.bound * STEPS + data.clients * _SAMPLE[one.law] * one.deviation
            require(most <= _ROOM, f"prepare.{one.name}", "have sums within 2**62 grid steps", most)

    @property
    def law(self) -> NoiseLaw:
        """Of the noise of all measurements."""
        return self.measurements[0].law if self.measurements else "gaussian"

    def pure(self, neighbours: Neighbours) -> ApproximateDP:
        """All measurements with Laplace noise: pure epsilons add (Dwork, McSherry, Nissim and Smith 2006)."""
        require(self.law == "laplace", "prepare.law", "be laplace", self.law)
        rate = math.fsum(1 / one.noise for one in self.measurements)
        return ApproximateDP(epsilon=sensitivity(neighbours) * rate * (1 + 2.0**-40))

    def mechanism(self, neighbours: Neighbours) -> Gaussian:
        """All measurements as one Gaussian mechanism: inverse variances add."""
        require(self, "prepare.name", "list at least one measurement", 0)
        require(self.law == "gaussian", "prepare.law", "be gaussian", self.law)
        precision = math.fsum(1 / one.relative_noise(neighbours) ** 2 for one in self.measurements)
        return Gaussian(noise_multiplier=1 / math.sqrt(precision) * (1 - 2.0**-40), neighbours=neighbours)

    def mechanism_seen_by(self, adversary: Adversary, data: DataShape, target: Target, trust: Trust) -> Gaussian | None:
        """The same as this observer hears it, without the noise that it knows; None where it knows all of it."""
        left = variance_left(adversary, data, target, trust)
        if not left > 0:
            return None
        # a person moves a sum as far as all of its records together: the noise counts for as much less
        whole_noise = self.mechanism(target.neighbours).noise_multiplier / target.largest_person
        return Gaussian(noise_multiplier=whole_noise * math.sqrt(left), neighbours=target.neighbours)

    def total_variation(self, data: DataShape, trust: Trust, served: bool = True) -> float:
        """How far all samples together are from their law, and the thresholds' slips.

        ``served``: whether the algorithm has a server; without one, clients add the noise in shares.
        """
        senders = trust.senders(data.clients) if served else data.clients
        found = math.fsum(one.slip for one in self.measurements)
        for one in self.measurements:
            if one.law == "laplace":  # drawn once, by one party: nothing is added up from rounded shares
                found += one.size * 2 * SAMPLER_DISTANCE
                continue
            alias = log_aliasing(one.deviation / math.sqrt(trust.honest(senders)), senders)
            found += one.size * (SAMPLER_DISTANCE * (senders + 1) + math.exp(min(alias, 0.0)))
        return min(1.0, found * (1 + 1e-12))

    def mishap(self, adversary: Adversary, trust: Trust) -> float:
        """The chance that masks show the server more than sums."""
        masked = adversary == "server-with-secure-aggregation" and trust.server == "secure-aggregation"
        return SAFE * len(self.measurements) if masked else 0.0

    def table(self) -> dict[str, Any]:
        """Return the [prepare] table that reads back to this value."""
        rows: dict[str, Any] = {
            f.name: [getattr(one, f.name) for one in self.measurements] for f in fields(Measurement)
        }
        rows["threshold"] = [0.0 if value is None else value for value in rows["threshold"]]
        if self.law == "gaussian":
            del rows["law"]
        if not any(one.counts for one in self.measurements):
            del rows["counts"]
        return {"share": self.share, **rows}

    @classmethod
    def read(cls, table: Mapping[str, Any], names: tuple[str, ...] | None = NAMES) -> "NoisySums":
        """From the table that :meth:`table` writes; ``names``: the measurements that it may have, None for any."""
        own = [f.name for f in fields(Measurement)]
        known(table, ["share", *own], "[prepare]")
        many = len(table.get("name") or ())
        usual = {"law": ["gaussian"] * many, "counts": [False] * many}
        lists = [table.get(name, usual.get(name)) for name in own]
        right = all(isinstance(row, list) and len(row) == len(lists[0] or ()) for row in lists)
        require(right, "[prepare]", f"give {', '.join(own)} of every measurement, as lists of one length", lists)
        require(lists[0], "prepare.name", "list at least one measurement", lists[0])
        rows = [dict(zip(own, row, strict=True)) for row in zip(*lists, strict=True)]
        for row in rows:
            fits = names is None or row["name"] in names
            require(fits, "prepare.name", f"be one of {', '.join(names or ())}", row["name"])
            row["threshold"] = row["threshold"] or None
        return cls(measurements=tuple(Measurement(**row) for row in rows), share=table.get("share", math.nan))


NO_SUMS = NoisySums()


def variance_left(adversary: Adversary, data: DataShape, target: Target, trust: Trust) -> float:
    """The share of every sum's planned noise variance that this observer does not know.

    All clients take part in every sum. With central noise, observers inside the federation are charged as in training:
    as if each unit had added an equal part of the noise. With shares the planned noise is what the surely honest
    clients that answer make up. One client that holds all records adds all of the noise, and nobody else knows any.
    """
    if data.clients == 1:
        return 1.0
    units = data.clients if target.unit == "client" else data.records
    held = 1 if target.unit == "client" else data.largest_client
    shares, known = trust.charged(data.clients, units, held)
    match adversary:
        case "server":
            return 1 / shares
        case "curious-client":
            return min(1.0, (shares - known) / shares)
        case _:
            return 1.0

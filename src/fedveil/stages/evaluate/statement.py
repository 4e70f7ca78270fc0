"""What is counted after training, as a frozen part of the plan: how many records have which score, with noise.

Trainer and accountant both read it. The sums are of the same kind as those of a preparation: every unit adds a vector
of whole numbers of bounded norm, and Gaussian noise is added on the same grid (docs/theory/evaluation.md). Counted on
the records that train the model, they are composed with training. Counted on held-out records, which training does
not touch, they are all that is ever learned of these; but where a unit may be on both sides (a client that trains and
is counted on other records of its own, or a held-out source that may hold records of the training source), both costs
add up for it, and the two are composed as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, get_args

from fedveil.accounting.evaluator import Evaluator, bound_of, least_of, withdrawn
from fedveil.accounting.grid import Grid, on_grid
from fedveil.core.errors import require
from fedveil.core.fields import check_empty
from fedveil.core.tables import known
from fedveil.core.values import number, whole
from fedveil.data.records import DataShape
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.evaluate import numbers
from fedveil.stages.evaluate.request import Where
from fedveil.stages.sums import ERRORS, EVALUATED, NO_SUMS, NoisySums, root_up
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import log_theta

CONFUSED: Final = 20  # with more classes than this there is no count for each pair of classes
_OWN: Final = ("records", "bins", "places", "joint", "largest_error")
_HELD: Final = ("held_records", "held_clients", "held_largest", "held_smallest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """``sums``: the measurements and their noise. ``bins``: parts into which scores are sorted; ``places``: parts of
    the rougher count that decides where these begin and end (0: they are fixed). Both are 0 for a model of a number.

    ``held``: records, clients, and the largest and smallest client of the held-out records; empty on training records.
    ``joint``: a unit may train and be held out: a client that owns records of both kinds, or a record that stands in
    both sources. ``largest_error``: what a larger error of a model of a number counts as, as a share of the range.
    Without measurements it is false: nothing is counted.
    """

    records: Where = "training"
    sums: NoisySums = NO_SUMS
    bins: int = 0
    places: int = 0
    held: tuple[int, ...] = ()
    joint: bool = False
    largest_error: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "largest_error", number("evaluation.largest_error", self.largest_error))
        largest = 1e-3 <= self.largest_error <= 1
        require(largest, "evaluation.largest_error", "lie in [0.001, 1]", self.largest_error)
        words = get_args(Where)
        require(self.records in words, "evaluation.records", f"be one of {', '.join(words)}", self.records)
        if not self:
            check_empty(self, "evaluation", "sums")
            return
        own = [one.name for one in self.sums.measurements]
        errors = own == list(ERRORS)
        right = errors or own == list(EVALUATED[0 if self.places else 1 :])
        rule = f"list {', '.join(EVALUATED)}, or the last alone, or {ERRORS[0]}"
        require(right, "evaluation.name", rule, own)
        for name in ("bins", "places"):
            object.__setattr__(self, name, whole(f"evaluation.{name}", getattr(self, name)))
        if errors:
            require(self.bins == self.places == 0, "evaluation.bins", "be 0 for a model of a number", self.bins)
        else:
            require(self.largest_error == 1, "evaluation.largest_error", "be 1 for classes", self.largest_error)
            require(4 <= self.bins <= 128, "evaluation.bins", "lie between 4 and 128", self.bins)
        require(0 <= self.places <= 1024, "evaluation.places", "lie between 0 and 1024", self.places)
        apart = len(self.held) == (len(_HELD) if self.records == "held-out" else 0)
        require(apart, "evaluation.held_records", "be given for held-out records alone", self.held)
        right = self.joint is False or (self.joint is True and self.held != ())
        require(right, "evaluation.joint", "be true or false, and false on training records", self.joint)

    def __bool__(self) -> bool:
        return bool(self.sums)

    @property
    def trains(self) -> bool:
        """True if the same records train the model, or nothing is counted."""
        return self.records == "training"

    @property
    def composed(self) -> bool:
        """True if a unit may both train and be counted, so that both costs add up for it."""
        return bool(self) and (self.trains or self.joint)

    @property
    def apart(self) -> bool:
        """True if units are counted that take no other part in the run."""
        return bool(self) and not self.composed

    def shape(self, data: DataShape) -> DataShape:
        """The public quantities of the records that are counted."""
        if not self.held:
            return data
        records, clients, largest, smallest = self.held
        return replace(data, records=records, clients=clients, largest_client=largest, smallest_client=smallest)

    def check(self, data: DataShape, target: Target, trust: Trust) -> None:
        """Refuse counts that do not fit the data, or sums that nobody may open."""
        errors = self.sums.measurements[0].name in ERRORS
        rule = "be of errors for a model of a number, and of scores for one of classes"
        require(errors == (data.classes == 0), "[evaluation]", rule, self.sums.measurements[0].name)
        counted = self.shape(data)
        self.sums.check(counted)
        for one in self.sums.measurements:
            size, least = sized(one.name, data.classes, self.bins, self.places, target)
            require(one.size == size, f"evaluation.{one.name}", f"have {size} counts", one.size)
            require(one.bound >= least, f"evaluation.{one.name}", f"have a bound of at least {least!r}", one.bound)
        trust.check(counted.clients)

    def table(self) -> dict[str, Any]:
        """Return the [evaluation] table that reads back to this value."""
        held = dict(zip(_HELD, self.held, strict=True)) if self.held else {}
        own = {name: getattr(self, name) for name in _OWN}
        return {**own, **held, **self.sums.table()}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "Evaluation":
        """From the table that :meth:`table` writes."""
        rest = {key: value for key, value in table.items() if key not in (*_OWN, *_HELD)}
        known(rest, ["share", "name", "size", "bound", "noise", "threshold", "slip"], "[evaluation]")
        held = [table.get(name) for name in _HELD]
        some = [
            whole(f"evaluation.{name}", value) for name, value in zip(_HELD, held, strict=True) if value is not None
        ]
        require(len(some) in (0, 4), "evaluation.held_records", "be given with held-out clients", held)
        missing = [name for name in _OWN if name not in table]
        require(not missing, "[evaluation]", "be complete", f"nothing for {', '.join(missing)}")
        return cls(
            sums=NoisySums.read(rest, EVALUATED + ERRORS),
            held=tuple(some),
            **{name: table[name] for name in _OWN},
        )

    def alone(self, adversary: Adversary, data: DataShape, target: Target, trust: Trust) -> Evaluator:
        """Return what this observer learns of held-out records: the noisy counts, and nothing else."""
        seen = self.sums.mechanism_seen_by(adversary, self.shape(data), target, trust)
        if seen is None:
            return withdrawn("gaussian", "it knows all of the evaluation's noise, or there is no other client")
        mu = seen.mu
        return Evaluator(
            "gaussian",
            "certified",
            "noisy counts of held-out records, which nothing else of the run depends on",
            lambda epsilon: float(log_theta(epsilon, mu)),
            ((mu, 1),),
            epsilon=lambda delta: gaussian_epsilon(mu, delta),
        )

    def answer(self, adversary: Adversary, data: DataShape, target: Target, trust: Trust, delta: float) -> Answer:
        """Return what is proved of the counts of held-out records, on their grid."""
        seen = self.alone(adversary, data, target, trust)

        def ideal(inner: float) -> Answer:
            return least_of([bound_of(seen, inner, None)], inner, None)

        return on_grid(self.grid(adversary, data, trust), ideal, delta)

    def grid(self, adversary: Adversary, data: DataShape, trust: Trust) -> Grid:
        """Return how far the counts on their grid may be from ideal ones."""
        return Grid(
            exponent=0,
            dimension=sum(one.size for one in self.sums.measurements),
            rounds=1,
            distance=0.0,
            total_variation=self.sums.total_variation(self.shape(data), trust),
            mishap=self.sums.mishap(adversary, trust),
        )


NO_EVALUATION = Evaluation()


def sized(name: str, classes: int, bins: int, places: int, target: Target) -> tuple[int, float]:
    """Return how many numbers a measurement has, and the least bound of what one unit adds to it."""
    if name in ERRORS:
        return numbers.SIZE, numbers.contribution(target)
    size, counts = cells(name, classes, bins, places)
    return size, contribution(counts, target)


def cells(name: str, classes: int, bins: int, places: int) -> tuple[int, int]:
    """Return how many counts a measurement has, and how many of them one record adds to."""
    if name == "places":
        return max(places, 1), 1
    if classes == 2:
        return 2 * bins, 1
    return (classes * classes + 2 * bins, 2) if classes <= CONFUSED else (2 * bins, 1)


def contribution(counts: int, target: Target) -> float:
    """Return the bound of what one unit adds, so that it moves a sum by at most as much as the plan is charged for.

    A unit that is left out takes its ``counts`` ones with it, of norm sqrt(counts). A unit that is exchanged moves at
    most as many ones to other places: sqrt(2 counts), which is charged as twice the bound.
    """
    return root_up(counts) if target.neighbours == "zero-out" else root_up(2 * counts) / 2

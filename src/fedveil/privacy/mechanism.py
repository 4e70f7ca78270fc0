"""What is done to data, as frozen values: all that an accountant may need, and nothing else.

A published class never changes its meaning: old records must certify to the same numbers for ever.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.limits import PASSES, ROUNDS
from fedveil.core.values import many, number, settle, whole
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.passes import ArsinhGaussian as ArsinhGaussian
from fedveil.privacy.passes import IndependentGaussian as IndependentGaussian
from fedveil.privacy.passes import ShuffledGaussian as ShuffledGaussian
from fedveil.privacy.passes import check_neighbours as _check_neighbours
from fedveil.privacy.passes import check_noise as _check_noise

Numbers = float | tuple[float, ...]
MOST_ROUNDS = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """A sum of contributions of norm at most C, plus N(0, (noise_multiplier * C)**2) in every coordinate.

    >>> from fedveil import account_for
    >>> account_for(Gaussian(noise_multiplier=5.0), delta=1e-5).epsilon < 1
    True
    """

    noise_multiplier: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        settle(self, number, "noise_multiplier")
        _check_noise("Gaussian.noise_multiplier", self.noise_multiplier)
        _check_neighbours("Gaussian.neighbours", self.neighbours)

    @property
    def mu(self) -> float:
        """Sensitivity over noise: replacing a record moves the sum by up to 2C, zeroing it by C."""
        return sensitivity(self.neighbours) / self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """A number of size at most C, plus Laplace noise of scale noise_multiplier * C, in one dimension.

    >>> from fedveil import account_for
    >>> account_for(Laplace(noise_multiplier=2.0), delta=1e-6).epsilon <= 0.5  # without delta it is 1 over the noise
    True
    """

    noise_multiplier: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        settle(self, number, "noise_multiplier")
        _check_noise("Laplace.noise_multiplier", self.noise_multiplier)
        _check_neighbours("Laplace.neighbours", self.neighbours)

    @property
    def r(self) -> float:
        """Sensitivity over the scale of the noise."""
        return sensitivity(self.neighbours) / self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussian:
    """A Gaussian sum over a random batch nobody learns.

    ``poisson``: every record joins by its own coin; ``fixed-size``: a uniformly random batch without replacement.
    A record that takes part once per pass in a shuffled order is not sampled: it is one :class:`Gaussian` per pass.

    >>> from fedveil import account_for
    >>> one = SampledGaussian(rate=0.01, noise_multiplier=1.0, sampling="poisson")
    >>> account_for(Repeat(of=one, times=100), delta=1e-5).epsilon < 1.0
    True
    """

    sampling: Literal["poisson", "fixed-size"]
    rate: float
    noise_multiplier: float
    neighbours: Neighbours = "zero-out"

    def __post_init__(self) -> None:
        settle(self, number, "rate", "noise_multiplier")
        require(
            self.sampling in ("poisson", "fixed-size"),
            "SampledGaussian.sampling",
            "be poisson or fixed-size",
            self.sampling,
        )
        require(0 < self.rate <= 1, "SampledGaussian.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")
        require(self.rate >= 1e-12, "SampledGaussian.rate", "be at least 1e-12", self.rate)
        _check_noise("SampledGaussian.noise_multiplier", self.noise_multiplier)
        _check_neighbours("SampledGaussian.neighbours", self.neighbours)

    @property
    def mu(self) -> float:
        """Sensitivity over noise of one contribution (not of an exchange)."""
        return 1.0 / self.noise_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproximateDP:
    """Anything that is known to be (epsilon, delta)-differentially private, and nothing more is known.

    >>> from fedveil import account_for
    >>> account_for(ApproximateDP(epsilon=0.5, delta=1e-6), delta=1e-5).epsilon <= 0.5
    True
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        settle(self, number, "epsilon", "delta")
        require(0 <= self.epsilon < 1e6, "ApproximateDP.epsilon", "lie in [0, 1e6)", self.epsilon)
        require(0 <= self.delta < 1, "ApproximateDP.delta", "lie in [0, 1)", self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherRounds:
    """Rounds that go on after a run without the unit in question: it left, and contributes to none of them.

    Settings are as in :class:`LastIterate`: numbers are one for all further rounds or one for each. The other records
    draw in the same way as before. ``keep``: by what the model is multiplied before each of these rounds.
    """

    rounds: int
    batch: int | tuple[int, ...] = 1
    step_size: Numbers
    noise_std: Numbers
    keep: Numbers = 1.0

    def __post_init__(self) -> None:
        settle(self, whole, "rounds")
        settle(self, lambda name, value: many(name, value, whole), "batch")
        settle(self, lambda name, value: many(name, value, number), "step_size", "noise_std", "keep")
        require(1 <= self.rounds <= ROUNDS, "FurtherRounds.rounds", f"lie between 1 and {ROUNDS}", self.rounds)
        batches = self.batch if isinstance(self.batch, tuple) else (self.batch,)
        require(all(1 <= m < 1e12 for m in batches), "FurtherRounds.batch", "be at least 1", self.batch)
        positive = {"batch": (1, 1e12), "step_size": (1e-15, 1e15), "noise_std": (1e-12, 1e15)}
        for name, (low, high) in {**positive, "keep": (0, 1)}.items():
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else (value,) * self.rounds
            rule = f"be one number, or a list with one per further round ({self.rounds})"
            require(len(values) == self.rounds, f"FurtherRounds.{name}", rule, f"{len(values)} numbers")
            bad = next((v for v in values if not low <= v <= high), None)
            rule = f"{'be positive and ' if low else ''}lie in [{low:g}, {high:g}]"
            require(bad is None, f"FurtherRounds.{name}", rule, bad)

    @property
    def anew(self) -> bool:
        """Whether some round begins with nothing of the model before it."""
        return float(np.min(self.keep)) == 0


@final
@dataclass(frozen=True, slots=True)
class NoFurtherRounds:
    """The run's own last round is the last one before the release. It is false."""

    rounds: ClassVar[int] = 0
    batch: ClassVar[int] = 1
    anew: ClassVar[bool] = False

    def __bool__(self) -> Literal[False]:
        return False


NO_FURTHER_ROUNDS: Final = NoFurtherRounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIterate:
    """Noisy projected gradient steps of which only the last model is released.

    ``noise_std`` is per record, as sigma in the papers: a round's noise is step_size * noise_std / sqrt(batch). Numbers
    may be one for all rounds, one per round of a pass, or one per round of all passes. ``place`` is the round (from 1)
    that uses the victim; without it the worst place counts. With a secret order the records are dealt into rounds
    uniformly at random, once for all passes, and nobody learns how.

    With ``order`` poisson every record joins every round by a coin of its own, with probability ``rate``; with
    independent every record picks one round of every pass, uniformly, by its own draw (with ``rate``: each round with
    this probability, and none with what is left). Nobody learns the draws.
    Batches then vary in size and ``batch`` is the planned divisor; a round that nobody joined still gets its noise.
    ``smoothness`` is that of one record's loss, and ``strong_convexity`` that of a penalty which every round adds
    whole. Rounds are charged as if ``largest_batch`` records joined, and the chance that more do is added to delta.
    Without it the number follows from ``rate`` and ``records``, and without ``records`` the planned batch is the
    expected one: there are batch / rate records, or those of a pass together.

    ``further``: the unit leaves after the last pass, and these rounds go on without it; the model after them is the one
    that is released (theory page: forgetting.md).

    >>> from fedveil import account_for
    >>> numbers = {"step_size": 0.5, "lipschitz": 1.0, "smoothness": 0.5, "diameter": 1.0, "noise_std": 2.0}
    >>> run = LastIterate(rounds=40, place=39, **numbers)
    >>> round(account_for(run, delta=1e-5)["block"].epsilon, 3)
    1.361
    """

    rounds: int
    passes: int = 1
    batch: int | tuple[int, ...] = 1
    records: int | None = None
    order: Literal["public", "secret", "poisson", "independent"] = "public"
    place: int | None = None
    stopping: Literal["end", "random"] = "end"
    step_size: Numbers
    lipschitz: float
    smoothness: float | None = None
    strong_convexity: float = 0.0
    convex: bool = True
    diameter: float | None = None
    noise: Literal["gaussian", "laplace"] = "gaussian"
    noise_std: Numbers
    neighbours: Neighbours = "replace-one"
    rate: float | None = None
    largest_batch: int | None = None
    further: FurtherRounds | NoFurtherRounds = NO_FURTHER_ROUNDS

    def __post_init__(self) -> None:
        settle(self, whole, "rounds", "passes", "records", "place", "largest_batch")
        settle(self, number, "rate")
        settle(self, number, "lipschitz", "smoothness", "strong_convexity", "diameter")
        settle(self, lambda name, value: many(name, value, whole), "batch")
        settle(self, lambda name, value: many(name, value, number), "step_size", "noise_std")
        require(isinstance(self.convex, bool | np.bool_), "LastIterate.convex", "be true or false", self.convex)
        _check_counts(self)
        _check_numbers(self)
        _check_choices(self)
        _check_draws(self)

    @property
    def sampled(self) -> bool:
        """True if every record decides by its own secret draws in which rounds it takes part."""
        return self.order in ("poisson", "independent")

    @property
    def choices(self) -> float:
        """One over the probability with which a record that picks a round of a pass picks this one."""
        return self.rounds if self.rate is None else 1 / self.rate

    @property
    def total(self) -> int:
        """Number of rounds of all passes together, in which the unit may take part."""
        return self.rounds * self.passes

    @property
    def until_release(self) -> int:
        """Number of rounds before the release: those of all passes, and those that go on without the unit."""
        return self.total + self.further.rounds


def _check_counts(run: LastIterate) -> None:
    most = ROUNDS
    require(1 <= run.rounds <= most, "LastIterate.rounds", f"lie between 1 and {most}", run.rounds)
    require(1 <= run.passes <= PASSES, "LastIterate.passes", f"lie between 1 and {PASSES}", run.passes)
    require(run.total <= most, "LastIterate.rounds * passes", f"be at most {most}", run.total)
    known = isinstance(run.further, FurtherRounds | NoFurtherRounds)
    require(known, "LastIterate.further", "be further rounds, or left out", run.further)
    rule = f"be at most {most} together with the rounds before"
    require(run.until_release <= most, "FurtherRounds.rounds", rule, run.until_release)
    batches = run.batch if isinstance(run.batch, tuple) else (run.batch,)
    require(all(1 <= m < 1e12 for m in batches), "LastIterate.batch", "be at least 1", run.batch)
    fits = not isinstance(run.batch, tuple) or len(run.batch) == run.rounds
    require(fits, "LastIterate.batch", f"have one entry per round, {run.rounds}", len(batches))
    if run.place is not None:
        require(
            1 <= run.place <= run.rounds,
            "LastIterate.place",
            f"lie between 1 and rounds, {run.rounds}",
            run.place,
        )
        rule = f"be left out when the order is {run.order}"
        require(run.order == "public", "LastIterate.place", rule, run.place, "Nobody knows the record's rounds.")
    if run.records is not None and not run.sampled:
        needed = sum(batches) if len(batches) > 1 else batches[0] * run.rounds
        require(run.records >= needed, "LastIterate.records", f"be at least rounds * batch, {needed}", run.records)
        require(run.records <= 10**18, "LastIterate.records", "be at most 1e18", run.records)


def _check_numbers(run: LastIterate) -> None:
    for name, low, high in (("step_size", 1e-15, 1e15), ("noise_std", 1e-12, 1e15)):
        setting: Numbers = getattr(run, name)
        values = setting if isinstance(setting, tuple) else (setting,)
        right = not isinstance(setting, tuple) or len(setting) in (run.rounds, run.total)
        require(
            right,
            f"LastIterate.{name}",
            f"be one number, or a list with one per round ({run.rounds})",
            f"{len(values)} numbers",
        )
        bad = next((v for v in values if not low <= v <= high), None)
        hint = "Without noise there is no privacy." if name == "noise_std" else ""
        require(bad is None, f"LastIterate.{name}", f"be positive and lie in [{low:g}, {high:g}]", bad, hint)
    require(
        1e-15 <= run.lipschitz <= 1e15,
        "LastIterate.lipschitz",
        "be positive and lie in [1e-15, 1e15]",
        run.lipschitz,
    )
    if run.smoothness is not None:
        require(0 <= run.smoothness <= 1e15, "LastIterate.smoothness", "lie in [0, 1e15]", run.smoothness)
    require(
        0 <= run.strong_convexity <= 1e15,
        "LastIterate.strong_convexity",
        "lie in [0, 1e15]",
        run.strong_convexity,
    )
    ceiling = run.smoothness if run.smoothness is not None else math.inf
    require(
        run.strong_convexity <= ceiling,
        "LastIterate.strong_convexity",
        "be at most smoothness",
        run.strong_convexity,
    )
    require(
        run.convex or run.strong_convexity == 0,
        "LastIterate.convex",
        "be true when strong_convexity is positive",
        run.convex,
    )
    if run.diameter is not None:
        require(
            1e-15 <= run.diameter <= 1e15,
            "LastIterate.diameter",
            "be positive and lie in [1e-15, 1e15]",
            run.diameter,
            "Leave it out if there is no projection.",
        )


def _check_choices(run: LastIterate) -> None:
    for name, choices in (
        ("order", ("public", "secret", "poisson", "independent")),
        ("stopping", ("end", "random")),
        ("noise", ("gaussian", "laplace")),
    ):
        require(
            getattr(run, name) in choices,
            f"LastIterate.{name}",
            f"be {' or '.join(choices)}",
            getattr(run, name),
        )
    _check_neighbours("LastIterate.neighbours", run.neighbours)
    single = run.noise == "gaussian" or run.batch == run.further.batch == 1
    require(
        single,
        "LastIterate.batch",
        "be 1 with Laplace noise (a sum of Laplace noises is not Laplace)",
        run.batch,
    )


def _check_draws(run: LastIterate) -> None:
    """Refuse settings that do not fit orders in which every record draws for itself, and their settings elsewhere."""
    if run.order == "poisson":
        require(run.rate is not None, "LastIterate.rate", "be given when the order is poisson", run.rate)
    else:
        drawn = run.rate is None or run.order == "independent"
        require(drawn, "LastIterate.rate", "go with order poisson or independent", run.rate, "Leave it out.")
    if run.rate is not None:
        once = run.order != "independent" or run.rate * run.rounds <= 1 + 1e-12
        rule = f"be at most one over the rounds, {run.rounds}, when the order is independent"
        require(once, "LastIterate.rate", rule, run.rate, "A record picks at most one round of a pass.")
        require(0 < run.rate <= 1, "LastIterate.rate", "lie in (0, 1]", run.rate, "Is it a batch size?")
        require(run.rate >= 1e-12, "LastIterate.rate", "be at least 1e-12", run.rate)
    if not run.sampled:
        rule = "go with order poisson or independent"
        require(run.largest_batch is None, "LastIterate.largest_batch", rule, run.largest_batch)
        return
    require(run.noise == "gaussian", "LastIterate.noise", f"be gaussian when the order is {run.order}", run.noise)
    if run.records is not None:
        rule = (
            f"be at least rounds, {run.rounds}, so that a round expects a record" if run.rate is None else "be positive"
        )
        least = run.rounds if run.rate is None else 1
        require(least <= run.records <= 10**18, "LastIterate.records", rule, run.records)
        enough = run.rate is None or run.rate * run.records >= 1 - 1e-9
        rule = f"expect at least one of the {run.records} records a round"
        require(enough, "LastIterate.rate", rule, run.rate, "Take a larger rate.")
    if run.largest_batch is not None:
        require(run.records is not None, "LastIterate.records", "be given beside largest_batch", run.records)
        require(run.largest_batch >= 1, "LastIterate.largest_batch", "be at least 1", run.largest_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The same mechanism, ``times`` times over; later runs may depend on earlier outputs.

    >>> from fedveil import account_for
    >>> once = Gaussian(noise_multiplier=10.0, neighbours="zero-out")
    >>> account_for(Repeat(of=once, times=100), delta=1e-5).epsilon > account_for(once, delta=1e-5).epsilon
    True
    """

    of: "Mechanism"
    times: int

    def __post_init__(self) -> None:
        require(isinstance(self.of, Mechanism), "Repeat.of", "be a mechanism", self.of)
        settle(self, whole, "times")
        require(1 <= self.times <= MOST_ROUNDS, "Repeat.times", "lie between 1 and 1e12", self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compose:
    """Several mechanisms on the same data, one after another.

    >>> from fedveil import account_for
    >>> parts = Gaussian(noise_multiplier=5.0, neighbours="zero-out"), ApproximateDP(epsilon=0.5, delta=0.0)
    >>> 0.5 < account_for(Compose(parts=parts), delta=1e-5).epsilon < 1.5
    True
    """

    parts: tuple["Mechanism", ...]

    def __post_init__(self) -> None:
        given: Any = self.parts
        listed = isinstance(given, list | tuple) and all(isinstance(part, Mechanism) for part in given)
        require(listed and len(given) >= 1, "Compose.parts", "name at least one mechanism", given)
        object.__setattr__(self, "parts", tuple(given))


Primitive = (
    Gaussian
    | Laplace
    | SampledGaussian
    | ApproximateDP
    | LastIterate
    | ShuffledGaussian
    | IndependentGaussian
    | ArsinhGaussian
)
Mechanism = Primitive | Repeat | Compose


def sensitivity(neighbours: Neighbours) -> float:
    """Return how far one record can move a sum of contributions of norm at most 1."""
    return 2.0 if neighbours == "replace-one" else 1.0


def going_on(run: LastIterate, rounds: int) -> LastIterate:
    """Return the run that goes on for so many rounds without the unit, each like its last one; 0: the run itself.

    >>> run = LastIterate(rounds=2, batch=(3, 4), step_size=0.5, lipschitz=1.0, noise_std=2.0)
    >>> going_on(run, 10).further
    FurtherRounds(rounds=10, batch=4, step_size=0.5, noise_std=2.0, keep=1.0)
    """
    if rounds == 0:
        return replace(run, further=NO_FURTHER_ROUNDS)
    batch = run.batch[-1] if isinstance(run.batch, tuple) else run.batch
    step, noise = (v[-1] if isinstance(v, tuple) else v for v in (run.step_size, run.noise_std))
    return replace(run, further=FurtherRounds(rounds=rounds, batch=batch, step_size=step, noise_std=noise))


def with_beside(mechanism: Mechanism, beside: Gaussian | None) -> Mechanism:
    """The mechanism together with a Gaussian release on the same data, if there is one."""
    return mechanism if beside is None else Compose(parts=(mechanism, beside))


def shuffled(*, rate: float, rounds: int, noise_multiplier: float, neighbours: Neighbours) -> Mechanism:
    """Return shuffled passes: each record once per pass, so one Gaussian per (started) pass.

    Never charged as Poisson.

    >>> from fedveil import account_for
    >>> epoch = shuffled(rate=0.1, rounds=10, noise_multiplier=2.0, neighbours="zero-out")
    >>> account_for(epoch, delta=1e-5).epsilon > 0
    True
    """
    rate, rounds = number("rate", rate), whole("rounds", rounds)
    require(0 < rate <= 1, "rate", "lie in (0, 1]", rate, "Is it a batch size?")
    require(rate >= 1e-12, "rate", "be at least 1e-12", rate)
    require(rounds >= 1, "rounds", "be at least 1", rounds)
    per_pass = max(1, math.floor(1 / rate * (1 + 4e-16)))  # rounding of the rate must not cost a batch
    return Repeat(of=Gaussian(noise_multiplier=noise_multiplier, neighbours=neighbours), times=-(-rounds // per_pass))


def flatten(mechanism: Mechanism) -> Sequence[tuple[Primitive, int]]:
    """Return all primitives with their counts, in order."""
    match mechanism:
        case Compose(parts=parts):
            return [item for part in parts for item in flatten(part)]
        case Repeat(of=part, times=times):
            return [(primitive, count * times) for primitive, count in flatten(part)]
        case _:
            return [(mechanism, 1)]


def alike(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism with one neighbouring relation.

    Where parts differ, all are charged for an exchange of records.

    A record that contributes nothing is a record, so what holds for replace-one holds for zero-out too.
    """
    result = {p.neighbours for p, _ in flatten(mechanism) if not isinstance(p, ApproximateDP)}
    return _exchanging(mechanism) if len(result) > 1 else mechanism


def _exchanging(mechanism: Mechanism) -> Mechanism:
    match mechanism:
        case Compose(parts=parts):
            return Compose(parts=tuple(_exchanging(part) for part in parts))
        case Repeat(of=part, times=times):
            return Repeat(of=_exchanging(part), times=times)
        case ApproximateDP():
            return mechanism
        case _:
            return replace(mechanism, neighbours="replace-one")

"""Federated averaging with clients as the protected unit: clipped updates, summed, noised, divided by a fixed count.

Each client's update is cut to whole grid steps towards zero, so that its norm cannot grow. Sums of whole numbers are
exact and the noise is whole: the released sum is computed from the ideal one, and rounding costs no privacy at all.
Page: docs/fedavg.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np

from fedveil.accounting.compare import account_for
from fedveil.accounting.grid import Grid
from fedveil.core.errors import require
from fedveil.core.fields import check_fields, count, real
from fedveil.core.values import number, whole
from fedveil.data.records import DataShape
from fedveil.models.loss import ScoredLoss
from fedveil.privacy.guarantee import Adversary, Answer, Bound, Neighbours
from fedveil.privacy.mechanism import (
    Compose,
    Gaussian,
    IndependentGaussian,
    Mechanism,
    Repeat,
    SampledGaussian,
    with_beside,
)
from fedveil.privacy.trust import Trust
from fedveil.stages.noise_shares import check_cohorts, check_punctual, check_range, variation, with_masks
from fedveil.stages.train.adaptive_clip import FIXED_CLIP, AdaptiveClip, FixedClip
from fedveil.stages.train.base import EveryModelSeen, Setup, Tabled, check_groups
from fedveil.stages.train.correlation import INDEPENDENT_NOISE, Correlation, Independent
from fedveil.stages.train.optimiser import Optimiser
from fedveil.stages.train.share_words import Row, words_of
from fedveil.theory.grid import LARGEST_STATE, SAMPLER_DISTANCE

# Rounds of federated averaging in segments, each with its own cohort, bound, noise and server step.
#
# van Dijk and Nguyen (2023), section 5.2. Page: docs/segments.md.


_SHOWN: Final = 6
_WIDTH: Final = 5  # numbers of a segment in a plan: rounds, cohort, bound on updates, noise multiplier, server step


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a method, as methods of their own."""

    parts: tuple[FedAvg, ...]

    def at(self, turn: int) -> FedAvg:
        """Return the method of a round, counted from 0 through all segments."""
        for part in self.parts:
            if turn < part.rounds:
                return part
            turn -= part.rounds
        return self.parts[-1]


@lru_cache(maxsize=64)
def segments_of(method: FedAvg) -> Segments:
    """Return the segments of a method; one, the method itself, if it has none."""
    if not method.segments:
        return Segments((method,))
    plain = replace(method, segments=(), rounds=1)
    return Segments(
        tuple(
            replace(
                plain, rounds=int(rounds), cohort=cohort, update_norm=norm, noise_multiplier=noise, server_step=step
            )
            for rounds, cohort, norm, noise, step in method.segments
        )
    )


def checked_rows(given: Any, rounds: int) -> tuple[tuple[float, ...], ...]:
    """Return the rows of a plan's segments as plain numbers; refuse rows that do not add up to its rounds."""
    listed = isinstance(given, list | tuple) and len(given) >= 1
    fits = listed and all(isinstance(row, list | tuple) and len(row) == _WIDTH for row in given)
    require(fits, "fedavg.segments", f"be a list of rows of {_WIDTH} numbers", given)
    rows = tuple((whole("fedavg.segments", row[0]), *(number("fedavg.segments", v) for v in row[1:])) for row in given)
    total = sum(row[0] for row in rows)
    require(total == rounds, "fedavg.segments", f"have {rounds} rounds together", total)
    return rows


def with_noise(method: FedAvg, noise: float) -> tuple[tuple[float, ...], ...]:
    """Return the rows of a method's segments, all with this noise multiplier."""
    return tuple((*row[:3], noise, row[4]) for row in method.segments)


def composed(parts: Sequence[Mechanism | None]) -> Mechanism | None:
    """Return the composition of what an observer sees in each segment; None if it knows the noise of one."""
    seen = tuple(part for part in parts if part is not None)
    return Compose(parts=seen) if len(seen) == len(parts) else None


def joined(grids: Sequence[Grid]) -> Grid:
    """Return what the grid costs in all segments: deviations and chances of mishaps add up, and sums are exact."""
    return replace(
        grids[0],
        rounds=sum(grid.rounds for grid in grids),
        distance=max(grid.distance for grid in grids),  # 0 where sums are exact, else infinite
        total_variation=min(1.0, math.fsum(grid.total_variation for grid in grids)),
        mishap=min(1.0, math.fsum(grid.mishap for grid in grids)),
    )


def segment_words(method: FedAvg) -> str:
    """Return how rounds are parted, in words."""
    parts = segments_of(method).parts
    shown = ", ".join(f"{part.rounds} of noise {part.noise_multiplier:.6g}" for part in parts[:_SHOWN])
    return shown + (f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")


# Federated averaging with noise that is correlated over rounds: who takes part when, and what each observer sees.


def groups_of(method: FedAvg, clients: int) -> int:
    """Return after how many rounds a client is asked again: so many groups of clients take turns."""
    return 1 if method.sampling == "all" else -(-clients // int(method.cohort))


def check_correlation(method: FedAvg) -> None:
    """Refuse what correlated noise is not proved for, and groups that take turns without it."""
    result = method.correlated
    if not result:
        plain = method.sampling != "cyclic" or method.noise == "none"
        hint = 'Groups that take turns go with noise = "correlated"; with bands = 1 that noise is independent.'
        require(plain, "fedavg.sampling", "not be cyclic without correlated noise", method.sampling, hint)
        return
    fits = result.rounds == method.rounds
    require(fits, "fedavg.correlated", f"be for the {method.rounds} rounds of the method", result.rounds)
    hint = "Then the plan says how often, and after how many rounds, a client is asked again."
    known = method.sampling in ("cyclic", "all")
    require(known, "fedavg.sampling", "be cyclic or all for correlated noise", method.sampling, hint)
    require(method.noise != "none", "fedavg.noise", "not be none with a correlation", method.noise)
    fixed = not method.adaptive and not method.segments
    hint = "The matrix is made for rounds that are alike."
    require(fixed, "algorithm.noise", "be correlated without adaptive clips and segments", "both", hint)


def check_pattern(method: FedAvg, clients: int) -> None:
    """Refuse a pattern that this number of clients cannot keep."""
    result = method.correlated
    if not result:
        return
    groups = min(groups_of(method, clients), method.rounds)
    hint = f"{clients} clients make {groups} groups of at most {method.cohort:g} that take turns: ask fewer in a round."
    rule = f"be at most {groups}, the rounds after which a client is asked again"
    require(result.separation <= groups, "algorithm.correlation.separation", rule, result.separation, hint)
    needed = -(-method.rounds // groups)
    rule = f"be at least {needed}, the rounds that a client is asked in"
    require(result.participations >= needed, "algorithm.correlation.participations", rule, result.participations, hint)


def check_trust(method: FedAvg) -> None:
    """Refuse a matrix for which a client would have to send more than one earlier update again."""
    found = method.correlated
    if not found:
        return
    hint = "With [trust] a client sends its last update again for as many rounds as there are bands; buffers never end."
    require(
        found.factor.banded, "algorithm.correlation.buffers", "be left out with [trust]", len(found.factor.scales), hint
    )
    rule = f"be at most {found.separation} with [trust], the rounds after which a client is asked again"
    hint = "With [trust] a client keeps one update to send again: it must have left the bands before the next one."
    bands = len(found.factor.column)
    require(bands <= found.separation, "algorithm.correlation.bands", rule, bands, hint)


def seen_together(method: FedAvg, found: Correlation, adversary: Adversary, setup: Setup) -> Mechanism | None:
    """Return what this observer sees of a client in all rounds: one Gaussian; None if it knows all of the noise.

    Who takes part when is known to everybody here. Where clients share the noise, each adds a stream of its own in
    every round, whether it is asked for an update or not.
    """
    trust, clients, noise = setup.trust, setup.data.clients, method.noise_multiplier
    if method.noise == "central" and adversary in ("server", "server-with-secure-aggregation"):
        return None
    if method.noise == "shared":  # each client adds a stream of its own
        noise *= math.sqrt(trust.left(adversary, clients))
    return found.charged(noise, setup.target.neighbours)


def distance_of(method: FedAvg, found: Correlation, setup: Setup, exponent: int) -> float:
    """Return how far the run's law is from that of ideal noise, in units of the noise: what is taken off is rounded.

    For noise that one party draws; with shares of the clients nothing is taken off before the sums are seen. Updates
    are whole numbers of steps already. Where the noise stands for streams of the clients, one stream by itself is
    rounded too, and an observer may know half of the noise: what is charged covers both.
    """
    unit, clients = 2.0**exponent, setup.data.clients
    parties = clients if method.noise == "shared" else 1
    steps = method.noise_std / unit / math.sqrt(parties)
    largest = found.factor.largest(method.noise_std / unit, method.rounds)
    exact = clients * method.scale / unit + largest <= LARGEST_STATE
    known = math.sqrt(2.0) if parties > 1 else 1.0
    away = found.factor.rounding(steps, method.rounds) * parties * math.sqrt(setup.dimension * method.rounds)
    return away * known * unit / method.noise_std * (1 + 1e-9) if exact else math.inf


def correlated_rows(method: FedAvg, trust: Trust) -> list[Row]:
    """Return what the guarantee assumes of correlated noise, and of those who add it."""
    result = method.correlated
    if not result:
        return []
    said, (made, *others) = words_of(trust), result.rows()
    how = "every client sends its last update again, weighted by the matrix and cut towards zero, with fresh noise; "
    how += "the server takes off what was sent before"
    rows = [*(said.if_central(made) or [(made[0], made[1], how)]), *others]
    if method.noise == "shared":
        how = "declared: also in rounds in which it is asked for no update; a stream with a gap protects nobody"
        rows += said.if_central(("every client adds its own stream of noise", "in every round, none missing", how))
    return rows


Sampling = Literal["all", "poisson", "fixed-size", "independent", "cyclic"]
Noise = Literal["central", "shared", "none"]
Weights = Literal["uniform", "records"]
LARGEST_PULL: Final = 1e9  # of a local step towards the global model
_MOST_ROUNDS = 1_000_000
_NOISELESS = Bound(
    name="none", status="does-not-apply", reason="the run adds no noise that this observer does not know"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """What a client does with its own records in a round; ``batch`` 0: all of them at once.

    ``proximal``: the pull of every step towards the global model. ``mean_gradient``: a batch's mean gradient is taken
    as it is; otherwise the gradient of each record is clipped first. ``by_products``: steps of all records go through
    the products of the records with each other; otherwise every step is computed from the features.
    """

    epochs: int = count(1, 10_000, default=1)
    batch: int = count(0, default=0)
    step: float = real(1e-9, 1e9, default=1.0)
    proximal: float = real(0, LARGEST_PULL, default=0.0)
    mean_gradient: bool = False
    by_products: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "fedavg.local")
        for name in ("mean_gradient", "by_products"):
            require(type(getattr(self, name)) is bool, f"fedavg.local.{name}", "be true or false", getattr(self, name))
        whole_steps = not self.by_products or (self.batch == 0 and not self.mean_gradient)
        hint = "It is for local steps of all records, each clipped."
        require(whole_steps, "fedavg.local.by_products", "go without local batches", self.batch, hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg(Tabled, EveryModelSeen):
    """``cohort``: clients expected in a round; ``update_norm``: every update is clipped to it.

    ``picks``: with independent sampling, the rounds of a pass, among which every client picks one; otherwise 0.
    ``noise_multiplier``: noise of the sum over ``update_norm``. ``most_records``: a client weighs as much as it has
    records, up to this many, so that no weight exceeds 1; 0: all weigh the same. ``optimiser``: the server's.

    ``adaptive``: the rule by which the bound follows the norms of the updates; empty if it is fixed. An adaptive bound
    starts at ``update_norm``; sums are then in units of the present bound, and ``server_step * update_norm`` is the
    step along such a sum. ``segments``: for each segment of the rounds its number of rounds, cohort, update norm, noise
    multiplier and server step, which then stand in place of the fields above. ``correlated``: how the noise is
    correlated over rounds; empty if it is independent.
    """

    rounds: int
    sampling: Sampling = "all"
    cohort: float
    picks: int = 0
    local: LocalSteps = field(default_factory=LocalSteps)
    update_norm: float
    server_step: float = 1.0
    optimiser: Optimiser = field(default_factory=Optimiser)
    noise: Noise = "central"
    noise_multiplier: float
    most_records: int = 0
    adaptive: AdaptiveClip | FixedClip = FIXED_CLIP
    segments: tuple[tuple[float, ...], ...] = ()
    correlated: Correlation | Independent = INDEPENDENT_NOISE

    kind: ClassVar[str] = "fedavg"
    pulls_when_empty: ClassVar[bool] = True
    GROUPS: ClassVar[Mapping[str, Any]] = {"local": LocalSteps, "optimiser": Optimiser, "adaptive": AdaptiveClip}

    def __post_init__(self) -> None:
        for name in ("rounds", "most_records", "picks"):
            object.__setattr__(self, name, whole(f"fedavg.{name}", getattr(self, name)))
        for name in ("cohort", "update_norm", "server_step", "noise_multiplier"):
            object.__setattr__(self, name, number(f"fedavg.{name}", getattr(self, name)))
        check_groups(self, self.GROUPS)
        _check_words(self)
        _check_numbers(self)
        _check_draws(self)
        if self.segments:
            require(not self.adaptive, "fedavg.segments", "go with a fixed bound on updates", "an adaptive one")
            object.__setattr__(self, "segments", checked_rows(self.segments, self.rounds))
            segments_of(self)  # refuses a segment that is no method
        check_correlation(self)

    @property
    def weights(self) -> Weights:
        """Whether a client weighs as much as it has records, or as much as any other."""
        return "records" if self.most_records else "uniform"

    @property
    def streams(self) -> bool:
        """Whether every client adds noise in every round, asked for an update or not, because noise is correlated."""
        return bool(self.correlated) and self.noise == "shared"

    def at(self, turn: int) -> FedAvg:
        """Return the method of a round's segment; of a method without segments, the method itself."""
        return segments_of(self).at(turn)

    @property
    def extra_sums(self) -> int:
        """Numbers that a round adds up besides the parameters: the votes on an adaptive bound."""
        return self.adaptive.votes

    def sum_length(self, setup: Setup) -> int:
        """Return the number of parameters, and one more for the votes on an adaptive bound."""
        return setup.dimension + self.extra_sums

    @property
    def scale(self) -> float:
        """The bound on a contribution in the units of the sums: ``update_norm``, or 1 if the bound is adaptive."""
        return self.adaptive.unit(self.update_norm)

    @property
    def own_draws(self) -> bool:
        """Whether clients draw for themselves, and send their share of the noise in every round."""
        return self.noise == "shared" and self.sampling in ("poisson", "independent")

    def senders(self, clients: int) -> int:
        """Return how many clients send in a round, with something of their own or with noise alone."""
        return clients if self.own_draws or self.streams else int(self.cohort)

    @property
    def total(self) -> int:
        """Number of rounds."""
        return self.rounds

    @property
    def noiseless(self) -> bool:
        """True if the user asked for a run without any guarantee, for comparison."""
        return self.noise == "none"

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum, in the units of the sums."""
        return self.noise_multiplier * self.scale

    def divisor(self, data: DataShape) -> float:
        """Return what sums are divided by, whoever answers.

        The planned cohort, or the weight it is expected to carry.
        """
        if self.weights == "uniform":
            return self.cohort
        return min(self.cohort, self.cohort / data.clients * data.records / self.most_records)

    def check(self, setup: Setup) -> None:
        """Refuse unless clients are protected and no more of them are asked than exist."""
        if self.segments:
            for part in segments_of(self).parts:
                part.check(setup)
            return
        data, unit = setup.data, setup.target.unit
        hint = 'Set privacy.unit = "client": that protects each of their records too.'
        require(unit == "client", "privacy.unit", "be client for fedavg, which clips updates", unit, hint)
        few = self.cohort <= data.clients
        require(few, "fedavg.cohort", f"be at most the number of clients, {data.clients}", self.cohort)
        full = self.sampling != "all" or self.cohort == data.clients
        require(full, "fedavg.cohort", f"be all {data.clients} clients when all take part", self.cohort)
        check_pattern(self, data.clients)
        even = not self.picks or abs(self.cohort * self.picks - data.clients) <= 1e-9 * data.clients
        require(even, "fedavg.cohort", f"be {data.clients} clients over the {self.picks} rounds of a pass", self.cohort)
        plain = not self.local.mean_gradient or not setup.model.linear
        require(plain, "fedavg.local.mean_gradient", "be false unless the model is a torch model", True)
        scored = not self.local.by_products or isinstance(setup.model.loss, ScoredLoss)
        require(scored, "fedavg.local.by_products", "be false unless the model is linear", True)

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Refuse unless the clients share the noise and the grid holds all sums."""
        if self.segments:
            for part in segments_of(self).parts:
                part.check_shares(setup, exponent)
            return
        check_trust(self)
        sizes, trust = self.cohorts(setup), setup.trust
        check_cohorts(sizes, trust)
        check_punctual(trust, self.kind)
        hint = "With [trust] every client adds its own share."
        require(self.noise == "shared", "algorithm.noise", "be shared with [trust]", self.noise, hint)
        noise, each = np.full(self.total, self.noise_std), np.full(self.total, self.scale)
        check_range(noise, sizes, trust, exponent, self.senders(setup.data.clients) * each, each)

    def traffic(self, setup: Setup, together: bool) -> tuple[int, int, int]:
        """Return the traffic: the planned cohort sends in every round."""
        if self.segments:
            result = [part.traffic(setup, together) for part in segments_of(self).parts]
            return sum(row[0] for row in result), self.rounds, max(row[2] for row in result)
        clients = setup.data.clients
        if self.own_draws or self.streams:
            return self.rounds * clients, self.rounds, clients
        drawn = self.sampling in ("poisson", "independent")
        return round(self.rounds * self.cohort), self.rounds, clients if drawn else min(math.ceil(self.cohort), clients)

    def cohorts(self, setup: Setup) -> Sequence[int]:
        """Return how many clients send in every round."""
        clients = setup.data.clients
        return [part.senders(clients) for part in segments_of(self).parts for _ in range(part.rounds)]

    def mechanism(self, adversary: Adversary, setup: Setup) -> Mechanism | None:
        """Return what this observer sees of a client, as a mechanism; None if it knows all of the noise.

        A secret cohort counts only while nobody learns who is in it, and while the noise cannot depend on who is.
        """
        if self.segments:
            return composed([part.mechanism(adversary, setup) for part in segments_of(self).parts])
        if result := self.correlated:
            return seen_together(self, result, adversary, setup)
        clients, neighbours, trust = setup.data.clients, setup.target.neighbours, setup.trust
        trusted = adversary not in ("server", "server-with-secure-aggregation")
        if self.noise == "none" or (self.noise == "central" and not trusted):
            return None
        noise, rate = self.noise_multiplier, self.cohort / clients if trust.dropouts == 0 else 1.0
        seen = rate if self.hides_draws(trust) else 1.0  # a server that asked the clients knows who is in the sum
        match adversary:
            case "server":  # each update comes with its own share of the noise, and a name
                alone = noise / math.sqrt(trust.honest(self._shares(clients)))
                return self.each_round(seen, alone, neighbours)
            case "server-with-secure-aggregation":
                return self.each_round(seen, noise, neighbours)
            case "curious-client":
                return self.each_round(*self._beside(rate, noise, clients, trust), neighbours)
            case _:  # those outside do not know the noise of colluders either
                left = trust.left(adversary, self._shares(clients)) if self.noise == "shared" else 1.0
                return self.each_round(rate, noise * math.sqrt(left), neighbours)

    def hides_draws(self, trust: Trust) -> bool:
        """Whether not even the server learns who drew a round.

        Every client draws for itself and sends in every round; nobody may be missing, as that could tell.
        """
        return self.own_draws and trust.all_send and trust.dropouts == 0

    def _shares(self, clients: int) -> float:
        return float(clients) if self.own_draws else self.cohort

    def _beside(self, rate: float, noise: float, clients: int, trust: Trust) -> tuple[float, float]:
        """Return rate and noise of the others, for clients that know when they take part and what they add."""
        if self.sampling == "fixed-size":
            rate = min(1.0, self.cohort / max(clients - 1, 1))  # rounds without it have more room for the victim
            known = trust.dropouts or trust.server != "trusted" or trust.hand > 1
            rate = 1.0 if known else rate
        if self.noise == "shared":  # at least the victim answers besides those who look together
            noise *= math.sqrt(trust.left("curious-client", self._shares(clients)))
        return rate, noise

    def each_round(self, rate: float, noise: float, neighbours: Neighbours) -> Mechanism:
        """Return the mechanism of all rounds, with clients that take part in this share of them.

        1: whoever looks knows in which rounds a client may take part: all, or one of each independent pass.
        """
        times = self.rounds // self.picks if self.picks else self.rounds
        if self.sampling == "all" or rate == 1.0:
            return Repeat(of=Gaussian(noise_multiplier=noise, neighbours=neighbours), times=times)
        if self.picks:
            a_pass = IndependentGaussian(rounds=self.picks, noise_multiplier=noise, neighbours=neighbours)
            return Repeat(of=a_pass, times=times)
        law: Literal["poisson", "fixed-size"] = "poisson" if self.sampling == "poisson" else "fixed-size"
        once = SampledGaussian(sampling=law, rate=rate, noise_multiplier=noise, neighbours=neighbours)
        return Repeat(of=once, times=times)

    def answer(self, adversary: Adversary, setup: Setup, delta: float, beside: Gaussian | None = None) -> Answer:
        """Compose over the rounds what this observer sees."""
        seen = self.mechanism(adversary, setup)
        if seen is None:
            return Answer(epsilon=math.inf, delta=delta, certified_by=None, bounds=(_NOISELESS,))
        result = account_for(with_beside(seen, beside), delta=delta)
        if beside is None and self.correlated:
            return self.correlated.round_by_round(result, seen)
        if adversary not in ("final-model", "every-model") or self.noise != "shared":
            return result
        # An observer of every sum and of who took part sees everything that these see, so its guarantee is theirs too.
        sums = self.mechanism("server-with-secure-aggregation", setup)
        other = result if sums is None else account_for(with_beside(sums, beside), delta=delta)
        return other if other.epsilon < result.epsilon else result

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of the sampler only: one sum a round, or (for the server) one share per client and round."""
        if self.segments:
            return joined([part.grid(adversary, setup, exponent) for part in segments_of(self).parts])
        dimension, clients = setup.dimension + self.extra_sums, setup.data.clients
        samples = self.rounds * (clients if adversary == "server" or self.streams else 1)
        exact = clients * self.scale + 16 * self.noise_std <= LARGEST_STATE * 2.0**exponent
        distance = 0.0 if exact and not self.noiseless else math.inf
        sampled = min(1.0, SAMPLER_DISTANCE * dimension * samples)
        result = Grid(
            exponent=exponent, dimension=dimension, rounds=self.rounds, distance=distance, total_variation=sampled
        )
        if not setup.trust.shared:
            moved = self.correlated
            return result if not moved else replace(result, distance=distance_of(self, moved, setup, exponent))
        shares = variation(np.full(self.total, self.noise_std), self.cohorts(setup), setup.trust, result)
        return with_masks(replace(result, total_variation=shares), setup.trust, adversary, self.total)

    def radius(self, setup: Setup) -> float:
        """Return the stated radius, or one too large to be reached by updates and noise in practice."""
        if setup.model.radius is not None:
            return setup.model.radius
        if self.segments:
            return 2.0 ** math.ceil(math.log2(math.fsum(part.radius(setup) for part in segments_of(self).parts)))
        noise = 10 * self.noise_multiplier * self.update_norm * math.sqrt(setup.dimension) * self.correlated.growth
        sums = setup.data.clients * self.update_norm + noise
        if self.optimiser.kind == "adam":
            each = self.server_step * self.optimiser.longest(sums / self.divisor(setup.data), setup.dimension)
            return 2.0 ** math.ceil(math.log2(self.rounds * each))
        travel = self.server_step / (1 - self.optimiser.momentum) * sums
        return 2.0 ** math.ceil(math.log2(self.rounds * travel / self.divisor(setup.data)))


def _check_words(method: FedAvg) -> None:
    for name, choices in (("sampling", Sampling), ("noise", Noise)):
        given, words = getattr(method, name), get_args(choices)
        require(given in words, f"fedavg.{name}", f"be one of {', '.join(words)}", given)


def _check_numbers(method: FedAvg) -> None:
    require(1 <= method.rounds <= _MOST_ROUNDS, "fedavg.rounds", f"lie between 1 and {_MOST_ROUNDS}", method.rounds)
    for name in ("update_norm", "server_step"):
        value = getattr(method, name)
        require(1e-9 <= value <= 1e9, f"fedavg.{name}", "lie in [1e-9, 1e9]", value)
    cohort, sampling = method.cohort, method.sampling
    require(0 < cohort < 1e12, "fedavg.cohort", "be positive", cohort)
    counted = sampling in ("poisson", "independent") or (cohort >= 1 and cohort == int(cohort))
    require(counted, "fedavg.cohort", "be a whole number of clients unless sampling is poisson or independent", cohort)
    noise, none = method.noise_multiplier, method.noise == "none"
    require(noise == 0 if none else 1e-9 <= noise <= 1e9, "fedavg.noise_multiplier", _noise_rule(none), noise)
    require(method.most_records >= 0, "fedavg.most_records", "be 0 (all weigh the same) or more", method.most_records)


def _check_draws(method: FedAvg) -> None:
    independent, picks = method.sampling == "independent", method.picks
    require((picks > 0) == independent, "fedavg.picks", "go with independent sampling alone", picks)
    if independent:
        require(1 <= picks <= method.rounds, "fedavg.picks", "lie between 1 and the rounds", picks)
        rule = f"be a multiple of the {picks} rounds of a pass"
        hint = "A client picks one round of each pass, and a pass that was only begun would cost as much."
        require(method.rounds % picks == 0, "fedavg.rounds", rule, method.rounds, hint)
    drawn = independent or method.own_draws
    hint = "Where clients draw for themselves all rounds are alike."
    require(not (method.segments and drawn), "fedavg.segments", "go with other draws", method.sampling, hint)


def _noise_rule(none: bool) -> str:
    return "be 0 without noise" if none else "be positive, from 1e-9 to 1e9"


METHOD = FedAvg
TITLE = "federated averaging of noised updates"

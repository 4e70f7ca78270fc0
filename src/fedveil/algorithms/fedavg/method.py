"""Federated averaging with clients as the protected unit: clipped updates, summed, noised, divided by a fixed count.

Each client's update is cut to whole grid steps towards zero, so that its norm cannot grow. Sums of whole numbers are
exact and the noise is whole: the released sum is computed from the ideal one, and rounding costs no privacy at all.
Page: docs/fedavg.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from fedveil.account.compare import account_for
from fedveil.account.grid import Grid
from fedveil.algorithms.adaptive_clip import AdaptiveClip, adaptive_of
from fedveil.algorithms.base import EveryModelSeen, Tabled
from fedveil.algorithms.correlation import Correlation, Rows, growth_of
from fedveil.algorithms.fedavg.correlated import (
    check_correlation,
    check_pattern,
    check_trust,
    correlation_in,
    distance_of,
    seen_together,
)
from fedveil.algorithms.fedavg.parts import check_parts
from fedveil.algorithms.fedavg.segments import checked_rows, composed, joined, segments_of
from fedveil.algorithms.fedavg.words import assumption_rows, fact_rows
from fedveil.algorithms.noise_shares import check_cohorts, check_punctual, check_range, variation, with_masks
from fedveil.algorithms.optimiser import Optimiser, optimiser_of
from fedveil.algorithms.setup import Setup
from fedveil.algorithms.share_words import Row
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.guarantee import Adversary, Answer, Bound, Neighbours
from fedveil.mechanism import Gaussian, IndependentGaussian, Mechanism, Repeat, SampledGaussian, with_beside
from fedveil.model.loss import ScoredLoss
from fedveil.theory.grid import LARGEST_STATE, SAMPLER_DISTANCE
from fedveil.trust import Trust
from fedveil.values import number, whole

Sampling = Literal["all", "poisson", "fixed-size", "independent", "cyclic"]
Noise = Literal["central", "shared", "none"]
Weights = Literal["uniform", "records"]
_MOST_ROUNDS = 1_000_000
_NOISELESS = Bound(
    name="none", status="does-not-apply", reason="the run adds no noise that this observer does not know"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvg(Tabled, EveryModelSeen):
    """``cohort``: clients expected in a round; ``update_norm``: every update is clipped to it.

    ``noise_multiplier``: noise of the sum over ``update_norm``. ``weights`` by records count up to ``most_records``, so
    no weight exceeds 1. ``local_batch`` 0: all records of the client at once. ``momentum`` is the server's.

    ``clip_quantile``, ``clip_rate``, ``clip_share``: see :class:`AdaptiveClip`; None, and then not written, where the
    bound is fixed. An adaptive bound starts at ``update_norm``; sums are then in units of the present bound, and
    ``server_step * update_norm`` is the step along such a sum. ``segments``: for each segment of the rounds its number
    of rounds, cohort, update norm, noise multiplier and server step, which then stand in place of the fields above.

    ``picks``: with independent sampling, the rounds of a pass, among which every client picks one. ``optimizer``,
    ``beta2``, ``floor``: the server's, see :class:`Optimiser`; None is momentum. ``proximal``: the pull of every local
    step towards the global model. ``local_gradient``: "mean" takes a batch's mean gradient as it is; None clips the
    gradient of each record first. ``local_products``: "gram" goes through the products of a client's records with each
    other in local steps of all its records; None computes every step from the features, as plans did before.
    ``correlation``: pattern and matrix of noise that is correlated over rounds, see :class:`Correlation`.
    """

    rounds: int
    sampling: Sampling = "all"
    cohort: float
    local_epochs: int
    local_batch: int = 0
    local_step: float
    update_norm: float
    server_step: float = 1.0
    momentum: float = 0.0
    noise: Noise = "central"
    noise_multiplier: float
    weights: Weights = "uniform"
    most_records: int = 0
    clip_quantile: float | None = None
    clip_rate: float | None = None
    clip_share: float | None = None
    segments: tuple[tuple[float, ...], ...] | None = None
    picks: int | None = None
    optimizer: Literal["adam"] | None = None
    beta2: float | None = None
    floor: float | None = None
    proximal: float | None = None
    local_gradient: Literal["mean"] | None = None
    local_products: Literal["gram"] | None = None
    correlation: Rows | None = None

    kind: ClassVar[str] = "fedavg"
    pulls_when_empty: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "local_batch", "most_records"):
            object.__setattr__(self, name, whole(f"fedavg.{name}", getattr(self, name)))
        for name in ("cohort", "local_step", "update_norm", "server_step", "momentum", "noise_multiplier"):
            object.__setattr__(self, name, number(f"fedavg.{name}", getattr(self, name)))
        _check_words(self)
        _check_numbers(self)
        check_parts(self)
        fixed = adaptive_of(self.clip_quantile, self.clip_rate, self.clip_share) is None
        if self.segments is not None:
            require(fixed, "fedavg.segments", "go with a fixed bound on updates", "an adaptive one")
            object.__setattr__(self, "segments", checked_rows(self.segments, self.rounds))
            segments_of(self)  # refuses a segment that is no method
        check_correlation(self)

    @property
    def correlated(self) -> Correlation | None:
        """How the noise is correlated over rounds; None if it is independent."""
        return correlation_in(self)

    @property
    def streams(self) -> bool:
        """Whether every client adds noise in every round, asked for an update or not, because noise is correlated."""
        return self.correlation is not None and self.noise == "shared"

    def at(self, turn: int) -> "FedAvg":
        """Return the method of a round's segment; of a method without segments, the method itself."""
        return segments_of(self).at(turn)

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """The rule by which the bound follows the norms of the updates; None if it is fixed."""
        return adaptive_of(self.clip_quantile, self.clip_rate, self.clip_share)

    @property
    def extra_sums(self) -> int:
        """Numbers that a round adds up besides the parameters: the votes on an adaptive bound."""
        return 0 if self.clip_quantile is None else 1

    @property
    def scale(self) -> float:
        """The bound on a contribution in the units of the sums: ``update_norm``, or 1 if the bound is adaptive."""
        return self.update_norm if self.clip_quantile is None else 1.0

    @property
    def optimiser(self) -> Optimiser:
        """How the server steps along noised sums."""
        found = optimiser_of(self.optimizer, self.momentum, self.beta2, None)
        return found if self.floor is None else replace(found, floor=self.floor)

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
        if self.segments is not None:
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
        even = self.picks is None or abs(self.cohort * self.picks - data.clients) <= 1e-9 * data.clients
        require(even, "fedavg.cohort", f"be {data.clients} clients over the {self.picks} rounds of a pass", self.cohort)
        torch = self.local_gradient is None or setup.model.kind == "torch"
        require(torch, "fedavg.local_gradient", "be left out unless the model is a torch model", self.local_gradient)
        scored = self.local_products is None or isinstance(setup.model.loss, ScoredLoss)
        require(scored, "fedavg.local_products", "be left out unless the model is linear", self.local_products)

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Refuse unless the clients share the noise and the grid holds all sums."""
        if self.segments is not None:
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
        if self.segments is not None:
            found = [part.traffic(setup, together) for part in segments_of(self).parts]
            return sum(row[0] for row in found), self.rounds, max(row[2] for row in found)
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
        if self.segments is not None:
            return composed([part.mechanism(adversary, setup) for part in segments_of(self).parts])
        if (found := self.correlated) is not None:
            return seen_together(self, found, adversary, setup)
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
            case _:
                return self.each_round(rate, noise, neighbours)

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
            noise *= math.sqrt(trust.unknown(self._shares(clients)))
        return rate, noise

    def each_round(self, rate: float, noise: float, neighbours: Neighbours) -> Mechanism:
        """Return the mechanism of all rounds, with clients that take part in this share of them.

        1: whoever looks knows in which rounds a client may take part: all, or one of each independent pass.
        """
        times = self.rounds if self.picks is None else self.rounds // self.picks
        if self.sampling == "all" or rate == 1.0:
            return Repeat(of=Gaussian(noise_multiplier=noise, neighbours=neighbours), times=times)
        if self.picks is not None:
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
        found = account_for(with_beside(seen, beside), delta=delta)
        if beside is None and self.correlated is not None:
            return self.correlated.round_by_round(found, seen)
        if adversary not in ("final-model", "every-model") or self.noise != "shared":
            return found
        # An observer of every sum and of who took part sees everything that these see, so its guarantee is theirs too.
        sums = self.mechanism("server-with-secure-aggregation", setup)
        other = found if sums is None else account_for(with_beside(sums, beside), delta=delta)
        return other if other.epsilon < found.epsilon else found

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of the sampler only: one sum a round, or (for the server) one share per client and round."""
        if self.segments is not None:
            return joined([part.grid(adversary, setup, exponent) for part in segments_of(self).parts])
        dimension, clients = setup.dimension + self.extra_sums, setup.data.clients
        samples = self.rounds * (clients if adversary == "server" or self.streams else 1)
        exact = clients * self.scale + 16 * self.noise_std <= LARGEST_STATE * 2.0**exponent
        distance = 0.0 if exact and not self.noiseless else math.inf
        sampled = min(1.0, SAMPLER_DISTANCE * dimension * samples)
        found = Grid(
            exponent=exponent, dimension=dimension, rounds=self.rounds, distance=distance, total_variation=sampled
        )
        if not setup.trust.shared:
            moved = self.correlated
            return found if moved is None else replace(found, distance=distance_of(self, moved, setup, exponent))
        shares = variation(np.full(self.total, self.noise_std), self.cohorts(setup), setup.trust, found)
        return with_masks(replace(found, total_variation=shares), setup.trust, adversary, self.total)

    def radius(self, setup: Setup) -> float:
        """Return the stated radius, or one too large to be reached by updates and noise in practice."""
        if setup.model.radius is not None:
            return setup.model.radius
        if self.segments is not None:
            return 2.0 ** math.ceil(math.log2(math.fsum(part.radius(setup) for part in segments_of(self).parts)))
        noise = 10 * self.noise_multiplier * self.update_norm * math.sqrt(setup.dimension) * growth_of(self.correlated)
        sums = setup.data.clients * self.update_norm + noise
        if self.optimizer is not None:
            each = self.server_step * self.optimiser.longest(sums / self.divisor(setup.data), setup.dimension)
            return 2.0 ** math.ceil(math.log2(self.rounds * each))
        travel = self.server_step / (1 - self.momentum) * sums
        return 2.0 ** math.ceil(math.log2(self.rounds * travel / self.divisor(setup.data)))

    def assumptions(self, adversary: Adversary, setup: Setup) -> Sequence[Row]:
        """Return the assumptions: clipping, divisor, sampling and noise, and what this observer is trusted with."""
        return assumption_rows(self, adversary, setup)

    def facts(self, setup: Setup) -> Sequence[tuple[str, str]]:
        """Return facts about cohorts, local work and noise."""
        return fact_rows(self, setup)


def _check_words(method: FedAvg) -> None:
    for name, choices in (("sampling", Sampling), ("noise", Noise), ("weights", Weights)):
        given, words = getattr(method, name), get_args(choices)
        require(given in words, f"fedavg.{name}", f"be one of {', '.join(words)}", given)


def _check_numbers(method: FedAvg) -> None:
    require(1 <= method.rounds <= _MOST_ROUNDS, "fedavg.rounds", f"lie between 1 and {_MOST_ROUNDS}", method.rounds)
    require(1 <= method.local_epochs <= 10_000, "fedavg.local_epochs", "lie in [1, 10000]", method.local_epochs)
    require(method.local_batch >= 0, "fedavg.local_batch", "be 0 (all records) or more", method.local_batch)
    for name in ("local_step", "update_norm", "server_step"):
        value = getattr(method, name)
        require(1e-9 <= value <= 1e9, f"fedavg.{name}", "lie in [1e-9, 1e9]", value)
    require(0 <= method.momentum < 1, "fedavg.momentum", "lie in [0, 1)", method.momentum)
    cohort, sampling = method.cohort, method.sampling
    require(0 < cohort < 1e12, "fedavg.cohort", "be positive", cohort)
    counted = sampling in ("poisson", "independent") or (cohort >= 1 and cohort == int(cohort))
    require(counted, "fedavg.cohort", "be a whole number of clients unless sampling is poisson or independent", cohort)
    noise, none = method.noise_multiplier, method.noise == "none"
    require(noise == 0 if none else 1e-9 <= noise <= 1e9, "fedavg.noise_multiplier", _noise_rule(none), noise)
    weighted = method.weights == "records"
    fits = method.most_records >= 1 if weighted else method.most_records == 0
    rule = "be at least 1" if weighted else "be left out unless weights go by records"
    require(fits, "fedavg.most_records", rule, method.most_records)


def _noise_rule(none: bool) -> str:
    return "be 0 without noise" if none else "be positive, from 1e-9 to 1e9"


METHOD = FedAvg
TITLE = "federated averaging of noised updates"

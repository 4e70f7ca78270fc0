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
from fedveil.algorithms.base import EveryModelSeen, Tabled
from fedveil.algorithms.noise_shares import check_cohorts, check_punctual, check_range, variation, with_masks
from fedveil.algorithms.share_words import SENT_ALWAYS, Row, drawn, share_rows
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.guarantee import Adversary, Answer, Bound, Neighbours
from fedveil.mechanism import Gaussian, Mechanism, Repeat, SampledGaussian, with_beside
from fedveil.model.spec import ModelPlan
from fedveil.target import Target
from fedveil.theory.grid import LARGEST_STATE, SAMPLER_DISTANCE
from fedveil.trust import CENTRAL, Trust
from fedveil.values import number, whole

Sampling = Literal["all", "poisson", "fixed-size"]
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

    kind: ClassVar[str] = "fedavg"
    pulls_when_empty: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "local_batch", "most_records"):
            object.__setattr__(self, name, whole(f"fedavg.{name}", getattr(self, name)))
        for name in ("cohort", "local_step", "update_norm", "server_step", "momentum", "noise_multiplier"):
            object.__setattr__(self, name, number(f"fedavg.{name}", getattr(self, name)))
        _check_words(self)
        _check_numbers(self)

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
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.update_norm

    def divisor(self, data: DataShape) -> float:
        """Return what sums are divided by, whoever answers.

        The planned cohort, or the weight it is expected to carry.
        """
        if self.weights == "uniform":
            return self.cohort
        return min(self.cohort, self.cohort / data.clients * data.records / self.most_records)

    def check(self, data: DataShape, model: ModelPlan, target: Target) -> None:
        """Refuse unless clients are protected and no more of them are asked than exist."""
        hint = 'Set privacy.unit = "client": that protects each of their records too.'
        require(target.unit == "client", "privacy.unit", "be client for fedavg, which clips updates", target.unit, hint)
        few = self.cohort <= data.clients
        require(few, "fedavg.cohort", f"be at most the number of clients, {data.clients}", self.cohort)
        full = self.sampling != "all" or self.cohort == data.clients
        require(full, "fedavg.cohort", f"be all {data.clients} clients when all take part", self.cohort)

    def check_shares(self, trust: Trust, exponent: int, data: DataShape, model: ModelPlan, target: Target) -> None:
        """Refuse unless the clients share the noise and the grid holds all sums."""
        sizes = self.cohorts(data, target)
        check_cohorts(sizes, trust)
        check_punctual(trust, self.kind)
        hint = "With [trust] every client adds its own share."
        require(self.noise == "shared", "algorithm.noise", "be shared with [trust]", self.noise, hint)
        noise, each = np.full(self.total, self.noise_std), np.full(self.total, self.update_norm)
        check_range(noise, sizes, trust, exponent, self.cohort * each, each)

    def traffic(self, data: DataShape, target: Target, trust: Trust, together: bool) -> tuple[int, int, int]:
        """Return the traffic: the planned cohort sends in every round."""
        largest = min(math.ceil(self.cohort), data.clients) if self.sampling != "poisson" else data.clients
        return round(self.rounds * self.cohort), self.rounds, largest

    def cohorts(self, data: DataShape, target: Target) -> Sequence[int]:
        """Return the same cohort size for every round."""
        return [int(self.cohort)] * self.total

    def mechanism(
        self, adversary: Adversary, data: DataShape, neighbours: Neighbours, trust: Trust = CENTRAL
    ) -> Mechanism | None:
        """Return what this observer sees of a client, as a mechanism; None if it knows all of the noise.

        A secret cohort counts only while nobody learns who is in it, and while the noise cannot depend on who is.
        """
        trusted = adversary not in ("server", "server-with-secure-aggregation")
        if self.noise == "none" or (self.noise == "central" and not trusted):
            return None
        noise, rate = self.noise_multiplier, self.cohort / data.clients if trust.dropouts == 0 else 1.0
        match adversary:
            case "server":  # each update comes with its own share of the noise, and a name
                return self.each_round(1.0, noise / math.sqrt(self._honest(trust)), neighbours)
            case "server-with-secure-aggregation":  # the server asked the clients, so it knows who is in the sum
                return self.each_round(1.0, noise, neighbours)
            case "curious-client":
                return self.each_round(*self._beside(rate, noise, data.clients, trust), neighbours)
            case _:
                return self.each_round(rate, noise, neighbours)

    def _honest(self, trust: Trust) -> float:
        """Return how many clients' shares make up the planned noise; for poisson cohorts, the expected number."""
        return trust.honest(int(self.cohort)) if trust.shared else self.cohort

    def _beside(self, rate: float, noise: float, clients: int, trust: Trust) -> tuple[float, float]:
        """Return rate and noise of the others, for clients that know when they take part and what they add."""
        if self.sampling == "fixed-size":
            rate = min(1.0, self.cohort / max(clients - 1, 1))  # rounds without it have more room for the victim
            known = trust.dropouts or trust.server != "trusted" or trust.hand > 1
            rate = 1.0 if known else rate
        if self.noise == "shared":  # at least the victim answers besides those who look together
            noise *= math.sqrt(self._unknown(trust))
        return rate, noise

    def _unknown(self, trust: Trust) -> float:
        """Return the share of a round's planned variance that clients who look together do not know."""
        if not trust.shared:
            # alone in a round, a client learns nothing about anybody
            return 1 - 1 / self.cohort if self.cohort > 1 else 1.0
        honest = trust.honest(int(self.cohort))
        return min(1.0, max(honest + trust.colluders - trust.hand, 1) / honest)

    def each_round(self, rate: float, noise: float, neighbours: Neighbours) -> Mechanism:
        """Return the mechanism of all rounds, with clients that take part in this share of them."""
        if self.sampling == "all" or rate == 1.0:
            return Repeat(of=Gaussian(noise_multiplier=noise, neighbours=neighbours), times=self.rounds)
        law: Literal["poisson", "fixed-size"] = "poisson" if self.sampling == "poisson" else "fixed-size"
        once = SampledGaussian(sampling=law, rate=rate, noise_multiplier=noise, neighbours=neighbours)
        return Repeat(of=once, times=self.rounds)

    def answer(
        self,
        adversary: Adversary,
        data: DataShape,
        target: Target,
        delta: float,
        trust: Trust = CENTRAL,
        beside: Gaussian | None = None,
    ) -> Answer:
        """Compose over the rounds what this observer sees."""
        seen = self.mechanism(adversary, data, target.neighbours, trust)
        if seen is None:
            return Answer(epsilon=math.inf, delta=delta, certified_by=None, bounds=(_NOISELESS,))
        found = account_for(with_beside(seen, beside), delta=delta)
        if adversary not in ("final-model", "every-model") or self.noise != "shared":
            return found
        # An observer of every sum and of who took part sees everything that these see, so its guarantee is theirs too.
        sums = self.mechanism("server-with-secure-aggregation", data, target.neighbours, trust)
        other = found if sums is None else account_for(with_beside(sums, beside), delta=delta)
        return other if other.epsilon < found.epsilon else found

    def grid(
        self,
        exponent: int,
        adversary: Adversary,
        data: DataShape,
        model: ModelPlan,
        target: Target,
        trust: Trust = CENTRAL,
    ) -> Grid:
        """Return the cost of the sampler only: one sum a round, or (for the server) one share per client and round."""
        dimension = model.loss.size(data.features)
        samples = self.rounds * (data.clients if adversary == "server" else 1)
        exact = data.clients * self.update_norm + 16 * self.noise_std <= LARGEST_STATE * 2.0**exponent
        distance = 0.0 if exact and not self.noiseless else math.inf
        sampled = min(1.0, SAMPLER_DISTANCE * dimension * samples)
        found = Grid(
            exponent=exponent, dimension=dimension, rounds=self.rounds, distance=distance, total_variation=sampled
        )
        if not trust.shared:
            return found
        noise = np.full(self.total, self.noise_std)
        shares = variation(noise, self.cohorts(data, target), trust, found)
        return with_masks(replace(found, total_variation=shares), trust, adversary, self.total)

    def radius(self, data: DataShape, model: ModelPlan) -> float:
        """Return the stated radius, or one too large to be reached by updates and noise in practice."""
        if model.radius is not None:
            return model.radius
        noise = 10 * self.noise_std * math.sqrt(model.loss.size(data.features))
        travel = self.server_step / (1 - self.momentum) * (data.clients * self.update_norm + noise)
        return 2.0 ** math.ceil(math.log2(self.rounds * travel / self.divisor(data)))

    def assumptions(
        self, adversary: Adversary, data: DataShape, model: ModelPlan, target: Target, trust: Trust = CENTRAL
    ) -> Sequence[Row]:
        """Return the assumptions: clipping, divisor, sampling and noise, and what this observer is trusted with."""
        if self.noiseless:
            return [("noise", "none", "the study asked for none: nothing is promised to anybody")]
        rows = [
            ("update bound", f"{self.update_norm:.12g}", "every update is clipped to it and cut to the grid"),
            ("fixed divisor", f"{self.divisor(data):.12g}", "sums divide by the plan's number, whoever answers"),
            ("noise of a sum", f"{self.noise_std:.12g}", "drawn for every round, also when nobody answers"),
        ]
        if self.weights == "records":
            rows.append(("largest weight", f"1, at {self.most_records} records", "larger clients count no more"))
        rows += [*self._sampling_rows(adversary, data, trust), *self._observer_rows(adversary, trust)]
        if not trust.shared:
            return rows
        return [*rows, *share_rows(adversary, trust, self.cohorts(data, target), SENT_ALWAYS)]

    def _sampling_rows(self, adversary: Adversary, data: DataShape, trust: Trust) -> list[Row]:
        if self.sampling == "all" or adversary.startswith("server"):
            return [("a client takes part in", "every round", "the worst case for those who know who takes part")]
        rate = f"{self.cohort / data.clients:.6g} of the clients, {self.sampling}"
        how = drawn(trust, "drawn from the run's key in every round, never written down")
        return [("secret cohorts", rate, how)]

    def _observer_rows(self, adversary: Adversary, trust: Trust) -> list[Row]:
        """Return what this observer is trusted with; if clients share the noise, :func:`share_rows` says the rest."""
        shares = ("every client adds its share of the noise", "no dropouts, no colluders", "declared")
        given = [shares] if self.noise == "shared" and not trust.shared else []
        server = ("the server is trusted", "declared", "declared: it sees more than this observer")
        match adversary:
            case "curious-client":
                alone = ("a single client, not the victim", "1 client", "declared: clients do not pool what they see")
                return [alone, server, *given]
            case "final-model" | "every-model":
                return [server, *given]
            case _ if trust.shared:
                return []
            case "server-with-secure-aggregation":
                sums = ("the server learns sums only", "declared", "declared: this run did not use secure aggregation")
                return [sums, shares]
            case _:
                return [shares]

    def facts(self, data: DataShape, target: Target) -> Sequence[tuple[str, str]]:
        """Return facts about cohorts, local work and noise."""
        batch = f"batches of {self.local_batch:,}" if self.local_batch else "all records at once"
        places = {"central": "by the server", "shared": "in shares by the clients", "none": "by nobody"}
        return [
            ("rounds", f"{self.rounds:,}"),
            ("clients a round", f"{self.cohort:,.6g} of {data.clients:,} ({self.sampling})"),
            ("local training", f"{self.local_epochs:,} epochs, {batch}, step {self.local_step:.4g}"),
            ("updates clipped to", f"{self.update_norm:.4g}"),
            ("noise multiplier", f"{self.noise_multiplier:.4g}, added {places[self.noise]}"),
            ("server", f"step {self.server_step:.4g}, momentum {self.momentum:.4g}, weights {self.weights}"),
        ]


def _check_words(method: FedAvg) -> None:
    for name, choices in (("sampling", Sampling), ("noise", Noise), ("weights", Weights)):
        given, words = getattr(method, name), get_args(choices)
        require(given in words, f"fedavg.{name}", f"be one of {', '.join(words)}", given)
    steady = method.noise != "shared" or method.sampling != "poisson"
    hint = "Then the number of shares is known: sampling = fixed-size or all, or noise = central."
    rule = "be all or fixed-size when clients share the noise"
    require(steady, "fedavg.sampling", rule, method.sampling, hint)


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
    counted = sampling == "poisson" or (cohort >= 1 and cohort == int(cohort))
    require(counted, "fedavg.cohort", "be a whole number of clients unless sampling is poisson", cohort)
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

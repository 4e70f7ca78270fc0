"""DP-SGD: every client sends noised sums of clipped gradients; what each client does, and what is charged for it.

van Dijk and Nguyen 2023, Algorithm 1. Each round of a client is one release with the client's own noise, so its
certificate follows from its own settings: neither the network, nor the server, nor what other clients do enters it.
Page: dpsgd.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, get_args

import numpy as np

from fedveil.accounting.calibrate import scaled
from fedveil.accounting.compare import account_for
from fedveil.accounting.grid import Grid
from fedveil.core.errors import require
from fedveil.core.tables import known
from fedveil.core.values import Indices, number
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian, Mechanism, with_beside
from fedveil.privacy.target import Target
from fedveil.stages.noise_shares import check_cohorts, check_range, variation, with_masks
from fedveil.stages.train.adaptive_clip import AdaptiveClip
from fedveil.stages.train.base import Setup, check_groups, read_groups, written
from fedveil.stages.train.dpsgd.cost import (
    charged,
    charged_together,
    check_choice,
    check_correlation,
    check_persons,
    grid_cost,
    mean_noise,
    most_rows,
    radius_of,
    within_budget,
)
from fedveil.stages.train.dpsgd.mixing import check_mixing, mixture, noise_left, round_noise, spread_of
from fedveil.stages.train.dpsgd.rounds import DpSgdRounds
from fedveil.stages.train.dpsgd.settings import (
    DEALT,
    ClientSettings,
    Clipping,
    Network,
    Sampling,
    check_picks,
    checked_stops,
    checked_weights,
)
from fedveil.stages.train.optimiser import Optimiser, check_average
from fedveil.stages.train.settings import ADAPTIVE, Choice, CompressionRequest

MOST_MESSAGES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd(DpSgdRounds):
    """DP-SGD as a plan holds it: its rounds, checked at birth, and what each observer is promised."""

    kind: ClassVar[str] = "dpsgd"

    def __post_init__(self) -> None:
        given: Any = self.client_settings
        listed = isinstance(given, tuple) and len(given) >= 1 and all(isinstance(p, ClientSettings) for p in given)
        require(
            listed,
            "algorithm.client_settings",
            "hold the settings of at least one client",
            given,
            "One for all clients, or one each.",
        )
        for name, choices in (("sampling", Sampling), ("clipping", Clipping)):
            words, value = get_args(choices), getattr(self, name)
            require(value in words, f"algorithm.{name}", f"be one of {', '.join(words)}", value)
        check_groups(self, _GROUPS)
        check_average(self.average)
        object.__setattr__(self, "weights", checked_weights(self.weights))
        object.__setattr__(self, "clip_limits", self._checked_limits())
        plain = self.segments is False or (self.segments is True and not self.adaptive)
        require(plain, "method.segments", "be true or false, and go with fixed clips", self.segments)
        if self.stops:
            stops = checked_stops(self.stops, self.client_settings, self.segments)
            object.__setattr__(self, "stops", stops)
        check_correlation(self)
        if self.choice:
            check_choice(self)

    def _checked_limits(self) -> tuple[float, ...]:
        if not self.adaptive:
            require(not self.clip_limits, "method.clip_limits", "go with an adaptive clip", self.clip_limits)
            return ()
        hint = "A batch's mean is one norm: there is nothing to count."
        each = self.clipping == "individual"
        require(each, "algorithm.clip", "be a number with batch clipping", ADAPTIVE, hint)
        given: Any = self.clip_limits
        require(isinstance(given, list | tuple), "method.clip_limits", "be a list of numbers", given)
        limits = tuple(number("method.clip_limits", value) for value in given)
        fits = len(limits) == len(self.client_settings) and all(0 < value < math.inf for value in limits)
        require(fits, "method.clip_limits", "hold one positive number for each of the client settings", limits)
        return limits

    def check(self, setup: Setup) -> None:
        """Refuse unless records are protected and every client has settings and batches that exist."""
        data, unit = setup.data, setup.target.unit
        hint = 'Use kind = "fedavg" to protect whole clients.'
        require(unit != "client", "privacy.unit", "be record or person for dpsgd", unit, hint)
        if unit == "person":
            check_persons(self)
        for name, rows in (
            ("client_settings", self.client_settings),
            ("weights", self.weights),
            ("speeds", self.network.speeds),
        ):
            fits = len(rows) == data.clients or len(rows) == (1 if name == "client_settings" else 0)
            fits = fits or (name == "client_settings" and self.segments)
            require(fits, f"algorithm.{name}", f"have one entry for each of {data.clients} clients", len(rows))
        why, rule = setup.model.loss.fixed_clip, f"be a number for a {setup.model.kind} model"
        require(why is None or not self.adaptive, "algorithm.clip", rule, ADAPTIVE, why or "")
        if not setup.model.linear:
            check_deep(self)
        if self.sampling == "independent":
            for settings in dict.fromkeys(self.client_settings):
                rule = "be one over the rounds of a pass for independent sampling"
                require(settings.rate == 1 / settings.batches_a_pass, "algorithm.rate", rule, settings.rate)
                check_picks(settings.batches_a_pass, data)
        elif self.sampling != "poisson":
            least = min(settings.size(data.smallest_client) for settings in self.client_settings)
            hint = "Raise the rate, or sample with poisson."
            require(least >= 1, "algorithm.rate", "give every client a batch of at least one record", least, hint)
        asked, rule = self.network.participants, f"be at most the {data.clients} clients"
        require(asked is None or asked <= data.clients, "algorithm.participants", rule, asked)
        sent = self.total * data.clients
        hint = 'If one party holds all records, say [clients] kind = "equal", count = 1.'
        require(sent <= MOST_MESSAGES, "Rounds times clients", f"be at most {MOST_MESSAGES}", sent, hint)
        if not self.local(setup):
            check_mixing(self, setup)

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Refuse a grid that does not hold the shares, and clients that do not wait under a server that may not look.

        With patience the real network decides who is late, so none is simulated.
        """
        trust, cohorts = setup.trust, self.cohorts(setup)
        check_cohorts(cohorts, trust)
        if not self.local(setup):
            most = [mixture(self, setup, 0).clip * self.longest_sum(setup)] * self.total
            each = np.array(most, dtype=np.float64)
            check_range(round_noise(self, setup), cohorts, trust, exponent, each * setup.data.clients, each)
        if trust.server == "trusted" and trust.patience is None:
            return
        hint = "Leave delay, loss, jitter, speeds, max_deviation and participants out and take a whole window."
        if trust.patience is None:
            hint = f'{hint[:-1]}, or set trust.server = "trusted".'
        setting = trust.server if trust.patience is None else "patience"
        rule = f"go with clients that wait for each other ({setting})"
        require(self.network.together, "[trust]", rule, "others", hint)

    def longest_sum(self, setup: Setup) -> float:
        """Return how many contributions a client adds up in a window at most."""
        rows = max(most_rows(self, settings, setup.data.largest_client) for settings in self.client_settings)
        return float(self.window * (rows if self.clipping == "individual" else 1))

    def sum_length(self, setup: Setup) -> int:
        """Return the number of parameters, and one for the votes on an adaptive clip that all clients have."""
        return setup.dimension + self.adaptive.votes * (not self.local(setup))

    def traffic(self, setup: Setup, together: bool) -> tuple[int, int, int]:
        """Return the traffic: one update per client and round; if windows are added up, one per window."""
        width, clients = self.window if setup.trust.all_send and self.waits else 1, setup.data.clients
        rounds = [math.ceil(self.rounds_of(client) / width) for client in range(clients)]
        return sum(rounds), max(rounds), clients

    def average_noise(self, sizes: Indices, setup: Setup) -> float | None:
        """Return the noise of the server's mix of the clients' means; None if it depends on how the run goes."""
        if self.adaptive or self.choice:
            return None
        if not self.local(setup):
            mixed = (mixture(self, setup, turn) for turn in self.starts)
            squares = [(one.pull * one.noise) ** 2 for one in mixed]
            mean = math.sqrt(math.fsum(squares) / len(squares) * spread_of(self, setup))
            return mean if not (result := self.correlated) else mean * result.factor.of_a_round(result.rounds)
        weights = self.weights or (sizes / setup.data.records).tolist()
        return math.hypot(*(w * mean_noise(self, k, int(sizes[k])) for k, w in enumerate(weights)))

    def cohorts(self, setup: Setup) -> Sequence[int]:
        """Return the number of clients that are asked in each round: those with rounds left."""
        if not self.local(setup):
            return [self.asked(setup)] * self.total
        rounds = [self.rounds_of(client) for client in range(setup.data.clients)]
        return [sum(turn < own for own in rounds) for turn in range(self.total)]

    def answer(self, adversary: Adversary, setup: Setup, delta: float, beside: Gaussian | None = None) -> Answer:
        """Return the guarantee of the worst client, against the noise that this observer does not know."""
        left, why = noise_left(self, setup, adversary), _WHY[adversary]
        if self.local(setup):
            why = "every noised update of the client is seen, by any observer"
        group = setup.target.largest_person
        if beside is not None and group > 1:  # it is charged for a person, and the mechanism for one record
            beside = replace(beside, noise_multiplier=beside.noise_multiplier * group * (1 - 2.0**-50))
        charges = (with_beside(scaled(m, left), beside) for m in self._charges(setup.target))
        return max((_answer(m, delta, why, group) for m in charges), key=lambda answer: answer.epsilon)

    def clients(self, delta: float, setup: Setup, count: int | None = None) -> list[tuple[int, float]]:
        """Return each client's own epsilon against the target's observer.

        ``count``: the number of clients if all share one settings.
        """
        alike = 1 if self.segments else len(self.client_settings)
        count, left = alike if count is None else count, noise_left(self, setup, setup.target.adversary)
        rows = [scaled(self._charged(client, setup.target), left) for client in range(count)]
        group = setup.target.largest_person
        return [(client, _answer(row, delta, "", group).epsilon) for client, row in enumerate(rows)]

    def _charges(self, target: Target) -> list[Mechanism]:
        clients = range(1 if self.segments else len(self.client_settings))
        return list(dict.fromkeys(self._charged(client, target) for client in clients))

    def _charged(self, client: int, target: Target) -> Mechanism:
        if self.choice:
            return within_budget(self, target, self.choice.budget)
        if result := self.correlated:
            return charged_together(self, result, self.client_settings[0].noise, target)
        return charged(self.used_in(client), self.sampling, self.clipping, target)

    def radius(self, setup: Setup) -> float:
        """Return the stated radius, or one too large to matter."""
        return radius_of(self, setup)

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of the grid for the worst client: every release is rounded to the grid before its noise.

        Against shared noise, only the rounding of the victim's own client differs between two data sets.
        """
        cost = grid_cost(self, setup, exponent)
        if self.local(setup):
            return cost
        cost = replace(cost, distance=cost.distance / noise_left(self, setup, adversary))
        if not setup.trust.shared:
            return cost
        shares = variation(round_noise(self, setup), self.cohorts(setup), setup.trust, cost)
        cost = replace(cost, total_variation=min(1.0, cost.total_variation + shares))
        return with_masks(cost, setup.trust, adversary, self.total)

    def most_rows(self, settings: ClientSettings, records: int) -> int:
        """Return a size that a batch of such a client exceeds with a chance of at most 2**-100 a round (Bernstein)."""
        return most_rows(self, settings, records)

    def table(self) -> dict[str, Any]:
        """Return client settings as parallel lists, and every group as a table of its own."""
        own: dict[str, Any] = {
            f.name: [getattr(p, f.name) for p in self.client_settings] for f in fields(ClientSettings)
        }
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "client_settings"}
        return {**own, **written(rest)}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "DpSgd":
        """Read the table that :meth:`table` writes."""
        own = [f.name for f in fields(ClientSettings)]
        known(table, [*own, *(f.name for f in fields(cls) if f.name != "client_settings")], "[method]")
        lists = [table.get(name) for name in own]
        right = all(isinstance(row, list) and len(row) == len(lists[0] or ()) for row in lists)
        require(right, "[method]", f"give {', '.join(own)} of every settings, as lists of one length", lists)
        client_settings = tuple(ClientSettings(**dict(zip(own, row, strict=True))) for row in zip(*lists, strict=True))
        left = {key: value for key, value in table.items() if key not in own}
        return cls(client_settings=client_settings, **read_groups(left, _GROUPS, client_settings[0].rounds))


def check_deep(method: DpSgdRounds) -> None:
    """Refuse what is not proved for a torch model."""
    hint = "Nothing else bounds what a record can do to a torch model."
    each = method.clipping == "individual"
    require(each, "algorithm.clipping", "be individual for a torch model", method.clipping, hint)
    hint = "Correlated noise with drawn batches is not proved for it."
    dealt = not method.correlated or method.sampling in DEALT
    require(dealt, "algorithm.sampling", "be cyclic for a torch model with correlated noise", method.sampling, hint)


@lru_cache(maxsize=256)
def _answer(mechanism: Mechanism, delta: float, why: str, group: int) -> Answer:
    answer = account_for(mechanism, delta=delta, group=group)
    return replace(answer, bounds=tuple(replace(bound, reason=f"{bound.reason}; {why}") for bound in answer.bounds))


_WHY: Final[dict[Adversary, str]] = {
    "final-model": "every sum is counted as seen, with all the noise that surely answers",
    "every-model": "every sum is seen, with all the noise that surely answers",
    "curious-client": "every sum is seen, and the observer's own part of the noise is taken off",
    "server-with-secure-aggregation": "every sum is seen, with the noise of the honest clients that surely answer",
    "server": "every client's own update is seen, with the client's own part of the noise alone",
}
_GROUPS: Final = {
    "network": Network,
    "compression": CompressionRequest,
    "optimiser": Optimiser,
    "adaptive": AdaptiveClip,
    "choice": Choice,
}
METHOD = DpSgd
TITLE = "noisy clipped gradient steps (DP-SGD)"

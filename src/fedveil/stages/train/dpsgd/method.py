"""DP-SGD: every client sends noised sums of clipped gradients; what each client does, and what is charged for it.

van Dijk and Nguyen 2023, Algorithm 1. Each round of a client is one release with the client's own noise, so its
certificate follows from its own settings: neither the network, nor the server, nor what other clients do enters it.
Page: dpsgd.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, get_args

from fedveil.accounting.compare import account_for
from fedveil.accounting.grid import Grid
from fedveil.core.checks import require
from fedveil.core.tables import known
from fedveil.core.values import Indices, number
from fedveil.models.spec import ModelPlan
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian, Mechanism, with_beside
from fedveil.privacy.target import Target
from fedveil.stages.noise_shares import check_cohorts
from fedveil.stages.train.adaptive_clip import AdaptiveClip
from fedveil.stages.train.base import EveryModelSeen, check_groups, read_groups, written
from fedveil.stages.train.choosing import Choice
from fedveil.stages.train.correlation import Correlation
from fedveil.stages.train.dpsgd.client_settings import (
    DEALT,
    DRAWN,
    ClientSettings,
    Clipping,
    Sampling,
    check_picks,
    checked_stops,
    checked_weights,
)
from fedveil.stages.train.dpsgd.correlated import charged_together, check_correlation
from fedveil.stages.train.dpsgd.deep import check_deep
from fedveil.stages.train.dpsgd.grids import grid_cost
from fedveil.stages.train.dpsgd.lengths import mean_noise, most_rows
from fedveil.stages.train.dpsgd.network import Network
from fedveil.stages.train.dpsgd.reach import usual_radius
from fedveil.stages.train.dpsgd.segments import charged, check_choice, most_rounds, within_budget
from fedveil.stages.train.optimiser import Optimiser, check_average
from fedveil.stages.train.settings import ADAPTIVE, CompressionRequest
from fedveil.stages.train.setup import Setup

MOST_MESSAGES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd(EveryModelSeen):
    """``client_settings``: one for all clients, or one for each; ``weights``: how the server mixes their updates.

    No weights: in proportion to the clients' records. ``optimiser`` and ``compression`` are applied to what is noised
    already. ``average``: a moving average of the models is released, in which the past has this weight.

    ``adaptive``: the rule by which clips follow the norms, beginning at the client's ``clip``; None if they are fixed.
    ``clip_limits``: for each of the client settings, the clip above which steps are shortened in proportion.
    ``segments``: ``client_settings`` are then consecutive segments of the rounds of every client, each with its own
    rate, clip, noise and steps; with a ``choice`` they are candidates, of which a rule chooses within a budget.
    ``stops``: for each of the client settings, in how many rounds the client's records take part; in later rounds it
    sends noise alone. ``correlated``: how the noise is correlated over rounds; None if it is independent.
    """

    client_settings: tuple[ClientSettings, ...]
    sampling: Sampling = "poisson"
    clipping: Clipping = "individual"
    weights: tuple[float, ...] = ()
    network: Network = field(default_factory=Network)
    compression: CompressionRequest = field(default_factory=CompressionRequest)
    optimiser: Optimiser = field(default_factory=Optimiser)
    average: float | None = None
    adaptive: AdaptiveClip | None = None
    clip_limits: tuple[float, ...] = ()
    segments: bool = False
    choice: Choice | None = None
    stops: tuple[int, ...] = ()
    correlated: Correlation | None = None

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
        plain = self.segments is False or (self.segments is True and self.adaptive is None)
        require(plain, "method.segments", "be true or false, and go with fixed clips", self.segments)
        if self.stops:
            stops = checked_stops(self.stops, self.client_settings, self.segments)
            object.__setattr__(self, "stops", stops)
        check_correlation(self)
        if self.choice is not None:
            check_choice(self)

    def _checked_limits(self) -> tuple[float, ...]:
        if self.adaptive is None:
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

    @property
    def classes(self) -> int:
        """Among how many classes of records rounds take turns: one, unless noise is correlated."""
        return 1 if self.correlated is None else self.correlated.separation

    @property
    def chooses(self) -> bool:
        """True if a rule chooses among the segments."""
        return self.choice is not None

    def scale(self, settings: ClientSettings) -> float:
        """Return the bound on a contribution in the units of the released sums: the clip, or 1 if it is adaptive."""
        return settings.clip if self.adaptive is None else 1.0

    def longest(self, index: int) -> float:
        """Return the largest clip that steps are not shortened for, for one of the client settings."""
        return self.clip_limits[index] if self.clip_limits else self.client_settings[index].clip

    def shorter(self, client: int, clip: float) -> float:
        """Return by what a client's step is multiplied at this clip: 1 unless an adaptive clip is beyond its limit."""
        return min(1.0, self.longest(self.place(client)) / clip) if self.clip_limits else 1.0

    def first_step(self, client: int) -> float:
        """Return what a client's first release is multiplied by before it is sent."""
        settings = self.settings(client)
        return settings.step(0) * self.shorter(client, settings.clip) * self.network.step(0)

    @property
    def total(self) -> int:
        """Number of rounds of the client that has most."""
        return max(self.rounds_of(client) for client in range(len(self.client_settings)))

    def rounds_of(self, client: int) -> int:
        """Return the number of rounds of a client, in all segments; the most that a rule can choose, if one chooses."""
        if self.choice is not None:
            return most_rounds(self, self.choice.budget)
        return sum(settings.rounds for settings in self.parts_of(client))

    def parts_of(self, client: int) -> tuple[ClientSettings, ...]:
        """Return the settings of a client, counted from 0, one for each of its segments (one, if there are none)."""
        return self.client_settings if self.segments else (self.client_settings[self.place(client)],)

    def used_in(self, client: int) -> tuple[ClientSettings, ...]:
        """Return the settings of the rounds in which a client's records take part: what is charged for them."""
        parts = self.parts_of(client)
        if not self.stops:
            return parts
        return (replace(parts[0], rounds=self.stops[self.place(client)], step_size=1.0),)

    def uses_records(self, client: int, turn: int) -> bool:
        """Return whether a client's records take part in a round; otherwise it sends noise alone."""
        return not self.stops or turn < self.stops[self.place(client)]

    def settings(self, client: int, turn: int = 0) -> ClientSettings:
        """Return the settings of a client in a round, both counted from 0."""
        return self.parts_of(client)[self.segment(client, turn)[0]]

    def segment(self, client: int, turn: int) -> tuple[int, int]:
        """Return the number of a round's segment, and the round in which that segment begins."""
        first = 0
        for index, settings in enumerate(self.parts_of(client)):
            if turn < first + settings.rounds:
                return index, first
            first += settings.rounds
        return len(self.parts_of(client)) - 1, first - self.parts_of(client)[-1].rounds

    def place(self, client: int) -> int:
        """Return the place of a client's settings among ``client_settings``."""
        return client if len(self.client_settings) > 1 and not self.segments else 0

    def check(self, setup: Setup) -> None:
        """Refuse unless records are protected and every client has settings and batches that exist."""
        data, unit = setup.data, setup.target.unit
        hint = 'Use kind = "fedavg" to protect whole clients.'
        require(unit == "record", "privacy.unit", "be record for dpsgd", unit, hint)
        for name, rows in (
            ("client_settings", self.client_settings),
            ("weights", self.weights),
            ("speeds", self.network.speeds),
        ):
            fits = len(rows) == data.clients or len(rows) == (1 if name == "client_settings" else 0)
            fits = fits or (name == "client_settings" and self.segments)
            require(fits, f"algorithm.{name}", f"have one entry for each of {data.clients} clients", len(rows))
        why, rule = setup.model.loss.fixed_clip, f"be a number for a {setup.model.kind} model"
        require(why is None or self.adaptive is None, "algorithm.clip", rule, ADAPTIVE, why or "")
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

    def apart(self, model: ModelPlan) -> bool:
        """Whether every record's contribution is rounded on its own, so that it adds the same bits to any batch.

        What torch computes for a record may depend on the size of the batch and the record's place in it; where batches
        are dealt both are fixed, and otherwise records are rounded alone (docs/torch.md).
        """
        alone = self.sampling == "independent" or self.adaptive is not None
        alone = alone or (not model.linear and self.sampling not in DEALT)
        return alone and self.clipping == "individual"

    @property
    def waits(self) -> bool:
        """True unless the network has delays or losses; then clients do not wait for each other."""
        return self.network.together

    @property
    def window(self) -> int:
        """The number of rounds that the server mixes at once."""
        return int(self.network.window)

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Only windows that wait for everybody can be added up by a server that may not look.

        No update needs another's noise. With patience the real network decides who is late, so none is simulated.
        """
        trust = setup.trust
        check_cohorts(self.cohorts(setup), trust)
        if trust.server == "trusted" and trust.patience is None:
            return
        hint = "Leave delay, loss, jitter, speeds, max_deviation and participants out and take a whole window."
        if trust.patience is None:
            hint = f'{hint[:-1]}, or set trust.server = "trusted".'
        setting = trust.server if trust.patience is None else "patience"
        rule = f"go with clients that wait for each other ({setting})"
        require(self.network.together, "[trust]", rule, "others", hint)

    def traffic(self, setup: Setup, together: bool) -> tuple[int, int, int]:
        """Return the traffic: one update per client and round; if windows are added up, one per window."""
        width, clients = self.window if setup.trust.all_send and self.waits else 1, setup.data.clients
        rounds = [math.ceil(self.rounds_of(client) / width) for client in range(clients)]
        return sum(rounds), max(rounds), clients

    def average_noise(self, sizes: Indices, setup: Setup) -> float | None:
        """Return the noise of the server's mix of the clients' means; None if it depends on how the run goes."""
        if self.adaptive is not None or self.choice is not None:
            return None
        weights = self.weights or (sizes / setup.data.records).tolist()
        return math.hypot(*(w * mean_noise(self, k, int(sizes[k])) for k, w in enumerate(weights)))

    def cohorts(self, setup: Setup) -> Sequence[int]:
        """Return the number of clients that still have rounds left, for each round."""
        rounds = [self.rounds_of(client) for client in range(setup.data.clients)]
        return [sum(turn < own for own in rounds) for turn in range(self.total)]

    def answer(self, adversary: Adversary, setup: Setup, delta: float, beside: Gaussian | None = None) -> Answer:
        """Return the guarantee of the worst client; no observer sees more than all noised updates."""
        charges = (with_beside(m, beside) for m in self._charges(setup.target))
        return max((_answer(m, delta) for m in charges), key=lambda found: found.epsilon)

    def clients(self, delta: float, target: Target, count: int | None = None) -> list[tuple[int, float]]:
        """Return each client's own epsilon; ``count``: the number of clients if all share one settings."""
        alike = 1 if self.segments else len(self.client_settings)
        count = alike if count is None else count
        rows = [self._charged(client, target) for client in range(count)]
        return [(client, _answer(row, delta).epsilon) for client, row in enumerate(rows)]

    def _charges(self, target: Target) -> list[Mechanism]:
        clients = range(1 if self.segments else len(self.client_settings))
        return list(dict.fromkeys(self._charged(client, target) for client in clients))

    def _charged(self, client: int, target: Target) -> Mechanism:
        if self.choice is not None:
            return within_budget(self, target, self.choice.budget)
        if (found := self.correlated) is not None:
            return charged_together(self, found, self.client_settings[0].noise, target)
        return charged(self.used_in(client), self.sampling, self.clipping, target)

    def radius(self, setup: Setup) -> float:
        """Return the stated radius, or one too large to matter: descent goes no farther than sqrt(2 steps * loss)."""
        if setup.model.radius is not None:
            return setup.model.radius
        return usual_radius(self, setup)

    def divisor(self, settings: ClientSettings, records: int) -> float:
        """Return the planned size of a batch, whatever its actual size."""
        return settings.rate * records if self.sampling in (*DRAWN, "cyclic") else float(settings.size(records))

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of the grid for the worst client: every release is rounded to the grid before its noise."""
        return grid_cost(self, setup, exponent)

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


@lru_cache(maxsize=256)
def _answer(mechanism: Mechanism, delta: float) -> Answer:
    found = account_for(mechanism, delta=delta)
    why = "every noised update of the client is seen, by any observer"
    return replace(found, bounds=tuple(replace(bound, reason=f"{bound.reason}; {why}") for bound in found.bounds))


_GROUPS: Final = {
    "network": Network,
    "compression": CompressionRequest,
    "optimiser": Optimiser,
    "adaptive": AdaptiveClip,
    "choice": Choice,
}
METHOD = DpSgd
TITLE = "noisy clipped gradient steps (DP-SGD)"

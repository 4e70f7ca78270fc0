"""DP-SGD: every client sends noised sums of clipped gradients; what each client does, and what is charged for it.

van Dijk and Nguyen 2023, Algorithm 1. Each round of a client is one release with the client's own noise, so its
certificate follows from its own settings: neither the network, nor the server, nor what other clients do enters it.
Page: dpsgd.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

from fedveil.account.compare import account_for
from fedveil.account.grid import Grid
from fedveil.algorithms.adaptive_clip import AdaptiveClip, adaptive_of
from fedveil.algorithms.base import EveryModelSeen
from fedveil.algorithms.choosing import Choice, choice_of
from fedveil.algorithms.correlation import Correlation, Rows
from fedveil.algorithms.dpsgd.client_settings import (
    DEALT,
    DRAWN,
    ClientSettings,
    Clipping,
    Sampling,
    check_picks,
    checked_stops,
    checked_weights,
)
from fedveil.algorithms.dpsgd.correlated import charged_together, check_correlation, correlation_in
from fedveil.algorithms.dpsgd.deep import check_deep
from fedveil.algorithms.dpsgd.grids import grid_cost
from fedveil.algorithms.dpsgd.lengths import mean_noise, most_rows
from fedveil.algorithms.dpsgd.network import Network
from fedveil.algorithms.dpsgd.reach import usual_radius
from fedveil.algorithms.dpsgd.segments import charged, check_choice, most_rounds, within_budget
from fedveil.algorithms.dpsgd.words import assumption_rows, fact_rows
from fedveil.algorithms.noise_shares import check_cohorts
from fedveil.algorithms.optimiser import Optimiser, check_average, optimiser_of
from fedveil.algorithms.settings import ADAPTIVE, CompressionKind
from fedveil.algorithms.setup import Setup
from fedveil.algorithms.share_words import Row
from fedveil.checks import require
from fedveil.guarantee import Adversary, Answer
from fedveil.mechanism import Gaussian, Mechanism, with_beside
from fedveil.tables import filled, known
from fedveil.target import Target
from fedveil.values import Indices, number, whole

MOST_MESSAGES = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd(EveryModelSeen):
    """``client_settings``: one for all clients, or one for each; ``weights``: how the server mixes their updates.

    No weights: in proportion to the clients' records. ``momentum`` and ``compression`` are applied to what is noised
    already; ``keep`` is the share of coordinates that are sent, ``levels`` the steps between zero and the largest.

    ``clip_quantile``, ``clip_rate``, ``clip_share``: see :class:`AdaptiveClip`; None, and then not written, where clips
    are fixed. An adaptive clip starts at the client's ``clip``. ``clip_limits``: for each of the client settings, the
    clip above which steps are shortened in proportion. ``segments``: ``client_settings`` are then consecutive segments
    of the rounds of every client, each with its own rate, clip, noise and steps. ``stops``: for each of the client
    settings, in how many rounds the client's records take part; in later rounds it sends noise alone. ``optimizer``,
    ``beta2``, ``weight_decay``: see :class:`Optimiser`. ``average``: a moving average of the models is released.
    ``correlation``: pattern and matrix of noise that is correlated over rounds, see :class:`Correlation`. ``choose``:
    the segments are candidates, of which a rule chooses within ``choose_budget`` (see :class:`Choice`).
    """

    client_settings: tuple[ClientSettings, ...]
    sampling: Sampling = "poisson"
    clipping: Clipping = "individual"
    momentum: float = 0.0
    compression: CompressionKind = "none"
    keep: float = 1.0
    levels: int = 127
    weights: tuple[float, ...] = ()
    network: Network = field(default_factory=Network)
    clip_quantile: float | None = None
    clip_rate: float | None = None
    clip_share: float | None = None
    clip_limits: tuple[float, ...] | None = None
    segments: bool | None = None
    stops: tuple[int, ...] | None = None
    optimizer: Literal["adam"] | None = None
    beta2: float | None = None
    weight_decay: float | None = None
    average: float | None = None
    correlation: Rows | None = None
    choose: str | None = None
    choose_gain: float | None = None
    choose_budget: float | None = None

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
        for name, choices in (("sampling", Sampling), ("clipping", Clipping), ("compression", CompressionKind)):
            words, value = get_args(choices), getattr(self, name)
            require(value in words, f"algorithm.{name}", f"be one of {', '.join(words)}", value)
        for name in ("momentum", "keep"):
            object.__setattr__(self, name, number(f"algorithm.{name}", getattr(self, name)))
        object.__setattr__(self, "levels", whole("algorithm.levels", self.levels))
        require(self.optimizer in (None, "adam"), "method.optimizer", "be adam or left out", self.optimizer)
        _ = self.optimiser
        check_average(self.average)
        require(0 < self.keep <= 1, "algorithm.keep", "lie in (0, 1]", self.keep, "It is a share of the coordinates.")
        require(1 <= self.levels <= 2**31, "algorithm.levels", "lie between 1 and 2**31", self.levels)
        object.__setattr__(self, "weights", checked_weights(self.weights))
        self._check_adaptive()
        plain = self.segments is None or (self.segments is True and self.clip_quantile is None)
        require(plain, "method.segments", "be true or left out, and go with fixed clips", self.segments)
        if self.stops is not None:
            stops = checked_stops(self.stops, self.client_settings, bool(self.segments))
            object.__setattr__(self, "stops", stops)
        check_correlation(self)
        if self.choice is not None:
            check_choice(self)

    def _check_adaptive(self) -> None:
        if adaptive_of(self.clip_quantile, self.clip_rate, self.clip_share) is None:
            require(self.clip_limits is None, "method.clip_limits", "go with an adaptive clip", self.clip_limits)
            return
        hint = "A batch's mean is one norm: there is nothing to count."
        each = self.clipping == "individual"
        require(each, "algorithm.clip", "be a number with batch clipping", ADAPTIVE, hint)
        given: Any = self.clip_limits
        require(isinstance(given, list | tuple), "method.clip_limits", "be a list of numbers", given)
        limits = tuple(number("method.clip_limits", value) for value in given)
        fits = len(limits) == len(self.client_settings) and all(0 < value < math.inf for value in limits)
        require(fits, "method.clip_limits", "hold one positive number for each of the client settings", limits)
        object.__setattr__(self, "clip_limits", limits)

    @property
    def correlated(self) -> Correlation | None:
        """How the noise is correlated over rounds; None if it is independent."""
        return correlation_in(self)

    @property
    def classes(self) -> int:
        """Among how many classes of records rounds take turns: one, unless noise is correlated."""
        return 1 if (found := correlation_in(self)) is None else found.separation

    @property
    def adaptive(self) -> AdaptiveClip | None:
        """The rule by which clips follow the norms; None if they are fixed."""
        return adaptive_of(self.clip_quantile, self.clip_rate, self.clip_share)

    @property
    def choice(self) -> Choice | None:
        """The rule that chooses among the segments, and its budget; None if all of them are run."""
        return choice_of(self.choose, self.choose_gain, self.choose_budget)

    @property
    def optimiser(self) -> Optimiser:
        """What turns a client's noised sums into its steps."""
        return optimiser_of(self.optimizer, self.momentum, self.beta2, self.weight_decay)

    def scale(self, settings: ClientSettings) -> float:
        """Return the bound on a contribution in the units of the released sums: the clip, or 1 if it is adaptive."""
        return settings.clip if self.clip_quantile is None else 1.0

    def longest(self, index: int) -> float:
        """Return the largest clip that steps are not shortened for, for one of the client settings."""
        return self.client_settings[index].clip if self.clip_limits is None else self.clip_limits[index]

    def shorter(self, client: int, clip: float) -> float:
        """Return by what a client's step is multiplied at this clip: 1 unless an adaptive clip is beyond its limit."""
        return 1.0 if self.clip_limits is None else min(1.0, self.longest(self.place(client)) / clip)

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
        if self.stops is None:
            return parts
        return (replace(parts[0], rounds=self.stops[self.place(client)], step_size=1.0),)

    def uses_records(self, client: int, turn: int) -> bool:
        """Return whether a client's records take part in a round; otherwise it sends noise alone."""
        return self.stops is None or turn < self.stops[self.place(client)]

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
            fits = fits or (name == "client_settings" and self.segments is True)
            require(fits, f"algorithm.{name}", f"have one entry for each of {data.clients} clients", len(rows))
        hint = "What an adaptive clip would need is not proved for this loss."
        kind = setup.model.kind
        proved = kind not in ("poisson", "survival") or self.adaptive is None
        require(proved, "algorithm.clip", f"be a number for a {kind} model", ADAPTIVE, hint)
        if kind == "torch":
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

    def apart(self, kind: str) -> bool:
        """Whether every record's contribution is rounded on its own, so that it adds the same bits to any batch.

        ``kind``: of the model. What torch computes for a record may depend on the size of the batch and the record's
        place in it; where batches are dealt both are fixed, and otherwise records are rounded alone (docs/torch.md).
        """
        alone = self.sampling == "independent" or self.clip_quantile is not None
        alone = alone or (kind == "torch" and self.sampling not in DEALT)
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
        if self.clip_quantile is not None or self.choice is not None:
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

    def assumptions(self, adversary: Adversary, setup: Setup) -> Sequence[Row]:
        """Return the assumptions: what every client does to each of its updates before it sends it."""
        return assumption_rows(self, adversary, setup)

    def facts(self, setup: Setup) -> Sequence[tuple[str, str]]:
        """Return facts about sampling, rounds and noise."""
        return fact_rows(self)

    def table(self) -> dict[str, Any]:
        """Return client settings as parallel lists, and the network as a table of its own."""
        own: dict[str, Any] = {
            f.name: [getattr(p, f.name) for p in self.client_settings] for f in fields(ClientSettings)
        }
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("client_settings", "network")}
        return {**own, **rest, "network": {f.name: getattr(self.network, f.name) for f in fields(Network)}}

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
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in left.items()}
        network = filled(Network, values.pop("network", {}), "method.network")
        return cls(client_settings=client_settings, network=network, **values)


@lru_cache(maxsize=256)
def _answer(mechanism: Mechanism, delta: float) -> Answer:
    found = account_for(mechanism, delta=delta)
    why = "every noised update of the client is seen, by any observer"
    return replace(found, bounds=tuple(replace(bound, reason=f"{bound.reason}; {why}") for bound in found.bounds))


METHOD = DpSgd
TITLE = "noisy clipped gradient steps (DP-SGD)"

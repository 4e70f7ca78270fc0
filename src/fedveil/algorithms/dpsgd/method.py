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

import numpy as np

from fedveil.account.compare import account_for
from fedveil.account.grid import Grid
from fedveil.algorithms.base import EveryModelSeen
from fedveil.algorithms.dpsgd.client_settings import DRAWN, ClientSettings, Clipping, Sampling
from fedveil.algorithms.dpsgd.network import Network
from fedveil.algorithms.noise_shares import check_cohorts
from fedveil.algorithms.share_words import Row, answer_row, holder_rows, site_row, sums_row
from fedveil.checks import require
from fedveil.data.records import DataShape
from fedveil.guarantee import Adversary, Answer
from fedveil.mechanism import Gaussian, Mechanism, with_beside
from fedveil.model.rounding import UNIT, rounding_bound
from fedveil.model.spec import ModelPlan
from fedveil.tables import known
from fedveil.target import Target
from fedveil.theory.crowds import most_joined
from fedveil.theory.grid import SAMPLER_DISTANCE
from fedveil.trust import CENTRAL, Trust
from fedveil.values import Indices, number, whole

Compression = Literal["none", "random-k", "top-k", "quantised", "rotated"]

MOST_MESSAGES = 20_000_000
_ROUNDINGS = 60  # of a mean and its norm, beside those of the gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgd(EveryModelSeen):
    """``client_settings``: one for all clients, or one for each; ``weights``: how the server mixes their updates.

    No weights: in proportion to the clients' records. ``momentum`` and ``compression`` are applied to what is noised
    already; ``keep`` is the share of coordinates that are sent, ``levels`` the steps between zero and the largest.
    """

    client_settings: tuple[ClientSettings, ...]
    sampling: Sampling = "poisson"
    clipping: Clipping = "individual"
    momentum: float = 0.0
    compression: Compression = "none"
    keep: float = 1.0
    levels: int = 127
    weights: tuple[float, ...] = ()
    network: Network = field(default_factory=Network)

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
        for name, choices in (("sampling", Sampling), ("clipping", Clipping), ("compression", Compression)):
            words, value = get_args(choices), getattr(self, name)
            require(value in words, f"algorithm.{name}", f"be one of {', '.join(words)}", value)
        for name in ("momentum", "keep"):
            object.__setattr__(self, name, number(f"algorithm.{name}", getattr(self, name)))
        object.__setattr__(self, "levels", whole("algorithm.levels", self.levels))
        require(0 <= self.momentum < 1, "algorithm.momentum", "lie in [0, 1)", self.momentum)
        require(0 < self.keep <= 1, "algorithm.keep", "lie in (0, 1]", self.keep, "It is a share of the coordinates.")
        require(1 <= self.levels <= 2**31, "algorithm.levels", "lie between 1 and 2**31", self.levels)
        object.__setattr__(self, "weights", _weights(self.weights))

    @property
    def total(self) -> int:
        """Number of rounds of the client that has most."""
        return max(settings.rounds for settings in self.client_settings)

    def settings(self, client: int) -> ClientSettings:
        """Return the settings of a client, counted from 0."""
        return self.client_settings[client if len(self.client_settings) > 1 else 0]

    def check(self, data: DataShape, model: ModelPlan, target: Target) -> None:
        """Refuse unless records are protected and every client has settings and batches that exist."""
        hint = 'Use kind = "fedavg" to protect whole clients.'
        require(target.unit == "record", "privacy.unit", "be record for dpsgd", target.unit, hint)
        for name, rows in (
            ("client_settings", self.client_settings),
            ("weights", self.weights),
            ("speeds", self.network.speeds),
        ):
            fits = len(rows) == data.clients or len(rows) == (1 if name == "client_settings" else 0)
            require(fits, f"algorithm.{name}", f"have one entry for each of {data.clients} clients", len(rows))
        # What torch computes for a record may depend, in its last bits, on the size of the batch and the record's place
        # in it; a sampled batch would tell by that who else was drawn. A shuffle fixes both.
        fixed = model.kind != "torch" or self.sampling == "shuffled"
        require(fixed, "algorithm.sampling", "be shuffled for a torch model", self.sampling, "Or use hidden training.")
        if self.sampling == "independent":
            for settings in dict.fromkeys(self.client_settings):
                rule = "be one over the rounds of a pass for independent sampling"
                require(settings.rate == 1 / settings.batches_a_pass, "algorithm.rate", rule, settings.rate)
                check_picks(settings.batches_a_pass, data)
        elif self.sampling != "poisson":
            least = min(settings.size(data.smallest_client) for settings in self.client_settings)
            hint = "Raise the rate, or sample with poisson."
            require(least >= 1, "algorithm.rate", "give every client a batch of at least one record", least, hint)
        sent = self.total * data.clients
        hint = 'If one party holds all records, say [clients] kind = "equal", count = 1.'
        require(sent <= MOST_MESSAGES, "Rounds times clients", f"be at most {MOST_MESSAGES}", sent, hint)

    @property
    def apart(self) -> bool:
        """Whether every record's contribution is rounded on its own, so that it adds the same bits to any batch."""
        return self.sampling == "independent" and self.clipping == "individual"

    @property
    def waits(self) -> bool:
        """True unless the network has delays or losses; then clients do not wait for each other."""
        return self.network.together

    @property
    def window(self) -> int:
        """The number of rounds that the server mixes at once."""
        return int(self.network.window)

    def check_shares(self, trust: Trust, exponent: int, data: DataShape, model: ModelPlan, target: Target) -> None:
        """Only windows that wait for everybody can be added up by a server that may not look.

        No update needs another's noise. With patience the real network decides who is late, so none is simulated.
        """
        check_cohorts(self.cohorts(data, target), trust)
        if trust.server == "trusted" and trust.patience is None:
            return
        hint = "Leave delay, loss, jitter and speeds out and take a whole window."
        if trust.patience is None:
            hint = f'{hint[:-1]}, or set trust.server = "trusted".'
        setting = trust.server if trust.patience is None else "patience"
        rule = f"go with clients that wait for each other ({setting})"
        require(self.network.together, "[trust]", rule, "others", hint)

    def traffic(self, data: DataShape, target: Target, trust: Trust, together: bool) -> tuple[int, int, int]:
        """Return the traffic: one update per client and round; if windows are added up, one per window."""
        width = self.window if trust.shared and self.waits else 1
        rounds = [math.ceil(self.settings(client).rounds / width) for client in range(data.clients)]
        return sum(rounds), max(rounds), data.clients

    def average_noise(self, sizes: Indices, data: DataShape, target: Target, trust: Trust) -> float | None:
        """Return the noise of the server's mix of the clients' means."""
        weights = self.weights or (sizes / data.records).tolist()
        return math.hypot(*(w * self._mean_noise(k, int(sizes[k])) for k, w in enumerate(weights)))

    def _mean_noise(self, client: int, records: int) -> float:
        settings = self.settings(client)
        whole = settings.noise * settings.clip
        return whole if self.clipping == "batch" else whole / self.divisor(settings, records)

    def cohorts(self, data: DataShape, target: Target) -> Sequence[int]:
        """Return the number of clients that still have rounds left, for each round."""
        rounds = [self.settings(client).rounds for client in range(data.clients)]
        return [sum(turn < own for own in rounds) for turn in range(self.total)]

    def answer(
        self,
        adversary: Adversary,
        data: DataShape,
        target: Target,
        delta: float,
        trust: Trust = CENTRAL,
        beside: Gaussian | None = None,
    ) -> Answer:
        """Return the guarantee of the worst client; no observer sees more than all noised updates."""
        charges = (with_beside(m, beside) for m in self._charges(target))
        return max((_answer(m, delta) for m in charges), key=lambda found: found.epsilon)

    def clients(self, delta: float, target: Target, count: int | None = None) -> list[tuple[int, float]]:
        """Return each client's own epsilon; ``count``: the number of clients if all share one settings."""
        count = len(self.client_settings) if count is None else count
        rows = [
            self.settings(client).charged(self.sampling, self.clipping, target.neighbours) for client in range(count)
        ]
        return [(client, _answer(row, delta).epsilon) for client, row in enumerate(rows)]

    def _charges(self, target: Target) -> list[Mechanism]:
        rows = (settings.charged(self.sampling, self.clipping, target.neighbours) for settings in self.client_settings)
        return list(dict.fromkeys(rows))

    def radius(self, data: DataShape, model: ModelPlan) -> float:
        """Return the stated radius, or one too large to matter, since descent goes no farther than sqrt(2 steps *
        loss).
        """
        if model.radius is not None:
            return model.radius
        most, size = 1.0, model.loss.size(data.features)
        for settings in set(self.client_settings):
            planned = 1.0 if self.clipping == "batch" else self.divisor(settings, data.smallest_client)
            steps = np.array([settings.step(turn) for turn in range(settings.rounds)]) / (1 - self.momentum)
            walk = settings.noise * settings.clip / planned * math.sqrt(size * float(steps @ steps))
            way = math.sqrt(2 * float(steps.sum()) * math.log(max(data.classes, 3)))
            most = max(most, 2 * way + 4 * walk)
        return float(2.0 ** math.ceil(math.log2(most)))

    def divisor(self, settings: ClientSettings, records: int) -> float:
        """Return the planned size of a batch, whatever its actual size."""
        return settings.rate * records if self.sampling in DRAWN else float(settings.size(records))

    def grid(
        self,
        exponent: int,
        adversary: Adversary,
        data: DataShape,
        model: ModelPlan,
        target: Target,
        trust: Trust = CENTRAL,
    ) -> Grid:
        """Return the cost of the grid for the worst client: every release is rounded to the grid before its noise."""
        found = []
        for settings in dict.fromkeys(self.client_settings):
            noise = np.full(settings.rounds, settings.noise * settings.clip)
            grid = Grid.of(
                exponent=exponent,
                dimension=model.loss.size(data.features),
                noise=noise,
                lipschitz=np.zeros_like(noise),
                errors=np.full_like(noise, self._float_error(settings, data, model, exponent)),
            )
            found.append(replace(grid, total_variation=min(1.0, grid.total_variation + self._overfull(settings))))
        worst = max(found, key=lambda grid: grid.distance)
        return replace(worst, total_variation=max(grid.total_variation for grid in found))

    def most_rows(self, settings: ClientSettings, records: int) -> int:
        """Return a size that a batch of such a client exceeds with a chance of at most 2**-100 a round (Bernstein)."""
        if self.sampling not in DRAWN:
            return settings.size(records)
        return most_joined(settings.rate, records)

    def _overfull(self, settings: ClientSettings) -> float:
        return settings.rounds * SAMPLER_DISTANCE if self.sampling in DRAWN else 0.0

    def _float_error(self, settings: ClientSettings, data: DataShape, model: ModelPlan, exponent: int) -> float:
        """Return how far the computed sum (or clipped mean) is from the exact one.

        Where records are rounded on their own, only the victim's contribution is compared with one within its clip:
        the others' are what they are, the same on both data sets (docs/dpsgd.md).
        """
        rows = 1 if self.apart else self.most_rows(settings, data.largest_client)
        raw = model.loss.constants(data.bound, settings.clip if self.clipping == "individual" else None)
        mean = rounding_bound(
            rows=rows,
            features=data.features,
            lipschitz=raw.lipschitz,
            smoothness=raw.smoothness,
            radius=self.radius(data, model),
            outputs=model.loss.outputs,
        )
        if self.apart:
            half = 0.5 * math.sqrt(model.loss.size(data.features)) * 2.0**exponent
            return mean + _ROUNDINGS * UNIT * raw.lipschitz + half
        if self.clipping == "individual":
            return rows * (mean + _ROUNDINGS * UNIT * raw.lipschitz)
        least = data.smallest_client  # there a batch exceeds the planned divisor most
        ratio = self.most_rows(settings, least) / self.divisor(settings, least)
        own = (_ROUNDINGS + model.loss.size(data.features)) * UNIT
        return ratio * (mean + own * raw.lipschitz) + own * settings.clip

    def assumptions(
        self, adversary: Adversary, data: DataShape, model: ModelPlan, target: Target, trust: Trust = CENTRAL
    ) -> Sequence[Row]:
        """Return the assumptions: what every client does to each of its updates before it sends it."""
        what = "every record's gradient" if self.clipping == "individual" else "the mean gradient of every batch"
        how = {
            "poisson": "every record joins each batch by a coin of its own, which nobody learns",
            "fixed-size": "every batch is drawn uniformly among all of its size, and nobody learns it",
            "shuffled": "every record is used at most once a pass: one release is charged for each pass",
            "independent": "every record picks one round of each pass by a draw of its own, which nobody learns",
        }[self.sampling]
        client_settings = self.client_settings
        return [
            ("clipping norm", _span([p.clip for p in client_settings]), f"{what} is clipped to it at its client"),
            ("sampling rate", _span([p.rate for p in client_settings]), how),
            ("fixed divisor", "rate times records", "never the number of records that a batch turned out to have"),
            (
                "noise over clipping norm",
                _span([p.noise for p in client_settings]),
                "added at the client to every update",
            ),
            ("rounds of a client", _span([float(p.rounds) for p in client_settings]), "all are charged, lost ones too"),
            ("the network", "not part of it", "its delays and losses do not depend on the data: declared"),
            *self._taking_part(trust),
            *self._window_rows(adversary, data, target, trust),
        ]

    def _taking_part(self, trust: Trust) -> list[Row]:
        """Why nobody learns the draws from who takes part: all clients do, whatever their records picked."""
        if self.sampling != "independent":
            return []
        how = "a client whose batch is empty sends its noise like any other, so not even a server that sees single "
        how += "updates learns the draws: they count in favour of every row of this certificate"
        rows = [("every client takes part in each of its rounds", "with an empty batch if need be", how)]
        if trust.shared and trust.dropouts:
            why = "declared: who is missing depends on no record and on no draw"
            rows.append(("clients are missing by chance", f"at most {trust.dropouts} a round", why))
        return rows

    def _window_rows(self, adversary: Adversary, data: DataShape, target: Target, trust: Trust) -> list[Row]:
        """Return what a stated trust adds if windows wait for all clients; otherwise nothing is added up."""
        if not trust.shared or not self.network.together:
            return []
        rows = [answer_row(trust, sorted(set(self.cohorts(data, target))))]
        if adversary == "server-with-secure-aggregation":
            rows.append(sums_row(trust))
        rows += holder_rows(adversary, trust)
        return [*rows, site_row(trust)] if adversary == "curious-client" else rows

    def facts(self, data: DataShape, target: Target) -> Sequence[tuple[str, str]]:
        """Return facts about sampling, rounds and noise."""
        client_settings = self.client_settings
        return [
            ("sampling", f"{self.sampling}, rate {_span([p.rate for p in client_settings])}"),
            ("clipping", f"{self.clipping}, norm {_span([p.clip for p in client_settings])}"),
            ("rounds of a client", _span([float(p.rounds) for p in client_settings])),
            ("noise over clipping norm", _span([p.noise for p in client_settings])),
            ("step", _span([p.step(turn) for p in client_settings for turn in (0, p.rounds - 1)])),
            ("sent", "every update, noised at its client" + _shrunk(self)),
        ]

    def table(self) -> dict[str, Any]:
        """Return client settings as parallel lists, with the network's values beside them."""
        own: dict[str, Any] = {
            f.name: [getattr(p, f.name) for p in self.client_settings] for f in fields(ClientSettings)
        }
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("client_settings", "network")}
        return {**own, **rest, **{f.name: getattr(self.network, f.name) for f in fields(Network)}}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "DpSgd":
        """Read the table that :meth:`table` writes."""
        own, shared = [f.name for f in fields(ClientSettings)], [f.name for f in fields(Network)]
        rest = [f.name for f in fields(cls) if f.name not in ("client_settings", "network")]
        known(table, [*own, *rest, *shared], "[method]")
        lists = [table.get(name) for name in own]
        right = all(isinstance(row, list) and len(row) == len(lists[0] or ()) for row in lists)
        require(right, "[method]", f"give {', '.join(own)} of every settings, as lists of one length", lists)
        client_settings = tuple(ClientSettings(**dict(zip(own, row, strict=True))) for row in zip(*lists, strict=True))
        left = {key: value for key, value in table.items() if key not in own}
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in left.items()}
        network = Network(**{key: values.pop(key) for key in shared if key in values})
        return cls(client_settings=client_settings, network=network, **values)


@lru_cache(maxsize=256)
def _answer(mechanism: Mechanism, delta: float) -> Answer:
    found = account_for(mechanism, delta=delta)
    why = "every noised update of the client is seen, by any observer"
    return replace(found, bounds=tuple(replace(bound, reason=f"{bound.reason}; {why}") for bound in found.bounds))


def check_picks(rounds: int, data: DataShape) -> None:
    """Refuse passes of more rounds than some client has records: it would often have nothing but noise to send."""
    hint = "Take fewer rounds a pass, or sample with poisson."
    rule = f"be at most the {data.smallest_client} records of the smallest client for independent sampling"
    require(rounds <= data.smallest_client, "schedule.rounds", rule, rounds, hint)


def _weights(given: Any) -> tuple[float, ...]:
    require(isinstance(given, list | tuple), "algorithm.weights", "be a list of numbers", given)
    weights = tuple(number("algorithm.weights", value) for value in given)
    require(all(0 <= w < math.inf for w in weights), "algorithm.weights", "be non-negative", list(weights))
    whole_sum = not weights or abs(math.fsum(weights) - 1) <= 1e-9
    require(whole_sum, "algorithm.weights", "sum to 1", math.fsum(weights))
    return weights


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def _shrunk(method: DpSgd) -> str:
    match method.compression:
        case "none":
            return ""
        case "quantised":
            return f", then rounded to {method.levels} levels"
        case "rotated":
            return f", then rotated and rounded to {method.levels} levels"
        case _:
            return f", then {method.compression} with {method.keep:.0%} kept"


METHOD = DpSgd
TITLE = "noisy clipped gradient steps (DP-SGD)"

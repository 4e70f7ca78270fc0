"""The rounds of DP-SGD: which client does what in which of them. What they cost: fedveil.stages.train.dpsgd.cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

from fedveil.accounting.calibrate import costs_of
from fedveil.models.spec import ModelPlan
from fedveil.stages.train.adaptive_clip import FIXED_CLIP, AdaptiveClip, FixedClip
from fedveil.stages.train.base import EveryModelSeen, Setup
from fedveil.stages.train.correlation import INDEPENDENT_NOISE, Correlation, Independent
from fedveil.stages.train.dpsgd.settings import DEALT, DRAWN, ClientSettings, Clipping, Network, Sampling
from fedveil.stages.train.optimiser import Optimiser
from fedveil.stages.train.settings import IN_ORDER, Choice, CompressionRequest, InOrder, most


@dataclass(frozen=True, slots=True, kw_only=True)
class DpSgdRounds(EveryModelSeen):
    """``client_settings``: one for all clients, or one for each; ``weights``: how the server mixes their updates.

    No weights: in proportion to the clients' records. ``optimiser`` and ``compression`` are applied to what is noised
    already. ``average``: a moving average of the models is released, in which the past has this weight.

    ``adaptive``: the rule by which clips follow the norms, beginning at the client's ``clip``; empty if they are fixed.
    ``clip_limits``: for each of the client settings, the clip above which steps are shortened in proportion.
    ``segments``: ``client_settings`` are then consecutive segments of the rounds of every client, each with its own
    rate, clip, noise and steps; with a ``choice`` they are candidates, of which a rule chooses within a budget.
    ``stops``: for each of the client settings, in how many rounds the client's records take part; in later rounds it
    sends noise alone. ``correlated``: how the noise is correlated over rounds; empty if it is independent.
    """

    client_settings: tuple[ClientSettings, ...]
    sampling: Sampling = "poisson"
    clipping: Clipping = "individual"
    weights: tuple[float, ...] = ()
    network: Network = field(default_factory=Network)
    compression: CompressionRequest = field(default_factory=CompressionRequest)
    optimiser: Optimiser = field(default_factory=Optimiser)
    average: float | None = None
    adaptive: AdaptiveClip | FixedClip = FIXED_CLIP
    clip_limits: tuple[float, ...] = ()
    segments: bool = False
    choice: Choice | InOrder = IN_ORDER
    stops: tuple[int, ...] = ()
    correlated: Correlation | Independent = INDEPENDENT_NOISE

    @property
    def classes(self) -> int:
        """Among how many classes of records rounds take turns: one, unless noise is correlated."""
        return self.correlated.separation

    @property
    def chooses(self) -> bool:
        """True if a rule chooses among the segments."""
        return bool(self.choice)

    def scale(self, settings: ClientSettings) -> float:
        """Return the bound on a contribution in the units of the released sums: the clip, or 1 if it is adaptive."""
        return self.adaptive.unit(settings.clip)

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

    def local(self, setup: Setup) -> bool:
        """Whether every client's update carries all of its noise: by the trust, or because there is no other client."""
        return setup.trust.noise == "local" or setup.data.clients == 1

    def asked(self, setup: Setup) -> int:
        """Return how many clients are asked in a window."""
        return self.network.participants or setup.data.clients

    @property
    def total(self) -> int:
        """Number of rounds of the client that has most."""
        return max(self.rounds_of(client) for client in range(len(self.client_settings)))

    def rounds_of(self, client: int) -> int:
        """Return the number of rounds of a client, in all segments; the most that a rule can choose, if one chooses."""
        if self.choice:
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
        return turn < self.rounds_of(client) and (not self.stops or turn < self.stops[self.place(client)])

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

    @property
    def lead(self) -> int:
        """A client that has as many rounds as any: where clients share one noise, the server steps by its settings."""
        return max(range(len(self.client_settings)), key=lambda k: self.client_settings[k].rounds) if self._each else 0

    @property
    def _each(self) -> bool:
        """Whether every client has settings of its own."""
        return len(self.client_settings) > 1 and not self.segments

    @property
    def starts(self) -> list[int]:
        """For every round the first one of its segment."""
        if not self.segments or self.choice:
            return [0] * self.total
        firsts, first = list[int](), 0
        for settings in self.client_settings:
            firsts += [first] * settings.rounds
            first += settings.rounds
        return firsts

    def place(self, client: int) -> int:
        """Return the place of a client's settings among ``client_settings``."""
        return client if self._each else 0

    def apart(self, model: ModelPlan) -> bool:
        """Whether every record's contribution is rounded on its own, so that it adds the same bits to any batch.

        What torch computes for a record may depend on the size of the batch and the record's place in it; where batches
        are dealt both are fixed, and otherwise records are rounded alone (docs/torch.md).
        """
        alone = self.sampling == "independent" or bool(self.adaptive)
        alone = alone or (not model.linear and self.sampling not in DEALT)
        return alone and self.clipping == "individual"

    @property
    def waits(self) -> bool:
        """True unless the network has delays or losses; then clients do not wait for each other."""
        return self.network.together

    @property
    def window(self) -> int:
        """The number of rounds that the server mixes at once: one where clients do not wait for each other."""
        return int(self.network.window) if self.network.together else 1

    def divisor(self, settings: ClientSettings, records: int) -> float:
        """Return the planned size of a batch, whatever its actual size."""
        return settings.rate * records if self.sampling in (*DRAWN, "cyclic") else float(settings.size(records))


def costs_of_segments(method: DpSgdRounds) -> tuple[Fraction, ...]:
    """Return what each candidate takes of the budget, which is the same for all neighbours."""
    return costs_of([p.charged(method.sampling, method.clipping, "replace-one") for p in method.client_settings])


def most_rounds(method: DpSgdRounds, budget: float) -> int:
    """Return how many rounds all chosen segments together can have at most."""
    rounds = [float(settings.rounds) for settings in method.client_settings]
    return max(1, math.floor(most(rounds, costs_of_segments(method), budget)))

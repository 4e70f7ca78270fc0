"""SimFL: no server; a rotating leader collects the parties' noised gradient sums, steps, and sends the model on.

Every party adds noise to its own sum before it leaves, and so does the leader. In the rounds it led, a party has seen
every other party's noised sum, and in the others the model. Page: docs/simfl.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedveil.accounting.compare import account_for
from fedveil.accounting.grid import Grid
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, number, whole
from fedveil.data.records import DataShape
from fedveil.models.rows import rounding_bound
from fedveil.privacy.guarantee import Adversary, Answer, Bound, Neighbours
from fedveil.privacy.mechanism import Compose, Gaussian, Mechanism, Repeat, SampledGaussian, with_beside
from fedveil.stages.train.base import EveryModelSeen, Setup, Tabled

_MOST_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFL(Tabled, EveryModelSeen):
    """``noise_multiplier``: noise of one party's sum over ``clip``, the bound on a record's gradient.

    ``rate``: every record joins a round by its own secret coin; 1: all do. ``momentum`` is part of the leader's step.
    """

    rounds: int
    step_size: float
    momentum: float = 0.0
    rate: float = 1.0
    clip: float
    noise_multiplier: float

    kind: ClassVar[str] = "simfl"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", whole("simfl.rounds", self.rounds))
        for name in ("step_size", "momentum", "rate", "clip", "noise_multiplier"):
            object.__setattr__(self, name, number(f"simfl.{name}", getattr(self, name)))
        require(1 <= self.rounds <= _MOST_ROUNDS, "simfl.rounds", f"lie between 1 and {_MOST_ROUNDS}", self.rounds)
        for name in ("step_size", "clip", "noise_multiplier"):
            value = getattr(self, name)
            require(1e-9 <= value <= 1e9, f"simfl.{name}", "lie in [1e-9, 1e9]", value)
        require(0 <= self.momentum < 1, "simfl.momentum", "lie in [0, 1)", self.momentum)
        require(1e-9 <= self.rate <= 1, "simfl.rate", "lie in (0, 1]", self.rate, "Is it a batch size?")

    @property
    def total(self) -> int:
        """Number of rounds."""
        return self.rounds

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate of one party's sum."""
        return self.noise_multiplier * self.clip

    def leader(self, turn: int, parties: int) -> int:
        """Return who leads round ``turn`` (from 0).

        Parties lead in turn, so their numbers of leads differ by at most one.
        """
        return turn % parties

    def leads(self, party: int, parties: int) -> int:
        """Return how many rounds a party leads.

        >>> method = SimFL(rounds=7, step_size=1.0, clip=1.0, noise_multiplier=1.0)
        >>> [method.leads(party, 3) for party in range(3)]
        [3, 2, 2]
        """
        return self.rounds // parties + (party < self.rounds % parties)

    def divisor(self, data: DataShape) -> float:
        """Return what sums are divided by, however many records joined."""
        return self.rate * data.records

    def check(self, setup: Setup) -> None:
        """Refuse unless records are protected, the model enforces the clip, and there are several parties."""
        data, unit = setup.data, setup.target.unit
        hint = 'Set privacy.unit = "record", or use fedavg, which protects clients.'
        require(unit == "record", "privacy.unit", "be record for simfl", unit, hint)
        hint = "Say in [clients] who they are."
        require(data.clients >= 2, "clients", "be at least two for simfl, which has no server", data.clients, hint)
        least = setup.model.constants(data.bound).lipschitz
        require(self.clip >= least, "simfl.clip", f"be at least the gradient bound, {least}", self.clip)

    def seen_by(self, party: int, parties: int, neighbours: Neighbours) -> Mechanism:
        """Return what one party learns about a record of another.

        That party's sum, or all sums but its own added up.
        """
        alone, model = self.leads(party, parties), math.sqrt(parties - 1)
        parts = [self._use(1.0, alone, neighbours), self._use(model, self.rounds - alone, neighbours)]
        result = tuple(part for part in parts if part is not None)
        return result[0] if len(result) == 1 else Compose(parts=result)

    def mechanism(self, adversary: Adversary, parties: int, neighbours: Neighbours) -> Mechanism:
        """Return what an observer learns about a record; the curious client is the party that led most often."""
        match adversary:
            case "curious-client":
                return self.seen_by(0, parties, neighbours)
            case "server":  # there is no server: this is whoever carries the messages and reads all of them
                share = 1.0
            case _:  # models only, or sums only: the noise of all parties together
                share = math.sqrt(parties)
        result = self._use(share, self.rounds, neighbours)
        assert result is not None  # noqa: S101  there is at least one round
        return result

    def _use(self, share: float, times: int, neighbours: Neighbours) -> Mechanism | None:
        if times == 0:
            return None
        noise = self.noise_multiplier * share
        if self.rate == 1.0:
            return Repeat(of=Gaussian(noise_multiplier=noise, neighbours=neighbours), times=times)
        once = SampledGaussian(sampling="poisson", rate=self.rate, noise_multiplier=noise, neighbours=neighbours)
        return Repeat(of=once, times=times)

    @property
    def served(self) -> bool:
        """False: a rotating leader takes the place of a server."""
        return False

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Refuse any stated trust, since there is no server."""
        raise BadValue(f"[trust] must be left out for {self.kind}: it has no server to be trusted or not.")

    def traffic(self, setup: Setup, together: bool) -> tuple[int, int, int]:
        """Return the traffic: all parties but the leader send in every round."""
        return self.rounds * (setup.data.clients - 1), self.rounds, setup.data.clients

    def average_noise(self, sizes: Indices, setup: Setup) -> float | None:
        """Return the noise of all parties over the divisor."""
        return self.noise_std * math.sqrt(setup.data.clients) / self.divisor(setup.data)

    def cohorts(self, setup: Setup) -> Sequence[int]:
        """Return all parties, for every round."""
        return [setup.data.clients] * self.total

    def answer(self, adversary: Adversary, setup: Setup, delta: float, beside: Gaussian | None = None) -> Answer:
        """Compose over the rounds; against a curious party, also give the guarantee for each party's own view."""
        parties, neighbours = setup.data.clients, setup.target.neighbours
        seen = with_beside(self.mechanism(adversary, parties, neighbours), beside)
        result = account_for(seen, delta=delta)
        if adversary != "curious-client" or beside is not None:
            return result
        rows = [self._row(group, parties, neighbours, delta) for group in self.groups(parties)]
        return replace(result, bounds=(*result.bounds, *rows))

    def groups(self, parties: int) -> list[range]:
        """Return groups of parties that have seen equally much; those that led more often come first."""
        more = self.rounds % parties
        return [group for group in (range(more), range(more, parties)) if len(group)]

    def _row(self, group: range, parties: int, neighbours: Neighbours, delta: float) -> Bound:
        epsilon = account_for(self.seen_by(group[0], parties, neighbours), delta=delta).epsilon
        # A statement about these parties, not about the worst one, so it must not be used as the certificate.
        return Bound(name=named(group), status="comparison", reason=self.received(group[0], parties), epsilon=epsilon)

    def received(self, party: int, parties: int) -> str:
        """Return the messages that a party was sent, in words."""
        led = self.leads(party, parties)
        return (
            f"led {led} rounds and was sent {led * (parties - 1)} noised gradients of single parties; "
            f"was sent the model in the other {self.rounds - led} rounds"
        )

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return what the grid costs.

        Every party's sum is rounded once a round, and a sum of rounded normals is as good as a rounded normal.
        """
        parties = setup.data.clients
        once = Grid.of(
            exponent=exponent,
            dimension=setup.dimension,
            noise=np.full(self.rounds, self.noise_std / math.sqrt(parties)),
            lipschitz=np.zeros(self.rounds),
            errors=np.full(self.rounds, self._float_error(setup)),
        )
        return replace(once, total_variation=min(1.0, once.total_variation * parties))

    def _float_error(self, setup: Setup) -> float:
        """Return the float error of one party's sum."""
        data, model = setup.data, setup.model
        raw, rows = model.loss.constants(data.bound, model.clip), data.largest_client
        average = rounding_bound(
            rows=rows,
            features=data.features,
            lipschitz=max(raw.lipschitz, self.clip),
            smoothness=raw.smoothness,
            radius=self.radius(setup),
            outputs=model.loss.outputs,
        )
        return average * rows

    def radius(self, setup: Setup) -> float:
        """Return the stated radius, or one too large to be reached by steps and noise in practice."""
        if setup.model.radius is not None:
            return setup.model.radius
        data = setup.data
        noise = 10 * self.noise_std * math.sqrt(data.clients * setup.dimension)
        travel = self.step_size / (1 - self.momentum) * (data.records * self.clip + noise) / self.divisor(data)
        return 2.0 ** math.ceil(math.log2(self.rounds * travel))


def named(group: range) -> str:
    """Return the name of a group of parties, counted from 1."""
    return f"party {group[0] + 1}" if len(group) == 1 else f"parties {group[0] + 1} to {group[-1] + 1}"


METHOD = SimFL
TITLE = "rounds without a server, led by each client in turn (SimFL)"

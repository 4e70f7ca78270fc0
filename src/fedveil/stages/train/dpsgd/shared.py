"""DP-SGD under one noise for all clients: they send clipped sums of their batches, and the server makes every step.

The clients draw the noise in shares, or one party draws it (fedveil.stages.adding). What a client sends depends on the
model that it was sent, not on its own earlier noise: so the noise of every sum is fresh, whoever else is in it. All
that follows the noisy sum (optimiser, clip, average) is the server's. Proof: docs/theory/noise-shares.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.noise.correlated import CorrelatedNoise
from fedveil.noise.entropy import Entropy
from fedveil.noise.grid import rounded_normal
from fedveil.stages.adding import LARGEST_PART, Noising
from fedveil.stages.noise_shares import share_deviation
from fedveil.stages.protocol import LOOSE, TAIL, Away, Consortium, Memory, State, Total, needed_row, nobody
from fedveil.stages.train.adaptive_clip import no_belief
from fedveil.stages.train.base import Training
from fedveil.stages.train.dpsgd.client import ClientSums
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.mixing import factor_of, in_window, mixture, window_noise
from fedveil.stages.train.dpsgd.steps import dpsgd_of, records_by_client, released
from fedveil.stages.train.optimiser import advance, begin, decayed, from_row, heading, project, row_length, to_row
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused


@final
@dataclass(eq=False)
class SharedAnswering:
    """Where records are: each client's sums of a window in whole grid steps. ``numbers``: its clients in the study."""

    stage: Training
    records: Records
    numbers: tuple[int, ...]
    entropy: Entropy

    def __post_init__(self) -> None:
        self.method = dpsgd_of(self.stage)
        parts = records_by_client(self.records)
        self.clients = [
            ClientSums(self.stage, self.method, index, *rows, self.entropy)
            for index, rows in zip(self.numbers, parts, strict=True)
        ]

    @property
    def dropped(self) -> int:
        """How many records had a gradient that is no finite number."""
        return sum(client.dropped for client in self.clients)

    @dropped.setter
    def dropped(self, count: int) -> None:
        self.clients[0].dropped = count  # only the sum over all clients is ever shown

    @property
    def memory(self) -> Memory:
        """Nothing: what a client sends follows from its key, its records and the model that it is sent."""
        return ()

    def recall(self, turn: int, memory: Memory) -> None:
        """Count again who took part before a window."""
        for client in self.clients:
            client.attend_again(turn * self.method.window)

    def choose(self, method: DpSgd) -> None:
        """Go on with these segments, of which the first ones were run already."""
        self.method = method
        for client in self.clients:
            client.method = method

    def whole(self, turn: int, asked: Content) -> Whole:
        """Return the sum of all clients' sums."""
        parts = self.parts(turn, asked)
        return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.int64)

    def parts(self, turn: int, asked: Content, away: Away = nobody) -> dict[int, Whole]:
        """Return every client's sums of this window."""
        width = self.method.window
        turns = range(turn * width, min((turn + 1) * width, self.method.total))
        if turn < 0 or not len(turns):
            raise Refused("no-such-round")
        return {client.index: self.part(client, asked, turns) for client in self.clients if not away(client.index)}

    def part(self, client: ClientSums, asked: Content, turns: range) -> Whole:
        """Return a client's sums of these rounds, at the model of the question; cut so that no sum exceeds 64 bits."""
        model, unit, setup = needed_row(asked, "model", self.stage.dimension), 2.0**self.stage.grid, self.stage.setup
        total = np.zeros(self.stage.sum_length)
        for turn, share in zip(turns, in_window(self.method, setup, turns), strict=True):
            client.enter(turn)
            if self.method.adaptive:
                clip = float(needed_row(asked, "clip", 1)[0])
                if not 0 < clip < 1e300:
                    raise Refused("wrong-shape")
                total += client.sum_in_clips(self.method.adaptive, clip, model, turn)
                continue
            factor = share * factor_of(self.method, setup, client.index, client.targets.size, turn)
            rows = client.batch_sum(model, turn)
            total += np.rint((rows if factor == 1.0 else rows * factor) / unit)
        most = min(LARGEST_PART, 2**61 // self.stage.data.clients)
        return np.clip(total, -most, most).astype(np.int64)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SharedAsking:
    """Where sums are known. The row of a state is the model; the moving average of the models, if that is released;
    what the optimiser keeps; and the belief about norms and the present clip, if that is adaptive.
    """

    stage: Training
    method: DpSgd
    members: Consortium

    @classmethod
    def make(cls, stage: Training, members: Consortium, entropy: Entropy) -> SharedAsking:
        """Set up the server, which draws nothing."""
        return cls(stage, dpsgd_of(stage), members)

    @property
    def last(self) -> int:
        """Number of windows."""
        return -(-self.method.total // self.method.window)

    def start(self) -> State:
        """Return a model of zeros, at the first clip."""
        size = self.stage.dimension
        rows = [np.zeros(size * (1 if self.method.average is None else 2)), to_row(begin(self.method.optimiser, size))]
        if self.method.adaptive:
            rows += [no_belief(), np.array([self.method.client_settings[0].clip])]
        return State(0, np.concatenate(rows))

    def model(self, state: State) -> Vector:
        """Return the model, or the average of all so far if that is released."""
        size = self.stage.dimension
        return state.row[:size] if self.method.average is None else state.row[size : 2 * size]

    def proposal(self, site: str) -> dict[str, Indices]:
        """Return the numbers of the site's clients."""
        return {"numbers": self.members.members[site].clients}

    def question(self, state: State, site: str | None = None) -> Content | None:
        """Return the model, and an adaptive clip."""
        rows = {"model": state.row[: self.stage.dimension]}
        if self.method.adaptive:
            rows["clip"] = state.row[-1:]
        return Content(rows=rows)

    def clients(self, turn: int, site: str) -> set[int]:
        """Return all clients of a site, while there are rounds left."""
        return set(self.members.members[site].clients.tolist()) if turn < self.last else set()

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Return the limit from clipped sums, the clients' noise, and rounding."""
        stage, size, unit = self.stage, self.stage.sum_length, 2.0**self.stage.grid
        first = min(turn * self.method.window, self.method.total - 1)
        bound = len(clients) * self.method.longest_sum(stage.setup) * mixture(self.method, stage.setup, first).clip
        noise = sqrt(len(clients)) * share_steps(stage, self.method, turn) * (sqrt(size) + TAIL)
        return ceil((bound / unit + noise) * LOOSE + 2 * len(clients) * self.method.window * sqrt(size))

    def advance(self, state: State, total: Total) -> State:
        """Return the state after one more window: the server's step along the noisy mean."""
        method, size = self.method, self.stage.dimension
        turns = self._turns(state.round)
        settings = method.settings(method.lead, turns[0])
        model, kept = state.row[:size], state.row[size if method.average is None else 2 * size :]
        end = row_length(method.optimiser, size)
        noised, clip = total.steps * 2.0**self.stage.grid, settings.clip
        mean, later = noised * mixture(method, self.stage.setup, turns[0]).pull, kept[end:]
        if rule := method.adaptive:
            clip = float(later[-1])
            batch, noise = len(turns) * settings.rate * self.stage.data.records, sqrt(len(turns)) * settings.noise
            mean = mean[:-1] * (clip / rule.of_sum)
            done = (turns[-1] + 1) / settings.rounds
            after, belief = rule.next_clip(
                clip, later[:-1], start=settings.clip, noise=noise, votes=float(noised[-1]), batch=batch, done=done
            )
            later = np.concatenate([belief, [after]])
        pull = method.shorter(method.lead, clip) * (mean + len(turns) * self.stage.model.l2 * model)
        memory = advance(method.optimiser, from_row(method.optimiser, kept[:end]), pull)
        toward = decayed(method.optimiser, heading(method.optimiser, memory), model + self._begun())
        step = float(np.mean([self._step(turn) for turn in turns])) * method.network.step(state.round)
        model = project(model - step * toward, self.stage.radius)
        rows = [model, to_row(memory), later]
        if method.average is not None:
            rows.insert(1, released(method, self.model(state), model, state.round + 1))
        return State(state.round + 1, np.concatenate(rows))

    def _step(self, turn: int) -> float:
        lead = self.method.lead
        return self.method.settings(lead, turn).step(turn - self.method.segment(lead, turn)[1])

    def _turns(self, window: int) -> range:
        """Return the rounds of a window; where some clients are asked in each, as many windows make up a round."""
        part = self.method.asked(self.stage.setup) / self.stage.data.clients
        return _rounds(self.method, int(window * part))

    def _begun(self) -> Vector | float:
        decays = self.method.optimiser.weight_decay
        return self.stage.model.loss.start(self.stage.data.features) if decays else 0.0


def share_steps(stage: Training, method: DpSgd, turn: int) -> float:
    """Return the deviation of one client's share of a window's noise, in grid steps."""
    return share_deviation(_deviation(stage, method, turn), stage.trust, method.asked(stage.setup)) / 2.0**stage.grid


def _deviation(stage: Training, method: DpSgd, window: int) -> float:
    return window_noise(method, stage.setup, _rounds(method, window))


def _rounds(method: DpSgd, window: int) -> range:
    """Return the rounds of a window that waits for all clients; of later windows, the last ones."""
    first = min(window * method.window, (method.total - 1) // method.window * method.window)
    return range(first, min(first + method.window, method.total))


def noising_of(stage: Training, method: DpSgd, entropy: Entropy) -> Noising:
    """Return the noise of the windows: all of it, where one party draws it, and a client's share."""
    size, unit = stage.sum_length, 2.0**stage.grid

    def whole(turn: int) -> Whole:
        return rounded_normal(entropy.stream("dpsgd noise", turn), _deviation(stage, method, turn) / unit, size)

    correlation = method.correlated
    if not correlation:
        return Noising(whole=whole, share=lambda turn: share_steps(stage, method, turn), size=lambda turn: size)
    streams: dict[str, CorrelatedNoise] = {}

    def stream(label: str, parties: float, turn: int) -> Whole:
        """Return a window of a stream of noise, one for each of the ``parties`` that draw it together."""
        steps = mixture(method, stage.setup).noise / sqrt(parties) / unit
        if label not in streams:
            streams[label] = CorrelatedNoise(correlation.factor, entropy, label, steps, size, method.total)
        rounds = [streams[label].at(one) for one in _rounds(method, turn)]
        return np.asarray(np.sum(rounds, axis=0), dtype=np.int64)

    return Noising(
        whole=lambda turn: stream("dpsgd noise", 1, turn),
        share=lambda turn: share_steps(stage, method, turn),
        size=lambda turn: size,
        draw=lambda turn, client: stream(f"dpsgd share {client}", stage.trust.honest(stage.data.clients), turn),
    )

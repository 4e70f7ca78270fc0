"""The distinguishing game on the measurements of a generator: single columns, all pairs, and the pairs that are chosen.

The real measurements run again and again on made-up records, with the noise of the plan. Some of the records are
victims, each with words of its own in every column, so that every run plays one game with each of them: is it there
(or, where records are replaced, which of two is it)? The attacker knows all other records and weighs all noisy counts
by how much the victim adds to them; which pairs are chosen and how they are weighted depends on the noise of the counts
before, as in any generator. A second game is about the choice alone: one record decides which of two pairs depends
more, and the attacker sees the pair that was chosen. Theory page: synthetic-data.md.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from fedveil.audit.claim import claim_of_alone
from fedveil.audit.finding import Finding
from fedveil.audit.game import Seen, play
from fedveil.core.values import Indices, Vector
from fedveil.data.row_rule import Labels
from fedveil.noise.entropy import Entropy
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Measurer, Measures
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.sums import COUNTED, STEPS, Measurement, NoisySums, Sums, root_up
from fedveil.stages.synthesise.learn import learned_generator
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Table, TableCounts

_WORDS: Final = 18  # of a column, which the coarsest look tells apart
_CLEAR: Final = 25.0  # deviations of the noise that the records of a word are many
_REQUEST: Final = GeneratorRequest(groups=16, coarse=20, pairs=1)
Measuring = Callable[[Measurer], Measures]  # tests pass their own, with less noise than is planned

Counts = tuple[Measurement, TableCounts, Vector]  # what was planned, what is counted, and what came out


class _Measured(Exception):
    """The last measurement was made; the model that follows looks at no record."""


@dataclass(slots=True)
class _Watched:
    """Gives the noisy sums of another, and keeps them with what was counted."""

    inner: Measures
    seen: list[Counts] = field(default_factory=list)

    @property
    def present(self) -> Indices:
        return self.inner.present

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        result = self.inner.noisy_sum(planned, contributions, size)
        if not isinstance(contributions, TableCounts):
            raise TypeError("counts of tables were expected")
        self.seen.append((planned, contributions, result))
        if planned.name == "cliques":
            raise _Measured
        return result


@dataclass(frozen=True, slots=True, eq=False)
class _Scene:
    """Made-up records of three columns of words, and the plan's measurements of them.

    ``rows``: the word of each record in each column; the last ``victims`` of them are those to be told apart.
    """

    plan: MeasuredPlan
    rows: Indices
    victims: int

    @property
    def measurements(self) -> NoisySums:
        """The measurements with the plan's noise, for three columns."""
        sizes = {"ones": (3 * (_WORDS + 2), 3), "pairs": (3 * 42**2, 3), "cliques": (40**2, 1)}
        own = self.plan.sums
        result = [replace(own[name], size=size, bound=root_up(count)) for name, (size, count) in sizes.items()]
        return NoisySums(measurements=tuple(result), share=self.plan.sums.share)

    def measured(self, there: Indices, entropy: Entropy, by: Measuring) -> list[Counts]:
        """Measure all counts with the noise of one key; ``there``: which of the victims take part."""
        count, words = self.rows.shape[0], tuple(f"{word:02d}" for word in range(_WORDS))
        names, present = ("first", "second"), np.concatenate([np.arange(count - self.victims), there])
        columns = Columns(
            numbers=np.zeros((count, 0)),
            texts={name: Words(spelt=words, codes=self.rows[:, place]) for place, name in enumerate(names)},
        )
        outline = Outline(numbers=(), texts=names, categories=dict.fromkeys(names, words))
        targets, labels = self.rows[:, 2].astype(np.float64), Labels(name="third", classes=words)
        table = Table(outline=outline, columns=columns, targets=targets, labels=labels, target="third")
        trust = self.plan.trust
        clients = trust.dropouts + trust.colluders + 3 if trust.all_send else 1
        measurer = Measurer(
            owner=trust.dropouts + np.arange(count) % (clients - trust.dropouts),  # who fails has no records
            clients=clients,
            present=present.astype(np.int64),
            target=replace(
                self.plan.target, unit="record", largest_person=1
            ),  # a client counts as one record: the mean of its own
            entropy=entropy,
            trust=trust,
            fails=lambda turn, client: client < trust.dropouts,
        )
        watched = _Watched(by(measurer))
        with suppress(_Measured):
            learned_generator("game", self.measurements, _REQUEST, table, present.size, watched)
        return watched.seen


def generator_game(
    plan: MeasuredPlan,
    runs: int,
    entropy: Entropy,
    *,
    alarm: float = 1e-6,
    choices: int = 200,
    by: Measuring = lambda inner: inner,
) -> list[Finding]:
    """Return what the two games find against the reader of a generator; ``runs``: games on each of two data sets.

    ``choices``: games about the choice of pairs, at most, since one measurement is one such game. Ranges and words that
    a study does not state are measured like counts, and are not part of the game.
    """
    claim, delta = claim_of_alone(plan, "final-model"), plan.target.delta
    played = {
        "counts": counts_seen(plan, runs, entropy, by),
        "choice": choices_seen(plan, min(runs, choices), entropy, by),
    }
    result = []
    for name, seen in played.items():
        one = play(*seen, claim, adversary="final-model", delta=delta, alarm=alarm)
        result.append(replace(one, attack=f"distinguishing-game on the {name}"))
    return result


def _key(entropy: Entropy, name: str, run: int) -> Entropy:
    return Entropy(entropy.words(f"generator game {name}", run, 4).tobytes(), private=entropy.private)


def _many(plan: MeasuredPlan) -> int:
    """How many records have each word, so that noise hides no word."""
    return 2 * math.ceil(_CLEAR * max(plan.sums[name].noise for name in ("ones", "pairs")) * 2)


def counts_seen(
    plan: MeasuredPlan, runs: int, entropy: Entropy, by: Measuring = lambda inner: inner
) -> tuple[Seen, Seen]:
    """Return what the attacker makes of the counts: along what the victim adds, over the variance of the noise.

    First of all measurements together, which is best where all have the noise that is planned, then of each alone.
    """
    replaced = plan.target.neighbours == "replace-one"
    own = np.arange(_WORDS)
    rows = np.repeat(np.concatenate([np.repeat(own, _many(plan)), own])[:, None], 3, axis=1)
    scene, games, base = _Scene(plan, rows, _WORDS), _WORDS // 2 if replaced else _WORDS, rows.shape[0] - _WORDS
    sides: tuple[list[Vector], list[Vector]] = ([], [])
    for run in range(math.ceil(2 * runs / games)):
        coins = (np.arange(games) + run) % 2 == 0  # half of the victims are there, the other half in the next run
        there = np.where(coins, 0, games) + np.arange(games) if replaced else np.flatnonzero(coins)
        scores = np.zeros((games, 1 + len(COUNTED)))
        for one, counted, noisy in scene.measured(base + there, _key(entropy, "counts", run), by):
            noise = noisy - counted(np.concatenate([np.arange(base), base + there])) / STEPS
            for game in range(games):
                moved = counted(np.array([base + game])) / STEPS
                if replaced:
                    moved = moved - counted(np.array([base + games + game])) / STEPS
                along = float(noise @ moved) + (0.5 if coins[game] else -0.5) * float(moved @ moved)
                scores[game, 1 + COUNTED.index(one.name)] = along / (one.noise * one.bound) ** 2
        scores[:, 0] = scores.sum(axis=1)
        for side, chosen in zip(sides, (coins, ~coins), strict=True):
            side.append(scores[chosen])
    first, second = (np.concatenate(side)[:runs] for side in sides)
    return Seen(first[:, :0], first), Seen(second[:, :0], second)


def choices_seen(
    plan: MeasuredPlan, runs: int, entropy: Entropy, by: Measuring = lambda inner: inner
) -> tuple[Seen, Seen]:
    """Return which pair is chosen, with and without the record that decides which of two pairs depends more."""
    own, many = np.arange(_WORDS), _many(plan)
    other = (own + 1) % _WORDS
    half = np.concatenate([np.column_stack([own, other, own]), np.column_stack([other, own, own])])
    victims = np.array([[0, 1, 1], [1, 0, 1]])
    scene = _Scene(plan, np.concatenate([np.repeat(half, many // 2, axis=0), victims]), 2)
    last = scene.rows.shape[0] - 2
    sides: tuple[list[list[float]], list[list[float]]] = ([], [])
    for run in range(runs):
        for place, side in enumerate(sides):
            there = [last] if place == 0 else [last + 1] if plan.target.neighbours == "replace-one" else []
            seen = scene.measured(np.array(there, dtype=np.int64), _key(entropy, f"choice {place}", run), by)
            planned, counted, _ = seen[-1]
            chosen = [one.columns for one in counted.tables] if planned.name == "cliques" else []
            side.append([float(pair in chosen) for pair in ((0, 1), (0, 2), (1, 2))])
    first, second = (np.array(side) for side in sides)
    return Seen(first[:, :0], first), Seen(second[:, :0], second)

"""Many runs of hidden training at once: the real rounds, dealt and noised for each run separately, in one batch.

The gradient, the step, the projection, the grid and the sampler are the trainer's. The batches of all runs form one
sparse matrix whose rows are zero outside their own run's columns, so the gradient of all runs is one call.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.data.rows import row_norms
from fedveil.jobs.attack.drawn_runs import Join, drawn_batches, join
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.train.hidden.deal import Batch, deal
from fedveil.stages.train.hidden.steps import Rule, State, begun, draw, start_row, step

Draw = Callable[[Rule, int, int, Entropy], Vector]
Step = Callable[[Rule, State, Batch, Vector], State]
_ENTRIES = 20_000_000  # most entries of one stacked batch; more runs are made in groups


@dataclass(frozen=True, slots=True)
class Parts:
    """The trainer's own functions that make up a round; tests replace them by faulty ones."""

    draw: Draw = draw
    step: Step = step
    join: Join = join


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Many runs: ``positions`` after every round (runs, rounds, parameters) in grid steps, ``noise`` of every round,
    and ``places``: the round (from 0, of a pass) that uses each record; one row a run, or one row for all; -1: unknown.
    """

    rule: Rule
    positions: Vector
    noise: Vector
    places: Indices

    @property
    def runs(self) -> int:
        """Number of runs."""
        return int(self.positions.shape[0])


def many_runs(
    plan: Plan,
    records: Records,
    runs: int,
    entropy: Entropy,
    parts: Parts | None = None,
    starts: Vector | None = None,
) -> Trace:
    """Make ``runs`` independent runs of the plan on these records.

    ``starts``: the models that they go on from, in place of the plan's own.
    """
    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    require(runs >= 1, "runs", "be at least 1", runs)
    whole = plan.run.stopping == "end"
    require(whole, "schedule.stopping", "be end for the distinguishing game", plan.run.stopping)
    largest = int(np.max(plan.run.batch)) * plan.data.features * _largest_unit(plan)
    size = max(1, min(runs, _ENTRIES // max(1, largest)))
    begin = np.tile(start_row(plan), (runs, 1)) if starts is None else begun(plan, starts)
    groups = [
        _group(plan, records, begin[first : first + size], _own(entropy, number), parts or Parts())
        for number, first in enumerate(range(0, runs, size))
    ]
    positions = np.concatenate([g.positions for g in groups])
    noise = np.concatenate([g.noise for g in groups])
    shared = groups[0].places.shape[0] == 1
    places = groups[0].places if shared else np.concatenate([g.places for g in groups])
    return Trace(groups[0].rule, positions, noise, places)


def _own(entropy: Entropy, group: int) -> Entropy:
    """Return the randomness of a group of runs, under its own key."""
    return Entropy(entropy.words("group of runs", group, 4).tobytes(), private=entropy.private)


def _largest_unit(plan: Plan) -> int:
    return plan.data.largest_client if plan.target.unit == "client" else 1


def _group(plan: Plan, records: Records, begin: Vector, entropy: Entropy, parts: Parts) -> Trace:
    rule, total, (runs, size) = Rule.of(plan), plan.run.total, begin.shape
    state = State(0, begin)
    positions, noises = np.empty((runs, total, size)), np.empty((runs, total, size))
    if plan.run.sampled:
        batches, places = drawn_batches(plan, records, runs, entropy, parts.join, _blocks)
    else:
        batches, places = _dealt(plan, records, runs, entropy)
    for turn in range(total):
        noise = parts.draw(rule, turn, runs * size, entropy).reshape(runs, size)
        state = parts.step(rule, state, batches(turn if plan.run.sampled else turn % plan.run.rounds), noise)
        positions[:, turn], noises[:, turn] = state.position, noise
    return Trace(rule, positions, noises, places)


def _dealt(plan: Plan, records: Records, runs: int, entropy: Entropy) -> tuple[Callable[[int], Batch], Indices]:
    """Return the batch of each round for all runs, and the round that uses each record."""
    if plan.run.order == "public" or plan.run.rounds == 1:  # with a single round the order does not matter
        dealt = deal(plan, records, entropy)
        places = np.repeat(np.arange(plan.run.rounds), np.diff(dealt.starts))
        kept = {turn: stacked([dealt.batch(turn)] * runs) for turn in range(plan.run.rounds)}
        return kept.__getitem__, _padded(places, plan)[None, :]
    if plan.hidden.deal == "records":
        return _dealt_records(plan, records, runs, entropy)
    require(runs <= 20_000, "runs", "be at most 20000 where whole clients are dealt secretly", runs)
    each = [deal(plan, records, _own(entropy, 1 + run)) for run in range(runs)]
    unknown = np.full((1, plan.data.records), -1, dtype=np.int64)
    return (lambda turn: stacked([one.batch(turn) for one in each])), unknown


def _padded(places: Indices, plan: Plan) -> Indices:
    out = np.full(plan.data.records, -1, dtype=np.int64)
    out[: places.size] = places
    return out


def _dealt_records(plan: Plan, records: Records, runs: int, entropy: Entropy) -> tuple[Callable[[int], Batch], Indices]:
    """Draw secret orders as the trainer does, from ranks of random words, for all runs at once."""
    count = plan.data.records
    words = np.concatenate(list(_chunks(entropy, runs * count))).reshape(runs, count)
    order = np.argsort(words, axis=1)
    ends = np.append(0, np.cumsum(np.broadcast_to(np.asarray(plan.run.batch), (plan.run.rounds,))))
    rounds = np.repeat(np.arange(plan.run.rounds), np.diff(ends))
    places = np.full((runs, count), -1, dtype=np.int64)
    np.put_along_axis(places, order[:, : ends[-1]], rounds[None, :], axis=1)
    norms = row_norms(records.features)

    def batch(turn: int) -> Batch:
        chosen = order[:, ends[turn] : ends[turn + 1]]
        rows = chosen.ravel()
        features = _blocks(records.features[rows], runs)
        return Batch(features, records.targets[rows], norms[rows], None)

    return batch, places


def _chunks(entropy: Entropy, count: int, most: int = 2**24) -> Iterator[Any]:
    source = entropy.stream("orders")
    for first in range(0, count, most):
        yield source.words(min(most, count - first))


def stacked(batches: list[Batch]) -> Batch:
    """Return one batch for all runs, each in its own columns; all have the same size."""
    features, targets, norms = (
        np.concatenate([getattr(b, name) for b in batches]) for name in ("features", "targets", "norms")
    )
    weights = None if batches[0].weights is None else np.concatenate([np.asarray(b.weights) for b in batches])
    return Batch(_blocks(features, len(batches), [b.targets.size for b in batches]), targets, norms, weights)


def copies(records: Records, which: Indices, weights: Vector | None, runs: int) -> Batch:
    """Return a batch of these records alone, for as many runs."""
    rows = records.features[which]
    features = _blocks(np.tile(rows, (runs, 1)), runs)
    repeated = None if weights is None else np.tile(weights, runs)
    return Batch(features, np.tile(records.targets[which], runs), np.tile(row_norms(rows), runs), repeated)


def stepped(parts: Parts, rule: Rule, turn: int, before: Vector, batch: Batch, noise: Vector) -> Vector:
    """Return the positions of runs after one round that started at ``before``, all in grid steps."""
    return parts.step(rule, State(turn, before), batch, noise).position


def _blocks(rows: Vector, runs: int, sizes: list[int] | None = None) -> Any:
    """Return the rows as a block-diagonal sparse matrix of the nonzero entries."""
    width = rows.shape[1]
    owner = np.repeat(np.arange(runs), rows.shape[0] // runs if sizes is None else sizes)
    line, column = np.nonzero(rows)
    starts = np.searchsorted(line, np.arange(rows.shape[0] + 1))
    return csr_array((rows[line, column], column + width * owner[line], starts), shape=(rows.shape[0], runs * width))

"""Noisy projected steps of which only the last model is released: the schedule, and what is dealt into rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, final, get_args

import numpy as np

from fedveil.accounting.evaluator import Evaluator, bound_of, for_group, least_of
from fedveil.accounting.grid import Grid
from fedveil.accounting.hidden import lipschitz_of_step, per_round
from fedveil.accounting.participation import Participation, Shares
from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector, number
from fedveil.data.records import DataShape
from fedveil.models.rows import grain_of, rounding_bound
from fedveil.models.spec import ModelPlan
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian, LastIterate
from fedveil.privacy.mechanism_file import last_iterate_table, mechanism_of
from fedveil.stages.noise_shares import check_cohorts, check_punctual, check_range, extra_noise, variation, with_masks
from fedveil.stages.train.base import Served, Setup, Training, expected
from fedveil.theory.binomial_tail import binomial_tail, largest_usual, most_joined
from fedveil.theory.grid import SAMPLER_DISTANCE, halves_of

# How many units may join a round where every unit draws for itself, and what is planned for.
#
# Two questions. Steps contract as long as no round is too full: ``largest_batch`` says up to how many units that is
# accounted for, and the chance of more is in delta. Sums and rounding must be bounded whatever happens: there so many
# are counted that more join only with a chance of 2**-100 a round. Theory page: sampled-shift.md.

_SHARE = 1e-3  # of delta, for the chance that a round has more units than are accounted for


def chance_to_join(run: LastIterate) -> float:
    """Of one unit and one round."""
    return run.rate if run.rate is not None else 1 / run.rounds


def crowd(run: LastIterate) -> Vector:
    """Return the most units of each round: as dealt, or as many as are surely drawn, but for :func:`crowded`."""
    batch = per_round(run.batch, run)
    if not run.sampled:
        return batch
    return np.maximum(batch, float(most_joined(chance_to_join(run), run.records or 1)))


def crowded(run: LastIterate) -> float:
    """Return the chance that some round has more units than that."""
    return min(1.0, SAMPLER_DISTANCE * run.total) if run.sampled else 0.0


def steepness(run: LastIterate, units: Vector | float) -> Vector:
    """Return how smooth a round's average is at most when so many units join: the penalty, and each unit's loss."""
    smoothness, penalty = run.smoothness or 0.0, run.strong_convexity
    result = penalty + (smoothness - penalty) * units / per_round(run.batch, run)
    return np.asarray(result, dtype=np.float64)


def with_largest_batch(run: LastIterate, delta: float) -> LastIterate:
    """Return the run with the batch up to which its steps are accounted for.

    That is the largest on which every step still contracts as it does on a small one, but never so small that the
    chance of a larger one would be more than a thousandth of delta. Where that is too many for the step, the growth is
    accounted for: the bounds see it.
    """
    if not run.sampled or not run.smoothness or run.records is None:
        return run
    steps = per_round(run.step_size, run)
    room = (2 / steps - 2 * run.strong_convexity) * per_round(run.batch, run)
    bend = run.smoothness - run.strong_convexity
    most = float(np.min(room)) / bend * (1 - 1e-9) if bend > 0 else math.inf
    contracting = math.floor(max(0.0, min(most, float(run.records))))
    return replace(run, largest_batch=max(usual_crowd(run, delta), contracting))


def usual_crowd(run: LastIterate, delta: float) -> int:
    """Return the least batch that some round exceeds with a chance of at most a thousandth of delta."""
    return largest_usual(run.records or 1, chance_to_join(run), _SHARE * delta / run.total)


def chance_of_a_larger_batch(run: LastIterate) -> float:
    """At most so large is the chance that some round has more units than its steps are accounted for."""
    if run.largest_batch is None:
        return 0.0
    return min(1.0, run.total * binomial_tail(run.records or 1, chance_to_join(run), run.largest_batch + 1))


# What depends on who draws the noise of a hidden run: the bounds on what observers learn, and the cost of the grid.


class AtOnce:
    """One party draws the noise of a round, and rounds the whole step once."""

    __slots__ = ()

    def views(self, method: Hidden, adversary: Adversary, setup: Setup) -> Sequence[Evaluator]:
        """Return every bound on what this observer learns, with ideal noise."""
        from fedveil.accounting.observers import views  # a site's rounds need no accountant

        return views(method.run, adversary, method.participation(setup))

    def grid(self, method: Hidden, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of state and noise on multiples of 2**exponent."""
        grid = Grid.of(
            exponent=exponent,
            dimension=setup.dimension,
            noise=method.noise(),
            lipschitz=method.stretch(),
            errors=method.float_errors(setup),
            law=method.run.noise,
        )
        grid = replace(grid, total_variation=min(1.0, grid.total_variation + crowded(method.run)))
        if adversary in ("final-model", "every-model") or method.participation(setup).alone:
            return grid
        # The others know part of a round's noise; some unit's share is left, or no guarantee is given at all.
        left = 1 / float(per_round(method.run.batch, method.run).max())
        return replace(grid, distance=grid.distance / math.sqrt(left))

    def reach(self, method: Hidden, setup: Setup) -> float:
        """Return the largest length that the grid must hold: the ball's radius."""
        return method.radius(setup)


@final
class InShares(AtOnce):
    """Every client adds a share, and rounds its own contribution; a state has the error of all."""

    __slots__ = ()

    def views(self, method: Hidden, adversary: Adversary, setup: Setup) -> Sequence[Evaluator]:
        """Return every bound on what this observer learns, with ideal shares."""
        from fedveil.accounting.observers import views_of_shares

        return views_of_shares(method.run, adversary, method.participation(setup), method.shares(setup))

    def grid(self, method: Hidden, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return the cost of state, contributions and shares on multiples of 2**exponent."""
        run, cohorts, dimension = method.run, method.cohorts(setup), setup.dimension
        sizes = np.array(cohorts, dtype=np.float64)
        sent = np.minimum(sizes, crowd(run))  # zeros are not rounded
        noise, half = method.noise(), 2.0**exponent / 2 * math.sqrt(dimension)
        stretch, errors = method.stretch(), method.float_errors(setup)
        shares = method.shares(setup)
        honest = shares.honest(run)
        if adversary == "server":  # it sees every message: each is rounded on its own, against its own share
            noise, stretch = noise / np.sqrt(honest * sent), np.zeros_like(stretch)
        else:
            left = shares.beside(run) if adversary == "curious-client" else np.ones_like(noise)
            halves = np.array([halves_of(count) for count in sizes.tolist()]) if sizes.size else sizes
            errors = errors + half * (sent + stretch * (float(halves.max()) - 1))
            noise = noise * np.sqrt(left)
        result = Grid.of(exponent=exponent, dimension=dimension, noise=noise, lipschitz=stretch, errors=errors)
        sampled = variation(method.noise(), cohorts, setup.trust, result) + crowded(run)
        result = replace(result, total_variation=min(1.0, sampled))
        return with_masks(result, setup.trust, adversary, method.total)

    def reach(self, method: Hidden, setup: Setup) -> float:
        """Return the same, or the length of a client's contribution, which may be longer than the ball is wide."""
        return max(method.radius(setup), float(method.longest().max()) * 1.001)


NOISING: Final[dict[str, AtOnce]] = {"central": AtOnce(), "shares": InShares(), "local": InShares()}  # local: refused


Deal = Literal["records", "clients"]
_UNIT = 2.0**-53
_STEP_ROUNDINGS = 40  # the projection (its norm is summed pairwise: algorithms/hidden/steps.py), scaling, stepping


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden(Served):
    """``deal``: whether records or whole clients are dealt into rounds; ``run``: the schedule, with its noise.

    ``start``: the public parameters that the first round starts from; empty: zeros. A run that goes on from a released
    model does not name it, so that the plan tells nobody what that model was: ``reach`` bounds its norm, and ``keep``
    is the part of it that the first round starts from, one at which floats multiply exactly.
    """

    run: LastIterate
    deal: Deal = "records"
    start: tuple[float, ...] = ()
    reach: float = 0.0
    keep: float = 1.0

    kind: ClassVar[str] = "hidden"

    def __post_init__(self) -> None:
        require(self.deal in get_args(Deal), "algorithm.deal", "be records or clients", self.deal)
        require(all(map(math.isfinite, self.start)), "plan.start", "be finite numbers", self.start[:3])
        require(0 <= self.reach < math.inf, "plan.reach", "be finite, and 0 or more", self.reach)
        require(not (self.start and self.reach), "plan.reach", "be 0 where a start is stated", self.reach)
        exact = self.keep == 0 or (0 < self.keep <= 1 and math.frexp(self.keep)[0] == 0.5)
        require(exact, "plan.keep", "be 1, a half, a quarter, and so on, or 0", self.keep)
        if self.run.sampled:
            flat = isinstance(self.run.batch, int)
            hint = f"With order {self.run.order} every unit draws for itself, and only the divisor is planned."
            require(flat, "plan.run.batch", "be one number for all rounds, not a partition", self.run.batch, hint)

    @property
    def total(self) -> int:
        """Number of rounds of all passes."""
        return self.run.total

    def check(self, setup: Setup) -> None:
        """Refuse units that do not fit the data, and constants below those that the model enforces."""
        _check_units(self, setup)
        fits = len(self.start) in (0, setup.dimension)
        require(fits, "plan.start", f"be the model's {setup.dimension} parameters", len(self.start))
        _check_constants(self.run, setup.model, setup.data)

    @property
    def everyone(self) -> bool:
        """Whether every client takes part in every round, if only with its noise."""
        return self.deal == "records" or self.run.sampled

    @property
    def hides(self) -> bool:
        """True: nobody sees a model before the last."""
        return True

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Refuse noise that is not normal, which cannot be shared, and a grid that does not hold all sums."""
        sizes, trust = self.cohorts(setup), setup.trust
        check_cohorts(sizes, trust)
        check_punctual(trust, self.kind)
        hint = "A sum of Laplace shares is no Laplace noise."
        require(self.run.noise == "gaussian", "algorithm.noise", "be gaussian with [trust]", "laplace", hint)
        # All contributions to a round together: no more units than its crowd, each bounded; it may be one client's.
        most = self.longest()
        check_range(self.noise(), sizes, trust, exponent, most, most)

    def traffic(self, setup: Setup, together: bool) -> tuple[int, int, int]:
        """Return the traffic: a client answers once a round, for all of its units.

        If all are asked together, clients without a unit in the batch send as well.
        """
        batches, clients = per_round(self.run.batch, self.run), setup.data.clients
        if self.run.sampled:
            return self.run.total * clients, self.run.total, clients
        if self.deal == "records":
            sizes, most = np.full_like(batches, clients) if together else np.minimum(batches, clients), self.run.total
            return int(sizes.sum()), most, clients
        sizes = np.minimum(np.ceil(batches / setup.held), clients)
        return int(sizes.sum()), self.run.passes, int(sizes.max())

    def average_noise(self, sizes: Indices, setup: Setup) -> float | None:
        """Return the root mean square over rounds, weighted by their squared step."""
        steps = per_round(self.run.step_size, self.run)
        law = math.sqrt(2) if self.run.noise == "laplace" else 1.0  # a Laplace scale is not yet a deviation
        each = law * self.noise() / steps
        whole = float(np.sqrt(np.average(each**2, weights=steps**2)))
        return whole * math.sqrt(extra_noise(self.cohorts(setup), setup.trust))

    def cohorts(self, setup: Setup) -> Sequence[int]:
        """Return all clients where records are dealt or units draw (some send noise alone); else the round's own."""
        if self.everyone:
            return [setup.data.clients] * self.total
        return [round(size) // setup.held for size in per_round(self.run.batch, self.run).tolist()]

    def answer(self, adversary: Adversary, setup: Setup, delta: float, beside: Gaussian | None = None) -> Answer:
        """Return the bounds on hidden runs, as this observer sees them."""
        bounds = [bound_of(e, delta, None) for e in self.views(adversary, setup, beside)]
        return least_of(bounds, delta, None)

    def views(self, adversary: Adversary, setup: Setup, beside: Gaussian | None = None) -> Sequence[Evaluator]:
        """Every bound on what this observer learns, with ideal noise; one for all with what it learns ``beside``."""
        if beside is not None:
            return [_composed(self, adversary, setup, beside)]
        result = NOISING[setup.trust.noise].views(self, adversary, setup)
        if setup.target.largest_person == 1:
            return result
        known = [e for e in result if e.grouped is not None] or result  # hops of the others would take long
        return [for_group(e, setup.target.largest_person) for e in known]

    def shares(self, setup: Setup) -> Shares:
        """Return how the clients share the noise of a round."""
        sizes, trust = self.cohorts(setup)[: self.run.rounds], setup.trust
        return Shares(
            cohort=sizes[0] if len(set(sizes)) == 1 else tuple(sizes),
            dropouts=trust.dropouts,
            colluders=trust.colluders,
            everyone=self.everyone,
            opened=trust.key_holder == "clients",
            named=trust.server != "trusted",
            together=trust.hand,
        )

    def participation(self, setup: Setup) -> Participation:
        """Return how often clients take part, in the form that accounting needs."""
        # Where one party draws the noise, clients that drew no unit have nothing to send: it sees who takes part.
        every_round = self.deal == "records" and setup.held > 1 and not self.run.sampled
        return Participation(largest_client=setup.held, clients=setup.data.clients, every_round=every_round)

    def radius(self, setup: Setup) -> float:
        """Return the stated radius, or one too large to be reached by steps and noise in practice."""
        if setup.model.radius is not None:
            return setup.model.radius
        step = per_round(self.run.step_size, self.run)
        noise = float(np.sqrt(np.sum(self.noise() ** 2) * setup.dimension))
        reached = math.hypot(*self.start) + self.reach * self.keep + float(step.sum()) * self.run.lipschitz + 10 * noise
        return 2.0 ** math.ceil(math.log2(reached))

    def longest(self) -> Vector:
        """Return how far the units of each round move the model at most, all together."""
        step, batch = per_round(self.run.step_size, self.run), per_round(self.run.batch, self.run)
        return np.asarray(step * self.run.lipschitz * (crowd(self.run) / batch), dtype=np.float64)

    def grain(self, data: DataShape) -> float | None:
        """To multiples of what each record's gradient is rounded, where its company varies (fedveil.models.rows)."""
        return grain_of(self.run.lipschitz, data.records) if self.run.sampled else None

    def noise(self) -> Vector:
        """Return the noise of every round: standard deviation per coordinate, or Laplace scale."""
        run = self.run
        step, batch, std = (per_round(v, run) for v in (run.step_size, run.batch, run.noise_std))
        return np.asarray(step * std / (1.0 if run.noise == "laplace" else np.sqrt(batch)), dtype=np.float64)

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """State and noise on multiples of 2**exponent; floating-point errors of the step included."""
        return NOISING[setup.trust.noise].grid(self, adversary, setup, exponent)

    def stretch(self) -> Vector:
        """Return how much a step of each round may enlarge the rounding of the state that it starts from.

        Of unknown smoothness a record's gradient may be any function, so also that of the rounded state: what the
        rounding moves is the state alone, and no step stretches that (docs/torch.md).
        """
        step = per_round(self.run.step_size, self.run)
        if self.run.smoothness is None:
            return np.ones_like(step)
        if not self.run.sampled:
            return lipschitz_of_step(self.run, step)
        steepest = steepness(self.run, crowd(self.run))
        if not self.run.convex:
            return np.asarray(1 + step * steepest, dtype=np.float64)
        return np.maximum(np.abs(1 - step * self.run.strong_convexity), np.abs(1 - step * steepest))

    def float_errors(self, setup: Setup) -> Vector:
        """Return how far a step computed in floats is from the exact one: the gradient's rounding, and the step's own.

        In one piece or in parts: rounding errors of parts add up to no more than those of the whole.
        """
        data, model, step = setup.data, setup.model, per_round(self.run.step_size, self.run)
        raw, radius = model.loss.constants(data.bound, model.clip), self.radius(setup)
        each, grain = data.largest_client if setup.target.unit == "client" else 1, self.grain(data)
        gradient: float | Vector = rounding_bound(
            rows=int(per_round(self.run.batch, self.run).max()) * each if grain is None else 1,
            features=data.features,
            lipschitz=max(raw.lipschitz, self.run.lipschitz),
            smoothness=raw.smoothness,
            radius=radius,
            outputs=model.loss.outputs,
        )
        size = radius * (1 + step * model.l2) + step * max(raw.lipschitz, self.run.lipschitz)
        if grain is not None:  # every record errs by itself, and is rounded to the grain; the sum is exact
            full = crowd(self.run) / per_round(self.run.batch, self.run)
            gradient = full * (gradient + each * grain / 2 * math.sqrt(setup.dimension))
            size = radius * (1 + step * model.l2) + step * full * max(raw.lipschitz, self.run.lipschitz)
        return np.asarray(step * gradient + _STEP_ROUNDINGS * _UNIT * size, dtype=np.float64)

    def table(self) -> dict[str, Any]:
        """Return the table of a mechanism file, with what is dealt."""
        begun: dict[str, Any] = {"start": list(self.start)} if self.start else {}
        begun |= {"reach": self.reach} if self.reach else {}
        begun |= {"keep": self.keep} if self.keep != 1 else {}
        return {"deal": self.deal, **begun, **last_iterate_table(self.run)}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Hidden:
        """Read the table that :meth:`table` writes."""
        values = dict(table)
        deal, start = values.pop("deal", None), values.pop("start", [])
        reach, keep = number("plan.reach", values.pop("reach", 0)), number("plan.keep", values.pop("keep", 1))
        listed = isinstance(start, list) and all(isinstance(one, int | float) for one in start)
        require(listed, "plan.start", "be a list of numbers", type(start).__name__)
        run = mechanism_of(values)
        right = isinstance(run, LastIterate)
        require(right, "The plan's mechanism", "be a last-iterate one", type(run).__name__)
        begun = tuple(map(float, start))
        return cls(run=run, deal=deal, start=begun, reach=reach, keep=keep)  # type: ignore[arg-type]


def hidden_of(stage: Training) -> Hidden:
    """Return the method of a training stage, which must be the hidden one."""
    return expected(Hidden, stage.method)


@lru_cache(maxsize=32)
def _composed(method: Hidden, adversary: Adversary, setup: Setup, beside: Gaussian) -> Evaluator:
    """Kept, since the curve of the run is worked out once for all questions about the composition."""
    from fedveil.accounting.profile import composed

    return composed(method.views(adversary, setup), beside)


def _check_units(method: Hidden, setup: Setup) -> None:
    data, target = setup.data, setup.target
    run, unit, deal = method.run, target.unit, method.deal
    require(run.place is None, "plan.run.place", "be left out", run.place, "A certificate speaks for every unit.")
    fits = unit != "client" or deal == "clients"
    require(fits, "algorithm.deal", "be clients when clients are protected", deal)
    hint = "Members of a person who are dealt together are not proved to be protected by a secret order."
    require(
        unit != "person" or deal == "records", "algorithm.deal", "be records when persons are protected", deal, hint
    )
    if unit == "record" and deal == "clients":
        even = data.largest_client == data.smallest_client
        sizes = f"{data.smallest_client} to {data.largest_client}"
        hint = 'Deal records, or protect clients (privacy.unit = "client").'
        require(even, "Clients", "be of one size when they are dealt whole but records are protected", sizes, hint)
        batches = run.batch if isinstance(run.batch, tuple) else (run.batch,)
        filled = all(count % data.largest_client == 0 for count in batches)
        require(filled, "plan.run.batch", f"hold whole clients of {data.largest_client}", run.batch)
    whole = unit == "client" or deal == "records" or not run.sampled
    hint = "Records of one client that join together would tell each other's draws."
    require(whole, "algorithm.deal", f"be records when records are protected and the order is {run.order}", deal, hint)
    units = setup.units
    require(run.records == units, "plan.run.records", f"be the number of units, {units}", run.records)
    same = run.neighbours == target.neighbours
    require(same, "plan.run.neighbours", "match the target", run.neighbours)


def _check_constants(run: LastIterate, model: ModelPlan, data: DataShape) -> None:
    real = model.constants(data.bound)
    require(run.lipschitz >= real.lipschitz, "plan.run.lipschitz", f"be at least {real.lipschitz}", run.lipschitz)
    require(run.convex <= real.convex, "plan.run.convex", "be true only for a convex loss", run.convex)
    if run.smoothness is not None:
        least = np.inf if real.smoothness is None else real.smoothness
        require(run.smoothness >= least, "plan.run.smoothness", f"be at least {least}", run.smoothness)
    most = real.strong_convexity
    if run.sampled:
        stated = run.largest_batch is not None or not run.smoothness
        hint = "A record's smoothness says nothing of a round that many join."
        require(stated, "plan.run.largest_batch", f"be given when the order is {run.order}", None, hint)
        most = min(most, model.l2)  # what every round adds whole, whoever joined
    require(run.strong_convexity <= most, "plan.run.strong_convexity", f"be at most {most}", run.strong_convexity)
    largest = float(np.max(per_round(run.step_size, run)))
    hint = "Larger steps throw the model out by the penalty alone, which the bounds do not cover."
    require(largest * model.l2 <= 2, "schedule.step_size", f"be at most 2/l2, with l2 {model.l2}", largest, hint)
    radius = model.radius
    kept = run.diameter is None or (radius is not None and run.diameter >= 2 * radius)
    require(kept, "plan.run.diameter", "be at least twice the radius", run.diameter)


METHOD = Hidden
TITLE = "hidden training"

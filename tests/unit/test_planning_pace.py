"""Planning is quick because nothing is computed twice; what is shared must be what each would compute alone."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedveil.core.values import Vector
from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.privacy.target import Target
from fedveil.stages.train.hidden.design import HiddenRequest
from fedveil.stages.train.request import ScheduleRequest, Task
from fedveil.theory.allocation import AllocationLaw, Summands
from fedveil.theory.closing import Part, lengths
from fedveil.theory.convolution import log_moment, opened
from fedveil.theory.plan_search import scattered_cost
from fedveil.theory.position import star, stars
from fedveil.theory.rounds import Rounds

SUMMANDS: Summands = ((((0.4, 0.1),), 6), (((0.3, 0.1), (0.5, 0.1)), 2))


def some_rounds(count: int) -> Rounds:
    generator = np.random.default_rng(3)
    noise, gap, shrink = generator.uniform(0.5, 1.5, (3, count))
    return Rounds(noise, gap, 2 * gap, shrink / 1.6, np.full(count, np.inf), 4.0)


def task(epsilon: float = 1.0) -> Task:
    shape = DataShape(records=200, features=3, classes=2, clients=2, largest_client=100, smallest_client=100, bound=1.0)
    return Task(
        data=shape,
        model=ModelPlan(kind="logistic", classes=2, clip=1.0, radius=4.0),
        target=Target(epsilon=epsilon, delta=1e-4),
        schedule=ScheduleRequest(rounds=2, passes=1),
    )


def test_equal_tasks_are_designed_once_and_others_on_their_own() -> None:
    first, again, other = (HiddenRequest().design(t) for t in (task(), task(), task(epsilon=2.0)))
    assert again is first
    assert other.method != first.method


@pytest.mark.parametrize("side", ["above", "below"])
def test_both_directions_of_a_pass_are_sums_over_the_same_grid(side: str) -> None:
    summands = SUMMANDS if side == "above" else SUMMANDS[:1]
    whole = sum(count * p for part, count in summands for _, p in part)
    summands = tuple((tuple((mu, p / whole) for mu, p in part), count) for part, count in summands)
    present, null = (AllocationLaw(summands, way, side) for way in ("present", "null"))  # type: ignore[arg-type]
    levels = np.linspace(-2.0, 2.0, 41)
    seen, mirrored = present.tails(levels + 1e-9), null.tails(-levels - 1e-9)
    # Under P the loss of one direction is above a level where, under Q, that of the other is below its negative.
    assert seen.p_above - seen.p_above[-1] == pytest.approx(mirrored.q_below - mirrored.q_below[-1], abs=1e-12)
    assert seen.q_below - seen.q_below[0] == pytest.approx(mirrored.p_above - mirrored.p_above[0], abs=1e-12)


def test_reach_is_where_the_tails_say() -> None:
    law = AllocationLaw(SUMMANDS)
    for mass in (1e-3, 1e-6, 1e-9):
        low, high = law.reach(mass)
        beyond = law.tails(np.array([np.inf])).p_above[0]
        outside = law.tails(np.array([low - 1e-3, high + 1e-3]))
        assert outside.p_below[0] <= mass
        assert outside.p_above[1] - beyond <= mass
        inside = law.tails(np.array([low + 0.05, high - 0.05]))
        assert inside.p_below[0] > mass
        assert inside.p_above[1] - beyond > mass


def test_ties_through_many_hubs_are_those_through_each() -> None:
    rounds, places = some_rounds(12), np.arange(12).reshape(2, 6).T
    weights, hubs = np.full(6, 1 / 6), [0, 2, 5]
    for found, hub in zip(stars(rounds, places, weights, hubs), hubs, strict=True):
        alone = star(rounds, places, weights, hub)
        for name in ("up", "down", "own"):
            assert np.array_equal(getattr(found, name), getattr(alone, name)), name
        assert found.log_delta(0.5) == alone.log_delta(0.5)


def test_the_cost_of_a_plan_does_not_depend_on_what_was_judged_before() -> None:
    rounds, weights = some_rounds(12), np.full(12, 1 / 6)

    def slowly(parts: list[Part]) -> float:
        values: list[tuple[Vector, Vector]] = [(lengths(rounds, p), weights[p.first : p.last]) for p in parts]
        return sum(float(share @ np.expm1(np.outer(mu, mu)) @ share) for mu, share in values)

    cost = scattered_cost(rounds, weights, constant=False)
    early, late = [Part(0, 3, 3, 6), Part(3, 6, 6, 9)], [Part(3, 6, 6, 9), Part(6, 9, 9, 12)]
    for parts in (early, late, early):
        assert cost(parts) == pytest.approx(slowly(parts), rel=1e-12)


@dataclass(frozen=True)
class Atoms:
    mass: Vector
    points: Vector

    def losses(self) -> Vector:
        return self.points


@pytest.mark.parametrize("size", [1, 7, 130, 1000])
def test_laws_tilted_together_have_the_bits_of_each(size: int) -> None:
    """Also with masses of zero, and tilted so far that nothing is left of some."""
    generator = np.random.default_rng(size)
    laws = [Atoms(generator.random(size) * (generator.random(size) < 0.9), generator.normal(size=size)) for _ in "abc"]
    laws.append(Atoms(np.zeros(size), np.zeros(size)))
    found = opened([(law, times) for times, law in enumerate(laws, start=1)])
    assert found.rows is not None
    for tilt in (0.0, 0.3, 17.0, 900.0, -5.0):
        assert list(found.scales(tilt)) == [law.tilted(tilt)[1] for law in found.each]
        assert log_moment(found, tilt) == sum(law.times * law.tilted(tilt)[1] for law in found.each)

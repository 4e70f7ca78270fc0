"""A schedule that takes long to certify is left out only where certifying it would have changed nothing."""

from pathlib import Path

import numpy as np
import pytest

from fedveil.accounting.sampled import certified_epsilon
from fedveil.data.records import DataShape
from fedveil.planning.design import Planned
from fedveil.planning.study import study_of
from fedveil.privacy.mechanism import LastIterate
from fedveil.stages.train.hidden.schedule import Problem, designed
from fedveil.stages.train.hidden.schedule.families import Frame, Shape
from fedveil.stages.train.hidden.schedule.search import hopeful, outdone, pick
from fedveil.stages.train.request import ScheduleRequest


def shape(rounds: int, bias: float, injected: float, order: str = "secret") -> Shape:
    frame = Frame("constant", 10, rounds, 5, 1.0)
    return Shape(frame, 1.0, bias, 0.01, injected, order=order, learnable=2.0)


def test_what_is_left_out_would_not_have_been_chosen_nor_stopped_its_rival() -> None:
    """Whatever factor certifies it: by the rules of the search, with its certified risk."""
    generator = np.random.default_rng(0)
    left = 0
    for _ in range(3000):
        bias, noise, other = generator.uniform(0, 1, size=3)
        first = shape(int(generator.integers(2, 400)), bias, 0.3 * noise, "independent")
        hoped = shape(int(generator.integers(2, 400)), other, 0.1)
        rival = shape(hoped.frame.rounds, other, 0.1 * generator.uniform(0.9, 1.5))
        needed = float(generator.uniform(0.5, 5.0))
        certified = shape(first.frame.rounds, bias, first.injected * needed**2, "independent")
        if outdone(first, rival, hoped, lambda _, factor, least=needed: factor < least):
            left += 1
            assert hopeful(hoped, certified)
            assert pick([certified, rival]) is rival
            assert certified.risk > rival.risk
    assert 500 < left < 2900


def test_no_question_is_asked_where_no_noise_at_all_would_be_too_bad() -> None:
    def never(_: Shape, factor: float) -> bool:
        raise AssertionError(factor)

    assert outdone(shape(200, 0.9, 0.1, "independent"), shape(20, 0.1, 0.1), shape(20, 0.1, 0.1), never)


def test_the_same_schedule_is_chosen_in_fewer_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem so small that both ways are quick: there, too, draws are asked about before they are certified."""
    monkeypatch.setattr(designed, "SOON", 0)
    problem = Problem(
        units=60,
        dimension=300,
        lipschitz=1.0,
        smoothness=0.5,
        epsilon=8.0,
        delta=1e-3,
        neighbours="zero-out",
        outputs=10,
        distance=10.0,
    )
    asked = []

    def misses(run: LastIterate) -> bool:
        asked.append(certified_epsilon(run, problem.delta))
        return asked[-1] > problem.epsilon

    slow = designed.design(problem, orders=("independent", "poisson"))
    quick = designed.design(problem, orders=("independent", "poisson"), misses=misses)
    assert 1 <= len(asked) <= 2
    assert quick.mechanism == slow.mechanism
    assert quick.reason == slow.reason
    assert sum(row.certified for row in quick.considered) == sum(row.certified for row in slow.considered) - 1
    floor = designed.least_risk(problem, ScheduleRequest(), ("independent", "poisson"))
    assert 0 < floor < min(row.risk for row in slow.considered)


def test_an_algorithm_that_is_worse_even_without_noise_is_not_designed() -> None:
    """A thousand clients: averaging of whole updates is expected to beat one step of hidden training a round by far."""
    shape = DataShape(
        records=60_000, features=785, classes=10, clients=1000, largest_client=60, smallest_client=60, bound=1.0
    )
    privacy = {"epsilon": 8.0, "delta": 1e-4, "unit": "client", "neighbours": "zero-out"}

    def planned(kind: str) -> Planned:
        tables = {"model": {"kind": "softmax"}, "privacy": privacy, "algorithm": {"kind": kind}}
        return study_of(tables, base=Path(), data_given=True).planned(shape)

    found, named = planned("auto"), planned("fedavg")
    assert found.plan == named.plan
    weighed = "hidden at least 0.65, even without noise; fedavg 0.265 with 80 passes."
    assert found.draft.reason.startswith(f"algorithm fedavg, because its expected risk is the least: {weighed}")

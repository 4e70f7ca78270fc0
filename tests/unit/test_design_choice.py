"""What a design chooses when it is left to choose: how far to go, which order, which algorithm."""

from itertools import product

import numpy as np
import pytest

from fedveil.accounting.hidden import per_round
from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.planning.design import make_plan, read_request
from fedveil.privacy.target import Target
from fedveil.stages.train.dpsgd.design import DpSgdRequest
from fedveil.stages.train.hidden.design import HiddenRequest
from fedveil.stages.train.request import Draft, ScheduleRequest, Task
from fedveil.stages.train.yardstick import model_problem, risk_with_momentum

SHAPE = DataShape(
    records=427, features=31, classes=2, clients=4, largest_client=200, smallest_client=50, bound=5.0**0.5
)
MANY = DataShape(records=600, features=31, classes=2, clients=60, largest_client=10, smallest_client=10, bound=2.0)


def task(shape: DataShape = SHAPE, schedule: ScheduleRequest | None = None, **target: object) -> Task:
    wished: dict[str, object] = {"epsilon": 1.0, "delta": 1e-4, "neighbours": "zero-out"}
    return Task(
        data=shape,
        model=ModelPlan(kind="logistic", radius=10.0),
        target=Target(**(wished | target)),  # type: ignore[arg-type]
        schedule=schedule or ScheduleRequest(),
    )


def drafted(table: dict[str, object], asked: Task) -> Draft:
    return make_plan("trial", read_request(table), asked).draft


def test_a_run_goes_as_far_as_a_good_model_is_away() -> None:
    run = drafted({"kind": "hidden"}, task()).method.run  # type: ignore[attr-defined]
    assert float(per_round(run.step_size, run).sum()) * run.smoothness > 100  # at 37 it stopped ten times too early


def test_without_a_wish_units_draw_their_rounds_and_the_plan_says_why() -> None:
    draft = drafted({"kind": "hidden"}, task())
    full = drafted({"kind": "hidden", "order": "secret"}, task(schedule=ScheduleRequest(rounds=1)))
    assert draft.method.run.order == "independent"  # type: ignore[attr-defined]
    assert draft.passes is not None
    assert full.passes is not None
    assert draft.passes <= full.passes / 2
    assert draft.risk is not None
    assert full.risk is not None
    assert draft.risk <= 1.1 * full.risk
    sentence = draft.reason[draft.reason.index("Order:") :]
    orders = ("random allocation", "full batches", "a secret partition", "Poisson sampling")
    assert all(name in sentence for name in orders)


@pytest.mark.parametrize("order", ["secret", "public", "poisson", "independent"])
def test_a_stated_order_is_kept(order: str) -> None:
    draft = drafted({"kind": "hidden", "order": order}, task(schedule=ScheduleRequest(rounds=5, passes=2)))
    assert draft.method.run.order == order  # type: ignore[attr-defined]
    assert "Order:" not in draft.reason


@pytest.mark.parametrize(
    ("table", "schedule", "target"),
    [
        ({"stopping": "random"}, ScheduleRequest(rounds=4, passes=1), {}),
        ({}, ScheduleRequest(kind="growing-batches", rounds=4, passes=1), {}),
        ({}, ScheduleRequest(batch=(100, 100, 100), passes=1), {}),
        ({}, ScheduleRequest(rounds=4, passes=1), {"adversary": "server", "epsilon": 40.0}),
    ],
)
def test_partitions_stay_where_draws_do_not_run_or_do_not_help(
    table: dict[str, object], schedule: ScheduleRequest, target: dict[str, object]
) -> None:
    request = read_request({"kind": "hidden", **table})
    draft = request.design(task(schedule=schedule, **target))
    assert draft.method.run.order == "secret"  # type: ignore[attr-defined]


def test_auto_takes_fedavg_for_clients_and_says_what_it_weighed() -> None:
    asked = task(MANY, unit="client", delta=1e-2)
    draft = drafted({"kind": "auto"}, asked)
    assert draft.method.kind == "fedavg"
    assert draft.reason.startswith("algorithm fedavg, because its expected risk is the least: hidden ")
    assert "hidden" in draft.reason
    assert 'kind = "auto"' in drafted({"kind": "hidden"}, asked).reason


def test_auto_takes_hidden_for_records_of_several_clients() -> None:
    draft = drafted({"kind": "auto"}, task())
    ours, theirs = HiddenRequest().design(task()), DpSgdRequest().design(task())
    assert draft.method.kind == "hidden"
    assert ours.risk is not None
    assert theirs.risk is not None
    assert ours.risk < theirs.risk


def test_a_batch_that_does_not_fit_one_order_leaves_the_others() -> None:
    batch = next(b for b in range(40, 60) if SHAPE.records // round(SHAPE.records / b) not in (b, b - 1))
    found = drafted({"kind": "hidden"}, task(schedule=ScheduleRequest(batch=batch)))
    assert found.method.run.order in ("poisson", "secret")  # type: ignore[attr-defined]


def test_auto_has_no_settings_of_its_own() -> None:
    with pytest.raises(ValueError, match="rate"):
        read_request({"kind": "auto", "rate": 0.1})
    with pytest.raises(ValueError, match=r"algorithm\.kind must be one of .*auto"):
        read_request({"kind": "best"})


def test_risk_with_momentum_is_the_closed_form_without_it() -> None:
    model = model_problem(dimension=20, lipschitz=1.0, data=0.5, ridge=0.01, distance=2.0, diameter=None)
    steps = np.linspace(3.0, 0.5, 30)
    kept = model.kept(steps)
    closed = model.bias(steps, kept) + float(model.weights(kept) @ (steps**2 * 0.04))
    assert risk_with_momentum(model, steps, momentum=0.0, noise=0.04) == pytest.approx(closed, rel=1e-9)


def test_steps_that_run_away_have_no_finite_worth() -> None:
    model = model_problem(dimension=5, lipschitz=1.0, data=1.0, ridge=0.0, distance=1.0, diameter=None)
    assert risk_with_momentum(model, np.full(5000, 50.0), momentum=0.0, noise=1.0) == np.inf


def test_dealing_of_independent_picks_is_that_of_all_picks() -> None:
    """Two passes of two rounds, four units whose gradients are +-1: every pick, weighed alike."""
    model = model_problem(dimension=1, lipschitz=2.0, data=1.0, ridge=0.0, distance=1.0, diameter=None)
    steps, units = np.array([0.9, 0.6, 0.5, 0.3]), 4
    moved = (steps[:, None] * model.kept(steps)).ravel()
    gradients = np.array([1.0, -1.0, 1.0, -1.0]) * np.sqrt(model.spread)
    ends = []
    for picks in product(range(2), repeat=2 * units):
        sums = np.zeros(4)
        for place, pick in enumerate(picks):
            sums[2 * (place // units) + pick] += gradients[place % units]
        ends.append(float(moved @ sums / 2))
    exact = 0.5 * model.curvature[0] ** 2 * float(np.mean(np.square(ends)))
    found = model.sampling(steps, model.kept(steps), np.full(2, 2.0), units, order="independent")
    assert found == pytest.approx(exact, rel=1e-9)


def test_a_softmax_of_two_classes_is_the_logistic_problem() -> None:
    """The same scores as a difference of two: twice the curvature, half the squared distance, the same risk."""
    one = model_problem(dimension=9, lipschitz=1.0, data=0.25, ridge=0.0, distance=4.0, diameter=None)
    two = model_problem(
        dimension=18, lipschitz=1.0, data=0.5, ridge=0.0, distance=4.0 / 2**0.5, diameter=None, outputs=2
    )
    steps = np.array([3.0, 2.0, 1.0])
    assert two.learnable == pytest.approx(one.learnable, rel=1e-12)
    assert two.bias(steps / 2, two.kept(steps / 2)) == pytest.approx(one.bias(steps, one.kept(steps)), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_softmax_bends_at_the_zero_model_as_its_hessian_does(classes: int) -> None:
    """For rows of unit norm the Hessian there is (I - 1/K)/K for every direction of the features."""
    model = model_problem(
        dimension=6 * classes, lipschitz=1.0, data=0.5, ridge=0.0, distance=1.0, diameter=None, outputs=classes
    )
    uniform = np.full(classes, 1 / classes)
    values = np.linalg.eigvalsh(np.diag(uniform) - np.outer(uniform, uniform))
    assert float(np.sum(model.count * model.curvature)) == pytest.approx(float(values.sum()), rel=1e-9)
    assert float(model.curvature.max()) == pytest.approx(0.5 * float(values.max()), rel=1e-9)  # half lies in one
    assert float(model.count.sum()) == 6 * (classes - 1)


IMAGES = DataShape(
    records=60_000, features=784, classes=10, clients=1, largest_client=60_000, smallest_client=60_000, bound=1.0
)


def test_drawn_rounds_take_long_steps_that_may_fall_and_few_passes() -> None:
    """Their draws are secret whether or not a step contracts; within 2/smoothness most would be left unlearnt."""
    found = {}
    for name, wish in (("short", ScheduleRequest(step_size=4.0)), ("free", ScheduleRequest())):
        model = ModelPlan(kind="softmax", classes=10)
        target = Target(epsilon=1.0, delta=1e-5, neighbours="zero-out")
        asked = Task(data=IMAGES, model=model, target=target, schedule=wish)
        found[name] = HiddenRequest(order="independent").design(asked)
    run = found["free"].method.run  # type: ignore[attr-defined]
    steps = per_round(run.step_size, run)
    assert run.passes <= 10
    assert float(steps.max()) > 2 / run.smoothness
    assert steps[0] > 1.5 * steps[-1]
    assert found["free"].risk is not None
    assert found["short"].risk is not None
    assert found["free"].risk < 0.9 * found["short"].risk


def test_exchanged_records_that_draw_a_round_are_weighed_too() -> None:
    draft = drafted({"kind": "hidden"}, task(neighbours="replace-one"))
    assert draft.designed is not None
    assert "independent" in {row.order for row in draft.designed.considered}

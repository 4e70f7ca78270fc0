"""Attacks on the real trainer: what one unit moves, how steps stretch, what the last model gives away.

The gap and the Lipschitz constant of every round are measured on the code that trains, not on formulas; the last model
is sampled on neighbouring data and told apart; a curious client's chances are counted one arrangement at a time.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

from fedveil.accounting.grid import choose_grid
from fedveil.accounting.hidden import rounds_of
from fedveil.accounting.observers import Participation, observe
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.stages.train.hidden.deal import Batch, deal
from fedveil.stages.train.hidden.method import Deal, Hidden
from fedveil.stages.train.hidden.steps import Rule, State, step
from fedveil.theory.views import looks_of_many_rounds, looks_of_one_round
from unit.plans import some_plan, some_records

MODELS = [
    ModelPlan(kind="logistic", classes=2, radius=2.0),
    ModelPlan(kind="logistic", classes=2, radius=None, clip=0.1, l2=0.3),
    ModelPlan(kind="logistic", classes=2, radius=0.3, clip=99.0),
    ModelPlan(kind="softmax", classes=4, radius=2.0, clip=0.2),
    ModelPlan(kind="softmax", classes=3, radius=2.0, clip=math.sqrt(2 / 3), l2=0.1),
    ModelPlan(kind="smoothed-hinge", classes=2, radius=2.0, smoothing=0.3, clip=0.7),
    ModelPlan(kind="huber", classes=0, radius=2.0, threshold=0.7, l2=0.3),
]
DEALS: list[tuple[str, Deal, int]] = [("record", "records", 60), ("client", "clients", 12), ("record", "clients", 12)]


def moved(rule: Rule, model: Vector, batch: Batch) -> Vector:
    """Where the trainer goes from a model in the first round, without noise."""
    state = State(0, np.rint(model / rule.unit))
    return step(rule, state, batch, np.zeros(model.size)).position * rule.unit


def batch_of(features: Vector, targets: Vector, weights: Vector | None) -> Batch:
    return Batch(features, targets, np.sqrt(np.sum(features**2, axis=1)), weights)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.kind}-{m.clip}-{m.l2}-{m.radius}")
@pytest.mark.parametrize(("unit", "dealt", "clients"), DEALS)
def test_one_unit_moves_a_step_no_further_than_is_charged(
    model: ModelPlan, unit: str, dealt: Deal, clients: int
) -> None:
    """A unit replaced by its worst opposite, or left out; and two models through one step of size 2/smoothness."""
    records = some_records(clients=clients, classes=model.classes or 0)
    size, batch = (1, 10) if unit == "record" else (5, 3)
    count = 60 if unit == "record" else 12
    smooth = model.constants(1.0).smoothness
    settings = {"batch": batch, "rounds": count // batch, "step_size": 2 / smooth}
    plan = some_plan(records, model=model, unit=unit, deal=dealt, **settings)
    rule, charged = Rule.of(plan), rounds_of(plan.run)
    first, rng = deal(plan, records, Entropy.from_seed(3)).batch(0), np.random.default_rng(0)
    weights = np.ones(first.targets.size) if first.weights is None else first.weights
    slack = 2 * rule.unit * math.sqrt(plan.dimension) + 1e-12
    largest = 0.0
    for _ in range(25):
        at = rng.normal(size=plan.dimension)
        at *= min(plan.radius, 6.0) * rng.uniform(0.2, 1.2) / np.linalg.norm(at)
        scores = at.reshape(3, -1)
        worst = scores[:, 0] - (scores[:, -1] if scores.shape[1] > 1 else 0.0)
        worst = worst / np.linalg.norm(worst) * (1 - 1e-12)
        pair = []
        for sign, label in ((1.0, rng.integers(2)), (rng.choice([-1.0, 1.0]), rng.integers(2))):
            features, targets = first.features.copy(), first.targets.copy()
            features[:size] = sign * worst
            targets[:size] = (label * (model.classes - 1)) if model.classes else 2 * label - 1
            pair.append((features, targets))
        one, other = (moved(rule, at, batch_of(*data, first.weights)) for data in pair)
        without = weights.copy()
        without[:size] = 0.0
        none = moved(rule, at, batch_of(*pair[0], without))
        assert np.linalg.norm(one - other) <= charged.swap[0] + slack
        assert np.linalg.norm(one - none) <= charged.swap[0] / 2 + slack
        largest = max(largest, float(np.linalg.norm(one - none)) / (charged.swap[0] / 2))
        near = at + rng.normal(size=at.size) * 10 ** rng.uniform(-3, 0.5)
        alike = batch_of(np.tile(worst, (first.targets.size, 1)), pair[0][1], first.weights)
        for data in (batch_of(*pair[0], first.weights), alike):
            apart = np.linalg.norm(moved(rule, at, data) - moved(rule, near, data))
            assert apart <= charged.lipschitz[0] * (np.linalg.norm(at - near) + slack) + slack
    assert largest > 0.2  # the attack reaches the order of what is charged


# The last model, sampled.


def labelled(labels: list[int], owner: list[int] | None = None, rows: list[float] | None = None) -> Records:
    """Records of one feature; with a clip of .05 each pushes by .05 whatever the model: what one unit can do."""
    own = np.arange(len(labels)) if owner is None else np.asarray(owner)
    features = np.ones((len(labels), 1)) if rows is None else np.array(rows)[:, None]
    return Records(
        features=features,
        targets=np.array(labels, dtype=np.float64),
        owner=own.astype(np.int64),
        clients=int(own.max()) + 1,
        bound=1.0,
        classes=2,
    )


def tiny_plan(records: Records, unit: str, dealt: Deal, **run: object) -> Plan:
    model = ModelPlan(kind="logistic", classes=2, radius=5.0, clip=0.05)
    constants = model.constants(1.0)
    settings = {
        "records": records.clients if unit == "client" else len(records),
        "lipschitz": constants.lipschitz,
        "smoothness": constants.smoothness,
        "diameter": 10.0,
        "step_size": 1.0,
    }
    mechanism = LastIterate(**(settings | run))  # type: ignore[arg-type]
    target = Target(epsilon=1.0, delta=0.02, unit=unit, neighbours=mechanism.neighbours)  # type: ignore[arg-type]
    plan = Plan(
        name="t", data=records.shape, model=model, target=target, method=Hidden(run=mechanism, deal=dealt), grid=0
    )
    noise = plan.hidden.noise()
    return replace(plan, grid=choose_grid(plan.radius, float(noise.min()), float(noise.max())))


def told_apart(first: Vector, second: Vector, delta: float, alarm: float = 1e-8) -> float:
    """An epsilon that is exceeded, with two chances of ``alarm`` to be wrong (Clopper and Pearson).

    The threshold comes from the first half of the samples, the counts from the other.
    """
    half = first.size // 2

    def least(a: Vector, b: Vector, at: float) -> float:
        hits, errors = int(np.sum(a > at)), int(np.sum(b > at))
        low = 0.0 if hits == 0 else beta.ppf(alarm, hits, a.size - hits + 1)
        high = 1.0 if errors == b.size else beta.ppf(1 - alarm, errors + 1, b.size - errors)
        return math.log(max(low - delta, 1e-9) / high)

    sides = [(s * a, s * b) for s in (1, -1) for a, b in ((first, second), (second, first))]
    cuts = [
        (a, b, at) for a, b in sides for at in np.quantile(np.append(a[:half], b[:half]), np.linspace(0.05, 0.95, 19))
    ]
    a, b, at = max(cuts, key=lambda cut: least(cut[0][:half], cut[1][:half], cut[2]))
    return least(a[half:], b[half:], at)


PAIRS = {
    "passes": (labelled([0, 1, 0, 1]), labelled([0, 1, 0, 0]), "record", "records", {"passes": 2, "batch": 2}),
    "public": (labelled([0, 1]), labelled([0, 0]), "record", "records", {"order": "public", "passes": 2, "rounds": 1}),
    "clients": (
        labelled([0, 1, 0, 0], [0, 0, 1, 1]),
        labelled([0, 1, 1, 1], [0, 0, 1, 1]),
        "client",
        "clients",
        {"rounds": 1, "batch": 2, "passes": 2},
    ),
    "zero-out": (
        labelled([0, 1]),
        labelled([0, 1], rows=[1.0, 0.0]),
        "record",
        "records",
        {"rounds": 1, "passes": 2, "batch": 2, "neighbours": "zero-out"},
    ),
    "stopping": (labelled([0, 1]), labelled([1, 1]), "record", "records", {"order": "public", "stopping": "random"}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_last_model_cannot_be_told_apart_better_than_certified(name: str) -> None:
    """800 real runs on each of two data sets; false alarm 2e-8. With a tenth of the noise it does raise the alarm."""
    first, second, unit, dealt, run = PAIRS[name]
    settings = {"rounds": 2, "batch": 1, "order": "secret", "noise_std": 0.1} | run
    if name == "public":
        settings["batch"] = 2
    plan = tiny_plan(first, unit, dealt, **settings)
    promised = promise(plan, "final-model").epsilon
    assert 0.3 < promised < 4
    found = told_apart(sampled(plan, first, 0), sampled(plan, second, 10**6), plan.target.delta)
    assert found <= promised
    quieter = replace(plan, method=replace(plan.hidden, run=replace(plan.run, noise_std=0.01)), grid=plan.grid - 3)
    found = told_apart(sampled(quieter, first, 0, 200), sampled(quieter, second, 10**6, 200), plan.target.delta)
    assert found > 0.5 * min(promised, 2.0)


def sampled(plan: Plan, records: Records, first: int, count: int = 800) -> Vector:
    return np.array([train(plan, records, Entropy.from_seed(first + i)).model[0] for i in range(count)])


# A curious client's chances, counted.


def counted(batch: tuple[int, ...], units: int, held: int, place: int) -> dict[tuple[int, int], float]:
    """The law of (its units in the victim's round, distance of its next look), over all slots it may have."""
    slots = [t for t, size in enumerate(batch) for _ in range(size)] + [-1] * (units - sum(batch))
    slots.remove(place)  # the victim's own
    law: dict[tuple[int, int], float] = {}
    every = list(itertools.combinations(slots, held))
    for own in every:
        others = [(t - place) % len(batch) for t in own if t >= 0 and t != place]
        kind = (own.count(place), min(others, default=len(batch)))
        law[kind] = law.get(kind, 0.0) + 1 / len(every)
    return law


def undercharged(batch: tuple[int, ...], units: int, held: int, most: int) -> float:
    """By how much the views that know k units or more and look d rounds later or sooner are charged too little."""
    rounds, worst = len(batch), 0.0
    sizes = np.array(batch, dtype=np.float64)
    looks = list(looks_of_many_rounds(sizes, units, held, np.arange(1, max(rounds, 2)), most))
    for place, size in enumerate(batch):
        law = counted(batch, units, held, place)
        for known, due in itertools.product(range(held + 1), range(1, rounds + 1)):
            true = sum(chance for (k, d), chance in law.items() if k >= known and d <= due)
            left = (size - known) / size + 1e-12
            charged = sum(look.chance[place] for look in looks if look.distance <= due and look.left[place] <= left)
            worst = max(worst, true - charged)
    return worst


DEALT = [((3, 3, 3), 9, 3), ((3, 3, 3), 11, 3), ((4, 2, 3), 10, 4), ((5, 5), 10, 4), ((6, 6), 13, 5), ((4,), 6, 2)]


@pytest.mark.parametrize(("batch", "units", "held"), DEALT)
def test_a_client_with_several_units_is_charged_for_every_view(batch: tuple[int, ...], units: int, held: int) -> None:
    assert undercharged(batch, units, held, most=99) < 1e-12


@pytest.mark.parametrize(("batch", "units", "held"), [((4, 2, 3), 10, 4), ((5, 5), 10, 4), ((6, 6), 13, 5)])
def test_grouping_the_numbers_charges_no_less(batch: tuple[int, ...], units: int, held: int) -> None:
    assert undercharged(batch, units, held, most=3) < 1e-12


@pytest.mark.parametrize(("batch", "units", "held"), [((4, 4, 4), 12, 2), ((4, 2, 6), 16, 2), ((3, 3), 9, 1)])
def test_a_client_dealt_whole_looks_when_it_is_there(batch: tuple[int, ...], units: int, held: int) -> None:
    rounds = len(batch)
    looks = list(looks_of_one_round(np.array(batch, dtype=np.float64), units, held, np.arange(1, rounds)))
    slots = [t for t, size in enumerate(batch) for _ in range(size // held)] + [-1] * ((units - sum(batch)) // held)
    for place, size in enumerate(batch):
        others = list(slots)
        others.remove(place)
        true: dict[tuple[int, int], float] = {}
        for slot in others:
            kind = (held if slot == place else 0, rounds if slot in (place, -1) else (slot - place) % rounds)
            true[kind] = true.get(kind, 0.0) + 1 / len(others)
        charged: dict[tuple[int, int], float] = {}
        for look in looks:
            kind = (round((1 - look.left[place]) * size), look.distance)
            charged[kind] = charged.get(kind, 0.0) + float(look.chance[place])
        assert {k: v for k, v in charged.items() if v} == pytest.approx(true)


def test_a_larger_client_sees_no_less() -> None:
    """Both are in every round, so they see every model; beyond a million units there the second is charged for less."""
    units = 2 * 10**10
    run = LastIterate(
        rounds=20,
        batch=units // 20,
        records=units,
        order="secret",
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        noise_std=1e-4,
    )
    smaller, larger = (
        observe(
            run, "curious-client", Participation(largest_client=k, clients=50, every_round=True), delta=1e-6
        ).epsilon
        for k in (10**6, 10**6 + 1)
    )
    assert larger >= smaller

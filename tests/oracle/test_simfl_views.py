"""What each party of simfl has seen, counted message by message, against what is certified for it."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import norm

from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.target import Target
from fedveil.stages.train.simfl.acts import Message, train_simfl
from fedveil.stages.train.simfl.method import SimFL
from fedveil.theory.divergence import gaussian_delta
from unit.plans import some_records

DELTA = 1e-5


def plan_of(rounds: int, parties: int, neighbours: Neighbours) -> Plan:
    records = some_records(count=60, clients=parties)
    return Plan(
        name="trial",
        data=records.shape,
        model=ModelPlan(kind="logistic", classes=2, radius=5.0, clip=0.5),
        target=Target(epsilon=9.0, delta=DELTA, neighbours=neighbours),
        method=SimFL(rounds=rounds, step_size=0.5, clip=0.6, noise_multiplier=6.0),
        grid=-38,
        seeded=True,
    )


def exact(mu: float) -> float:
    low, high = 0.0, 500.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > DELTA else (low, middle)
    return high


def information(seen: list[Message], observer: int, victim: int, parties: int, moved: float) -> float:
    """mu of one party about a record of another: one Gaussian for each message that depends on it, counted.

    A gradient of the victim's party carries that party's noise alone. A model is the sum of all parties' gradients up
    to what the observer knows: its own part. In rounds that it led itself it made the model from what it had got.
    """
    squares = 0.0
    for message in seen:
        if message.receiver != observer:
            continue
        if message.what == "gradient" and message.sender == victim:
            squares += (moved / 6.0) ** 2
        if message.what == "model":
            squares += moved**2 / (6.0**2 * (parties - 1))
    return math.sqrt(squares)


@pytest.mark.parametrize(("rounds", "parties"), [(2, 3), (6, 3), (7, 3), (9, 2), (23, 10)])
@pytest.mark.parametrize(("neighbours", "moved"), [("zero-out", 1.0), ("replace-one", 2.0)])
def test_the_certificate_of_every_view_is_what_was_received(
    rounds: int, parties: int, neighbours: Neighbours, moved: float
) -> None:
    plan, records, seen = plan_of(rounds, parties, neighbours), some_records(count=60, clients=parties), list[Message]()
    train_simfl(plan, records, Entropy.from_seed(0), lambda done: None, wire=seen.append)
    method, answer = plan.method, promise(plan, "curious-client")
    assert isinstance(method, SimFL)
    worst = 0.0
    for group in method.groups(parties):
        for observer in group:
            views = {information(seen, observer, v, parties, moved) for v in range(parties) if v != observer}
            assert max(views) - min(views) < 1e-12
            epsilon = exact(max(views))
            name = f"party {observer + 1}" if len(group) == 1 else f"parties {group[0] + 1} to {group[-1] + 1}"
            stated = answer[name]
            assert stated.epsilon == pytest.approx(epsilon, rel=3e-3)
            assert stated.epsilon >= epsilon
            got = Counter(m.what for m in seen if m.receiver == observer)
            assert f"was sent {got['gradient']} noised gradients" in stated.reason
            assert f"the model in the other {got['model']} rounds" in stated.reason
            worst = max(worst, epsilon)
    assert answer.epsilon == pytest.approx(worst, rel=3e-3)
    assert answer.epsilon >= worst


@pytest.mark.parametrize(("adversary", "share"), [("final-model", 5), ("every-model", 5), ("server", 1)])
def test_outsiders_meet_the_noise_of_all_and_a_reader_of_all_messages_that_of_one(adversary: str, share: int) -> None:
    plan = plan_of(12, 5, "zero-out")
    mu = math.sqrt(12 / share) / 6.0
    assert promise(plan, adversary).epsilon == pytest.approx(exact(mu), rel=3e-3)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0.5, 0.7, 0.9, 1.2])
def test_a_sum_of_rounded_normals_is_a_rounded_sum_with_uniforms_up_to_the_stated_factor(steps: float) -> None:
    """Two shares: the exact convolution against cells of a normal with one uniform, in closed form."""
    k = np.arange(-60, 61)
    cells = norm.cdf((k + 0.5) / steps) - norm.cdf((k - 0.5) / steps)
    both = np.convolve(cells, cells)
    at, wide = np.arange(-120, 121), steps * math.sqrt(2)

    def twice(x: np.ndarray) -> np.ndarray:  # the normal distribution function, integrated
        return x * norm.cdf(x / wide) + wide * norm.pdf(x / wide)

    smooth = twice(at + 1.0) - 2 * twice(at + 0.0) + twice(at - 1.0)
    middle = np.abs(at) <= 3 * wide
    error = np.max(np.abs(both[middle] / smooth[middle] - 1))
    assert error <= 3 * math.exp(-((math.pi * steps) ** 2)) + 1e-11
    assert steps > 0.7 or error > 1e-4  # the bound is of the right size where rounding is coarse

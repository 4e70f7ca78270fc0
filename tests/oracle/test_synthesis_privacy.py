"""What a generator promises, worked out a second way; and the game that an attacker plays on its measurements."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from fedveil.audit.claim import claim_of_alone
from fedveil.audit.game import Seen, play
from fedveil.core.values import Indices, Vector
from fedveil.data.records import DataShape
from fedveil.data.row_rule import Labels
from fedveil.jobs.attack.generator import Measuring, choices_seen, counts_seen, generator_game
from fedveil.noise.entropy import Entropy
from fedveil.planning.promises import ADVERSARIES
from fedveil.privacy.guarantee import Neighbours
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.measuring import Measurer
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.sums import COUNTED, STEPS, Measurement, Sums
from fedveil.stages.synthesise.budget import synthesis_plan
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import Counted, table_counts

SHAPE = DataShape(records=4000, features=4, classes=2, clients=20, largest_client=300, smallest_client=100, bound=1.0)
OUTLINE = Outline(
    numbers=("age", "debt"), texts=("ward",), scale={"age": (0.0, 100.0)}, categories={"ward": ("a", "b")}
)
LABELS = Labels(name="ill", classes=("no", "yes"))


def planned(neighbours: Neighbours = "zero-out", trust: Trust = CENTRAL, epsilon: float = 1.0) -> MeasuredPlan:
    target = Target(epsilon=epsilon, delta=1e-5, neighbours=neighbours)
    return synthesis_plan("test", GeneratorRequest(), OUTLINE, SHAPE, target, trust, labels=LABELS)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """In fifty digits, by the two tails of the normal distribution."""
    with mpmath.workdps(50):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("trust", [CENTRAL, Trust(server="secure-aggregation", dropouts=2, colluders=3)])
def test_all_measurements_together_are_one_gaussian(neighbours: Neighbours, trust: Trust) -> None:
    """A unit moves the counts by their norm if it is zeroed out, and by the root of 2 times it if it is replaced."""
    plan = planned(neighbours, trust)
    moved = {"zero-out": 1.0, "replace-one": math.sqrt(2)}[neighbours]
    mu = moved * math.sqrt(sum(1 / one.noise**2 for one in plan.sums.measurements))
    promised = plan.promise("final-model").epsilon
    assert 0.99 < promised <= 1.0
    assert gaussian_delta(promised, mu) <= 1e-5
    assert gaussian_delta(promised * 0.999, mu) > 1e-5


def test_every_observer_has_an_answer_and_none_is_told_less_than_the_reader() -> None:
    plan = planned(trust=Trust(server="secure-aggregation", dropouts=2, colluders=3))
    found = {who: plan.promise(who).epsilon for who in ADVERSARIES}
    assert all(found[who] >= found["final-model"] for who in ADVERSARIES)
    # of 20 clients 15 surely add the planned noise together, so one message has a fifteenth of its variance
    mu = math.sqrt(15 * sum(1 / one.noise**2 for one in plan.sums.measurements))
    assert gaussian_delta(found["server"], mu) <= 1e-5 < gaussian_delta(found["server"] * 0.999, mu)


def test_a_plan_reads_back_and_every_number_of_it_counts() -> None:
    plan = planned(trust=Trust(server="secure-aggregation"))
    assert MeasuredPlan.read(plan.text()) == plan
    assert MeasuredPlan.read(planned().text()) == planned()
    assert planned(epsilon=2.0).hash != planned().hash


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.3, 2.0, 1.1)])
def test_one_record_moves_the_counts_by_no_more_than_is_stated(weights: tuple[float, ...]) -> None:
    """All pairs of records of a small table: alone a record adds its norm, and two differ by the root of 2 times it."""
    codes = np.array([[a, b, c] for a in range(3) for b in range(2) for c in range(2)])
    groups = (np.array([0, 1, 1]), np.array([0, 1]), np.array([0, 1]))
    pairs = ((0, 1), (0, 2), (1, 2))
    tables = [Counted(pair, tuple(groups[c] for c in pair), w) for pair, w in zip(pairs, weights, strict=True)]
    add_up = table_counts(codes, tables)
    rows = [add_up(np.array([row])).astype(object) for row in range(len(codes))]
    norm = sum(int(weight * STEPS) ** 2 for weight in weights)
    for first in rows:
        assert (first >= 0).all()
        assert (first**2).sum() == norm <= sum(Fraction(weight) ** 2 for weight in weights) * STEPS**2
        assert max(((first - second) ** 2).sum() for second in rows) == 2 * norm


GAMES = 20_000  # each with and without the record
CELLS = 4


def guessed_right(noise: float, stated: Measurement, seed: int) -> float:
    """How often the best guess is right: whether a record is there, by the noisy counts along its contribution."""
    given = Measurement(name=stated.name, size=stated.size, bound=stated.bound, noise=noise)
    tables = [Counted((column,), (np.arange(CELLS),)) for column in range(2)]
    alone = table_counts(np.array([[1, 2]]), tables)(np.arange(1))

    def repeated(there: bool) -> Sums:
        return lambda rows: np.tile(alone * there, GAMES)

    won = 0
    for there in (False, True):
        nobody = np.zeros(0, dtype=np.int64)
        by = Measurer(
            owner=nobody,
            clients=1,
            present=nobody,
            target=Target(epsilon=1.0, delta=1e-5, neighbours="zero-out"),
            entropy=Entropy.from_seed(2 * seed + there),
        )
        found = by.noisy_sum(given, repeated(there), GAMES * alone.size).reshape(GAMES, -1)
        along = found @ (alone / np.linalg.norm(alone.astype(float)))
        won += int(((along > stated.bound / 2) == there).sum())
    return won / (2 * GAMES)


def test_the_distinguishing_game_stays_below_the_claim_and_catches_noise_a_tenth_too_small() -> None:
    """The best guess is right with chance Phi(mu / 2). 40,000 games err by 0.0018 or less: six deviations are 2e-9."""
    stated = Measurement(name="ones", size=GAMES * 2 * CELLS, bound=math.sqrt(2), noise=0.5)
    claim = float(mpmath.ncdf(1 / (2 * stated.noise)))
    error = 6 * math.sqrt(claim * (1 - claim) / (2 * GAMES))
    assert guessed_right(stated.noise, stated, 1) <= claim + error
    assert guessed_right(0.9 * stated.noise, stated, 1) > claim + error


@dataclass
class Altered:
    """Measures as planned, but with other noise: this part of it, on these measurements alone."""

    inner: Measurer
    part: float
    names: tuple[str, ...] = COUNTED

    @property
    def present(self) -> Indices:
        return self.inner.present

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        part = self.part if planned.name in self.names else 1.0
        return self.inner.noisy_sum(replace(planned, noise=part * planned.noise), contributions, size)


def wins(first: Seen, second: Seen) -> float:
    """How often the sign of the attacker's score is right."""
    return float(np.concatenate([first.scores[:, 0] > 0, second.scores[:, 0] < 0]).mean())


def stated(neighbours: Neighbours, epsilon: float, trust: Trust = CENTRAL) -> MeasuredPlan:
    """A plan whose whole budget goes to counts: all ranges and words are stated."""
    target = Target(epsilon=epsilon, delta=1e-5, neighbours=neighbours)
    outline = replace(OUTLINE, scale={"age": (0.0, 100.0), "debt": (0.0, 100.0)})
    return synthesis_plan("test", GeneratorRequest(), outline, SHAPE, target, trust, labels=LABELS)


def test_the_game_on_all_measurements_stays_below_the_claim_and_catches_noise_a_tenth_too_small() -> None:
    """Single columns, all pairs and the chosen pair together, as they are measured one after another.

    The best guess is right with chance Phi(mu / 2). Five deviations of 7200 games: a false alarm has a chance of 3e-7.
    """
    plan, games = stated("zero-out", 16.0), 3600
    mu = math.sqrt(sum(1 / one.noise**2 for one in plan.sums.measurements))
    claim = float(mpmath.ncdf(mu / 2))
    error = 5 * math.sqrt(claim * (1 - claim) / (2 * games))
    assert wins(*counts_seen(plan, games, Entropy.from_seed(1))) <= claim + error
    assert wins(*counts_seen(plan, games, Entropy.from_seed(2), lambda by: Altered(by, 0.9))) > claim + error


@pytest.mark.parametrize(
    ("neighbours", "trust"),
    [("zero-out", CENTRAL), ("replace-one", Trust(server="trusted", dropouts=1, colluders=1))],
)
def test_the_audit_finds_nothing_against_a_plan_and_something_against_one_sum_with_too_little_noise(
    neighbours: Neighbours, trust: Trust
) -> None:
    """False alarms have a chance of 1e-6 each: those of the audit itself."""
    plan = stated(neighbours, 2.0, trust)
    claim = claim_of_alone(plan, "final-model")

    def verdict(by: Measuring) -> str:
        seen = counts_seen(plan, 180, Entropy.from_seed(3), by)
        return play(*seen, claim, adversary="final-model", delta=1e-5, alarm=1e-6).verdict

    assert verdict(lambda by: by) == "consistent"
    for name in COUNTED:
        assert verdict(lambda by, name=name: Altered(by, 0.03, (name,))) == "broken", name


def test_a_choice_of_pairs_without_noise_is_caught() -> None:
    plan = stated("replace-one", 1.0)
    honest = generator_game(plan, 90, Entropy.from_seed(4))
    assert [one.attack for one in honest] == [f"distinguishing-game on the {what}" for what in ("counts", "choice")]
    assert [one.verdict for one in honest] == ["consistent", "consistent"]
    seen = choices_seen(plan, 90, Entropy.from_seed(4), lambda by: Altered(by, 1e-3, ("ones", "pairs")))
    claim = claim_of_alone(plan, "final-model")
    assert play(*seen, claim, adversary="final-model", delta=1e-5, alarm=1e-6).verdict == "broken"

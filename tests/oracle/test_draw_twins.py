"""The distinguishing game on units that draw their own rounds: the right code is not accused, faulty twins are caught.

False alarms: each game has a chance of at most 1e-6 (ALARM), whatever the laws. That a twin is caught was seen at these
fixed seeds.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedveil.algorithms.hidden.deal import Batch
from fedveil.algorithms.hidden.steps import Rule, State, step
from fedveil.attack.batched_runs import Parts, joins, many_runs
from fedveil.attack.game import game, what_hiding_buys
from fedveil.attack.neighbours import worst_pair
from fedveil.audit.finding import Finding
from fedveil.mechanism import LastIterate
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from unit.audit_plans import game_plan

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
ALARM = 1e-6
RUNS = 20_000


def coins(records: int, rate: float, rounds: int, passes: int = 1, noise_std: float = 0.1, **more: Any) -> Plan:
    settings: dict[str, Any] = {"largest_batch": records, "neighbours": "zero-out"} | more
    return game_plan(records, order="poisson", rate=rate, rounds=rounds, passes=passes, noise_std=noise_std, **settings)


def picked(records: int, passes: int, noise_std: float, features: int = 1, **more: Any) -> Plan:
    """As many rounds as records."""
    settings: dict[str, Any] = {"largest_batch": records, "neighbours": "zero-out"} | more
    return game_plan(
        records,
        order="independent",
        rounds=records,
        passes=passes,
        noise_std=noise_std,
        features=features,
        **settings,
    )


@pytest.mark.parametrize(("neighbours", "loud"), [("zero-out", True), ("replace-one", False)])
@pytest.mark.parametrize("order", ["poisson", "independent"])
def test_the_correct_code_keeps_its_promise_to_every_observer(order: str, neighbours: str, loud: bool) -> None:
    """Five games each; false alarm 1e-6 for all five."""
    plan = coins(4, 0.3, 2, 2, features=2, neighbours=neighbours)
    if order == "independent":
        plan = picked(3, 2, 0.1, features=2, neighbours=neighbours)
    found = game(plan, 10_000, Entropy.from_seed(1), alarm=ALARM / 5, loud=loud)
    assert {f.verdict for f in found} == {"consistent"}
    assert loud or {f.adversary: f.measured for f in found}["every-model"] > 0.1  # the attack is no empty one
    assert all(f.certified is None or f.measured <= f.certified for f in found)


def reused(run: LastIterate, runs: int, turn: int, entropy: Entropy) -> Mask:
    """Every pass has the draws of the first."""
    return joins(run, runs, turn % run.rounds, entropy)


def shuffled(run: LastIterate, runs: int, turn: int, entropy: Entropy) -> Mask:
    """A loader that shuffles all records in every pass and hands out batches of one size."""
    (which, part), count = divmod(turn, run.rounds), run.records or 1
    words = entropy.stream("shuffle", which).words(runs * count).reshape(runs, count)
    return np.asarray(np.argsort(np.argsort(words, axis=1), axis=1) * run.rounds // count == part)


def silent(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    """A round that nobody joined adds no noise."""
    assert batch.weights is not None
    empty = batch.weights.reshape(noise.shape[0], -1).sum(axis=1) == 0
    return step(rule, state, batch, np.where(empty[:, None], 0.0, noise))


TWINS: dict[str, tuple[Plan, Parts, bool]] = {
    "coins reused across passes": (coins(10, 0.1, 1, 16, 0.07), Parts(joins=reused), False),
    "rounds reused across passes": (picked(4, 6, 0.06), Parts(joins=reused), False),
    "a shuffled loader charged as independent": (picked(8, 1, 0.035, features=2), Parts(joins=shuffled), True),
    "empty rounds that stay silent, poisson": (coins(2, 0.5, 12, noise_std=0.06), Parts(step=silent), False),
    "empty rounds that stay silent, independent": (picked(6, 2, 0.035), Parts(step=silent), False),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_faulty_twin_is_caught(name: str) -> None:
    plan, parts, loud = TWINS[name]
    wrong, right = (_game(plan, p, loud) for p in (parts, Parts()))
    assert wrong.verdict == "broken", wrong.evidence
    assert right.verdict == "consistent", right.evidence


def _game(plan: Plan, parts: Parts, loud: bool) -> Finding:
    seed = Entropy.from_seed(7)
    return game(plan, RUNS, seed, adversaries=["every-model"], alarm=ALARM, parts=parts, loud=loud)[0]


def test_hiding_is_measured_for_draws_too() -> None:
    rows = what_hiding_buys(coins(4, 0.3, 6), 5_000, Entropy.from_seed(2))
    assert {found.verdict for _, found in rows} == {"consistent"}


def test_a_stack_joins_at_the_rate_and_once_a_pass() -> None:
    """40000 coins of chance .3 within 6 deviations of their mean; false alarm below 1e-8."""
    plan = coins(4, 0.3, 2, 1)
    found = np.stack([joins(plan.run, 5_000, turn, Entropy.from_seed(3)) for turn in range(2)])
    assert abs(found.mean() - 0.3) < 6 * np.sqrt(0.3 * 0.7 / found.size)
    one = picked(4, 2, 0.1)
    both = np.stack([joins(one.run, 100, turn, Entropy.from_seed(3)) for turn in range(8)])
    assert np.all(both.reshape(2, 4, 100, 4).sum(axis=1) == 1)
    trace = many_runs(one, worst_pair(one).first, 3, Entropy.from_seed(5))
    assert np.all(trace.places == -1)

"""The distinguishing game on the real code: the correct code is never called broken, faulty twins are.

False alarms: each game has a chance of at most 1e-6 by Markov's inequality and Clopper-Pearson (ALARM), whatever the
laws. The other direction, that a twin is caught, was seen at these fixed seeds.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import play
from fedveil.engine.train import train
from fedveil.jobs.attack.batched_runs import Parts, many_runs
from fedveil.jobs.attack.game import game, what_hiding_buys
from fedveil.jobs.attack.observed_runs import worst_pair
from fedveil.jobs.attack.releases import releases
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.hidden.deal import Batch
from fedveil.stages.train.hidden.steps import Rule, State, draw, step
from unit.audit_plans import dpsgd_game_plan, fedavg_game_plan, game_plan

Vector = NDArray[np.float64]
ALARM = 1e-6
RUNS = 20_000

PLANS = {
    "public": game_plan(),
    "secret": game_plan(order="secret"),
    "passes": game_plan(rounds=2, batch=2, passes=3, noise_std=0.2, neighbours="zero-out", order="secret"),
    "several parameters": game_plan(features=3, rounds=2, batch=2),
    "full batches": game_plan(rounds=1, batch=4, passes=4, noise_std=0.2),
    "softmax": None,
}


def softmax_plan() -> Plan:
    plan = game_plan(features=2, rounds=2, batch=2)
    model = replace(plan.model, kind="softmax")
    constants = model.constants(1.0)
    run = replace(plan.run, lipschitz=constants.lipschitz, smoothness=constants.smoothness)
    return replace(plan, model=model, method=replace(plan.hidden, run=run))


def advantage(finding: Finding) -> float:
    """The largest difference between true and false positives that the attack showed."""
    region = finding.details["region"]
    return float(np.max(np.subtract(region["true_positives"], region["false_positives"])))


@pytest.mark.parametrize("name", PLANS)
def test_the_correct_code_keeps_its_promise_to_every_observer(name: str) -> None:
    """Five games each, false alarm 5e-6 / 5 each."""
    plan = PLANS[name] or softmax_plan()
    found = game(plan, RUNS, Entropy.from_seed(1), alarm=ALARM / 5)
    assert [f.adversary for f in found] == [
        "final-model", "curious-client", "every-model", "server-with-secure-aggregation", "server",
    ]  # fmt: skip
    assert {f.verdict for f in found} == {"consistent"}
    assert advantage({f.adversary: f for f in found}["server-with-secure-aggregation"]) > 0.05  # no empty attack
    assert all(f.measured <= (f.certified or 0.0) for f in found)
    assert all(f.measured <= f.details["likely"]["epsilon"] for f in found)  # less sure, and more
    assert all(0 <= f.details["reachable"] <= f.certified for f in found if f.certified)


def test_a_stack_is_the_real_run() -> None:
    """The same noise through the trainer's own loop and through the stack gives the same positions to the bit."""
    plan = game_plan(features=3, rounds=2, batch=2, passes=2, radius=0.2)
    pair = worst_pair(plan)
    trace = many_runs(plan, pair.first, 3, Entropy.from_seed(5))
    for run in range(3):
        state = State(0, np.zeros(3))
        batches = [Batch(pair.first.features[k : k + 2], pair.first.targets[k : k + 2], np.linalg.norm(pair.first.features[k : k + 2], axis=1), None) for k in (0, 2)]  # fmt: skip  # noqa: E501
        for turn in range(4):
            state = step(trace.rule, state, batches[turn % 2], trace.noise[run, turn])
            np.testing.assert_array_equal(state.position, trace.positions[run, turn])
    alone = train(plan, pair.first, Entropy.from_seed(5)).model
    assert alone.shape == (3,)


# Faulty twins. Each wraps one part of the real round.


def quieter(rule: Rule, turn: int, size: int, entropy: Entropy) -> Vector:
    return np.rint(0.9 * draw(rule, turn, size, entropy))


def four_fifths(rule: Rule, turn: int, size: int, entropy: Entropy) -> Vector:
    return np.rint(0.8 * draw(rule, turn, size, entropy))


def without_a_share(rule: Rule, turn: int, size: int, entropy: Entropy) -> Vector:
    """One of two shares of the noise was never added."""
    return np.rint(np.sqrt(1 / 2) * draw(rule, turn, size, entropy))


def used_twice(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    return step(rule, state, replace(batch, weights=np.full(batch.targets.size, 2.0)), noise)


def clipped_at_twice(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    return step(replace(rule, clip=2 * rule.clip), state, batch, noise)


def reused(rule: Rule, turn: int, size: int, entropy: Entropy) -> Vector:
    return draw(rule, 0, size, entropy)


def restarted(rule: Rule, turn: int, size: int, entropy: Entropy) -> Vector:
    """After a restart before round 2 the generator begins again."""
    return draw(rule, turn % 2, size, entropy)


def unclipped(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    return step(replace(rule, clip=1e99), state, batch, noise)


def unprojected(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    return step(replace(rule, radius=2.0**40), state, batch, noise)


def divided_by_those_who_answered(rule: Rule, state: State, batch: Batch, noise: Vector) -> State:
    runs = state.position.shape[0]
    answered = (batch.norms.reshape(runs, -1) > 0).sum(axis=1)
    many = np.maximum(answered, 1) / rule.batches[state.round]
    weights = np.repeat(1 / many, batch.norms.size // runs)
    return step(rule, state, replace(batch, weights=weights), noise)


TWINS: dict[str, tuple[Plan, Parts, Adversary]] = {
    "noise 10% too small": (game_plan(), Parts(draw=quieter), "server-with-secure-aggregation"),
    "noise 10% too small, seen at the server": (game_plan(), Parts(draw=quieter), "server"),
    "noise 0.8 of the plan": (game_plan(), Parts(draw=four_fifths), "server-with-secure-aggregation"),
    "a share of the noise missing": (game_plan(), Parts(draw=without_a_share), "server-with-secure-aggregation"),
    "a record used twice": (game_plan(), Parts(step=used_twice), "server-with-secure-aggregation"),
    "clip doubled": (game_plan(), Parts(step=clipped_at_twice), "server-with-secure-aggregation"),
    "noise drawn once and reused": (game_plan(), Parts(draw=reused), "every-model"),
    "seed reused after a restart": (game_plan(), Parts(draw=restarted), "every-model"),
    "clip missing": (game_plan(), Parts(step=unclipped), "final-model"),
    "projection missing": (
        game_plan(radius=0.02, rounds=4, order="secret", noise_std=0.04), Parts(step=unprojected), "final-model",
    ),
    "divided by those who answered": (
        game_plan(rounds=1, batch=2, records=2, noise_std=0.1, neighbours="zero-out"),
        Parts(step=divided_by_those_who_answered),
        "server-with-secure-aggregation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
def test_a_faulty_twin_is_caught(name: str) -> None:
    plan, parts, adversary = TWINS[name]
    wrong, right = (_game(plan, adversary, p) for p in (parts, Parts()))
    assert wrong.verdict == "broken", wrong.evidence
    assert right.verdict == "consistent", right.evidence


def test_a_secret_order_that_is_known_is_caught() -> None:
    """The records are used in a known order, and who sees every model is promised what secret draws give."""
    promised = game_plan(records=16, rounds=16, order="independent", largest_batch=16, neighbours="zero-out")
    (wrong,) = game(
        game_plan(records=16, rounds=16, neighbours="zero-out"),
        100_000,
        Entropy.from_seed(7),
        adversaries=["every-model"],
        claims=lambda who: claim_of_plan(promised, who),
        alarm=ALARM,
    )
    assert wrong.verdict == "broken", wrong.evidence


def _game(plan: Plan, adversary: Adversary, parts: Parts) -> Finding:
    return game(plan, 100_000, Entropy.from_seed(7), adversaries=[adversary], alarm=ALARM, parts=parts)[0]


@pytest.mark.parametrize("name", ["poisson", "shuffled", "independent", "fedavg"])
def test_released_sums_keep_their_promise_and_half_the_noise_is_caught(name: str) -> None:
    plan = fedavg_game_plan() if name == "fedavg" else dpsgd_game_plan(name)
    found = game(plan, 4_000, Entropy.from_seed(3), alarm=ALARM)[0]
    assert found.verdict == "consistent"
    assert advantage(found) > 0.05
    claim = claim_of_plan(plan, found.adversary)
    seen = releases(_quieter_method(plan), 4_000, Entropy.from_seed(4))
    assert play(*seen, claim, adversary=found.adversary, delta=1e-2, alarm=ALARM).verdict == "broken"


def _quieter_method(plan: Plan) -> Plan:
    method: Any = plan.method
    if method.kind == "fedavg":
        return replace(plan, method=replace(method, noise_multiplier=method.noise_multiplier / 2))
    return replace(
        plan,
        method=replace(
            method, client_settings=(replace(method.client_settings[0], noise=method.client_settings[0].noise / 2),)
        ),
    )


def test_a_shuffle_charged_as_poisson_is_caught() -> None:
    charged, runs = dpsgd_game_plan("poisson"), dpsgd_game_plan("shuffled")
    claim = claim_of_plan(charged, "server")
    seen = releases(runs, 100_000, Entropy.from_seed(5))
    found = play(*seen, claim, adversary="server", delta=1e-2, alarm=ALARM)
    assert found.verdict == "broken", found.evidence


def test_hiding_is_worth_something_to_the_attacker_too() -> None:
    plan = game_plan(rounds=4, records=4, noise_std=0.1)
    last, middle, every = (found for _, found in what_hiding_buys(plan, 20_000, Entropy.from_seed(2)))
    shown = [found.details["as_gaussian"] for found in (last, middle, every)]
    assert shown[0] < shown[2]
    assert shown[0] <= shown[1] + 0.2
    assert {last.verdict, middle.verdict, every.verdict} == {"consistent"}

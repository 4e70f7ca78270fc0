"""Runs together: exact composition against exact mechanisms, and caps against the best adaptive adversary there is."""

import math
from collections.abc import Callable
from functools import cache

import pytest

from fedveil.accounting.compare import account_for
from fedveil.ledger.books import check, settle_cap
from fedveil.ledger.budget import Cap, CapExceeded, Cost
from fedveil.ledger.costs import Charged, together
from fedveil.ledger.transaction import costs_of
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.promises import promise, promise_at
from fedveil.privacy.mechanism import ApproximateDP, Compose, Gaussian, Mechanism, Repeat
from fedveil.privacy.target import Target
from fedveil.stages.train.dpsgd.method import DpSgd
from fedveil.stages.train.dpsgd.settings import ClientSettings
from fedveil.theory.composition import worst_upper
from unit.plans import some_plan, some_records

QUESTION = ("final-model", "record", "replace-one")
ABOUT = {"adversary": "final-model", "unit": "record", "neighbours": "replace-one"}


def released(noise: float, rounds: int = 8) -> Plan:
    """Shuffled full batches of one client: one Gaussian a round, of which the exact composition is known."""
    records = some_records(clients=1)
    settings = ClientSettings(rate=1.0, rounds=rounds, clip=1.0, noise=noise, step_size=0.1)
    base = some_plan(records, seeded=False)
    return Plan(
        name="trial",
        data=records.shape,
        model=base.model,
        target=Target(epsilon=5.0, delta=1e-5),
        method=DpSgd(client_settings=(settings,), sampling="shuffled"),
        grid=-40,
    )


def run_of(plan: Plan) -> Charged:
    return Charged(costs_of([(plan, 1)], plan.target), ((write_plan(plan), 1),))


def known(epsilon: float, delta: float = 0.0) -> Charged:
    return Charged((Cost(epsilon=epsilon, delta=delta, **ABOUT),))  # type: ignore[arg-type]


def mechanism(plan: Plan) -> Mechanism:
    assert isinstance(plan.method, DpSgd)
    return plan.method.client_settings[0].charged("shuffled", "individual", "replace-one")


@pytest.mark.parametrize("times", [1, 2, 5, 20])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_equal_runs_compose_to_a_little_more_than_the_exact_value(times: int, delta: float) -> None:
    plan = released(20.0)
    exact = account_for(Repeat(of=mechanism(plan), times=times), delta=delta).epsilon
    found = together([run_of(plan)] * times, QUESTION, delta)
    assert exact * (1 - 1e-9) <= found <= exact * 1.03
    if times > 1 and delta == 1e-5:
        assert found < times * promise(plan, "final-model").epsilon


def test_different_runs_and_a_run_known_by_its_epsilon_alone_compose() -> None:
    first, second = released(20.0), released(35.0, rounds=3)
    parts = (mechanism(first), mechanism(second), ApproximateDP(epsilon=0.2, delta=1e-6))
    exact = account_for(Compose(parts=parts), delta=1e-5).epsilon
    found = together([run_of(first), run_of(second), known(0.2, 1e-6)], QUESTION, 1e-5)
    assert exact * (1 - 1e-9) <= found <= exact * 1.03


def test_hidden_runs_compose_by_their_curves() -> None:
    plan = some_plan(some_records(), seeded=False, noise_std=8.0)
    one, five = (together([run_of(plan)] * times, QUESTION, 1e-5) for times in (1, 5))
    assert one == promise(plan, "final-model").epsilon
    assert one < five < 5 * one
    # The same runs with every update seen are Gaussian, and tell more: their exact composition is an upper bound.
    seen = together([run_of(plan)] * 5, ("every-model", "record", "replace-one"), 1e-5)
    assert five <= seen


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
def test_the_curve_of_a_hidden_run_says_no_less_than_its_certificate_and_little_more(delta: float) -> None:
    plan = some_plan(some_records(600, clients=600), seeded=False, noise_std=4.0)
    uses = run_of(plan).uses(QUESTION)
    assert uses is not None
    certified = promise(plan, "final-model", delta).epsilon
    assert certified * (1 - 1e-6) <= worst_upper([uses], delta) <= certified * 1.03


@pytest.mark.parametrize("times", [1, 5])
def test_hidden_runs_of_which_every_model_was_seen_are_gaussians(times: int) -> None:
    """One pass: a record moves one of the Gaussians by its share of a batch, here 2 L / (sigma sqrt(batch))."""
    plan = some_plan(some_records(), seeded=False, noise_std=8.0)
    share = 2 * plan.run.lipschitz / (8.0 * math.sqrt(10))
    exact = account_for(Repeat(of=Gaussian(noise_multiplier=1 / share), times=times), delta=1e-5).epsilon
    found = together([run_of(plan)] * times, ("every-model", "record", "replace-one"), 1e-5)
    assert exact * (1 - 1e-6) <= found <= exact * 1.02


def test_fewer_bounds_promise_no_more() -> None:
    plan = some_plan(some_records(600, clients=600), seeded=False, noise_std=4.0)
    best = promise_at(plan, "final-model", 0.5)
    names = {bound.name for bound in best.bounds if bound.status == "certified"}
    assert best.certified_by in names
    assert len(names) > 1
    assert promise_at(plan, "final-model", 0.5, {best.certified_by}).delta == best.delta
    assert all(promise_at(plan, "final-model", 0.5, {name}).delta >= best.delta for name in names)
    assert promise_at(plan, "final-model", 0.5, {"no such bound"}).delta == 1.0


def test_what_is_not_known_is_infinite() -> None:
    plan = released(20.0)
    assert together([run_of(plan), known(math.inf)], QUESTION, 1e-5) == math.inf
    assert together([run_of(plan)], ("final-model", "client", "replace-one"), 1e-5) == math.inf
    assert together([known(0.5, 1e-4)], QUESTION, 1e-5) == math.inf  # its delta alone is more
    assert together([], QUESTION, 1e-5) == 0.0


def cap(epsilon: float, delta: float, order: float | None = None) -> Cap:
    return Cap(epsilon=epsilon, delta=delta, order=order, **ABOUT)  # type: ignore[arg-type]


def passes(limit: Cap, before: list[Charged], asked: Charged) -> bool:
    try:
        check([limit], before, asked)
    except CapExceeded:
        return False
    return True


def best_adversary(offers: list[float], epsilon: float, depth: int, allowed: Callable[..., bool]) -> float:
    """The largest delta at ``epsilon`` that any way to choose the next mechanism by what came out can reach.

    The mechanisms are randomised responses. Delta is a sum over leaves, so the best choice at each node is found alone.
    """

    @cache
    def at(loss: float, spent: tuple[float, ...]) -> float:
        """Of one unit of mass of Q here, the mass of P being exp(loss)."""
        stop = max(math.exp(loss) - math.exp(epsilon), 0.0)
        if len(spent) == depth:
            return stop
        best = stop
        for offer in offers:
            if allowed(spent, offer):
                yes = 1 / (1 + math.exp(offer))  # of Q, where P has exp(offer) times as much
                after = tuple(sorted((*spent, offer)))
                value = yes * at(round(loss + offer, 12), after) + (1 - yes) * at(round(loss - offer, 12), after)
                best = max(best, value)
        return best

    return at(0.0, ())


@pytest.mark.parametrize("order", [None, 1.5, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-2), (1.5, 1e-3), (2.0, 0.05)])
def test_no_adaptive_choice_of_runs_breaks_a_cap(order: float | None, epsilon: float, delta: float) -> None:
    limit, offers = cap(epsilon, delta, order), [0.1, 0.25, 0.4, 0.7, 1.0]

    @cache
    def allowed(spent: tuple[float, ...], offer: float) -> bool:
        return passes(limit, [known(one) for one in spent], known(offer))

    assert best_adversary(offers, epsilon, 7, allowed) <= delta


def test_exact_composition_would_be_no_rule_for_a_cap() -> None:
    """Stopping when the exact composition reaches the cap lets an adaptive adversary go beyond it."""
    offers = [0.1, 0.25, 0.4, 0.7, 1.0]
    worst = 0.0
    for epsilon, delta in ((1.0, 1e-2), (1.5, 1e-3), (2.0, 0.05)):

        @cache
        def allowed(spent: tuple[float, ...], offer: float, epsilon: float = epsilon, delta: float = delta) -> bool:
            return together([known(one) for one in (*spent, offer)], QUESTION, delta) <= epsilon

        worst = max(worst, best_adversary(offers, epsilon, 5, allowed) / delta)
    assert worst > 1.01


def test_a_new_cap_takes_the_rule_that_lets_more_runs_pass() -> None:
    run = run_of(released(30.0))
    one = run.costs[0].epsilon
    assert settle_cap(cap(one, 1e-5), [], run).order is None  # exactly one run fits, by its epsilon
    limit = settle_cap(cap(3 * one, 1e-5), [], run)
    assert limit.order is not None
    count = 0
    while passes(limit, [run] * count, run):
        count += 1
    assert count >= 5
    assert together([run] * count, QUESTION, 1e-5) <= 3 * one
    assert settle_cap(cap(3 * one, 1e-5), [], Charged(run.costs)).order is None  # nothing but its epsilon is known

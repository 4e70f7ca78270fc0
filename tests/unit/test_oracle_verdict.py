"""The oracle's verdict: right accountants pass, planted ones do not, and what cannot be followed is refused."""

import json
from dataclasses import replace

import pytest

from fedveil import CannotCertify, LastIterate, account_for
from fedveil.audit.exact import Instance, Line, Step, exact, released, single
from fedveil.audit.oracle import Design, Shape, as_record, check, instance_of, setting, worst_case
from fedveil.privacy.mechanism import Gaussian

LAST = LastIterate(rounds=3, place=3, step_size=0.5, lipschitz=1.0, smoothness=0.5, diameter=1.0, noise_std=2.0)
RUNS = {
    "last": LAST,
    "two follow": replace(LAST, rounds=5),
    "passes": replace(LAST, passes=2, diameter=6.0),
    "no projection": replace(LAST, diameter=None, place=2),
    "secret": replace(LAST, order="secret", place=None, batch=2),
    "stopped": replace(LAST, stopping="random", place=2),
    "not convex": replace(LAST, convex=False, place=2),
    "not smooth": replace(LAST, smoothness=None, place=2),
    "strongly convex": replace(LAST, strong_convexity=0.4, place=2),
    "laplace": replace(LAST, noise="laplace", place=2),
    "zero-out": replace(LAST, neighbours="zero-out", place=2),
    "independent": replace(LAST, order="independent", place=None, diameter=4.0, neighbours="zero-out"),
    "independent, passes": replace(LAST, rounds=2, passes=2, order="independent", place=None, diameter=4.0),
    "poisson": replace(LAST, order="poisson", rate=0.3, place=None, diameter=4.0),
    "poisson, zero-out": replace(LAST, order="poisson", rate=0.3, place=None, diameter=4.0, neighbours="zero-out"),
}
DRAWN = {name: run for name, run in RUNS.items() if run.sampled}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dimension", ["one", "any"])
def test_the_accountants_are_consistent(name: str, dimension: str) -> None:
    found = check(RUNS[name], 1e-5, dimension=dimension, sweeps=2)  # type: ignore[arg-type]
    assert found.verdict == "consistent", found.evidence
    assert found.ratio is not None
    assert found.ratio >= 1


@pytest.mark.parametrize(
    "honest",
    [
        LAST,
        replace(LAST, diameter=None, place=1),
        replace(LAST, diameter=8.0, place=1, neighbours="zero-out"),
        replace(LAST, diameter=8.0, passes=3, rounds=1, place=1),
    ],
    ids=["last", "no projection", "zero-out", "passes"],
)
def test_a_claim_for_five_percent_more_noise_is_broken(honest: LastIterate) -> None:
    boast = account_for(replace(honest, noise_std=2.0 * 1.05), delta=1e-5)
    found = check(honest, 1e-5, answer=boast, sweeps=2)
    assert found.verdict == "broken"
    row = next(row for row in found.evidence if row.bound == boast.certified_by)
    assert row.exact_delta > row.claimed_delta == 1e-5
    assert row.epsilon == boast.epsilon < found.worst.epsilon_lower
    assert found.ratio is not None
    assert found.ratio < 1
    assert check(honest, 1e-5, sweeps=2).verdict == "consistent"


@pytest.mark.parametrize("name", DRAWN)
def test_a_claim_for_other_draws_than_were_made_is_broken(name: str) -> None:
    """Twice as many rounds to pick among, or coins that fall half as often: the real draws tell more than that."""
    run = replace(DRAWN[name], noise_std=1.0)
    other = replace(run, rate=0.15) if run.order == "poisson" else replace(run, rounds=2 * run.rounds)
    boast = account_for(other, delta=1e-3)
    assert check(run, 1e-3, answer=boast, sweeps=1).verdict == "broken"
    found = check(run, 1e-3, sweeps=1)
    assert found.verdict == "consistent"
    assert found.ratio is not None
    assert 1 <= found.ratio < 1.25


def test_all_outcomes_of_the_draws_are_followed() -> None:
    """Against an enumeration of its own: who joined when, and how likely that is."""
    two = instance_of(setting(replace(DRAWN["independent, passes"], rounds=3)), Design(place=None))
    assert len(two.first) == len(two.second) == 9
    assert all(weight == pytest.approx(1 / 9) for weight, _ in two.first)
    coins = instance_of(setting(DRAWN["poisson, zero-out"]), Design(place=None))
    silent = coins.second[0][1][0]  # zero-out: a victim that takes part adds nothing
    joined = [sum(step != silent for step in chain) for _, chain in coins.first]
    assert sorted(joined) == [0, 1, 1, 1, 2, 2, 2, 3]
    for count, (weight, _) in zip(joined, coins.first, strict=True):
        assert weight == pytest.approx(0.3**count * 0.7 ** (3 - count))
    gaps = {step.line.values[0] - silent.line.values[0] for _, chain in coins.first for step in chain}
    assert sorted(gaps) == pytest.approx([-0.5, 0.0])  # step times lipschitz over the batch


def test_a_claim_for_half_the_gap_is_broken_through_several_passes() -> None:
    run = RUNS["passes"]
    boast = account_for(replace(run, neighbours="zero-out"), delta=1e-5)  # sensitivity of the wrong neighbours
    assert check(run, 1e-5, answer=boast, sweeps=2).verdict == "broken"


@pytest.mark.parametrize("diameter", [1.0, 3.0, 10.0])
def test_steps_that_the_penalty_alone_throws_out_are_charged(diameter: float) -> None:
    """Step times penalty 4: two models come out three times as far apart, before any record speaks."""
    run = LastIterate(
        rounds=4,
        place=2,
        step_size=4.0,
        lipschitz=0.2,
        smoothness=1.0,
        strong_convexity=1.0,
        diameter=diameter,
        noise_std=1.0,
    )
    assert check(run, 1e-5, sweeps=3).verdict == "consistent"


def test_the_record_is_json() -> None:
    boast = account_for(replace(LAST, noise_std=4.0), delta=1e-5)
    record = json.loads(json.dumps(as_record(check(LAST, 1e-5, answer=boast, sweeps=1)), allow_nan=False))
    assert record["verdict"] == "broken"
    assert record["evidence"][0]["exact_delta"] > record["evidence"][0]["claimed_delta"]
    assert record["exact"]["epsilon_lower"] <= record["exact"]["epsilon_upper"]


def test_the_search_is_deterministic_and_more_of_it_is_no_worse() -> None:
    run = RUNS["two follow"]
    once, again = worst_case(run, 1e-5, sweeps=3), worst_case(run, 1e-5, sweeps=3)
    assert (once.design, once.epsilon_lower) == (again.design, again.epsilon_lower)
    assert worst_case(run, 1e-5, sweeps=0).epsilon_lower <= once.epsilon_lower * (1 + 1e-3)


def test_the_open_place_is_the_worst_of_the_places() -> None:
    run = replace(LAST, diameter=4.0, step_size=(0.9, 0.3, 0.1))  # the first place leaks the most
    worst = max(worst_case(replace(run, place=place), 1e-5, sweeps=1).epsilon_lower for place in (1, 2, 3))
    assert worst_case(replace(run, place=None), 1e-5, sweeps=1).epsilon_lower == pytest.approx(worst, rel=0.05)


def test_designs_keep_the_constants_of_the_run() -> None:
    run = replace(LAST, smoothness=1.5, strong_convexity=0.5, batch=2, step_size=0.8)
    design = Design(place=2, before=Shape(0.3, 1.0, 0.5), beside=Shape(-1.0, 0.7, 0.0), last=Shape(1.0, 0.2, -1.0))
    instance = instance_of(setting(replace(run, place=2)), design)
    for (_, chain), (_, other) in zip(instance.first, instance.second, strict=True):
        for number, (step, twin) in enumerate(zip(chain, other, strict=True)):
            for line in (step.line, twin.line):
                assert max(line.slopes) <= 1 - 0.8 * 0.5 + 1e-12
                assert min(line.slopes) >= 1 - 0.8 * 1.5 - 1e-12
            gaps = [abs(a - b) for a, b in zip(step.line.values, twin.line.values, strict=True)]
            assert gaps == pytest.approx([2 * 0.8 / 2 if number == 1 else 0.0] * len(gaps))


def test_what_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ValueError, match="be asked for a hidden run"):
        check(Gaussian(noise_multiplier=1.0), 1e-5)  # type: ignore[arg-type]
    with pytest.raises(CannotCertify, match="up to 2000 rounds"):
        check(replace(LAST, rounds=3000), 1e-5)
    with pytest.raises(CannotCertify, match="too wide for its noise"):
        worst_case(replace(LAST, diameter=1e6), 1e-5)
    with pytest.raises(CannotCertify, match="in all places together"):
        worst_case(replace(RUNS["secret"], rounds=200), 1e-5)
    with pytest.raises(CannotCertify, match="in all outcomes together"):
        worst_case(replace(RUNS["poisson"], rounds=9), 1e-5)
    with pytest.raises(CannotCertify, match="in all outcomes together"):
        worst_case(replace(RUNS["independent"], rounds=20, passes=3), 1e-5)
    with pytest.raises(ValueError, match="delta must"):
        worst_case(LAST, 0.0)


def test_bad_instances_are_refused() -> None:
    line = Line((-1.0, 1.0), (-1.0, 1.0))
    chain = (Step(line, 1.0),)
    good = Instance(lo=-1, hi=1, start=0.0, first=single(chain), second=single(chain))
    assert released(good).epsilon_lower(1e-5) == 0.0
    with pytest.raises(ValueError, match="lie between lo and hi"):
        replace(good, start=2.0)
    with pytest.raises(ValueError, match="the whole of"):
        replace(good, hi=2.0)
    with pytest.raises(ValueError, match="weights of sum 1"):
        replace(good, first=((0.5, chain),))
    with pytest.raises(ValueError, match="increase"):
        Line((0.0, 0.0), (1.0, 1.0))
    with pytest.raises(ValueError, match="be finite"):
        Line((0.0, 1.0), (float("nan"), 1.0))
    with pytest.raises(ValueError, match="be finite and positive"):
        Step(line, float("nan"))
    with pytest.raises(ValueError, match="one Gaussian noise"):
        replace(good, noise="laplace", clipped_last=False)
    with pytest.raises(ValueError, match="one Gaussian noise"):
        replace(good, first=((0.5, chain), (0.5, (*chain, Step(line, 2.0)))), clipped_last=False)
    with pytest.raises(ValueError, match="non-negative"):
        exact(good, released(good).first.edges)

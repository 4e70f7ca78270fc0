"""Games that stop early: right claims are accused no more often than stated, faults are found as by all runs."""

import numpy as np
from scipy.stats import binom

from fedveil.audit.claim import Claim, GaussianCurve
from fedveil.audit.confidence import least_rate, most_rate
from fedveil.audit.game import Game, Seen, play
from fedveil.jobs.attack.game import Sitting, game
from fedveil.noise.entropy import Entropy
from unit.audit_plans import game_plan


def gaussian_claim(mu: float) -> Claim:
    return Claim(tuple((GaussianCurve(mu).epsilon_at(d), d) for d in (1e-3, 0.01, *np.linspace(0.02, 0.4, 12))))


def seen(scores: np.ndarray) -> Seen:
    return Seen(np.zeros((scores.size, 0)), scores[:, None])


def sequential(claim: Claim, mu: float, runs: int, alarm: float, generator: np.random.Generator) -> Game:
    one = Game(claim=claim, adversary="final-model", delta=1e-2, alarm=alarm, runs=runs)
    size = one.choosing
    while not one.decided:
        one.add(seen(generator.normal(mu, 1, size)), seen(generator.standard_normal(size)))
        size = min(runs // 25, runs - one.played) or 1
    return one


def test_right_claims_are_accused_no_more_often_than_stated_and_end_early() -> None:
    """100 games at alarm 0.1, looked at after every block; beyond the 1e-7 quantile of binomial(100, 0.1) it fails."""
    claim, generator = gaussian_claim(0.8), np.random.default_rng(0)
    games = [sequential(claim, 0.8, 2000, 0.1, generator) for _ in range(100)]
    assert sum(one.broken for one in games) <= binom.isf(1e-7, 100, 0.1)
    assert np.mean([one.played for one in games]) <= 1000


def test_a_fault_is_found_as_often_as_by_all_runs_and_earlier() -> None:
    """The claim is broken by noise 0.7 of what it claims; 15 games of at most 4000 runs, false alarm 1e-6."""
    claim, generator, whole = gaussian_claim(0.8), np.random.default_rng(1), 0
    games = [sequential(claim, 0.8 / 0.7, 4000, 1e-6, generator) for _ in range(15)]
    for _ in range(15):
        sides = seen(generator.normal(0.8 / 0.7, 1, 4000)), seen(generator.standard_normal(4000))
        whole += play(*sides, claim, adversary="final-model", delta=1e-2, alarm=1e-6).verdict == "broken"
    assert sum(one.broken for one in games) >= 0.8 * whole > 10
    assert np.mean([one.played for one in games]) < 3000


def test_limits_hold_at_all_times_together() -> None:
    """2000 paths of 300 trials at 5%: those that ever leave their limits are at most binomial(2000, 0.05), to 1e-7."""
    generator = np.random.default_rng(2)
    counts = np.cumsum(generator.random((2000, 300)) < 0.3, axis=1)
    limits = {
        (hits, trials): (least_rate(hits, trials, 0.05, always=True), most_rate(hits, trials, 0.05, always=True))
        for trials in range(1, 301, 7)
        for hits in range(trials + 1)
    }
    left = 0
    for path in counts:
        left += any(not low <= 0.3 <= high for low, high in (limits[int(path[t - 1]), t] for t in range(1, 301, 7)))
    assert 0 < left <= binom.isf(1e-7, 2000, 0.05)


def test_the_number_of_processes_changes_no_result() -> None:
    plan, said = game_plan(), list[str]()
    alone, together = (
        game(plan, 2000, Entropy.from_seed(1), sitting=Sitting(processes=count, watch=said.append)) for count in (1, 2)
    )
    assert [one.as_json() for one in alone] == [one.as_json() for one in together]
    assert all("of at most 2,000 runs" in line for line in said)
    assert said

"""The best of a random number of runs: the bound against exact laws, Renyi accounting, composition, and the game.

False alarms: each game contradicts a true claim with a chance of at most 1e-6 (ALARM), whatever the laws. That a
planted error is caught was seen at these fixed seeds.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from fedveil.accounting.selection import TrialCurve
from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import Seen, play
from fedveil.engine.best_of import number_of_trials
from fedveil.jobs.attack.game import scenes
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import certified_points, promise
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.divergence import gaussian_delta
from fedveil.theory.selection import TruncatedNegativeBinomial, selected_epsilon
from unit.audit_plans import dpsgd_game_plan, game_plan, tuned_game_plan

Vector = NDArray[np.float64]
ALARM = 1e-6
GRID = np.linspace(-14.0, 14.0, 40_001)
STEP = GRID[1] - GRID[0]


def phi_of(law: TruncatedNegativeBinomial) -> Callable[[Vector], Vector]:
    """E[K x^(K-1)], in closed form."""
    return lambda x: law.mean * law.gamma ** (law.eta + 1) * (1 - (1 - law.gamma) * x) ** -(law.eta + 1)


def exact_delta(mu: float, epsilon: float, phi: Callable[[Vector], Vector]) -> float:
    """The hockey-stick divergence of the best of K normal scores, by quadrature; the worst of all four directions."""
    found = []
    for move in (mu, -mu):
        p = norm.pdf(GRID) * phi(norm.cdf(GRID))
        q = norm.pdf(GRID - move) * phi(norm.cdf(GRID - move))
        for a, b in ((p, q), (q, p)):
            found.append(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * STEP))
    return max(found)


def test_the_law_is_a_law_of_its_mean() -> None:
    for eta in (-0.5, 0.0, 0.5, 1.0, 3.0):
        law = TruncatedNegativeBinomial.of_mean(eta, 7.0)
        most = law.cut(1e-13)
        masses = law.masses(most)
        assert float(masses.sum()) == pytest.approx(1, abs=1e-9)
        assert float(masses @ np.arange(1, most + 1)) == pytest.approx(7.0, rel=1e-6)
        for x in (0.1, 0.9):  # the derivative of the generating function, term by term
            terms = float((masses * np.arange(1, most + 1) * x ** np.arange(most)).sum())
            assert float(phi_of(law)(np.array(x))) == pytest.approx(terms, rel=1e-6)
        assert law.tail(20) >= 1 - float(masses[:20].sum()) - 1e-12
        assert law.tail(most) <= 1e-13


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.5])
def test_never_below_the_exact_law_of_normal_scores(eta: float, mu: float) -> None:
    law = TruncatedNegativeBinomial.of_mean(eta, 10.0)
    for delta in (1e-1, 1e-2, 1e-4):
        epsilon = selected_epsilon(lambda e: gaussian_delta(e, mu), law, delta, law.cut(1e-9), 0.0)
        assert exact_delta(mu, epsilon, phi_of(law)) <= delta


@pytest.mark.parametrize("mean", [10, 30, 100])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_cheaper_than_composing_and_than_the_renyi_form(mean: int, eta: float) -> None:
    """Composition of normal mechanisms is exact; the Renyi form is Theorem 2 of Papernot and Steinke."""
    law = TruncatedNegativeBinomial.of_mean(eta, float(mean))
    for mu in (0.05, 0.2, 1.0):
        found = selected_epsilon(lambda e, mu=mu: gaussian_delta(e, mu), law, 1e-5, law.cut(1e-14), 0.0)
        assert found < gaussian_epsilon(mu * math.sqrt(mean), 1e-5)
        assert gaussian_epsilon(mu, 1e-5) < found < renyi_form(mu, law, 1e-5)


def renyi_form(mu: float, law: TruncatedNegativeBinomial, delta: float) -> float:
    orders = 1 + np.geomspace(1e-2, 1e3, 400)
    inner = (1 - 1 / orders) * orders * mu**2 / 2 + math.log(1 / law.gamma) / orders
    curve = orders * mu**2 / 2 + (1 + law.eta) * inner.min() + math.log(law.mean) / (orders - 1)
    return float(np.min(curve + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)))


def test_a_fixed_number_of_trials_breaks_what_is_promised_for_a_random_one() -> None:
    law = TruncatedNegativeBinomial.of_mean(1.0, 10.0)
    epsilon = selected_epsilon(lambda e: gaussian_delta(e, 1.0), law, 1e-5, law.cut(1e-14), 0.0)
    assert exact_delta(1.0, epsilon, phi_of(law)) <= 1e-5
    assert exact_delta(1.0, epsilon, lambda x: 10 * x**9) > 1e-2


def test_what_is_cut_off_is_paid_or_nothing_is_promised() -> None:
    law = TruncatedNegativeBinomial.of_mean(1.0, 10.0)

    def at(most: int, slip: float = 0.0) -> float:
        return selected_epsilon(lambda e: gaussian_delta(e, 0.3), law, 1e-5, most, slip)

    assert at(40) == math.inf
    assert at(law.cut(1e-12)) < math.inf
    assert at(law.cut(1e-12), slip=1e-4) == math.inf


def test_candidates_count_by_their_mean_and_chords_lie_above() -> None:
    points = [[(gaussian_epsilon(mu, d), d) for d in (0.2, 0.05, 1e-2, 1e-3, 1e-5)] for mu in (0.2, 0.5)]
    curve = TrialCurve.of(points)
    for epsilon in np.linspace(0, 3, 61).tolist():
        exact = (gaussian_delta(epsilon, 0.2) + gaussian_delta(epsilon, 0.5)) / 2
        assert curve.delta(epsilon) >= exact
    assert curve.delta(0.5) <= 1.2 * (gaussian_delta(0.5, 0.2) + gaussian_delta(0.5, 0.5)) / 2
    scored = TrialCurve.of(points, score_mu=1.0)  # a private score that tells more than training does
    assert scored.delta(0.5) == pytest.approx(gaussian_delta(0.5, 1.0))


@pytest.mark.parametrize("plan", [game_plan(order="secret"), dpsgd_game_plan(noise=2.0)], ids=["hidden", "dpsgd"])
def test_our_own_curves_serve_as_they_are_and_selection_beats_their_composition(plan: Plan) -> None:
    """Certified points of a run on its grid, hidden or not; ten runs are composed from the same points."""
    curve = TrialCurve.of([certified_points(plan, "final-model")])
    delta = plan.target.delta
    selected = promise(tuned_game_plan(plan, 10), "final-model").epsilon
    assert promise(plan, "final-model", delta / 10).epsilon < selected < curve.all_seen(10, delta)
    assert promise(tuned_game_plan(plan, 10), "every-model").epsilon >= curve.all_seen(10, delta)


PLAYS, MEAN = 2000, 30


@pytest.fixture(scope="module")
def played() -> tuple[Plan, Vector, Vector]:
    """The last models of many real runs on two neighbouring data sets, along the line between the two.

    One round of all records: a run is a normal mechanism of mu 1, which it is charged as.
    """
    plan = game_plan(rounds=1, batch=4, noise_std=0.05)
    found = scenes(plan, PLAYS * MEAN * 12 // 10, Entropy.from_seed(3))
    models = [scene.along(scene.models(plan.run.total)) for scene in found]
    return tuned_game_plan(plan, MEAN), models[0], models[1]


def best_of(models: Vector, counts: NDArray[np.int64]) -> Vector:
    """The best of so many runs each, if the score grows with the model: as held-out records may have it."""
    ends = np.cumsum(counts)
    assert ends[-1] <= models.size
    return np.array([np.max(models[end - count : end]) for end, count in zip(ends, counts, strict=True)])


def judged(plan: Plan, first: Vector, second: Vector) -> Finding:
    """The game of who sees one number of each play, in both directions."""
    seen = [Seen(own[:, None], np.column_stack([own, -own])) for own in (first, second)]
    claim = claim_of_plan(plan, "final-model")
    return play(seen[0], seen[1], claim, adversary="final-model", delta=plan.target.delta, alarm=ALARM)


def drawn(plan: Plan) -> list[NDArray[np.int64]]:
    assert plan.selection
    found = [[number_of_trials(plan.selection, Entropy.from_seed(k + s)) for k in range(PLAYS)] for s in (0, 10**6)]
    return [np.array(counts) for counts in found]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_game_on_the_selected_model_stays_below_the_claim(played: tuple[Plan, Vector, Vector], sign: int) -> None:
    plan, *models = played
    best = [best_of(sign * own, counts) for own, counts in zip(models, drawn(plan), strict=True)]
    found = judged(plan, best[0], best[1])
    assert found.verdict != "broken"
    assert found.certified is not None
    assert found.measured <= found.certified


@pytest.mark.parametrize("error", ["none", "fixed number", "number leaks", "scores leak"])
def test_planted_errors_are_caught(error: str) -> None:
    """Runs of one round as the normal numbers of mu 1/2 that they are, so that there can be many plays."""
    plan, generator = tuned_game_plan(game_plan(rounds=1, batch=4, noise_std=0.1), 300), np.random.default_rng(5)
    assert plan.selection
    masses = plan.selection.law.masses(plan.selection.most)
    seen = []
    for mean in (0.25, -0.25):
        counts = generator.choice(np.arange(1, masses.size + 1), size=250_000, p=masses / masses.sum())
        counts = np.full(counts.size, 300) if error == "fixed number" else counts
        best = mean + norm.isf(-np.expm1(np.log(generator.random(counts.size)) / counts))
        # Who knows the number k compares the densities of the best of k.
        ratio = best / 2 + (counts - 1) * (norm.logcdf(best - 0.25) - norm.logcdf(best + 0.25))
        added = mean * counts + np.sqrt(counts) * generator.normal(size=counts.size)  # the sum of all scores
        seen.append({"number leaks": ratio, "scores leak": added}.get(error, best))
    verdict = judged(plan, seen[0], seen[1]).verdict
    assert verdict == ("consistent" if error == "none" else "broken")

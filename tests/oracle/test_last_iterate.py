"""No bound below the truth: every bound on a hidden run against exact one-dimensional chains, and the papers."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from chains import Instance, Loss, Partition, adversaries, exact_pair, random_partition_pair

from fedveil import LastIterate, account_for
from fedveil.accounting.hidden import hidden_run, rounds_of
from fedveil.accounting.last_iterate import evaluators
from fedveil.theory.numerics import smallest_epsilon

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])


def random_run(seed: int) -> LastIterate:
    """Anything a user may write, small enough for an exact chain and noisy enough to be interesting."""
    rng = np.random.default_rng(seed)
    rounds = int(rng.integers(1, 7))
    passes = int(rng.choice([1, 1, 1, 2]))
    smooth = float(rng.uniform(0.2, 2.0))
    lam = float(rng.choice([0.0, 0.0, 0.3])) * smooth
    top = 2 / (smooth + lam) if rng.random() < 0.8 else 3 / smooth
    steps = (
        tuple(float(v) for v in rng.uniform(0.2, 1.0, rounds) * top)
        if rng.random() < 0.5
        else float(rng.uniform(0.2, 1) * top)
    )
    kind = rng.random()
    return LastIterate(
        rounds=rounds,
        passes=passes,
        place=int(rng.integers(1, rounds + 1)),
        step_size=steps,
        lipschitz=float(rng.uniform(0.3, 1.5)),
        smoothness=None if kind < 0.1 else smooth,
        strong_convexity=0.0 if kind < 0.2 else lam,
        convex=kind >= 0.2,
        diameter=float(rng.choice([0.5, 1.0, 3.0])),
        noise_std=float(rng.uniform(0.8, 4.0)),
        neighbours=str(rng.choice(["replace-one", "zero-out"])),  # type: ignore[arg-type]
    )


def chains_of(run: LastIterate) -> tuple[Instance, ...]:
    state = hidden_run(run)
    gaps = np.zeros(run.total)
    uses = state.places[0]
    gaps[uses] = state.rounds.gap[uses]
    # Bounded gradients keep any two images within D + 2 eta L of each other, however steep the map may be.
    contractions = np.minimum(state.rounds.lipschitz, state.rounds.image / state.rounds.diameter)
    return adversaries(list(gaps), list(state.rounds.noise), list(contractions), state.rounds.diameter)


@pytest.mark.parametrize("start", range(0, 100, 20))
def test_no_bound_is_below_an_exact_chain(start: int) -> None:
    """100 random runs, eleven chains each, every certified bound, five epsilons."""
    met = 0
    for seed in range(start, start + 20):
        run = random_run(seed)
        truth = np.max([exact_pair(chain, EPSILONS).lower for chain in chains_of(run)], axis=0)
        for bound in evaluators(run):
            if bound.log_delta is None or bound.status != "certified":
                continue
            for epsilon, exact in zip(EPSILONS, truth, strict=True):
                claimed = math.exp(min(bound.log_delta(float(epsilon)), 0.0))
                assert claimed >= exact, (seed, bound.name, epsilon, run)
                met += exact > 0
    assert met > 100  # the comparison is not empty


@pytest.mark.parametrize("seed", range(12))
def test_random_stopping_is_above_the_mean_of_exact_chains(seed: int) -> None:
    run = replace(random_run(seed + 500), passes=1, stopping="random")
    lower = []
    for chain in chains_of(run):
        stops = [
            exact_pair(
                Instance(
                    rounds=chain.rounds[:r],
                    sigmas=chain.sigmas[:r],
                    lo=chain.lo,
                    hi=chain.hi,
                    start=chain.start,
                ),
                EPSILONS,
            ).lower
            for r in range(run.place or 1, run.rounds + 1)
        ]
        lower.append(np.sum(stops, axis=0) / run.rounds)
    truth = np.max(lower, axis=0)
    for bound in evaluators(run):
        if bound.log_delta is not None and bound.status == "certified":
            for epsilon, exact in zip(EPSILONS, truth, strict=True):
                assert math.exp(min(bound.log_delta(float(epsilon)), 0.0)) >= exact, (bound.name, epsilon)


@pytest.mark.parametrize("seed", range(16))
def test_a_secret_order_is_above_the_exact_mixture(seed: int) -> None:
    """Every arrangement enumerated: linear and curved losses, unequal and left-over batches, one to three passes."""
    rng = np.random.default_rng(seed)
    rounds, batch, passes = int(rng.integers(2, 5)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    spare = int(rng.integers(0, 2))
    lipschitz, step, noise, half = (
        1.0,
        float(rng.uniform(0.2, 0.8)),
        float(rng.uniform(1.0, 3.0)),
        float(rng.choice([0.5, 2.0])),
    )
    zero = rng.random() < 0.4
    run = LastIterate(
        rounds=rounds,
        passes=passes,
        batch=batch,
        records=rounds * batch + spare,
        order="secret",
        step_size=step,
        lipschitz=lipschitz,
        smoothness=0.5,
        diameter=2 * half,
        noise_std=noise,
        neighbours="zero-out" if zero else "replace-one",
    )
    curved = Loss(offset=0.0, lam=0.0, extra=0.5, centre=float(rng.uniform(-half, half)), reach=1.0)
    kinds = (Loss(offset=1.0), Loss(offset=-1.0), Loss(), curved)
    others = tuple(kinds[int(k)] for k in rng.integers(0, 4, rounds * batch + spare - 1))
    exact = random_partition_pair(
        Partition(
            victim=Loss(offset=1.0),
            other=Loss() if zero else Loss(offset=-1.0),
            others=others,
            sizes=(batch,) * rounds,
            etas=(step,) * (rounds * passes),
            sigmas=tuple(float(s) for s in rounds_of(run).noise),
            lo=-half,
            hi=half,
            start=0.0,
            passes=passes,
        ),
        EPSILONS,
    ).lower
    for bound in evaluators(run):
        if bound.log_delta is not None and bound.status == "certified":
            for epsilon, truth in zip(EPSILONS, exact, strict=True):
                assert math.exp(min(bound.log_delta(float(epsilon)), 0.0)) >= truth, (
                    bound.name,
                    epsilon,
                    run,
                )


FIGURE_2 = LastIterate(rounds=40, step_size=0.5, lipschitz=1.0, smoothness=0.5, diameter=1.0, noise_std=2.0)
FIGURE_3 = replace(FIGURE_2, step_size=0.7, strong_convexity=0.2, noise_std=1.0, place=39)
STOPPED = LastIterate(
    rounds=100, step_size=0.05, lipschitz=1.0, smoothness=1.0, diameter=1.0, noise_std=5.0, stopping="random"
)


def federated(batch: int) -> LastIterate:
    """000 Figure 2."""
    return LastIterate(
        rounds=100 // batch,
        batch=batch,
        order="secret",
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        diameter=2.0,
        noise_std=1.5,
    )


TABLE = [  # run, bound, epsilon at delta 1e-5, relative tolerance
    (replace(FIGURE_2, place=39), "unhidden", 4.377, 1e-3),
    (replace(FIGURE_2, place=39), "linear-contraction", 2.754, 1e-3),
    (replace(FIGURE_2, place=39), "block", 1.361, 1e-3),
    (replace(FIGURE_2, place=39), "transport", 1.323, 1e-2),
    (replace(FIGURE_2, place=36), "linear-contraction", 1.160, 1e-3),
    (replace(FIGURE_2, place=36), "block", 0.0588, 1e-3),
    (replace(FIGURE_2, place=36), "transport", 0.0510, 1e-2),
    (FIGURE_3, "unhidden", 9.997, 1e-3),
    (FIGURE_3, "block", 3.209, 1e-3),
    (FIGURE_3, "transport", 3.079, 1e-2),
    (STOPPED, "unhidden", 1.555, 1e-3),
    (STOPPED, "linear-contraction", 1.334, 1e-3),
    (STOPPED, "block", 1.0376, 1e-3),
    (federated(10), "unhidden", 1.649, 1e-3),
    (federated(10), "linear-contraction", 1.6485, 1e-3),
    (federated(10), "block", 1.3979, 1e-3),
    (federated(20), "unhidden", 1.124, 1e-3),
    (federated(20), "block", 1.0007, 1e-3),
    (federated(20), "position", 0.740, 1e-2),
]


@pytest.mark.parametrize(("run", "name", "expected", "tolerance"), TABLE)
def test_the_table_of_known_values(run: LastIterate, name: str, expected: float, tolerance: float) -> None:
    value = _answer(run)[name].epsilon
    assert value == pytest.approx(expected, rel=tolerance)


def test_position_beats_the_program_with_a_hub() -> None:
    """With changes at {s, t, hub} the program gives .893 here; without a hub it is smaller (truth: above .321)."""
    value = _answer(federated(10))["position"].epsilon
    assert value is not None
    assert 0.321 < value <= 0.893


@lru_cache
def _answer(run: LastIterate):  # type: ignore[no-untyped-def]
    return account_for(run, delta=1e-5)


def test_the_certificate_is_the_least_certified_bound() -> None:
    answer = _answer(replace(FIGURE_2, place=36))
    certified = [b.epsilon for b in answer.bounds if b.status == "certified" and b.epsilon is not None]
    assert answer.epsilon == min(certified)
    assert answer[str(answer.certified_by)].epsilon == answer.epsilon


def test_delta_at_the_certified_epsilon_is_the_delta_asked_for() -> None:
    run = federated(20)
    answer = _answer(run)
    back = account_for(run, epsilon=answer.epsilon)
    assert back.delta <= 1e-5 * (1 + 1e-6)
    assert account_for(run, epsilon=0.98 * answer.epsilon).delta > 1e-5


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"smoothness": None}, {"shift", "transport", "position"}),
        ({"diameter": None}, {"linear-contraction", "nonlinear-contraction", "transport"}),
        ({"noise": "laplace", "batch": 1}, {"shift", "block", "transport", "position"}),
        ({"order": "public"}, {"position"}),
    ],
)
def test_bounds_withdraw_with_a_reason(change: dict[str, object], lost: set[str]) -> None:
    answer = account_for(replace(federated(20), **change), delta=1e-5)  # type: ignore[arg-type]
    for bound in answer.bounds:
        if bound.name in lost:
            assert bound.status == "does-not-apply"
            assert bound.epsilon is None
            assert bound.reason
    assert math.isfinite(answer.epsilon)


def test_a_step_too_large_withdraws_the_gain_not_the_answer() -> None:
    """Beyond 2/smoothness the map expands: almost nothing is left of the gain, and what is left is still proved."""
    run = replace(FIGURE_2, place=1, step_size=8.0, diameter=None)  # twice the largest step that contracts
    answer, unhidden = account_for(run, delta=1e-5), account_for(run, delta=1e-5)["unhidden"].epsilon
    contracting = account_for(replace(run, step_size=4.0), delta=1e-5)
    assert unhidden is not None
    assert 5 * contracting.epsilon < 0.9 * unhidden < answer.epsilon <= unhidden
    assert "may expand by 3" in answer["shift"].reason


def test_merging_places_and_thinning_checkpoints_only_costs() -> None:
    """A schedule that hardly changes is handled by the general path; it must be above the constant one, and close."""
    constant = LastIterate(
        rounds=200,
        batch=5,
        order="secret",
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        diameter=1.0,
        noise_std=1.5,
    )
    nearly = replace(constant, step_size=tuple(0.5 * (1 + 1e-9 * (k % 2)) for k in range(200)))
    exact = {e.name: e for e in evaluators(constant)}["block"].log_delta
    general = {e.name: e for e in evaluators(nearly)}["block"].log_delta
    assert exact is not None
    assert general is not None
    fine, coarse = (smallest_epsilon(f, 1e-5, tolerance=1e-6) for f in (exact, general))
    assert fine * (1 - 1e-6) <= coarse <= 1.05 * fine


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_a_changing_schedule_is_above_the_mean_of_its_places(epsilon: float, passes: int) -> None:
    """Places merged into groups and thinned checkpoints, against every place on its own with every checkpoint."""
    rounds = 90
    run = LastIterate(
        rounds=rounds,
        passes=passes,
        batch=3,
        order="secret",
        step_size=tuple(0.6 / (1 + 0.05 * k) * (1 + 0.3 * (k % 3)) for k in range(rounds)),
        lipschitz=1.0,
        smoothness=1.0,
        diameter=0.7,
        noise_std=1.5,
    )
    merged = _block(run)(epsilon)
    single = [_block(replace(run, order="public", place=place))(epsilon) for place in range(1, rounds + 1)]
    mean = math.log(math.fsum(math.exp(value) for value in single) / rounds)
    assert mean <= merged + 1e-9
    assert merged <= mean + math.log(1.6)


def _block(run: LastIterate):  # type: ignore[no-untyped-def]
    return next(bound.log_delta for bound in evaluators(run) if bound.name == "block")

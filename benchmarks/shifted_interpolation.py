"""Subsampled, strongly convex runs of which only the last model is seen, against the method published for them.

J. Bok, W. Su, J. Altschuler, *Shifted Interpolation for Differential Privacy* (ICML 2024), NoisySGD with strongly
convex losses: for every number ``v`` of last rounds the run is f-DP with
f = G(sqrt(2) a c^(v+1) (1 - c^(T-v-1)) / (1 - c)) x C_q(G(sqrt(2) a)) x C_q(G(a))^v, a = 2 L/(b sigma), G the Gaussian
trade-off function and C_q subsampling: what came before is closed in one round with half of its noise. Two numbers of
theirs: by the central limit theorem, as they plot it (it may promise too much), and with the composition worked out
exactly, by our accountant. Ours: the same steps and noise with records that draw their own rounds. Replace-one, delta
1e-5. ``python -m benchmarks.shifted_interpolation`` prints the table of docs/benchmarks.md.
"""

import math

import numpy as np
from scipy.stats import norm

from benchmarks import Row
from fedveil import LastIterate, SampledGaussian, account_for
from fedveil.privacy.mechanism import Compose, Gaussian, Repeat
from fedveil.theory.concentrated import gaussian_epsilon

DELTA = 1e-5
BATCH = 100
SETTINGS = [  # rate, L/(b sigma), contraction of a step, passes
    (0.01, 0.1, 0.98, 20),
    (0.01, 0.1, 0.995, 20),
    (0.0025, 0.1, 0.98, 10),
    (0.04, 0.1, 0.98, 40),
    (0.01, 0.4, 0.98, 20),
    (0.01, 0.8, 0.98, 20),
    (0.01, 1.6, 0.98, 20),
]


def closed_at_once(ratio: float, contraction: float, rounds: int, last: np.ndarray) -> np.ndarray:
    """mu of all that came before the last ``last`` rounds, closed in one of them with half of its noise."""
    before = contraction ** (last + 1) * (1 - contraction ** (rounds - last - 1)) / (1 - contraction)
    return np.asarray(math.sqrt(2) * 2 * ratio * before)


def theirs_by_limit(rate: float, ratio: float, contraction: float, rounds: int) -> tuple[float, int]:
    """Epsilon by the central limit theorem, and the best number of last rounds."""
    last, a = np.arange(1, rounds - 1), 2 * ratio
    one = 2 * (math.exp(a * a) * norm.cdf(1.5 * a) + 3 * norm.cdf(-0.5 * a) - 2)
    squares = rate**2 * (last + 1) * one + closed_at_once(ratio, contraction, rounds, last) ** 2
    return gaussian_epsilon(math.sqrt(float(squares.min())), DELTA), int(last[squares.argmin()])


def theirs(rate: float, ratio: float, contraction: float, rounds: int) -> float:
    """Epsilon with the theorem's composition worked out, at the best of some numbers of last rounds."""
    around = theirs_by_limit(rate, ratio, contraction, rounds)[1]
    best = math.inf
    for last in sorted({min(max(1, round(around * factor)), rounds - 2) for factor in (0.6, 0.8, 0.9, 1.0, 1.1, 1.3)}):
        mu = float(closed_at_once(ratio, contraction, rounds, np.array([last]))[0])

        shift = Gaussian(noise_multiplier=2 / max(mu, 1e-8), neighbours="replace-one")
        parts = (shift, _once(rate, math.sqrt(2) * ratio), Repeat(of=_once(rate, ratio), times=last))
        best = min(best, account_for(Compose(parts=parts), delta=DELTA)["loss-distribution"].epsilon or math.inf)
    return best


def _once(rate: float, ratio: float) -> SampledGaussian:
    return SampledGaussian(sampling="fixed-size", rate=rate, noise_multiplier=1 / ratio, neighbours="replace-one")


def ours(rate: float, ratio: float, contraction: float, rounds: int, order: str) -> float:
    """Epsilon of the last model with the same steps and noise; one pass of independent draws is 1/rate rounds."""
    a_pass = round(1 / rate)
    drawn = {"rate": rate, "rounds": rounds} if order == "poisson" else {"rounds": a_pass, "passes": rounds // a_pass}
    run = LastIterate(
        order=order,  # type: ignore[arg-type]
        batch=BATCH,
        records=round(BATCH / rate),
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        strong_convexity=2 * (1 - contraction),
        noise_std=1 / (ratio * math.sqrt(BATCH)),
        **drawn,  # type: ignore[arg-type]
    )
    return account_for(run, delta=DELTA).epsilon


def measured() -> list[tuple[str, float, float, float, float, float]]:
    """What it is, every model seen, theirs twice, ours for both ways to draw."""
    found = []
    for rate, ratio, contraction, passes in SETTINGS:
        rounds = passes * round(1 / rate)
        name = f"{rate:g}, {ratio:g}, {contraction:g}, {passes}"
        seen = SampledGaussian(sampling="poisson", rate=rate, noise_multiplier=1 / ratio, neighbours="replace-one")
        every = account_for(Repeat(of=seen, times=rounds), delta=DELTA).epsilon
        limit, exact = theirs_by_limit(rate, ratio, contraction, rounds)[0], theirs(rate, ratio, contraction, rounds)
        poisson, independent = (ours(rate, ratio, contraction, rounds, o) for o in ("poisson", "independent"))
        found.append((name, every, limit, exact, poisson, independent))
    return found


def run() -> list[Row]:
    rows = []
    for name, _, limit, exact, poisson, independent in measured():
        detail = f"ours {poisson:.4g} and {independent:.4g}, theirs {exact:.4g} ({limit:.4g} by the limit)"
        rows.append(Row(f"subsampled, strongly convex, {name}: ours over theirs", 1.0, poisson / exact, detail))
    return rows


if __name__ == "__main__":
    print("| rate, L/(bσ), c, passes | every model seen | theirs, limit | theirs, exact | Poisson | independent |")
    print("|---|---|---|---|---|---|")
    for name, *numbers in measured():
        print(f"| {name} | " + " | ".join(f"{value:.4g}" for value in numbers) + " |", flush=True)

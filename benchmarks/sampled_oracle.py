"""How tight hidden runs with secret draws are certified: the certified epsilon over what some run surely attains.

What is attained is exact: losses that contract by the run's own factor in one direction and forget everything before
the last round in another, a record that pushes along the first in all rounds but the last and along the second then.
Given its draws the last model is Gaussian, so the two data sets are mixtures of Gaussians in the plane; delta is
integrated. The truth lies between. ``python -m benchmarks.sampled_oracle`` prints the table of docs/audit-oracle.md.
"""

import math

import numpy as np
from scipy.stats import binom, norm

from benchmarks import Row
from fedveil import LastIterate, account_for

COUNT, SEED, DELTA = 60, 20_261, 1e-5
KINDS = [(order, kind) for order in ("poisson", "independent") for kind in ("zero-out", "replace-one")]
_GRID, _WIDE = 500, 7.5

Draws = tuple[np.ndarray, np.ndarray, np.ndarray]  # pushes along the first direction, along the second, probabilities


def random_run(rng: np.random.Generator, order: str, kind: str) -> LastIterate:
    """5 to 60 rounds, noise multipliers of .5 to 3, some strongly convex, some with several passes of Poisson draws."""
    rounds = int(rng.integers(5, 61))
    noise = float(math.exp(rng.uniform(math.log(0.5), math.log(3.0))))
    rate = float(math.exp(rng.uniform(math.log(0.005), math.log(0.2)))) if order == "poisson" else None
    penalty = float(rng.choice([0.0, 0.0, 0.1, 0.4]))
    return LastIterate(
        order=order,  # type: ignore[arg-type]
        rate=rate,
        rounds=rounds,
        batch=100,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=0.5,
        strong_convexity=penalty,
        noise_std=noise / 10,
        neighbours=kind,  # type: ignore[arg-type]
    )


def draws(run: LastIterate) -> Draws:
    """Where the last model's mean lies, in deviations of its noise, and how probably."""
    rounds, ratio = run.rounds, 0.1 / float(np.max(run.noise_std))
    shrink = (1 - 0.5 * run.strong_convexity) ** np.arange(rounds - 1)[::-1] * (1 - 0.5 * run.strong_convexity)
    scale = math.sqrt(1 + float(np.sum(shrink**2)))
    steps = ratio * shrink / scale
    if run.order == "independent":
        ahead, last = np.append(steps, 0.0), np.append(np.zeros(rounds - 1), ratio)
        return ahead, last, np.full(rounds, 1 / rounds)
    rate = run.rate or 1.0
    if run.strong_convexity == 0:
        ahead, mass = steps[0] * np.arange(rounds), binom.pmf(np.arange(rounds), rounds - 1, rate)
    else:  # sums of different pushes, rounded down to a fine grid: never more than is attained
        cell = ratio / scale / 400
        mass = np.ones(1)
        for push in np.floor(steps / cell).astype(int):
            moved = np.zeros(mass.size + push)
            moved[: mass.size] += (1 - rate) * mass
            moved[push:] += rate * mass
            mass = moved
        ahead = cell * np.arange(mass.size)
    kept = mass > 1e-14
    ahead, mass = ahead[kept], mass[kept]
    first, second = np.meshgrid(ahead, [0.0, ratio], indexing="ij")
    return first.ravel(), second.ravel(), np.multiply.outer(mass, [1 - rate, rate]).ravel()


def density(found: Draws, x: np.ndarray, y: np.ndarray, sign: float) -> np.ndarray:
    first, second, mass = found
    values, where = np.unique(second, return_inverse=True)
    out = np.zeros((x.size, y.size))
    for number, value in enumerate(values):
        here = where == number
        along = norm.pdf(x[:, None] - sign * first[here][None, :]) @ mass[here]
        out += np.multiply.outer(along, norm.pdf(y - sign * value))
    return out


def attained(run: LastIterate) -> float:
    """The exact epsilon of that run, the worse direction."""
    found = draws(run)
    tops = [min(float(axis.max()), 12.0) for axis in found[:2]]
    low = [-_WIDE - (top if run.neighbours == "replace-one" else 0.0) for top in tops]
    x, y = (np.linspace(start, _WIDE + top, _GRID) for start, top in zip(low, tops, strict=True))
    cell = (x[1] - x[0]) * (y[1] - y[0])
    p = density(found, x, y, 1.0) * cell
    if run.neighbours == "replace-one":
        q = density(found, x, y, -1.0) * cell
    else:
        q = np.multiply.outer(norm.pdf(x), norm.pdf(y)) * cell
    below, above = 0.0, 60.0
    for _ in range(40):
        middle = (below + above) / 2
        factor = math.exp(middle)
        delta = max(float(np.maximum(p - factor * q, 0).sum()), float(np.maximum(q - factor * p, 0).sum()))
        below, above = (middle, above) if delta > DELTA else (below, middle)
    return below


def ratios() -> dict[tuple[str, str], list[float]]:
    """Certified over attained, by how records draw and which neighbours."""
    rng = np.random.default_rng(SEED)
    found: dict[tuple[str, str], list[float]] = {kind: [] for kind in KINDS}
    for number in range(COUNT):
        order, kind = KINDS[number % len(KINDS)]
        run = random_run(rng, order, kind)
        exact = attained(run)
        if exact > 1e-3:
            found[order, kind].append(account_for(run, delta=DELTA).epsilon / exact)
    return found


def table(found: dict[tuple[str, str], list[float]]) -> str:
    lines = ["| certified over attained | runs | quarter | median | 90% | worst |", "|---|---|---|---|---|---|"]
    for (order, kind), values in found.items():
        q = np.quantile(values, [0.25, 0.5, 0.9])
        lines.append(f"| {order}, {kind} | {len(values)} | {q[0]:.2f} | {q[1]:.2f} | {q[2]:.2f} | {max(values):.3g} |")
    return "\n".join(lines)


def run() -> list[Row]:
    values = [value for many in ratios().values() for value in many]
    below = sum(value < 1 - 1e-4 for value in values)
    return [
        Row("secret draws: certificates below what is attained", 0, below, f"of {len(values)}"),
        Row("secret draws: certified over attained, median", 1.6, float(np.median(values)), f"worst {max(values):.3g}"),
    ]


if __name__ == "__main__":
    print(table(ratios()))

"""Accounting of noisy training against dp-accounting: time as a ratio in one run, width of the bracket, memory."""

import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import dp_accounting
from dp_accounting import pld

from benchmarks import Row
from fedveil.theory.composition import Bracket, worst_bracket
from fedveil.theory.concentrated import gaussian_epsilon
from fedveil.theory.loss import SampledLaw

DELTA = 1e-5
WORKLOADS = [
    (0.01, 1.0, 1000),
    (0.001, 0.6, 10_000),
    (0.04, 4.0, 1000),
    (256 / 60_000, 1.1, 3525),
    (0.1, 5.0, 100),
    (1e-4, 0.5, 1_000_000),
]
SAMPLED = [(0.005 + 0.0001 * k, 0.8 + 0.01 * k) for k in range(100)]  # each round its own rate and noise
GAUSSIAN = [20.0 + 0.05 * k for k in range(1000)]
MEMORY_BAR = 200.0  # MB above what importing takes

_PEAK = """
import tracemalloc
from benchmarks import dp_sgd
tracemalloc.start()
for rate, noise, rounds in dp_sgd.WORKLOADS:
    dp_sgd.ours([(rate, noise, rounds)])
dp_sgd.ours([(rate, noise, 1) for rate, noise in dp_sgd.SAMPLED])
print(tracemalloc.get_traced_memory()[1] / 2**20)
"""


def ours(rounds: Sequence[tuple[float, float, int]]) -> Bracket:
    """A certified bracket in the worse of both directions."""
    return worst_bracket([[(SampledLaw(1 / s, q, way), n) for q, s, n in rounds] for way in (True, False)], DELTA)


def theirs(rounds: Sequence[tuple[float, float, int]]) -> float:
    """One accountant at its default grid."""
    accountant = pld.PLDAccountant()
    for rate, noise, times in rounds:
        event = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event), times)
    return float(accountant.get_epsilon(DELTA))


def gaussian() -> float:
    """A thousand Gaussian rounds: squares add."""
    return gaussian_epsilon(math.sqrt(math.fsum(1 / noise**2 for noise in GAUSSIAN)), DELTA)


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """The least of some runs."""
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def run() -> list[Row]:
    ours(WORKLOADS[:1])  # imports and caches of either side are not the subject
    theirs(WORKLOADS[4:5])
    mine = seconds(lambda: [ours([work]) for work in WORKLOADS], 3)
    other = seconds(lambda: [theirs([work]) for work in WORKLOADS], 2)
    widths = [(upper - lower) / upper for lower, upper in (ours([work]) for work in WORKLOADS)]
    mixed = [(rate, noise, 1) for rate, noise in SAMPLED]
    mine_mixed, other_mixed = seconds(lambda: ours(mixed), 2), seconds(lambda: theirs(mixed))
    plain = [(1.0, noise, 1) for noise in GAUSSIAN]
    mine_plain, other_plain = seconds(gaussian, 3), seconds(lambda: theirs(plain))
    peak = float(subprocess.run([sys.executable, "-c", _PEAK], capture_output=True, text=True, check=True).stdout)
    return [
        Row("dp-sgd: six workloads, time over dp-accounting", 1 / 3, mine / other, f"{mine:.3f} s / {other:.3f} s"),
        Row("dp-sgd: widest bracket over epsilon", 0.005, max(widths)),
        Row(
            "dp-sgd: 100 different sampled rounds, time ratio",
            0.1,
            mine_mixed / other_mixed,
            f"{mine_mixed:.3f} s / {other_mixed:.3f} s",
        ),
        Row(
            "dp-sgd: 1000 different Gaussian rounds, time ratio",
            0.01,
            mine_plain / other_plain,
            f"{mine_plain:.5f} s / {other_plain:.3f} s",
        ),
        Row("dp-sgd: peak memory, MB", MEMORY_BAR, peak),
    ]

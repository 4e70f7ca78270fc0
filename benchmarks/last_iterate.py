"""Hidden runs and calibration: seconds where the bar is absolute, else a ratio to dp-accounting in the same run."""

import dataclasses

import dp_accounting
import numpy as np
from dp_accounting import pld

from benchmarks import Row
from benchmarks.dp_sgd import seconds
from fedveil import LastIterate, Repeat, SampledGaussian, account_for, calibrate
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import shift_mu

TARGETS = [(0.01, 1000), (0.04, 1000), (256 / 60_000, 3525)]
RUN = LastIterate(
    rounds=1000, batch=10, order="secret", step_size=0.5, lipschitz=1.0, smoothness=1.0, diameter=2.0, noise_std=1.5
)


def ours(rate: float, rounds: int) -> float:
    once = SampledGaussian(sampling="poisson", rate=rate, noise_multiplier=1.0)
    return calibrate(Repeat(of=once, times=rounds), epsilon=1.0, delta=1e-5)[0]


def theirs(rate: float, rounds: int) -> float:
    def event(noise: float) -> dp_accounting.DpEvent:
        once = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(once, rounds)

    return float(dp_accounting.calibrate_dp_mechanism(pld.PLDAccountant, event, 1.0, 1e-5))


def million_rounds() -> float:
    count = 1_000_000
    noise = np.linspace(1.0, 2.0, count)
    leaks = np.zeros(count)
    leaks[::10] = 1.0
    rounds = Rounds(noise, leaks, leaks, np.full(count, 0.999999), np.full(count, 3.0), 1.0)
    return shift_mu(rounds, leaks)


def run() -> list[Row]:
    ours(*TARGETS[0])
    mine = seconds(lambda: [ours(*target) for target in TARGETS], 2)
    other = seconds(lambda: [theirs(*target) for target in TARGETS])
    fresh = iter(range(1000))

    def hidden(run: LastIterate) -> None:  # a new diameter each time, so nothing is remembered
        account_for(dataclasses.replace(run, diameter=2.0 + 1e-9 * next(fresh)), delta=1e-5)

    decaying = dataclasses.replace(RUN, step_size=tuple(0.5 / (1 + 0.01 * k) for k in range(1000)))
    constant, changing = seconds(lambda: hidden(RUN), 2), seconds(lambda: hidden(decaying), 2)
    shift = seconds(million_rounds, 2)
    return [
        Row(
            "calibration, three targets, time over dp-accounting's",
            0.5,
            mine / other,
            f"{mine:.2f} s, theirs {other:.2f} s",
        ),
        Row("1000 hidden rounds, secret order, seconds", 3.0, constant, "all certified bounds and the inversion"),
        Row("1000 hidden rounds, decaying steps, seconds", 3.0, changing, "all certified bounds and the inversion"),
        Row("optimal shift, 1,000,000 rounds, seconds", 1.0, shift, "bounded domain, 100,000 uses"),
    ]

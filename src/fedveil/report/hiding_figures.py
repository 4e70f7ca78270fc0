"""Our own figures: what hiding buys, beside what secret sampling gives when every model is seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import gammaln

from fedveil.account.evaluator import epsilon_of
from fedveil.account.last_iterate import evaluators
from fedveil.account.sampled import certified_epsilon
from fedveil.account.sampling_alone import seen_by_all
from fedveil.mechanism import LastIterate
from fedveil.report.curves import DELTA, Axis, Chart, Curve, Panel, Role, bounds_of, epsilon_at
from fedveil.report.style import number
from fedveil.theory.composition import worst_upper
from fedveil.theory.mixture_law import MixtureLaw

EPSILON = Axis(label="privacy loss ε (nats)")

Shown = Mapping[str, tuple[str, Role]]


def hiding_gain() -> Chart:
    """What hiding and secret draws buy, as a federated run grows longer."""
    shown: Shown = {
        "unhidden": ("every model seen", "baseline"),
        "linear-contraction": ("papers' contraction", "paper"),
        "block": ("block, averaged", "step"),
        "position": ("position", "step"),
    }
    counts = (2, 3, 5, 8, 13, 20, 30, 40, 50, 70, 100, 150, 220, 330, 500)
    drawn: dict[str, Role] = {"Poisson draws, every model seen": "rival"}
    drawn |= {"independent draws, every model seen": "paper", "independent draws, last model": "best"}
    roles: dict[str, Role] = dict(shown.values()) | drawn
    values: dict[str, list[float]] = {name: [] for name in roles}
    for rounds in counts:
        run = federated_run(rounds)
        for bound in bounds_of(run, shown):
            values[bound.name].append(epsilon_at(bound))
        alone, last = seen_by_all(run, DELTA), certified_epsilon(replace(run, order="independent"), DELTA)
        for name, value in zip(drawn, (alone.poisson, alone.independent, last), strict=True):
            values[name].append(math.inf if value is None else value)
    values["independent draws, last model"] = [
        min(pair) for pair in zip(*(values[name] for name in list(drawn)[1:]), strict=True)
    ]
    curves = []
    for name, role in roles.items():
        y = tuple(values[name])
        curves.append(Curve(name=name, role=role, status="certified", x=counts, y=y, value=y[-1]))
    at = counts.index(50)
    old, new = values["every model seen"][at], values["position"][at]
    free = values["independent draws, last model"][at]
    return Chart(
        name="hiding-gain",
        title=f"50 rounds, the same noise: ε {number(old)} seen by all, {number(new)} for the last model, "
        f"{number(free)} by independent draws",
        caption="ε at δ 10⁻⁵. Batches of 20 users dealt secretly, one pass, only the final model released (position, "
        "block, contraction), beside the same noise with every model seen: as dealt, and with users who draw their own "
        "rounds. Here secret draws are worth more than hiding, which adds nothing to them. Replace one; step 0.1, L 1, "
        "convex, smoothness up to 20, D 2, noise 0.62 per user. All curves are certified."
        + _jump(counts, values["position"]),
        panels=(Panel(title="", curves=tuple(curves)),),
        x=Axis(label="number of rounds", log=True, limits=(2.0, float(counts[-1]))),
        y=Axis(label=EPSILON.label, log=True, limits=(0.05, 1.5 * old)),
    )


def hiding_sampled() -> Chart:
    """What hiding buys beside secret sampling: Poisson draws, every model seen against the last one alone."""
    noises = (0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.6, 2.0)
    seen: list[float] = []
    hidden: list[float] = []
    for noise in noises:
        run = drawn_run(noise)
        for name, values in (("unhidden", seen), ("sampled-shift", hidden)):
            bound = next(e for e in evaluators(run) if e.name == name)
            values.append(epsilon_of(bound, DELTA))
    at = noises.index(0.5)
    attained = tuple(attained_epsilon(drawn_run(noise)) for noise in noises)
    curves = [
        Curve(name="every model seen", role="baseline", status="certified", x=noises, y=tuple(seen)),
        Curve(name="some run attains", role="rival", status="comparison", x=noises, y=attained),
        Curve(name="last model alone", role="best", status="certified", x=noises, y=tuple(hidden)),
    ]
    return Chart(
        name="hiding-sampled",
        title=f"What hiding adds to secret sampling: ε {number(hidden[at])} instead of {number(seen[at])} at noise 0.5",
        caption="ε at δ 10⁻⁵ of 1000 rounds that every record joins with probability .01 by a secret coin of its own, "
        "one record zeroed out, steps that do not expand (batch 100, step 0.5, smoothness 1). Hiding pays where a "
        "round's noise is small, and little from 2 on. Dotted: what losses attain that are linear in one direction and "
        "forget in another; no bound can lie below. The others are certified.",
        panels=(Panel(title="", curves=tuple(curves)),),
        x=Axis(label="noise multiplier of a round", limits=(noises[0], noises[-1])),
        y=Axis(label=EPSILON.label, log=True, limits=(0.8 * hidden[-1], 1.2 * seen[0])),
    )


def attained_epsilon(run: LastIterate) -> float:
    """Linear losses but for the last round, which shows alone: see the theory page sampled-shift.md."""
    noise, rate, rounds = run.noise_std * math.sqrt(100), run.rate or 1.0, run.total - 1  # type: ignore[operator]
    heads = np.arange(60)
    logs = gammaln(rounds + 1) - gammaln(heads + 1) - gammaln(rounds - heads + 1)
    weights = np.exp(logs + heads * math.log(rate) + (rounds - heads) * math.log1p(-rate))
    shifts = tuple((heads / (noise * math.sqrt(rounds))).tolist())
    linear = MixtureLaw(shifts, tuple((weights / math.fsum(weights)).tolist()), "present")
    last = MixtureLaw((0.0, 1 / noise), (1 - rate, rate), "present")
    return worst_upper([[(linear, 1), (last, 1)]], DELTA)


def drawn_run(noise: float) -> LastIterate:
    """Poisson draws at a rate of a hundredth, with this noise over one record's contribution."""
    return LastIterate(
        rounds=1000,
        order="poisson",
        rate=0.01,
        batch=100,
        records=10_000,
        step_size=0.5,
        lipschitz=1.0,
        smoothness=1.0,
        noise_std=noise / 10,
        neighbours="zero-out",
    )


def _jump(counts: Sequence[int], values: Sequence[float]) -> str:
    """A sentence for the place where a costlier, sharper form of a bound is given up, if there is one."""
    for before, after, low, high in zip(counts, counts[1:], values, values[1:], strict=False):
        if high > 1.001 * low:
            return f" Between {before} and {after} rounds position's linear program gives way to its quicker star form."
    return ""


def federated_run(rounds: int) -> LastIterate:
    """The example of the README: batches of 20, constant steps."""
    return LastIterate(
        rounds=rounds,
        batch=20,
        order="secret",
        step_size=0.1,
        lipschitz=1.0,
        smoothness=1.0,
        diameter=2.0,
        noise_std=0.62,
    )

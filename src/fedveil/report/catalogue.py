"""The numbers of every figure: the papers' own settings, with our bounds next to theirs; titles state the result.

Our own figures show what hiding buys, beside what secret sampling gives when every model is seen.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import gammaln

from fedveil.accounting.base import curve_of
from fedveil.accounting.evaluator import epsilon_of
from fedveil.accounting.last_iterate import evaluators
from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.accounting.sampled import certified_epsilon
from fedveil.accounting.sampling_alone import seen_by_all
from fedveil.privacy.guarantee import Status
from fedveil.privacy.mechanism import LastIterate, Repeat, SampledGaussian
from fedveil.report.curves import (
    DELTA,
    Axis,
    Chart,
    Curve,
    NamedBound,
    Panel,
    Role,
    bounds_of,
    epsilon_at,
    number,
    profile_panel,
)
from fedveil.theory.composition import worst_upper
from fedveil.theory.concentrated import epsilon_of_curve
from fedveil.theory.divergence import log_theta
from fedveil.theory.mixture_law import MixtureLaw
from fedveil.theory.numerics import REPORTED_DELTA
from fedveil.theory.renyi import closed_epsilon, least_epsilon, mironov_epsilon, moments_order_limit, moments_rho

DELTA_AXIS = Axis(label="failure probability δ", log=True, limits=(REPORTED_DELTA, 1.0), mark=DELTA)


def hidden_updates() -> Chart:
    """Return Figure 2 of Asoodeh and Calmon (2020): one pass over 100 users in a secret order."""
    shown: Shown = {
        "unhidden": ("every model seen", "baseline"),
        "linear-contraction": ("Theorem 2, Asoodeh and Calmon", "paper"),
        "block": ("block, averaged", "step"),
        "position": ("position", "best"),
    }
    panels = []
    for rate, batch in ((0.1, 10), (0.2, 20), (0.3, 30)):
        run = LastIterate(
            records=100,
            rounds=100 // batch,
            batch=batch,
            order="secret",
            step_size=0.5,
            lipschitz=1.0,
            smoothness=1.0,
            diameter=2.0,
            noise_std=1.5,
        )
        title = f"q = {rate:g}: {100 // batch} rounds of {batch} users"
        panels.append(profile_panel(title, bounds_of(run, shown)))
    first = panels[0]
    old, new = first.epsilon("Theorem 2, Asoodeh and Calmon"), first.epsilon("position")
    return Chart(
        name="hidden-updates",
        title=f"Nobody knows a user's round: ε {number(new)} where the papers' contraction gives {number(old)}",
        caption="One pass, secret order, replace one. Step η 0.5, Lipschitz L 1, radius ρ 1, noise σ 1.5, n 100, "
        "convex, smoothness up to 4. At these parameters Theorem 2 is the bound for a run that hides nothing. "
        "All curves are certified.",
        panels=tuple(panels),
        x=EPSILON,
        y=DELTA_AXIS,
        labels="key",
    )


def conversion() -> Chart:
    """Return the comparison in Asoodeh's slides: from Renyi privacy to (epsilon, delta)."""
    rules: list[tuple[str, Role, Callable[[float, float, float], float]]] = [
        ("Mironov", "rival", mironov_epsilon),
        ("closed (Asoodeh et al.)", "paper", closed_epsilon),
        ("lossless", "best", least_epsilon),
    ]
    zetas = np.geomspace(1e-5, 3.0, 40).tolist()
    panels = []
    for alpha in (2.0, 5.0, 10.0):
        curves = []
        for name, role, rule in rules:
            y = tuple(rule(alpha, zeta, DELTA) for zeta in zetas)
            curves.append(Curve(name=name, role=role, status="certified", x=tuple(zetas), y=y))
        panels.append(Panel(title=f"order α = {alpha:g}", curves=tuple(curves)))
    old, new = (rule(2.0, 0.1, DELTA) for rule in (mironov_epsilon, least_epsilon))
    return Chart(
        name="renyi-conversion",
        title=f"Converting without loss: at α = 2, ζ = 0.1, ε {number(new)} instead of {number(old)}",
        caption="Least ε with which every (α, ζ)-Rényi-private mechanism is (ε, 10⁻⁵)-private. Lossless is the true "
        "value, rounded up; the other two are upper bounds on it. All are certified.",
        panels=tuple(panels),
        x=Axis(label="Rényi divergence ζ (nats)", log=True, limits=(1e-5, 3.0)),
        y=EPSILON,
    )


def moments() -> Chart:
    """Return the slides' improved moments accountant, and exact composition of the same rounds."""
    rate, noise = 0.04, 4.0
    rho, limit = moments_rho(rate, noise), moments_order_limit(rate, noise)
    counts = np.unique(np.geomspace(20, 3000, 16).round()).astype(int).tolist()
    step = SampledGaussian(sampling="poisson", rate=rate, noise_multiplier=noise, neighbours="zero-out")
    accountant = LossDistributionAccountant()

    def exact(count: int) -> float:
        return accountant.epsilon(curve_of(accountant, Repeat(of=step, times=count)), DELTA)

    def classic(count: int) -> float:
        return rho * count + math.sqrt(-4 * rho * count * math.log(DELTA))

    def lossless(count: int) -> float:
        return epsilon_of_curve(lambda alpha: alpha * rho * count, DELTA)

    x = tuple(float(count) for count in counts)
    rows: list[tuple[str, Role, Callable[[int], float]]] = [
        ("moments accountant", "rival", classic),
        ("closed, Asoodeh et al.", "paper", lambda count: _closed_over_orders(rho * count)),
        ("lossless conversion", "step", lossless),
        ("exact composition", "best", exact),
    ]
    curves = []
    for name, role, rule in rows:
        y = tuple(rule(count) for count in counts)
        status: Status = "certified" if rule is exact else "comparison"
        curves.append(Curve(name=name, role=role, status=status, x=x, y=y, value=y[-1]))
    old, new = curves[0].y[-1], curves[-1].y[-1]
    outside = (
        "" if limit > 1 else f", which holds only for q < 1/(16σ) = {1 / (16 * noise):.3g}: here it proves nothing"
    )
    return Chart(
        name="moments-accountant",
        title=f"Composing exactly: ε {number(new)} after {counts[-1]} rounds, where moments claim {number(old)}",
        caption=f"Sampling rate q {rate:g}, noise multiplier σ {noise:g}, δ 10⁻⁵, Poisson batches, one record zeroed "
        f"out. The upper three convert ρ = q²/((1-q)σ²) per round{outside}. Exact composition is certified.",
        panels=(Panel(title="", curves=tuple(curves)),),
        x=Axis(label="number of rounds T", limits=(0.0, x[-1])),
        y=EPSILON,
    )


def _closed_over_orders(rho: float) -> float:
    """Return the slides' bound: the closed conversion at the best order of a fine grid; every order is valid."""
    orders = 1 + np.geomspace(1e-2, 1e4, 400)
    return min(closed_epsilon(alpha, alpha * rho, DELTA) for alpha in orders.tolist())


def random_stopping() -> Chart:
    """Return the slides' randomly stopped SGD, with both parameter sets."""
    panels = []
    for step, noise in ((0.05, 5.0), (0.1, 3.0)):
        convex = partial(
            LastIterate,
            rounds=100,
            stopping="random",
            step_size=step,
            lipschitz=1.0,
            diameter=1.0,
            noise_std=noise,
        )
        smooth, rough = convex(smoothness=1.0), convex(convex=False)
        bounds = [
            *bounds_of(smooth, {"renyi-iteration": ("Feldman et al.", "rival")}),
            *bounds_of(rough, {"linear-contraction": ("contraction, Asoodeh et al.", "paper")}),
            *bounds_of(smooth, {"block": ("block", "best")}),
        ]
        panels.append(profile_panel(f"η = {step:g}, σ = {noise:g}", bounds))
    old, new = panels[0].epsilon("contraction, Asoodeh et al."), panels[0].epsilon("block")
    return Chart(
        name="random-stopping",
        title=f"A random stop: blocks of rounds give ε {number(new)} where single rounds give {number(old)}",
        caption="Release a uniformly random iterate of T 100, L 1, D 1, replace one. The contraction of Asoodeh, Diaz "
        "and Calmon (over D + 2ηL) needs no convexity; block: convex, smoothness up to 2/η. Both are certified; "
        "Feldman et al., as quoted in Asoodeh's slides, for comparison only.",
        panels=tuple(panels),
        x=EPSILON,
        y=DELTA_AXIS,
        labels="key",
    )


def convex_places() -> Chart:
    """Return Figure 2 of Asoodeh, Diaz and Calmon (2020): convex losses, three places."""
    panels = tuple(_place(i, step=0.5, noise=2.0, strong=0.0) for i in (1, 20, 39))
    return _places(
        "places-convex",
        panels,
        "Noise σ 2, step η 0.5, L 1, smoothness β 0.5, no strong convexity, D 1, n 40, public order, replace one. ",
    )


def strongly_convex_places() -> Chart:
    """Return Figure 3 of Asoodeh, Diaz and Calmon (2020): strongly convex losses, three places."""
    panels = tuple(_place(i, step=0.7, noise=1.0, strong=0.2) for i in (20, 30, 39))
    return _places(
        "places-strongly-convex",
        panels,
        "Noise σ 1, step η 0.7, L 1, smoothness β 0.5, strong convexity 0.2, D 1, n 40, public order, replace one. ",
    )


def _places(name: str, panels: tuple[Panel, ...], settings: str) -> Chart:
    last = panels[-1]
    old, new = last.epsilon("Theorem 4, Asoodeh et al."), last.epsilon("transport")
    return Chart(
        name=name,
        title=f"A single later round already hides: ε {number(new)}, by the paper's theorem {number(old)}",
        caption=settings + "A curve that is missing lies below δ 10⁻¹² at every ε. Transport is followed where at "
        "most eight rounds remain, and yields to block where its rounding margin shows. Certified, except their "
        "Rényi bound (Proposition 1 as printed), which is for comparison only.",
        panels=panels,
        x=EPSILON,
        y=DELTA_AXIS,
        labels="key",
    )


def _place(place: int, *, step: float, noise: float, strong: float) -> Panel:
    """Return Theorem 4 of Asoodeh, Diaz and Calmon (2020) with their own M, Proposition 1, and our bounds."""
    rounds, smooth = 40, 0.5
    run = LastIterate(
        rounds=rounds,
        place=place,
        step_size=step,
        lipschitz=1.0,
        smoothness=smooth,
        strong_convexity=strong,
        diameter=1.0,
        noise_std=noise,
    )
    shrink = math.sqrt(1 - 2 * step * smooth * strong / (smooth + strong))

    def theorem(epsilon: float) -> float:
        later = float(log_theta(epsilon, shrink / (step * noise)))
        return float(log_theta(epsilon, 2 / noise)) + (rounds - place) * later

    ours = bounds_of(run, {"block": ("block", "step"), "transport": ("transport", "best")})
    last, proofs = ours[-1], [bound.log_delta for bound in ours]  # both are valid, so the smaller is valid
    ours[-1] = NamedBound(last.name, "best", last.status, lambda e: min(proof(e) for proof in proofs))
    bounds = [
        *bounds_of(run, {"renyi-diffusion": ("Rényi (Asoodeh et al.)", "rival")}),
        NamedBound("Theorem 4, Asoodeh et al.", "paper", "certified", theorem),
        *ours,
    ]
    return profile_panel(f"record of round i = {place} of {rounds}", bounds)


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


FIGURES: dict[str, Callable[[], Chart]] = {
    "hidden-updates": hidden_updates,
    "renyi-conversion": conversion,
    "moments-accountant": moments,
    "random-stopping": random_stopping,
    "places-convex": convex_places,
    "places-strongly-convex": strongly_convex_places,
    "hiding-gain": hiding_gain,
    "hiding-sampled": hiding_sampled,
}

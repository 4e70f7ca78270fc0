"""The numbers of the explore page: privacy curves, trade-off functions and the papers' figures. Runs in a worker.

Every curve is one of the accountants' or of the theory's own functions; this file only chooses the points.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from fedveil.accounting.base import curve_of
from fedveil.accounting.calibrate import calibrate
from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.core.errors import require
from fedveil.privacy.mechanism import Gaussian, LastIterate, Mechanism, Repeat, SampledGaussian
from fedveil.report.curves import Panel, bounds_of, profile_panel
from fedveil.report.words import detection_rate, right_guesses
from fedveil.theory.concentrated import epsilon_of_curve
from fedveil.theory.renyi import closed_epsilon, least_epsilon, mironov_epsilon, moments_rho

_POINTS = 33
_DELTAS = (0.9, 0.5, 0.2, 0.05, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e-12)
_DELTA = 1e-5  # as in the papers' figures
Line = dict[str, Any]


@lru_cache(maxsize=512)
def curve(noise: float, rate: float, rounds: float, delta: float, root: str = "") -> dict[str, Any]:
    """Return delta against epsilon of noisy sums over Poisson batches, and of the same sums over everybody."""
    require(1 <= rounds <= 100_000, "rounds", "lie between 1 and 100000", rounds)
    count = round(rounds)
    step = SampledGaussian(sampling="poisson", rate=rate, noise_multiplier=noise)
    sampled = _profile("secret Poisson batches", "best", Repeat(of=step, times=count), delta)
    alone = Repeat(of=Gaussian(noise_multiplier=noise), times=count)
    whole = _profile("everybody in every round", "other", alone, delta)
    reach = 5 * max((epsilon for epsilon, _ in sampled["points"]), default=math.inf)
    whole["points"] = [point for point in whole["points"] if point[0] <= reach]
    lines = [sampled, whole]
    return {"lines": lines, "x": "epsilon", "y": "delta", "log": [False, True]}


def _profile(name: str, kind: str, mechanism: Mechanism, delta: float) -> Line:
    accountant = LossDistributionAccountant()
    law = curve_of(accountant, mechanism)
    points = [[epsilon, at] for at in _DELTAS if math.isfinite(epsilon := accountant.epsilon(law, at))]
    value = accountant.epsilon(law, delta)
    return {"name": name, "kind": kind, "points": points, "value": value if math.isfinite(value) else None}


@lru_cache(maxsize=512)
def trade_off(epsilon: float, delta: float, root: str = "") -> dict[str, Any]:
    """Return the least misses of a test at each rate of false alarms: as promised, and with Gaussian noise for it.

    ``noise``: of a number in which one record's part is at most 1, so that the promise just holds.
    """
    _, calibrated = calibrate(Gaussian(noise_multiplier=1.0), epsilon=epsilon, delta=delta)
    require(isinstance(calibrated, Gaussian), "The mechanism", "be Gaussian", type(calibrated).__name__)
    noise = calibrated.noise_multiplier if isinstance(calibrated, Gaussian) else math.inf
    alarms = np.linspace(0.0, 1.0, 61).tolist()
    promised = [[alarm, 1 - detection_rate(epsilon, delta, alarm)] for alarm in alarms]
    real = [[alarm, float(ndtr(-ndtri(alarm) - 1 / noise)) if 0 < alarm < 1 else 1 - alarm] for alarm in alarms]
    lines = [
        {"name": "what epsilon and delta allow", "kind": "other", "points": promised, "value": None},
        {"name": "Gaussian noise that just meets them", "kind": "best", "points": real, "value": None},
        {"name": "a coin", "kind": "weak", "points": [[0.0, 1.0], [1.0, 0.0]], "value": None},
    ]
    best = {"promised": right_guesses(epsilon, delta), "gaussian": float(ndtr(0.5 / noise))}
    return {"lines": lines, "x": "false alarms", "y": "misses", "log": [False, False], "noise": noise, "best": best}


@lru_cache(maxsize=512)
def figure(name: str, first: float, second: float, third: float, root: str = "") -> dict[str, Any]:
    """Return one of the papers' figures with other parameters than theirs."""
    known: dict[str, Callable[[float, float, float], dict[str, Any]]] = {
        "hidden-updates": _hidden_updates,
        "places": _places,
        "renyi-conversion": _conversion,
        "moments-accountant": _moments,
    }
    require(name in known, "The figure", f"be one of {', '.join(known)}", name[:40])
    return known[name](first, second, third)


def _hidden_updates(noise: float, step: float, rounds: float) -> dict[str, Any]:
    """Figure 2 of Asoodeh and Calmon (2020), with other noise, steps and rounds."""
    count = min((1, 2, 4, 5, 10, 20, 25, 50), key=lambda one: abs(one - rounds))
    run = LastIterate(
        records=100,
        rounds=count,
        batch=100 // count,
        order="secret",
        step_size=step,
        lipschitz=1.0,
        smoothness=1.0,
        diameter=2.0,
        noise_std=noise,
    )
    shown: Any = {
        "unhidden": ("every model seen", "baseline"),
        "linear-contraction": ("Theorem 2, Asoodeh and Calmon", "paper"),
        "block": ("block, averaged", "step"),
        "position": ("position", "best"),
    }
    return _panel(profile_panel("", bounds_of(run, shown)))


def _places(noise: float, step: float, place: float) -> dict[str, Any]:
    """Figure 2 of Asoodeh, Diaz and Calmon (2020), with other noise, steps and places."""
    run = LastIterate(
        rounds=40,
        place=round(place),
        step_size=step,
        lipschitz=1.0,
        smoothness=0.5,
        diameter=1.0,
        noise_std=noise,
    )
    shown: Any = {
        "unhidden": ("every model seen", "baseline"),
        "renyi-diffusion": ("Rényi (Asoodeh et al.), for comparison", "rival"),
        "block": ("block", "best"),
    }
    return _panel(profile_panel("", bounds_of(run, shown)))


def _panel(panel: Panel) -> dict[str, Any]:
    kinds = {"best": "best", "baseline": "weak", "rival": "weak"}
    lines = [
        {
            "name": one.name if one.status == "certified" else f"{one.name} (not certified)",
            "kind": kinds.get(one.role, "other"),
            "points": [[x, y] for x, y in zip(one.x, one.y, strict=True)],
            "value": one.value if one.value is not None and math.isfinite(one.value) else None,
        }
        for one in panel.curves
    ]
    return {"lines": lines, "x": "epsilon", "y": "delta", "log": [False, True]}


def _conversion(alpha: float, _second: float, _third: float) -> dict[str, Any]:
    """The comparison in Asoodeh's slides: from Renyi privacy to epsilon at delta 1e-5, at another order."""
    zetas = np.geomspace(1e-5, 3.0, _POINTS).tolist()
    rules: list[tuple[str, str, Callable[[float, float, float], float]]] = [
        ("Mironov", "weak", mironov_epsilon),
        ("closed (Asoodeh et al.)", "other", closed_epsilon),
        ("lossless", "best", least_epsilon),
    ]
    lines = []
    for name, kind, rule in rules:
        points = [[zeta, y] for zeta in zetas if (y := rule(alpha, zeta, _DELTA)) > 0]
        lines.append({"name": name, "kind": kind, "points": points, "value": rule(alpha, 0.1, _DELTA)})
    return {"lines": lines, "x": "Renyi divergence zeta", "y": "epsilon", "log": [True, False]}


def _moments(noise: float, rate: float, _third: float) -> dict[str, Any]:
    """The slides' moments accountant against exact composition, at another rate and noise."""
    rho = moments_rho(rate, noise)
    counts = [20, 100, 300, 1000, 2000, 3000]
    step = SampledGaussian(sampling="poisson", rate=rate, noise_multiplier=noise, neighbours="zero-out")
    accountant = LossDistributionAccountant()

    def exact(count: int) -> float:
        return accountant.epsilon(curve_of(accountant, Repeat(of=step, times=count)), _DELTA)

    rows: list[tuple[str, str, Callable[[int], float]]] = [
        ("moments accountant (not certified)", "weak", lambda n: rho * n + math.sqrt(-4 * rho * n * math.log(_DELTA))),
        ("lossless conversion (not certified)", "other", lambda n: epsilon_of_curve(lambda a: a * rho * n, _DELTA)),
        ("exact composition", "best", exact),
    ]
    lines = []
    for name, kind, rule in rows:
        points = [[float(count), value] for count in counts if math.isfinite(value := rule(count))]
        lines.append({"name": name, "kind": kind, "points": points, "value": points[-1][1] if points else None})
    return {"lines": lines, "x": "rounds", "y": "epsilon", "log": [False, False]}

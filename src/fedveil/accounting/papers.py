"""Bounds that the papers compare with: for figures, never certified."""

import math

from fedveil.accounting.evaluator import Evaluator, withdrawn
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.concentrated import delta_of_curve
from fedveil.theory.renyi import iteration_delta, iteration_kappa, stopped_zeta


def diffusion_bound(run: LastIterate) -> Evaluator:
    """Return the diffusion bound of Asoodeh, Diaz and Calmon (2020), Proposition 1."""
    name = "renyi-diffusion"
    fits = (
        run.noise == "gaussian"
        and run.batch == 1
        and run.passes == 1
        and run.order == "public"
        and run.place is not None
    )
    scalar = isinstance(run.step_size, float | int) and isinstance(run.noise_std, float | int)
    if not (
        fits and scalar and run.further is None and run.smoothness is not None and run.stopping == "end" and run.convex
    ):
        return withdrawn(name, "stated for one place, batches of one, and constant smooth convex steps")
    step, beta, lam = float(run.step_size), run.smoothness, run.strong_convexity  # type: ignore[arg-type]
    if step > 2 / (beta + lam) or beta + lam == 0:
        return withdrawn(name, "needs step_size <= 2/(smoothness + strong_convexity)")
    shrink = math.sqrt(max(0.0, 1 - 2 * step * beta * lam / (beta + lam)))
    later = run.rounds - (run.place or 1)
    kappa = iteration_kappa(run.lipschitz, float(run.noise_std), shrink, later)  # type: ignore[arg-type]
    return Evaluator(
        name,
        "comparison",
        "Asoodeh, Diaz and Calmon (2020), Proposition 1; for figures",
        lambda e: math.log(max(iteration_delta(e, kappa), 1e-300)),
    )


def iteration_bound(run: LastIterate) -> Evaluator:
    """Return the bound of Feldman et al. (2018) for random stopping, as quoted in Asoodeh's slides."""
    name = "renyi-iteration"
    scalar = isinstance(run.noise_std, float | int)
    if not (
        run.stopping == "random"
        and run.further is None
        and run.noise == "gaussian"
        and run.batch == 1
        and run.passes == 1
        and scalar
    ):
        return withdrawn(name, "stated for random stopping, one pass, and batches of one")
    noise = float(run.noise_std)  # type: ignore[arg-type]

    def log_delta(epsilon: float) -> float:
        limit = (1 + math.sqrt(1 + 2 * noise**2 / run.lipschitz**2)) / 2
        value = delta_of_curve(lambda a: stopped_zeta(a, run.lipschitz, noise, run.rounds), epsilon, (1.0001, limit))
        return math.log(max(value, 1e-300))

    return Evaluator(
        name,
        "comparison",
        "Feldman et al. (2018) for random stopping, as quoted in Asoodeh's slides; for figures",
        log_delta,
    )

"""Who knows the draws counts the worst round of each pass, which need not be the same in all passes."""

import math

import pytest

from fedveil.accounting.compare import account_for
from fedveil.accounting.curious import known_draws
from fedveil.privacy.mechanism import LastIterate
from fedveil.theory.concentrated import gaussian_epsilon

DELTA = 1e-5


def run(noise: tuple[float, ...]) -> LastIterate:
    return LastIterate(
        rounds=2,
        passes=2,
        batch=10,
        records=20,
        order="independent",
        step_size=0.5,
        lipschitz=1.0,
        smoothness=0.5,
        largest_batch=20,
        noise_std=noise,
        neighbours="zero-out",
    )


@pytest.mark.parametrize(
    ("noise", "worst"),
    [((1.0, 3.0, 3.0, 1.0), (1.0, 1.0)), ((2.0, 1.0, 1.5, 4.0), (1.0, 1.5)), ((1.0, 2.0, 1.0, 2.0), (1.0, 1.0))],
)
def test_every_pass_is_charged_at_its_own_worst_round(noise: tuple[float, ...], worst: tuple[float, ...]) -> None:
    """Seen by all, the passes are Gaussian releases: inverse variances add (one record, over the root of the batch)."""
    mu = math.sqrt(sum(1 / (value**2 * 10) for value in worst))
    exact = gaussian_epsilon(mu, DELTA)
    found = account_for(known_draws(run(noise)), delta=DELTA)
    assert next(bound.epsilon for bound in found.bounds if bound.name == "unhidden") == pytest.approx(exact, rel=1e-3)
    assert exact <= account_for(known_draws(run(noise)), delta=DELTA)["unhidden"].epsilon * (1 + 1e-9)

"""A run whose records draw their own rounds, beside a Gaussian release: every observer's row is composed exactly."""

from dataclasses import replace

import pytest

from fedveil.accounting.curious import sampled_views
from fedveil.accounting.evaluator import epsilon_of
from fedveil.accounting.participation import Participation
from fedveil.accounting.profile import composed
from fedveil.privacy.mechanism import Gaussian, LastIterate
from fedveil.theory.concentrated import gaussian_epsilon

RUN = LastIterate(
    rounds=4,
    passes=3,
    batch=25,
    records=100,
    order="independent",
    step_size=0.5,
    lipschitz=1.0,
    smoothness=0.5,
    noise_std=(0.5,) * 8 + (0.8,) * 4,
    neighbours="zero-out",
)
POISSON = replace(RUN, order="poisson", rate=0.25, rounds=12, passes=1)
WHO = Participation(clients=5, every_round=True)
DELTA = 1e-5


@pytest.mark.parametrize("run", [RUN, POISSON, replace(RUN, neighbours="replace-one")])
@pytest.mark.parametrize("adversary", ["final-model", "every-model", "curious-client"])
def test_the_composition_lies_between_the_run_alone_and_epsilons_added(run: LastIterate, adversary: str) -> None:
    views = sampled_views(run, adversary, WHO)  # type: ignore[arg-type]
    alone = min(epsilon_of(e, DELTA) for e in views if e.status == "certified")
    beside = Gaussian(noise_multiplier=2.0)
    both = epsilon_of(composed(views, beside), DELTA)
    half = min(epsilon_of(e, DELTA / 2) for e in views if e.status == "certified")
    assert alone < both < half + gaussian_epsilon(beside.mu, DELTA / 2)
    nothing = epsilon_of(composed(views, Gaussian(noise_multiplier=1e4)), DELTA)
    assert alone * (1 - 1e-3) <= nothing <= 1.02 * alone + 1e-4
    assert composed(views, beside).name == "loss-distribution"


def test_who_sees_more_is_promised_no_more() -> None:
    beside = Gaussian(noise_multiplier=2.0)
    found = {
        who: epsilon_of(composed(sampled_views(RUN, who, WHO), beside), DELTA)  # type: ignore[arg-type]
        for who in ("final-model", "every-model", "curious-client")
    }
    assert found["final-model"] <= found["every-model"] * (1 + 1e-9)
    assert found["every-model"] <= found["curious-client"] * (1 + 1e-9)


def test_a_run_with_next_to_no_noise_is_added_up() -> None:
    bare = replace(RUN, noise_std=1e-6)
    assert composed(sampled_views(bare, "every-model", WHO), Gaussian(noise_multiplier=2.0)).name == "added"

"""A law that does not fit its grid promises nothing; it is no error, least of all while a run is being charged."""

import numpy as np
import pytest

from fedveil.accounting.base import curve_of
from fedveil.accounting.loss_distribution import LossDistributionAccountant
from fedveil.jobs.local import plan_study
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.privacy.mechanism import Compose, Gaussian, IndependentGaussian


@pytest.mark.parametrize("noise", [2e-3, 1e-2, 0.05])
def test_next_to_no_noise_gives_an_answer_without_a_warning(noise: float) -> None:
    accountant = LossDistributionAccountant()
    whole = Compose(parts=(IndependentGaussian(noise_multiplier=noise, rounds=3), Gaussian(noise_multiplier=0.1)))
    curve = curve_of(accountant, whole)
    assert accountant.epsilon(curve, 1e-3) > 50
    assert accountant.delta(curve, 1.0) > 0.99


def test_every_observer_of_a_prepared_hidden_run_of_single_records_has_an_answer() -> None:
    """A server that sees one record's share of the noise, a part in 160, learns nearly everything."""
    draw = np.random.default_rng(0)
    frame = {"a": draw.normal(size=160), "b": draw.normal(size=160) * 50, "y": draw.poisson(3, 160).astype(float)}
    study = {
        "data": {"target": "y", "target_scale": [0, 10]},
        "clients": {"kind": "record"},
        "model": {"kind": "poisson"},
        "privacy": {"epsilon": 0.5, "delta": 1e-3, "neighbours": "zero-out"},
        "schedule": {"rounds": 3, "passes": 1},
        "trust": {"server": "secure-aggregation"},
        "evaluation": {"private": True, "records": "training"},
        "prepare": {"kind": "private"},
    }
    plan = plan_study(study, data=frame).plan
    found = [promise(plan, adversary).epsilon for adversary in ADVERSARIES]
    assert all(epsilon > 0 for epsilon in found)

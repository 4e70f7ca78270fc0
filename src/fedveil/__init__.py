"""fedveil: train across many data holders, release only the final model, certify its privacy.

>>> from fedveil import LastIterate, account_for
>>> run = LastIterate(rounds=40, place=39, step_size=0.5, lipschitz=1.0, smoothness=0.5, diameter=1.0, noise_std=2.0)
>>> round(account_for(run, delta=1e-5)["unhidden"].epsilon, 3), round(account_for(run, delta=1e-5)["block"].epsilon, 3)
(4.377, 1.361)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedveil.core.errors import BadValue, CannotCertify, FedveilError
from fedveil.version import __version__ as __version__

if TYPE_CHECKING:
    from fedveil.accounting.calibrate import calibrate
    from fedveil.accounting.compare import account_for
    from fedveil.accounting.places import PlaceCurve, place_curve
    from fedveil.certificate.certify import Certificate
    from fedveil.core.importing import allowing, give
    from fedveil.data.arrays import records_from_arrays
    from fedveil.jobs.ask import ask
    from fedveil.jobs.estimators import Budget, PrivateHuberRegressor, PrivateLogisticRegression
    from fedveil.jobs.forget import ForgetResult, forget, plan_forgetting
    from fedveil.jobs.local import Result, plan_study, run_study, tune_study
    from fedveil.jobs.synthesis import sample, synthesise
    from fedveil.models.torch.modules import FrozenFeatures
    from fedveil.privacy.guarantee import Adversary, Answer, Bound, Neighbours, Status, Unit
    from fedveil.privacy.mechanism import (
        ApproximateDP,
        Compose,
        Gaussian,
        Laplace,
        LastIterate,
        Mechanism,
        Repeat,
        SampledGaussian,
        shuffled,
    )
    from fedveil.privacy.mechanism_file import parse_mechanism
    from fedveil.release.model import ReleasedModel, load_model

# Names are imported on first use: accounting or certifying loads no training code, and a relay loads very little.
_ROOMS = {
    "fedveil.accounting.calibrate": ("calibrate",),
    "fedveil.accounting.compare": ("account_for",),
    "fedveil.accounting.places": ("PlaceCurve", "place_curve"),
    "fedveil.release.model": ("ReleasedModel", "load_model"),
    "fedveil.certificate.certify": ("Certificate",),
    "fedveil.data.arrays": ("records_from_arrays",),
    "fedveil.jobs.ask": ("ask",),
    "fedveil.jobs.estimators": ("Budget", "PrivateHuberRegressor", "PrivateLogisticRegression"),
    "fedveil.privacy.guarantee": ("Adversary", "Answer", "Bound", "Neighbours", "Status", "Unit"),
    "fedveil.core.importing": ("allowing", "give"),
    "fedveil.models.torch.modules": ("FrozenFeatures",),
    "fedveil.jobs.forget": ("ForgetResult", "forget", "plan_forgetting"),
    "fedveil.jobs.local": ("Result", "plan_study", "run_study", "tune_study"),
    "fedveil.jobs.synthesis": ("sample", "synthesise"),
    "fedveil.privacy.mechanism": (
        *("ApproximateDP", "Compose", "Gaussian", "Laplace", "LastIterate", "Mechanism", "Repeat"),
        *("SampledGaussian", "shuffled"),
    ),
    "fedveil.privacy.mechanism_file": ("parse_mechanism",),
}
_LATER = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fedveil' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


__all__ = [
    "Adversary",
    "Answer",
    "ApproximateDP",
    "BadValue",
    "Bound",
    "Budget",
    "CannotCertify",
    "Certificate",
    "Compose",
    "FedveilError",
    "ForgetResult",
    "FrozenFeatures",
    "Gaussian",
    "Laplace",
    "LastIterate",
    "Mechanism",
    "Neighbours",
    "PlaceCurve",
    "PrivateHuberRegressor",
    "PrivateLogisticRegression",
    "ReleasedModel",
    "Repeat",
    "Result",
    "SampledGaussian",
    "Status",
    "Unit",
    "account_for",
    "allowing",
    "ask",
    "calibrate",
    "forget",
    "give",
    "load_model",
    "parse_mechanism",
    "place_curve",
    "plan_forgetting",
    "plan_study",
    "records_from_arrays",
    "run_study",
    "sample",
    "shuffled",
    "synthesise",
    "tune_study",
]

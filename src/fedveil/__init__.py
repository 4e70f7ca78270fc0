"""fedveil: train across many data holders, release only the final model, certify its privacy.

>>> from fedveil import LastIterate, account_for
>>> run = LastIterate(rounds=40, place=39, step_size=0.5, lipschitz=1.0, smoothness=0.5, diameter=1.0, noise_std=2.0)
>>> round(account_for(run, delta=1e-5)["unhidden"].epsilon, 3), round(account_for(run, delta=1e-5)["block"].epsilon, 3)
(4.377, 1.361)
"""

from fedveil.account.calibrate import calibrate
from fedveil.account.compare import account_for
from fedveil.account.places import PlaceCurve, place_curve
from fedveil.errors import BadValue, CannotCertify, FedveilError
from fedveil.guarantee import Adversary, Answer, Bound, Neighbours, Status, Unit
from fedveil.mechanism import (
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
from fedveil.mechanism_file import parse_mechanism

__version__ = "0.1.0"

__all__ = [
    "Adversary",
    "Answer",
    "ApproximateDP",
    "BadValue",
    "Bound",
    "CannotCertify",
    "Compose",
    "FedveilError",
    "Gaussian",
    "Laplace",
    "LastIterate",
    "Mechanism",
    "Neighbours",
    "PlaceCurve",
    "Repeat",
    "SampledGaussian",
    "Status",
    "Unit",
    "account_for",
    "calibrate",
    "parse_mechanism",
    "place_curve",
    "shuffled",
]

"""Noise in one currency: its standard deviation on a coordinate of a round's averaged gradient."""

import math

import numpy as np

from fedveil.account.hidden import per_round
from fedveil.data.records import Records
from fedveil.method.dpsgd import DpSgd
from fedveil.method.hidden import Hidden
from fedveil.method.parts import extra_noise
from fedveil.method.simfl import SimFL
from fedveil.plan import Plan


def noise_on_average(plan: Plan, records: Records) -> float | None:
    """Root mean square over rounds (which count by their squared step); None where no gradient is averaged.

    Where every client noises its own mean, it is the noise of the server's mix of them.
    """
    match plan.method:
        case Hidden() as method:
            steps = per_round(plan.run.step_size, plan.run)
            law = math.sqrt(2) if plan.run.noise == "laplace" else 1.0  # a Laplace scale is not yet a deviation
            each = law * method.noise() / steps
            whole = float(np.sqrt(np.average(each**2, weights=steps**2)))
            return whole * math.sqrt(extra_noise(method, plan.trust, plan.data, plan.target))
        case DpSgd() as method:
            weights = method.weights or (records.sizes / len(records)).tolist()
            parts = [w * _of_client(method, k, int(records.sizes[k])) for k, w in enumerate(weights)]
            return math.hypot(*parts)
        case SimFL() as method:
            return method.noise_std * math.sqrt(records.clients) / (method.rate * len(records))
        case _:
            return None


def _of_client(method: DpSgd, client: int, records: int) -> float:
    posture = method.posture(client)
    whole = posture.noise * posture.clip
    return whole if method.clipping == "batch" else whole / method.divisor(posture, records)

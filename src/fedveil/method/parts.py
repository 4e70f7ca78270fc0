"""Who takes part in a round, and how much noise each client then adds: read by trainer and accountant alike."""

import math
from collections.abc import Sequence

from fedveil.account.hidden import per_round
from fedveil.data.records import DataShape
from fedveil.errors import BadValue
from fedveil.method.base import Method
from fedveil.method.dpsgd import DpSgd
from fedveil.method.fedavg import FedAvg
from fedveil.method.hidden import Hidden
from fedveil.target import Target
from fedveil.trust import Trust


def cohorts(method: Method, data: DataShape, target: Target) -> Sequence[int]:
    """How many clients take part in each round of all passes.

    Hidden: with records dealt, all clients (who has no record in a round sends noise alone); with clients dealt, the
    round's own.
    """
    match method:
        case Hidden(deal="records"):
            return [data.clients] * method.total
        case Hidden():
            each = 1 if target.unit == "client" else data.largest_client
            return [round(size) // each for size in per_round(method.run.batch, method.run).tolist()]
        case FedAvg():
            return [int(method.cohort)] * method.total
        case DpSgd():
            rounds = [method.posture(client).rounds for client in range(data.clients)]
            return [sum(turn < own for own in rounds) for turn in range(method.total)]
        case _:
            raise BadValue(f"[trust] must be left out for {method.kind}: it has no server to be trusted or not.")


def share_deviation(deviation: float, trust: Trust, cohort: int) -> float:
    """The deviation of one client's share of a round's noise.

    So many shares as there are honest survivors, for sure, make up the planned noise; any more are extra.

    >>> share_deviation(2.0, Trust(dropouts=3, colluders=3), 10)
    1.0
    """
    trust.check(cohort)
    return deviation / math.sqrt(trust.honest(cohort))


def extra_noise(method: Method, trust: Trust | None, data: DataShape, target: Target) -> float:
    """How many times the planned variance a round has at most: when all clients answer."""
    if trust is None:
        return 1.0
    sizes = sorted(set(cohorts(method, data, target)))
    for cohort in sizes:
        trust.check(cohort)
    return max(cohort / trust.honest(cohort) for cohort in sizes)

"""The rounds of a run across sites, counted on the wire: the preparation's sums, training, then the evaluation's sums.

The sums of a generator are those of a preparation, and there is nothing after them.

Both sides work this out from the plan. A round is answered once, so no two kinds may share a number. The evaluation
begins after the last round that training may have, also if training stops before.
"""

from functools import lru_cache

from fedveil.federation.agreements.carried import Carried
from fedveil.plan import Plan
from fedveil.run.sums import Floors, floors_of
from fedveil.stages.sums import Measurement
from fedveil.wire.envelope import Refused


def measured(plan: Carried) -> int:
    """Return how many rounds the preparation has: one for each measurement, none without a preparation."""
    return 0 if plan.preparation is None else len(plan.preparation.measurements)


def evaluated(plan: Carried) -> int:
    """Return how many rounds the evaluation has, likewise."""
    if not isinstance(plan, Plan) or plan.evaluation is None:
        return 0
    return len(plan.evaluation.sums.measurements)


@lru_cache(maxsize=16)
def evaluated_from(plan: Plan) -> int:
    """Return the first round of the evaluation."""
    return measured(plan) + len(floors_of(plan))


def measurement_of(plan: Carried, turn: int) -> Measurement | None:
    """Return the measurement of a round; None for a round of training."""
    if plan.preparation is not None and 0 <= turn < measured(plan):
        return plan.preparation.measurements[turn]
    if not isinstance(plan, Plan) or plan.evaluation is None or not 0 <= turn - evaluated_from(plan) < evaluated(plan):
        return None
    return plan.evaluation.sums.measurements[turn - evaluated_from(plan)]


def length_of(plan: Carried, turn: int) -> int:
    """Return how many numbers a sum of this round has."""
    one = measurement_of(plan, turn)
    if one is not None:
        return one.size
    if not isinstance(plan, Plan):
        raise Refused("no-such-round")
    return plan.sum_length


def all_floors(plan: Carried) -> Floors:
    """Return, for each sum of the run, how many clients take part in it and how many must answer."""
    size = plan.data.clients
    everybody = [(size, max(1, plan.trust.least(size)))]
    trained = floors_of(plan) if isinstance(plan, Plan) else []
    return everybody * measured(plan) + trained + everybody * evaluated(plan)


def server_of(plan: Carried, turn: int) -> str:
    """Return who adds up a round: as the plan's trust says; behind masks, where the algorithm has no server."""
    if not isinstance(plan, Plan) or plan.method.served:
        return plan.trust.server
    return "secure-aggregation" if measurement_of(plan, turn) is not None else ""

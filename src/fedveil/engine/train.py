"""Train a plan in this process: one loop over the rounds of every algorithm, and one adder.

The caller holds the data and decides what leaves.
"""

from collections.abc import Callable
from typing import Any

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.engine.measure import loss_on
from fedveil.engine.sums import summing_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.stages.adding import Fails, nobody_fails
from fedveil.stages.train.acting import Done, Session, Trained, acts_of
from fedveil.stages.train.rounds import rounds
from fedveil.sums.seam import Summing


def train(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    *,
    begun: Any = None,
    watch: Callable[[Any], None] | None = None,
    add_up: Summing | None = None,
    fails: Fails = nobody_fails,
    public: Records | None = None,
    start: Vector | None = None,
) -> Trained:
    """Return the last model of a plan, and what clients sent and received.

    ``begun``: a state to resume from. ``watch`` is called with the state after every round. ``add_up`` and ``fails``
    matter if clients share the noise: what adds up a round (None: as the plan's trust says), and who fails to answer.
    ``public``: public records, for a plan whose next rounds are chosen by them. ``start``: the released model that the
    plan goes on from; if left out, it starts from its own public parameters.
    """

    def unwatched(done: Done) -> None:
        """Ignore the state after a round."""

    require(records.shape == plan.data, "The data", f"have the plan's shape, {plan.data}", records.shape)
    add_up = summing_of(plan, entropy) if add_up is None else add_up
    loss = None if public is None else loss_on(plan, public)
    session = Session(add_up=add_up, fails=fails, begun=begun, watch=watch or unwatched, public_loss=loss, start=start)
    acts = acts_of(plan.method.kind)
    own = acts.own(plan)
    return own(plan, records, entropy, session) if own is not None else rounds(acts, plan, records, entropy, session)

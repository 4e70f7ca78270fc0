"""The one function that trains a plan in this process, for every algorithm.

The caller holds the data and decides what leaves.
"""

from collections.abc import Callable
from typing import Any

from fedveil.algorithms.acting import Done, Session
from fedveil.algorithms.registry import acts_of
from fedveil.algorithms.shares import Fails, nobody_fails
from fedveil.algorithms.trained import Trained
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan
from fedveil.run.scoring import loss_on
from fedveil.run.sums import summing_of
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
) -> Trained:
    """Return the last model of a plan, and what clients sent and received.

    ``begun``: a state to resume from, for algorithms that can. ``watch`` is called with the state after every round.
    ``add_up`` and ``fails`` matter if clients share the noise: what adds up a round (None: as the plan's trust says),
    and who fails to answer. ``public``: public records, for a plan whose next rounds are chosen by them.
    """

    def unwatched(done: Done) -> None:
        """Ignore the state after a round."""

    add_up = summing_of(plan, entropy) if add_up is None else add_up
    loss = None if public is None else loss_on(plan, public)
    session = Session(add_up=add_up, fails=fails, begun=begun, watch=watch or unwatched, public_loss=loss)
    return acts_of(plan.method.kind).trainer(plan.trust)(plan, records, entropy, session)

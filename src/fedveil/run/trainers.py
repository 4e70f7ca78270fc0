"""Which trainer carries out which method; hidden training, which can stop and go on, is in simulate.py."""

from collections.abc import Callable

from fedveil.data.records import Records
from fedveil.method.dpsgd import DpSgd
from fedveil.plan import Plan
from fedveil.run.summing import summing_of
from fedveil.summing import Summing
from fedveil.train.dpsgd import train_dpsgd
from fedveil.train.dpsgd_parts import train_dpsgd_parts
from fedveil.train.entropy import Entropy
from fedveil.train.fedavg import train_fedavg
from fedveil.train.fedavg_parts import train_fedavg_parts
from fedveil.train.parts import Fails, nobody_fails
from fedveil.train.simfl import train_simfl
from fedveil.train.trained import Tick, Trained, Trainer

PartsTrainer = Callable[[Plan, Records, Entropy, Tick, Summing, Fails], Trained]

TRAINERS: dict[str, Trainer] = {"dpsgd": train_dpsgd, "fedavg": train_fedavg, "simfl": train_simfl}
BY_PARTS: dict[str, PartsTrainer] = {"dpsgd": train_dpsgd_parts, "fedavg": train_fedavg_parts}


def train_plan(
    plan: Plan,
    records: Records,
    entropy: Entropy,
    tick: Tick,
    *,
    add_up: Summing | None = None,
    fails: Fails = nobody_fails,
) -> Trained:
    """The whole run of a plan that is not hidden: by parts where it states a trust, and clients wait for each other."""
    waits = not isinstance(plan.method, DpSgd) or plan.method.network.together
    if plan.trust is None or not waits:
        return TRAINERS[plan.method.kind](plan, records, entropy, tick)
    add_up = summing_of(plan, entropy) if add_up is None else add_up
    return BY_PARTS[plan.method.kind](plan, records, entropy, tick, add_up, fails)

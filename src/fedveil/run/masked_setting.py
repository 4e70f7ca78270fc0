"""What site and aggregator each work out for a masked round, from the plan alone: neither need believe the other.

There are no identity keys of clients here: the masks hold against a server that follows the protocol and looks, not
against one that poses as clients (docs/secure.md).
"""

from hashlib import sha256

from fedveil.plan import Plan
from fedveil.secure.setting import Setting
from fedveil.theory.neighbours import least_neighbours

STAGES = ("advertise", "share", "mask", "agree", "reveal")


def setting_of(plan: Plan, run: str, turn: int, clients: tuple[int, ...]) -> Setting:
    """The setting of a round of these clients."""
    assert plan.trust is not None  # noqa: S101  asked by parts only
    trust = plan.trust
    least = max(1, trust.least(len(clients)))
    hood = least_neighbours(len(clients), trust.colluders, len(clients) - least)
    return Setting(
        run=sha256(f"fedveil masked run {plan.hash} {run}".encode()).digest(),
        round=turn,
        clients=clients,
        neighbours=hood.neighbours,
        threshold=hood.threshold,
        least=least,
        length=plan.dimension,
        colluders=trust.colluders,
    )

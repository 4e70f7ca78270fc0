"""What site and aggregator each compute for a masked round, from the plan only, without believing each other.

Without identity keys of clients, the masks protect against a server that follows the protocol but is curious, not
against one that poses as clients (docs/secure.md). With them, all clients of a round are neighbours in the graph of
masks, because the aggregator names the run and could otherwise choose a name that gives a graph to its advantage.
"""

from collections.abc import Mapping
from hashlib import sha256

from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.turns import length_of
from fedveil.sums.masks.setting import Setting
from fedveil.theory.neighbours import least_neighbours

STAGES = ("advertise", "share", "mask", "agree", "reveal")


def setting_of(plan: Carried, run: str, turn: int, clients: tuple[int, ...], keys: Mapping[int, bytes]) -> Setting:
    """Return the setting of a round of these clients; ``keys``: their identity keys, if the plan uses them."""
    trust = plan.trust
    least = max(1, trust.least(len(clients)))
    if trust.identities is None:
        hood = least_neighbours(len(clients), trust.colluders, len(clients) - least)
        neighbours, threshold = hood.neighbours, hood.threshold
    else:
        neighbours, threshold = len(clients) - 1, max(2, least)
    return Setting(
        run=sha256(f"fedveil masked run {plan.hash} {run}".encode()).digest(),
        round=turn,
        clients=clients,
        neighbours=neighbours,
        threshold=threshold,
        least=least,
        length=length_of(plan, turn),
        colluders=trust.colluders,
        identities=() if trust.identities is None else tuple(keys[client] for client in clients),
    )

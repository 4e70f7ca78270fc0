"""Which way of adding up goes with which server: the open sum, masked sums, homomorphic encryption."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fedveil.errors import NotAvailable
from fedveil.method.parts import cohorts
from fedveil.plan import Plan
from fedveil.summing import Summing
from fedveil.train.entropy import Entropy
from fedveil.train.parts import plain_sum
from fedveil.trust import Trust


def summing_of(plan: Plan, entropy: Entropy) -> Summing:
    """What adds up the rounds of a plan by parts; whatever it is, it gives the same whole numbers."""
    trust = plan.trust or Trust()
    return SERVERS[trust.server](plan, entropy)


def _trusted(plan: Plan, entropy: Entropy) -> Summing:
    return plain_sum


def _secure(plan: Plan, entropy: Entropy) -> Summing:
    most, least = sizes_of(plan)
    found: Summing = _part("fedveil.secure.rounds", plan).SecureSumming(clients=most, least=least, entropy=entropy)
    return found


def _homomorphic(plan: Plan, entropy: Entropy) -> Summing:
    most, least = sizes_of(plan)
    found: Summing = _part("fedveil.secure.homomorphic", plan).HomomorphicSumming(most, least=least)
    return found


def _part(name: str, plan: Plan) -> Any:
    """Loaded only where it is asked for: it brings libraries that not everybody has."""
    try:
        return import_module(name)
    except ImportError as error:
        server = None if plan.trust is None else plan.trust.server
        raise NotAvailable(f'trust.server = "{server}" cannot run here: {error}.') from error


def sizes_of(plan: Plan) -> tuple[int, int]:
    """The most clients of a round, and the fewest that the clients themselves let a sum be opened for."""
    sizes, trust = cohorts(plan.method, plan.data, plan.target), plan.trust or Trust()
    return max(sizes), max(1, trust.least(min(sizes)))


SERVERS: dict[str, Callable[[Plan, Entropy], Summing]] = {
    "trusted": _trusted,
    "secure-aggregation": _secure,
    "homomorphic": _homomorphic,
}

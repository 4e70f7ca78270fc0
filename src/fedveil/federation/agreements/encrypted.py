"""What site and aggregator each compute for encrypted sums, from the plan and the names of the sites only."""

from collections.abc import Iterable
from typing import Final

from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.turns import all_floors
from fedveil.sums.homomorphic.parameters import Parameters, parameters_for

KEY_FILE: Final = "sums.key"  # in a site's private folder during the run: the key that opens sums


def parameters_of(plan: Carried) -> Parameters:
    """Return the parameters for all rounds, chosen for the round with the most clients."""
    return parameters_for(max(most for most, _ in all_floors(plan)))


def maker_of(sites: Iterable[str]) -> str:
    """Return the site that makes the run's key: the first by name, so that nobody can choose it."""
    return min(sites)

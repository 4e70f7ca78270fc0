"""What site and aggregator each work out for encrypted sums, from the plan and the sites' names alone."""

from collections.abc import Iterable
from typing import Final

from fedveil.plan import Plan
from fedveil.run.sums import floors_of
from fedveil.sums.homomorphic.parameters import Parameters, parameters_for

KEY_FILE: Final = "sums.key"  # in a site's private folder: the key that opens sums, while the run goes on


def parameters_of(plan: Plan) -> Parameters:
    """One set for all rounds: for as many clients as the largest has."""
    return parameters_for(max(most for most, _ in floors_of(plan)))


def maker_of(sites: Iterable[str]) -> str:
    """The site that makes the run's key: the first by name, so that nobody chooses it."""
    return min(sites)

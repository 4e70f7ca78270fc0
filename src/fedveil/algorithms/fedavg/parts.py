"""What contradicts itself in a plan of federated averaging: draws, the server's optimiser, local training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.checks import require
from fedveil.values import number, whole

if TYPE_CHECKING:
    from fedveil.algorithms.fedavg.method import FedAvg

LARGEST_PULL = 1e9


def check_parts(method: FedAvg) -> None:
    """Refuse what contradicts the rest of the method: draws, the server's optimiser, local training."""
    _check_draws(method)
    require(method.optimizer in (None, "adam"), "fedavg.optimizer", "be adam or left out", method.optimizer)
    for name in ("beta2", "floor"):
        given = getattr(method, name)
        fits = given is None or method.optimizer == "adam"
        require(fits, f"fedavg.{name}", "be left out unless the optimizer is adam", given)
    _ = method.optimiser  # refuses numbers that are none of an optimiser
    if method.proximal is not None:
        object.__setattr__(method, "proximal", number("fedavg.proximal", method.proximal))
        require(0 < method.proximal <= LARGEST_PULL, "fedavg.proximal", "lie in (0, 1e9]", method.proximal)
    known = method.local_gradient in (None, "mean")
    require(known, "fedavg.local_gradient", "be mean or left out", method.local_gradient)
    known = method.local_products in (None, "gram")
    require(known, "fedavg.local_products", "be gram or left out", method.local_products)
    whole_steps = method.local_products is None or (method.local_batch == 0 and method.local_gradient is None)
    hint = "It is for local steps of all records, each clipped."
    require(whole_steps, "fedavg.local_products", "be left out with local batches", method.local_products, hint)


def _check_draws(method: FedAvg) -> None:
    independent = method.sampling == "independent"
    require(
        (method.picks is not None) == independent, "fedavg.picks", "go with independent sampling alone", method.picks
    )
    if method.picks is not None:
        object.__setattr__(method, "picks", whole("fedavg.picks", method.picks))
        require(1 <= method.picks <= method.rounds, "fedavg.picks", "lie between 1 and the rounds", method.picks)
        rule = f"be a multiple of the {method.picks} rounds of a pass"
        hint = "A client picks one round of each pass, and a pass that was only begun would cost as much."
        require(method.rounds % method.picks == 0, "fedavg.rounds", rule, method.rounds, hint)
    alike = method.segments is None or not (independent or method.own_draws)
    hint = "Where clients draw for themselves all rounds are alike."
    require(alike, "fedavg.segments", f"be left out with these draws, {method.sampling}", "segments", hint)

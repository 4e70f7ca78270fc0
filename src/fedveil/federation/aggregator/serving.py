"""Checks of a site's answer and of a round's sum, for every algorithm."""

from collections.abc import Mapping
from math import ceil, sqrt

import numpy as np

from fedveil.algorithms.across_sites import LOOSE, TAIL, Serving
from fedveil.errors import TooFewSurvivors
from fedveil.federation.aggregator.post import Answer
from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.turns import length_of
from fedveil.stages.sums import STEPS, Measurement
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Whole
from fedveil.values import Indices


def right(serving: Serving, turn: int, site: str, answer: Answer) -> bool:
    """Return whether an answer can be a sum of what the site's clients may send: its shape, its clients and its size.

    An answer that follows the plan passes. Any other counts as no answer, and does not affect other sites.
    """
    total, clients = answer.content.rows.get("total"), answer.content.values.get("clients")
    if answer.kind != "update" or total is None or not isinstance(clients, list) or not clients:
        return False
    known = all(type(client) is int for client in clients) and set(clients) <= serving.clients(turn, site)
    shaped = total.dtype == np.int64 and total.shape == (length_of(serving.plan, turn),)
    if not (known and len(set(clients)) == len(clients) and shaped):
        return False
    limit = serving.limit(turn, site, clients)
    return squared_norm(total.astype(np.int64)) <= limit * limit


def sum_limit(plan: Carried, one: Measurement, sizes: Indices, clients: list[int], times: int = 1) -> int:
    """Return a norm in grid steps that the noisy sum of these clients exceeds with a chance below exp(-72).

    ``sizes``: how many records each client of the study has; ``times``: how often the bound of a contribution a unit
    may add.
    """
    units = len(clients) if plan.target.unit == "client" else int(sizes[clients].sum())
    share = one.deviation / sqrt(plan.trust.honest(plan.data.clients))
    noise = share * sqrt(len(clients)) * (sqrt(one.size) + TAIL)
    return ceil((units * times * one.bound * STEPS + noise) * LOOSE + 2 * len(clients) * sqrt(one.size))


def least(serving: Serving, turn: int) -> int:
    """Return how many clients must answer."""
    return max(serving.plan.trust.least(serving.cohort(turn)), 1)


def count(answers: Mapping[str, Answer]) -> int:
    """Return how many clients have answered."""
    return sum(len(answer.content.values["clients"]) for answer in answers.values())


def summed(serving: Serving, turn: int, answers: Mapping[str, Answer]) -> Whole:
    """Return the sum of a round; a round with too few answers is refused, and what was charged stays charged."""
    needed = least(serving, turn)
    if not count(answers) >= needed:
        raise TooFewSurvivors(
            f"Round {turn + 1} has the answers of {count(answers)} clients and needs {needed}: its sum may lack noise"
            " and is not used. What was charged stays charged; go on with --resume when the sites are back."
        )
    total = np.zeros(length_of(serving.plan, turn), dtype=np.int64)
    for site in sorted(answers):
        # modulo 2**64, as in every other way of adding up
        total += answers[site].content.rows["total"].astype(np.int64)
    return total

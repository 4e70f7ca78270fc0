"""One turn across sites: what each is asked, who may answer, and the checks of an answer and of the sum."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from fedveil.core.errors import TooFewSurvivors
from fedveil.core.values import Indices
from fedveil.federation.aggregator.post import Answer
from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.turns import Span, least_of
from fedveil.stages.protocol import LOOSE, TAIL, Asking, Consortium, State
from fedveil.stages.sums import STEPS, Measurement
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """``number``: counted through all stages; ``size``: of the sum; ``least``: how many clients must answer.

    ``questions``: by site; ``clients``: who may answer there; ``limit``: a norm in grid steps that the sum of some
    clients of a site exceeds with a chance below exp(-72).
    """

    number: int
    size: int
    least: int
    questions: Mapping[str, Content]
    clients: Mapping[str, set[int]]
    limit: Callable[[str, list[int]], int]

    def right(self, site: str, answer: Answer) -> bool:
        """Return whether an answer can be a sum of what the site's clients may send: shape, clients and size.

        An answer that follows the plan passes. Any other counts as no answer, and does not affect other sites.
        """
        total, clients = answer.content.rows.get("total"), answer.content.values.get("clients")
        if answer.kind != "update" or total is None or not isinstance(clients, list) or not clients:
            return False
        known = all(type(client) is int for client in clients) and set(clients) <= self.clients[site]
        shaped = total.dtype == np.int64 and total.shape == (self.size,)
        if not (known and len(set(clients)) == len(clients) and shaped):
            return False
        limit = self.limit(site, clients)
        return squared_norm(total.astype(np.int64)) <= limit * limit

    def summed(self, answers: Mapping[str, Answer]) -> Whole:
        """Return the sum; too few answers are refused, and what was charged stays charged."""
        if not count(answers) >= self.least:
            raise TooFewSurvivors(
                f"Round {self.number + 1} has the answers of {count(answers)} clients and needs {self.least}: its sum"
                " may lack noise and is not used. What was charged stays charged; go on with --resume when the sites"
                " are back."
            )
        total = np.zeros(self.size, dtype=np.int64)
        for site in sorted(answers):
            # modulo 2**64, as in every other way of adding up
            total += answers[site].content.rows["total"].astype(np.int64)
        return total


def count(answers: Mapping[str, Answer]) -> int:
    """Return how many clients have answered."""
    return sum(len(answer.content.values["clients"]) for answer in answers.values())


def turn_of(plan: Carried, span: Span, asking: Asking, state: State, members: Consortium) -> Turn:
    """Return the next turn of a stage that stands at this state."""
    turn, number = state.round, span.first + state.round
    asked = {site: asking.question(state, site) for site in members.members}
    return Turn(
        number=number,
        size=span.stage.size(turn),
        least=least_of(plan, number),
        questions={site: question for site, question in asked.items() if question is not None},
        clients={site: asking.clients(turn, site) for site in members.members},
        limit=lambda site, clients: asking.limit(turn, site, clients),
    )


def sum_limit(plan: Carried, one: Measurement, sizes: Indices, clients: list[int], times: int = 1) -> int:
    """Return a norm in grid steps that the noisy sum of these clients exceeds with a chance below exp(-72).

    ``sizes``: how many records each client of the study has; ``times``: how often the bound of a contribution a unit
    may add.
    """
    units = len(clients) if plan.target.unit == "client" else int(sizes[clients].sum())
    share = one.deviation / sqrt(plan.trust.honest(plan.data.clients))
    noise = share * sqrt(len(clients)) * (sqrt(one.size) + TAIL)
    return ceil((units * times * one.bound * STEPS + noise) * LOOSE + 2 * len(clients) * sqrt(one.size))

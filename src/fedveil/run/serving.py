"""The aggregator's side of any method by parts: what a round needs, and what makes an answer and a sum right."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import TooFewSurvivors
from fedveil.plan import Plan
from fedveil.run.post import Answer
from fedveil.summing import Whole
from fedveil.wire.content import Content

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]
TAIL = 12.0  # deviations: a norm beyond sqrt(size) + 12 of them has a chance below exp(-72)
LOOSE = 1 + 2.0**-20  # float errors of the limit itself


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where a run stands after ``round`` rounds: all that the server keeps, in one row of numbers."""

    round: int
    row: Vector


class Serving(Protocol):
    """One method at the aggregator; it holds no data."""

    @property
    def plan(self) -> Plan:
        """What runs."""

    @property
    def last(self) -> int:
        """After how many rounds the model is released."""

    def begin(self) -> Standing:
        """Before the first round."""

    def model(self, standing: Standing) -> Vector:
        """The model."""

    def proposal(self, site: str) -> dict[str, Indices]:
        """What one site must know besides the plan."""

    def questions(self, standing: Standing) -> dict[str, Content]:
        """Who is asked what in the next round: fixed by the standing, so that asking again is asking the same."""

    def cohort(self, turn: int) -> int:
        """How many clients take part in a round."""

    def clients(self, turn: int, site: str) -> set[int]:
        """Those of a site who take part in a round."""

    def limit(self, turn: int, site: str, clients: list[int]) -> int:
        """Grid steps that the norm of these clients' sum does not exceed, but with a chance below exp(-72)."""

    def advance(self, standing: Standing, total: Whole) -> Standing:
        """The next standing."""


def right(serving: Serving, turn: int, site: str, answer: Answer) -> bool:
    """Whether an answer can be a sum of what the site's clients may send: shape, who is in it, and its size.

    What a site sends as planned passes; anything else is as good as no answer, and changes nobody else's.
    """
    total, clients = answer.content.rows.get("total"), answer.content.values.get("clients")
    if answer.kind != "update" or total is None or not isinstance(clients, list) or not clients:
        return False
    known = all(type(client) is int for client in clients) and set(clients) <= serving.clients(turn, site)
    shaped = total.dtype == np.int64 and total.shape == (serving.plan.dimension,)
    if not (known and len(set(clients)) == len(clients) and shaped):
        return False
    limit = serving.limit(turn, site, clients)
    return bool(sum(value * value for value in total.tolist()) <= limit * limit)


def least(serving: Serving, turn: int) -> int:
    """How many clients must answer."""
    assert serving.plan.trust is not None  # noqa: S101  plans without it are refused before
    return max(serving.plan.trust.least(serving.cohort(turn)), 1)


def count(answers: Mapping[str, Answer]) -> int:
    """How many clients have answered."""
    return sum(len(answer.content.values["clients"]) for answer in answers.values())


def summed(serving: Serving, turn: int, answers: Mapping[str, Answer]) -> Whole:
    """The sum of a round; one with too few answers is refused, and what was charged stays charged."""
    needed = least(serving, turn)
    if not count(answers) >= needed:
        raise TooFewSurvivors(
            f"Round {turn + 1} has the answers of {count(answers)} clients and needs {needed}: its sum may lack noise"
            " and is not used. What was charged stays charged; go on with --resume when the sites are back."
        )
    total = np.zeros(serving.plan.dimension, dtype=np.int64)
    for site in sorted(answers):
        total += answers[site].content.rows["total"].astype(np.int64)  # modulo 2**64, like every way of adding up
    return total

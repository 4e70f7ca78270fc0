"""The training stage of a plan, as a frozen value: what trainer and accountant both read, and nothing else of the plan.

It holds public quantities only: an algorithm with its settings, the shape of the data, the model, the target, whom the
clients trust, and the grid that state and noise lie on.
"""

from dataclasses import dataclass
from functools import lru_cache

from fedveil.data.records import DataShape
from fedveil.models.loss import Constants
from fedveil.models.spec import ModelPlan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.sums import NO_SUMS, NoisySums
from fedveil.stages.train.base import Method, Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained and how; ``grid``: state and noise are whole multiples of 2**grid."""

    method: Method
    data: DataShape
    model: ModelPlan
    target: Target
    grid: int
    trust: Trust = CENTRAL

    @property
    def setup(self) -> Setup:
        """What the method is asked about: data, model, target and trust."""
        return Setup(data=self.data, model=self.model, target=self.target, trust=self.trust)

    @property
    def name(self) -> str:
        """What people call this stage."""
        return "training"

    @property
    def turns(self) -> int:
        """How many sums it asks for at most: one for each round, or for each window of rounds."""
        return len(self._cohorts)

    @property
    def served(self) -> bool:
        """Whether the algorithm has a server that adds up."""
        return self.method.served

    @property
    def sums(self) -> NoisySums:
        """No sums of a plan's own list: what its rounds add up is the algorithm's."""
        return NO_SUMS

    @property
    def _cohorts(self) -> tuple[int, ...]:
        return _cohorts(self)

    def size(self, turn: int) -> int:
        """Return the number of values that are added up in a turn."""
        return self.sum_length

    def cohort(self, turn: int) -> int:
        """Return how many clients answer in a turn."""
        return self._cohorts[turn]

    @property
    def units(self) -> int:
        """Number of units (records or clients) to protect."""
        return self.setup.units

    @property
    def dimension(self) -> int:
        """Number of model parameters."""
        return self.setup.dimension

    @property
    def sum_length(self) -> int:
        """Number of values that the clients of a round send and the server adds up."""
        return self.method.sum_length(self.setup)

    @property
    def radius(self) -> float:
        """Radius of the ball that the model is kept in."""
        return self.method.radius(self.setup)

    @property
    def constants(self) -> Constants:
        """Constants of the model (Lipschitz, smoothness, ...) on rows of this plan."""
        return self.model.constants(self.data.bound)


@lru_cache(maxsize=16)
def _cohorts(stage: Training) -> tuple[int, ...]:
    return tuple(stage.method.cohorts(stage.setup)[:: stage.method.window])

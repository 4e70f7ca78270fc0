"""What planning starts from, and what every algorithm must offer so that it can be planned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.train.base import Method
from fedveil.stages.train.schedule_request import ScheduleRequest
from fedveil.stages.train.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Public quantities only: the shape of the data, the model, the target, and what the user has already decided.

    ``canaries``: how many of the records belong to an audit; where scores are linear, as many of the features.
    """

    data: DataShape
    model: ModelPlan
    target: Target
    schedule: ScheduleRequest
    canaries: int = 0
    trust: Trust = CENTRAL

    @property
    def setup(self) -> Setup:
        """What a method for this task will be asked about."""
        return Setup(data=self.data, model=self.model, target=self.target, trust=self.trust)

    @property
    def canary_parameters(self) -> int:
        """Number of parameters that canaries alone can move, those of their columns; torch models have none."""
        return self.model.loss.size(self.canaries) if self.canaries and self.model.linear else 0


@dataclass(frozen=True, slots=True)
class Asked:
    """All that a study asks of an algorithm: its own table, and the task around it."""

    request: Any
    task: Task


def beside(name: str, other: str, why: str, when: Callable[[Any], object] | None = None) -> Exclusion:
    """A setting outside [algorithm] that cannot be stated with an algorithm, or (``when``) with some of its settings.

    ``when`` is asked about an :class:`Asked`.
    """
    return Exclusion(name, other, why, when or (lambda asked: True), attrgetter(f"task.{name}"))


def check_beside(request: Any, task: Task, exclusions: Sequence[Exclusion]) -> None:
    """Refuse what a study states outside [algorithm] although the algorithm excludes it."""
    check_exclusions(Asked(request, task), "", exclusions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A method, the reasons for its design, and (if a schedule was searched) the alternatives.

    ``risk`` is the expected risk by the yardstick that all designs share (fedveil.stages.train.yardstick), or None
    where it does not apply; ``passes`` counts how often the run computes the gradients of all records.
    """

    method: Method
    reason: str
    designed: Any = None
    risk: float | None = None
    passes: float | None = None


class AlgorithmRequest(Protocol):
    """The [algorithm] table of a study."""

    @property
    def kind(self) -> str: ...  # noqa: D102

    def design(self, task: Task) -> Draft:
        """Return the method that meets the target with ideal noise and harms the model least."""

    def grid(self, method: Method, task: Task) -> int:
        """Return the exponent of the grid that the method runs on."""

    def recalibrated(self, method: Method, task: Task, *, epsilon: float, delta: float) -> Method:
        """Return the same method with the noise for another target."""


@runtime_checkable
class NoiseCanMove(Protocol):
    """A request of an algorithm whose noise may be added by the server or by the clients."""

    def noised_by_clients(self) -> AlgorithmRequest:
        """Return the same request, with noise that the server would add added by the clients."""


@runtime_checkable
class NoisedAtClients(Protocol):
    """A request of an algorithm in which every client noises its own updates, so that many clients mean much noise."""

    noised_at_clients: bool


@runtime_checkable
class RiskKnownBefore(Protocol):
    """A request whose design takes long, and which knows sooner what risk it will not undercut."""

    def least_risk(self, task: Task) -> float | None:
        """Return such a risk by the yardstick that all designs share; None where it is not known."""


@runtime_checkable
class NoiseComesInKinds(Protocol):
    """A request of an algorithm whose noise may be independent from round to round, or correlated over rounds."""

    @property
    def noises(self) -> Mapping[str, AlgorithmRequest]:
        """The same request with each kind of noise; what it says of correlation stays if it asks for that already."""

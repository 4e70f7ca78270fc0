"""What planning starts from, and what every algorithm must offer so that it can be planned."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, Protocol, get_args, runtime_checkable

from fedveil.core.errors import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.limits import PASSES, ROUNDS
from fedveil.core.values import number, whole
from fedveil.data.records import DataShape
from fedveil.models.spec import ModelPlan
from fedveil.privacy.mechanism import Numbers
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.train.base import Method, Setup

# The [schedule] table of a study: what the user has decided about rounds, batches, steps and noise.


Kind = Literal["auto", "constant", "decaying", "growing-batches"]


EXCLUSIONS: Final = (
    *(
        Exclusion(
            name,
            'rounds = "converged"',
            'Give passes (with rounds = 1) instead of rounds = "converged".',
            lambda schedule: schedule.rounds == "converged",
        )
        for name in ("passes", "batch", "noise_std")
    ),
    Exclusion(
        "batch",
        'kind = "growing-batches"',
        "A fixed batch is the kind constant or decaying; a list states each.",
        lambda schedule: schedule.kind == "growing-batches" and isinstance(schedule.batch, int),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """What the user has decided; None leaves it to the design.

    ``rounds`` counts those of one pass; "converged" asks for so many passes over all units that neither the guarantee
    nor the model changes any more. Numbers may be one for all rounds, or one per round (of a pass, or of all passes).
    If ``noise_std`` is given nothing is calibrated; it is only checked that it meets the target.
    """

    kind: Kind = "auto"
    rounds: int | Literal["converged"] | None = None
    passes: int | None = None
    batch: int | tuple[int, ...] | None = None
    step_size: Numbers | None = None
    noise_std: Numbers | None = None

    def __post_init__(self) -> None:
        right = self.kind in get_args(Kind)
        require(right, "schedule.kind", f"be one of {', '.join(get_args(Kind))}", self.kind)
        for name in ("rounds", "passes"):
            value = getattr(self, name)
            if value is None or (name == "rounds" and value == "converged"):
                continue
            extra = ' or "converged"' if name == "rounds" else ""
            require(not isinstance(value, str), f"schedule.{name}", f"be a whole number{extra}", value)
            object.__setattr__(self, name, whole(f"schedule.{name}", value))
            most = ROUNDS if name == "rounds" else PASSES
            rule = f"lie between 1 and {most}" if getattr(self, name) > most else "be at least 1"
            require(1 <= getattr(self, name) <= most, f"schedule.{name}", rule, value)
        for name, kind in (("batch", whole), ("step_size", number), ("noise_std", number)):
            value = getattr(self, name)
            if value is not None:
                given = tuple(value) if isinstance(value, list | tuple) else (value,)
                plain: tuple[float, ...] = tuple(kind(f"schedule.{name}", v) for v in given)
                right = len(plain) > 0 and all(0 < v < math.inf for v in plain)
                require(right, f"schedule.{name}", "be positive and finite", value)
                object.__setattr__(self, name, plain if isinstance(value, list | tuple) else plain[0])
        self._check_together()

    def _check_together(self) -> None:
        check_exclusions(self, "schedule", EXCLUSIONS)
        if isinstance(self.rounds, int) and self.passes is not None:
            total = self.rounds * self.passes
            require(total <= ROUNDS, "schedule.rounds * passes", f"be at most {ROUNDS}", total)
        for name in ("batch", "step_size", "noise_std"):
            value = getattr(self, name)
            count = len(value) if isinstance(value, tuple) else 1
            require(count <= ROUNDS, f"schedule.{name}", f"have at most {ROUNDS} entries", count)
        if self.rounds == "converged":
            fits = self.kind in ("auto", "constant")
            require(fits, "schedule.kind", 'be auto or constant with rounds = "converged"', self.kind)
        if self.kind == "constant":
            for name in ("batch", "step_size", "noise_std"):
                varies = isinstance(getattr(self, name), tuple) and len(set(getattr(self, name))) > 1
                require(not varies, f"schedule.{name}", "be one number for the kind constant", getattr(self, name))
        if isinstance(self.batch, tuple) and isinstance(self.rounds, int):
            fits = len(self.batch) == self.rounds
            require(fits, "schedule.batch", f"have one entry per round, {self.rounds}", len(self.batch))


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

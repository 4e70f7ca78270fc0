"""The interface of an algorithm: a plan holds one as a frozen value, which trainer and accountant both read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol, Self, TypeVar

from fedveil.accounting.grid import Grid
from fedveil.core.errors import BadValue, require
from fedveil.core.tables import filled
from fedveil.core.tables import table as inner
from fedveil.core.values import Indices
from fedveil.data.records import DataShape
from fedveil.models.loss import Constants
from fedveil.models.spec import ModelPlan
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.sums import NO_SUMS, NoisySums
from fedveil.stages.train.correlation import Correlation

# What a method is asked about: the shape of the data, the model, the target, and whom the clients trust.


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Public quantities only. A plan has one, and so has a task that is still to be planned."""

    data: DataShape
    model: ModelPlan
    target: Target
    trust: Trust = CENTRAL

    @property
    def units(self) -> int:
        """Number of units (records or clients) to protect."""
        return self.data.clients if self.target.unit == "client" else self.data.records

    @property
    def held(self) -> int:
        """Number of units that one client holds at most."""
        return 1 if self.target.unit == "client" else self.data.largest_client

    @property
    def dimension(self) -> int:
        """Number of model parameters."""
        return self.model.loss.size(self.data.features)


Known = TypeVar("Known", bound="Method")


class Method(Protocol):
    """An algorithm, which must satisfy the laws in tests/contract/test_methods.py.

    ``answer`` is for ideal, real-valued noise; ``grid`` says how far the run on whole multiples of 2**exponent differs
    from that, in units of the noise this observer does not know. ``check`` refuses a method that contradicts the data,
    the model or the target, ``check_shares`` a trust under which clients cannot share the noise. ``facts`` are lines
    for people; ``radius`` bounds the norm of the parameters.

    ``hides``: whether the promises assume that nobody sees a model before the last. ``noiseless``: no guarantee was
    asked for. ``chooses``: a rule chooses while the run goes on, by held-out records that are public. ``served``:
    whether there is a server that adds up. ``waits``: whether a round waits for all of its
    clients. ``window``: how many rounds are added up at once.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def total(self) -> int: ...  # noqa: D102
    @property
    def hides(self) -> bool: ...  # noqa: D102
    @property
    def noiseless(self) -> bool: ...  # noqa: D102
    @property
    def chooses(self) -> bool: ...  # noqa: D102
    @property
    def waits(self) -> bool: ...  # noqa: D102
    @property
    def served(self) -> bool: ...  # noqa: D102
    @property
    def window(self) -> int: ...  # noqa: D102

    def check(self, setup: Setup) -> None:
        """Refuse a method that does not fit the data, the model or the target."""

    def check_shares(self, setup: Setup, exponent: int) -> None:
        """Refuse a trust under which the clients cannot share this method's noise on this grid."""

    def sum_length(self, setup: Setup) -> int:
        """Return how many numbers a round adds up: one for each parameter, and those that an algorithm adds."""

    def cohorts(self, setup: Setup) -> Sequence[int]:
        """Return how many clients take part in each round of all passes."""

    def traffic(self, setup: Setup, together: bool) -> tuple[int, int, int]:
        """Return how many updates are sent in the run, how many by one client, and the clients of the largest round.

        All are upper bounds; ``together``: all planned clients send in every round.
        """

    def average_noise(self, sizes: Indices, setup: Setup) -> float | None:
        """Return the noise on the averaged gradient (root mean square over rounds), for clients of these sizes.

        Return None if no gradient is averaged.
        """

    def answer(self, adversary: Adversary, setup: Setup, delta: float, beside: Gaussian | None = None) -> Answer:
        """Return the smallest epsilon that is proved against this observer.

        ``beside``: what the observer learns of the same data before training, composed exactly with it.
        """

    def grid(self, adversary: Adversary, setup: Setup, exponent: int) -> Grid:
        """Return what the grid costs against this observer."""

    def radius(self, setup: Setup) -> float:
        """Return the radius of the ball that the parameters are kept in."""

    def table(self) -> dict[str, Any]:
        """Return the [method] table that reads back to this value."""


def expected(kind: type[Known], method: Method) -> Known:
    """Return the method, which must be of this algorithm."""
    if not isinstance(method, kind):
        raise BadValue(f"The plan must be for {kind.kind} here, and it is for {method.kind}.")
    return method


class Served:
    """Answers shared by algorithms that add noise, have a server, and add up every round separately.

    ``pulls_when_empty``: whether a client without records still sends the pull of an l2 penalty, so that leaving a
    client's records out is not the same as leaving the client out.
    """

    __slots__ = ()
    pulls_when_empty: ClassVar[bool] = False

    @property
    def noiseless(self) -> bool:
        """False: there is always noise."""
        return False

    @property
    def chooses(self) -> bool:
        """False: the plan says what is run."""
        return False

    @property
    def served(self) -> bool:
        """True: there is a server that adds up."""
        return True

    @property
    def waits(self) -> bool:
        """True: a round ends when all of its clients have answered."""
        return True

    @property
    def window(self) -> int:
        """One: every round is added up separately."""
        return 1

    def sum_length(self, setup: Setup) -> int:
        """Return the number of parameters: a round adds up nothing else."""
        return setup.dimension


class Tabled:
    """A method whose [method] table holds all of its fields; ``GROUPS``: those that are tables of their own."""

    __slots__ = ()
    GROUPS: ClassVar[Mapping[str, Any]] = {}
    rounds: int

    def table(self) -> dict[str, Any]:
        """Return all fields."""
        return written({f.name: getattr(self, f.name) for f in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Return the method of the table that :meth:`table` writes."""
        rounds: Any = table.get("rounds", math.nan)
        result: Self = filled(cls, read_groups(table, cls.GROUPS, rounds), "method")
        return result


def check_groups(method: Any, groups: Mapping[str, Any]) -> None:
    """Refuse anything but a group of settings where one belongs; by default some of them are empty."""
    for name, kind in {**groups, "correlated": Correlation}.items():
        usual = next(f.default for f in fields(method) if f.name == name)
        given = getattr(method, name)
        right = isinstance(given, kind) or given == usual
        require(right, f"method.{name}", "be a table", given)


def written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's fields for its table, with its groups as tables inside; an empty group has none."""
    stated = {name: value for name, value in values.items() if value or not is_dataclass(value)}
    return {name: _table(value) if is_dataclass(value) else value for name, value in stated.items()}


def _table(group: Any) -> dict[str, Any]:
    if isinstance(group, Correlation):
        return group.table()
    return {f.name: getattr(group, f.name) for f in fields(group)}


def read_groups(table: Mapping[str, Any], groups: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return the fields of a method, of which ``groups`` are tables; correlated noise is for so many ``rounds``."""
    result = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    for name, kind in groups.items():
        if name in result:
            result[name] = filled(kind, inner(result[name], f"method.{name}"), f"method.{name}")
    if "correlated" in result:
        result["correlated"] = Correlation.read(inner(result["correlated"], "method.correlated"), rounds)
    return result


class EveryModelSeen(Served):
    """Answers shared by algorithms that hide nothing."""

    __slots__ = ()

    @property
    def hides(self) -> bool:
        """False: every model is counted as seen."""
        return False

    def average_noise(self, sizes: Indices, setup: Setup) -> float | None:
        """Return None: no gradient is averaged."""
        return None


# The training stage of a plan, as a frozen value: what trainer and accountant both read, and nothing else of the plan.
#
# It holds public quantities only: an algorithm with its settings, the shape of the data, the model, the target, whom
# the clients trust, and the grid that state and noise lie on.


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

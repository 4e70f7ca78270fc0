"""What a method must know; a plan holds one, and trainer and accountant both read it."""

from collections.abc import Sequence
from typing import Any, Protocol

from fedveil.account.grid import Grid
from fedveil.data.records import DataShape
from fedveil.guarantee import Adversary, Answer
from fedveil.model.spec import ModelPlan
from fedveil.target import Target


class Method(Protocol):
    """A way to learn together, bound by the laws in tests/contract/test_methods.py.

    ``answer`` is for ideal, real-valued noise; ``grid`` says how far the run on whole multiples of 2**exponent strays
    from that, in units of the noise this observer does not know. ``check`` refuses what the data, the model or the
    target contradict. ``facts`` are lines for people; ``radius`` bounds the norm of the parameters.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def total(self) -> int: ...  # noqa: D102

    def check(self, data: DataShape, model: ModelPlan, target: Target) -> None:
        """Refuse a method that does not fit."""

    def answer(self, adversary: Adversary, data: DataShape, target: Target, delta: float) -> Answer:
        """The smallest epsilon that is proved against this observer."""

    def grid(self, exponent: int, adversary: Adversary, data: DataShape, model: ModelPlan, target: Target) -> Grid:
        """What the grid costs against this observer."""

    def radius(self, data: DataShape, model: ModelPlan) -> float:
        """Of the ball the parameters are kept in."""

    def table(self) -> dict[str, Any]:
        """The [method] table that reads back to this value."""

    def assumptions(
        self, adversary: Adversary, data: DataShape, model: ModelPlan, target: Target
    ) -> Sequence[tuple[str, str, str]]:
        """What the guarantee rests on beside feature bound, randomness and grid: (name, value, what enforces it)."""

    def facts(self, data: DataShape, target: Target) -> Sequence[tuple[str, str]]:
        """What a reader of the report should know, as (name, value)."""

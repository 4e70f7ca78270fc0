"""What a profile will measure, frozen before it is measured.

The measurements are those of a preparation (fedveil.stages.sums): noisy sums over records on a grid, which
together are one Gaussian mechanism. Nothing is trained, so there is no method and no model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedveil.core.tables import table
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.prepare.alone import AlonePlan, sums_answer
from fedveil.stages.sums import NoisySums


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan(AlonePlan):
    """The measurements with their noise. ``data.features``: how many columns."""

    KIND: ClassVar[str] = "profile"
    HEAD: ClassVar[tuple[str, ...]] = ("name", "places")

    preparation: NoisySums

    def __post_init__(self) -> None:
        self.check_head()
        self.preparation.check(self.data)

    @property
    def sums(self) -> NoisySums:
        """All that is measured."""
        return self.preparation

    def answer(self, adversary: Adversary, delta: float) -> Answer:
        """Return what is proved of the measurements together."""
        heard = self.preparation.heard(adversary, self.data, self.target, CENTRAL)
        return sums_answer(self.preparation, heard, adversary, self.data, CENTRAL, delta)

    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the [prepare] table."""
        return {"prepare": self.preparation.table()}

    @classmethod
    def read(cls, text: str) -> "ProfilePlan":
        """Return the plan that a text describes."""
        return cls._read(
            text,
            "the plan of a profile",
            "prepare",
            lambda tables: {"preparation": NoisySums.read(table(tables["prepare"], "prepare"))},
        )

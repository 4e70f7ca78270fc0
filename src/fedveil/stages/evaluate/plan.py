"""What a private evaluation of a released model will count on other records, frozen before anything is counted.

The counts are those of an evaluation after training (fedveil.stages.evaluate.statement); nothing is trained here,
so they are all that is learned of these records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from fedveil.core.checks import require
from fedveil.core.tables import table
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.evaluate.statement import Evaluation
from fedveil.stages.prepare.alone import AlonePlan
from fedveil.stages.sums import NoisySums

FILE: Final = "evaluation.json"  # what was found


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan(AlonePlan):
    """The model (SHA-256 of its ``model.npz``), and the counts with their noise."""

    KIND: ClassVar[str] = "evaluated"
    HEAD: ClassVar[tuple[str, ...]] = ("name", "model", "places")

    model: str
    evaluation: Evaluation

    def __post_init__(self) -> None:
        self.check_head()
        named = isinstance(self.model, str) and len(self.model) == 64 and set(self.model) <= set("0123456789abcdef")
        require(named, "evaluated.model", "be the SHA-256 of a model", self.model)
        self.evaluation.check(self.data, self.target, CENTRAL)
        apart = not self.evaluation.composed and self.evaluation.shape(self.data) == self.data
        require(apart, "evaluation.held_records", "be the plan's records, which train nothing", self.evaluation.held)

    @property
    def sums(self) -> NoisySums:
        """All that is counted."""
        return self.evaluation.sums

    def answer(self, adversary: Adversary, delta: float) -> Answer:
        """Return what is proved of the counts."""
        return self.evaluation.answer(adversary, self.data, self.target, CENTRAL, delta)

    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the [evaluation] table."""
        return {"evaluation": self.evaluation.table()}

    @classmethod
    def read(cls, text: str) -> "EvaluationPlan":
        """Return the plan that a text describes."""
        return cls._read(
            text,
            "the plan of an evaluation",
            "evaluation",
            lambda tables: {"evaluation": Evaluation.read(table(tables["evaluation"], "evaluation"))},
        )

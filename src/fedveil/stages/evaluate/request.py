"""The [evaluation] table of a study: whether the model is measured privately, on which records, at which cost."""

from dataclasses import dataclass
from typing import Literal, get_args

from fedveil.core.errors import require
from fedveil.core.values import number, whole

Where = Literal["training", "held-out"]
Apart = Literal["split", "compared"]  # why no held-out row trains: rows of one source; two sources without equal rows
SHARE = 0.1  # of the budget, where the records to measure on are those to train on


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """``private``: whether the model is measured with noise; False: exactly, and every observer is charged infinity.

    ``records``: on which it is measured; None: on those held out, if any are. ``share``: of the budget (of mu squared),
    where units that are counted train the model too. Held-out records have the whole budget for this, unless a share is
    stated: then some of them may train too, and both costs add up for every record. ``bins``: into how many parts
    scores are sorted; None: by rule. ``largest_error``: of a model of a number, as a share of the target's range: a
    larger error counts as this, and the noise is in proportion to it. None: the whole range. :data:`UNSAID`, which is
    false, stands for a study that says nothing of an evaluation.
    """

    private: bool | None = True
    records: Where | None = None
    share: float | None = None
    bins: int | None = None
    largest_error: float | None = None

    def __post_init__(self) -> None:
        known = self.private is None or isinstance(self.private, bool)
        require(known, "evaluation.private", "be true or false", self.private)
        words = get_args(Where)
        known = self.records is None or self.records in words
        require(known, "evaluation.records", f"be one of {', '.join(words)}", self.records)
        if self.share is not None:
            share = number("evaluation.share", self.share)
            require(
                0 < share < 1, "evaluation.share", "lie strictly between 0 and 1", share, "Training needs the rest."
            )
            object.__setattr__(self, "share", share)
        if self.bins is not None:
            object.__setattr__(self, "bins", whole("evaluation.bins", self.bins))
            require(4 <= (self.bins or 0) <= 128, "evaluation.bins", "lie between 4 and 128", self.bins)
        if self.largest_error is not None:
            largest = number("evaluation.largest_error", self.largest_error)
            hint = "It is a share of the target's range."
            require(1e-3 <= largest <= 1, "evaluation.largest_error", "lie in [0.001, 1]", largest, hint)
            object.__setattr__(self, "largest_error", largest)
        stated = (self.records, self.share, self.bins, self.largest_error)
        stray = not self.private and any(one is not None for one in stated)
        hint = "Say private = true, or leave the rest out."
        require(not stray, "evaluation.private", "be true where the evaluation is described", self.private, hint)

    def __bool__(self) -> bool:
        return self.private is not None

    @property
    def asks_of_sites(self) -> bool:
        """True if records that sites hold out are to be counted; a share alone is of the records that train."""
        elsewhere = self.records == "training" or (self.records is None and self.share is not None)
        return bool(self.private) and not elsewhere


UNSAID = EvaluationRequest(private=None)

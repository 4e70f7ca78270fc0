"""The best of a random number of trials, as a plan states it: how many, among which candidates, by which score.

Each candidate is a whole plan of its own, as text. A trial draws one of them uniformly, and independently of the data,
and carries it out; the trial of the best score is released, and nothing else. Theory page: selection.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, get_args

from fedveil.core.errors import require
from fedveil.core.fields import check_empty
from fedveil.core.tables import known
from fedveil.core.values import number, whole
from fedveil.theory.selection import TruncatedNegativeBinomial

Score = Literal["public", "private"]
Metric = Literal["accuracy", "balanced_accuracy", "auc", "log_loss", "mae"]
METRICS: Final = get_args(Metric)
PRIVATE_METRICS: Final = ("accuracy", "mae")  # sums over records, of at most 1 each
MOST_CANDIDATES: Final = 64
SCORE_STEPS: Final = 2**20  # steps of the grid of a private score, for what one unit adds at most
_DRAW: Final = 2.0**-50  # how far the computed chance of each number of trials may be off


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How the released model is selected.

    ``eta``, ``gamma``: of the law of the number of trials; ``most``: where the law is cut off. ``score``: from records
    that are public, or from private ones with Gaussian noise of deviation ``score_noise``, in units of what one record
    (or client) adds at most. ``candidates``: the plans that a trial draws from. ``chosen``: whose trial was selected,
    by number; 0 until it is known. Without candidates it is false: there is one run (:data:`ONE_RUN`).
    """

    eta: float = 1.0
    gamma: float = 0.5
    most: int = 1
    score: Score = "public"
    metric: Metric = "accuracy"
    score_noise: float = 0.0
    chosen: int = 0
    candidates: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("eta", "gamma", "score_noise"):
            object.__setattr__(self, name, number(f"tune.{name}", getattr(self, name)))
        for name in ("most", "chosen"):
            object.__setattr__(self, name, whole(f"tune.{name}", getattr(self, name)))
        _ = self.law
        require(1 <= self.most <= 10**6, "tune.most", "lie between 1 and 1e6", self.most)
        require(self.score in get_args(Score), "tune.score", f"be one of {', '.join(get_args(Score))}", self.score)
        require(self.metric in METRICS, "tune.metric", f"be one of {', '.join(METRICS)}", self.metric)
        if self.score == "private":
            right = 0 < self.score_noise < math.inf
            require(right, "tune.score_noise", "be positive and finite for a private score", self.score_noise)
            require(self.metric in PRIVATE_METRICS, "tune.metric", "be a sum over records", self.metric)
        else:
            require(self.score_noise == 0, "tune.score_noise", "be 0 for a public score", self.score_noise)
        fine = isinstance(self.candidates, tuple) and all(isinstance(text, str) for text in self.candidates)
        require(fine, "tune.candidates", "be the texts of plans", type(self.candidates).__name__)
        count = len(self.candidates)
        require(count <= MOST_CANDIDATES, "tune.candidates", f"be at most {MOST_CANDIDATES} plans", count)
        if not self:
            check_empty(self, "tune", "candidates")
            return
        require(0 <= self.chosen < count, "tune.chosen", f"be one of the {count} candidates", self.chosen)

    def __bool__(self) -> bool:
        return len(self.candidates) > 0

    @property
    def private(self) -> bool:
        """True if trials are scored on private records, with noise."""
        return self.score == "private"

    @property
    def law(self) -> TruncatedNegativeBinomial:
        """The law of the number of trials, before it is cut off."""
        return TruncatedNegativeBinomial(self.eta, self.gamma)

    @property
    def slip(self) -> float:
        """How far the number of trials that is drawn may be from its law, in total variation.

        The noise of a private score is as good as the sampler of ``fedveil.noise.grid``: 2**-100 each.
        """
        return self.most * (_DRAW + (2.0**-100 if self.score == "private" else 0.0))

    def table(self) -> dict[str, Any]:
        """Return the [tune] table of a plan, which :meth:`read` reads back."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """Read the [tune] table of a plan."""
        known(table, [f.name for f in fields(cls)], "[tune]")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
        missing = [f.name for f in fields(cls) if f.name not in values]
        require(not missing, "[tune]", "be complete", f"nothing for {', '.join(missing)}")
        result = cls(**values)
        require(result, "tune.candidates", "be at least one plan", 0)
        return result


ONE_RUN = Selection()

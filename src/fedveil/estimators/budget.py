"""What all fits together may cost: a value that survives copying, because the books it names are a file.

A grid search copies its estimator for every fit, and may send the copies to other processes. They all name the same
ledger, so every fit is charged there before it begins, and the one that would break the cap is refused.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedveil.checks import require
from fedveil.guarantee import Adversary, Neighbours, Unit
from fedveil.ledger import Cap, Cost, Ledger
from fedveil.ledger.transaction import Transaction
from fedveil.plan import Plan

_OWNER = b"fedveil estimators: whatever is fitted with this budget"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most (``epsilon``, ``delta``) for all fits that name this ledger file; it is made at the first fit.

    Folds of a cross-validation are different rows of one data set, so the ledger cannot tell whose rows it is charged
    for: whatever is fitted with it counts as one data set. The sum is then never too small for any record.
    """

    ledger: str
    epsilon: float
    delta: float
    adversary: Adversary = "final-model"
    unit: Unit = "record"
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        named = isinstance(self.ledger, str | Path) and str(self.ledger) != ""
        require(named, "Budget.ledger", "be the path of a file", self.ledger)
        object.__setattr__(self, "ledger", str(Path(self.ledger).absolute()))  # one cap, wherever a worker stands
        _ = self.cap

    @property
    def cap(self) -> Cap:
        """As the ledger knows it."""
        return Cap(
            adversary=self.adversary,
            unit=self.unit,
            neighbours=self.neighbours,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def spent(self) -> Cost:
        """What all fits so far cost together."""
        if not Path(self.ledger).exists():
            return Cost(adversary=self.adversary, unit=self.unit, neighbours=self.neighbours, epsilon=0.0, delta=0.0)
        with self._open() as ledger:
            return ledger.spent(self.adversary, self.unit, self.neighbours)

    def fits(self) -> int:
        """How many fits were charged."""
        if not Path(self.ledger).exists():
            return 0
        with self._open() as ledger:
            return sum(entry.kind == "charge" for entry in ledger.entries())

    def charge(self, run: str, plan: Plan) -> None:
        """Take a fit's cost out of the budget, or raise ``CapExceeded`` and charge nothing."""
        with self._open() as ledger:
            Transaction(ledger, run).charge(plan, caps=[self.cap])

    def release(self, run: str, model: bytes) -> None:
        """Record the model that a fit is about to hand out, by its SHA-256."""
        with self._open() as ledger:
            Transaction(ledger, run).release(model)

    def _open(self) -> Ledger:
        return Ledger.open(Path(self.ledger), lambda key: hashlib.blake2b(_OWNER, key=key, digest_size=32).hexdigest())

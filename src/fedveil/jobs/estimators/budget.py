"""A budget for all fits together; it survives copying, because it names a ledger file.

A grid search copies its estimator for every fit, and may send the copies to other processes. They all name the same
ledger, so every fit is charged there before it begins, and a fit that would exceed the cap is refused.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedveil.core.errors import require
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, Cost
from fedveil.ledger.transaction import Transaction
from fedveil.planning.plan import Plan
from fedveil.privacy.guarantee import Adversary, Neighbours, Unit

_OWNER = b"fedveil estimators: whatever is fitted with this budget"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most (``epsilon``, ``delta``) for all fits that name this ledger file, which is created at the first fit.

    Folds of a cross-validation are different rows of one data set, so the ledger cannot tell whose rows it is charged
    for: everything that is fitted with it counts as one data set. So the sum is never too small for any record.

    Example::

        budget = fedveil.Budget(ledger="fits.ledger", epsilon=2.0, delta=1e-4)
        fedveil.PrivateLogisticRegression(epsilon=0.5, budget=budget).fit(X, y)  # charged; refused once it is spent
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
        # an absolute path, so that workers in other folders use the same ledger
        object.__setattr__(self, "ledger", str(Path(self.ledger).absolute()))
        _ = self.cap

    @property
    def cap(self) -> Cap:
        """The cap in the form that the ledger keeps."""
        return Cap(
            adversary=self.adversary,
            unit=self.unit,
            neighbours=self.neighbours,
            epsilon=self.epsilon,
            delta=self.delta,
        )

    def spent(self) -> Cost:
        """Return what all fits so far cost together."""
        if not Path(self.ledger).exists():
            return Cost(adversary=self.adversary, unit=self.unit, neighbours=self.neighbours, epsilon=0.0, delta=0.0)
        with self._open() as ledger:
            return ledger.spent(self.adversary, self.unit, self.neighbours)

    def fits(self) -> int:
        """Return how many fits were charged."""
        if not Path(self.ledger).exists():
            return 0
        with self._open() as ledger:
            return sum(entry.kind == "charge" for entry in ledger.entries())

    def charge(self, run: str, plan: Plan) -> None:
        """Charge a fit to the budget, or raise ``CapExceeded`` and charge nothing."""
        with self._open() as ledger:
            Transaction(ledger, run).charge(plan, caps=[self.cap])

    def release(self, run: str, model: bytes) -> None:
        """Record the model that a fit is about to return, by its SHA-256."""
        with self._open() as ledger:
            Transaction(ledger, run).release(model)

    def _open(self) -> Ledger:
        return Ledger.open(Path(self.ledger), lambda key: hashlib.blake2b(_OWNER, key=key, digest_size=32).hexdigest())

"""What an accountant must know. Composition is walked once, here, so none can forget it."""

from functools import reduce
from typing import Protocol, TypeVar

from fedveil.mechanism import Compose, Mechanism, Primitive, Repeat

Curve = TypeVar("Curve")  # Renyi orders, a loss multiset, one number mu


class Accountant(Protocol[Curve]):
    """Five questions, bound by the laws in tests/contract/test_accountants.py.

    ``primitive`` refuses what it does not know (``CannotCertify``) rather than guessing; ``epsilon`` and ``delta`` are
    upper bounds, and ``inf`` or 1 when nothing can be promised.
    """

    def primitive(self, mechanism: Primitive, /) -> Curve:
        """The curve of one use."""
        ...

    def compose(self, first: Curve, second: Curve, /) -> Curve:
        """The curve of both, the second possibly depending on the first's output."""
        ...

    def repeat(self, once: Curve, times: int, /) -> Curve:
        """The curve of ``times`` uses."""
        ...

    def epsilon(self, curve: Curve, delta: float, /) -> float:
        """An upper bound on epsilon at this delta."""
        ...

    def delta(self, curve: Curve, epsilon: float, /) -> float:
        """An upper bound on delta at this epsilon."""
        ...


def curve_of(accountant: Accountant[Curve], mechanism: Mechanism) -> Curve:
    """Fold a mechanism into its curve."""
    match mechanism:
        case Compose(parts=parts):
            return reduce(accountant.compose, (curve_of(accountant, part) for part in parts))
        case Repeat(of=part, times=times):
            return accountant.repeat(curve_of(accountant, part), times)
        case _:
            return accountant.primitive(mechanism)

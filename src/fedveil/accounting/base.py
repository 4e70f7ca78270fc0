"""The interface of an accountant. Composition is done only here, so that no accountant can forget it."""

from functools import reduce
from typing import Protocol, TypeVar

from fedveil.privacy.mechanism import Compose, Mechanism, Primitive, Repeat

Curve = TypeVar("Curve")  # Renyi orders, a loss multiset, one number mu


class Accountant(Protocol[Curve]):
    """Five questions; every accountant must satisfy the laws in tests/contract/test_accountants.py.

    ``primitive`` refuses what it does not know (``CannotCertify``) rather than guessing; ``epsilon`` and ``delta`` are
    upper bounds, and ``inf`` or 1 if nothing can be promised.
    """

    def primitive(self, mechanism: Primitive, /) -> Curve:
        """Return the curve of one use."""
        ...

    def compose(self, first: Curve, second: Curve, /) -> Curve:
        """Return the curve of both; the second may depend on the output of the first."""
        ...

    def repeat(self, once: Curve, times: int, /) -> Curve:
        """Return the curve of ``times`` uses."""
        ...

    def epsilon(self, curve: Curve, delta: float, /) -> float:
        """Return an upper bound on epsilon at this delta."""
        ...

    def delta(self, curve: Curve, epsilon: float, /) -> float:
        """Return an upper bound on delta at this epsilon."""
        ...


def curve_of(accountant: Accountant[Curve], mechanism: Mechanism) -> Curve:
    """Compute the curve of a mechanism from those of its parts."""
    match mechanism:
        case Compose(parts=parts):
            return reduce(accountant.compose, (curve_of(accountant, part) for part in parts))
        case Repeat(of=part, times=times):
            return accountant.repeat(curve_of(accountant, part), times)
        case _:
            return accountant.primitive(mechanism)

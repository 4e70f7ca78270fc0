"""The one way to refuse a bad value: its name, the rule, what was given, and what to do instead."""

from fedveil.core.errors import BadValue


def require(holds: object, name: str, rule: str, got: object, hint: str = "") -> None:
    """Raise :class:`BadValue` (a ``ValueError``) unless ``holds``.

    State the condition that must hold: NaN fails every comparison, so it is refused for free.

    >>> require(0 < 64.0 <= 1, "PoissonSampled.rate", "lie in (0, 1]", 64.0, "Is it a batch size?")
    Traceback (most recent call last):
    fedveil.core.errors.BadValue: PoissonSampled.rate must lie in (0, 1], got 64.0. Is it a batch size?
    """
    if not bool(holds):
        message = f"{name} must {rule}, got {got!r}."
        raise BadValue(f"{message} {hint}" if hint else message)

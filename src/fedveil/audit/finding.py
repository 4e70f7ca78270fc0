"""What one attack found, next to what is certified: a number, how certain it is, and a verdict with its evidence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from fedveil.core.errors import require
from fedveil.privacy.guarantee import Adversary, finite_or_none

Kind = Literal["lower-bound", "estimate"]
Verdict = Literal["consistent", "broken", "not-judged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One attack on what one observer sees.

    ``certified``: the epsilon that was promised at ``delta`` (None: nothing was promised). ``measured``: the epsilon
    that the attack shows, at the same delta: a lower bound, too large with chance at most ``alarm``, or an estimate
    that proves nothing. ``verdict``: "broken" only with evidence against the certificate whose false alarms have a
    chance of at most ``alarm``; estimates are "not-judged". ``evidence``: the same in words. ``details``: numbers for
    a reader or a picture, as JSON allows them.
    """

    attack: str
    adversary: Adversary
    kind: Kind
    certified: float | None
    measured: float
    delta: float
    alarm: float
    verdict: Verdict
    evidence: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, words in (("adversary", Adversary), ("kind", Kind), ("verdict", Verdict)):
            given = getattr(self, name)
            require(given in get_args(words), f"Finding.{name}", f"be one of {', '.join(get_args(words))}", given)
        require(self.certified is None or self.certified >= 0, "Finding.certified", "be non-negative", self.certified)
        require(self.measured >= 0, "Finding.measured", "be non-negative", self.measured)
        require(0 <= self.delta < 1, "Finding.delta", "lie in [0, 1)", self.delta)
        require(0 < self.alarm < 1, "Finding.alarm", "lie strictly between 0 and 1", self.alarm)
        judged = self.kind == "lower-bound" or self.verdict == "not-judged"
        require(judged, "Finding.verdict", "be not-judged for an estimate, which proves nothing", self.verdict)
        object.__setattr__(self, "details", MappingProxyType(dict(self.details)))

    @property
    def room(self) -> float | None:
        """The difference between the certified and the measured epsilon; None if nothing was promised."""
        promised = self.certified is not None and math.isfinite(self.certified)
        return None if not promised else float(self.certified or 0.0) - self.measured

    def as_json(self) -> dict[str, Any]:
        """Return one object, ready for JSON."""
        return {
            "attack": self.attack,
            "adversary": self.adversary,
            "kind": self.kind,
            "certified": finite_or_none(self.certified),
            "measured": finite_or_none(self.measured),
            "delta": self.delta,
            "alarm": self.alarm,
            "verdict": self.verdict,
            "evidence": self.evidence,
            "details": dict(self.details),
        }


def finding_of(given: Mapping[str, Any]) -> Finding:
    """Return the finding that :meth:`Finding.as_json` wrote; an infinite epsilon was written as null."""
    values = dict(given)
    values["measured"] = math.inf if values["measured"] is None else float(values["measured"])
    return Finding(**values)

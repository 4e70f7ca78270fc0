"""The [personal] table of a study: in which ways a party's own model may be made, and when it is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from fedveil.core.errors import require
from fedveil.core.fields import check_empty
from fedveil.core.tables import filled
from fedveil.core.values import number, whole

Way = Literal["proximal", "mixture", "threshold"]
LEAST = 10  # records below which there is nothing to choose by


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalRequest:
    """``ways``: proximal (fitted towards the shared model), mixture (of a local and the shared model), threshold (of
    two classes, where the party's own decision falls).

    A party keeps the shared model unless the cross-validated gain of its own exceeds the margin: ``margin``, or two
    standard errors of the gain, whichever is larger. ``folds``: parts of the cross-validation, dealt by ``seed``.
    Without ways it is false: parties make no models of their own (:data:`SHARED_ALONE`).
    """

    ways: tuple[Way, ...] = get_args(Way)
    margin: float = 0.01
    folds: int = 5
    seed: int = 0

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "PersonalRequest":
        """From the [personal] table of a study or a plan."""
        request: PersonalRequest = filled(cls, table, "personal")
        require(request, "personal.ways", f"list some of {', '.join(get_args(Way))}", request.ways)
        return request

    def __bool__(self) -> bool:
        return len(self.ways) > 0

    def table(self) -> dict[str, Any]:
        """Return the [personal] table that reads back to this value."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __post_init__(self) -> None:
        words, given = get_args(Way), self.ways
        listed = isinstance(given, list | tuple) and all(word in words for word in given)
        require(listed, "personal.ways", f"list some of {', '.join(words)}", given)
        object.__setattr__(self, "ways", tuple(word for word in words if word in given))
        if not self:
            check_empty(self, "personal", "ways")
        object.__setattr__(self, "margin", number("personal.margin", self.margin))
        require(0 <= self.margin <= 1, "personal.margin", "lie in [0, 1]", self.margin)
        object.__setattr__(self, "folds", whole("personal.folds", self.folds))
        require(2 <= self.folds <= 20, "personal.folds", "lie between 2 and 20", self.folds)
        object.__setattr__(self, "seed", whole("personal.seed", self.seed))
        require(0 <= self.seed < 2**63, "personal.seed", "lie in [0, 2**63)", self.seed)


SHARED_ALONE = PersonalRequest(ways=())

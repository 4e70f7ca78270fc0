"""The [prepare] table of a study: whether what it does not state about its columns is learned, and at which cost."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from fedveil.core.checks import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.values import number, whole

Kind = Literal["auto", "private", "stated"]
SLOTS = 12  # categories kept for each column of texts, on average
BOUND = (
    2.0  # of rows, where a study states none: columns are centred, so they get more of a row than its intercept of 1
)


EXCLUSIONS: Final = tuple(
    Exclusion(name, 'kind = "stated"', "It learns nothing.", lambda request: request.kind == "stated")
    for name in ("share", "classes", "components", "whiten")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """``kind``: learn what is not stated anywhere (auto), all that the study does not state (private), or nothing.

    ``share``: of the budget (of mu squared) for all measurements together; None: by rule. ``categories``: how many are
    kept for each column of texts on average. ``classes``: whether the share of each class is measured too.
    ``components``: rows are projected onto so many principal components, which are measured; None: they are not.
    ``whiten``: each direction is divided by its own spread, which is measured with it.
    ``numbers`` and ``texts``: columns whose type the study states, so that it need not be read off the cells.
    """

    kind: Kind = "auto"
    share: float | None = None
    categories: int = SLOTS
    classes: bool = False
    components: int | None = None
    whiten: bool = False
    numbers: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        words = get_args(Kind)
        require(self.kind in words, "prepare.kind", f"be one of {', '.join(words)}", self.kind)
        if self.share is not None:
            share = number("prepare.share", self.share)
            hint = 'Nothing is learned with kind = "stated"; and training needs a part of the budget.'
            require(0 < share < 1, "prepare.share", "lie strictly between 0 and 1", share, hint)
            object.__setattr__(self, "share", share)
        most = whole("prepare.categories", self.categories)
        require(1 <= most <= 10_000, "prepare.categories", "lie between 1 and 10000", most)
        if self.components is not None:
            object.__setattr__(self, "components", whole("prepare.components", self.components))
            require(1 <= (self.components or 0) <= 10_000, "prepare.components", "lie in [1, 10000]", self.components)
        for name in ("classes", "whiten"):
            require(isinstance(getattr(self, name), bool), f"prepare.{name}", "be true or false", getattr(self, name))
        for name in ("numbers", "texts"):
            given = getattr(self, name)
            listed = isinstance(given, list | tuple) and all(isinstance(word, str) for word in given)
            require(listed, f"prepare.{name}", "list names of columns", given)
            object.__setattr__(self, name, tuple(given))
        both = sorted(set(self.numbers) & set(self.texts))
        require(not both, "prepare.texts", "name no column that prepare.numbers names", both)
        check_exclusions(self, "prepare", EXCLUSIONS)

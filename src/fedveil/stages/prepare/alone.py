"""What the plans of jobs that train nothing have in common: a profile, a generator, an evaluation of a released model.

Such a job is noisy sums over records and nothing else. Its charge and its certificate rest on its plan alone, which is
frozen before anything is measured.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Final, Self

from fedveil.accounting.compare import account_for
from fedveil.accounting.evaluator import bound_of, least_of, withdrawn
from fedveil.accounting.grid import Grid, on_grid
from fedveil.core.checks import require
from fedveil.core.errors import BadValue
from fedveil.core.tables import filled, known, read_tables, table, write_tables
from fedveil.data.records import DataShape
from fedveil.data.spec import PLACES, Places
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.stage import Stage, SumsStage
from fedveil.stages.sums import STEPS, NoisySums

FORMAT: Final = 1
_EXPONENT: Final = -(STEPS.bit_length() - 1)
_ALL_KNOWN: Final = "it knows all of the noise, or there is no other client"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlonePlan:
    """The shape of the data, the target, and (in each kind of plan) what is measured with which noise.

    ``places``: what decides who holds which record, where that is more than row numbers. ``KIND``: the table of a
    plan's text that only this kind has; ``HEAD``: the keys in it.
    """

    KIND: ClassVar[str]
    HEAD: ClassVar[tuple[str, ...]]

    name: str
    data: DataShape
    target: Target
    places: Places | None = None

    def check_head(self, labels_public: bool = False) -> None:
        """Refuse a bad name, and places that noise does not cover: labels, unless they are public."""
        plain = isinstance(self.name, str) and self.name.isprintable() and 1 <= len(self.name) <= 200
        require(plain, f"{self.KIND}.name", "be one line of at most 200 printable characters", str(self.name)[:60])
        known_places = self.places is None or self.places in PLACES.values()
        require(known_places, f"{self.KIND}.places", f"be one of {', '.join(PLACES.values())}", self.places)
        hint = "Split by a column or by row numbers, or declare data.public."
        covered = self.places != "labels" or labels_public
        require(covered, f"{self.KIND}.places", "not be labels, which noise does not cover", self.places, hint)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What is asked of the clients, in order."""
        return (SumsStage(self.KIND, self.sums, self.data.clients),)

    @property
    def sums(self) -> NoisySums:
        """All that is measured."""
        raise NotImplementedError

    @property
    def unprotected(self) -> bool:
        """False: nothing leaves it without noise."""
        return False

    @property
    def units(self) -> int:
        """Number of units (records or clients) to protect."""
        return self.data.clients if self.target.unit == "client" else self.data.records

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a reader of the numbers should know."""
        loose = self.target.loose_delta(self.units)
        return () if loose is None else (loose,)

    @property
    def hash(self) -> str:
        """SHA-256 of the plan's text."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def promise(self, adversary: Adversary, delta: float | None = None) -> Answer:
        """Return the smallest epsilon that is proved against this observer, at the target's delta or another."""
        return _promise(self, adversary, self.target.delta if delta is None else delta)

    def answer(self, adversary: Adversary, delta: float) -> Answer:
        """Work out what :meth:`promise` returns, and remembers."""
        raise NotImplementedError

    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the tables of the plan's text that say what is measured."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the plan as TOML text; reading it back gives an equal plan."""
        head = {"format": FORMAT, **{key: getattr(self, key) for key in self.HEAD}}
        values: dict[str, Mapping[str, Any]] = {self.KIND: head}
        for key, part in (("data", self.data), ("privacy", self.target)):
            values[key] = {f.name: getattr(part, f.name) for f in fields(part)}
        return write_tables({**values, **self.measured()})

    @classmethod
    def describes(cls, text: str) -> bool:
        """Return whether a plan's text is one of this kind."""
        return any(line.strip() == f"[{cls.KIND}]" for line in text.splitlines())

    @classmethod
    def read(cls, text: str) -> "AlonePlan":
        """Return the plan that a text describes."""
        raise NotImplementedError

    @classmethod
    def _read(
        cls,
        text: str,
        what: str,
        needed: str,
        measured: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        more: Sequence[str] = (),
    ) -> Self:
        """Return the plan that a text describes; ``measured`` makes the remaining values of its tables.

        ``needed``: the table of what is measured; ``more``: tables that may be there.
        """
        tables, names = read_tables(text, "The plan"), [cls.KIND, "data", "privacy", needed]
        known(tables, [*names, *more], what)
        for name in names:
            require(name in tables, "The plan", f"have a [{name}] table", sorted(tables))
        head = dict(table(tables[cls.KIND], cls.KIND))
        form, hint = head.pop("format", None), "It was written by another version of fedveil."
        require(form == FORMAT, f"{cls.KIND}.format", f"be {FORMAT}", form, hint)
        known(head, cls.HEAD, f"[{cls.KIND}]")
        try:
            return cls(
                data=filled(DataShape, table(tables["data"], "data"), "data"),
                target=filled(Target, table(tables["privacy"], "privacy"), "privacy"),
                **measured(tables),
                **head,
            )
        except TypeError as error:
            raise BadValue(f"The plan must be complete: {error}.") from error


@lru_cache(maxsize=64)
def _promise(plan: AlonePlan, adversary: Adversary, delta: float) -> Answer:
    return plan.answer(adversary, delta)


def sums_answer(
    sums: NoisySums, heard: Gaussian | None, adversary: Adversary, data: DataShape, trust: Trust, delta: float
) -> Answer:
    """Return what is proved of noisy sums on their grid; ``heard``: as this observer hears them, None if it knows all.

    Contributions are whole numbers of steps, so nothing is displaced: docs/theory/preparation.md.
    """
    if heard is None:
        return least_of([bound_of(withdrawn("loss-distribution", _ALL_KNOWN), delta, None)], delta, None)
    grid = Grid(
        exponent=_EXPONENT,
        dimension=1,
        rounds=1,
        distance=0.0,
        total_variation=sums.total_variation(data, trust),
        mishap=sums.mishap(adversary, trust),
    )
    return on_grid(grid, lambda inner: account_for(heard, delta=inner), delta)

"""The [schedule] table of a study: what the user has decided about rounds, batches, steps and noise."""

import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

from fedveil.core.checks import require
from fedveil.core.fields import Exclusion, check_exclusions
from fedveil.core.limits import PASSES, ROUNDS
from fedveil.core.values import number, whole
from fedveil.privacy.mechanism import Numbers

Kind = Literal["auto", "constant", "decaying", "growing-batches"]


EXCLUSIONS: Final = (
    *(
        Exclusion(
            name,
            'rounds = "converged"',
            'Give passes (with rounds = 1) instead of rounds = "converged".',
            lambda schedule: schedule.rounds == "converged",
        )
        for name in ("passes", "batch", "noise_std")
    ),
    Exclusion(
        "batch",
        'kind = "growing-batches"',
        "A fixed batch is the kind constant or decaying; a list states each.",
        lambda schedule: schedule.kind == "growing-batches" and isinstance(schedule.batch, int),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRequest:
    """What the user has decided; None leaves it to the design.

    ``rounds`` counts those of one pass; "converged" asks for so many passes over all units that neither the guarantee
    nor the model changes any more. Numbers may be one for all rounds, or one per round (of a pass, or of all passes).
    If ``noise_std`` is given nothing is calibrated; it is only checked that it meets the target.
    """

    kind: Kind = "auto"
    rounds: int | Literal["converged"] | None = None
    passes: int | None = None
    batch: int | tuple[int, ...] | None = None
    step_size: Numbers | None = None
    noise_std: Numbers | None = None

    def __post_init__(self) -> None:
        right = self.kind in get_args(Kind)
        require(right, "schedule.kind", f"be one of {', '.join(get_args(Kind))}", self.kind)
        for name in ("rounds", "passes"):
            value = getattr(self, name)
            if value is None or (name == "rounds" and value == "converged"):
                continue
            extra = ' or "converged"' if name == "rounds" else ""
            require(not isinstance(value, str), f"schedule.{name}", f"be a whole number{extra}", value)
            object.__setattr__(self, name, whole(f"schedule.{name}", value))
            most = ROUNDS if name == "rounds" else PASSES
            rule = f"lie between 1 and {most}" if getattr(self, name) > most else "be at least 1"
            require(1 <= getattr(self, name) <= most, f"schedule.{name}", rule, value)
        for name, kind in (("batch", whole), ("step_size", number), ("noise_std", number)):
            value = getattr(self, name)
            if value is not None:
                given = tuple(value) if isinstance(value, list | tuple) else (value,)
                plain: tuple[float, ...] = tuple(kind(f"schedule.{name}", v) for v in given)
                right = len(plain) > 0 and all(0 < v < math.inf for v in plain)
                require(right, f"schedule.{name}", "be positive and finite", value)
                object.__setattr__(self, name, plain if isinstance(value, list | tuple) else plain[0])
        self._check_together()

    def _check_together(self) -> None:
        check_exclusions(self, "schedule", EXCLUSIONS)
        if isinstance(self.rounds, int) and self.passes is not None:
            total = self.rounds * self.passes
            require(total <= ROUNDS, "schedule.rounds * passes", f"be at most {ROUNDS}", total)
        for name in ("batch", "step_size", "noise_std"):
            value = getattr(self, name)
            count = len(value) if isinstance(value, tuple) else 1
            require(count <= ROUNDS, f"schedule.{name}", f"have at most {ROUNDS} entries", count)
        if self.rounds == "converged":
            fits = self.kind in ("auto", "constant")
            require(fits, "schedule.kind", 'be auto or constant with rounds = "converged"', self.kind)
        if self.kind == "constant":
            for name in ("batch", "step_size", "noise_std"):
                varies = isinstance(getattr(self, name), tuple) and len(set(getattr(self, name))) > 1
                require(not varies, f"schedule.{name}", "be one number for the kind constant", getattr(self, name))
        if isinstance(self.batch, tuple) and isinstance(self.rounds, int):
            fits = len(self.batch) == self.rounds
            require(fits, "schedule.batch", f"have one entry per round, {self.rounds}", len(self.batch))

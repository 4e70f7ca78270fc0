"""What a design starts from: the problem's public constants, and whatever the user has already decided."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from fedveil.checks import require
from fedveil.guarantee import Neighbours
from fedveil.limits import PASSES, ROUNDS
from fedveil.mechanism import Numbers, number, whole
from fedveil.theory.numerics import check_delta

Kind = Literal["auto", "constant", "decaying", "growing-batches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Public constants of the training problem, and the target. ``units`` are the protected ones: records or clients.

    ``lipschitz`` is the clip of the data part, ``smoothness`` includes the ridge term, whose strength is
    ``strong_convexity``; ``dimension`` counts parameters; ``diameter`` is twice the projection radius. ``hidden``: only
    the last model is seen by those the target is for; otherwise noise is shaped for a reader of every model (and the
    calibrator must be one for that reader).
    """

    units: int
    dimension: int
    lipschitz: float
    smoothness: float
    strong_convexity: float = 0.0
    diameter: float | None = None
    order: Literal["secret", "public"] = "secret"
    stopping: Literal["end", "random"] = "end"
    noise: Literal["gaussian", "laplace"] = "gaussian"
    neighbours: Neighbours = "replace-one"
    hidden: bool = True
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("units", "dimension"):
            object.__setattr__(self, name, whole(f"The problem's {name}", getattr(self, name)))
            require(
                1 <= getattr(self, name) <= 10**12, f"The problem's {name}", "lie in [1, 1e12]", getattr(self, name)
            )
        require(isinstance(self.hidden, bool), "Problem.hidden", "be true or false", self.hidden)
        for name in ("lipschitz", "smoothness", "strong_convexity", "epsilon", "delta"):
            object.__setattr__(self, name, number(f"The problem's {name}", getattr(self, name)))
        for name in ("lipschitz", "smoothness"):
            hint = "It follows from the feature bound and the loss."
            require(
                1e-6 <= getattr(self, name) <= 1e6,
                f"The problem's {name}",
                "lie in [1e-6, 1e6]",
                getattr(self, name),
                hint,
            )
        ridge = self.strong_convexity
        require(0 <= ridge < self.smoothness, "model.l2", "be non-negative and below smoothness", ridge)
        if self.diameter is not None:
            object.__setattr__(self, "diameter", number("The problem's diameter", self.diameter))
            require(1e-9 <= self.diameter <= 1e9, "The problem's diameter", "lie in [1e-9, 1e9]", self.diameter)
        choices = {"order": ("secret", "public"), "stopping": ("end", "random"), "noise": ("gaussian", "laplace")}
        for name, allowed in (choices | {"neighbours": get_args(Neighbours)}).items():
            right = getattr(self, name) in allowed
            require(right, f"The problem's {name}", f"be one of {', '.join(allowed)}", getattr(self, name))
        flat = self.noise == "gaussian" or self.dimension == 1
        require(flat, "Problem.dimension", "be 1 with Laplace noise", self.dimension, "Use Gaussian noise.")
        require(1e-4 <= self.epsilon <= 1e4, "privacy.epsilon", "lie in [1e-4, 1e4]", self.epsilon)
        check_delta(self.delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user has decided; None leaves it to the design.

    ``rounds`` counts those of one pass; "converged" asks for so many passes over all units that neither the
    guarantee nor the model moves any more. Numbers may be one for all rounds, or one per round (of a pass, or of all
    passes). With ``noise_std`` given nothing is calibrated: it is only checked that it meets the target.
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
        if isinstance(self.rounds, int) and self.passes is not None:
            total = self.rounds * self.passes
            require(total <= ROUNDS, "schedule.rounds * passes", f"be at most {ROUNDS}", total)
        for name in ("batch", "step_size", "noise_std"):
            value = getattr(self, name)
            count = len(value) if isinstance(value, tuple) else 1
            require(count <= ROUNDS, f"schedule.{name}", f"have at most {ROUNDS} entries", count)
        if self.rounds == "converged":
            given = next((n for n in ("passes", "batch", "noise_std") if getattr(self, n) is not None), None)
            hint = 'Give passes (with rounds = 1) instead of rounds = "converged".'
            require(given is None, f"schedule.{given}", 'be left out with rounds = "converged"', "a value", hint)
            fits = self.kind in ("auto", "constant")
            require(fits, "schedule.kind", 'be auto or constant with rounds = "converged"', self.kind)
        if self.kind == "growing-batches":
            hint = "A fixed batch is the kind constant or decaying."
            require(
                not isinstance(self.batch, int), "schedule.batch", "be left out of growing batches", self.batch, hint
            )
        if self.kind == "constant":
            for name in ("batch", "step_size", "noise_std"):
                varies = isinstance(getattr(self, name), tuple) and len(set(getattr(self, name))) > 1
                require(not varies, f"schedule.{name}", "be one number for the kind constant", getattr(self, name))
        if isinstance(self.batch, tuple) and isinstance(self.rounds, int):
            fits = len(self.batch) == self.rounds
            require(fits, "schedule.batch", f"have one entry per round, {self.rounds}", len(self.batch))

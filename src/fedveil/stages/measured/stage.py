"""A job that is one stage of noisy sums: whatever can be computed from bounded sums over the cells of a table.

The stage states what it will measure, from public numbers alone (``sought``), and computes its result from the noisy
sums (``result``), as a program that asks for them (fedveil.stages.measuring). Everything else (budget, plan, charge,
certificate; one process, shares, masks, encryption, sites; being killed and resumed) is the same for every such stage.
A site works ``sought`` out by itself, so no plan can charge a record for less than it adds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol

from fedveil.core.errors import CannotCertify, require
from fedveil.core.importing import named
from fedveil.core.values import number, whole
from fedveil.data.records import DataShape
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.measured.plan import MeasuredPlan, Settings, canonical_text, spend_budget
from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.budget import total_mu
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.sums import Measurement, NoisySums, counted, variance_left
from fedveil.stages.synthesise.table import Table
from fedveil.theory.grid import NoiseLaw

BUILT_IN: Final[Mapping[str, str]] = {"ask": "fedveil.stages.ask.stage:Ask"}  # shipped stages: package.file:name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """One sum that a stage asks for: how many numbers at most, and the norm of what one unit adds to it.

    ``weight``: its part of the budget, relative to the other sums. ``counts``: any two
    contributions are at most the root of 2 times the bound apart, as where no number is negative. ``law``: of the
    noise; with Laplace noise ``bound`` is one of the sum of magnitudes.
    """

    name: str
    size: int
    bound: float
    weight: float = 1.0
    counts: bool = False
    law: NoiseLaw = "gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("size", self.size))
        object.__setattr__(self, "weight", number("weight", self.weight))
        require(self.weight > 0, f"The weight of {self.name}", "be above 0", self.weight)


class Measured(Protocol):
    """The code of a stage; ``file``: the name of what it releases.

    It may have two more: ``settle(settings, columns, shape, target, trust)`` returns the settings with what the stage
    decides for itself from these public values; ``accept(plan, columns)`` refuses a plan that would be worth nothing.
    """

    file: str

    def sought(self, settings: Settings, columns: Outline, shape: DataShape) -> Sequence[Sought]:
        """Return the sums that the stage asks for, in order; refuse settings that do not fit the columns."""

    def result(self, settings: Settings, sums: NoisySums, rows: Table, units: int, by: Measures) -> bytes:
        """Return what is released; no row but through ``by.noisy_sum`` decides it. ``rows`` may be some, or none."""


def stage_named(name: str) -> Measured:
    """Return the code of a stage: one that fedveil ships, or one's own as package.file:name, which must be allowed."""
    if name in BUILT_IN:
        file, _, own = BUILT_IN[name].partition(":")
        found: Measured = getattr(import_module(file), own)()
        return found
    make: Callable[[], Measured] = named(name, "plan.stage")
    return make()


def check_sought(plan: MeasuredPlan, columns: Outline) -> None:
    """Refuse a plan whose sums are not those that its stage asks for of columns like these."""
    code = stage_named(plan.stage)
    sought = code.sought(plan.stated, columns, plan.data)
    asked = [(one.name, one.size, float(one.bound), one.law, one.counts) for one in sought]
    planned = [(one.name, one.size, one.bound, one.law, one.counts) for one in plan.sums.measurements]
    same = asked == planned and plan.file == code.file
    require(same, "The plan", "measure what its stage asks for", [one[0] for one in planned][:5])


def measured_plan(
    name: str,
    stage: str,
    settings: Settings,
    columns: Outline,
    data: DataShape,
    target: Target,
    trust: Trust,
    **more: Any,
) -> MeasuredPlan:
    """Return the plan that spends the target's budget on what a stage asks for; no cell decides it."""
    code = stage_named(stage)
    settings = getattr(code, "settle", lambda given, *public: given)(settings, columns, data, target, trust)
    sought = code.sought(settings, columns, data)
    require(len(sought) >= 1, "A stage", "ask for at least one sum", 0)

    def plan(share: float) -> MeasuredPlan:
        return MeasuredPlan(
            name=name,
            stage=stage,
            settings=canonical_text(settings),
            file=code.file,
            data=data,
            target=target,
            sums=sums_for(sought, data, target, trust, share),
            trust=trust,
            **more,
        )

    found = spend_budget(plan, target, "these sums")
    accept(found, columns)
    return found


def accept(plan: MeasuredPlan, columns: Outline) -> None:
    """Refuse a plan that its stage does not accept."""
    getattr(stage_named(plan.stage), "accept", lambda plan, columns: None)(plan, columns)


def sums_for(
    sought: Sequence[Sought], data: DataShape, target: Target, trust: Trust, share: float = 1.0 - 1e-9
) -> NoisySums:
    """Return the sums with the noise that this share of the target's budget buys, in the eyes of its observer."""
    total = math.fsum(one.weight for one in sought)
    if sought[0].law == "laplace":
        whole_scale = target.sensitivity / target.epsilon
        return _with_noise(sought, [whole_scale * total / (share * one.weight) for one in sought], share)
    left = variance_left(target.adversary, data, target, trust)
    if not left > 0:
        raise CannotCertify(f"{target.adversary} knows all of the noise, so nothing can be promised")
    whole_noise = target.sensitivity / (total_mu(target) * math.sqrt(left))
    less = [counted(one.counts, target.neighbours) for one in sought]
    noises = [whole_noise / own / math.sqrt(share * one.weight / total) for own, one in zip(less, sought, strict=True)]
    return _with_noise(sought, noises, share)


def _with_noise(sought: Sequence[Sought], noise: Sequence[float], share: float) -> NoisySums:
    made = (
        Measurement(name=one.name, size=one.size, bound=one.bound, noise=own, law=one.law, counts=one.counts)
        for one, own in zip(sought, noise, strict=True)
    )
    return NoisySums(measurements=tuple(made), share=share)

"""Rounds of hidden training in segments: another way to state a schedule with one step and one noise for each round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from fedveil.core.checks import require
from fedveil.core.tables import known, table
from fedveil.core.values import number
from fedveil.privacy.mechanism import Numbers
from fedveil.stages.train.request import Task
from fedveil.stages.train.segments import rounds_of

_KEYS: Final = ("rounds", "noise", "step")
_WHY: Final = {
    "clip": "One Lipschitz constant must hold in all rounds, so that later rounds hide what earlier ones used.",
    "rate": "Who takes part is dealt for whole passes: [schedule] batch, or [algorithm] rate, says it for all rounds.",
}


def with_segments(task: Task, given: Any) -> Task:
    """Return the task with the steps and the noise of its segments written into the schedule, round by round."""
    if given is None:
        return task
    name, schedule = "algorithm.segments", task.schedule
    listed = isinstance(given, list | tuple) and len(given) >= 1
    require(listed, name, "list at least one segment", given, "Each is a table, [[algorithm.segments]].")
    parts = [_part(table(part, name)) for part in given]
    total, counted = sum(int(part["rounds"]) for part in parts), isinstance(schedule.rounds, int)
    hint = "It says how many rounds a pass has; the segments part the rounds of all passes."
    require(counted, "schedule.rounds", "be a number beside the segments of hidden training", schedule.rounds, hint)
    planned = (schedule.rounds if isinstance(schedule.rounds, int) else 0) * (schedule.passes or 1)
    require(total == planned, f"{name}.rounds", f"add up to the schedule's rounds of all passes, {planned}", total)
    steps, noise = _each_round(parts, "step", schedule.step_size), _each_round(parts, "noise", schedule.noise_std)
    return replace(task, schedule=replace(schedule, passes=schedule.passes or 1, step_size=steps, noise_std=noise))


def _part(given: Mapping[str, Any]) -> dict[str, float]:
    for key, why in _WHY.items():
        rule = "be left out of the segments of hidden training"
        require(key not in given, f"algorithm.segments.{key}", rule, given.get(key), why)
    known(given, _KEYS, "a segment")
    found: dict[str, float] = {"rounds": rounds_of(given)}
    return found | {key: number(f"algorithm.segments.{key}", given[key]) for key in _KEYS[1:] if key in given}


def _each_round(parts: Sequence[Mapping[str, float]], key: str, listed: Numbers | None) -> Numbers | None:
    """Return one number for each round; if no segment states it, what the schedule says (``listed``)."""
    stated = sum(key in part for part in parts)
    rule = f"be stated in all {len(parts)} segments or in none"
    require(stated in (0, len(parts)), f"algorithm.segments.{key}", rule, stated)
    if not stated:
        return listed
    return tuple(part[key] for part in parts for _ in range(int(part["rounds"])))

"""A site's guard that lies: the real one, from the site's own files and keys, but for what it answers in some rounds.

``python lying_site.py 2=nan,3=shape,4=stale,5=large site --data ...``: the rounds count from 0, and what follows is as
for ``fedveil``. A lie is signed with the site's own good key, so only what it says can give it away.
"""

import sys
from math import ceil
from typing import Any

import numpy as np

from fedveil.cli import main
from fedveil.federation.site.guard import Guard
from fedveil.planning.plan import read_plan
from fedveil.stages.train.hidden.steps import Rule
from fedveil.wire.content import Content
from fedveil.wire.envelope import Opened, peek

TIMES = 10_000


def nan(guard: Guard, opened: Opened, said: Content) -> Content:
    """Not a number among floats: whole numbers have none."""
    total = said.rows["total"].astype(np.float64)
    total[0] = np.nan
    return Content(values=said.values, rows={"total": total})


def shape(guard: Guard, opened: Opened, said: Content) -> Content:
    """One number too few."""
    return Content(values=said.values, rows={"total": said.rows["total"][:-1]})


def large(guard: Guard, opened: Opened, said: Content) -> Content:
    """10,000 times what clipping leaves of one record, on top of what is right."""
    rule = Rule.of(read_plan((guard.site.folder / "runs" / opened.head.run / "plan.toml").read_text()))
    turn, total = opened.head.round, said.rows["total"].copy()
    total[0] += TIMES * ceil(rule.clip * rule.steps[turn] / rule.batches[turn] / rule.unit)
    return Content(values=said.values, rows={"total": total})


LIES = {"nan": nan, "shape": shape, "large": large}


def speaking(honest: Any, lies: dict[int, str]) -> Any:
    """What is said in a round."""

    def answer(guard: Guard, opened: Opened, *rest: Any) -> tuple[str, Content]:
        kind, said = honest(guard, opened, *rest)
        lie = LIES.get(lies.get(opened.head.round, ""))
        return kind, said if lie is None or kind != "update" else lie(guard, opened, said)

    return answer


def repeating(honest: Any, lies: dict[int, str]) -> Any:
    """What leaves: a stale answer is the sealed one of an earlier round, as it was."""
    sealed: dict[int, bytes] = {}

    def handle(guard: Guard, data: bytes) -> bytes:
        back, asked = honest(guard, data), peek(data)
        if asked.kind != "step":
            return bytes(back)
        if lies.get(asked.round) == "stale":
            return sealed[max(earlier for earlier in sealed if earlier < asked.round)]
        sealed[asked.round] = back
        return bytes(back)

    return handle


if __name__ == "__main__":
    told = {int(turn): lie for turn, lie in (pair.split("=") for pair in sys.argv.pop(1).split(","))}
    Guard._answer = speaking(Guard._answer, told)  # type: ignore[method-assign]
    Guard.handle = repeating(Guard.handle, told)  # type: ignore[method-assign]
    main()

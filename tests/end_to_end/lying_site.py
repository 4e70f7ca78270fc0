"""A site's guard that lies: the real one, from the site's own files and keys, but for what it answers in some rounds.

``python lying_site.py 2=nan,3=shape,4=stale,5=large site --data ...``: the rounds count from 0, and what follows is as
for ``fedveil``. A lie is signed with the site's own good key, so only what it says can give it away.
"""

import sys
from collections.abc import Callable
from math import ceil

import numpy as np

from fedveil.cli import main
from fedveil.plan import read_plan
from fedveil.run.site_guard import Guard
from fedveil.train.hidden import Rule
from fedveil.wire.content import Content
from fedveil.wire.envelope import Opened

TIMES = 10_000
Honest = Callable[[Guard, Opened, str, Content], bytes]


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


def lying(honest: Honest, lies: dict[int, str]) -> Honest:
    """How answers are sealed here; a stale one is the sealed answer of an earlier round, as it was."""
    sealed: dict[int, bytes] = {}

    def answer(guard: Guard, opened: Opened, kind: str, content: Content) -> bytes:
        turn = opened.head.round
        if kind != "update":
            return honest(guard, opened, kind, content)
        lie = lies.get(turn)
        if lie == "stale":
            return sealed[max(earlier for earlier in sealed if earlier < turn)]
        said = content if lie is None else LIES[lie](guard, opened, content)
        sealed[turn] = honest(guard, opened, kind, said)
        return sealed[turn]

    return answer


if __name__ == "__main__":
    told = {int(turn): lie for turn, lie in (pair.split("=") for pair in sys.argv.pop(1).split(","))}
    Guard._sealed = lying(Guard._sealed, told)  # type: ignore[method-assign]
    main()

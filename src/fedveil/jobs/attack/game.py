"""The distinguishing game on the real trainer: runs of a plan on two neighbouring data sets, for all observers.

Runs are made in blocks, if wanted in several processes at once; after each block every observer's game decides whether
more are of use. Which runs a block holds depends on its number and the key alone, so the number of processes changes no
result.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from fedveil.audit.claim import Claim, claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import Game, Seen
from fedveil.core.errors import require
from fedveil.jobs.attack.batched_runs import Parts, many_runs
from fedveil.jobs.attack.observed_runs import Scene, look, some_models, worst_pair
from fedveil.jobs.attack.pace import Pace
from fedveil.jobs.attack.releases import WIDTH, releases, view_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES
from fedveil.privacy.guarantee import Adversary

Claims = Callable[[Adversary], Claim]
Watch = Callable[[str], None]
Views = dict[str, tuple[Seen, Seen]]  # by observer, on the two data sets
BLOCK = 0.04  # share of all runs in a block
MIDDLE = "middle"  # an attacker who is also given one model from the middle: what hiding that buys


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """How the runs are made: ``processes`` at once, and who is told about progress."""

    processes: int = 1
    watch: Watch = lambda _: None

    def __post_init__(self) -> None:
        require(1 <= self.processes <= 256, "processes", "lie between 1 and 256", self.processes)


def scenes(plan: Plan, runs: int, entropy: Entropy, parts: Parts | None = None) -> tuple[Scene, Scene]:
    """Return the same plan run ``runs`` times on each of two neighbouring data sets."""
    require(plan.method.hides, "algorithm.kind", "be hidden for the distinguishing game", plan.method.kind)
    pair, parts = worst_pair(plan), parts or Parts()
    keys = [Entropy(entropy.words("scene", k, 4).tobytes(), private=entropy.private) for k in range(2)]
    made = [
        Scene(plan, pair, records, many_runs(plan, records, runs, key, parts), key, parts)
        for records, key in zip((pair.first, pair.second), keys, strict=True)
    ]
    return made[0], made[1]


def game(
    plan: Plan,
    runs: int,
    entropy: Entropy,
    *,
    adversaries: Sequence[Adversary] = ADVERSARIES,
    claims: Claims | None = None,
    alarm: float = 1e-6,
    parts: Parts | None = None,
    sitting: Sitting | None = None,
) -> list[Finding]:
    """Return one finding for each observer; ``claims`` replaces what the plan promises. ``alarm`` is for each finding.

    At most ``runs`` runs are made on each data set. For methods that hide nothing, the releases are examined as one
    observer sees them (attack/releases.py).
    """
    seen_by = list(adversaries) if plan.method.hides else [view_of(plan).seen_by]
    return list(played(plan, runs, entropy, seen_by, claims, alarm, parts, sitting).values())


def what_hiding_buys(
    plan: Plan, runs: int, entropy: Entropy, *, alarm: float = 1e-6, sitting: Sitting | None = None
) -> list[tuple[str, Finding]]:
    """Return findings for an attacker who sees the last model, one in the middle too, or all models."""
    shown = played(plan, runs, entropy, ["final-model", MIDDLE, "every-model"], None, alarm, None, sitting)
    return hiding_rows(plan, shown)


def hiding_rows(plan: Plan, findings: Mapping[str, Finding]) -> list[tuple[str, Finding]]:
    """Return what an attacker shows who is given more and more of a hidden run."""
    names = ("the final model", f"the model after round {_middle(plan)} too", "every model")
    return [(name, findings[key]) for name, key in zip(names, ("final-model", MIDDLE, "every-model"), strict=True)]


def played(
    plan: Plan,
    runs: int,
    entropy: Entropy,
    observers: Sequence[str],
    claims: Claims | None = None,
    alarm: float = 1e-6,
    parts: Parts | None = None,
    sitting: Sitting | None = None,
) -> dict[str, Finding]:
    """Play against all these observers (or :data:`MIDDLE`) with the same runs, until every game is decided."""
    sitting, claimed = sitting or Sitting(), claims or partial(claim_of_plan, plan)
    games: dict[str, Game] = {}
    for name in observers:
        who: Any = "every-model" if name == MIDDLE else name
        games[name] = Game(claim=claimed(who), adversary=who, delta=plan.target.delta, alarm=alarm, runs=runs)
    first, size = next(iter(games.values())).choosing, max(20, int(runs * BLOCK))
    if not plan.method.hides:  # a wide problem holds WIDTH runs, wanted or not
        first, size = (-(-count // WIDTH) * WIDTH for count in (first, size))
    sizes = [min(first, runs), *(min(size, runs - at) for at in range(first, runs, size))]
    undecided = list(observers)
    pace = Pace(runs)
    keys = [entropy.words("block of runs", number, 4).tobytes() for number in range(len(sizes))]
    make = partial(_block, plan, parts or Parts(), entropy.private)
    for seen in _blocks(make, list(zip(keys, sizes, strict=True)), undecided, sitting.processes):
        for name in list(undecided):
            games[name].add(*seen[name])
            if games[name].decided:
                undecided.remove(name)
        if not undecided:
            break
        made = max(one.played for one in games.values())
        sitting.watch(f"distinguishing game: {made:,} of at most {runs:,} runs{pace.left(made)}")
    return {name: one.finding() for name, one in games.items()}


def _blocks(
    make: Callable[[bytes, int, tuple[str, ...]], Views],
    wanted: Sequence[tuple[bytes, int]],
    observers: list[str],
    processes: int,
) -> Iterator[Views]:
    """Yield the blocks in order, for the observers that are still in the list when a block begins."""
    if processes == 1:
        for key, size in wanted:
            yield make(key, size, tuple(observers))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("forkserver")) as pool:
        waiting: deque[Future[Views]] = deque()
        try:
            for key, size in wanted:
                waiting.append(pool.submit(make, key, size, tuple(observers)))
                if len(waiting) > processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # the game may be decided before all blocks are used
            for future in waiting:
                future.cancel()


def _block(plan: Plan, parts: Parts, private: bool, key: bytes, runs: int, observers: tuple[str, ...]) -> Views:
    """Return what each observer sees in the runs of one block."""
    entropy = Entropy(key, private=private)
    if not plan.method.hides:
        return dict.fromkeys(observers, releases(plan, runs, entropy))
    first, second = scenes(plan, runs, entropy, parts)
    return {name: (_look(first, name), _look(second, name)) for name in observers}


def _look(scene: Scene, name: Any) -> Seen:
    return some_models(scene, (_middle(scene.plan), scene.plan.run.total)) if name == MIDDLE else look(scene, name)


def _middle(plan: Plan) -> int:
    """Return the round right after the one that uses the victim last; where that is secret, the middle round."""
    total = plan.run.total
    if plan.run.order != "public":
        return max(1, total // 2)
    return total - plan.run.rounds + int(_place(plan)) + 1


def _place(plan: Plan) -> int:
    """Return the round of a pass that uses the victim, in a public order: the records in order, batch by batch."""
    ends = np.cumsum(np.broadcast_to(np.asarray(plan.run.batch), (plan.run.rounds,)))
    unit = int(worst_pair(plan).victim[0]) if plan.target.unit != "client" else 0
    return int(np.searchsorted(ends, unit, side="right"))

"""The distinguishing game about a unit that was forgotten: does the newest model tell whether it was ever there?

Many real runs with the unit, and as many without it, train as before it left; every one of them goes on with the
rounds that were to forget it, in which it takes no part. Theory page: forgetting.md.
"""

from collections.abc import Callable, Sequence

from fedveil.audit.claim import Claim
from fedveil.audit.finding import Finding
from fedveil.audit.game import Game, Seen
from fedveil.core.errors import require
from fedveil.core.values import Indices, Vector
from fedveil.data.records import Records
from fedveil.jobs.attack.batched_runs import Parts, many_runs
from fedveil.jobs.attack.membership import blanked
from fedveil.jobs.attack.observed_runs import Scene, look, worst_pair
from fedveil.jobs.attack.pace import Pace
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import forgotten

Leaves = Callable[[Records, Indices], Records]
_BLOCKS = 20  # looks at the evidence


def forgotten_game(
    plan: Plan,
    runs: int,
    entropy: Entropy,
    *,
    alarm: float = 1e-6,
    leaves: Leaves = blanked,
    parts: Parts | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Finding:
    """Return what the last model of a lineage shows of the unit that left it last, against what it was promised.

    ``leaves``: what becomes of the records when the unit leaves; tests replace it by a trainer that keeps the unit.
    """
    require(bool(plan.forgetting), "The plan", "be one that forgets", plan.name)
    promised = forgotten(plan)[-1].new_model
    game = Game(
        claim=Claim(((promised.epsilon, promised.delta),)),
        adversary="final-model",
        delta=promised.delta,
        alarm=alarm,
        runs=runs,
        attack="distinguishing-game on the forgotten unit",
    )
    size, pace = max(game.choosing, runs // _BLOCKS), Pace(runs)
    for block, first in enumerate(range(0, runs, size)):
        if game.decided:
            break
        key = Entropy(entropy.words("forgotten", block, 4).tobytes(), private=entropy.private)
        game.add(*_seen(plan.lineage, min(size, runs - first), key, leaves, parts or Parts()))
        watch(f"game on the forgotten unit: {game.played:,} of at most {runs:,} runs{pace.left(game.played)}")
    return game.finding()


def _seen(lineage: Sequence[Plan], runs: int, entropy: Entropy, leaves: Leaves, parts: Parts) -> tuple[Seen, Seen]:
    """Return the released models of runs that used the victim up to the last plan, and of runs that never did."""
    pair, sides = worst_pair(lineage[0]), []
    for side, records in enumerate((pair.first, pair.second)):
        starts: Vector | None = None
        for place, plan in enumerate(lineage):
            used = records if place < len(lineage) - 1 else leaves(records, pair.victim)
            key = Entropy(entropy.words(f"side {side}", place, 4).tobytes(), private=entropy.private)
            scene = Scene(plan, pair, used, many_runs(plan, used, runs, key, parts, starts), key, parts)
            starts = scene.models(plan.run.total)
        sides.append(look(scene, "final-model"))
    return sides[0], sides[1]


def goes_on_from(plan: Plan) -> bool:
    """Return whether the game is known: every run of the lineage has rounds that end where they were planned to."""
    return bool(plan.forgetting) and all(one.model.linear and one.run.stopping == "end" for one in plan.lineage)

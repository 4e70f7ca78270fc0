"""What a run decides once, before it is charged: its plan, its key and the coins of its canaries.

Each is on the disk before the next step, so that a run that is begun again finds what it had decided.
"""

from pathlib import Path
from typing import Any

from fedveil.core.checks import require
from fedveil.data.canaries import Canaries
from fedveil.engine import coins
from fedveil.engine.coins import Kept, settle_coins
from fedveil.engine.job import Fingerprint, settle_key, settle_text
from fedveil.engine.sums import check_ready
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan, write_plan
from fedveil.planning.study import Study


def settle_plan(plan: Plan, folder: Path, begun: bool) -> Plan:
    """Write the plan of a run that begins; a run that goes on must have been planned alike."""
    if not begun:
        check_ready(plan)
    settle_text(folder, write_plan(plan), begun, "study")
    return plan


def settle_canaries(study: Study, slots: Canaries, folder: Path, system: System) -> Kept:
    """Decide which canaries are in, by the system's randomness or the study's seed.

    The decision is on the disk before anything is charged.
    """
    draw, finished = system.random, (folder / "model.npz").exists()
    if study.seed is not None:
        stream = Entropy.from_seed(study.seed).stream("canaries")

        def draw(count: int) -> bytes:
            return stream.words(-(-count // 8)).tobytes()[:count]

    return settle_coins(folder / "private" / coins.NAME, slots.count, draw, finished=finished)


def settle_run(
    study: Study,
    plan: Plan,
    fingerprint: Fingerprint,
    held: Fingerprint,
    folder: Path,
    system: System,
    canaries: Kept | None = None,
) -> tuple[str, Entropy]:
    """Return the name of the run and its randomness: of a key that is drawn once, or of the study's public seed.

    ``fingerprint``: of the records to train on; ``held``: of those held out. The randomness depends on both, unless
    nothing is done with the latter but to measure the released model on records that are public; and on the
    ``canaries`` that were put among them.
    """
    done = study.seed is None and (folder / "model.npz").exists() and not (folder / "private" / "key").exists()
    hint = "It has released its model, and its key is gone. Name another folder."
    require(not done, "--resume", "name a run that can go on", str(folder), hint)
    context = plan.hash if canaries is None else plan.hash + canaries.commitment
    how: dict[str, Any] = {"held": held} if plan.test_decides else {}
    return settle_key(folder, context, fingerprint, system, **how, seed=study.seed)

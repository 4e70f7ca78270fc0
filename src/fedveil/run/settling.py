"""What a run decides once, before it is charged: its plan, its key and the coins of its canaries.

Each is on the disk before the next step, so that a run that is begun again finds what it had decided.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fedveil.checks import require
from fedveil.data.canaries import Canaries
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape
from fedveil.design import settled_model
from fedveil.errors import BadValue, why
from fedveil.noise.entropy import Entropy
from fedveil.plan import Plan, read_plan, write_plan
from fedveil.prepare.loading import Unprepared
from fedveil.run import coins
from fedveil.run.coins import Kept, settle_coins
from fedveil.run.files import PUBLIC, write_atomically
from fedveil.run.job import PLAN, Fingerprint, settle_key
from fedveil.run.sums import check_ready
from fedveil.run.system import System
from fedveil.study import Books, Study


def settle_plan(
    study: Study,
    loaded: Loaded | Unprepared,
    shape: DataShape,
    folder: Path,
    begun: bool,
    planned: Callable[[], Plan],
) -> Plan:
    """Return a new plan for a run that begins, or the existing plan of one that was begun."""
    path = folder / PLAN
    if not begun:
        write_atomically(folder / "private" / "study", _wished(study))
        plan = planned()
        check_ready(plan)
        write_atomically(path, write_plan(plan).encode(), mode=PUBLIC)
        return plan
    plan = as_charged(folder)
    require(plan.data == shape, "The data", f"have the shape of the run to resume, {plan.data}", shape)
    held = 0 if loaded.test is None else loaded.test.targets.size
    as_begun = {
        "study.seed": (plan.seeded, study.seed is not None),
        "[privacy]": (plan.target, study.target),
        **({} if study.tune is not None else {"[model]": (plan.model, settled_model(study.model, shape))}),
        "[data.held_out]": ((plan.test_records, plan.test_public), (held, loaded.test_public if held else True)),
        "[audit]": (plan.canaries, study.canaries),
        "[trust]": (plan.trust, study.trust),
        "[report]": ((plan.baselines, plan.training_public), (study.baselines, study.training_public)),
        "[clients]": (plan.places, study.places),
    }
    for name, (then, now) in as_begun.items():
        require(then == now, name, f"be as it was when the run began, {then}", now, "Or begin in another folder.")
    check_same(study, folder)
    return plan


def as_charged(folder: Path) -> Plan:
    """Return the plan of a run that was begun; of a search, as it was charged: the choice is made again."""
    path = folder / PLAN
    try:
        plan = read_plan(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValue(
            f"--resume must name a folder with a run in it, and {path} cannot be read: {why(error)}."
        ) from error
    return plan if plan.selection is None else plan.with_chosen(0)


def check_same(study: Study, folder: Path) -> None:
    """Refuse to go on with another study than the run began with."""
    wished = folder / "private" / "study"
    same = wished.exists() and wished.read_bytes() == _wished(study)
    require(same, "The study", "be as it was when the run began", study.name, "Or begin in another folder.")


def _wished(study: Study) -> bytes:
    """Return everything that a study says, except where its books and files are."""
    text = repr(replace(study, base=Path(), books=Books()))
    later = {} if study.source is None else study.source.later
    later = {**later, **getattr(study.algorithm, "later", {})}
    text = f"{text} {later}" if later else text  # keys that a study of an earlier version did not have
    asked = (study.prepare, study.evaluation, study.personal, study.tune)
    return " ".join([text, *(repr(one) for one in asked if one is not None)]).encode()


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
    study: Study, plan: Plan, fingerprint: Fingerprint, held: Fingerprint, folder: Path, system: System
) -> tuple[str, Entropy]:
    """Return the name of the run and its randomness: of a key that is drawn once, or of the study's public seed.

    ``fingerprint``: of the records to train on; ``held``: of those held out. The randomness depends on both, unless
    nothing is done with the latter but to measure the released model on records that are public.
    """
    if study.seed is not None:
        name = sha256(f"{plan.hash} {study.seed}".encode()).hexdigest()[:32]
        return name, Entropy.from_seed(study.seed)
    done = (folder / "model.npz").exists() and not (folder / "private" / "key").exists()
    hint = "It has released its model, and its key is gone. Name another folder."
    require(not done, "--resume", "name a run that can go on", str(folder), hint)
    if not plan.test_decides:
        return settle_key(folder, plan.hash, fingerprint, system)
    return settle_key(folder, plan.hash, fingerprint, system, held=held)

"""Carry out a study in a folder: charge, train, record, release. A crash at any moment loses no charge.

Order: the key and the plan are written, the ledger is charged, rounds run (with private checkpoints), the release is
recorded, and only then does the model appear. Everything that must stay hidden is in ``private``; the rest may be
published.
"""

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.algorithms.acting import Done
from fedveil.algorithms.registry import acts_of
from fedveil.algorithms.shares import Fails, nobody_fails
from fedveil.checks import require
from fedveil.data.canaries import Canaries
from fedveil.data.load import Loaded
from fedveil.data.records import DataShape, Records
from fedveil.design import settled_model
from fedveil.errors import BadValue, FedveilError
from fedveil.files import public_folder
from fedveil.ledger import Ledger
from fedveil.ledger.costs import cost_of
from fedveil.ledger.place import POINTER, settled_place
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.model.torch import TorchLoss
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.plan import Plan, read_plan, write_plan
from fedveil.prepare.learned import LearnedPreparation
from fedveil.prepare.loading import Unprepared
from fedveil.prepare.statement import FILE as PREPARATION
from fedveil.run import answers, coins
from fedveil.run.answers import Answers
from fedveil.run.coins import Kept, check_commitment, settle_coins
from fedveil.run.ending import LAST, destroy_secrets, ended, has_released
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.keeper import Keeper
from fedveil.run.measure import measure, published
from fedveil.run.preparing import learned_from, planned_columns, write_notes
from fedveil.run.sums import check_ready, summing_of, summing_of_preparation
from fedveil.run.train import train
from fedveil.study import Books, Study
from fedveil.values import Vector


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: rounds done, rounds in all, rounds per second, and what the run was charged."""

    round: int
    total: int
    rate: float
    epsilon: float


@dataclass(frozen=True, slots=True)
class System:
    """What the run needs from outside (time, randomness); tests pass their own."""

    random: Callable[[int], bytes] = os.urandom
    seconds: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    checkpoint_every: float = 5.0
    fails: Fails = nobody_fails  # which clients fail to answer in which round, if clients share the noise


class Interrupted(FedveilError):
    """The run was stopped and can be resumed."""


def conduct(
    study: Study,
    loaded: Loaded | Unprepared,
    folder: Path,
    *,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System,
) -> dict[str, Any]:
    """Run the study in ``folder`` and return the metrics that were written."""
    try:
        public_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {error}.") from error
    with sole_use(private_folder(folder / "private")):
        if resume and has_released(folder):
            return ended(folder)
        if isinstance(loaded, Unprepared):
            return _conduct_prepared(study, loaded, folder, resume, watch, system)
        slots = study.slots
        blank = loaded.train if slots is None else slots.blank(loaded.train)
        plan = _settle_plan(study, loaded, blank.shape, folder, resume, lambda: _planned(study, loaded, blank.shape))
        kept = None if slots is None else _settle_coins(study, slots, folder, system)
        train = loaded.train if slots is None or kept is None else slots.placed(loaded.train, kept.coins)
        name, entropy = _settle_key(study, plan, train.fingerprint, folder, system)
        prints = loaded.fingerprint, loaded.train.fingerprint
        with _charged(study, plan, name, kept, prints, folder, resume, system) as books:
            trained = _train(plan, train, name, entropy, folder, system, watch)
            measured = loaded if slots is None else _widened(loaded, slots)
            return _release(plan, measured, trained, entropy, folder, books)


def _conduct_prepared(
    study: Study,
    found: Unprepared,
    folder: Path,
    resume: bool,
    watch: Callable[[Progress], None] | None,
    system: System,
) -> dict[str, Any]:
    """The same for a study whose preparation is learned: after the charge, and before training."""
    planned = planned_columns(study, found).plan  # from public numbers alone; a run to be resumed has the same
    shape = planned.data
    plan = _settle_plan(study, found, shape, folder, resume, lambda: planned)
    name, entropy = _settle_key(study, plan, found.cells_fingerprint, folder, system)
    prints = found.fingerprint, found.cells_fingerprint
    with _charged(study, plan, name, None, prints, folder, resume, system) as books:
        learned = _learn(plan, found, name, entropy, folder, system)
        loaded = found.loaded(learned)
        write_notes(found, learned, folder / "private")
        trained = _train(plan, loaded.train, name, entropy, folder, system, watch)
        return _release(plan, loaded, trained, entropy, folder, books, learned)


def _learn(
    plan: Plan, found: Unprepared, name: str, entropy: Entropy, folder: Path, system: System
) -> LearnedPreparation:
    """What is measured; a run that is begun again measures the same numbers of the same clients."""
    if not plan.trust.shared:
        return learned_from(plan, found, entropy)
    path, sums = folder / "private" / answers.OF_PREPARATION, summing_of_preparation(plan, entropy)
    asked = Answers.open(path, name, system.fails, sums)
    return learned_from(plan, found, entropy, asked.add_up, asked.fails)


def _planned(study: Study, loaded: Loaded, shape: DataShape) -> Plan:
    held = 0 if loaded.test is None else loaded.test.targets.size
    return study.planned(shape, held, loaded.test_public if held else True).plan


def _settle_plan(
    study: Study,
    loaded: Loaded | Unprepared,
    shape: DataShape,
    folder: Path,
    resume: bool,
    planned: Callable[[], Plan],
) -> Plan:
    """Return a new plan for a new folder, or the existing plan when resuming."""
    path = folder / "plan.toml"
    if not resume:
        hint = "Name another folder, or go on with --resume."
        require(not path.exists(), "--out", "name a folder without a run in it", str(folder), hint)
        write_atomically(folder / "private" / "study", _wished(study))
        plan = planned()
        check_ready(plan)
        write_atomically(path, write_plan(plan).encode(), mode=PUBLIC)
        return plan
    try:
        plan = read_plan(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValue(f"--resume must name a folder with a run in it, and {path} cannot be read: {error}.") from error
    require(plan.data == shape, "The data", f"have the shape of the run to resume, {plan.data}", shape)
    held = 0 if loaded.test is None else loaded.test.targets.size
    as_begun = {
        "study.seed": (plan.seeded, study.seed is not None),
        "[privacy]": (plan.target, study.target),
        "[model]": (plan.model, settled_model(study.model, shape)),
        "[data.held_out]": ((plan.test_records, plan.test_public), (held, loaded.test_public if held else True)),
        "[audit]": (plan.canaries, study.canaries),
        "[trust]": (plan.trust, study.trust),
        "[report]": ((plan.baselines, plan.training_public), (study.baselines, study.training_public)),
        "[clients]": (plan.places, study.places),
    }
    wished = folder / "private" / "study"
    same = wished.exists() and wished.read_bytes() == _wished(study)
    for name, (begun, now) in as_begun.items():
        require(begun == now, name, f"be as it was when the run began, {begun}", now, "Or begin in another folder.")
    require(same, "The study", "be as it was when the run began", study.name, "Or begin in another folder.")
    return plan


def _wished(study: Study) -> bytes:
    """Return everything that a study says, except where its books and files are."""
    text = repr(replace(study, base=Path(), books=Books()))
    return (text if study.prepare is None else f"{text} {study.prepare!r}").encode()


def _settle_coins(study: Study, slots: Canaries, folder: Path, system: System) -> Kept:
    """Decide which canaries are in, by the system's randomness or the study's seed.

    The decision is on the disk before anything is charged.
    """
    draw, finished = system.random, (folder / "model.npz").exists()
    if study.seed is not None:
        stream = Entropy.from_seed(study.seed).stream("canaries")

        def draw(count: int) -> bytes:
            return stream.words(-(-count // 8)).tobytes()[:count]

    return settle_coins(folder / "private" / coins.NAME, slots.count, draw, finished=finished)


def _widened(loaded: Loaded, slots: Canaries) -> Loaded:
    """Add the canaries' columns, but no canaries, to the records used for measuring and for baselines."""
    test = None if loaded.test is None else slots.widened(loaded.test)
    return replace(loaded, train=slots.widened(loaded.train), test=test)


def _settle_key(
    study: Study, plan: Plan, fingerprint: Callable[[bytes], str], folder: Path, system: System
) -> tuple[str, Entropy]:
    """Return the name of the run and its randomness, which are drawn once and kept privately until the release."""
    if study.seed is not None:
        name = sha256(f"{plan.hash} {study.seed}".encode()).hexdigest()[:32]
        return name, Entropy.from_seed(study.seed)
    path = folder / "private" / "key"
    if not path.exists():
        done = (folder / "model.npz").exists()
        require(not done, "--resume", "name a run that is not finished", str(folder), "It has released its model.")
        write_atomically(path, system.random(16 + KEY_BYTES))
    content = path.read_bytes()
    require(len(content) == 16 + KEY_BYTES, str(path), f"hold {16 + KEY_BYTES} bytes", len(content))
    # The data's keyed fingerprint is part of the context: the same noise never meets other data.
    return content[:16].hex(), Entropy.from_key(content[16:], context=plan.hash + fingerprint(content[16:]))


@contextmanager
def _charged(
    study: Study,
    plan: Plan,
    name: str,
    kept: Kept | None,
    prints: tuple[Callable[[bytes], str], Callable[[bytes], str]],
    folder: Path,
    resume: bool,
    system: System,
) -> Iterator[Transaction]:
    """Open the ledger and charge the cost of the whole run; a new run that is refused leaves nothing behind."""
    own = folder / "private" / "ledger.sqlite"
    with ExitStack() as stack:
        try:
            fingerprint, older = prints
            books = settled_place(study, own, fingerprint, older, begun=resume, urandom=system.random) or own
            write_atomically(folder / "private" / POINTER, f"{books.absolute()}\n".encode())
            opened = Ledger.open(books, fingerprint, older=older, urandom=system.random)
            ledger = stack.enter_context(opened)
            transaction = Transaction(ledger, name, moment(plan, system.now()))
            extra = None if kept is None else {coins.CHARGED: kept.commitment}
            entry = transaction.charge(plan, caps=caps_of(study.books, study.target), extra=extra)
            if kept is not None:  # a resumed run must have the coins it was charged with
                check_commitment(kept, entry.payload["extra"].get(coins.CHARGED))
        except FedveilError:
            for made in [] if resume else ["plan.toml", "private/key", f"private/{coins.NAME}", f"private/{POINTER}"]:
                (folder / made).unlink(missing_ok=True)
            raise
        yield transaction


def _train(
    plan: Plan,
    records: Records,
    name: str,
    entropy: Entropy,
    folder: Path,
    system: System,
    watch: Callable[[Progress], None] | None,
) -> Vector:
    """Train and return the last model.

    Algorithms that can resume keep private checkpoints; the others repeat the run with the same bytes.
    """
    charged, began = cost_of(plan, plan.target.adversary).epsilon, system.seconds()
    mark = sha256((plan.hash + records.fingerprint(name.encode())).encode()).hexdigest()  # identifies plan and data
    kept = Keeper(folder / "private" / "checkpoint", mark, name, acts_of(plan.method.kind).resumed, system)
    begun = kept.begun()
    first = 0 if begun is None else begun.round

    def after(state: Done) -> None:
        kept.note(state)
        if watch is not None:
            passed = system.seconds() - began
            rate = (state.round - first) / passed if passed > 0 else 0.0
            watch(Progress(state.round, plan.method.total, rate, charged))

    asked = _asked(plan, name, entropy, folder, system)
    add_up, fails = (None, nobody_fails) if asked is None else (asked.add_up, asked.fails)
    try:
        trained = train(plan, records, entropy, begun=begun, watch=after, add_up=add_up, fails=fails)
    except FedveilError:
        kept.save()  # resuming asks for a refused round again, with the same noise
        raise
    except KeyboardInterrupt as error:
        kept.save()
        raise Interrupted(kept.advice(plan.method.total)) from error
    kept.save()  # after a crash during the release, it need not be computed again
    return trained.model


def _asked(plan: Plan, name: str, entropy: Entropy, folder: Path, system: System) -> Answers | None:
    """Return who answers and what adds up the answers, if clients share the noise; None otherwise."""
    if not plan.trust.shared:
        return None
    return Answers.open(folder / "private" / answers.NAME, name, system.fails, summing_of(plan, entropy))


def _release(
    plan: Plan,
    loaded: Loaded,
    model: Vector,
    entropy: Entropy,
    folder: Path,
    books: Transaction,
    learned: LearnedPreparation | None = None,
) -> dict[str, Any]:
    """Record the release, then publish the model; afterwards destroy the key and the hidden state."""
    metrics = published(plan, measure(plan, loaded, model, entropy), folder / "private")
    data = model_file(plan, model, learned)
    also = ["metrics.json"] if metrics["test"] else []
    if learned is not None:
        also.append(PREPARATION)
    books.release(data, also=also)
    if learned is not None:
        write_atomically(folder / PREPARATION, learned.text().encode(), mode=PUBLIC)
    write_atomically(folder / "model.npz", data, mode=PUBLIC)
    text = json.dumps(metrics, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "metrics.json", text.encode(), mode=PUBLIC)
    write_atomically(folder / LAST, books.export(), mode=PUBLIC)
    destroy_secrets(folder)
    return metrics


def model_file(plan: Plan, model: Any, learned: LearnedPreparation | None = None) -> bytes:
    """Plain arrays that load without pickle; equal models give equal bytes.

    A learned preparation is part of the model: its file is named here by its digest.
    """
    loss = plan.model.loss
    if isinstance(loss, TorchLoss):  # training learned the difference from a public start, and the model is their sum
        more: dict[str, Any] = {"start": loss.start(plan.data.features)}
    else:
        table, real = model.reshape(plan.data.features, loss.outputs), plan.real_features
        more = {"coefficients": table[:real]}
        if plan.canaries is not None:  # drop the canaries' columns, which are zero in every record but a canary
            more["canaries"] = table[real:]
    if learned is not None:
        more["preparation"] = np.array(sha256(learned.text().encode()).hexdigest())
    buffer = io.BytesIO()
    np.savez(buffer, kind=np.array(loss.kind), parameters=model, **more)
    return buffer.getvalue()

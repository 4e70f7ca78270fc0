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
from fedveil.run import answers, coins
from fedveil.run.answers import Answers
from fedveil.run.coins import Kept, check_commitment, settle_coins
from fedveil.run.ending import LAST, destroy_secrets, ended, has_released
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.keeper import Keeper
from fedveil.run.measure import measure, published
from fedveil.run.sums import check_ready, summing_of
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
    loaded: Loaded,
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
        slots = study.slots
        blank = loaded.train if slots is None else slots.blank(loaded.train)
        plan = _settle_plan(study, loaded, blank.shape, folder, resume)
        kept = None if slots is None else _settle_coins(study, slots, folder, system)
        train = loaded.train if slots is None or kept is None else slots.placed(loaded.train, kept.coins)
        name, entropy = _settle_key(study, plan, train, folder, system)
        with _charged(study, plan, name, kept, loaded, folder, resume, system) as books:
            trained = _train(plan, train, name, entropy, folder, system, watch)
            measured = loaded if slots is None else _widened(loaded, slots)
            return _release(plan, measured, trained, entropy, folder, books)


def _settle_plan(study: Study, loaded: Loaded, shape: DataShape, folder: Path, resume: bool) -> Plan:
    """Return a new plan for a new folder, or the existing plan when resuming."""
    path = folder / "plan.toml"
    if not resume:
        hint = "Name another folder, or go on with --resume."
        require(not path.exists(), "--out", "name a folder without a run in it", str(folder), hint)
        held = 0 if loaded.test is None else loaded.test.targets.size
        write_atomically(folder / "private" / "study", _wished(study))
        plan = study.planned(shape, held, loaded.test_public if held else True).plan
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
    return text.encode()


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


def _settle_key(study: Study, plan: Plan, train: Records, folder: Path, system: System) -> tuple[str, Entropy]:
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
    # The keyed fingerprint of the data is part of the context, so the same noise is never used with other data.
    return content[:16].hex(), Entropy.from_key(content[16:], context=plan.hash + train.fingerprint(content[16:]))


@contextmanager
def _charged(
    study: Study,
    plan: Plan,
    name: str,
    kept: Kept | None,
    loaded: Loaded,
    folder: Path,
    resume: bool,
    system: System,
) -> Iterator[Transaction]:
    """Open the ledger and charge the cost of the whole run; a new run that is refused leaves nothing behind."""
    own = folder / "private" / "ledger.sqlite"
    with ExitStack() as stack:
        try:
            older = loaded.train.fingerprint
            books = settled_place(study, own, loaded.fingerprint, older, begun=resume, urandom=system.random) or own
            write_atomically(folder / "private" / POINTER, f"{books.absolute()}\n".encode())
            opened = Ledger.open(books, loaded.fingerprint, older=older, urandom=system.random)
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
    plan: Plan, loaded: Loaded, model: Vector, entropy: Entropy, folder: Path, books: Transaction
) -> dict[str, Any]:
    """Record the release, then publish the model; afterwards destroy the key and the hidden state."""
    metrics = published(plan, measure(plan, loaded, model, entropy), folder / "private")
    data = model_file(plan, model)
    also = ["metrics.json"] if metrics["test"] else []
    books.release(data, also=also)
    write_atomically(folder / "model.npz", data, mode=PUBLIC)
    text = json.dumps(metrics, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / "metrics.json", text.encode(), mode=PUBLIC)
    write_atomically(folder / LAST, books.export(), mode=PUBLIC)
    destroy_secrets(folder)
    return metrics


def model_file(plan: Plan, model: Any) -> bytes:
    """Return the model as an archive of plain arrays that loads without pickle; equal models give equal bytes."""
    loss = plan.model.loss
    if isinstance(loss, TorchLoss):  # training learned the difference from a public start, and the model is their sum
        more: dict[str, Any] = {"start": loss.start(plan.data.features)}
    else:
        table, real = model.reshape(plan.data.features, loss.outputs), plan.real_features
        more = {"coefficients": table[:real]}
        if plan.canaries is not None:  # drop the canaries' columns, which are zero in every record but a canary
            more["canaries"] = table[real:]
    buffer = io.BytesIO()
    np.savez(buffer, kind=np.array(loss.kind), parameters=model, **more)
    return buffer.getvalue()

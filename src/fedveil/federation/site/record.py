"""A site's own record of one run: what it agreed to, what was charged, what was released.

Laid out like a run's folder.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from fedveil.core.errors import BadValue
from fedveil.engine.ending import destroy_secrets
from fedveil.engine.files import PUBLIC, clear_parts, private_folder, write_atomically, write_notes
from fedveil.federation.agreements import KEY_FILE, MASK_KEY, Carried
from fedveil.federation.carrying.fresh_process import Work, here
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.state import load_state
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap
from fedveil.ledger.transaction import Transaction, moment
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.planning.plan import Plan, read_any_plan
from fedveil.stages.measured.plan import GENERATOR, MeasuredPlan
from fedveil.stages.sums import FILE as PREPARATION
from fedveil.stages.synthesise.generator import Generator
from fedveil.wire.content import Content
from fedveil.wire.envelope import Opened, Refused

# The last answer that took a site work, kept for the same question asked again.
#
# An aggregator asks a silent site again, because the question may be lost. If it was only waiting its turn, the same
# work would be done twice, and the next round would wait for it.


@final
@dataclass(slots=True)
class KeptAnswer:
    """One answer with its question; a restarted guard has none and works again, to the same bits."""

    _question: str = ""
    _answer: tuple[str, Content] | None = None

    def to(self, opened: Opened) -> tuple[str, Content] | None:
        """Return the answer to this very question, if it was the last one."""
        return self._answer if self._question == _named(opened) else None

    def keep(self, opened: Opened, kind: str, content: Content) -> tuple[str, Content]:
        """Keep an answer, and return it."""
        self._question, self._answer = _named(opened), (kind, content)
        return kind, content


def _named(opened: Opened) -> str:
    """Return what makes two questions the same: the run, the kind, the round and what was asked."""
    head = opened.head
    return f"{head.run} {head.kind} {head.round} {hashlib.sha256(opened.body).hexdigest()}"


# What a guard or a key holder removes when it starts: remains of killed writes, and secrets of runs that ended.
#
# A run may have ended on the disk just before the process was killed; its keys are then not needed any more.

# at a site; a key holder has only the second
SECRETS: Final = ("key", KEY_FILE, MASK_KEY, "memory", "proposal", "prepared", "preparation.sums")


def clear_records(folder: Path, secrets: tuple[str, ...] = SECRETS) -> None:
    """Clean up all runs of a site, or of a key holder; no other process may be working there."""
    for private in sorted((folder / "runs").glob("*/private")):
        clear_parts(private.parent)
        clear_parts(private)
        with suppress(BadValue):  # a run with damaged memory is refused when it is asked for, without affecting others
            if load_state(private / "state").finished:
                destroy_secrets(private.parent, secrets)


_SALT: Final = 32


@dataclass(frozen=True, slots=True)
class World:
    """What the site needs from outside (time, randomness, where it works out costs); tests pass their own."""

    random: Callable[[int], bytes]
    now: Callable[[], datetime]
    work_out: Work = here


def charge(
    books: str, run: str, at: str | None, plan: str, caps: Sequence[Mapping[str, Any]], persons: str | None
) -> None:
    """Charge a run to books that are known to be those of its data; working out what it costs takes most of the time.

    The plan is given by its text, and the caps by their fields.
    """
    with Ledger.look(Path(books)) as ledger:
        own = read_any_plan(plan)
        Transaction(ledger, run, at).charge(own, caps=[Cap(**cap) for cap in caps], persons=persons)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """The files of one run at a site; ``books`` is the ledger of the site's data, shared by all runs."""

    folder: Path
    books: Path
    run: str
    world: World

    @property
    def private(self) -> Path:
        """The folder that only the site can read."""
        return private_folder(self.folder / "private")

    def check_books(self, plan: Carried, data: SiteData, *, known: bool, alone: bool) -> None:
        """Refuse a run that is in the books but not in the site's memory, since its noise may already have been used.

        ``known``: the site remembers the run. ``alone``: no cap limits how often a plan may run, so it runs once.
        """
        if not self.books.exists():
            return
        with self._opened(data) as ledger:
            charges = [entry for entry in ledger.entries() if entry.kind == "charge"]
        if not known and any(entry.run == self.run for entry in charges):
            raise Refused("lost-memory")
        if alone and plan.private and any(e.run != self.run and e.payload["plan"] == plan.hash for e in charges):
            raise Refused("already-run")

    def charge(self, plan: Carried, data: SiteData, caps: tuple[Cap, ...]) -> None:
        """Charge the whole run to the site's budget before anything is sent; charging again has no effect."""
        self._ledger(data).close()  # there are books, and they belong to these data
        at = moment(plan, self.world.now())
        limits = [asdict(cap) for cap in caps]
        self.world.work_out(charge, str(self.books), self.run, at, plan.text(), limits, data.person_column)
        write_atomically(self.folder / "plan.toml", plan.text().encode(), mode=PUBLIC)
        if not (self.private / "prepared").exists():
            salt = self.world.random(_SALT)
            write_atomically(self.private / "prepared", salt + data.records_fingerprint(salt).encode())

    def entropy(self, plan: Carried, data: SiteData, seed: int | None) -> Entropy:
        """Return the site's noise for this run: from the key drawn when it was agreed to, or from the seed of a trial.

        It is returned only for the data that were charged.
        """
        self._check_charged(plan, data)
        if seed is not None:
            return Entropy.from_seed(seed)
        try:
            key = (self.private / "key").read_bytes()
        except FileNotFoundError as error:  # with a new key, a round could be answered with two different noises
            raise Refused("lost-key") from error
        return Entropy.from_key(key, context=f"{plan.hash} {self.run} {data.records_fingerprint(key)}")

    def draw_key(self) -> None:
        """Draw the key of this run's noise, unless it exists."""
        path = self.private / "key"
        if not path.exists():
            write_atomically(path, self.world.random(KEY_BYTES))

    def released(self, model: bytes) -> bool:
        """Return whether this is the model, or the generator, that was recorded as released."""
        return any(path.is_file() and path.read_bytes() == model for path in self.folder.iterdir())

    def keep_notes(self, notes: list[str]) -> list[str]:
        """Keep what the operator alone should know of the site's records, and return it."""
        return write_notes(notes, self.private)

    def destroy_secrets(self) -> None:
        """Destroy the keys of noise and sums, the rounds of the records and the memory of the run, at its end."""
        destroy_secrets(self.folder, SECRETS)

    def release(self, plan: Carried, data: SiteData, model: bytes, learned: bytes | None = None) -> None:
        """Record the release, and keep the released model; ``learned``: its preparation, where it has one."""
        if isinstance(plan, MeasuredPlan):
            self._release_result(plan, data, model)
            return
        _check_model(plan, model)
        also = []
        if plan.preparation:
            _check_learned(model, learned)
            also.append(PREPARATION)
        with self._opened(data) as ledger:
            export = self._transaction(ledger, plan).release(model, also=also, expires=data.expires).export()
        if learned is not None and also:
            write_atomically(self.folder / PREPARATION, learned, mode=PUBLIC)
        write_atomically(self.folder / "model.npz", model, mode=PUBLIC)
        write_atomically(self.folder / "ledger.jsonl", export, mode=PUBLIC)
        task = "classification" if plan.data.classes else "regression"
        metrics: dict[str, Any] = {"format": 1, "task": task, "test": None, "baselines": {}}
        write_atomically(self.folder / "metrics.json", (json.dumps(metrics, indent=1) + "\n").encode(), mode=PUBLIC)

    def _release_result(self, plan: MeasuredPlan, data: SiteData, content: bytes) -> None:
        """Record the release of what a stage of noisy sums computed, and keep it."""
        if plan.stage == GENERATOR:
            _check_generator(plan, content)
        with self._opened(data) as ledger:
            export = self._transaction(ledger, plan).release(content).export()
        write_atomically(self.folder / plan.file, content, mode=PUBLIC)
        write_atomically(self.folder / "ledger.jsonl", export, mode=PUBLIC)

    def _check_charged(self, plan: Carried, data: SiteData) -> None:
        with self._opened(data) as ledger:
            charged = [entry.payload["plan"] for entry in ledger.entries(self.run) if entry.kind == "charge"]
        if charged != [plan.hash]:
            raise Refused("not-charged")
        path = self.private / "prepared"
        known = path.read_bytes() if path.exists() else None
        if known is not None and known[_SALT:] != data.records_fingerprint(known[:_SALT]).encode():
            raise Refused("changed-data")  # the same rows prepared into other records: a round would get two answers

    def _ledger(self, data: SiteData) -> Ledger:
        return Ledger.open(self.books, data.fingerprint, urandom=self.world.random)

    def _opened(self, data: SiteData) -> Ledger:
        """Open the books, which must exist and belong to these data."""
        if not self.books.exists():
            raise Refused("not-charged")
        try:
            return self._ledger(data)
        except BadValue as error:
            raise Refused("changed-data") from error

    def _transaction(self, ledger: Ledger, plan: Carried) -> Transaction:
        return Transaction(ledger, self.run, moment(plan, self.world.now()))


def _check_generator(plan: MeasuredPlan, text: bytes) -> None:
    """Refuse unless this is a generator of the plan's columns."""
    try:
        found = Generator.read(text)
    except BadValue as error:
        raise Refused("wrong-shape") from error
    if (found.name, found.records, len(found.columns)) != (plan.name, plan.units, plan.data.features):
        raise Refused("wrong-shape")


def _check_learned(model: bytes, learned: bytes | None) -> None:
    """Refuse unless this is the learned preparation that the model names."""
    with np.load(io.BytesIO(model), allow_pickle=False) as arrays:
        named = str(arrays["preparation"]) if "preparation" in arrays.files else ""
    if learned is None or sha256(learned).hexdigest() != named:
        raise Refused("other-preparation")


def _check_model(plan: Plan, model: bytes) -> None:
    """Refuse unless these are the arrays of such a model; a small file that unpacks to a large one is not unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(model)) as packed:
            fits = sum(part.file_size for part in packed.infolist()) <= len(model)  # a model's file is not compressed
        if fits:
            with np.load(io.BytesIO(model), allow_pickle=False) as arrays:
                found = arrays["parameters"]
            fits = found.shape == (plan.dimension,) and found.dtype == np.float64 and bool(np.all(np.isfinite(found)))
    except Exception as error:  # a damaged archive may fail in any way
        raise Refused("wrong-shape") from error
    if not fits:
        raise Refused("wrong-shape")

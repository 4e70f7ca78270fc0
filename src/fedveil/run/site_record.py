"""A site's own record of one run: what it agreed to, what it was charged, what was released; as a run's folder is."""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.records import Records
from fedveil.ledger import Cap, Ledger
from fedveil.plan import Plan, write_plan
from fedveil.promises import ADVERSARIES
from fedveil.run.conduct import charge_of
from fedveil.run.encrypted_setting import KEY_FILE
from fedveil.run.files import PUBLIC, private_folder, write_atomically
from fedveil.tables import write_tables
from fedveil.train.entropy import KEY_BYTES, Entropy
from fedveil.wire.envelope import Refused


@dataclass(frozen=True, slots=True)
class World:
    """What the world outside provides; trials give their own."""

    random: Callable[[int], bytes]
    now: Callable[[], datetime]


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Where one run's files lie at a site; ``books`` is the ledger of the site's data, shared by all runs."""

    folder: Path
    books: Path
    run: str
    world: World

    @property
    def private(self) -> Path:
        """For the site alone."""
        return private_folder(self.folder / "private")

    def charge(self, plan: Plan, records: Records, caps: tuple[Cap, ...]) -> None:
        """Take the whole run out of the site's budget, before anything is sent; again: nothing happens."""
        with Ledger.open(self.books, records.fingerprint, urandom=self.world.random) as ledger:
            ledger.charge(
                self.run,
                plan.hash,
                [charge_of(plan, adversary) for adversary in ADVERSARIES],
                rounds=plan.method.total,
                mechanism=write_tables({"method": plan.method.table()}),
                caps=caps,
                at=self._at(plan),
            )
        write_atomically(self.folder / "plan.toml", write_plan(plan).encode(), mode=PUBLIC)

    def entropy(self, plan: Plan, records: Records, seed: int | None) -> Entropy:
        """The site's noise for this run: from a key drawn here once, or from the seed of a trial."""
        if seed is not None:
            return Entropy.from_seed(seed)
        path = self.private / "key"
        if not path.exists():
            write_atomically(path, self.world.random(KEY_BYTES))
        key = path.read_bytes()
        return Entropy.from_key(key, context=f"{plan.hash} {self.run} {records.fingerprint(key)}")

    def release(self, plan: Plan, records: Records, model: bytes) -> None:
        """Record what was released, and keep it; the keys of noise and sums are destroyed."""
        _check_model(plan, model)
        with Ledger.open(self.books, records.fingerprint, urandom=self.world.random) as ledger:
            ledger.release(self.run, hashlib.sha256(model).hexdigest(), at=self._at(plan))
            export = ledger.export(self.run)
        write_atomically(self.folder / "model.npz", model, mode=PUBLIC)
        write_atomically(self.folder / "ledger.jsonl", export, mode=PUBLIC)
        task = "classification" if plan.data.classes else "regression"
        metrics: dict[str, Any] = {"format": 1, "task": task, "test": None, "baselines": {}}
        write_atomically(self.folder / "metrics.json", (json.dumps(metrics, indent=1) + "\n").encode(), mode=PUBLIC)
        (self.private / "key").unlink(missing_ok=True)
        (self.private / KEY_FILE).unlink(missing_ok=True)

    def _at(self, plan: Plan) -> str | None:
        return None if plan.seeded else self.world.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_model(plan: Plan, model: bytes) -> None:
    try:
        with np.load(io.BytesIO(model), allow_pickle=False) as arrays:
            fits = arrays["parameters"].shape == (plan.dimension,)
    except (ValueError, KeyError, OSError) as error:
        raise Refused("wrong-shape") from error
    if not fits:
        raise Refused("wrong-shape")

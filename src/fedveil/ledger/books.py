"""The ledger of one data set: charge before anything is computed, record before anything is released.

Order of a run: ``charge`` (committed), rounds with ``progress``, ``release`` (committed), only then the model's file. A
crash anywhere leaves a charge without an output, never an output without a charge. Payloads are published with the
run's export: nothing that was computed from records may enter them, except what the charge covers.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, final, get_args

from fedveil.checks import require
from fedveil.errors import BadValue, FedveilError
from fedveil.guarantee import Adversary, Neighbours, Unit
from fedveil.ledger import store
from fedveil.ledger.budget import Cap, Cost, check_caps, tightened, total
from fedveil.ledger.entry import ALL_RUNS, HASH, Entry, Kind, canonical, check_run, plain
from fedveil.ledger.export import Export, write_export

Reason = Literal["stopped", "error"]  # a closed list: an error's text could carry values of records


@final
class Ledger:
    """Books of one data set, open; shared by any number of processes, each with its own ``Ledger.open``."""

    def __init__(self, path: Path, fingerprint: Callable[[bytes], str], patience: float) -> None:
        """Open existing books; use :meth:`open`."""
        self.path = path
        self._process = os.getpid()
        with store.plainly(path):
            self._connection = store.connect(path, patience)
        try:
            with store.plainly(path):
                form, key, known = store.identity(self._connection)
            require(form == store.FORMAT, f"The ledger {path}", f"have format {store.FORMAT}", form)
            if fingerprint(key) != known:
                raise BadValue(
                    f"The ledger {path} must belong to these data, and it was opened for others. "
                    "Give the data it was opened with, prepared alike: what other books spent is not known here."
                )
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        fingerprint: Callable[[bytes], str],
        *,
        urandom: Callable[[int], bytes] = os.urandom,
        patience: float = 60.0,
    ) -> Self:
        """Open the books of the data that ``fingerprint`` (keyed) describes; make them if there are none.

        ``patience``: seconds to wait for another process that is writing.
        """
        path = Path(path)
        with store.plainly(path):
            new = not path.exists()
        if new:
            store.create(path, fingerprint, urandom)
        return cls(path, fingerprint, patience)

    def close(self) -> None:
        """Let go of the file; a forked child leaves its parent's connection alone."""
        if os.getpid() == self._process:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def charge(
        self,
        run: str,
        plan: str,
        costs: Sequence[Cost],
        *,
        rounds: int,
        mechanism: str = "",
        extra: Mapping[str, Any] | None = None,
        caps: Sequence[Cap] = (),
        at: str | None = None,
    ) -> Entry:
        """Take a run's whole cost out of the budget; it is on the disk when this returns.

        ``plan`` is the plan's hash, ``mechanism`` the text from which the costs can be recomputed. The same run and
        plan again (a resumed run) give the entry that exists and cost nothing; another plan is refused. New or lower
        ``caps`` are recorded first. Raises :class:`CapExceeded` with nothing written if a cap would break.
        """
        check_run(run)
        require(isinstance(plan, str) and plan != "", "plan", "be the plan's hash", plan)
        require(type(rounds) is int and rounds >= 1, "rounds", "be a whole number, at least 1", rounds)
        named = [(cost.adversary, cost.unit, cost.neighbours) for cost in costs]
        require(costs and len(set(named)) == len(named), "costs", "state one cost a question, at least one", named)
        payload = {
            "plan": plan,
            "rounds": rounds,
            "costs": [cost.written() for cost in costs],
            "mechanism": mechanism,
            "extra": extra or {},
        }
        with self._writing():
            entries = store.everything(self._connection)  # broken books take no more charges
            story = [entry for entry in entries if entry.run == run]
            if story:
                return _charged(story, plan)
            news = tightened(_caps(entries), caps)
            check_caps((_caps(entries) | {cap.adversary: cap for cap in news}).values(), _costs(entries), costs)
            for cap in news:
                self._record_cap(cap, "stated by a study", at)
            return self._append(run, 0, "charge", payload, at)

    def progress(
        self, run: str, reached: int, payload: Mapping[str, Any] | None = None, *, at: str | None = None
    ) -> Entry:
        """Record that a run has reached a round; recording the same again changes nothing."""
        with self._writing():
            last = self._rounds(run)
            right = type(reached) is int and 1 <= reached <= last
            require(right, "reached", f"lie between 1 and {last}, the rounds that were charged", reached)
            return self._once(run, reached, "progress", payload or {}, at)

    def release(self, run: str, model: str, *, also: Sequence[str] = (), at: str | None = None) -> Entry:
        """Record what is about to be released: ``model``, the SHA-256 of the model's file, and what else goes out.

        One charge, one output: the same model again changes nothing, another is refused.
        """
        require(isinstance(model, str) and HASH.fullmatch(model), "model", "be a SHA-256 in hexadecimal", model)
        with self._writing():
            return self._once(run, self._rounds(run) + 1, "release", {"model": model, "also": list(also)}, at)

    def failed(self, run: str, reason: Reason, *, at: str | None = None) -> Entry:
        """Record that a run ended without a release; its cost stays."""
        require(reason in get_args(Reason), "reason", f"be one of {', '.join(get_args(Reason))}", reason)
        with self._writing():
            return self._once(run, self._rounds(run) + 1, "failed", {"reason": reason}, at)

    def set_cap(self, cap: Cap, reason: str, *, at: str | None = None) -> Entry:
        """Set a cap on purpose, also a higher one, and say why: both stay in the books for all to see."""
        require(isinstance(reason, str) and reason.strip() != "", "reason", "say why the cap changes", reason)
        with self._writing():
            store.everything(self._connection)
            return self._record_cap(cap, reason, at)

    def spent(self, adversary: Adversary, unit: Unit = "record", neighbours: Neighbours = "replace-one") -> Cost:
        """What all charged runs cost together against this observer, rounded up."""
        return total(_costs(self.entries()), adversary, unit, neighbours)

    def caps(self) -> tuple[Cap, ...]:
        """The caps that hold now."""
        return tuple(_caps(self.entries()).values())

    def entries(self, run: str | None = None) -> list[Entry]:
        """All entries (the whole chain checked), or one run's."""
        with self._reading():
            return store.everything(self._connection) if run is None else store.of_run(self._connection, run)

    def verify(self) -> int:
        """How many entries there are, all in order; :class:`LedgerBroken` names the first that is not."""
        return len(self.entries())

    def remembers(self, export: Export) -> bool:
        """Whether the books still hold all that an export showed: false after a roll-back to an older copy."""
        entries = self.entries()
        return export.length <= len(entries) and entries[export.length - 1].hash == export.head

    def export(self, run: str) -> bytes:
        """The publishable record of one run; never the key or the fingerprint. The caller writes it to a file."""
        check_run(run)
        return write_export(run, self.entries())

    def _once(self, run: str, round_: int, kind: Kind, payload: Mapping[str, Any], at: str | None) -> Entry:
        """Append, unless this very thing is recorded already."""
        old = store.at_round(self._connection, run, round_)
        if old is not None and (old.kind, dict(old.payload)) == (kind, plain("payload", payload)):
            return old
        last = store.last_of(self._connection, run)
        if last is not None and last.round >= round_:
            raise BadValue(
                f"Run {run} must go forward: its {last.kind} of round {last.round} is in the ledger, and {kind} of "
                f"round {round_} now says something else. Give another run name to run again."
            )
        return self._append(run, round_, kind, payload, at)

    def _rounds(self, run: str) -> int:
        """How many rounds were charged."""
        check_run(run)
        charge = store.at_round(self._connection, run, 0)
        if charge is None:
            raise BadValue(f"Run {run} must be charged before anything else is recorded of it.")
        return int(charge.payload["rounds"])

    def _record_cap(self, cap: Cap, reason: str, at: str | None) -> Entry:
        count = len(store.of_run(self._connection, ALL_RUNS))
        payload = {
            "adversary": cap.adversary,
            "unit": cap.unit,
            "neighbours": cap.neighbours,
            "epsilon": cap.epsilon,
            "delta": cap.delta,
            "reason": reason,
        }
        return self._append(ALL_RUNS, count, "cap", payload, at)

    def _append(self, run: str, round_: int, kind: Kind, payload: Mapping[str, Any], at: str | None) -> Entry:
        sequence, previous = store.head(self._connection)
        entry = Entry(
            sequence=sequence + 1, previous=previous, run=run, round=round_, kind=kind, payload=payload, at=at
        )
        store.append(self._connection, entry, canonical(dict(entry.payload)))
        return entry

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._check_process()
        with store.plainly(self.path), store.transaction(self._connection, writing=False):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._check_process()
        with store.plainly(self.path), store.transaction(self._connection, writing=True):
            yield

    def _check_process(self) -> None:
        """SQLite's locks are lost across a fork, and with them the guarantee that one writer is alone."""
        if os.getpid() != self._process:
            raise FedveilError(f"The ledger {self.path} was opened by another process; open it again in this one.")


def _charged(story: Sequence[Entry], plan: str) -> Entry:
    first, last = story[0], story[-1]
    known = first.payload["plan"]
    hint = "Give another run name."
    require(known == plan, f"The plan of run {first.run}", f"be the one that was charged, {known}", plan, hint)
    require(last.kind != "failed", f"Run {first.run}", "be open", "a run that ended without a release", hint)
    return first


def _costs(entries: Sequence[Entry]) -> list[list[Cost]]:
    return [[Cost.read(cost) for cost in e.payload["costs"]] for e in entries if e.kind == "charge"]


def _caps(entries: Sequence[Entry]) -> dict[Adversary, Cap]:
    """The last cap of every observer."""
    found: dict[Adversary, Cap] = {}
    for entry in entries:
        if entry.kind == "cap":
            cap = Cap(**{key: value for key, value in entry.payload.items() if key != "reason"})
            found[cap.adversary] = cap
    return found

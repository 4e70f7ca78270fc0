"""The ledger of one data set: charge before anything is computed, record before anything is released.

Order of a run: ``charge`` (committed), rounds with ``progress``, ``release`` (committed), only then the model's file. A
crash at any point leaves a charge without an output, never an output without a charge. Payloads are published with the
run's export, so they may hold nothing that was computed from records, except what the charge covers.

References:
    [RRUV16] Rogers, Roth, Ullman, Vadhan. Privacy Odometers and Filters: Pay-as-you-Go Composition. NeurIPS 2016.
    [FZ21] Feldman, Zrnic. Individual Privacy Accounting via a Renyi Filter. NeurIPS 2021.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, final, get_args

import numpy as np
import scipy

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.ledger import store
from fedveil.ledger.budget import Cap, CapExceeded, Cost, check_caps, tightened, total
from fedveil.ledger.costs import Charged, Question, charged
from fedveil.ledger.entry import (
    ALL_RUNS,
    GENESIS,
    HASH,
    Entry,
    Export,
    Kind,
    LedgerBroken,
    canonical,
    check_run,
    plain,
    write_export,
)
from fedveil.ledger.store import Head, head_file, keep_head, read_head
from fedveil.privacy.guarantee import Adversary, Neighbours, Unit
from fedveil.theory.loss import FiniteLaw, LossLaw

# Whether one more run fits under a cap when every run may be chosen after seeing what the earlier ones released.
#
# Two rules, each valid for runs chosen in any such way; which one a cap uses is settled when the cap is first stated
# and stays with it (``Cap.order``):
#
# - *sum* (no order): epsilons and deltas add up [RRUV16].
# - *Renyi divergence of one fixed order* [FZ21]: what each run is certified for gives a Renyi divergence $r$ of that
#   order and a chance $d$ of being outside of it. Both add up, whatever is chosen when. All runs together are
#   $(\varepsilon, \delta)$-private with
#   $\delta = \sum d + e^{(\alpha-1)(\sum r - \varepsilon)} \alpha^{-1} (1 - 1/\alpha)^{\alpha-1}$.
#
# Exact composition is smaller than both, and is no such rule: it needs runs that were fixed in advance [RRUV16].
# Theory page, with the proofs: adding-up-runs.md.

ORDERS: Final = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0)
OUTSIDE: Final = 0.1  # the share of a cap's delta that is reserved for the chances of being outside
_UP: Final = 1 + 1e-9  # relative amount by which sums are rounded up


@dataclass(frozen=True, slots=True)
class Spent:
    """The Renyi divergence of the cap's order, and the chance of being outside of it."""

    divergence: float
    outside: float

    def __add__(self, other: "Spent") -> "Spent":
        return Spent((self.divergence + other.divergence) * _UP, (self.outside + other.outside) * _UP)


def question_of(cap: Cap) -> Question:
    """Return the observer, unit and relation that the cap is about."""
    return cap.adversary, cap.unit, cap.neighbours


def spent_by(run: Charged, cap: Cap, order: float) -> Spent:
    """Return what one charge takes of a cap with this order; infinite if nothing finite is known."""
    uses = run.uses(question_of(cap))
    if uses is None:
        return Spent(math.inf, 0.0)
    result = Spent(0.0, 0.0)
    for law, times in uses:
        once = _divergence(law, order)
        result += Spent(once.divergence * times, once.outside * times)
    return result


def _divergence(law: LossLaw, order: float) -> Spent:
    """Return the divergence of a law without its infinite losses.

    The mass of the infinite losses is the chance of being outside.
    """
    if not isinstance(law, FiniteLaw):
        return Spent(math.inf, 0.0)
    losses, p = np.array(law.losses), np.array(law.p)
    outside = max(0.0, 1.0 - math.fsum(law.p)) + 1e-15  # a sum of floats may be off by this much
    seen = p > 0
    moment = float(scipy.special.logsumexp(np.log(p[seen]) + (order - 1) * losses[seen]))
    inside = order * math.log1p(-outside) if outside < 1 else -math.inf
    return Spent(max(0.0, (moment - inside) / (order - 1)) * _UP + 1e-12, outside)


def _log_conversion(order: float) -> float:
    return -math.log(order) + (order - 1) * math.log1p(-1 / order)


def budget_of(cap: Cap, order: float) -> Spent:
    """Return what all runs together may take of a cap with this order."""
    if cap.delta <= 0:
        return Spent(-math.inf, 0.0)
    room = math.log((1 - OUTSIDE) * cap.delta) - _log_conversion(order)
    return Spent(cap.epsilon + room / (order - 1), OUTSIDE * cap.delta)


def epsilon_of(spent: Spent, cap: Cap, order: float) -> float:
    """Return the epsilon, at the cap's delta, of everything taken so far.

    Infinite if the chances of being outside leave no delta.
    """
    budget = budget_of(cap, order)
    if not (spent.divergence < math.inf and spent.outside <= budget.outside):
        return math.inf
    return max(0.0, spent.divergence - budget.divergence + cap.epsilon)


def total_spent(runs: Iterable[Charged], cap: Cap, order: float) -> Spent:
    """Return the sum of what all charges take."""
    result = Spent(0.0, 0.0)
    for run in runs:
        result += spent_by(run, cap, order)
    return result


def _fits(spent: Spent, cap: Cap, order: float) -> bool:
    budget = budget_of(cap, order)
    return spent.divergence <= budget.divergence and spent.outside <= budget.outside


def settle_cap(cap: Cap, before: Sequence[Charged], asked: Charged) -> Cap:
    """Return a cap that is stated for the first time, with the rule that admits more runs like this one.

    The choice depends on the first run only, so it is made before anything is learned under the cap.
    """
    cost = asked.stated(question_of(cap))
    if not (0 < cost.epsilon < math.inf) or cap.delta <= 0 or not asked.plans:
        return cap
    added = min(math.floor(cap.epsilon / cost.epsilon * _UP), math.floor(cap.delta / cost.delta * _UP))
    most, best = float(added), None
    for order in ORDERS:
        once, budget = spent_by(asked, cap, order), budget_of(cap, order)
        count = min(budget.divergence / once.divergence, budget.outside / once.outside)
        if math.floor(count) > added and count > most:
            most, best = count, order
    if best is not None and _fits(total_spent([*before, asked], cap, best), cap, best):
        return replace(cap, order=best)
    return cap


def check(caps: Iterable[Cap], before: Sequence[Charged], asked: Charged) -> None:
    """Raise :class:`CapExceeded` unless every cap still holds with the new run."""
    for cap in caps:
        if cap.order is None:
            check_caps([cap], [run.costs for run in before], asked.costs)
            continue
        spent = total_spent(before, cap, cap.order)
        after = spent + spent_by(asked, cap, cap.order)
        if not _fits(after, cap, cap.order):
            then = epsilon_of(after, cap, cap.order)
            raise CapExceeded(cap, _as_cost(spent, cap), asked.stated(question_of(cap)), then)


def _as_cost(spent: Spent, cap: Cap) -> Cost:
    epsilon = 0.0 if spent.divergence == 0 else epsilon_of(spent, cap, cap.order or ORDERS[0])
    delta = 0.0 if spent.divergence == 0 else cap.delta
    return Cost(adversary=cap.adversary, unit=cap.unit, neighbours=cap.neighbours, epsilon=epsilon, delta=delta)


Fingerprint = Callable[[bytes], str]  # fingerprint of the data, under the books' own key


def keyed_content(key: bytes, content: bytes) -> str:
    """Return the digest of a source's content under the books' own key, in which nobody can test guesses."""
    return hashlib.blake2b(content, key=key, digest_size=32, person=b"fedveil content").hexdigest()


Reason = Literal["stopped", "error"]  # a closed list, because the text of an error could contain values of records


@final
class Ledger:
    """The open books of one data set; any number of processes can share them, each with its own ``Ledger.open``."""

    def __init__(
        self,
        path: Path,
        fingerprint: Fingerprint | None,
        patience: float,
        *,
        accept: bool,
        content: bytes | None = None,
    ) -> None:
        """Open existing books; use :meth:`open` or :meth:`look`."""
        self.path = path
        self._process = os.getpid()
        with store.plainly(path):
            kept = read_head(path)  # read before the entries, of which there can only be more later
            self._connection = store.connect(path, patience)
        try:
            with store.plainly(path):
                form, key, known = store.identity(self._connection)
            hint = "It was written by another version of fedveil."
            require(form == store.FORMAT, f"The ledger {path}", f"have format {store.FORMAT}", form, hint)
            keyed = None if content is None else keyed_content(key, content)
            same = keyed is not None and store.knows_content(self._connection, keyed)
            if fingerprint is not None and not same and fingerprint(key) != known:
                raise BadValue(
                    f"The ledger {path} must belong to these data, and it was opened for others. Give the rows it was "
                    "opened with, all of them, or name another place for the books of other rows: [books] ledger."
                )
            self._check_head(kept, accept=accept)
            if keyed is not None and not same:
                with self._writing():
                    store.remember_content(self._connection, keyed)
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def open(
        cls,
        path: Path,
        fingerprint: Fingerprint,
        *,
        content: bytes | None = None,
        urandom: Callable[[int], bytes] = os.urandom,
        patience: float = 60.0,
    ) -> Self:
        """Open the books of the data that ``fingerprint`` (keyed) describes; make them if there are none.

        ``content``: a digest of the source's bytes; books that met it before belong to these data, however their rows
        are read now. ``patience``: seconds to wait for another process that is writing.
        """
        path = Path(path)
        with store.plainly(path):
            new = not path.exists() and not path.is_symlink()
            left = read_head(path) if new else None
        if left is not None and left.sequence > 0 and not path.exists():  # and no other process has just created it
            why = f"the file {path} is gone, and {head_file(path).name} tells of {left.sequence} entries; bring it back"
            raise LedgerBroken(0, why)
        if new:
            store.create(path, fingerprint, urandom)
        return cls(path, fingerprint, patience, accept=False, content=content)

    @classmethod
    def look(cls, path: Path, *, accept_head: bool = False, patience: float = 60.0) -> Self:
        """Open existing books without their data: to read what was spent, or to set a cap.

        ``accept_head``: continue if the head beside the books is missing, after checking the whole chain.
        """
        path = Path(path)
        require(path.is_file(), "The ledger", "be a file", str(path))
        return cls(path, None, patience, accept=accept_head)

    def _check_head(self, kept: Head | None, *, accept: bool) -> None:
        """Refuse books that lack the entry recorded as last in the head file; write the first head of new books.

        ``accept``: write a head for books that have lost theirs.
        """
        with self._reading():
            last = Head(*store.head(self._connection))
            found = GENESIS if kept is None or kept.sequence == 0 else store.hash_at(self._connection, kept.sequence)
        with store.plainly(self.path):
            # A head is written before the first entry, so books with entries have one; it may just have been created.
            again = kept if kept is not None or last.sequence == 0 else read_head(self.path)
        if kept is not None and found != kept.hash:
            raise LedgerBroken(
                kept.sequence,
                f"it was the last when {head_file(self.path).name} was written, and {self.path.name}, with "
                f"{last.sequence} entries, does not hold it. Entries were lost, perhaps with {self.path.name}-wal: "
                "bring that file back, or a copy of the books that holds them",
            )
        if again is None:
            if last.sequence > 0 and not accept:
                raise LedgerBroken(
                    0,
                    f"{head_file(self.path).name} is missing beside {self.path.name}, so nobody can tell whether "
                    "entries were lost. Bring it back; or, if you know that none were, run: fedveil ledger "
                    f"{self.path} --accept-head",
                )
            self.entries()  # checks the whole chain
            self._keep_head(last)

    def _keep_head(self, head: Head) -> None:
        with store.plainly(self.path):
            keep_head(self.path, head)

    def close(self) -> None:
        """Close the file; a forked child leaves its parent's connection open."""
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
        beside: Sequence["Ledger"] = (),
    ) -> Entry:
        """Charge the whole cost of a run to the budget; the charge is on the disk when this returns.

        ``plan`` is the hash of the plan, ``mechanism`` the text from which the costs can be recomputed. Charging the
        same run and plan again (a resumed run) returns the existing entry and costs nothing; another plan is refused.
        New or lower ``caps`` are recorded first. Raises :class:`CapExceeded`, with nothing written, if a cap would be
        exceeded. ``beside``: other ledgers that are charged the same, under their own caps; if one of them refuses,
        none is charged, and after a crash between them the same charge again completes it.
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
        asked = Charged.read(payload)
        books = (self, *beside)
        for ledger in books:
            if caps or ledger.caps():
                ledger._warm(asked, caps if ledger is self else ())
        with ExitStack() as stack:
            # Everybody locks in the same order, so no two processes wait for each other.
            for ledger in sorted(books, key=lambda one: one.path.resolve()):
                stack.enter_context(ledger._writing())
            # All agree before one is written to. The others have caps of their own.
            agreed = [ledger._agreed(run, plan, asked, caps if ledger is self else ()) for ledger in books]
            done = [ledger._charge(run, payload, at, *found) for ledger, found in zip(books, agreed, strict=True)]
        return done[0]

    def _agreed(self, run: str, plan: str, asked: Charged, caps: Sequence[Cap]) -> tuple[Entry | None, list[Cap]]:
        """Return the charge of the run that is in these books, or the caps to record first; refuse one above a cap."""
        entries = store.everything(self._connection)  # checks the chain: broken books accept no more charges
        story = [entry for entry in entries if entry.run == run]
        if story:
            return _charged(story, plan), []
        before, known = charged(entries), _caps(entries)
        news = [cap if cap.adversary in known else settle_cap(cap, before, asked) for cap in tightened(known, caps)]
        check((known | {cap.adversary: cap for cap in news}).values(), before, asked)
        return None, news

    def _charge(
        self, run: str, payload: Mapping[str, Any], at: str | None, old: Entry | None, caps: Sequence[Cap]
    ) -> Entry:
        if old is not None:
            return old
        for cap in caps:
            self._record_cap(cap, "stated by a study", at)
        return self._append(run, 0, "charge", payload, at)

    def _warm(self, asked: Charged, caps: Sequence[Cap]) -> None:
        """Compute and cache the curves that the caps need, before other processes have to wait for this writer."""
        entries = self.entries()
        for cap in {*caps, *_caps(entries).values()}:
            for one in (*charged(entries), asked):
                one.uses(question_of(cap))

    def progress(
        self, run: str, reached: int, payload: Mapping[str, Any] | None = None, *, at: str | None = None
    ) -> Entry:
        """Record that a run has reached a round; recording it again has no effect."""
        with self._writing():
            last = self._rounds(run)
            right = type(reached) is int and 1 <= reached <= last
            require(right, "reached", f"lie between 1 and {last}, the rounds that were charged", reached)
            return self._once(run, reached, "progress", payload or {}, at)

    def release(
        self,
        run: str,
        model: str,
        *,
        also: Sequence[str] = (),
        expires: Mapping[str, int] | None = None,
        at: str | None = None,
    ) -> Entry:
        """Record what is about to be released.

        ``model`` is the SHA-256 of the model's file, ``also`` what else is published, ``expires`` how many of
        the records behind it expire in each month, by their public dates.

        One charge pays for one output: recording the same model again has no effect, another model is refused.
        """
        require(isinstance(model, str) and HASH.fullmatch(model), "model", "be a SHA-256 in hexadecimal", model)
        payload: dict[str, Any] = {"model": model, "also": list(also)}
        payload |= {"expires": dict(expires)} if expires else {}
        with self._writing():
            last = self._rounds(run) + 1
            old = store.at_round(self._connection, run, last)
            if old is not None and old.kind == "release" and {key: old.payload.get(key) for key in payload} == payload:
                return old  # the total stays what it was: others may have been charged since
            return self._once(run, last, "release", payload | _total(store.everything(self._connection), run), at)

    def failed(self, run: str, reason: Reason, *, at: str | None = None) -> Entry:
        """Record that a run ended without a release; its cost stays."""
        require(reason in get_args(Reason), "reason", f"be one of {', '.join(get_args(Reason))}", reason)
        with self._writing():
            return self._once(run, self._rounds(run) + 1, "failed", {"reason": reason}, at)

    def set_cap(self, cap: Cap, reason: str, *, at: str | None = None) -> Entry:
        """Set a cap on purpose, even a higher one, and state the reason; both stay visible in the books.

        An existing cap keeps its rule of adding up; a new one has the rule that it states.
        """
        require(isinstance(reason, str) and reason.strip() != "", "reason", "say why the cap changes", reason)
        with self._writing():
            old = _caps(store.everything(self._connection)).get(cap.adversary)
            return self._record_cap(cap if old is None else replace(cap, order=old.order), reason, at)

    def spent(self, adversary: Adversary, unit: Unit = "record", neighbours: Neighbours = "replace-one") -> Cost:
        """Return the total cost of all charged runs against this observer: epsilons and deltas added, rounded up."""
        return total([run.costs for run in charged(self.entries())], adversary, unit, neighbours)

    def caps(self) -> tuple[Cap, ...]:
        """Return the caps that are in force."""
        return tuple(_caps(self.entries()).values())

    def entries(self, run: str | None = None) -> list[Entry]:
        """Return all entries, after checking the whole chain, or the entries of one run."""
        with self._reading():
            return store.everything(self._connection) if run is None else store.of_run(self._connection, run)

    def verify(self) -> int:
        """Return the number of entries, all checked; :class:`LedgerBroken` names the first wrong one."""
        return len(self.entries())

    def remembers(self, export: Export) -> bool:
        """Return whether the books still hold everything that an export showed; false after restoring an older copy."""
        entries = self.entries()
        return export.length <= len(entries) and entries[export.length - 1].hash == export.head

    def export(self, run: str) -> bytes:
        """Return the publishable record of one run, without the key and the fingerprint.

        The caller writes it to a file.
        """
        check_run(run)
        return write_export(run, self.entries())

    def _once(self, run: str, round_: int, kind: Kind, payload: Mapping[str, Any], at: str | None) -> Entry:
        """Append an entry, unless the same one is already recorded."""
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
        """Return how many rounds were charged."""
        check_run(run)
        charge = store.at_round(self._connection, run, 0)
        if charge is None:
            raise BadValue(f"Run {run} must be charged before anything else is recorded of it.")
        return int(charge.payload["rounds"])

    def _record_cap(self, cap: Cap, reason: str, at: str | None) -> Entry:
        count = len(store.of_run(self._connection, ALL_RUNS))
        payload: dict[str, Any] = {
            "adversary": cap.adversary,
            "unit": cap.unit,
            "neighbours": cap.neighbours,
            "epsilon": cap.epsilon,
            "delta": cap.delta,
            "order": cap.order,
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
            before = store.head(self._connection)
            yield
            after = store.head(self._connection)
        if after != before:  # the transaction was committed
            self._keep_head(Head(*after))

    def _check_process(self) -> None:
        """Refuse to work in a forked process.

        SQLite's locks do not survive a fork, so two writers could run at once.
        """
        if os.getpid() != self._process:
            raise FedveilError(f"The ledger {self.path} was opened by another process; open it again in this one.")


def _charged(story: Sequence[Entry], plan: str) -> Entry:
    first, last = story[0], story[-1]
    known = first.payload["plan"]
    hint = "Give another run name."
    require(known == plan, f"The plan of run {first.run}", f"be the one that was charged, {known}", plan, hint)
    require(last.kind != "failed", f"Run {first.run}", "be open", "a run that ended without a release", hint)
    return first


def _total(entries: Sequence[Entry], run: str) -> dict[str, Any]:
    """Return what all charges so far cost together, by the questions of this run."""
    charges = {entry.run: Charged.read(entry.payload) for entry in entries if entry.kind == "charge"}
    every = [one.costs for one in charges.values()]
    costs = [total(every, own.adversary, own.unit, own.neighbours) for own in charges[run].costs]
    return {"total": {"runs": len(charges), "costs": [cost.written() for cost in costs]}}


def _caps(entries: Sequence[Entry]) -> dict[Adversary, Cap]:
    """Return the latest cap of every observer."""
    result: dict[Adversary, Cap] = {}
    for entry in entries:
        if entry.kind == "cap":
            cap = Cap(**{key: value for key, value in entry.payload.items() if key != "reason"})
            result[cap.adversary] = cap
    return result

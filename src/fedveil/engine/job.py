"""The one order of every job that is charged, in a folder: a run, a search, a profile, a generator, an evaluation.

Plan and key are written; the ledger is charged; sums are measured or a model is trained; the release is recorded; its
files appear, the job's record last; the secrets are destroyed; certificate and report are written. Each step is on the
disk before the next one begins, and doing a step again gives the same bytes. So a job that was killed at any moment is
finished by the same command with ``--resume``: one charge, one release, the same noise.

Everything that must stay hidden is in ``private``; the rest may be published.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from fedveil.core.errors import BadValue, FedveilError, Interrupted, require, why
from fedveil.core.files import public_folder
from fedveil.core.tables import first_difference
from fedveil.engine.ending import LAST, destroy_secrets, end_release, has_released
from fedveil.engine.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.engine.sums import check_ready
from fedveil.engine.system import System
from fedveil.ledger.books import Ledger
from fedveil.ledger.entry import Entry
from fedveil.ledger.place import POINTER, Sited, caps_of, open_books
from fedveil.ledger.transaction import Transaction, moment
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.planning.plan import AnyPlan, charged_text

PLAN = "plan.toml"
RELEASED = "released"  # in the private folder of an aggregator: what sites are still to be sent
Fingerprint = Callable[[bytes], str]


@contextmanager
def work_in(folder: Path) -> Iterator[None]:
    """Make the folder of a job and be alone in it; if the job is stopped, say how it goes on."""
    try:
        public_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {why(error)}.") from error
    with sole_use(private_folder(folder / "private")):
        try:
            yield
        except KeyboardInterrupt as error:
            begun = (folder / PLAN).exists()  # only a job whose plan is on the disk has begun
            went = "Stopped; go on with the same command and --resume."
            never = "Stopped before anything was charged; begin again with the same command."
            raise Interrupted(went if begun else never) from error


def begun_before(folder: Path, resume: bool) -> bool:
    """Return whether the folder holds a job to go on with; refuse a folder with one where none is to be resumed.

    A job that was killed before its plan was written has charged nothing: resuming it begins it.
    """
    begun, hint = (folder / PLAN).exists() or (folder / LAST).exists(), "Name another folder, or go on with --resume."
    require(resume or not begun, "--out", "name a folder without results in it", str(folder), hint)
    return begun


def settle_text(folder: Path, text: str, begun: bool, what: str) -> None:
    """Write the plan of a job that begins; refuse to go on with a job whose plan was another.

    A plan follows from public numbers alone, so a job that is planned again has the same text. ``what``: how messages
    call that which was planned.
    """
    if not begun:
        write_atomically(folder / PLAN, text.encode(), mode=PUBLIC)
        return
    try:
        before = charged_text((folder / PLAN).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValue(
            f"--resume must name a folder with a run in it, and {folder / PLAN} cannot be read: {why(error)}."
        ) from error
    if before == text:
        return
    key, was, now = first_difference(before, text) or (PLAN, "another text", "this one")
    raise BadValue(
        f"The {what} must be as it was when it began: {key} was {_shown(was)} and is {_shown(now)} now. Undo the "
        "change, or name another folder."
    )


def _shown(value: object) -> str:
    text = "left out" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nothing(key: bytes) -> str:
    """The fingerprint of no records."""
    return ""


def settle_key(
    folder: Path,
    context: str,
    fingerprint: Fingerprint,
    system: System,
    *,
    held: Fingerprint = _nothing,
    seed: int | None = None,
) -> tuple[str, Entropy]:
    """Return the name of the job in the ledger and its randomness; drawn once, kept privately until the release.

    ``context``: what the noise belongs to, beginning with the hash of the plan. ``fingerprint``: of all records that
    the noise will meet, and ``held``: of those held out, which must be the same whenever the job goes on. ``seed``: all
    randomness comes from it, and nothing is drawn.
    """
    path = folder / "private" / "key"
    fixed = None if seed is None else sha256(f"{context} {seed}".encode()).digest()[:16] + bytes(KEY_BYTES)
    content = path.read_bytes() if path.exists() else fixed or system.random(16 + KEY_BYTES)
    key = content[16 : 16 + KEY_BYTES]
    prints = fingerprint(key), held(key)
    marks = [sha256(one.encode()).digest() for one in prints]
    if not path.exists():
        content += b"".join(marks)
        write_atomically(path, content)
    _check_key(content, fixed, marks, path)
    if seed is not None:
        return content[:16].hex(), Entropy.from_seed(seed)
    # The keyed fingerprints of the data are part of the context: the same noise never meets other data.
    return content[:16].hex(), Entropy.from_key(key, context=context + "".join(prints))


def _check_key(content: bytes, fixed: bytes | None, marks: Sequence[bytes], path: Path) -> None:
    """Refuse to go on with another seed, or with other records, than a job began with."""
    start, each = 16 + KEY_BYTES, sha256().digest_size
    size = start + each * len(marks)
    require(len(content) == size, str(path), f"hold {size} bytes", len(content))
    hint = "Bring it back, or begin in another folder."
    require(fixed is None or content[:start] == fixed, "study.seed", "be as it was when the run began", "another", hint)
    hint = "Bring them back, or begin in another folder."
    for place, name in enumerate(("The data", "[data.held_out]")):
        same = content[start + each * place :][:each] == marks[place]
        require(same, name, "hold the rows that the run began with", "other rows", hint)


@contextmanager
def _alone(ledger: Ledger) -> Iterator[tuple[Ledger, ...]]:
    """No other ledger is charged."""
    yield ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """``output``: what the ledger names by its hash; ``files``: what is published, in this order.

    ``also``: the names of further releases. ``timed``: whether the ledger may say when. ``expires``: how many of the
    records behind it expire in each month, which the ledger keeps.
    """

    output: bytes
    files: Mapping[str, bytes]
    also: Sequence[str] = ()
    timed: bool = True
    expires: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Started:
    """A job whose plan and key are settled: its name in the ledger, its randomness, its folder; resumed or not."""

    name: str
    entropy: Entropy
    folder: Path
    resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Private files that the noise of a job depends on; the charge states their digests.

    ``check`` looks at the charge of a resumed job.
    """

    files: tuple[str, ...] = ()
    digests: Callable[[], Mapping[str, str]] = dict
    check: Callable[[Entry], None] = lambda entry: None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What is carried out in a folder: a plan, the ledger of whose source is charged, and how its stages run.

    ``what``: how messages call it; ``output``: the file that is released. ``fingerprint``: of the source's rows, as
    they were read; ``records``: of what the noise will meet, and ``held``: of held-out records that decide something
    which is released. ``notes``: what whoever starts it should know before the charge. ``beside`` opens the ledgers of
    other data, which are charged alike. ``expires``: as in :class:`Release`.
    """

    what: str
    plan: AnyPlan
    output: str
    sited: Sited
    fingerprint: Fingerprint
    records: Fingerprint
    stages: Callable[[Started], Release]
    held: Fingerprint = _nothing
    seed: int | None = None
    notes: tuple[str, ...] = ()
    expires: Mapping[str, int] = field(default_factory=dict)
    bound: Bound = Bound()
    beside: Callable[[Ledger], AbstractContextManager[tuple[Ledger, ...]]] = _alone


def conduct(make: Callable[[], Job], folder: Path, *, resume: bool = False, system: System) -> None:
    """Carry out a job in ``folder``; what may be published is on the disk when this returns."""
    with work_in(folder):
        begun = begun_before(folder, resume)
        job = make()
        if not begun:
            check_ready(job.plan)
        settle_text(folder, job.plan.text(), begun, job.what)
        if has_released(folder):
            end_release(folder)
            return
        _check_open(job, folder)
        context = job.plan.hash + "".join(job.bound.digests().values())
        name, entropy = settle_key(folder, context, job.records, system, held=job.held, seed=job.seed)
        for text in () if begun else job.notes:
            system.note(text)
        system.tell("charging the ledger")
        started = Started(name=name, entropy=entropy, folder=folder, resumed=begun)
        carried_out(
            charged(job, name, folder, system, begun=begun),
            lambda: replace(job.stages(started), expires=job.expires),
            folder,
        )


def _check_open(job: Job, folder: Path) -> None:
    """Refuse to go on with a job whose key is gone although its release is not whole."""
    gone = job.seed is None and (folder / job.output).exists() and not (folder / "private" / "key").exists()
    hint = f"It has released {job.output}, and its key is gone. Name another folder."
    require(not gone, "--resume", "name a run that can go on", str(folder), hint)


@contextmanager
def charged(job: "Job", name: str, folder: Path, system: System, *, begun: bool) -> Iterator[Transaction]:
    """Open the ledger of the job's source and charge the whole plan; a job that is refused leaves nothing behind.

    ``begun``: the job is resumed. Several ledgers are charged alike: all or none.
    """
    private = folder / "private"
    with ExitStack() as stack:
        try:
            opened = open_books(
                job.sited, private / "ledger.sqlite", job.fingerprint, begun=begun, urandom=system.random
            )
            ledger = stack.enter_context(opened)
            write_atomically(private / POINTER, f"{ledger.path.absolute()}\n".encode())
            others = stack.enter_context(job.beside(ledger))
            transaction = Transaction(ledger, name, moment(job.plan, system.now()), others)
            caps, extra = caps_of(job.sited.books, job.plan.target), dict(job.bound.digests()) or None
            persons = None if job.sited.source is None else job.sited.source.person_column
            job.bound.check(transaction.charge(job.plan, caps=caps, extra=extra, persons=persons))
        except FedveilError:
            for path in (
                () if begun else (folder / PLAN, *(private / one for one in ("key", POINTER, *job.bound.files)))
            ):
                path.unlink(missing_ok=True)
            raise
        yield transaction


def carried_out(
    opened: AbstractContextManager[Transaction],
    run: Callable[[], Release],
    folder: Path,
    end: Callable[[bytes], None] | None = None,
) -> Release:
    """The order of every job: charge, run the stages, record the release, publish it, destroy the secrets.

    ``opened`` charges the whole plan when it is entered. ``run`` carries the stages out and returns what is released.
    ``end``: what a job across sites does instead of destroying the secrets here alone; it is given the output first,
    and called when everything is published.
    """
    with opened as books:
        release = run()
        (books if release.timed else replace(books, at=None)).release(
            release.output, also=release.also, expires=release.expires
        )
        for name, data in release.files.items():
            write_atomically(folder / name, data, mode=PUBLIC)
        if end is not None:
            write_atomically(folder / "private" / RELEASED, release.output)  # kept until every site has received it
        write_atomically(folder / LAST, books.export(), mode=PUBLIC)
        if end is None:
            destroy_secrets(folder)
        else:
            end(release.output)
    return release

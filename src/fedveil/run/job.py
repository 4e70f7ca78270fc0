"""The one order of every job that is charged, in a folder: a run, a search, a profile, a generator, an evaluation.

Plan and key are written; the ledger is charged; sums are measured or a model is trained; the release is recorded; its
files appear, the job's record last; the secrets are destroyed; certificate and report are written. Each step is on the
disk before the next one begins, and doing a step again gives the same bytes. So a job that was killed at any moment is
finished by the same command with ``--resume``: one charge, one release, the same noise.

Everything that must stay hidden is in ``private``; the rest may be published.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedveil.checks import require
from fedveil.errors import BadValue, FedveilError, Interrupted, why
from fedveil.files import public_folder
from fedveil.ledger import Entry, Ledger
from fedveil.ledger.costs import Chargeable
from fedveil.ledger.place import POINTER, Sited, open_books
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.run.ending import LAST, destroy_secrets
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.system import System

PLAN = "plan.toml"
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


def _nothing(key: bytes) -> str:
    """The fingerprint of no records."""
    return ""


def settle_key(
    folder: Path, plan: str, fingerprint: Fingerprint, system: System, *, held: Fingerprint = _nothing
) -> tuple[str, Entropy]:
    """Return the name of the job in the ledger and its randomness; drawn once, kept privately until the release.

    ``plan``: its hash. ``fingerprint``: of all records that the noise will meet, and ``held``: of those held out, which
    must be the same whenever the job goes on.
    """
    path = folder / "private" / "key"
    if not path.exists():
        drawn = system.random(16 + KEY_BYTES)
        write_atomically(path, drawn + _bound(held, drawn[16:]))
    content = path.read_bytes()
    size = 16 + KEY_BYTES + sha256().digest_size
    require(len(content) == size, str(path), f"hold {size} bytes", len(content))
    key, bound = content[16 : 16 + KEY_BYTES], content[16 + KEY_BYTES :]
    hint = "Bring them back, or begin in another folder."
    require(bound == _bound(held, key), "[data.held_out]", "hold the rows that the run began with", "other rows", hint)
    # The keyed fingerprints of the data are part of the context: the same noise never meets other data.
    return content[:16].hex(), Entropy.from_key(key, context=plan + fingerprint(key) + held(key))


def _bound(held: Fingerprint, key: bytes) -> bytes:
    return sha256(held(key).encode()).digest()


@contextmanager
def _alone(ledger: Ledger) -> Iterator[tuple[Ledger, ...]]:
    """No other ledger is charged."""
    yield ()


@contextmanager
def charged(
    job: Sited,
    plan: Chargeable,
    name: str,
    folder: Path,
    prints: tuple[Fingerprint, Fingerprint],
    system: System,
    *,
    begun: bool,
    extra: Mapping[str, Any] | None = None,
    check: Callable[[Entry], None] = lambda _: None,
    made: Sequence[str] = (),
    beside: Callable[[Ledger], AbstractContextManager[tuple[Ledger, ...]]] = _alone,
) -> Iterator[Transaction]:
    """Open the ledger of the job's source and charge the whole plan; a job that is refused leaves nothing behind.

    ``prints``: fingerprints of the source's rows as they were read, and as books of the first format have them.
    ``begun``: the job is resumed. ``extra``: what the charge states besides; ``check`` looks at the charge of a resumed
    job. ``made``: private files to be removed with plan and key if the charge is refused. ``beside`` opens the ledgers
    of other data, which are charged alike: all or none.
    """
    private = folder / "private"
    own, (fingerprint, older) = private / "ledger.sqlite", prints
    with ExitStack() as stack:
        try:
            opened = open_books(job, own, fingerprint, older, begun=begun, urandom=system.random)
            ledger = stack.enter_context(opened)
            write_atomically(private / POINTER, f"{ledger.path.absolute()}\n".encode())
            others = stack.enter_context(beside(ledger))
            transaction = Transaction(ledger, name, moment(plan, system.now()), others)
            check(transaction.charge(plan, caps=caps_of(job.books, plan.target), extra=extra))
        except FedveilError:
            for path in () if begun else (folder / PLAN, *(private / one for one in ("key", POINTER, *made))):
                path.unlink(missing_ok=True)
            raise
        yield transaction


def release(
    books: Transaction, folder: Path, output: bytes, files: Mapping[str, bytes], *, also: Sequence[str] = ()
) -> None:
    """Record what is released, then publish its files, then destroy the key and the hidden state.

    ``output``: what the ledger names by its hash; ``also``: the names of further releases.
    """
    books.release(output, also=also)
    for name, data in files.items():
        write_atomically(folder / name, data, mode=PUBLIC)
    write_atomically(folder / LAST, books.export(), mode=PUBLIC)
    destroy_secrets(folder)

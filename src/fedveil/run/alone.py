"""Carry out in a folder a job that measures with noise and trains nothing: charge, measure, record, release.

The key and the plan are written, the ledger is charged, the sums are measured, the release is recorded, and only then
does what was found appear. A job that was interrupted is finished by ``--resume``, with the same noise.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedveil.checks import require
from fedveil.data.spec import Source
from fedveil.errors import BadValue, FedveilError, why
from fedveil.files import public_folder
from fedveil.ledger.place import POINTER, open_books
from fedveil.ledger.transaction import Transaction, caps_of, moment
from fedveil.noise.entropy import KEY_BYTES, Entropy
from fedveil.prepare.alone import AlonePlan
from fedveil.run.ending import LAST, destroy_secrets, has_released
from fedveil.run.files import PUBLIC, private_folder, sole_use, write_atomically
from fedveil.run.system import System
from fedveil.study import Books

Fingerprint = Callable[[bytes], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is charged, in the books of which source, and the file that is released.

    ``what``: how messages call it. ``fingerprint``: of the source's rows, as they were read. ``cells``: of what is
    measured of them, where more than the rows decides it.
    """

    what: str
    file: str
    plan: AlonePlan
    source: Source
    base: Path
    books: Books
    fingerprint: Fingerprint
    cells: Fingerprint | None = None


def conduct_alone(
    job: Job, folder: Path, measure: Callable[[Entropy], bytes], *, resume: bool = False, system: System
) -> bytes:
    """Measure in ``folder`` and return what was found; what may be published is on the disk when this returns."""
    try:
        public_folder(folder)
    except OSError as error:
        raise BadValue(f"--out must name a folder that can be made: {why(error)}.") from error
    with sole_use(private_folder(folder / "private")):
        fresh = not has_released(folder)
        require(fresh, "--out", "name a folder without results in it", str(folder), "Name another folder.")
        _settle_plan(job, folder, resume)
        name, entropy = _settled_key(job, folder, system)
        with _charged(job, name, folder, resume, system) as transaction:
            content = measure(entropy)
            transaction.release(content)
            write_atomically(folder / job.file, content, mode=PUBLIC)
            write_atomically(folder / LAST, transaction.export(), mode=PUBLIC)
        destroy_secrets(folder)
        return content


def _settle_plan(job: Job, folder: Path, resume: bool) -> None:
    """Write the plan, which follows from public numbers alone: a job that is finished later has the same."""
    path = folder / "plan.toml"
    hint = "Name another folder, or go on with --resume."
    require(resume or not path.exists(), "--out", "name a folder without results in it", str(folder), hint)
    if resume and path.exists():
        same, hint = path.read_text(encoding="utf-8") == job.plan.text(), "Name another folder."
        require(same, f"The {job.what}", "be as it was when it began", job.plan.name, hint)
    write_atomically(path, job.plan.text().encode(), mode=PUBLIC)


def _settled_key(job: Job, folder: Path, system: System) -> tuple[str, Entropy]:
    """The name of the job in the books and its randomness, drawn once and kept privately until the release."""
    path = folder / "private" / "key"
    if not path.exists():
        write_atomically(path, system.random(16 + KEY_BYTES))
    content = path.read_bytes()
    require(len(content) == 16 + KEY_BYTES, str(path), f"hold {16 + KEY_BYTES} bytes", len(content))
    # The data's keyed fingerprint is part of the context: the same noise never meets other data.
    context = job.plan.hash + (job.cells or job.fingerprint)(content[16:])
    return content[:16].hex(), Entropy.from_key(content[16:], context=context)


@contextmanager
def _charged(job: Job, name: str, folder: Path, resume: bool, system: System) -> Iterator[Transaction]:
    """Charge the job in the books of its source; one that is refused leaves nothing behind."""
    own, prints = folder / "private" / "ledger.sqlite", (job.fingerprint, job.fingerprint)
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(open_books(job, own, *prints, begun=resume, urandom=system.random))
            write_atomically(folder / "private" / POINTER, f"{opened.path.absolute()}\n".encode())
            transaction = Transaction(opened, name, moment(job.plan, system.now()))
            transaction.charge(job.plan, caps=caps_of(job.books, job.plan.target))
        except FedveilError:
            for made in () if resume else ("plan.toml", "private/key", f"private/{POINTER}"):
                (folder / made).unlink(missing_ok=True)
            raise
        yield transaction

"""Carry out in a folder a job that measures with noise and trains nothing, in the order of every job (job.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedveil.checks import require
from fedveil.data.spec import Source
from fedveil.noise.entropy import Entropy
from fedveil.prepare.alone import AlonePlan
from fedveil.run.ending import end_release, has_released
from fedveil.run.files import PUBLIC, write_atomically
from fedveil.run.job import PLAN, Fingerprint, begun_before, charged, release, settle_key, work_in
from fedveil.run.system import System
from fedveil.study import Books


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
    with work_in(folder):
        begun = begun_before(folder, resume)
        _settle_plan(job, folder, begun)
        if has_released(folder):
            end_release(folder)
            return (folder / job.file).read_bytes()
        name, entropy = settle_key(folder, job.plan.hash, job.cells or job.fingerprint, system)
        prints = job.fingerprint, job.fingerprint
        with charged(job, job.plan, name, folder, prints, system, begun=begun) as books:
            content = measure(entropy)
            release(books, folder, content, {job.file: content})
        return content


def _settle_plan(job: Job, folder: Path, begun: bool) -> None:
    """Write the plan, which follows from public numbers alone: a job that is finished later has the same."""
    path, text = folder / PLAN, job.plan.text()
    if begun:
        same = path.exists() and path.read_text(encoding="utf-8") == text
        require(same, f"The {job.what}", "be as it was when it began", job.plan.name, "Name another folder.")
    else:
        write_atomically(path, text.encode(), mode=PUBLIC)

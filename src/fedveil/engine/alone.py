"""Carry out in a folder a job that measures with noise and trains nothing, in the order of every job (job.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedveil.data.spec import Source
from fedveil.engine.ending import end_release, has_released
from fedveil.engine.job import (
    Fingerprint,
    Release,
    begun_before,
    carried_out,
    charged,
    settle_key,
    settle_text,
    work_in,
)
from fedveil.engine.system import System
from fedveil.noise.entropy import Entropy
from fedveil.planning.study import Books
from fedveil.stages.prepare.alone import AlonePlan


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
        settle_text(folder, job.plan.text(), begun, job.what)
        if has_released(folder):
            end_release(folder)
            return (folder / job.file).read_bytes()
        name, entropy = settle_key(folder, job.plan.hash, job.cells or job.fingerprint, system)
        opened = charged(job, job.plan, name, folder, job.fingerprint, system, begun=begun)

        def run() -> Release:
            content = measure(entropy)
            return Release(output=content, files={job.file: content})

        return carried_out(opened, run, folder).output

"""A stage of noisy sums from a study: measured, charged, certified and released, here or at sites."""

from dataclasses import dataclass
from pathlib import Path

from fedveil.certificate.certify import MeasuredCertificate, certify_measured
from fedveil.engine.ending import check_unfinished
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.measured import conduct_stage, planned_measured
from fedveil.engine.system import System
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.measured import MeasuredJob, check_sizes
from fedveil.jobs.remote import How, at_deployment, at_trial, check_open
from fedveil.jobs.synthesis import Described, open_synthesis, read_synthesis
from fedveil.planning.study import Study
from fedveil.stages.measured.plan import Settings
from fedveil.stages.synthesise.table import table_of
from fedveil.version import __version__

ENDS = ("certificate.json",)  # what follows the release


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredResult:
    """What was released, and its certificate."""

    folder: Path
    content: bytes
    certificate: MeasuredCertificate


def measure(
    given: Described,
    stage: str,
    settings: Settings,
    out: str | Path,
    *,
    resume: bool = False,
    system: System | None = None,
) -> MeasuredResult:
    """Carry out a stage of noisy sums over a study's table in the folder ``out``, and certify it.

    ``stage``: package.file:name of its code, which must be allowed (``fedveil.allowing``).
    """
    folder, system = Path(out), system or System()
    if resume:
        check_unfinished(folder, ENDS)
    study, _, found = open_synthesis(given)
    system.tell("measuring with noise")
    conduct_stage(study, stage, settings, found, folder, resume=resume, system=system)
    return certify_result(folder)


def measure_on(
    given: str | Path, stage: str, settings: Settings, out: str | Path, on: str | Path, how: How | None = None
) -> MeasuredResult:
    """The same on a deployment, with this process as the aggregator; ``on`` is the aggregator's folder."""
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ENDS)
    study, _ = read_synthesis(given, data_given=True)
    with at_deployment(on, folder, how) as talk:
        return measure_at_sites(study, stage, settings, talk)


def measure_local(
    given: Described, stage: str, settings: Settings, out: str | Path, sites: int, how: How | None = None
) -> MeasuredResult:
    """The same with real processes of this machine as sites; their records are left in ``out``/sites."""
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ENDS)
    study, _, found = open_synthesis(given)
    check_sizes(planned_measured(study, stage, settings, table_of(found).all_columns, found.train.shape))
    with at_trial(study, found, folder, sites, how) as talk:
        return measure_at_sites(study, stage, settings, talk)


def measure_at_sites(study: Study, stage: str, settings: Settings, talk: Conversation) -> MeasuredResult:
    """Measure at the sites, and certify."""
    MeasuredJob(study=study, stage=stage, settings=settings, talk=talk).conduct()
    return certify_result(talk.folder)


def certify_result(folder: Path) -> MeasuredResult:
    """Certify what a stage released in a folder."""
    with sole_use(folder / "private"):
        certificate = certify_measured(folder, __version__)
        write_atomically(folder / ENDS[-1], certificate.text().encode(), mode=PUBLIC)
    return MeasuredResult(folder=folder, content=(folder / certificate.plan.file).read_bytes(), certificate=certificate)

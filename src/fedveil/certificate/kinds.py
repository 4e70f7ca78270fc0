"""Which certificate a folder's records are for: of a run, or of a job that trains nothing, by the kind of its plan."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from fedveil.certificate.alone import AloneCertificate, holds
from fedveil.certificate.certify import Certificate, certify
from fedveil.certificate.evaluation import certify_evaluation
from fedveil.certificate.measured import certify_measured
from fedveil.certificate.profile import certify_profile
from fedveil.certificate.synthesis import certify_synthesis
from fedveil.stages.evaluate.plan import EvaluationPlan
from fedveil.stages.measured.plan import MeasuredPlan
from fedveil.stages.prepare.alone import AlonePlan
from fedveil.stages.profile.plan import ProfilePlan
from fedveil.stages.synthesise.plan import SynthesisPlan

_ALONE: Final[Mapping[str, tuple[type[AlonePlan], Callable[[Path, str], AloneCertificate]]]] = {
    "a profile": (ProfilePlan, certify_profile),
    "a generator": (SynthesisPlan, certify_synthesis),
    "an evaluation": (EvaluationPlan, certify_evaluation),
    "noisy sums": (MeasuredPlan, certify_measured),
}


def kind_of(folder: Path) -> str | None:
    """Return what people call the job that trains nothing whose records a folder holds; None for a run."""
    return next((what for what, (plan, _) in _ALONE.items() if holds(folder, plan)), None)


def certify_alone(folder: Path, what: str, version: str) -> AloneCertificate:
    """Return the certificate of such a job; refuse if a record is missing or was altered."""
    return _ALONE[what][1](folder, version)


def certify_any(folder: Path, version: str) -> Certificate | AloneCertificate:
    """Return the certificate of whatever a folder holds the records of."""
    what = kind_of(folder)
    return certify(folder, version) if what is None else certify_alone(folder, what, version)

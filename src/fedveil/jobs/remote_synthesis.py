"""A generator of records that are at sites: on a deployment, or as a trial on real processes of this machine."""

from pathlib import Path

from fedveil.engine.measured import check_secret, planned_synthesis
from fedveil.federation.aggregator.conversation import Conversation
from fedveil.federation.aggregator.measured import Generation, check_sizes
from fedveil.jobs.remote import How, at_deployment, at_trial, check_open
from fedveil.jobs.synthesis import ENDS, Described, SynthesisResult, certify_generator, open_synthesis, read_synthesis
from fedveil.planning.study import Study
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.quality import check_rows
from fedveil.stages.synthesise.request import GeneratorRequest


def synthesise_on(
    study: str | Path, out: str | Path, on: str | Path, *, rows: int, how: How | None = None
) -> SynthesisResult:
    """Measure a generator on a deployment, with this process as the aggregator; ``on`` is the aggregator's folder."""
    check_rows(rows)
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ENDS)
    wanted, request = read_synthesis(study, data_given=True)
    check_secret(wanted)
    with at_deployment(on, folder, how) as talk:
        return _generated(wanted, request, talk, rows, how)


def synthesise_local(
    study: Described, out: str | Path, sites: int, *, rows: int, how: How | None = None
) -> SynthesisResult:
    """Measure a generator with real processes of this machine; the records of its sites are left in ``out``/sites."""
    check_rows(rows)
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ENDS)
    wanted, request, result = open_synthesis(study)
    check_secret(wanted)
    check_sizes(planned_synthesis(wanted, request, result))
    with at_trial(wanted, result, folder, sites, how) as talk:
        return _generated(wanted, request, talk, rows, how, result)


def _generated(
    study: Study, request: GeneratorRequest, talk: Conversation, rows: int, how: How, found: Unprepared | None = None
) -> SynthesisResult:
    """Measure a generator at the sites; certify it and draw rows."""
    generator = Generation(study=study, request=request, talk=talk).conduct()
    return certify_generator(generator, talk.folder, rows, how.seed, how.system, found, study.data.public)

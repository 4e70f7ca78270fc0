"""A generator of records that are at sites: on a deployment, or as a trial on real processes of this machine."""

from dataclasses import dataclass, field
from pathlib import Path

from fedveil.core.files import public_folder
from fedveil.engine.measured import check_secret, planned_synthesis
from fedveil.engine.system import System
from fedveil.federation.aggregator.conversation import check_folder
from fedveil.federation.aggregator.measured import Generation, check_sizes
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.carrying.trial import deal_clients, site_names
from fedveil.federation.deploy.files import Deployment, read_deployment
from fedveil.jobs.remote import Tell, Watch, check_open, conversation, deployed, silent, trial
from fedveil.jobs.synthesis import ENDS, Described, SynthesisResult, certified_generator, open_synthesis, read_synthesis
from fedveil.planning.study import Study
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.quality import check_rows
from fedveil.stages.synthesise.request import GeneratorRequest


@dataclass(frozen=True, slots=True)
class How:
    """The seed of the rows alone, whether an interrupted generator is finished, and who is told how far it is."""

    seed: int | None = None
    resume: bool = False
    watch: Watch = None
    tell: Tell = silent
    system: System = field(default_factory=System)


def synthesise_on(
    study: str | Path, out: str | Path, on: str | Path, *, rows: int, how: How | None = None
) -> SynthesisResult:
    """Measure a generator on a deployment, with this process as the aggregator; ``on`` is the aggregator's folder."""
    check_rows(rows)
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ENDS)
    wanted, request = read_synthesis(study, data_given=True)
    check_secret(wanted)
    deployment = read_deployment(Path(on))
    check_folder(folder, how.resume)
    public_folder(folder)
    with deployed(deployment, folder) as carrier:
        return generated(wanted, request, folder, deployment, carrier, rows, how)


def synthesise_local(
    study: Described, out: str | Path, sites: int, *, rows: int, how: How | None = None
) -> SynthesisResult:
    """Measure a generator with real processes of this machine; the records of its sites are left in ``out``/sites."""
    check_rows(rows)
    how, folder = how or How(), Path(out)
    check_open(folder, how.resume, ENDS)
    wanted, request, found = open_synthesis(study)
    # Refuse what can be refused before any process starts, so that nothing is left behind.
    check_secret(wanted)
    check_folder(folder, how.resume)
    check_sizes(planned_synthesis(wanted, request, found))
    deal_clients(found.train.clients, site_names(sites))
    apart = wanted.trust.key_holder == "third-party"
    with trial(found, folder, sites, how.system, apart) as network, network.carrier() as carrier:
        return generated(wanted, request, folder, network.deployment, carrier, rows, how, found)


def generated(
    study: Study,
    request: GeneratorRequest,
    folder: Path,
    deployment: Deployment,
    carrier: Carrier,
    rows: int,
    how: How,
    found: Unprepared | None = None,
) -> SynthesisResult:
    """Measure a generator at the sites that the carrier reaches; certify it and draw rows."""
    talk = conversation(folder, deployment, carrier, how.resume, how.watch, how.tell, how.system)
    generator = Generation(study=study, request=request, talk=talk).conduct()
    return certified_generator(generator, folder, rows, how.seed, how.system, found, study.data.public)

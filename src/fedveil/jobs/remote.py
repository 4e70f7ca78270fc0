"""The main job across machines: the same study, carried by Flower or NVFlare, deployed or as a trial."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedveil.core.files import PUBLIC, owners_folder, public_folder, write_atomically
from fedveil.core.importing import allowed_now
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.engine.ending import check_unfinished, has_released
from fedveil.engine.files import private_folder, sole_use
from fedveil.engine.run import NOTHING
from fedveil.engine.study import planned_for
from fedveil.engine.system import Progress, System
from fedveil.federation.aggregator.consortium import Held, kept_rule
from fedveil.federation.aggregator.conversation import SECRETS, Conversation, begin, check_folder
from fedveil.federation.aggregator.federate import Federation, check_carried
from fedveil.federation.aggregator.post import Carrier, Clock, Post
from fedveil.federation.aggregator.relay import RelayCarrier
from fedveil.federation.aggregator.trace import STATUS, TIMELINE, RunStatus, Trace, typical_round
from fedveil.federation.carrying.trial import TrialNetwork, deal_clients, site_names
from fedveil.federation.deploy.files import INSIDE, Deployment, Engine, read_deployment
from fedveil.federation.flower.channel import Link
from fedveil.federation.flower.local import local_network
from fedveil.federation.flower.network import submit, write_app, write_connection
from fedveil.federation.nvflare.local import local_flare
from fedveil.federation.site.data import same_clients
from fedveil.jobs.local import ENDS, Result, Sign, Wanted, conclude, open_any_study, remember_study, signing_key
from fedveil.planning.plan import Plan
from fedveil.planning.study import Study, read_study_without_data
from fedveil.signing import SigningKey
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.protocol import Consortium

Watch = Callable[[Progress], None] | None
Tell = Callable[[str, str], None]
_GONE = "gone"  # in the private folder: a trial's deployment that is being removed


def silent(site: str, state: str) -> None:
    """Ignore the news of a site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Whether an interrupted job is finished, who is told how far it is, and the seed of a generator's rows alone."""

    resume: bool = False
    watch: Watch = None
    tell: Tell = silent
    system: System = field(default_factory=System)
    seed: int | None = None


def conversation(
    folder: Path, deployment: Deployment, carrier: Carrier, how: How, trace: Trace | None = None
) -> Conversation:
    """Return one start of this process as the aggregator of a deployment."""
    begun, system = begin(folder, how.resume, how.system.random), how.system
    status = RunStatus(folder / "private" / STATUS, lambda: system.now().isoformat(timespec="milliseconds"))

    def tell_site(site: str, state: str) -> None:
        status.site(site, state)
        how.tell(site, state)

    def watch_round(now: Progress) -> None:
        status.progress(now.round, now.total)
        if how.watch is not None:
            how.watch(now)

    post = Post(
        identity=deployment.identity,
        cards=deployment.parties,
        run=begun.run,
        number=begun.number,
        carrier=carrier,
        clock=Clock(time.monotonic, time.sleep),
        random=os.urandom,
        watch=tell_site,
        trace=trace or Trace(),
    )
    return Conversation(
        folder=folder,
        cards=deployment.cards,
        post=post,
        begun=begun,
        system=system,
        watch=watch_round,
        holder=deployment.holder,
    )


def federated(
    study: Study,
    folder: Path,
    deployment: Deployment,
    carrier: Carrier,
    held: Held,
    *,
    resume: bool = False,
    watch: Watch = None,
    tell: Tell = silent,
    system: System | None = None,
    key: SigningKey | None = None,
    preparation: RowRule | None = None,
    trace: Path | None = None,
    goes_on: Callable[[Consortium], Plan] | None = None,
    before: Mapping[str, Any] = NOTHING,
) -> Result:
    """Train across the sites that the carrier reaches; certify and report.

    ``preparation``: how records became rows, where this process knows it; otherwise as the sites say. ``trace``: a file
    for a timeline of the run, which is written also if the run fails; the report shows its typical round. ``goes_on``,
    ``before``: as in :class:`Federation`.
    """
    kept = Trace(None if trace is None else time.monotonic)
    how = How(resume=resume, watch=watch, tell=tell, system=system or System())
    talk = conversation(folder, deployment, carrier, how, kept)
    try:
        metrics = Federation(study=study, talk=talk, held=held, goes_on=goes_on, before=before).conduct()
    finally:
        if trace is not None:
            trace.write_text(kept.text(), encoding="utf-8")
    with sole_use(folder / "private"):
        if typical := typical_round(kept.text()):
            write_atomically(folder / TIMELINE, typical.encode(), mode=PUBLIC)
        return conclude(folder, metrics, key, preparation or kept_rule(folder))


def run_on(
    study: str | Path,
    out: str | Path,
    on: str | Path,
    *,
    resume: bool = False,
    watch: Watch = None,
    tell: Tell = silent,
    sign: Sign = None,
    trace: Path | None = None,
) -> Result:
    """Run a study on a deployment, with this process as the aggregator; ``on`` is the aggregator's folder.

    ``sign``: as in :func:`fedveil.run_study`; ``trace``: as in :func:`federated`.
    """
    key = signing_key(sign)
    check_open(folder := Path(out), resume, ENDS)
    wanted, deployment = read_study_without_data(Path(study)), read_deployment(Path(on))
    with deployed(deployment, folder, resume) as carrier:
        result = federated(
            wanted, folder, deployment, carrier, Held(), resume=resume, watch=watch, tell=tell, key=key, trace=trace
        )
    remember_study(study, folder)
    return result


def _held_at_sites(study: Study, loaded: Loaded | Unprepared) -> Records | None:
    """Return the held-out records that the sites of a trial get, to be counted there; None if they get none."""
    if loaded.test is None or loaded.test_public or not study.evaluation.asks_of_sites:
        return None
    return same_clients(loaded.train, loaded.test)


@contextmanager
def deployed(deployment: Deployment, folder: Path, resume: bool) -> Iterator[Carrier]:
    """Open the deployment's relay through a socket on this machine, where the link's commands are run as well.

    On NVFlare the consortium submits the job, whose controller is the relay; nothing is started from here.
    """
    check_folder(folder, resume)
    public_folder(folder)
    carrier = RelayCarrier(deployment.relay, _start(deployment, folder) if deployment.engine == "flower" else _nothing)
    try:
        yield carrier
    finally:
        carrier.close()


def _nothing() -> None:
    """Start nothing."""


def _start(deployment: Deployment, folder: Path) -> Callable[[], None]:
    """Return what starts a Flower run."""
    link = Link(name="fedveil", host=INSIDE, port=deployment.inside, authority=deployment.authority)
    home = private_folder(folder / "private") / "flower"
    write_connection(home, link)
    app = write_app(home / "app")

    def start() -> None:
        """Register the sites before every Flower run, because a restarted link has forgotten them."""
        submit(home, link, app, deployment.node_keys)

    return start


def run_local(
    study: Wanted,
    out: str | Path,
    sites: int,
    *,
    resume: bool = False,
    watch: Watch = None,
    tell: Tell = silent,
    system: System | None = None,
    trace: Path | None = None,
    engine: Engine = "flower",
) -> Result:
    """Run the study on real processes of this machine; the records of its sites are left in ``out``/sites.

    ``engine``: what carries the messages.
    """
    check_open(folder := Path(out), resume, ENDS)
    result, loaded = open_any_study(study)
    result, system = replace(result, baselines=False), system or System()
    public = loaded.test_public if loaded.test is not None else True
    theirs = _held_at_sites(result, loaded)
    rule = None if isinstance(loaded, Unprepared) else loaded.preparation
    if theirs is not None:
        held = Held(preparation=rule)
    elif isinstance(loaded, Unprepared):
        held = Held(cells=loaded, public=public)
    else:
        held = Held(records=loaded.test, public=public, preparation=rule)
    plan = planned_for(result, loaded, at_sites=True).plan
    # Refuse what can be refused before any process starts, so that nothing is left behind.
    check_folder(folder, resume)
    check_carried(plan)
    deal_clients(loaded.train.clients, site_names(sites))
    apart = result.trust.key_holder == "third-party"
    with trial(loaded, folder, sites, system, apart, theirs, engine) as network, network.carrier() as carrier:
        finished = federated(
            result,
            folder,
            network.deployment,
            carrier,
            held,
            resume=resume,
            watch=watch,
            tell=tell,
            system=system,
            preparation=rule,
            trace=trace,
        )
    remember_study(study, folder, result)
    return finished


@contextmanager
def at_deployment(on: str | Path, folder: Path, how: How) -> Iterator[Conversation]:
    """Speak with the sites of a deployment, with this process as the aggregator; ``on`` is the aggregator's folder."""
    deployment = read_deployment(Path(on))
    with deployed(deployment, folder, how.resume) as carrier:
        yield conversation(folder, deployment, carrier, how)


@contextmanager
def at_trial(study: Study, loaded: Loaded | Unprepared, folder: Path, sites: int, how: How) -> Iterator[Conversation]:
    """Speak with real processes of this machine as sites; their records are left in ``folder``/sites."""
    check_folder(folder, how.resume)  # what can be refused is refused before any process starts
    deal_clients(loaded.train.clients, site_names(sites))
    apart = study.trust.key_holder == "third-party"
    with trial(loaded, folder, sites, how.system, apart) as network, network.carrier() as carrier:
        yield conversation(folder, network.deployment, carrier, how)


@contextmanager
def trial(
    loaded: Loaded | Unprepared,
    folder: Path,
    sites: int,
    system: System,
    holder: bool = False,
    held: Records | None = None,
    engine: Engine = "flower",
) -> Iterator[TrialNetwork]:
    """Start the processes of a trial; ``holder``: with a key holder. ``held``: what the sites keep from training.

    The guards accept any plan, since one person plays all operators. The keys and data of the sites lie in the private
    folder until the run has ended.
    """
    records = (folder / "sites").absolute()
    owners_folder(records)
    files = private_folder(folder / "private") / "deployment"
    options = ["--accept", "any", "--trials", *(f"--module={name}" for name in sorted(allowed_now().names))]
    given = loaded if isinstance(loaded, Unprepared) else loaded.train
    network: TrialNetwork
    local: Callable[..., AbstractContextManager[TrialNetwork]] = local_network if engine == "flower" else local_flare
    with local(given, sites, files, records, system.now(), options, holder, held) as network:
        yield network
    if has_released(folder) and not (folder / "private" / "released").exists():
        gone = files.with_name(_GONE)
        files.rename(gone)  # at once: half of a deployment could not be started again
        shutil.rmtree(gone)


def check_open(folder: Path, resume: bool, ends: Sequence[str]) -> None:
    """Raise ``AlreadyFinished`` if a run to be resumed has nothing left to do, neither here nor at a site."""
    if resume:
        shutil.rmtree(folder / "private" / _GONE, ignore_errors=True)
        check_unfinished(folder, ends, left=("deployment", "released", *SECRETS))

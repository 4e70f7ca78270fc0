"""A consortium in one process, for trials: real guards and a real aggregator; only the carrier is a dictionary."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.certificate.certify import certify, certify_measured, is_measured
from fedveil.data.records import Records
from fedveil.engine.system import Progress, System
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.conversation import Conversation, begin
from fedveil.federation.aggregator.federate import Federation
from fedveil.federation.aggregator.measured import Generation
from fedveil.federation.aggregator.post import Clock, Post
from fedveil.federation.agreements import Carried
from fedveil.federation.site.data import read_site_data, write_dealt
from fedveil.federation.site.guard import Guard, Site, Terms
from fedveil.federation.site.key_holder import KeyHolder
from fedveil.federation.site.record import World
from fedveil.planning.promises import promise
from fedveil.planning.study import Study, study_of
from fedveil.stages.measured.plan import GENERATOR
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.wire.keys import Card, Identity

SITES = ("east", "north", "south")
TRIALS = Terms(accept=frozenset({"any"}), trials=True)


class Killed(BaseException):
    """As if the process had ended here."""


def tables(**parts: Mapping[str, Any]) -> dict[str, Any]:
    """A small seeded study by parts, as its tables."""
    found: dict[str, Any] = {
        "study": {"seed": 3},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 5.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "every-model"},
        "schedule": {"rounds": 3, "passes": 1, "batch": 20, "step_size": 0.5, "noise_std": 8.0},
        "trust": {"server": "trusted", "dropouts": 2, "timeout": 60.0},
    }
    return {**found, **{name: dict(values) for name, values in parts.items()}}


def study(**parts: Mapping[str, Any]) -> Study:
    return study_of(tables(**parts), base=Path(), name="trial", data_given=True)


def made_up(name: str, count: int = 64) -> bytes:
    """Bytes that are the same every time."""
    return b"".join(sha256(f"{name} {k}".encode()).digest() for k in range(-(-count // 32)))[:count]


def certified(folder: Path) -> None:
    """Write the certificate of a site's own record."""
    found = certify_measured(folder, "0") if is_measured(folder, GENERATOR) else certify(folder, "0")
    (folder / "certificate.json").write_text(found.text())


@dataclass
class Direct:
    """Carries envelopes within the process. ``down``: sites that are away; ``meddle`` may change what passes.

    ``loses`` says of a site whether a question to it is lost on its way, which nobody reports.
    """

    guards: dict[str, Guard | KeyHolder]
    down: set[str] = field(default_factory=set)
    meddle: Callable[[str, str, bytes], bytes | None] = lambda way, site, envelope: envelope
    loses: Callable[[str, bytes], bool] = lambda site, envelope: False
    sent: list[tuple[str, bytes]] = field(default_factory=list)
    back: list[tuple[str, bytes]] = field(default_factory=list)
    _answers: dict[str, bytes] = field(default_factory=dict)
    _count: int = 0

    def online(self) -> Mapping[str, str]:
        return {site: site for site in self.guards if site not in self.down}

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        self._count += 1
        self.sent.append((address, envelope))
        if self.loses(address, envelope):
            return str(self._count)
        passed = self.meddle("down", address, envelope)
        answer: bytes | None = b""
        if passed is not None:
            try:
                answer = self.meddle("up", address, self.guards[address].handle(passed))
            except Exception:
                answer = b""
        self.back.append((address, answer or b""))
        self._answers[str(self._count)] = answer or b""
        return str(self._count)

    def pull(self, names: list[str], seconds: float = 0.0) -> Mapping[str, bytes]:
        return {name: self._answers.pop(name) for name in names if name in self._answers}


@dataclass
class Trial:
    """Three guards with the clients of some records, and an aggregator that can be started again and again.

    ``keeper``: with a third party of that name, who holds the key of encrypted sums. ``cells``: what the sites hold in
    place of rows. ``notes``: what the guards told their operators. ``held``: what the clients keep from training.
    """

    folder: Path
    records: Records
    terms: Terms = TRIALS
    plans: list[Carried] = field(default_factory=list)
    now: float = 0.0
    keeper: bool = False
    cells: Unprepared | None = None
    notes: list[str] = field(default_factory=list)
    held: Records | None = None
    carrier: Direct = field(init=False)
    aggregator: Identity = field(init=False)
    identities: dict[str, Identity] = field(init=False)
    third: Identity = field(init=False)

    def __post_init__(self) -> None:
        self.aggregator = Identity.make("aggregator", made_up("aggregator"))
        self.identities = {site: Identity.make(site, made_up(site)) for site in SITES}
        self.third = Identity.make("keeper", made_up("keeper"))
        for index, site in enumerate(SITES):
            (self.folder / site).mkdir()
            clients = np.arange(index, self.records.clients, len(SITES), dtype=np.int64)
            write_dealt(self.folder / f"{site}.npz", self.cells or self.records, clients, self.held)
        self.carrier = Direct({})
        self.restart_guards()

    @staticmethod
    def costs(records: Records, wanted: Study) -> float:
        """What one run is charged for whoever sees the last model."""
        return promise(wanted.planned(records.shape).plan, "final-model").epsilon

    def restart_guards(self, terms: Terms | None = None) -> None:
        """As their processes would be: with nothing in memory."""
        for site in SITES:
            self.carrier.guards[site] = self.guard(site, terms or self.terms)
        if self.keeper:
            self.carrier.guards["keeper"] = self.holder()

    def holder(self, accept: str = "any") -> KeyHolder:
        counter = iter(range(10**9))
        return KeyHolder(
            identity=self.third,
            aggregator=self.aggregator.card,
            folder=self.folder / "keeper",
            accept=frozenset({accept}),
            world=World(
                lambda size: made_up(f"keeper {next(counter)}", size), lambda: datetime(2026, 1, 1, tzinfo=UTC)
            ),
            show=self.plans.append,
        )

    def guard(self, site: str, terms: Terms) -> Guard:
        counter, own = iter(range(10**9)), self.folder / f"{site}.toml"  # a site's own file, if a test wrote one
        place = Site(
            identity=self.identities[site],
            aggregator=self.aggregator.card,
            data=read_site_data(own if own.exists() else self.folder / f"{site}.npz"),
            folder=self.folder / site,
            peers={name: card for name, card in self.cards.items() if name != site},
            holder=self.third.card if self.keeper else None,
        )
        return Guard(
            site=place,
            terms=terms,
            world=World(
                lambda size: made_up(f"{site} {next(counter)}", size), lambda: datetime(2026, 1, 1, tzinfo=UTC)
            ),
            show=self.plans.append,
            note=self.notes.append,
            finished=certified,
        )

    def time(self) -> float:
        """Of a clock that goes only while somebody waits."""
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def cards(self) -> dict[str, Card]:
        return {site: identity.card for site, identity in self.identities.items()}

    def run(self, wanted: Study, resume: bool = False, watch: Callable[[Progress], None] | None = None) -> Path:
        """One start of the aggregator; where it wrote."""
        Federation(study=wanted, talk=self.talk(wanted.name, resume, watch), held=Held()).conduct()
        return self.folder / "out"

    def run_killed(self, wanted: Study) -> tuple[Path, int]:
        """Kill a run after every round, guards and all, and go on until it is done: its folder, and the last round."""
        done = -1

        def watch(now: Progress) -> None:
            nonlocal done
            if now.round != done and not (self.folder / "out" / "model.npz").exists():
                done = now.round
                raise Killed

        for start in range(30):
            self.restart_guards()
            try:
                return self.run(wanted, resume=start > 0, watch=watch), done
            except Killed:
                continue
        raise AssertionError("it was killed thirty times and never got to its end")

    def generate(
        self,
        wanted: Study,
        request: GeneratorRequest,
        resume: bool = False,
        watch: Callable[[Progress], None] | None = None,
    ) -> Generator:
        """One start of the aggregator of a generator."""
        return Generation(study=wanted, request=request, talk=self.talk(wanted.name, resume, watch)).conduct()

    def talk(self, name: str, resume: bool, watch: Callable[[Progress], None] | None) -> Conversation:
        """An aggregator that has just been started."""
        out = self.folder / "out"
        begun = begin(out, resume, lambda size: made_up(f"run {name}", size))
        counter = iter(range(10**9))
        post = Post(
            identity=self.aggregator,
            cards={**self.cards, "keeper": self.third.card} if self.keeper else self.cards,
            run=begun.run,
            number=begun.number,
            carrier=self.carrier,
            clock=Clock(self.time, self.sleep),
            random=lambda size: made_up(f"post {begun.number} {next(counter)}", size),
        )
        system = System(now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        return Conversation(
            folder=out,
            cards=self.cards,
            post=post,
            begun=begun,
            system=system,
            watch=watch,
            holder=self.third.card if self.keeper else None,
        )

    def model(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        with np.load(self.folder / "out" / "model.npz") as arrays:
            return np.array(arrays["parameters"])

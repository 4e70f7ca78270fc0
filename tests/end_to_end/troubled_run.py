"""One run with a different fault of one site in every round, and what it showed.

The plan lets the two clients of a site be missing from a round.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower_trials import GUARD, Recorded, contents, knock, sessions, text, until
from relay_search import written_by

from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.flower.local import LocalNetwork
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data
from fedveil.wire.envelope import peek

LIAR = str(Path(__file__).with_name("lying_site.py"))
LIES = {2: "nan", 3: "shape", 4: "stale", 5: "large"}  # by rounds, from 0
FOREIGN, MIXED, LAST = 6, 7, 8  # all files of another deployment; its identity alone; everything in order again
BAD = (*LIES, FOREIGN, MIXED)
SITE, CLIENTS = "site-2", (2, 3)


@dataclass(slots=True)
class Seen:
    """What the run showed: who answered and who failed in each round, what replays got, what the relay had open."""

    out: Path
    states: list[set[tuple[str, str]]] = field(default_factory=lambda: [set()])
    knocks: list[bytes | None] = field(default_factory=list)
    carried: list[bytes] = field(default_factory=list)
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    logs: dict[int, str] = field(default_factory=dict)


def troubled(network: LocalNetwork, elsewhere: Path, folder: Path) -> Seen:
    """Carry it out; ``elsewhere``: the site's files in another deployment."""
    study, found = folder / "study.toml", Seen(folder / "out")
    study.write_text(text(dropouts=2, timeout=120.0, rounds=LAST + 1))
    mixed = elsewhere.parent / "mixed"
    shutil.copytree(elsewhere, mixed)
    (mixed / "aggregator.pub").write_bytes((network.place(SITE) / "aggregator.pub").read_bytes())
    told = ",".join(f"{turn}={lie}" for turn, lie in LIES.items())
    others = ["--records", str(folder / "others")]
    changes: dict[int, tuple[list[str], tuple[str, ...]]] = {
        1: (GUARD, (LIAR, told)),  # honest in this round, so that it has an answer to repeat
        FOREIGN: ([*GUARD, *others, "--key", str(elsewhere / "identity.key")], ("-m", "fedveil")),
        MIXED: ([*GUARD, *others, "--key", str(mixed / "identity.key")], ("-m", "fedveil")),
        LAST: (GUARD, ("-m", "fedveil")),
    }

    def watch(now: Any) -> None:
        found.states.append(set())
        if now.round == 1:
            replay(network, carrier, found)
            found.written = written_by(sessions({one.process.pid for one in relay_of(network)}))
        if now.round in changes:
            found.logs[now.round - 1] = network.guards[SITE].written()
            network.guards[SITE].kill()
            network.start_guard(SITE, *changes[now.round])
            network.guards[SITE].wait_for("listening", 180.0)

    def tell(site: str, state: str) -> None:
        found.states[-1].add((site, state))

    with network.carrier() as real:
        carrier = Recorded(real)
        wanted = read_study_without_data(study)
        federated(wanted, found.out, network.deployment, carrier, Held(), watch=watch, tell=tell)
    return found


def failed(turn: int, client: int) -> bool:
    """Whose answer is not used."""
    return client in CLIENTS and turn in BAD


def relay_of(network: LocalNetwork) -> list[Any]:
    """The link, its executor, and the nodes: all that is not trusted."""
    return [*network.center, *network.nodes.values()]


def replay(network: LocalNetwork, carrier: Recorded, found: Seen) -> None:
    """Every instruction once more, at the guard's own door and through the link."""
    place, sent = network.records / "site-1", [envelope for site, envelope in carrier.sent if site == "site-1"]
    found.before = contents(place)
    found.knocks = [knock(network.door("site-1"), envelope) for envelope in sent]
    address = carrier.online()["site-1"]
    for envelope in sent[-2:]:
        name, back = carrier.push(address, envelope, 60.0), dict[str, bytes]()
        until(lambda name=name, back=back: back.update(carrier.pull([name], 0.0)) or name in back, pause=0.2)
        found.carried.append(back[name])
    found.after = contents(place)
    assert {peek(envelope).kind for envelope in sent} == {"hello", "propose", "step"}

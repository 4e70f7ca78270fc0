"""A dishonest server against masks that last for a run, on live guards: one deployment, every attack, one sum a round.

The server has the aggregator's keys, so all its questions are signed. It stops a run between the exchanges of a round
and asks what it likes; then the honest aggregator goes on, and the released bits are those of a simulation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_trials import Recorded, knock, released, simulated, text, trial_network, trial_records, updates

from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.agreements import named_blocks, part_in
from fedveil.federation.deploy.own_keys import read_site
from fedveil.federation.flower.local import LocalNetwork
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data
from fedveil.sums.masks.keys import add_masks, recover
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, peek, seal, unseal

pytest.importorskip("flwr")
SITES = ["site-1", "site-2", "site-3"]
TRUST = '[trust]\nserver = "secure-aggregation"\nidentities = "sites"\n'
TURN = 1  # the round in which the server turns dishonest


class Stopped(Exception):
    """The server has what it wants."""


@dataclass(slots=True)
class Stopping:
    """A carrier that ends the aggregator before the first question of a stage leaves, and keeps all that passed."""

    carrier: Carrier
    network: LocalNetwork
    stage: str
    sent: list[tuple[str, int, Content]] = field(default_factory=list)
    number: int = 0
    _names: dict[str, str] = field(default_factory=dict)

    def online(self) -> Mapping[str, str]:
        found = self.carrier.online()
        self._names |= {address: site for site, address in found.items()}
        return found

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        head, site = peek(envelope), self._names[address]
        self.number = head.number
        if head.kind == "masked":
            self.sent.append((site, head.round, question_in(self.network, site, envelope)))
            if head.round == TURN and self.sent[-1][2].values["stage"] == self.stage:
                raise Stopped
        return self.carrier.push(address, envelope, seconds)

    def pull(self, names: list[str], seconds: float) -> Mapping[str, bytes]:
        return self.carrier.pull(names, seconds)


def question_in(network: LocalNetwork, site: str, envelope: bytes) -> Content:
    """A question as its site reads it."""
    own, aggregator = read_site(network.place(site) / "identity.key")
    return Content.read(unseal(envelope, own, aggregator).body)


@dataclass(slots=True)
class Server:
    """Asks live guards with the aggregator's own keys, at their doors."""

    network: LocalNetwork
    run: str
    number: int

    def ask(self, site: str, turn: int, content: Content) -> Content | str:
        """What the guard answers; the code if it refuses."""
        self.number += 1
        deployment = self.network.deployment
        head = Head(run=self.run, sender="aggregator", receiver=site, kind="masked", round=turn, number=self.number)
        card = deployment.cards[site]
        envelope = seal(head, content.write(), deployment.identity, card, self.number.to_bytes(32, "big"))
        answer = knock(self.network.door(site), envelope)
        assert answer is not None
        opened = unseal(answer, deployment.identity, card)
        said = Content.read(opened.body)
        return str(said.values["code"]) if opened.head.kind == "refused" else said


@pytest.fixture(scope="module")
def records() -> Records:
    return trial_records()


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network")) as found:
        yield found


def changed(content: Content, alive: list[str], stage: str, signatures: Mapping[str, bytes] | None = None) -> Content:
    """The question with another list of those in the sum, and other signatures."""
    blocks = {name: block for name, block in content.blocks.items() if name.removeprefix("from ") in alive}
    return Content(values={"stage": stage, "alive": alive}, rows=content.rows, blocks=blocks | dict(signatures or {}))


def test_a_dishonest_server_gets_one_sum_of_a_round(network: LocalNetwork, records: Records, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(text(dropouts=2).replace("[trust]\n", TRUST))
    study, out = read_study_without_data(tmp_path / "study.toml"), tmp_path / "out"
    out.mkdir()
    with network.carrier() as carrier:
        stopping = Stopping(carrier, network, "agree")
        with pytest.raises(Stopped):
            federated(study, out, network.deployment, stopping, Held())
    run = (out / "private" / "aggregator").read_bytes()[:16].hex()
    server, sent = Server(network, run, stopping.number), stopping.sent
    rows = next(content.rows for site, turn, content in sent if (site, turn) == (SITES[0], TURN))
    before = next(c for site, turn, c in sent if (site, turn) == (SITES[0], 0) and c.values["stage"] == "reveal")
    listing = Content(rows={"cohort": rows["cohort"]})

    # Two aggregators of one run: another model for this round, or for one that is over.
    other = Content(values={"stage": "mask"}, rows={**rows, "model": np.ones_like(rows["model"])})
    assert server.ask(SITES[0], TURN, other) == "changed-round"
    assert server.ask(SITES[0], 0, other) == "stale-round"

    # Mixed rounds: shares of the round before, and this round's question for others.
    assert server.ask(SITES[0], TURN, before) == "bad-signature"  # signed for another round
    for turn in (0, 2):
        assert server.ask(SITES[0], turn, changed(listing, SITES, "agree")) == "out-of-turn"

    # Lists that nobody may open: without the site itself, with too few, of strangers.
    for alive, code in (
        (SITES[1:], "other-survivors"),
        (SITES[:1], "too-few"),
        ([*SITES, "site-4"], "other-survivors"),
    ):
        assert server.ask(SITES[0], TURN, changed(listing, alive, "agree")) == code

    # Different lists to different sites: each signs one, ever, and only one list finds a quorum.
    lists = {SITES[0]: SITES[:2], SITES[1]: SITES, SITES[2]: SITES}
    signatures = {}
    for site, alive in lists.items():
        said = server.ask(site, TURN, changed(listing, alive, "agree"))
        assert isinstance(said, Content)
        signatures[f"by {site}"] = said.blocks["signature"]
        another = SITES if alive != SITES else [one for one in SITES if one != SITES[(SITES.index(site) + 1) % 3]]
        assert server.ask(site, TURN, changed(listing, another, "agree")) == "spent-round"
    mine = {"by site-1": signatures["by site-1"]}
    theirs = {name: one for name, one in signatures.items() if name != "by site-1"}
    opening = Content(rows=listing.rows, blocks=_shares(out, SITES[0]))
    assert server.ask(SITES[0], TURN, changed(opening, SITES[:2], "reveal", mine)) == "no-quorum"
    forged = {**mine, "by site-2": mine["by site-1"]}
    assert server.ask(SITES[0], TURN, changed(opening, SITES[:2], "reveal", forged)) == "bad-signature"
    assert server.ask(SITES[0], TURN, changed(opening, SITES, "reveal", theirs)) == "spent-round"  # both kinds

    # The other two open the list that they signed: with their shares the sum of all three is known, as it should be.
    given = {}
    for site in SITES[1:]:
        asked = Content(rows=listing.rows, blocks=_shares(out, site))
        for attempt in range(2):  # asked again, it says the same
            said = server.ask(site, TURN, changed(asked, SITES, "reveal", theirs))
            assert isinstance(said, Content)
            assert attempt == 0 or named_blocks(said, "of ") == given[site]
            given[site] = named_blocks(said, "of ")
        missing = [one for one in SITES if one != SITES[0]]
        assert server.ask(site, TURN, changed(asked, missing, "reveal", theirs)) == "spent-round"
    _check_nothing_else_opens(out, given, updates(tmp_path / "out", records))

    with network.carrier() as carrier:  # the honest aggregator comes back; two of three signatures are a quorum
        federated(study, out, network.deployment, Recorded(carrier), Held(), resume=True)
    assert released(out).tobytes() == simulated(out, records)[0].tobytes()


def _parts(out: Path) -> dict[str, Any]:
    """The masked parts of the round, which the aggregator has on its disk."""
    (log,) = [path for path in (out / "private").rglob("*") if path.is_file() and _is_log(path)]
    return {site: part_in(Content.read(block)) for site, block in Content.read(log.read_bytes()).blocks.items()}


def _is_log(path: Path) -> bool:
    try:
        found = Content.read(path.read_bytes())
    except Exception:
        return False
    return set(found.blocks) == set(SITES) and found.values.get("round") == TURN


def _shares(out: Path, site: str) -> dict[str, bytes]:
    """What the others have sealed for a site."""
    return {f"from {owner}": (part.sealed or {})[site] for owner, part in _parts(out).items() if owner != site}


def _check_nothing_else_opens(out: Path, given: Mapping[str, Mapping[str, bytes]], secret: list[Any]) -> None:
    """With every key that the server can compute, taken off in every way, no site's or client's numbers come out."""
    parts, keys = _parts(out), []
    for owner in SITES:
        key = recover({SITES.index(holder) + 1: given[holder][owner][:33] for holder in given})
        assert key is not None
        keys += [key, *(given[holder][owner][:32] for holder in given)]  # and single shares, taken for keys
    hidden = {np.asarray(one).astype(np.int64).tobytes() for one in secret}
    assert len(hidden) > 9
    opened = set()
    for chosen in ([site] for site in SITES), ([one, other] for one, other in pairwise(SITES)):
        for some in chosen:
            total = np.sum([parts[site].values.view(np.uint64) for site in some], axis=0, dtype=np.uint64)
            for signs in product((0, 1, -1), repeat=len(SITES)):
                room = total.copy()
                add_masks(room, [(key, sign > 0) for key, sign in zip(keys[::3], signs, strict=True) if sign])
                opened.add(room.view(np.int64).tobytes())
            for key in keys:
                room = total.copy()
                add_masks(room, [(key, True)])
                opened.add(room.view(np.int64).tobytes())
    assert not opened & hidden

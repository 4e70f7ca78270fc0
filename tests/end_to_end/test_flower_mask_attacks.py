"""Attacks on masks that last for a run, each by its name: four live guards, one of whose sites sides with the server.

The server has the aggregator's keys, and the colluding site's signing key and secret of the run, off its disk. Every
round must give one sum over the three honest sites and nothing else; the honest aggregator then goes on, and the
released bits are those of a simulation.
"""

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dishonest import Server, Stopped, Stopping, changed, code, masked_parts, run_of, sealed_for
from flower_trials import (
    GUARD,
    aggregator,
    nobody,
    released,
    simulated,
    text,
    trial_network,
    trial_records,
    updates,
)

from fedveil.core.errors import TooFewSurvivors
from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.aggregator.post import Carrier
from fedveil.federation.aggregator.turn import reason
from fedveil.federation.agreements import named_blocks, roster_of, run_bytes, setting_of
from fedveil.federation.deploy.own_keys import read_site
from fedveil.federation.flower.local import LocalNetwork
from fedveil.jobs.remote import federated
from fedveil.planning.plan import read_plan
from fedveil.planning.study import read_study_without_data
from fedveil.sums.masks.amortised import MaskedPart, RoundSetting, RunKeys
from fedveil.sums.masks.keys import OPENING_BYTES, SHARE_BYTES, add_masks, recover
from fedveil.wire.content import Content

pytest.importorskip("flwr")
HONEST, COLLUDER = ["site-1", "site-2", "site-3"], "site-4"
SITES = [*HONEST, COLLUDER]
WITHOUT = ["site-1", "site-2", COLLUDER]  # the set of those in the sum if site-3 is said to be missing
TRUST = '[trust]\nserver = "secure-aggregation"\nidentities = "sites"\ncolluders = 2\n'
CLIENTS = 8  # two at each site, so one site may be missing, and one collude
TURN = 1  # the round in which the server turns dishonest
REFUSED = {
    "spent-round": "it has agreed to another sum of this round, and opens no second one",
    "no-quorum": "too few sites have signed who is in the sum of this round",
    "bad-share": "the share of another site's mask that it was given is not of this round",
    "bad-signature": "the public keys in its folder peers are not those of the other sites",
    "out-of-turn": "the question does not fit its part in this round: who leads it, or which round it has masked last",
    "stale-round": "it has gone beyond this round, and does not go back",
    "changed-round": "it has answered this round to another question, and does not answer it a second time",
}


@pytest.fixture(scope="module")
def records() -> Records:
    return trial_records(CLIENTS)


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network"), len(SITES)) as found:
        yield found


@pytest.fixture(scope="module")
def carrier(network: LocalNetwork) -> Iterator[Carrier]:
    with network.carrier() as found:
        yield found


@dataclass(eq=False)
class Attack:
    """A run that was stopped in a round, and what its server and the colluding site have together."""

    network: LocalNetwork
    carrier: Carrier
    folder: Path
    records: Records
    stopping: Stopping

    @cached_property
    def server(self) -> Server:
        return Server(self.network, run_of(self.out), self.stopping.number)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @cached_property
    def parts(self) -> dict[str, MaskedPart]:
        return masked_parts(self.out)

    @property
    def listing(self) -> Content:
        """The question about a set of sites, as yet without one."""
        return Content(rows={"cohort": np.arange(CLIENTS, dtype=np.int64)})

    @cached_property
    def setting(self) -> RoundSetting:
        return self._keys(COLLUDER)[0]

    def _keys(self, site: str) -> tuple[RoundSetting, RunKeys]:
        """The round's setting, and the keys of a site, by the secret on its disk."""
        plan, run = read_plan((self.out / "plan.toml").read_text()), self.server.run
        lists = Content.read((self.out / "private" / "roster").read_bytes()).blocks
        roster = roster_of(lists, self.network.deployment.cards, run, CLIENTS)
        secret = (self.network.records / site / "runs" / run / "private" / "masks.key").read_bytes()
        setting = setting_of(plan, run, TURN, range(CLIENTS), roster)
        return setting, RunKeys(run_bytes(plan, run), site, secret, roster.keys)

    def secret(self, site: str) -> RunKeys:
        """The keys of a site: the adversary's where it colludes, else what it must never have."""
        return self._keys(site)[1]

    def refusal(self, site: str, turn: int, content: Content) -> str:
        """The code with which a guard refuses, whose sentence is that of the list above."""
        answer = self.server.ask(site, turn, content)
        found = code(answer)
        assert reason(answer) == REFUSED[found]
        return found

    def signed(self, alive: list[str], *sites: str) -> dict[str, bytes]:
        """The signatures of these honest sites, who are asked, and of the one that signs whatever it is told."""
        identity, _ = read_site(self.network.place(COLLUDER) / "identity.key")
        given = {f"by {COLLUDER}": identity.signer.sign(self.setting.statement(frozenset(alive)))}
        for site in sites:
            answer = self.server.ask(site, TURN, changed(self.listing, alive, "agree"))
            given[f"by {site}"] = answer.content.blocks["signature"]
        return given

    def opening(self, site: str, alive: list[str], signatures: Mapping[str, bytes]) -> Content:
        """The question that asks a site to open the sum over a set."""
        asked = Content(rows=self.listing.rows, blocks=sealed_for(self.parts, site))
        return changed(asked, alive, "reveal", signatures)

    def opened(self, site: str, alive: list[str], signatures: Mapping[str, bytes]) -> dict[str, bytes]:
        """What a site opens."""
        answer = self.server.ask(site, TURN, self.opening(site, alive, signatures))
        assert answer.kind == "masked", answer.content.values
        return named_blocks(answer.content, "of ")

    def goes_on(self, fails: Callable[[int, int], bool] = nobody) -> None:
        """The honest aggregator comes back, and the run ends as a simulation does."""
        starts = self.out / "private" / "starts"
        starts.write_text(str(int(starts.read_text()) + 9))  # its numbers go on beyond those of all others
        study = read_study_without_data(self.folder / "study.toml")
        federated(study, self.out, self.network.deployment, self.carrier, Held(), resume=True)
        assert released(self.out).tobytes() == simulated(self.out, self.records, fails)[0].tobytes()


def stopped(network: LocalNetwork, carrier: Carrier, records: Records, folder: Path, stage: str) -> Attack:
    """A run whose server stops before it asks at this stage of the round."""
    (folder / "study.toml").write_text(text(dropouts=2).replace("[trust]\n", TRUST))
    (folder / "out").mkdir()
    return Attack(network, carrier, folder, records, carried(Stopping(carrier, network, TURN, stage), folder))


def carried(stopping: Stopping, folder: Path, resume: bool = False) -> Stopping:
    """The same carrier, after the run that it stopped."""
    study = read_study_without_data(folder / "study.toml")
    with pytest.raises(Stopped):
        federated(study, folder / "out", stopping.network.deployment, stopping, Held(), resume=resume)
    return stopping


def keep_only(out: Path, alive: list[str]) -> None:
    """Make an aggregator's disk say that these sites are in the sum of the round."""
    log = Content.read((out / "private" / "masked").read_bytes())
    blocks = {site: block for site, block in log.blocks.items() if site in alive}
    (out / "private" / "masked").write_bytes(Content(values=log.values, blocks=blocks).write())


def test_a_round_replayed_with_another_set_of_the_missing(
    network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path
) -> None:
    """Also of a guard that was killed and started again, and by the aggregator's own code, whose disk was changed."""
    attack = stopped(network, carrier, records, tmp_path, "reveal")
    everyone = {name: block for name, block in attack.stopping.sent[-1][2].blocks.items() if name.startswith("by ")}
    given = attack.opened("site-1", SITES, everyone)
    network.guards["site-1"].process.send_signal(signal.SIGKILL)
    network.guards["site-1"].process.wait()
    network.start_guard("site-1", GUARD)
    network.guards["site-1"].wait_for("listening", 60.0)
    for gone in ("site-2", "site-3", COLLUDER):
        alive = [site for site in SITES if site != gone]
        both = [changed(attack.listing, alive, "agree"), attack.opening("site-1", alive, everyone)]
        assert [attack.refusal("site-1", TURN, content) for content in both] == ["spent-round"] * 2
    assert attack.opened("site-1", SITES, everyone) == given  # asked for the same set, it says the same
    log = (attack.out / "private" / "masked").read_bytes()
    keep_only(attack.out, WITHOUT)
    each = "; ".join(f"{site} refuses: {REFUSED['spent-round']}" for site in WITHOUT)
    with pytest.raises(TooFewSurvivors, match=rf"^Round 2 is refused at the stage agree: {each}\."):
        attack.goes_on()
    (attack.out / "private" / "masked").write_bytes(log)
    attack.goes_on()


def test_both_kinds_of_shares_of_one_site(
    network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path
) -> None:
    """A share of its self-mask by those who are told that it is there, the key of its pair mask by others; by nobody
    both, and by no two sites one each.
    """
    attack = stopped(network, carrier, records, tmp_path, "agree")
    there, gone = attack.signed(SITES, "site-2", "site-3"), attack.signed(WITHOUT, "site-1")
    given = {site: attack.opened(site, SITES, there) for site in ("site-2", "site-3")}
    for content in (attack.opening("site-2", WITHOUT, gone), changed(attack.listing, WITHOUT, "agree")):
        assert attack.refusal("site-2", TURN, content) == "spent-round"  # it has given its share of the self-mask
    assert attack.refusal("site-1", TURN, attack.opening("site-1", WITHOUT, gone)) == "no-quorum"
    twice = {**gone, "by site-2": there["by site-2"]}
    assert attack.refusal("site-1", TURN, attack.opening("site-1", WITHOUT, twice)) == "bad-signature"
    assert attack.refusal("site-1", TURN, attack.opening("site-1", SITES, there)) == "spent-round"
    assert {len(one) for shares in given.values() for one in shares.values()} == {OPENING_BYTES}  # no key of a pair
    # So site-3's self-mask is known, as the sum of all needs it, and its masks with other honest sites are not.
    own = attack.secret(COLLUDER)
    sealed = (attack.parts["site-3"].sealed or {})[COLLUDER]
    shares = {2: given["site-2"]["site-3"], 3: given["site-3"]["site-3"]}
    shares[4] = own._unseal(attack.setting, "site-3", sealed)
    key = recover({place: one[:SHARE_BYTES] for place, one in shares.items()})
    assert key is not None
    keys = [key, own._pair(attack.setting, "site-3")]
    numbers = wanted(attack)
    assert reached(attack, keys, numbers) == set()
    pairs = [attack.secret("site-3")._pair(attack.setting, other) for other in ("site-1", "site-2")]
    assert reached(attack, [*keys, *pairs], numbers) == {("site-3",)}  # what the refused answers were worth
    attack.goes_on()


def test_rounds_that_are_mixed(network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path) -> None:
    """Shares and signatures of one round under another's question, and questions of one round asked as another's."""
    attack = stopped(network, carrier, records, tmp_path, "reveal")
    site = attack.stopping.sent[-1][0]
    now, before = attack.stopping.sent[-1][2], attack.stopping.asked(site, 0, "reveal")
    own, others = named_blocks(now, "by "), named_blocks(before, "by ")

    def mixed(shares: Content, signatures: Mapping[str, bytes]) -> Content:
        blocks = {name: block for name, block in shares.blocks.items() if name.startswith("from ")}
        blocks |= {f"by {name}": one for name, one in signatures.items()}
        return Content(values=now.values, rows=now.rows, blocks=blocks)

    first, second = (attack.stopping.asked(site, turn, "mask") for turn in (0, TURN))
    questions = [
        (TURN, mixed(before, own), "bad-share"),
        (TURN, mixed(now, others), "bad-signature"),
        (TURN, before, "bad-signature"),
        (0, now, "out-of-turn"),
        (0, before, "out-of-turn"),
        (2, now, "out-of-turn"),
        (0, first, "stale-round"),  # as it was asked then
        (0, second, "stale-round"),
        (TURN, first, "changed-round"),
    ]
    for turn, content, word in questions:
        assert attack.refusal(site, turn, content) == word
    assert attack.server.ask(site, TURN, now).kind == "masked"  # none of it used the round up
    attack.goes_on()


def test_two_aggregators_of_one_run(network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path) -> None:
    """Both with its keys and its disk up to the round. One has opened it; the other, whose disk says that a site was
    missing, comes while the first is still connected.
    """
    attack = stopped(network, carrier, records, tmp_path, "agree")
    second = tmp_path / "second"
    shutil.copytree(attack.out, second)
    keep_only(second, WITHOUT)
    (second / "private" / "starts").write_text("5")  # later numbers than the first's, so that it is heard

    def meanwhile() -> None:
        process = aggregator(network, tmp_path / "study.toml", second, "--resume")
        assert process.wait(timeout=400) != 0

    carried(Stopping(carrier, network, TURN + 1, "mask", meanwhile), tmp_path, resume=True)
    said = " ".join((tmp_path / "second.log").read_text().split())
    assert "Round 2 is refused at the stage agree" in said
    for site in ("site-1", "site-2"):
        assert f"{site} refuses: {REFUSED['spent-round']}" in said
    assert not (second / "model.npz").exists()
    attack.goes_on()


def test_colluders_below_the_threshold_open_the_sum_and_nothing_else(
    network: LocalNetwork, carrier: Carrier, records: Records, tmp_path: Path
) -> None:
    """Site-3 is said to be missing, and its masked numbers come late. Every way of taking off what server and colluder
    know is tried; with one honest secret more, the same attempts do open numbers.
    """
    attack = stopped(network, carrier, records, tmp_path, "agree")
    signatures = attack.signed(WITHOUT, "site-1", "site-2")
    given = {site: attack.opened(site, WITHOUT, signatures) for site in ("site-1", "site-2")}
    late = changed(attack.listing, SITES, "agree")
    assert [attack.refusal(site, TURN, late) for site in ("site-1", "site-2")] == ["spent-round"] * 2
    everyone = attack.signed(SITES, "site-3")  # whom nobody has asked before
    assert attack.refusal("site-3", TURN, attack.opening("site-3", SITES, everyone)) == "no-quorum"

    setting, own = attack.setting, attack.secret(COLLUDER)
    sealed = {owner: (attack.parts[owner].sealed or {})[COLLUDER] for owner in HONEST}
    held = {owner: own._unseal(setting, owner, one) for owner, one in sealed.items()}  # a share of each self-mask
    assert setting.threshold == 3 > setting.colluding == 1
    keys = [given[site]["site-3"] for site in ("site-1", "site-2")]
    keys += [own._pair(setting, other) for other in HONEST]
    for owner in ("site-1", "site-2"):
        shares = {place: given[f"site-{place}"][owner] for place in (1, 2)} | {4: held[owner]}
        key = recover({place: one[:SHARE_BYTES] for place, one in shares.items()})
        assert key is not None
        keys.append(key)
    numbers = wanted(attack)
    assert reached(attack, keys, numbers) == {("site-1", "site-2")}  # the sum that was promised to be known
    more = {}
    for place in (1, 2):
        sealed_share = sealed_for(attack.parts, f"site-{place}")["from site-3"]
        more[place] = attack.secret(f"site-{place}")._unseal(setting, "site-3", sealed_share)
    theirs = {4: held["site-3"], **more}  # all shares of site-3's self-mask, of which the adversary has one
    for places in ((4,), (1, 4), (2, 4), (1, 2)):
        key = recover({place: theirs[place][:SHARE_BYTES] for place in places})
        assert key is None or reached(attack, [*keys, key], numbers) == {("site-1", "site-2")}
    key = recover({place: one[:SHARE_BYTES] for place, one in theirs.items()})
    assert key is not None
    assert ("site-3",) in reached(attack, [*keys, key], numbers)  # as many as the threshold do open it
    pair = attack.secret("site-1")._pair(setting, "site-2")
    assert {("site-1",), ("site-2",)} < reached(attack, [*keys, pair], numbers)
    keep_only(attack.out, WITHOUT)
    attack.goes_on(lambda turn, client: turn == TURN and client in (4, 5))


def of_round(attack: Attack) -> list[Any]:
    """The numbers of every client of the round, and of every site, in order."""
    found, each = updates(attack.out, attack.records, sites=len(SITES)), CLIENTS + len(SITES)
    return [np.asarray(one).astype(np.int64) for one in found[TURN * each : (TURN + 1) * each]]


def wanted(attack: Attack) -> dict[tuple[str, ...], Any]:
    """The numbers of every honest client, and of every set of honest sites."""
    mine = of_round(attack)
    result: dict[tuple[str, ...], Any] = {(f"client {number}",): mine[number] for number in range(2 * len(HONEST))}
    for count in range(1, len(HONEST) + 1):
        for some in combinations(range(len(HONEST)), count):
            name = tuple(HONEST[place] for place in some)
            result[name] = np.sum([mine[CLIENTS + place] for place in some], axis=0)
    return result


def reached(attack: Attack, keys: list[bytes], numbers: Mapping[tuple[str, ...], Any]) -> set[tuple[str, ...]]:
    """Which of these numbers come out, exactly, of masked parts added up, with masks added or taken off in every way.

    The adversary also knows the colluder's own numbers.
    """
    own = of_round(attack)[-1].view(np.uint64)
    known = [own]
    for key in keys:
        known.append(np.zeros_like(own))
        add_masks(known[-1], [(key, False)])
    signs = np.array(list(product((0, 1, -1), repeat=len(known))), dtype=np.int64).view(np.uint64)
    combined = {row.tobytes() for row in signs @ np.array(known)}
    result = set()
    for count in range(1, len(SITES) + 1):
        for some in combinations(SITES, count):
            total = np.sum([attack.parts[site].values.view(np.uint64) for site in some], axis=0, dtype=np.uint64)
            result |= {name for name, one in numbers.items() if (one.view(np.uint64) - total).tobytes() in combined}
    return result

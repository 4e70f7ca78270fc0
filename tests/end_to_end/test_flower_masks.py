"""A dishonest server against masks that last for a run, on live guards: one deployment, every attack, one sum a round.

The server has the aggregator's keys, so all its questions are signed. It stops a run between the exchanges of a round
and asks what it likes; then the honest aggregator goes on, and the released bits are those of a simulation.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dishonest import Server, Stopped, Stopping, changed, code, masked_parts, run_of, sealed_for
from flower_trials import Recorded, released, simulated, text, trial_network, trial_records, updates

from fedveil.data.records import Records
from fedveil.federation.aggregator.consortium import Held
from fedveil.federation.agreements import named_blocks
from fedveil.federation.flower.local import LocalNetwork
from fedveil.jobs.remote import federated
from fedveil.planning.study import read_study_without_data
from fedveil.sums.masks.amortised import MaskedPart
from fedveil.sums.masks.keys import add_masks, recover
from fedveil.wire.content import Content

pytest.importorskip("flwr")
SITES = ["site-1", "site-2", "site-3"]
TRUST = '[trust]\nserver = "secure-aggregation"\nidentities = "sites"\n'
TURN = 1  # the round in which the server turns dishonest


@pytest.fixture(scope="module")
def records() -> Records:
    return trial_records()


@pytest.fixture(scope="module")
def network(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with trial_network(records, tmp_path_factory.mktemp("network")) as found:
        yield found


def test_a_dishonest_server_gets_one_sum_of_a_round(network: LocalNetwork, records: Records, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(text(dropouts=2).replace("[trust]\n", TRUST))
    study, out = read_study_without_data(tmp_path / "study.toml"), tmp_path / "out"
    out.mkdir()
    with network.carrier() as carrier:
        stopping = Stopping(carrier, network, TURN, "agree")
        with pytest.raises(Stopped):
            federated(study, out, network.deployment, stopping, Held())
    server, parts = Server(network, run_of(out), stopping.number), masked_parts(out)
    rows, before = stopping.asked(SITES[0], TURN, "mask").rows, stopping.asked(SITES[0], 0, "reveal")
    listing = Content(rows={"cohort": rows["cohort"]})

    # Two aggregators of one run: another model for this round, or for one that is over.
    other = Content(values={"stage": "mask"}, rows={**rows, "model": np.ones_like(rows["model"])})
    assert code(server.ask(SITES[0], TURN, other)) == "changed-round"
    assert code(server.ask(SITES[0], 0, other)) == "stale-round"

    # Mixed rounds: shares of the round before, and this round's question for others.
    assert code(server.ask(SITES[0], TURN, before)) == "bad-signature"  # signed for another round
    for turn in (0, 2):
        assert code(server.ask(SITES[0], turn, changed(listing, SITES, "agree"))) == "out-of-turn"

    # Lists that nobody may open: without the site itself, with too few, of strangers.
    for alive, word in (
        (SITES[1:], "other-survivors"),
        (SITES[:1], "too-few"),
        ([*SITES, "site-4"], "other-survivors"),
    ):
        assert code(server.ask(SITES[0], TURN, changed(listing, alive, "agree"))) == word

    # Different lists to different sites: each signs one, ever, and only one list finds a quorum.
    lists = {SITES[0]: SITES[:2], SITES[1]: SITES, SITES[2]: SITES}
    signatures = {}
    for site, alive in lists.items():
        said = server.ask(site, TURN, changed(listing, alive, "agree"))
        signatures[f"by {site}"] = said.content.blocks["signature"]
        another = SITES if alive != SITES else [one for one in SITES if one != SITES[(SITES.index(site) + 1) % 3]]
        assert code(server.ask(site, TURN, changed(listing, another, "agree"))) == "spent-round"
    mine = {"by site-1": signatures["by site-1"]}
    theirs = {name: one for name, one in signatures.items() if name != "by site-1"}
    opening = Content(rows=listing.rows, blocks=sealed_for(parts, SITES[0]))
    assert code(server.ask(SITES[0], TURN, changed(opening, SITES[:2], "reveal", mine))) == "no-quorum"
    forged = {**mine, "by site-2": mine["by site-1"]}
    assert code(server.ask(SITES[0], TURN, changed(opening, SITES[:2], "reveal", forged))) == "bad-signature"
    assert code(server.ask(SITES[0], TURN, changed(opening, SITES, "reveal", theirs))) == "spent-round"  # both kinds

    # The other two open the list that they signed: with their shares the sum of all three is known, as it should be.
    given = {}
    for site in SITES[1:]:
        asked = Content(rows=listing.rows, blocks=sealed_for(parts, site))
        for attempt in range(2):  # asked again, it says the same
            said = server.ask(site, TURN, changed(asked, SITES, "reveal", theirs))
            assert attempt == 0 or named_blocks(said.content, "of ") == given[site]
            given[site] = named_blocks(said.content, "of ")
        missing = [one for one in SITES if one != SITES[0]]
        assert code(server.ask(site, TURN, changed(asked, missing, "reveal", theirs))) == "spent-round"
    _check_nothing_else_opens(parts, given, updates(out, records))

    with network.carrier() as carrier:  # the honest aggregator comes back; two of three signatures are a quorum
        federated(study, out, network.deployment, Recorded(carrier), Held(), resume=True)
    assert released(out).tobytes() == simulated(out, records)[0].tobytes()


def _check_nothing_else_opens(
    parts: Mapping[str, MaskedPart], given: Mapping[str, Mapping[str, bytes]], secret: list[Any]
) -> None:
    """With every key that the server can compute, taken off in every way, no site's or client's numbers come out."""
    keys = []
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

"""Masked rounds with identity keys: an aggregator that lies about who is there opens no sum of its choosing."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.certificate.assumptions import assumptions
from fedveil.engine.train import train
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.agreements import enrolment, roster_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan, write_plan
from fedveil.privacy.trust import Trust
from fedveil.stages.adding import plain_sum
from fedveil.sums.masks.amortised import public_of
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused, peek, unseal
from fedveil.wire.keys import Identity
from unit.federations import SITES, Killed, Trial, made_up, study
from unit.plans import some_records
from unit.test_federate import missing
from unit.test_federate_masked import stopped_before
from unit.test_site_guard import ask

SIGNED = {"server": "secure-aggregation", "dropouts": 3, "timeout": 60.0, "identities": "sites"}
RUN = "0" * 32


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9))


def expected(trial: Trial, *lost: tuple[int, str]) -> bytes:
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    found = train(plan, trial.records, Entropy.from_seed(3), add_up=plain_sum, fails=missing(*lost)).model
    return bytes(found.tobytes())


@pytest.mark.parametrize("gone", [False, True])
def test_signed_rounds_give_the_same_bits_after_a_restart_and_without_a_site(trial: Trial, gone: bool) -> None:
    def stop(now: Any) -> None:
        trial.carrier.down = {"south"} if gone else set()
        raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust=SIGNED), watch=stop)
    trial.restart_guards()
    down = trial.carrier.down
    trial.carrier.down = set()

    def once(way: str, site: str, envelope: bytes) -> bytes | None:
        return None if site in down and peek(envelope).round == 1 else envelope

    trial.carrier.meddle = once
    trial.run(study(trust=SIGNED), resume=True)
    assert trial.model().tobytes() == expected(trial, *([(1, "south")] if gone else []))


def test_the_simulation_signs_too(trial: Trial) -> None:
    trial.run(study(trust=SIGNED))
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    assert train(plan, trial.records, Entropy.from_seed(3)).model.tobytes() == trial.model().tobytes()


def lists(trial: Trial, run: str = RUN) -> dict[str, bytes]:
    return {
        site: enrolment(trial.identities[site], run, range(k, 9, 3), public_of(made_up(site, 32)))
        for k, site in enumerate(SITES)
    }


def test_a_roster_holds_what_the_sites_have_signed_and_nothing_else(trial: Trial) -> None:
    good, cards = lists(trial), trial.cards
    roster = roster_of(good, cards, RUN, 9)
    assert roster.clients == {"east": (0, 3, 6), "north": (1, 4, 7), "south": (2, 5, 8)}
    east, forger = trial.identities["east"], Identity.make("east", made_up("forger"))
    key, mine = public_of(bytes(32)), range(0, 9, 3)
    bad: list[tuple[Mapping[str, bytes], str]] = [
        ({**good, "east": enrolment(forger, RUN, mine, key)}, "bad-signature"),
        ({**good, "east": good["north"]}, "bad-signature"),
        ({**good, "east": good["east"][:-1]}, "bad-signature"),
        ({**good, "east": b""}, "bad-signature"),
        ({**good, "east": enrolment(east, "1" * 32, mine, key)}, "other-roster"),
        ({**good, "east": enrolment(east, RUN, range(9), key)}, "other-roster"),  # also others' clients
        ({**good, "east": enrolment(east, RUN, [0, 3], key)}, "other-roster"),
        ({**good, "east": enrolment(east, RUN, mine, roster.keys["south"])}, "other-roster"),
        ({**good, "east": enrolment(east, RUN, mine, key[:-1])}, "malformed"),
        ({**good, "west": good["east"]}, "unknown-peers"),
        ({name: signed for name, signed in good.items() if name != "east"}, "unknown-peers"),
    ]
    for given, code in bad:
        with pytest.raises(Refused, match=code):
            roster_of(given, cards, RUN, 9)
    unsigned = {**good, "east": enrolment(forger, RUN, mine, key)}  # where sites do not know each other
    assert roster_of(unsigned, None, RUN, 9).keys["east"] == key


def test_an_aggregator_cannot_put_its_own_key_in_a_sites_place(trial: Trial) -> None:
    """The other sites refuse the list before the first round; where sites do not sign they cannot tell."""
    posing = Identity.make("south", made_up("posing"))

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        if (way, site, peek(envelope).kind) == ("down", "north", "roster"):
            raise Killed
        return envelope

    for trust, outcome in ((SIGNED, {"code": "bad-signature"}), ({**SIGNED, "identities": None}, {})):
        (folder := trial.folder / str(len(outcome))).mkdir()
        here = Trial(folder, trial.records)
        here.carrier.meddle = meddle
        with pytest.raises(Killed):
            here.run(study(trust={key: value for key, value in trust.items() if value is not None}))
        sent = here.carrier.sent[-1][1]
        good = Content.read(unseal(sent, here.identities["north"], here.aggregator.card).body).blocks
        false = enrolment(posing, peek(sent).run, range(2, 9, 3), public_of(made_up("mine", 32)))
        assert ask(here, peek(sent).run, "roster", 0, Content(blocks={**good, "south": false}))[1].values == outcome


def test_a_guard_takes_one_roster_for_a_run(trial: Trial) -> None:
    def stop(now: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust=SIGNED), watch=stop)
    sent = next(e for site, e in trial.carrier.sent if site == "north" and peek(e).kind == "roster")
    run = peek(sent).run
    good = Content.read(unseal(sent, trial.identities["north"], trial.aggregator.card).body)
    assert ask(trial, run, "roster", 0, good, 2**50)[0] == "known"
    other = {**good.blocks, "south": lists(trial, run)["south"]}
    assert ask(trial, run, "roster", 0, Content(blocks=other), 2**50 + 1)[1].values == {"code": "other-roster"}
    assert ask(trial, run, "roster", 0, Content(), 2**50 + 2)[1].values == {"code": "unknown-peers"}


def test_a_site_enrols_as_it_accepts_and_its_key_is_drawn_once(trial: Trial) -> None:
    """A restarted guard that accepts again says the same; without the key that the others know it goes no further."""

    def stop(now: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust=SIGNED), watch=stop)
    sent = next(e for site, e in trial.carrier.sent if site == "north" and peek(e).kind == "propose")
    told = next(e for site, e in trial.carrier.sent if site == "north" and peek(e).kind == "roster")
    lists = Content.read(unseal(told, trial.identities["north"], trial.aggregator.card).body).blocks
    asked = Content.read(unseal(sent, trial.identities["north"], trial.aggregator.card).body)
    trial.restart_guards()
    kind, answer = ask(trial, peek(sent).run, "propose", 0, asked, 2**50)
    assert (kind, answer.blocks) == ("accepted", {"list": lists["north"]})
    (trial.folder / "north" / "runs" / peek(sent).run / "private" / "masks.key").unlink()
    trial.restart_guards()
    assert ask(trial, peek(sent).run, "propose", 0, asked, 2**50 + 1)[1].values == {"code": "lost-key"}


def test_no_sum_is_opened_that_a_quorum_has_not_signed(trial: Trial) -> None:
    """Three sites, one of which may be missing: too few for each to decide alone who is in the sum."""
    run, asked = stopped_before(trial, "reveal", 1, SIGNED)
    signatures = {name: block for name, block in asked.blocks.items() if name.startswith("by ")}
    assert sorted(signatures) == ["by east", "by north", "by south"]
    shares = {name: block for name, block in asked.blocks.items() if name.startswith("from ")}

    def told(blocks: Mapping[str, bytes]) -> Content:
        return Content(values=asked.values, rows=asked.rows, blocks={**shares, **blocks})

    bad = [
        ({}, "no-quorum"),
        ({"by east": signatures["by east"]}, "no-quorum"),
        ({"by east": signatures["by east"], "by north": signatures["by east"]}, "bad-signature"),
        ({**signatures, "by west": signatures["by east"]}, "other-survivors"),
    ]
    for number, (blocks, code) in enumerate(bad):
        assert ask(trial, run, "masked", 1, told(blocks), 2**50 + number)[1].values == {"code": code}
    fewer = Content(values={"stage": "agree", "alive": ["east", "north"]}, rows=asked.rows)
    assert ask(trial, run, "masked", 1, fewer, 2**51)[1].values == {"code": "spent-round"}  # it has signed all three
    assert ask(trial, run, "masked", 1, asked, 2**51 + 1)[0] == "masked"


def test_sites_that_do_not_know_each_other_sign_nothing(trial: Trial) -> None:
    guard = trial.carrier.guards["south"]
    guard.site = replace(guard.site, peers={})
    with pytest.raises(SiteRefused, match="south refuses: it has no public keys of the other sites"):
        trial.run(study(trust=SIGNED))


def test_what_is_promised_against_a_server_that_lies_is_said_only_then(trial: Trial) -> None:
    rows = {}
    for name, trust in (("signed", SIGNED), ("not", {**SIGNED, "identities": None})):
        given = {key: value for key, value in trust.items() if value is not None}
        plan = study(trust=given).planned(trial.records.shape).plan
        said = {row.name: row for row in assumptions(plan, "server-with-secure-aggregation")}
        rows[name] = said["the server learns sums only"]
        assert ("identities" in write_plan(plan)) == (name == "signed")  # other plans keep their names
    assert "also for a server that lies" in rows["signed"].enforced_by
    assert "for a server that keeps to the protocol" in rows["not"].enforced_by


@pytest.mark.parametrize("server", ["trusted", "homomorphic"])
def test_only_masks_are_signed(server: Any) -> None:
    with pytest.raises(ValueError, match=r"trust\.identities must be left out with a server other than"):
        Trust(server=server, identities="sites")

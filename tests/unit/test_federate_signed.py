"""Masked rounds with identity keys: an aggregator that lies about who is there opens no sum of its choosing."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.certificate.assumptions import assumptions
from fedveil.engine.train import train
from fedveil.federation.aggregator.refusals import SiteRefused
from fedveil.federation.agreements.enrolment import enrolled, enrolment, roster_of, signer_of
from fedveil.federation.agreements.masked import setting_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan, write_plan
from fedveil.privacy.trust import Trust
from fedveil.stages.adding import plain_sum
from fedveil.theory.neighbours import graph_failure, recovery_failure
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused, peek, unseal
from fedveil.wire.keys import Identity
from unit.federations import SITES, Killed, Trial, made_up, study
from unit.plans import some_records
from unit.test_federate import missing
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


@pytest.mark.parametrize("signed", [True, False])
def test_who_is_told_a_false_key_of_another_client_leaves_the_round_if_keys_are_signed(
    trial: Trial, signed: bool
) -> None:
    """Without signatures the north goes on, and seals its secrets for whoever made up the key."""
    stages: list[int] = []

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        if (way, site, peek(envelope).kind) == ("down", "north", "masked"):
            stages.append(peek(envelope).round)
            if len(stages) == 2:
                raise Killed
        return envelope

    trial.carrier.meddle = meddle
    trust = SIGNED if signed else {key: value for key, value in SIGNED.items() if key != "identities"}
    with pytest.raises(Killed):
        trial.run(study(trust=trust))
    told = trial.carrier.sent[-1][1]
    asked = Content.read(unseal(told, trial.identities["north"], trial.aggregator.card).body)
    assert asked.values["stage"] == "share"
    first = next(e for site, e in trial.carrier.back if site == "south" and peek(e).kind == "masked")
    advert = Content.read(unseal(first, trial.aggregator, trial.cards["south"]).body).blocks["2"]
    keys = advert[-128:-64] if signed else advert[-64:]
    mine = Identity.make("aggregator", made_up("posing")).card.seal
    found = [keys in block for block in asked.blocks.values()]
    assert all(found) if signed else any(found)  # signed, all are neighbours
    blocks = {name: block.replace(keys, mine + keys[32:]) for name, block in asked.blocks.items()}
    kind, answer = ask(trial, peek(told).run, "masked", 0, Content(values=asked.values, blocks=blocks))
    assert (kind, sorted(answer.blocks)) == ("masked", [] if signed else ["1", "4", "7"])


def lists(trial: Trial, run: str = RUN) -> dict[str, bytes]:
    return {site: enrolment(trial.identities[site], run, range(k, 9, 3)) for k, site in enumerate(SITES)}


def test_a_roster_holds_what_the_sites_have_signed_and_nothing_else(trial: Trial) -> None:
    good, cards = lists(trial), trial.cards
    keys = roster_of(good, cards, RUN, 9)
    assert len(set(keys.values())) == 9
    east, forger = trial.identities["east"], Identity.make("east", made_up("forger"))
    bad: list[tuple[Mapping[str, bytes], str]] = [
        ({**good, "east": enrolment(forger, RUN, range(0, 9, 3))}, "bad-signature"),
        ({**good, "east": good["north"]}, "bad-signature"),
        ({**good, "east": good["east"][:-1]}, "bad-signature"),
        ({**good, "east": b""}, "bad-signature"),
        ({**good, "east": enrolment(east, "1" * 32, range(0, 9, 3))}, "other-roster"),
        ({**good, "east": enrolment(east, RUN, range(9))}, "other-roster"),  # also others' clients
        ({**good, "east": enrolment(east, RUN, [0, 3])}, "other-roster"),
        ({**good, "west": good["east"]}, "unknown-peers"),
        ({name: signed for name, signed in good.items() if name != "east"}, "unknown-peers"),
    ]
    for given, code in bad:
        with pytest.raises(Refused, match=code):
            roster_of(given, cards, RUN, 9)
    assert enrolled(good["east"], cards["east"], RUN).keys() == {0, 3, 6}
    secrets = {signer_of(east, run, client) for run in (RUN, "1" * 32) for client in (0, 3)}
    assert len(secrets) == 4


def test_a_guard_takes_one_roster_for_a_run(trial: Trial) -> None:
    def stop(now: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust=SIGNED), watch=stop)
    run = peek(trial.carrier.sent[-1][1]).run
    good = Content(blocks=lists(trial, run))
    assert ask(trial, run, "roster", 0, good, 2**50)[0] == "known"
    swapped = {
        site: enrolment(trial.identities[site], run, range(k, 9, 3))
        for k, site in enumerate(("south", "north", "east"))
    }
    assert ask(trial, run, "roster", 0, Content(blocks=swapped), 2**50 + 1)[1].values == {"code": "other-roster"}
    assert ask(trial, run, "roster", 0, Content(), 2**50 + 2)[1].values == {"code": "unknown-peers"}


def test_sites_that_do_not_know_each_other_sign_nothing(trial: Trial) -> None:
    guard = trial.carrier.guards["south"]
    guard.site = replace(guard.site, peers={})
    with pytest.raises(SiteRefused, match="south refuses: it has no public keys of the other sites"):
        trial.run(study(trust=SIGNED))


def test_all_are_neighbours_and_nothing_is_left_to_chance(trial: Trial) -> None:
    plan = study(trust={**SIGNED, "colluders": 1}).planned(trial.records.shape).plan
    found = setting_of(plan, RUN, 0, tuple(range(9)), roster_of(lists(trial), trial.cards, RUN, 9))
    assert (found.neighbours, found.threshold, len(found.identities)) == (8, 6, 9)
    assert graph_failure(9, found.neighbours, found.threshold, 1, 3, active=True) == 0
    assert recovery_failure(9, found.neighbours, found.threshold, 3) == 0


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

"""SimFL across sites: the leader changes every round, the bits are those of one process, and the carrier reads none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.planning.study import Study, study_of
from fedveil.stages.train.simfl.acts import Message, train_simfl
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, seal, unseal
from unit.federations import SITES, Killed, Trial, made_up, tables
from unit.plans import some_records
from unit.test_site_guard import ask

ROUNDS = 7


def wanted(**study: Any) -> Study:
    found = tables(
        study=study or {"seed": 3},
        privacy={"epsilon": 30.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "curious-client"},
        algorithm={"kind": "simfl", "momentum": 0.5, "rate": 0.5},
        schedule={"rounds": ROUNDS},
    )
    del found["trust"]
    return study_of(found, base=Path(), name="trial", data_given=True)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=3))


def simulated(trial: Trial) -> tuple[bytes, list[Message]]:
    plan, seen = read_plan((trial.folder / "out" / "plan.toml").read_text()), list[Message]()
    found = train_simfl(plan, trial.records, Entropy.from_seed(3), lambda _: None, wire=seen.append)
    return found.model.tobytes(), seen


def stopped(trial: Trial, rounds: int) -> str:
    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(wanted(), watch=watch)
    return peek(trial.carrier.sent[-1][1]).run


def test_three_sites_lead_in_turn_and_give_the_same_bits(trial: Trial) -> None:
    trial.run(wanted())
    assert trial.model().tobytes() == simulated(trial)[0]
    led = [(peek(e).round, site) for site, e in trial.carrier.sent if peek(e).kind == "lead"]
    assert led == [(turn, SITES[turn % 3]) for turn in range(ROUNDS)]
    for site in SITES:
        (folder,) = (trial.folder / site / "runs").iterdir()
        assert certify(folder, "0").plan == certify(trial.folder / "out", "0").plan


@pytest.mark.parametrize("way", ["down", "up"])
@pytest.mark.parametrize(("kind", "site"), [("party", "south"), ("lead", "north")])
def test_killed_in_a_round_everything_goes_on_to_the_same_bits(trial: Trial, way: str, kind: str, site: str) -> None:
    """The aggregator and the guards, before or after a site of round 5 has done its part."""
    alive, wait = [True], {"party": "sum", "lead": "led"}[kind] if way == "up" else kind

    def meddle(here: str, name: str, envelope: bytes) -> bytes:
        head = peek(envelope)
        if alive and (here, name, head.kind, head.round) == (way, site, wait, 4):
            alive.clear()
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(wanted())
    trial.restart_guards()
    trial.run(wanted(), resume=True)
    assert trial.model().tobytes() == simulated(trial)[0]


def test_the_aggregator_reads_no_sum_and_no_model_but_the_last(trial: Trial) -> None:
    """It opens every envelope that is for it: no message between the parties is in one, nor on its disk."""
    trial.run(wanted())
    told = b"".join(unseal(e, trial.aggregator, trial.cards[site]).body for site, e in trial.carrier.back)
    kept = b"".join(path.read_bytes() for path in (trial.folder / "out" / "private").rglob("*") if path.is_file())
    _, seen = simulated(trial)
    secret = [message for message in seen if (message.what, message.round) != ("model", ROUNDS - 1)]
    assert len(secret) == 2 * 2 * ROUNDS - 2
    for message in secret:
        data = message.content.tobytes()
        assert not any(data[at : at + 8] in told + kept for at in range(0, len(data), 8) if any(data[at : at + 8]))


def questions(trial: Trial, site: str, kind: str) -> list[Content]:
    sent = [e for name, e in trial.carrier.sent if name == site and peek(e).kind == kind]
    return [Content.read(unseal(e, trial.identities[site], trial.aggregator.card).body) for e in sent]


def test_a_round_has_one_model_and_one_leader(trial: Trial) -> None:
    """The north after round 4: it leads rounds 2 and 5, and has answered the others."""
    run = stopped(trial, 4)
    old = questions(trial, "north", "party")
    assert ask(trial, run, "party", 3, old[-1], 2**50)[0] == "sum"  # again: the same
    answers = [ask(trial, run, "party", 3, content, 2**50 + 1 + k)[1] for k, content in enumerate([old[0], Content()])]
    sums = [unseal(a.blocks["sum"], trial.identities["east"], trial.cards["north"]).body for a in answers]
    assert len(set(sums)) == 1  # whatever is said now: the model of round 4 is known
    assert ask(trial, run, "party", 2, old[-1], 2**51)[1].values == {"code": "stale-round"}
    assert ask(trial, run, "party", 4, old[-1], 2**51 + 1)[1].values == {"code": "out-of-turn"}
    assert ask(trial, run, "lead", 3, old[-1], 2**51 + 2)[1].values == {"code": "out-of-turn"}
    assert ask(trial, run, "lead", 4, old[-1], 2**51 + 3)[1].values == {"code": "wrong-party"}  # the leader before
    assert ask(trial, run, "party", 7, old[-1], 2**51 + 4)[1].values == {"code": "no-such-round"}
    assert ask(trial, run, "step", 4, old[-1], 2**51 + 5)[1].values == {"code": "not-in-the-open"}


def row(sum_: Any) -> Content:
    return Content(rows={"sum": sum_})


LIES: dict[str, Callable[[Any], Content]] = {
    "NaN": lambda said: row(np.full(said.size, np.nan)),
    "wrong shape": lambda said: row(said[:-1]),
    "no whole numbers": lambda said: row(said + 0.5),
    "10000 times as much": lambda said: row(said * 10_000),
    "nothing": lambda said: Content(),
}


@pytest.mark.parametrize("lie", [*sorted(LIES), "another's", "cut", "forged", "old"])
def test_a_leader_takes_no_sum_that_is_none(trial: Trial, lie: str) -> None:
    """The south lies to the north, which leads round 5; or whoever carries its sum puts another in its place."""

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        if (way, peek(envelope).kind, peek(envelope).round) == ("down", "lead", 4):
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(wanted())
    north, south, run = trial.identities["north"], trial.identities["south"], peek(trial.carrier.sent[-1][1]).run
    first, good = questions(trial, "north", "lead")
    envelope = good.blocks["south"]
    opened = unseal(envelope, north, south.card)
    if lie in LIES:
        said = LIES[lie](Content.read(opened.body).rows["sum"])
        bad, code = seal(opened.head, said.write(), south, north.card, made_up("lie", 32)), "bad-sum"
    else:
        bad, code = {
            "another's": (good.blocks["east"], "wrong-party"),
            "cut": (envelope[:-1], "bad-signature"),
            "forged": (envelope[:-64] + trial.aggregator.signer.sign(envelope[:-64]), "bad-signature"),
            "old": (first.blocks["south"], "stale-round"),
        }[lie]
    kind, answer = ask(trial, run, "lead", 4, Content(blocks={**good.blocks, "south": bad}), 2**50)
    assert (kind, answer.values) == ("refused", {"code": code})
    assert ask(trial, run, "lead", 4, good, 2**50 + 1)[0] == "led"


def test_private_runs_draw_their_own_noise(trial: Trial) -> None:
    out = trial.run(wanted(name="private"))
    assert certify(out, "0").private
    assert trial.model().tobytes() != simulated(trial)[0]


def test_a_party_is_a_site_that_knows_the_others(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    (tmp_path / "few").mkdir()
    with pytest.raises(ValueError, match="one at each site for simfl"):
        Trial(tmp_path / "many", some_records(60, clients=9)).run(wanted())
    trial = Trial(tmp_path / "few", some_records(60, clients=3))
    guard = trial.carrier.guards["south"]
    guard.site = replace(guard.site, peers={"north": trial.cards["north"]})
    with pytest.raises(SiteRefused, match="south refuses: it has no public keys of the other sites"):
        trial.run(wanted())

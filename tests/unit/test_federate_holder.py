"""Encrypted sums that a third party opens: the plain sum's bits; no site and no aggregator ever has the key."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import TooFewSurvivors
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.agreements import KEY_FILE, parameters_of, vouched
from fedveil.planning.plan import read_plan, write_plan
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.sums.homomorphic.roles import make_keys
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused, peek, unseal
from fedveil.wire.keys import Identity
from unit.federated_studies import STUDIES
from unit.federations import SITES, Killed, Trial, made_up, study
from unit.plans import some_records
from unit.test_federate_encrypted import SUMS, expected, private, summed, wide_windows
from unit.test_site_guard import ask

pytestmark = pytest.mark.skipif(not has_tenseal(), reason="TenSEAL is not installed (fedveil[he])")
HELD = {"server": "homomorphic", "key_holder": "third-party", "dropouts": 3, "colluders": 2, "timeout": 60.0}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9), keeper=True)


def stopped(trial: Trial, rounds: int = 1, **parts: Any) -> str:
    """Run some rounds, then kill the aggregator; the run's name."""

    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust=HELD, **parts), watch=watch)
    return peek(trial.carrier.sent[-1][1]).run


def bodies(trial: Trial, kind: str) -> list[tuple[str, int, Content]]:
    """All that the aggregator sent of a kind: to whom, in which round, and what."""
    owners = {**trial.identities, "keeper": trial.third}
    return [
        (to, peek(e).round, Content.read(unseal(e, owners[to], trial.aggregator.card).body))
        for to, e in trial.carrier.sent
        if peek(e).kind == kind
    ]


def opened_rounds(trial: Trial) -> list[tuple[int, int]]:
    """What the holder has noted: round and clients."""
    path = private(trial, "keeper").parent / "opened.jsonl"
    return [(line["round"], line["clients"]) for line in map(json.loads, path.read_text().splitlines())]


def plan_in(trial: Trial) -> Any:
    return read_plan((trial.folder / "out" / "plan.toml").read_text())


@pytest.mark.parametrize("make", [lambda: study(), STUDIES["fedavg"], wide_windows], ids=["hidden", "fedavg", "dpsgd"])
def test_the_same_bits_as_in_one_process(trial: Trial, make: Callable[[], Any]) -> None:
    wanted = make()
    trial.run(replace(wanted, trust=replace(wanted.trust, server="homomorphic", key_holder="third-party")))
    assert trial.model().tobytes() == expected(trial)
    assert {to for to, _, _ in bodies(trial, "open")} == {"keeper"}
    assert [turn for turn, _ in opened_rounds(trial)] == list(range(1, 1 + len(bodies(trial, "open"))))
    assert {to for to, e in trial.carrier.sent if peek(e).kind == "finish"} == {*SITES, "keeper"}
    assert not any((private(trial, name) / KEY_FILE).exists() for name in (*SITES, "keeper"))


def test_only_the_holder_ever_has_the_key_and_it_gets_no_data(trial: Trial) -> None:
    stopped(trial, 2)
    held = Content.read((private(trial, "keeper") / KEY_FILE).read_bytes()).blocks
    end = held["secret"][-4096:]  # the secret key stands behind the public one
    pieces = [end[at : at + 64] for at in range(0, 4032, 256)]
    for place in (*SITES, "out"):
        kept = b"".join(path.read_bytes() for path in (trial.folder / place).rglob("*") if path.is_file())
        assert not any(piece in kept for piece in pieces)
        assert held["public"] in kept
    told = b"".join(
        unseal(e, trial.aggregator, trial.third.card if to == "keeper" else trial.cards[to]).body
        for to, e in trial.carrier.back
    )
    assert not any(piece in told for piece in pieces)
    # Neither the seed of the noise, nor a model, nor a client's message goes to the holder: plan, sums, and no more.
    kinds = [peek(e).kind for to, e in trial.carrier.sent if to == "keeper"]
    assert kinds == ["propose", "make-key", "open", "open"]
    ((_, _, shown),) = [one for one in bodies(trial, "propose") if one[0] == "keeper"]
    assert (set(shown.values), set(shown.rows), set(shown.blocks)) == ({"plan"}, set(), {"plan"})


@pytest.mark.parametrize("kind", ["accepted", "made", "taken", "encrypted", "opened", "recorded"])
def test_killed_at_any_moment_everything_goes_on_to_the_same_bits(trial: Trial, kind: str) -> None:
    """All of them at once: the aggregator, the guards and the holder; round 2 where it is in a round."""
    alive = [True]

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        head = peek(envelope)
        if alive and (way, head.kind) == ("up", kind) and (head.round == 1 or kind not in ("encrypted", "opened")):
            alive.clear()
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study(trust=HELD))
    trial.restart_guards()
    trial.run(study(trust=HELD), resume=True)
    assert trial.model().tobytes() == expected(trial)
    sums: dict[int, set[bytes]] = {}
    for _, turn, said in bodies(trial, "open"):
        sums.setdefault(turn, set()).add(said.blocks["sum"])
    assert [len(sums[turn]) for turn in range(3)] == [1, 1, 1]
    assert opened_rounds(trial) == [(1, 9), (2, 9), (3, 9)]
    assert not any((private(trial, name) / KEY_FILE).exists() for name in (*SITES, "keeper"))


def test_killed_between_the_log_of_the_sum_and_its_opening(trial: Trial) -> None:
    """The sum of the first start is the one that is opened, though other sites are there when it goes on."""

    def meddle(way: str, site: str, envelope: bytes) -> bytes | None:
        head = peek(envelope)
        if (way, site, head.kind, head.round) == ("down", "south", "encrypt", 1):
            return None
        if (head.kind, head.round) == ("open", 1):
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study(trust=HELD))
    trial.carrier.meddle = lambda way, site, envelope: envelope
    trial.restart_guards()
    trial.run(study(trust=HELD), resume=True)
    assert trial.model().tobytes() == expected(trial, (1, "south"))
    assert opened_rounds(trial) == [(1, 9), (2, 6), (3, 9)]


def test_one_sum_of_a_round_is_opened_ever(trial: Trial) -> None:
    run = stopped(trial)
    first, other = (Content(blocks={"sum": summed(trial, 1, range(9))}) for _ in range(2))
    for number in range(2):
        kind, answer = ask(trial, run, "open", 1, first, 2**50 + number, "keeper")
        assert (kind, answer.rows["total"].tolist()) == ("opened", [36] * 3)
        trial.restart_guards()
    for number in (2, 3):
        assert ask(trial, run, "open", 1, other, 2**50 + number, "keeper")[1].values == {"code": "spent-round"}
        trial.restart_guards()
    assert ask(trial, run, "open", 0, other, 2**50 + 4, "keeper")[1].values == {"code": "spent-round"}
    assert opened_rounds(trial) == [(1, 9), (2, 9)]


def test_what_is_no_sum_of_the_round_is_not_opened_and_spends_it(trial: Trial) -> None:
    schedule = {"rounds": 8, "passes": 1, "batch": 7, "step_size": 0.5, "noise_std": 8.0}
    run = stopped(trial, schedule=schedule)
    for turn, what in enumerate(sorted(SUMS), start=1):
        bad = Content(blocks={"sum": SUMS[what](trial, turn)})
        kind, answer = ask(trial, run, "open", turn, bad, 2**50 + 2 * turn, "keeper")
        assert (kind, answer.values, dict(answer.rows)) == ("refused", {"code": "no-sum"}, {})
        good = Content(blocks={"sum": summed(trial, turn, range(9))})
        again = ask(trial, run, "open", turn, good, 2**50 + 2 * turn + 1, "keeper")[1]
        assert again.values == {"code": "spent-round"}
    assert ask(trial, run, "open", 8, good, 2**51, "keeper")[1].values == {"code": "no-such-round"}
    assert opened_rounds(trial) == [(1, 9)]


def keyless(trial: Trial) -> str:
    """All have agreed, and the sites have no key yet; the run's name."""
    trial.carrier.meddle = lambda way, site, e: None if peek(e).kind == "take-key" else e
    with pytest.raises(SiteRefused, match="did not answer"):
        trial.run(study(trust=HELD))
    return peek(trial.carrier.sent[-1][1]).run


def test_a_site_encrypts_under_no_key_that_the_holder_has_not_signed_for_this_run_and_plan(trial: Trial) -> None:
    run = keyless(trial)
    plan, path = plan_in(trial), private(trial, "north") / KEY_FILE
    mine = make_keys(parameters_of(plan)).public
    good = vouched(trial.third, run, plan.hash, mine)
    given = [
        (vouched(trial.aggregator, run, plan.hash, mine), "not-the-holders"),  # the aggregator's own in its place
        (vouched(trial.identities["east"], run, plan.hash, mine), "not-the-holders"),
        (vouched(Identity.make("keeper", made_up("forger")), run, plan.hash, mine), "not-the-holders"),
        (vouched(replace(trial.third, name="other"), run, plan.hash, mine), "other-key"),
        (vouched(trial.third, "f" * 32, plan.hash, mine), "other-key"),  # of another run
        (vouched(trial.third, run, "0" * 64, mine), "other-key"),  # for another plan
        (good[:-1], "not-the-holders"),
        (good[:64] + good[64:].replace(run.encode(), b"f" * 32), "not-the-holders"),
        (b"", "not-the-holders"),
        (vouched(trial.third, run, plan.hash, b"no key"), "no-encryption"),
    ]
    for number, (signed, code) in enumerate(given):
        kind, answer = ask(trial, run, "take-key", 0, Content(blocks={"key": signed}), 2**50 + number)
        assert (kind, answer.values) == ("refused", {"code": code})
    assert not path.exists()
    model = Content(rows={"model": np.zeros(plan.dimension)})
    assert ask(trial, run, "encrypt", 0, model, 2**51)[1].values == {"code": "no-key"}
    assert ask(trial, run, "take-key", 0, Content(blocks={"key": good}), 2**51 + 1)[0] == "taken"
    kept = path.read_bytes()
    second = vouched(trial.third, run, plan.hash, make_keys(parameters_of(plan)).public)
    refused = ask(trial, run, "take-key", 0, Content(blocks={"key": second}), 2**51 + 2)[1]
    assert refused.values == {"code": "other-key"}
    assert path.read_bytes() == kept


def test_sites_open_nothing_and_make_no_key(trial: Trial) -> None:
    run = stopped(trial)
    message = summed(trial, 1, range(9))
    for number, kind in enumerate(("make-key", "consent", "open")):
        asked = Content(values={"sum": "0" * 64}, blocks={"sum": message})
        assert ask(trial, run, kind, 1, asked, 2**50 + number)[1].values == {"code": "not-the-holder"}


def test_a_holder_answers_what_is_new_signed_and_of_a_plan_it_has_accepted(trial: Trial) -> None:
    run = stopped(trial)
    replayed = next(e for to, e in reversed(trial.carrier.sent) if to == "keeper")
    with pytest.raises(Refused, match="replayed"):
        trial.holder().handle(replayed)
    for number, kind in enumerate(("hello", "step", "encrypt", "take-key", "consent")):
        assert ask(trial, run, kind, 0, Content(), 2**50 + number, "keeper")[1].values == {"code": "unknown-kind"}
    other = "e" * 32  # a run that it has agreed to nothing in
    for number, kind in enumerate(("make-key", "open", "finish")):
        assert ask(trial, other, kind, 0, Content(), number, "keeper")[1].values == {"code": "not-accepted"}


def proposed(plan: Any, name: str | None = None) -> Content:
    return Content(values={"plan": name or plan.hash}, blocks={"plan": write_plan(plan).encode()})


def test_a_plan_that_changes_or_that_nobody_accepted_is_refused(trial: Trial) -> None:
    run = keyless(trial)
    plan = plan_in(trial)
    # All but one may be missing: under it a single message would be a sum.
    loose = replace(plan, trust=replace(plan.trust, dropouts=plan.data.clients - 1, colluders=0))
    mine = replace(plan, trust=replace(plan.trust, key_holder="clients", colluders=0))

    def propose(name: str, asked: Content, number: int) -> tuple[str, Content]:
        return ask(trial, name, "propose", 0, asked, number, "keeper")

    assert propose(run, proposed(loose), 2**50)[1].values == {"code": "other-plan"}
    assert propose(run, proposed(plan, loose.hash), 2**50 + 1)[1].values == {"code": "other-plan"}
    assert propose("a" * 32, proposed(mine), 1)[1].values == {"code": "no-third-party"}
    trial.carrier.guards["keeper"] = trial.holder(accept=plan.hash)
    assert propose("b" * 32, proposed(loose), 1)[1].values == {"code": "not-accepted"}
    assert not (trial.folder / "keeper" / "runs" / ("b" * 32) / "private" / KEY_FILE).exists()
    assert propose("b" * 32, proposed(plan), 2)[0] == "accepted"


def test_a_holder_that_was_shown_a_laxer_plan_makes_a_key_that_the_sites_do_not_take(trial: Trial) -> None:
    """Under a plan that lets all but one be missing it would open a single message; the sites have another plan."""
    run, elsewhere = keyless(trial), trial.folder / "elsewhere"
    plan = plan_in(trial)
    loose = replace(plan, trust=replace(plan.trust, dropouts=plan.data.clients - 1, colluders=0))
    trial.carrier.guards["keeper"] = replace(trial.holder(), folder=elsewhere)  # has not seen this run yet
    assert ask(trial, run, "propose", 0, proposed(loose), 1, "keeper")[0] == "accepted"
    kind, made = ask(trial, run, "make-key", 0, Content(), 2, "keeper")
    assert kind == "made"
    assert ask(trial, run, "take-key", 0, made, 2**50)[1].values == {"code": "other-key"}
    assert not (private(trial, "north") / KEY_FILE).exists()


def test_after_the_end_the_key_is_gone_and_nothing_is_opened(trial: Trial) -> None:
    run = stopped(trial, 2)
    message = Content(blocks={"sum": summed(trial, 2, range(9))})
    assert ask(trial, run, "finish", 0, Content(), 2**40, "keeper")[0] == "recorded"
    assert not (private(trial, "keeper") / KEY_FILE).exists()
    for number, kind in enumerate(("open", "make-key")):
        assert ask(trial, run, kind, 2, message, 2**50 + number, "keeper")[1].values == {"code": "finished"}
    again = ask(trial, run, "propose", 0, proposed(plan_in(trial)), 2**50 + 2, "keeper")
    assert again[1].values == {"code": "finished"}
    assert ask(trial, run, "finish", 0, Content(), 2**51, "keeper")[0] == "recorded"  # said again, after a crash
    assert not (private(trial, "keeper") / KEY_FILE).exists()


def test_a_holder_that_is_away_is_waited_for_and_named(trial: Trial) -> None:
    trial.carrier.down = {"keeper"}
    with pytest.raises(SiteRefused, match="Key holder keeper did not answer within 60 seconds"):
        trial.run(study(trust=HELD))
    trial.carrier.down, shut = set(), [True]
    trial.carrier.meddle = lambda way, site, e: None if shut and peek(e).kind == "open" else e
    with pytest.raises(TooFewSurvivors, match="The key holder keeper, who alone can open the sum of round 1, does not"):
        trial.run(study(trust=HELD), resume=True)
    shut.clear()
    trial.run(study(trust=HELD), resume=True)
    assert trial.model().tobytes() == expected(trial)


def test_a_holder_that_refuses_is_named_before_anybody_is_charged(trial: Trial) -> None:
    trial.carrier.guards["keeper"] = trial.holder(accept="0" * 64)
    with pytest.raises(SiteRefused, match="Key holder keeper refuses: its operator has not accepted this plan"):
        trial.run(study(trust=HELD))
    assert not any((trial.folder / site / "ledger.sqlite").exists() for site in SITES)


def test_sites_that_know_no_holder_or_another_do_not_take_part(trial: Trial) -> None:
    guard: Any = trial.carrier.guards["south"]
    guard.site = replace(guard.site, holder=None)
    with pytest.raises(SiteRefused, match="south refuses: it has no public key of the key holder"):
        trial.run(study(trust=HELD))
    guard.site = replace(guard.site, holder=Identity.make("keeper", made_up("somebody")).card)
    with pytest.raises(SiteRefused, match="south refuses: the key of sums is not signed by the key holder"):
        trial.run(study(trust=HELD), resume=True)
    for card in (trial.aggregator.card, trial.cards["north"], trial.cards["south"]):
        with pytest.raises(ValueError, match="be the key of neither a site nor the aggregator"):
            replace(guard.site, holder=card)


def test_a_deployment_without_a_holder_refuses_such_a_plan(tmp_path: Path) -> None:
    trial = Trial(tmp_path, some_records(60, clients=9))
    with pytest.raises(ValueError, match="key_holder must be clients where a deployment has no key holder"):
        trial.run(study(trust=HELD))
    assert not any(peek(e).kind == "propose" for _, e in trial.carrier.sent)

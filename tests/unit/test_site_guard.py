"""A site's guard answers what the aggregator signed, once, for a plan its operator accepted; and nothing else."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify, differences
from fedveil.federation.aggregator.turn import SiteRefused
from fedveil.federation.site.guard import Terms
from fedveil.federation.site.stages import SiteStages
from fedveil.ledger.books import Ledger
from fedveil.planning.plan import write_plan
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Refused, peek, seal, unseal
from fedveil.wire.keys import Identity
from unit.federations import TRIALS, Killed, Trial, made_up, study
from unit.plans import some_records


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9))


def stop_after(trial: Trial, rounds: int) -> str:
    """Run some rounds, then kill the aggregator; the run's name."""

    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study(), watch=watch)
    return peek(trial.carrier.sent[-1][1]).run


def ask(
    trial: Trial, run: str, kind: str, turn: int, content: Content, number: int = 2**50, site: str = "north"
) -> tuple[str, Content]:
    """An instruction that the aggregator has signed, straight to the guard of the north, or of another site."""
    head = Head(run=run, sender="aggregator", receiver=site, kind=kind, round=turn, number=number)
    once = made_up(f"{kind} {turn} {number}", 32)
    card = trial.third.card if site == "keeper" else trial.cards[site]
    envelope = seal(head, content.write(), trial.aggregator, card, once)
    opened = unseal(trial.carrier.guards[site].handle(envelope), trial.aggregator, card)
    return opened.head.kind, Content.read(opened.body)


def asked_last(trial: Trial, kind: str = "step") -> tuple[bytes, Content]:
    """The last instruction of this kind to the north, and what it asked."""
    sent = [e for site, e in trial.carrier.sent if site == "north" and peek(e).kind == kind]
    return sent[-1], Content.read(unseal(sent[-1], trial.identities["north"], trial.aggregator.card).body)


def test_every_site_ends_with_a_record_that_certifies(trial: Trial) -> None:
    out = trial.run(study())
    for site in trial.identities:
        (folder,) = (trial.folder / site / "runs").iterdir()
        found = certify(folder, "0")
        assert differences(found, (folder / "certificate.json").read_text()) == []
        assert (folder / "model.npz").read_bytes() == (out / "model.npz").read_bytes()
        assert (folder / "plan.toml").read_bytes() == (out / "plan.toml").read_bytes()
        assert not (folder / "private" / "key").exists()
    assert [plan.hash for plan in trial.plans] == [certify(out, "0").plan.hash] * 3  # shown before the first update


def test_a_replayed_instruction_is_refused_also_by_a_restarted_guard(trial: Trial) -> None:
    stop_after(trial, 2)
    envelope, _ = asked_last(trial)
    with pytest.raises(Refused, match="replayed"):
        trial.carrier.guards["north"].handle(envelope)
    trial.restart_guards()
    with pytest.raises(Refused, match="replayed"):
        trial.carrier.guards["north"].handle(envelope)


def test_a_forged_instruction_is_refused(trial: Trial) -> None:
    run = stop_after(trial, 1)
    forger = Identity.make("aggregator", made_up("forger"))
    head = Head(run=run, sender="aggregator", receiver="north", kind="step", round=1, number=2**50)
    envelope = seal(head, Content().write(), forger, trial.identities["north"].card, made_up("x", 32))
    with pytest.raises(Refused, match="bad-signature"):
        trial.carrier.guards["north"].handle(envelope)


def test_an_instruction_for_another_site_is_refused(trial: Trial) -> None:
    stop_after(trial, 1)
    other = next(e for site, e in reversed(trial.carrier.sent) if site == "south")
    with pytest.raises(Refused, match="wrong-party"):
        trial.carrier.guards["north"].handle(other)


def test_a_round_is_answered_for_one_model_ever(trial: Trial) -> None:
    """With the same noise under two models, the difference of the answers would be free of noise."""
    run = stop_after(trial, 2)
    _, content = asked_last(trial)
    kind, first = ask(trial, run, "step", 1, content)
    assert kind == "update"
    assert ask(trial, run, "step", 1, content, 2**50 + 1)[1].rows["total"].tolist() == first.rows["total"].tolist()
    moved = Content(rows={"model": content.rows["model"] + 0.125})
    for restarted in (False, True):
        if restarted:
            trial.restart_guards()
        kind, answer = ask(trial, run, "step", 1, moved, 2**50 + 2 + restarted)
        assert (kind, answer.values, dict(answer.rows)) == ("refused", {"code": "changed-round"}, {})
    assert ask(trial, run, "step", 0, content, 2**50 + 9)[1].values == {"code": "stale-round"}


@pytest.mark.parametrize("server", ["trusted", "secure-aggregation", "homomorphic"])
def test_a_round_is_answered_with_the_same_numbers_ever(
    trial: Trial, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that was started again and computes otherwise would show a difference without noise and masks."""
    kind = {"trusted": "step", "secure-aggregation": "masked", "homomorphic": "encrypt"}[server]

    def watch(now: Any) -> None:
        if now.round == 2:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study(trust={"server": server}), watch=watch)
    _, content = asked_last(trial, kind)
    run = peek(trial.carrier.sent[-1][1]).run
    honest = SiteStages.parts

    def moved(self: SiteStages, turn: int, asked: Content) -> dict[int, Whole]:
        found = honest(self, turn, asked)
        first = min(found)
        return {**found, first: found[first] + (np.arange(len(found[first])) == 0)}

    trial.restart_guards()
    assert ask(trial, run, kind, 1, content)[0] != "refused"
    trial.restart_guards()
    monkeypatch.setattr(SiteStages, "parts", moved)
    assert ask(trial, run, kind, 1, content, 2**50 + 1)[1].values == {"code": "changed-answer"}


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (np.zeros(2), "wrong-shape"),
        (np.array([0.0, np.nan, 0.0]), "wrong-shape"),
        (np.array([0.0, np.inf, 0.0]), "wrong-shape"),
        (np.zeros(3, dtype=np.int64), "wrong-shape"),
    ],
)
def test_what_is_no_model_gets_no_update(trial: Trial, model: Any, code: str) -> None:
    run = stop_after(trial, 1)
    assert ask(trial, run, "step", 1, Content(rows={"model": model}))[1].values == {"code": code}


def test_nothing_but_what_the_plan_names_is_answered(trial: Trial) -> None:
    run = stop_after(trial, 1)
    _, content = asked_last(trial)
    assert ask(trial, run, "dump-data", 1, content)[1].values == {"code": "unknown-kind"}
    assert ask(trial, run, "step", 3, content, 2**51)[1].values == {"code": "no-such-round"}
    assert ask(trial, "f" * 32, "step", 0, content, 2**51)[1].values == {"code": "not-accepted"}
    assert ask(trial, "f" * 32, "finish", 0, content, 2**52)[1].values == {"code": "not-accepted"}


def test_a_plan_whose_hash_changed_is_refused(trial: Trial) -> None:
    run = stop_after(trial, 1)
    _, proposal = asked_last(trial, "propose")
    plan = trial.plans[0]
    text = write_plan(plan).replace("trial", "other").encode()
    changed = Content(values=proposal.values, rows=proposal.rows, blocks={"plan": text})
    assert ask(trial, run, "propose", 0, changed)[1].values == {"code": "other-plan"}
    renamed = {**proposal.values, "plan": hashlib.sha256(text).hexdigest()}
    again = Content(values=renamed, rows=proposal.rows, blocks={"plan": text})
    assert ask(trial, run, "propose", 0, again, 2**51)[1].values == {"code": "other-plan"}


def test_another_deal_of_the_same_plan_is_refused(trial: Trial) -> None:
    run = stop_after(trial, 1)
    _, proposal = asked_last(trial, "propose")
    rows = {**proposal.rows, "place": np.roll(proposal.rows["place"], 1)}
    other = Content(values=proposal.values, rows=rows, blocks=proposal.blocks)
    assert ask(trial, run, "propose", 0, other)[1].values == {"code": "other-plan"}


def test_what_the_operator_has_not_accepted_is_shown_and_refused(tmp_path: Path) -> None:
    trial = Trial(tmp_path, some_records(60, clients=9), terms=Terms(trials=True))
    with pytest.raises(SiteRefused, match="has not accepted"):
        trial.run(study())
    assert len(trial.plans) == 3
    assert not (tmp_path / "north" / "ledger.sqlite").exists()  # and nothing was charged there
    trial.restart_guards(Terms(accept=frozenset({trial.plans[0].hash}), trials=True))
    assert (trial.run(study(), resume=True) / "model.npz").exists()


def test_a_plan_over_the_cap_is_refused_and_one_under_it_is_charged(tmp_path: Path) -> None:
    """Two private runs under a cap that holds one of them and a little more."""
    once = Trial.costs(some_records(60, clients=9), study(study={}))
    caps = Terms(accept=frozenset({"any"}), caps=(("final-model", 1.2 * once, 1e-4),), neighbours="zero-out")
    trial = Trial(tmp_path, some_records(60, clients=9), terms=caps)
    trial.run(study(study={"name": "first"}))
    (tmp_path / "out").rename(tmp_path / "first")
    with pytest.raises(SiteRefused, match="cap"):
        trial.run(study(study={"name": "second"}))
    with Ledger.open(tmp_path / "north" / "ledger.sqlite", trial.carrier.guards["north"].site.records.fingerprint) as b:
        assert [entry.kind for entry in b.entries()] == ["cap", "charge", "release"]


def test_a_trial_that_is_not_private_is_refused_by_a_guard_that_runs_none(tmp_path: Path) -> None:
    terms = Terms(accept=frozenset({"any"}), caps=(("final-model", 100.0, 0.1),))
    with pytest.raises(SiteRefused, match="promises nothing"):
        Trial(tmp_path, some_records(60, clients=9), terms=terms).run(study())


def test_a_guard_that_accepts_anything_without_a_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="cap"):
        Terms(accept=frozenset({"any"}))


def test_answers_hold_what_the_plan_names_and_no_more(trial: Trial) -> None:
    """Every answer of a run, opened: counts and a version, one row of whole numbers a round, and nothing else."""
    trial.run(study())
    shapes = set()
    for site, envelope in trial.carrier.back:
        opened = unseal(envelope, trial.aggregator, trial.cards[site])
        content = Content.read(opened.body)
        shapes.add((opened.head.kind, tuple(sorted(content.values)), tuple(sorted(content.rows)), len(content.blocks)))
    assert shapes == {
        ("here", ("bound", "classes", "features", "version"), ("numbers", "owner", "positions", "sizes"), 0),
        ("accepted", ("plan",), (), 0),
        ("update", ("clients",), ("total",), 0),
        ("recorded", (), (), 0),
    }
    assert TRIALS.trials  # a real site's description has no positions


def test_a_damaged_memory_stops_the_run_here(trial: Trial) -> None:
    run = stop_after(trial, 1)
    path = trial.folder / "north" / "runs" / run / "private" / "state"
    path.write_text(json.dumps({"number": "x"}))
    _, content = asked_last(trial)
    with pytest.raises(ValueError, match="memory"):
        ask(trial, run, "step", 1, content)

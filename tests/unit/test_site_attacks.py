"""What a dishonest aggregator, a crash or a careless hand at a site may do: no noise twice, no round uncharged."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.federation.site.checks import check_proposal
from fedveil.federation.site.data import SiteData
from fedveil.federation.site.guard import Guard, Terms
from fedveil.federation.site.record import World
from fedveil.ledger.books import Ledger
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan, write_plan
from fedveil.stages.train.dpsgd.settings import Network
from fedveil.stages.train.optimiser import Optimiser
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused, peek, unseal
from sides import site_of
from unit.dpsgd_plans import dpsgd_plan, settings
from unit.federations import SITES, Killed, Trial, study
from unit.plans import some_plan, some_records
from unit.test_site_guard import ask, asked_last

PRIVATE: dict[str, Any] = {"study": {"name": "trial"}}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9))


def after(trial: Trial, rounds: int, **parts: Any) -> str:
    """Run some rounds of a private study, then kill the aggregator; the run's name."""

    def watch(now: Any) -> None:
        if now.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        trial.run(study(**PRIVATE, **parts), watch=watch)
    return peek(trial.carrier.sent[-1][1]).run


def restarted(trial: Trial, site: str, **changes: Any) -> Guard:
    """The guard in a new process, with randomness that nobody has seen before."""
    guard = trial.guard(site, trial.terms)
    guard.world = World(os.urandom, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    guard.site = replace(guard.site, **changes)
    trial.carrier.guards[site] = guard
    return guard


# A plan is a text from outside.


def proposed(trial: Trial, run: str, change: Callable[[str], str], number: int = 2**50) -> tuple[str, Content]:
    """The last proposal with its plan's text changed, and named by what it reads as."""
    _, proposal = asked_last(trial, "propose")
    text = change(proposal.blocks["plan"].decode())
    plan = read_plan(text)
    content = Content(
        values={**proposal.values, "plan": plan.hash}, rows=proposal.rows, blocks={"plan": write_plan(plan).encode()}
    )
    return ask(trial, run, "propose", 0, content, number)


def as_torch(text: str) -> str:
    changed = text.replace('kind = "logistic"', 'kind = "torch"\nmodule = "named_by_a_plan:make"\nparameters = 3')
    lines = [line for line in changed.splitlines() if not line.startswith(("smoothness", "diameter"))]
    return "\n".join(lines).replace("convex = true", "convex = false") + "\n"


def test_a_plan_runs_no_code_that_the_operator_has_not_named(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch model is a function by its name: http.server:test would publish the current folder."""
    after(trial, 1)
    (tmp_path / "named_by_a_plan.py").write_text("raise SystemExit('this ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    trial.carrier.guards["north"].show = lambda plan: print(plan.dimension)  # as the operator's page does
    assert proposed(trial, "e" * 32, as_torch)[1].values == {"code": "other-code"}
    allowed = Terms(accept=frozenset({"any"}), trials=True, modules=frozenset({"named_by_a_plan:make"}))
    trial.carrier.guards["north"].terms = allowed
    assert proposed(trial, "d" * 32, as_torch)[0] == "accepted"
    _, proposal = asked_last(trial, "propose")
    text = as_torch(proposal.blocks["plan"].decode()).replace("parameters = 3\n", "")  # they would have to be counted
    with pytest.raises(BadValue, match=r"model\.parameters must be stated"):
        read_plan(text)
    uncounted = Content(values=proposal.values, rows=proposal.rows, blocks={"plan": text.encode()})
    assert ask(trial, "c" * 32, "propose", 0, uncounted)[1].values == {"code": "malformed"}
    assert "named_by_a_plan" not in sys.modules


def test_a_plan_cannot_write_lines_of_the_operators_page(trial: Trial) -> None:
    after(trial, 1)
    text = write_plan(trial.plans[0])
    for name in ("two\\nlines", "colours \\u001b[2J", "x" * 201):
        with pytest.raises(BadValue, match="one line"):
            read_plan(text.replace('name = "trial"', f'name = "{name}"'))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("grid = -44", "grid = 0.5"),
        ("clients = 9", "clients = 9.5"),
        ("clients = 9", "clients = 1" + 400 * "0"),
        ("batch = 20", "batch = 0"),
        ("rounds = 3", "rounds = nan"),
        ("deal =", "deal = [[[[[1]]]]]\nother ="),
    ],
)
def test_what_is_no_plan_is_refused_by_a_word(trial: Trial, old: str, new: str) -> None:
    after(trial, 1)
    _, proposal = asked_last(trial, "propose")
    text = proposal.blocks["plan"].decode()
    assert old in text
    content = Content(values=proposal.values, rows=proposal.rows, blocks={"plan": text.replace(old, new, 1).encode()})
    assert ask(trial, "e" * 32, "propose", 0, content)[1].values["code"] in ("malformed", "other-plan")


# What was charged, and what is remembered of it.


def test_a_run_whose_memory_was_lost_is_not_run_again(trial: Trial) -> None:
    """Its charge is in the books, so it would cost nothing; and its noise would be drawn again."""
    run = after(trial, 2)
    _, proposal = asked_last(trial, "propose")
    for kept in ("key", None):
        folder = trial.folder / "north" / "runs" / run
        for path in (folder / "private").iterdir():
            if path.name != kept:
                path.unlink()
        if kept is None:
            shutil.rmtree(folder)
        restarted(trial, "north")
        number = 2**50 if kept else 2**51
        assert ask(trial, run, "propose", 0, proposal, number)[1].values == {"code": "lost-memory"}


def test_a_stop_between_charge_and_consent_loses_nothing(trial: Trial) -> None:
    run = after(trial, 1)
    path = trial.folder / "north" / "runs" / run / "private" / "state"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "plan": "", "round": -1, "asked": ""}))  # as before the last write
    _, proposal = asked_last(trial, "propose")
    assert ask(trial, run, "propose", 0, proposal)[0] == "accepted"


def test_a_lost_key_is_not_drawn_again(trial: Trial) -> None:
    """The last round may be asked for again: with another key it would come with other noise, and both have a mean."""
    run = after(trial, 2)
    _, content = asked_last(trial)
    (trial.folder / "north" / "runs" / run / "private" / "key").unlink()
    restarted(trial, "north")
    assert ask(trial, run, "step", 1, content)[1].values == {"code": "lost-key"}


def test_other_data_than_were_charged_are_not_used(trial: Trial) -> None:
    run = after(trial, 2)
    _, content = asked_last(trial)
    data = trial.carrier.guards["north"].site.data
    features = data.records.features.copy()
    features[0] = 0.0
    other = SiteData(replace(data.records, features=features), data.fixed)
    restarted(trial, "north", data=other)
    assert ask(trial, run, "step", 1, content)[1].values == {"code": "changed-data"}
    assert ask(trial, run, "finish", 0, Content(), 2**51)[0] == "refused"
    restarted(trial, "north")
    assert ask(trial, run, "step", 1, content, 2**52)[0] == "update"


def test_without_its_charge_a_run_does_not_go_on(trial: Trial) -> None:
    run = after(trial, 2)
    _, content = asked_last(trial)
    for path in (trial.folder / "north").glob("ledger.sqlite*"):
        path.unlink()
    restarted(trial, "north")
    assert ask(trial, run, "step", 1, content)[1].values == {"code": "not-charged"}
    assert not (trial.folder / "north" / "ledger.sqlite").exists()


def stopped_at(folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Trial, int]:
    """A run that stops, with all its machines, at this time that north waits for its disk; and how often it did."""
    folder.mkdir()
    trial, sync, waited = Trial(folder, some_records(60, clients=9)), os.fsync, [0]

    def synced(handle: int) -> None:
        if f"{folder.name}/north/runs" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            waited[0] += 1
            if waited[0] == limit:
                raise Killed
        sync(handle)

    with monkeypatch.context() as changed:
        changed.setattr(os, "fsync", synced)
        try:
            trial.run(study(**PRIVATE))
        except Killed:
            assert waited[0] == limit
    return trial, waited[0]


def test_a_site_that_stops_at_any_write_sends_one_answer_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again with new randomness, it is first asked the last thing again: no answer with other noise."""
    _, last = stopped_at(tmp_path / "whole", 0, monkeypatch)
    for limit in (*range(1, last - 1, 9), last - 1, last):
        trial, _ = stopped_at(tmp_path / str(limit), limit, monkeypatch)
        for site in SITES:
            restarted(trial, site)
        said: dict[tuple[str, int], set[bytes]] = {}
        steps = [peek(e) for site, e in trial.carrier.sent if site == "north" and peek(e).kind == "step"]
        if steps:
            kind, again = ask(trial, steps[-1].run, "step", steps[-1].round, asked_last(trial)[1], 2**32 + 2**20)
            state = json.loads((trial.folder / "north" / "runs" / steps[-1].run / "private" / "state").read_text())
            assert kind == "update" or (state["finished"] and again.values == {"code": "finished"})
            assert not state["finished"] or limit >= last - 1  # only the last writes come after its part is done
            if kind == "update":
                said["north", steps[-1].round] = {again.rows["total"].tobytes()}
        trial.run(study(**PRIVATE), resume=True)
        for site, envelope in trial.carrier.back:
            if envelope and peek(envelope).kind == "update":
                body = Content.read(unseal(envelope, trial.aggregator, trial.cards[site]).body)
                said.setdefault((site, peek(envelope).round), set()).add(body.rows["total"].tobytes())
        assert len(said) == 9
        assert all(len(found) == 1 for found in said.values())
        books = trial.carrier.guards["north"].site.records.fingerprint
        with Ledger.open(trial.folder / "north" / "ledger.sqlite", books) as ledger:
            assert [entry.kind for entry in ledger.entries()] == ["charge", "release"]
        assert not (next((trial.folder / "north" / "runs").iterdir()) / "private" / "key").exists()


# How records are dealt into rounds.


def test_a_client_is_dealt_as_a_whole() -> None:
    records = some_records(60, clients=20)
    plan = some_plan(records, deal="clients", unit="client", rounds=2)
    place = records.owner % 2

    def proposal(place: Any) -> Content:
        return Content(values={"seed": 3}, rows={"numbers": np.arange(20), "place": place})

    check_proposal(plan, proposal(place), records)
    split = place.copy()
    split[0] = 1 - split[0]
    with pytest.raises(Refused, match="other-deal"):
        check_proposal(plan, proposal(split), records)
    split[0] = -1
    with pytest.raises(Refused, match="other-deal"):
        check_proposal(plan, proposal(split), records)


@pytest.mark.parametrize("deal", ["records", "clients"])
def test_a_round_holds_no_more_than_its_batch(deal: Any) -> None:
    """Averages divide by the planned batch: with more units in a round the step would be a longer one than planned."""
    records = some_records(60, clients=20)
    plan = some_plan(records, deal=deal, rounds=2, batch=30)
    place = (records.owner >= 10).astype(np.int64)
    rows = {"numbers": np.arange(20), "place": place}
    check_proposal(plan, Content(values={"seed": 3}, rows=rows), records)
    with pytest.raises(Refused, match="other-deal"):
        check_proposal(plan, Content(values={"seed": 3}, rows={**rows, "place": np.zeros_like(place)}), records)


def test_a_window_without_answer_does_not_change_the_answer_to_another(tmp_path: Path) -> None:
    """A velocity of another time, with the same noise, would be a second answer to the same window."""
    records = some_records(60, clients=2)
    client_settings = (settings(rounds=4), settings(rounds=8))
    plan = dpsgd_plan(records, *client_settings, optimiser=Optimiser(momentum=0.9), network=Network(window=2))
    plan = replace(plan, seeded=False)
    mine = some_records(30, clients=1)
    site = site_of(plan, mine, (0,), Entropy.from_seed(1), tmp_path)
    asked = Content(rows={"model": np.full(plan.dimension, 0.1)})
    site.parts(0, asked)
    first = site.parts(1, asked)[0]
    assert site.parts(3, asked) == {}  # all of its rounds are over
    assert np.array_equal(site.parts(1, asked)[0], first)
    with pytest.raises(Refused, match="stale-round"):
        site.parts(0, asked)


# What ends a run.


def bomb() -> bytes:
    """A small archive that unpacks to a large array."""
    buffer = BytesIO()
    np.savez_compressed(buffer, parameters=np.zeros(2**22))
    return buffer.getvalue()


@pytest.mark.parametrize("model", [b"", b"no archive", b"PK\x05\x06" + bytes(18), bomb()])
def test_what_is_no_model_does_not_end_a_run(trial: Trial, model: bytes) -> None:
    run = after(trial, 1)
    answer = ask(trial, run, "finish", 0, Content(blocks={"model": model}))
    assert answer[1].values == {"code": "wrong-shape"}


def test_the_order_of_the_rounds_is_forgotten_with_the_run(trial: Trial) -> None:
    """It follows from the aggregator's key, and final-model guarantees rest on nobody's knowing it."""
    out = trial.run(study(**PRIVATE))
    kept = (out / "private" / "aggregator").read_bytes()
    assert kept[16:] == bytes(32)
    assert kept[:16].hex() == peek(trial.carrier.sent[-1][1]).run


def test_a_site_keeps_no_rounds_of_its_records_after_the_run(trial: Trial) -> None:
    out = trial.run(study(**PRIVATE))
    run, model = peek(trial.carrier.sent[-1][1]).run, (out / "model.npz").read_bytes()
    kept = {path.name for path in (trial.folder / "north" / "runs" / run / "private").iterdir()}
    assert kept == {"state"}
    restarted(trial, "north")
    assert ask(trial, run, "finish", 0, Content(blocks={"model": model}))[0] == "recorded"  # its answer was lost
    assert ask(trial, run, "finish", 0, Content(blocks={"model": b"x"}), 2**51)[1].values == {"code": "finished"}
    for number, kind in enumerate(("step", "masked", "propose", "encrypt"), start=2**52):
        asked = asked_last(trial, "propose" if kind == "propose" else "step")[1]
        assert ask(trial, run, kind, 2, asked, number)[1].values["code"] in ("finished", "unknown-kind")


def test_whoever_carries_a_question_cannot_weigh_it(tmp_path: Path) -> None:
    """Rounds of one record: two of three sites have none, and are asked at the same length."""
    trial = Trial(tmp_path, some_records(60, clients=9))
    trial.run(study(schedule={"rounds": 2, "passes": 1, "batch": 1, "step_size": 0.5, "noise_std": 8.0}))
    steps = [(site, e) for site, e in trial.carrier.sent if peek(e).kind == "step"]
    bodies = [Content.read(unseal(e, trial.identities[site], trial.aggregator.card).body) for site, e in steps]
    assert {len(body.rows) for body in bodies} == {0, 1}
    assert len({len(body.write()) for body in bodies}) == 1
    assert len({len(envelope) - len(peek(envelope).text()) for _, envelope in steps}) == 1

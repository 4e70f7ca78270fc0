"""Across sites and in one process a study gives the same bits, whatever is lost, killed or meddled with on the way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.certificate.certify import certify
from fedveil.core.errors import BadValue, TooFewSurvivors
from fedveil.engine.train import train
from fedveil.federation.agreements import fits
from fedveil.federation.site.data import read_site_data
from fedveil.federation.site.guard import Guard
from fedveil.ledger.books import Ledger
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Refused, peek, seal, unseal
from unit.federated_studies import STUDIES
from unit.federations import SITES, Killed, Trial, made_up, study
from unit.plans import some_records


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9))


def missing(*pairs: tuple[int, str]) -> Callable[[int, int], bool]:
    """Clients of these sites fail in these rounds; sites hold every third client."""
    return lambda turn, client: (turn, SITES[client % 3]) in pairs


def simulated(trial: Trial, fails: Callable[[int, int], bool] = lambda turn, client: False) -> Any:
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    return train(plan, trial.records, Entropy.from_seed(3), fails=fails).model


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_three_sites_killed_between_rounds_and_one_process_give_the_same_bits(trial: Trial, name: str) -> None:
    """Two rounds follow each other in memory, the next goes on from the disk, with guards that are restarted too."""
    wanted = STUDIES[name]()

    def watch(now: Any) -> None:
        if now.round == 2:
            raise Killed

    with pytest.raises(Killed):
        trial.run(wanted, watch=watch)
    trial.restart_guards()
    trial.run(wanted, resume=True)
    assert trial.model().tobytes() == simulated(trial).tobytes()
    assert np.any(trial.model() != 0)


def test_an_aggregator_killed_after_each_round_goes_on_to_the_same_bits(trial: Trial) -> None:
    wanted, stops = study(), [1, 2]

    def watch(now: Any) -> None:
        if stops and now.round == stops[0]:
            stops.pop(0)
            raise Killed

    for resume in (False, True):
        with pytest.raises(Killed):
            trial.run(wanted, resume=resume, watch=watch)
        trial.restart_guards()
    trial.run(wanted, resume=True)
    assert trial.model().tobytes() == simulated(trial).tobytes()


def test_a_study_that_was_changed_does_not_go_on(trial: Trial) -> None:
    def stop(now: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.run(study(), watch=stop)
    with pytest.raises(BadValue, match=r"as it was when it began: privacy\.epsilon was 5\.0 and is 6\.0 now"):
        trial.run(study(privacy={"epsilon": 6.0, "delta": 1e-5, "neighbours": "zero-out"}), resume=True)


@pytest.mark.parametrize("moment", ["charged", "asked", "answered", "released"])
def test_killed_at_any_moment_nothing_is_charged_less_nor_drawn_twice(
    trial: Trial, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between charge and broadcast, after it, after the answers, and after the release."""
    alive = True

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        kind, turn = peek(envelope).kind, peek(envelope).round
        if alive and site == "south":
            reached = {
                "charged": (way, kind) == ("down", "propose"),
                "asked": (way, kind, turn) == ("down", "step", 1),
                "answered": (way, kind, turn) == ("up", "update", 1),
                "released": (way, kind) == ("down", "finish"),
            }
            if reached[moment]:
                raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study())
    books = trial.folder / "out" / "private" / "ledger.sqlite"
    assert books.exists()  # the charge stands before anything is asked
    alive = False
    trial.run(study(), resume=True)
    assert trial.model().tobytes() == simulated(trial).tobytes()
    updates: dict[tuple[str, int], set[bytes]] = {}
    for site, envelope in trial.carrier.back:
        opened = unseal(envelope, trial.aggregator, trial.cards[site])
        if opened.head.kind == "update":
            updates.setdefault((site, opened.head.round), set()).add(Content.read(opened.body).write())
    assert len(updates) == 9
    assert all(len(different) == 1 for different in updates.values())
    found = certify(trial.folder / "out", "0")
    for site in SITES:
        (folder,) = (trial.folder / site / "runs").iterdir()
        assert certify(folder, "0").plan == found.plan
    with pytest.raises(ValueError, match="must be new"):
        trial.run(study())


def test_a_site_that_is_away_is_left_out_and_joins_the_next_round(tmp_path: Path) -> None:
    trial = Trial(tmp_path, some_records(60, clients=9))

    def watch(now: Any) -> None:
        trial.carrier.down = {"south"} if now.round == 1 else set()

    trial.run(study(trust={"server": "trusted", "dropouts": 3, "timeout": 60.0}), watch=watch)
    assert trial.model().tobytes() == simulated(trial, missing((1, "south"))).tobytes()
    assert trial.model().tobytes() != simulated(trial).tobytes()


def test_a_round_with_too_few_is_refused_and_can_be_asked_again(trial: Trial) -> None:
    def watch(now: Any) -> None:
        if now.round == 1:
            trial.carrier.down = {"south"}

    with pytest.raises(TooFewSurvivors, match="Round 2 has the answers of 6 clients and needs 7"):
        trial.run(study(), watch=watch)
    with Ledger.open(
        trial.folder / "south" / "ledger.sqlite", trial.carrier.guards["south"].site.records.fingerprint
    ) as b:
        assert [entry.kind for entry in b.entries()] == ["charge"]  # what was charged stays charged
    trial.carrier.down = set()
    trial.run(study(), resume=True)
    assert trial.model().tobytes() == simulated(trial).tobytes()


def bad(total: Any, clients: list[Any]) -> Content:
    return Content(values={"clients": clients}, rows={"total": total})


LIES: dict[str, Callable[[Content], Content]] = {
    "NaN": lambda said: bad(np.full(3, np.nan), said.values["clients"]),
    "floats": lambda said: bad(said.rows["total"].astype(np.float64), said.values["clients"]),
    "wrong shape": lambda said: bad(said.rows["total"][:2], said.values["clients"]),
    "another's client": lambda said: bad(said.rows["total"], [0]),
    "a client twice": lambda said: bad(said.rows["total"], [said.values["clients"][0]] * 2),
    "no client": lambda said: bad(said.rows["total"], []),
    "no row": lambda said: Content(values=said.values),
    "10000 times the clip": lambda said: bad(said.rows["total"] * 10_000, said.values["clients"]),
    "the largest number": lambda said: bad(np.full(3, -(2**63), dtype=np.int64), said.values["clients"]),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_site_that_lies_does_not_change_the_sum_of_the_others(tmp_path: Path, lie: str) -> None:
    """The south, with its own good key, sends something else in round 2: as if it had not answered."""
    trial = Trial(tmp_path, some_records(60, clients=9))
    trial.carrier.meddle = lying(trial, lambda said, _: LIES[lie](said))
    trial.run(study(trust={"server": "trusted", "dropouts": 3, "timeout": 60.0}))
    assert trial.model().tobytes() == simulated(trial, missing((1, "south"))).tobytes()


def lying(trial: Trial, change: Callable[[Content, Head], Content | Head]) -> Callable[[str, str, bytes], bytes]:
    """What the south says in round 2, changed and signed with its own key."""

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        head = peek(envelope)
        if (way, site, head.kind, head.round) != ("up", "south", "update", 1):
            return envelope
        body = unseal(envelope, trial.aggregator, trial.cards["south"]).body
        found = change(Content.read(body), head)
        head, body = (found, body) if isinstance(found, Head) else (head, found.write())
        return seal(head, body, trial.identities["south"], trial.aggregator.card, made_up("lie", 32))

    return meddle


@pytest.mark.parametrize("field", ["round", "run", "answers"])
def test_a_stale_answer_does_not_change_the_sum_of_the_others(tmp_path: Path, field: str) -> None:
    trial = Trial(tmp_path, some_records(60, clients=9))
    other = {"round": 0, "run": "f" * 32, "answers": "0" * 64}[field]

    def stale(_: Content, head: Head) -> Head:
        parts = {
            name: getattr(head, name) for name in ("run", "sender", "receiver", "kind", "round", "number", "answers")
        }
        return Head(**{**parts, field: other})

    trial.carrier.meddle = lying(trial, stale)
    trial.run(study(trust={"server": "trusted", "dropouts": 3, "timeout": 60.0}))
    assert trial.model().tobytes() == simulated(trial, missing((1, "south"))).tobytes()


def test_a_relay_that_repeats_and_swaps_what_it_carries_changes_nothing(trial: Trial) -> None:
    """It delivers old answers and others' answers in place of the south's: refused, asked again, and then right."""
    old: list[bytes] = []
    tricks = iter(["old", "other", "cut", "none"] * 3)

    def meddle(way: str, site: str, envelope: bytes) -> bytes | None:
        if way == "down" or site != "south" or peek(envelope).kind != "update":
            return envelope
        old.append(envelope)
        trick = next(tricks, "fine")
        if trick == "none":
            return envelope
        others = [e for s, e in trial.carrier.back if s == "north"]
        return {"old": old[0] if len(old) > 1 else b"", "other": others[-1], "cut": envelope[:-1]}[trick]

    trial.carrier.meddle = meddle
    trial.run(study(trust={"server": "trusted", "dropouts": 0, "timeout": 60.0}))
    assert trial.model().tobytes() == simulated(trial).tobytes()


def test_private_runs_differ_and_certify(tmp_path: Path) -> None:
    """Without a seed every site draws its own noise; what is certified is what the plan promises."""
    trial = Trial(tmp_path, some_records(60, clients=9))
    out = trial.run(study(study={}, trust={"server": "trusted", "dropouts": 2, "timeout": 5.0}), watch=None)
    found = certify(out, "0")
    assert found.private
    plan = found.plan
    assert trial.model().tobytes() != train(plan, trial.records, Entropy.from_seed(3)).model.tobytes()


def test_the_sealed_post_shows_no_model_and_no_update(trial: Trial) -> None:
    trial.run(study())
    model = trial.model().tobytes()
    carried = b"".join(envelope for _, envelope in trial.carrier.sent + trial.carrier.back)
    for place in range(0, len(model), 8):
        assert model[place : place + 8] not in carried


def test_numbers_rise_over_restarts(trial: Trial) -> None:
    with pytest.raises(Killed):
        trial.run(study(), watch=lambda now: (_ for _ in ()).throw(Killed()))
    trial.run(study(), resume=True)
    numbers = [peek(envelope).number for _, envelope in trial.carrier.sent]
    assert numbers == sorted(set(numbers))


def test_the_plan_names_the_most_clients_of_a_site_and_a_site_with_more_refuses_it(trial: Trial) -> None:
    plan = read_plan((trial.run(study()) / "plan.toml").read_text())
    assert plan.trust.together == 3
    mine = read_site_data(trial.folder / "east.npz").records
    fits(plan, mine.shape)
    with pytest.raises(Refused, match="other-data"):
        fits(replace(plan, trust=replace(plan.trust, together=2)), mine.shape)


def test_the_certificate_names_client_columns_and_dropped_rows_of_the_sites(tmp_path: Path) -> None:
    records = some_records(60, clients=9)
    features, targets = records.features.copy(), records.targets.copy()
    features[4], targets[4] = 0.0, np.nan  # a row that its site dropped
    trial = Trial(tmp_path, replace(records, features=features, targets=targets))
    guard = trial.carrier.guards["north"]
    assert isinstance(guard, Guard)
    guard.site = replace(guard.site, data=replace(guard.site.data, places="client column", blank_rows=True))
    out = trial.run(study())
    plan = read_plan((out / "plan.toml").read_text())
    assert (plan.origin.places, plan.origin.blank_rows, plan.data) == ("client column", True, records.shape)
    named = {row.name for row in certify(out, "0").guarantees[0].assumptions}
    assert {"who holds which record is public", "a dropped row (missing value)"} <= named
    with np.load(out / "model.npz") as found:
        np.testing.assert_array_equal(found["parameters"], simulated(trial))


def test_a_site_says_what_its_places_depend_on(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,site,y\n1,u,0\n,v,1\n2,v,1\n")
    stated = "[data]\nsource = 'a.csv'\ntarget = 'y'\nclasses = 2\nfeature_bound = 1.0\nclient_column = 'site'\n"
    (tmp_path / "d.toml").write_text(stated + "default_fill = 'drop-row'\n[clients]\nkind = 'column'\n")
    found = read_site_data(tmp_path / "d.toml")
    assert (found.places, found.blank_rows, found.records.sizes.tolist()) == ("client column", True, [1, 2])


def test_momentum_makes_no_honest_answer_too_long(tmp_path: Path) -> None:
    """With full batches and momentum the velocity is much longer than one gradient: the limit has to know it."""
    trial = Trial(tmp_path, some_records(60, clients=3))
    privacy = {"epsilon": 40.0, "delta": 1e-5, "neighbours": "zero-out", "adversary": "server"}
    algorithm = {"kind": "dpsgd", "rate": 1.0, "rounds": 6, "noise_multiplier": 1.2, "steps": 0.05}
    trial.run(study(privacy=privacy, algorithm=algorithm, schedule={}, trust={"server": "trusted", "timeout": 60.0}))
    assert trial.model().tobytes() == simulated(trial).tobytes()

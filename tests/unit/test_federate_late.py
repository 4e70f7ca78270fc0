"""Sites that do not wait for each other: the model is that of the windows that were, whoever was late or killed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import window_replay
from fedveil.certificate.certify import certify
from fedveil.core.errors import BadValue, TooFewSurvivors
from fedveil.data.records import Records
from fedveil.engine.train import train
from fedveil.federation.site.checks import check_proposal
from fedveil.federation.site.data import read_site_data
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.study import Study
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused, unseal
from unit.federations import SITES, Direct, Killed, Trial, study

ROUNDS, WIDTH = 6, 2


@dataclass
class Slow(Direct):
    """Answers come after a time of their own: ``delays`` by site and count of its messages."""

    now: Callable[[], float] = lambda: 0.0
    delays: Callable[[str, int], float] = lambda site, count: 0.0
    _ready: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def push(self, address: str, envelope: bytes, seconds: float) -> str:
        name = Direct.push(self, address, envelope, seconds)
        count = self._counts[address] = self._counts.get(address, -1) + 1
        self._ready[name] = self.now() + self.delays(address, count)
        return name

    def pull(self, names: list[str], seconds: float = 0.0) -> Mapping[str, bytes]:
        return Direct.pull(self, [name for name in names if self._ready[name] <= self.now()])


def late_study(**trust: Any) -> Study:
    return study(
        trust={"noise": "local", "dropouts": 0, "timeout": 60.0, "patience": 5.0, **trust},
        algorithm={
            "kind": "dpsgd",
            "network": {"window": float(WIDTH)},
            "optimizer": {"momentum": 0.5},
            "rounds": [ROUNDS] * 5 + [ROUNDS - 3],
        },
        schedule={"batch": 20, "step_size": 0.5, "noise_std": 8.0},
    )


@pytest.fixture
def records() -> Records:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(120, 4))
    rows /= 1.01 * np.linalg.norm(rows, axis=1)[:, None]
    owner = np.arange(120, dtype=np.int64) % 6
    return Records(features=rows, targets=(rows[:, 0] > 0) * 1.0, owner=owner, clients=6, bound=1.0, classes=2)


def slow_trial(folder: Path, records: Records, delays: Callable[[str, int], float]) -> Trial:
    trial = Trial(folder, records)
    trial.carrier = Slow({}, now=trial.time, delays=delays)
    trial.restart_guards()
    return trial


def windows_of(trial: Trial) -> list[list[str]]:
    found: list[list[str]] = json.loads((trial.folder / "out" / "private" / "windows.json").read_text())
    return found


def replayed(trial: Trial) -> Any:
    owners = {site: range(index, trial.records.clients, len(SITES)) for index, site in enumerate(SITES)}
    return window_replay.replayed(trial.folder / "out", trial.records, owners, windows_of(trial), 3)


def test_where_nobody_is_late_it_is_the_simulation(tmp_path: Path, records: Records) -> None:
    trial = Trial(tmp_path, records)
    out = trial.run(late_study())
    plan = read_plan((out / "plan.toml").read_text())
    expected = train(plan, records, Entropy.from_seed(3)).model
    assert trial.model().tobytes() == np.asarray(expected).tobytes() == replayed(trial).tobytes()
    assert windows_of(trial) == [list(SITES)] * (ROUNDS // WIDTH)
    assert certify(out, "0").plan == plan
    assert not (out / "private" / "windows").exists()  # it held models


def test_a_slow_site_keeps_nobody_waiting_and_its_updates_join_later_windows(tmp_path: Path, records: Records) -> None:
    trial = slow_trial(tmp_path, records, lambda site, count: 12.0 if site == "south" and count >= 2 else 0.0)
    ticks: list[tuple[int, int]] = []
    trial.run(late_study(), watch=lambda now: ticks.append((now.round, now.total)))
    found = windows_of(trial)
    assert found[:2] == [["east", "north"]] * 2
    assert sum("south" in window for window in found) == ROUNDS // WIDTH
    assert sum("south" in window for window in found[:3]) <= 1
    assert trial.model().tobytes() == replayed(trial).tobytes()
    assert ticks[-1] == (9, 9)


@pytest.mark.parametrize("seed", range(12))
def test_any_delays_give_the_model_of_the_windows_that_were(tmp_path: Path, records: Records, seed: int) -> None:
    """Also with a patience of nothing, where every update is mixed in as it comes."""
    luck = np.random.default_rng(seed)
    times = {(site, count): float(luck.exponential(8.0)) for site in SITES for count in range(40)}
    trial = slow_trial(tmp_path, records, lambda site, count: times[site, count])
    trial.run(late_study(patience=0.0 if seed % 2 else 6.0))
    found = windows_of(trial)
    assert len(found) > ROUNDS // WIDTH  # somebody was late
    assert all(sum(site in window for window in found) == ROUNDS // WIDTH for site in SITES)
    assert trial.model().tobytes() == replayed(trial).tobytes()


@pytest.mark.parametrize("after", range(4, 14, 3))
def test_a_killed_aggregator_goes_on_and_no_round_is_answered_for_two_models(
    tmp_path: Path, records: Records, after: int
) -> None:
    trial = slow_trial(tmp_path, records, lambda site, count: {"east": 1.0, "north": 4.0, "south": 9.0}[site])
    left = [after]

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        left[0] -= way == "up"
        if way == "up" and left[0] == 0:
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(late_study(patience=3.0))
    trial.restart_guards()
    trial.run(late_study(patience=3.0), resume=True)
    assert trial.model().tobytes() == replayed(trial).tobytes()
    assert all(sum(site in window for window in windows_of(trial)) == ROUNDS // WIDTH for site in SITES)
    questions: dict[tuple[str, int], set[bytes]] = {}
    for site, envelope in trial.carrier.sent:
        opened = unseal(envelope, trial.identities[site], trial.aggregator.card)
        if opened.head.kind == "step":
            questions.setdefault((site, opened.head.round), set()).add(opened.body)
    assert len(questions) == len(SITES) * ROUNDS // WIDTH
    assert all(len(asked) == 1 for asked in questions.values())


def test_a_site_that_is_away_ends_the_run_only_where_the_plan_lets_its_clients_be_missing(
    tmp_path: Path, records: Records
) -> None:
    trial = Trial(tmp_path, records)

    def lost(now: Any) -> None:
        trial.carrier.down.add("north")

    with pytest.raises(TooFewSurvivors, match="north did not answer within 60 seconds: 2 clients have rounds left"):
        trial.run(late_study(dropouts=1), watch=lost)
    assert not (tmp_path / "out" / "model.npz").exists()
    trial.carrier.down.clear()
    trial.run(late_study(dropouts=1), resume=True)
    assert trial.model().tobytes() == replayed(trial).tobytes()
    assert sum("north" in window for window in windows_of(trial)) == ROUNDS // WIDTH


def test_two_clients_may_be_missing_at_the_end(tmp_path: Path, records: Records) -> None:
    trial = Trial(tmp_path, records)

    def lost(now: Any) -> None:
        trial.carrier.down.add("north")

    out = trial.run(late_study(dropouts=2), watch=lost)
    assert sum("north" in window for window in windows_of(trial)) == 1
    assert trial.model().tobytes() == replayed(trial).tobytes()
    assert (out / "private" / "released").exists()  # north has its model still to come


def test_a_site_that_sends_nonsense_is_as_good_as_away(tmp_path: Path, records: Records) -> None:
    trial = Trial(tmp_path, records)

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        return envelope[:-1] + bytes([envelope[-1] ^ 1]) if (way, site) == ("up", "north") and begun else envelope

    begun: list[int] = []
    trial.carrier.meddle = meddle
    trial.run(late_study(dropouts=2), watch=lambda now: begun.append(1))
    assert sum("north" in window for window in windows_of(trial)) == 1
    assert trial.model().tobytes() == replayed(trial).tobytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"patience": 61.0}, r"trust.patience must lie between 0 and trust.timeout, 60 seconds"),
        ({"patience": float("nan")}, r"trust.patience must lie between 0"),
        ({"patience": -1.0}, r"trust.patience must lie between 0"),
        ({"server": "secure-aggregation"}, r"trust.patience must be left out with a server other than trusted"),
    ],
)
def test_a_patience_that_cannot_be_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        late_study(**change)


def test_only_updates_with_all_of_their_noise_may_be_late(records: Records) -> None:
    wanted = study(trust={"patience": 1.0})
    with pytest.raises(BadValue, match=r"trust\.patience must be left out for hidden"):
        wanted.planned(records.shape)


def test_a_plan_without_patience_keeps_its_text(records: Records) -> None:
    plan = study().planned(records.shape).plan
    assert "patience" not in write_plan(plan)


def test_a_simulated_network_is_refused_before_anything_is_charged(tmp_path: Path, records: Records) -> None:
    """At the aggregator by a sentence, and at a site, whatever its aggregator says, by a word."""
    trial = Trial(tmp_path, records)
    slow = {"kind": "dpsgd", "network": {"window": 2.0, "delay": 0.5}, "rounds": ROUNDS}
    wanted = study(trust={"timeout": 60.0}, algorithm=slow, schedule={"batch": 20, "step_size": 0.5, "noise_std": 8.0})
    with pytest.raises(BadValue, match="algorithm must let clients wait for each other across sites"):
        trial.run(wanted)
    assert not (tmp_path / "out" / "private" / "ledger.sqlite").exists()
    plan = wanted.planned(records.shape).plan
    mine = read_site_data(tmp_path / "east.npz").records
    asked = Content(values={"seed": 3}, rows={"numbers": np.array([0, 3], dtype=np.int64)})
    with pytest.raises(Refused, match="a-network"):
        check_proposal(plan, asked, mine)

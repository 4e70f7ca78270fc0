"""Studies with a [trust] table, in real folders: refused rounds, interruptions, certificates."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import run_study
from fedveil.certificate.certify import certify, differences
from fedveil.core.errors import BadValue, NotAvailable, TooFewSurvivors
from fedveil.data.records import Records
from fedveil.engine.system import Interrupted, Progress, System
from fedveil.ledger.books import Ledger
from fedveil.sums.homomorphic.library import has_tenseal, tenseal

CLIENTS = 10


def records() -> Records:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(100, 4))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None] * (1 + 1e-12)
    return Records(
        features=rows,
        targets=(rows[:, 0] > 0).astype(np.float64),
        owner=np.arange(100, dtype=np.int64) % CLIENTS,
        clients=CLIENTS,
        bound=1.0,
        classes=2,
    )


def tables(**more: Any) -> dict[str, Any]:
    return {
        "study": {"name": "trusting"},
        "model": {"kind": "logistic", "radius": 5.0},
        "privacy": {"epsilon": 3.0, "delta": 1e-4, "adversary": "server-with-secure-aggregation"},
        "schedule": {"rounds": 5, "passes": 1, "step_size": 0.5},
        "trust": {"dropouts": 2, "colluders": 1},
        **more,
    }


def system(fails: Callable[[int, int], bool]) -> System:
    """A repeatable run that is private all the same: its key comes from here."""
    return System(random=lambda count: bytes(range(count % 256)) if count <= 64 else bytes(count), fails=fails)


def nobody(turn: int, client: int) -> bool:
    return False


def model(folder: Path) -> bytes:
    return (folder / "model.npz").read_bytes()


def charges(folder: Path) -> list[str]:
    with Ledger.open(folder / "private" / "ledger.sqlite", records().fingerprint) as ledger:
        return [entry.kind for entry in ledger.entries()]


def test_a_refused_round_keeps_its_charge_and_can_be_asked_for_again(tmp_path: Path) -> None:
    def too_many(turn: int, client: int) -> bool:
        return turn == 3 and client < 3

    with pytest.raises(TooFewSurvivors, match="Round 4 has the answers of 7 clients and needs 8"):
        run_study(tables(), out=tmp_path / "a", data=records(), system=system(too_many))
    assert not (tmp_path / "a" / "model.npz").exists()
    assert charges(tmp_path / "a") == ["charge"]
    assert (tmp_path / "a" / "private" / "checkpoint").exists()

    with pytest.raises(TooFewSurvivors):  # still away: refused again, charged once
        run_study(tables(), out=tmp_path / "a", data=records(), resume=True, system=system(too_many))
    assert charges(tmp_path / "a") == ["charge"]

    def back(turn: int, client: int) -> bool:
        return turn == 3 and client < 2

    run_study(tables(), out=tmp_path / "a", data=records(), resume=True, system=system(back))
    run_study(tables(), out=tmp_path / "b", data=records(), system=system(back))
    assert model(tmp_path / "a") == model(tmp_path / "b")
    assert charges(tmp_path / "a") == ["charge", "release"]


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    def gone(turn: int, client: int) -> bool:
        return client == turn

    def stop(progress: Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    run_study(tables(), out=tmp_path / "whole", data=records(), system=system(gone))
    with pytest.raises(Interrupted, match="after round 3"):
        run_study(tables(), out=tmp_path / "parts", data=records(), watch=stop, system=system(gone))
    run_study(tables(), out=tmp_path / "parts", data=records(), resume=True, system=system(gone))
    assert model(tmp_path / "parts") == model(tmp_path / "whole")


class Crash(Exception):
    """A process that ends without saving anything."""


@pytest.mark.parametrize("kind", ["hidden", "fedavg", "dpsgd"])
def test_a_round_that_was_added_up_has_the_same_answers_when_it_is_computed_again(kind: str, tmp_path: Path) -> None:
    """Its noise is the same, so its clients must be: two sums over different clients would give messages away."""
    more: dict[str, Any] = {"algorithm": {"kind": kind}}
    if kind == "fedavg":
        more = {"algorithm": {"kind": kind, "noise": "shared"}, "schedule": {"rounds": 5}}
        more["privacy"] = {"epsilon": 3.0, "delta": 1e-4, "unit": "client"}
    if kind == "dpsgd":
        more = {"algorithm": {"kind": kind, "rate": 0.5, "rounds": 5}, "schedule": {}}

    def first_two(turn: int, client: int) -> bool:
        return turn < 2 and client == turn + 4

    def then_refused(turn: int, client: int) -> bool:
        return first_two(turn, client) or (turn == 3 and client < 3)

    def crash(progress: Progress) -> None:
        if progress.round == 2:
            raise Crash

    run_study(tables(**more), out=tmp_path / "whole", data=records(), system=system(first_two))
    with pytest.raises(Crash):
        run_study(tables(**more), out=tmp_path / "crashed", data=records(), watch=crash, system=system(first_two))
    with pytest.raises(TooFewSurvivors):
        run_study(tables(**more), out=tmp_path / "refused", data=records(), system=system(then_refused))
    for name in ("crashed", "refused"):
        run_study(tables(**more), out=tmp_path / name, data=records(), resume=True, system=system(nobody))
        assert model(tmp_path / name) == model(tmp_path / "whole")
        assert not (tmp_path / name / "private" / "answers").exists()
    run_study(tables(**more), out=tmp_path / "all", data=records(), system=system(nobody))
    assert model(tmp_path / "all") != model(tmp_path / "whole")  # who is missing matters


def test_the_certificate_follows_from_the_records_and_names_what_is_kept(tmp_path: Path) -> None:
    result = run_study(tables(), out=tmp_path / "run", data=records(), system=system(nobody))
    text = (tmp_path / "run" / "certificate.json").read_text()
    stated = json.loads(text)
    assert differences(certify(tmp_path / "run", stated["version"]), text) == []
    rows = {row["adversary"]: row for row in stated["guarantees"]}
    mine = rows["server-with-secure-aggregation"]
    assert 2.9 < mine["epsilon"] <= 3.0
    named = {row["name"]: row for row in mine["assumptions"]}
    assert named["answers to a round"]["value"] == "at least 8 of 10"
    assert "7 honest clients" in named["every client adds its share of the noise"]["value"]
    assert result.certificate.plan.trust.shared
    assert "who adds up" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_cannot_go_on_under_another_trust(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_study(tables(), out=tmp_path, data=records(), watch=stop, system=system(nobody))
    for trust in ({}, {"trust": {"dropouts": 3, "colluders": 1}}):
        changed = {key: value for key, value in tables().items() if key != "trust"} | trust
        with pytest.raises(ValueError, match="must be as it was when it began"):
            run_study(changed, out=tmp_path, data=records(), resume=True, system=system(nobody))


def test_what_cannot_be_added_up_here_is_refused_before_it_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenseal.cache_clear()
    monkeypatch.setitem(sys.modules, "tenseal", None)  # as if it were not installed
    wanted = tables() | {"trust": {"server": "homomorphic", "dropouts": 2}}
    with pytest.raises(BadValue, match="TenSEAL"):
        run_study(wanted, out=tmp_path / "a", data=records(), system=system(nobody))
    assert not (tmp_path / "a" / "private" / "ledger.sqlite").exists()
    run_study(tables(), out=tmp_path / "a", data=records(), system=system(nobody))  # nothing is in the way


NEEDS_TENSEAL = pytest.mark.skipif(not has_tenseal(), reason="TenSEAL is not installed (fedveil[he])")


@pytest.mark.parametrize("server", ["secure-aggregation", pytest.param("homomorphic", marks=NEEDS_TENSEAL)])
@pytest.mark.parametrize("kind", ["hidden", "fedavg", "dpsgd"])
def test_every_server_gives_the_same_model(server: str, kind: str, tmp_path: Path) -> None:
    """Bit for bit: what adds up is all that differs. Skipped where a server's library is not installed."""
    more: dict[str, Any] = {"algorithm": {"kind": kind}, "study": {"name": "same", "seed": 4}}
    if kind == "fedavg":
        more |= {"algorithm": {"kind": kind, "noise": "shared"}, "schedule": {"rounds": 3}}
        more["privacy"] = {"epsilon": 3.0, "delta": 1e-4, "unit": "client"}
    if kind == "dpsgd":
        more |= {"algorithm": {"kind": kind, "rate": 0.5, "rounds": 3}, "schedule": {}}

    def gone(turn: int, client: int) -> bool:
        return turn == 1 and client in (2, 7)

    def run(word: str) -> bytes:
        wanted = tables(**more) | {"trust": {"server": word, "dropouts": 2}}
        run_study(wanted, out=tmp_path / word, data=records(), system=system(gone))
        return model(tmp_path / word)

    try:
        other = run(server)
    except NotAvailable as error:
        pytest.skip(str(error))
    assert run("trusted") == other

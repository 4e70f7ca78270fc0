"""Guesses, p-values and bounds of the one-run audit; canaries as rows; coins as a file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedveil.audit.claim import Claim, GaussianCurve
from fedveil.audit.one_run import Outcome, epsilon_lower, finding_of_scores, forecast, guess, outcome_of, p_value
from fedveil.core.errors import BadValue, CannotCertify
from fedveil.data.arrays import records_from_arrays
from fedveil.data.canaries import Canaries, canary_rows, sign_rows
from fedveil.data.records import Records
from fedveil.engine.coins import check_commitment, read_coins, settle_coins
from fedveil.planning.plan import read_plan, write_plan
from fedveil.planning.study import study_of


def records(clients: int = 2, names: bool = True) -> Records:
    X = np.random.default_rng(0).standard_normal((40, 3))
    return records_from_arrays(X, np.arange(40) % 2, np.arange(40) % clients if names else None, bound=1.0, classes=2)


def test_a_fifth_is_guessed_on_each_side() -> None:
    scores = np.random.default_rng(1).standard_normal(100)
    found = guess(scores, 20)
    assert (found == 1).sum() == (found == -1).sum() == 20
    assert scores[found == 1].min() > scores[found == 0].max() > scores[found == 0].min() > scores[found == -1].max()
    coins = scores > 0
    assert outcome_of(scores, coins) == Outcome(canaries=100, guesses=40, right=40)
    assert outcome_of(scores, ~coins).right == 0


@pytest.mark.parametrize("bad", [np.array([1.0, 2.0]), np.array([1.0, np.nan] * 5), np.zeros((5, 5))])
def test_bad_scores_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="scores must"):
        guess(bad, 1)


def test_bounds_grow_with_right_guesses_and_fall_with_delta_and_confidence() -> None:
    rows = [epsilon_lower(Outcome(canaries=100, guesses=40, right=v), 1e-4, 0.05) for v in range(41)]
    assert rows[20] == 0.0
    assert rows == sorted(rows)
    assert 4.0 < rows[-1] < 9.0
    best = Outcome(canaries=100, guesses=40, right=40)
    assert epsilon_lower(best, 1e-3, 0.05) < rows[-1] < epsilon_lower(best, 1e-6, 0.05)
    assert epsilon_lower(best, 1e-4, 1e-3) < rows[-1]


def test_a_refuted_member_of_a_family_has_a_small_p_value() -> None:
    for right in range(25, 41, 3):
        outcome = Outcome(canaries=100, guesses=40, right=right)
        low = epsilon_lower(outcome, 1e-4, 0.05)
        for mu in np.linspace(0, 4, 9):
            refuted = p_value(outcome, GaussianCurve(float(mu))) <= 0.05
            assert refuted == (GaussianCurve(float(mu)).epsilon_at(1e-4) <= low) or low == 0.0


def test_a_family_that_ends_ends_the_search() -> None:
    """A family may have no members beyond some noise; the bound is then that of the last refuted one, or nothing."""

    def quiet(times: float) -> GaussianCurve:
        if times > 1:
            raise CannotCertify("no such noise")
        return GaussianCurve(1 / times)

    best = Outcome(canaries=100, guesses=40, right=40)
    shown = epsilon_lower(best, 1e-4, 0.05, quiet, start=0.9)
    assert shown == pytest.approx(epsilon_lower(best, 1e-4, 0.05), rel=1e-4)
    assert epsilon_lower(best, 1e-4, 0.05, lambda times: GaussianCurve(50.0)) == 0.0


def test_verdicts() -> None:
    coins = np.arange(200) % 2 == 0
    exact = np.where(coins, 1.0, -1.0)
    claim = Claim(((0.5, 1e-4), (1.0, 1e-9)))
    broken = finding_of_scores(exact, coins, claim, delta=1e-4, details={})
    assert broken.verdict == "broken"
    assert broken.details["p_value"] <= 1e-6
    assert broken.measured > 3 > (broken.certified or 0)
    luck = finding_of_scores(np.random.default_rng(0).standard_normal(200), coins, claim, delta=1e-4, details={})
    assert (luck.verdict, luck.measured) == ("consistent", 0.0)
    nothing = finding_of_scores(exact, coins, Claim(()), delta=1e-4, details={})
    assert (nothing.verdict, nothing.certified) == ("not-judged", None)
    slight = finding_of_scores(exact[:50], coins[:50], Claim(((1.0, 1e-4),)), delta=1e-4, details={})
    assert slight.verdict == "not-judged"
    assert slight.measured > 1.0
    assert "more canaries" in slight.evidence
    far = finding_of_scores(exact, coins, Claim(((12.0, 1e-4),)), delta=1e-4, details={})
    assert far.verdict == "consistent"
    assert far.measured == far.details["ceiling"] < 12
    assert "the strongest attack we know of could show at most" in far.evidence
    region = far.details["region"]  # the picture: what was reached, what is allowed, and the curve that was refuted
    assert max(np.subtract(region["true_positives"], region["false_positives"])) == 1.0  # nobody errs
    assert max(np.subtract(region["least"], region["worst"])) > 0.5
    assert min(np.subtract(region["least"], region["worst"])) >= 0.0
    assert "region" in luck.details
    assert luck.details["region"]["least"] == luck.details["region"]["worst"]  # nothing is shown


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
def test_slots_keep_the_shape_and_their_columns(neighbours: str) -> None:
    real, slots = records(3), Canaries(count=20, neighbours=neighbours, unit="record")  # type: ignore[arg-type]
    coins = np.arange(20) % 3 == 0
    placed = slots.placed(real, coins)
    assert placed.shape == slots.blank(real).shape
    assert (placed.shape.records, placed.shape.features, placed.clients) == (60, real.features.shape[1] + 20, 3)
    assert np.array_equal(placed.features[:40, :4], real.features)
    assert not placed.features[:40, 4:].any()
    assert not placed.features[40:, :4].any()
    norms = np.linalg.norm(placed.features[40:], axis=1)
    assert np.allclose(norms[coins], real.bound, rtol=1e-11)
    out = placed.features[40:][~coins]
    inside = canary_rows(20, 4, real.bound, 2)[0][~coins]
    assert np.array_equal(out, -inside if neighbours == "replace-one" else 0 * inside)
    assert np.bincount(placed.owner[40:]).tolist() == [7, 7, 6]


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_slots_without_columns_hold_rows_of_signs(classes: int) -> None:
    real = records(3) if classes == 2 else replace(records(3), targets=np.zeros(40), classes=classes)
    coins, width = np.arange(20) % 3 == 0, real.features.shape[1]
    rows, targets = sign_rows(20, width, real.bound, classes)
    assert np.allclose(np.linalg.norm(rows, axis=1), real.bound, rtol=1e-11)
    assert np.unique(np.abs(rows)).size == 1
    assert set(targets) <= (set(range(classes)) if classes else {-1.0, 1.0})
    assert np.unique(targets).size > 1
    for neighbours in ("zero-out", "replace-one"):
        slots = Canaries(count=20, neighbours=neighbours, unit="record", columns=False)  # type: ignore[arg-type]
        placed = slots.placed(real, coins)
        assert placed.shape == slots.blank(real).shape
        assert slots.widened(real) is real
        assert np.array_equal(placed.features[:40], real.features)
        assert np.array_equal(placed.features[40:][coins], rows[coins])
        assert np.array_equal(placed.targets[40:][coins], targets[coins])
        out = ~coins
        if neighbours == "zero-out":
            assert placed.blank[40:].tolist() == out.tolist()
        else:
            assert np.array_equal(placed.features[40:][out], rows[out])
            assert (placed.targets[40:][out] != targets[out]).all()


def test_slots_are_clients_where_clients_are_single_or_protected() -> None:
    alone = Canaries(count=20, neighbours="zero-out", unit="record").placed(records(names=False), np.ones(20, bool))
    assert alone.clients == 60
    assert alone.sizes.max() == 1
    whole = Canaries(count=20, neighbours="zero-out", unit="client").placed(records(2), np.ones(20, bool))
    assert whole.clients == 22
    assert whole.names[-1] == "canary 20"


def study(**more: object) -> object:
    tables = {"model": {"kind": "logistic"}, "privacy": {"epsilon": 2.0, "delta": 1e-4}, **more}
    return study_of(tables, base=Path(), data_given=True)


def test_a_plan_says_how_many_canaries_it_has() -> None:
    schedule = {"kind": "constant", "passes": 2, "rounds": 1, "step_size": 0.5}
    plain = study(schedule=schedule)
    plan = plain.planned(records().shape).plan  # type: ignore[attr-defined]
    assert "canaries = 0" in write_plan(plan)
    audited = study(schedule=schedule, audit={"canaries": 20})
    blank = audited.slots.blank(records())  # type: ignore[attr-defined]
    found = audited.planned(blank.shape).plan  # type: ignore[attr-defined]
    assert "canaries = 20" in write_plan(found)
    assert read_plan(write_plan(found)) == found
    assert (found.real_features, found.data.features) == (4, 24)
    with pytest.raises(ValueError, match="leave other records"):
        replace(found, canaries=24)


def test_a_study_may_leave_the_number_of_canaries_to_us() -> None:
    assert study(audit={"canaries": "auto"}).canaries == 500  # type: ignore[attr-defined]  # of epsilon 2
    told = forecast(500, 500, 2.0, 1e-5)
    assert "could show about 0.82." in told
    assert "make up 50% of every sum" in told
    assert "could show about nothing" in forecast(20, 500, 0.5, 1e-5)


@pytest.mark.parametrize("bad", [0, 19, 20_000, 2.5, "many", True])
def test_a_bad_number_of_canaries_is_refused(bad: object) -> None:
    with pytest.raises(BadValue, match=r"audit\.canaries must"):
        study(audit={"canaries": bad})


def test_models_that_cannot_be_scored_are_refused_before_planning() -> None:
    pulled = study(
        model={"kind": "logistic", "l2": 0.1},
        algorithm={"kind": "fedavg"},
        privacy=PRIVACY | {"unit": "client", "neighbours": "zero-out"},
        audit={"canaries": 20},
    )
    with pytest.raises(BadValue, match="penalty's pull"):
        pulled.planned(pulled.slots.blank(records()).shape)  # type: ignore[attr-defined]


PRIVACY = {"epsilon": 2.0, "delta": 1e-4}


def test_coins_are_drawn_once_and_bound(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    path = tmp_path / "canaries"
    first = settle_coins(path, 100, generator.bytes, finished=False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert 20 < first.coins.sum() < 80
    again = settle_coins(path, 100, generator.bytes, finished=False)
    assert np.array_equal(first.coins, again.coins)
    check_commitment(again, first.commitment)
    other = settle_coins(tmp_path / "other", 100, generator.bytes, finished=False)
    assert not np.array_equal(first.coins, other.coins)
    with pytest.raises(BadValue, match="changed after the run began"):
        check_commitment(other, first.commitment)
    with pytest.raises(BadValue, match="hold the coins of 50 canaries"):
        read_coins(path, 50)
    for text in (b"", b"[]", b"\xff", json.dumps({"coins": "x" * 100}).encode()):
        path.write_bytes(text)
        with pytest.raises(BadValue, match="hold the coins of 100 canaries"):
            read_coins(path, 100)
    path.unlink()
    with pytest.raises(BadValue, match="cannot be audited"):
        read_coins(path, 100)
    with pytest.raises(BadValue, match="coins of its canaries are gone"):
        settle_coins(path, 100, generator.bytes, finished=True)

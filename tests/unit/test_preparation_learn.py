"""What comes out of noisy sums: ranges, categories, means; and how the sums are made with central noise and shares."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedveil.core.errors import BadValue
from fedveil.core.values import Matrix, Vector
from fedveil.data.records import DataShape
from fedveil.engine.study import learned_from, planned_for
from fedveil.jobs.local import open_any_study, open_study, plan_study
from fedveil.noise.entropy import Entropy
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.measuring import Measurer
from fedveil.stages.prepare.budget import settle_preparation
from fedveil.stages.prepare.columns import MISSING_WORD, Columns, Outline
from fedveil.stages.prepare.contributions import range_counts
from fedveil.stages.prepare.learn import learn
from fedveil.stages.prepare.learned import LearnedRule, frequent
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.prepare.ranges import BINS, EDGES, MISSING, VALUES, ZERO, Range, bins_of, model_range, range_of
from fedveil.stages.prepare.request import PrepareRequest
from fedveil.stages.sums import Measurement
from fedveil.sums.masks.rounds import SecureSumming

PLENTY = Target(epsilon=20.0, delta=1e-5, neighbours="zero-out")  # so little noise that what is learned can be foretold


def counted(numbers: Vector) -> Vector:
    return np.bincount(bins_of(numbers), minlength=BINS).astype(np.float64)


def test_every_number_is_in_the_bin_that_holds_it() -> None:
    numbers = np.concatenate([2.0 ** np.arange(-29, 50), 3.1 ** np.arange(-18, 30), [0.0, 2.0**-40]])
    for signed in (numbers, -numbers):
        bins = bins_of(signed)
        assert np.all(EDGES[bins] <= signed)
        assert np.all(signed <= EDGES[bins + 1])
    assert bins_of(np.array([np.nan, 0.0, -0.0, 1e308, -1e308])).tolist() == [MISSING, ZERO, ZERO, VALUES - 1, 0]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_range_holds_the_bulk(scale: float, sign: float) -> None:
    numbers = sign * scale * np.random.default_rng(1).normal(10.0, 2.0, size=1000)
    found = range_of(counted(numbers), 1000, deviation=1.0)
    assert np.mean((found.low <= numbers) & (numbers <= found.high)) > 0.9
    assert found.high - found.low < 40 * scale
    assert found.unit == 0
    scaled = found.scaled(numbers)
    assert float(np.abs(scaled).max()) <= 1
    assert float(scaled.std()) > 0.05


def test_rare_but_certain_magnitudes_bend_the_scale() -> None:
    generator = np.random.default_rng(2)
    gains = np.where(generator.random(10_000) < 0.9, 0.0, np.exp(generator.uniform(6.0, 11.0, size=10_000)))
    found = range_of(counted(gains), 10_000, deviation=5.0)
    assert found.low <= 0 < 30_000 <= found.high
    assert found.unit > 1
    zero, some = found.scaled(np.array([0.0, 3000.0]))
    assert some - zero > 0.5  # a straight scale would leave 0.09 between them


@pytest.mark.parametrize("one", [1.0, -1.0])
def test_zeros_beside_ones_are_not_lost_in_the_noise(one: float) -> None:
    numbers = np.where(np.arange(690) < 130, 0.0, one)
    noisy = counted(numbers)
    noisy[ZERO] -= 40.0  # too few to stand out of noise of this deviation
    apart = np.abs(np.diff(model_range(noisy, 690, deviation=70.0).scaled(np.array([0.0, one]))))
    assert apart > 0.4
    ones = model_range(counted(np.full(690, one)), 690, deviation=3.0)  # here no zeros are surely there
    assert sorted((abs(ones.low), abs(ones.high))) == [1.0, 2.0]
    assert model_range(counted(np.full(690, 40.0)), 690, deviation=70.0).low == 32.0  # whole numbers differ there


def test_noise_alone_stays_a_range() -> None:
    noise = np.random.default_rng(3).normal(scale=100.0, size=BINS)
    found = range_of(noise, 10, deviation=100.0)
    assert found.low < found.high


def test_a_bent_scale_keeps_order_and_bounds() -> None:
    found = Range(-8.0, 1e6, 4.0)
    numbers = np.array([-1e300, -8.0, -1.0, 0.0, 5.0, 1e6, 1e300])
    scaled = found.scaled(numbers)
    assert np.all(np.diff(scaled) >= 0)
    assert scaled[0] == -1
    assert scaled[-1] == 1
    assert np.isnan(found.scaled(np.array([np.nan]))[0])


def test_the_most_frequent_categories_are_kept() -> None:
    listed = [("x", "a"), ("x", "b"), ("y", "c"), ("y", "d")]
    found = frequent(np.array([50.0, 9.0, 70.0, 20.0]), listed, threshold=10.0, records=100, most=2)
    assert [(one.column, one.word, one.share) for one in found] == [("y", "c", 0.7), ("x", "a", 0.5)]


def measurer(rows: int, clients: int, trust: Trust = CENTRAL, unit: str = "record", **more: Any) -> Measurer:
    owner = (np.arange(rows) % clients).astype(np.int64)
    target = replace(PLENTY, unit=unit)  # type: ignore[arg-type]
    present, entropy = np.arange(rows, dtype=np.int64), Entropy.from_seed(5)
    return Measurer(owner=owner, clients=clients, present=present, target=target, entropy=entropy, trust=trust, **more)


def some_numbers(rows: int = 4000) -> Matrix:
    generator = np.random.default_rng(4)
    return np.column_stack([generator.normal(50.0, 10.0, rows), generator.normal(-3e-3, 1e-3, rows)])


def learned(numbers: Matrix, by: Measurer, outline: Outline) -> LearnedRule:
    shape = DataShape(
        records=len(numbers),
        features=outline.width,
        classes=2,
        clients=by.clients,
        largest_client=-(-len(numbers) // by.clients),
        smallest_client=len(numbers) // by.clients,
        bound=outline.total,
    )
    planned, outline = settle_preparation(PrepareRequest(classes=True), outline, shape, by.target, by.trust)
    targets = (np.arange(len(numbers)) % 4 == 0).astype(np.float64)
    return learn(
        planned,
        outline,
        Columns(numbers=numbers, texts={}),
        targets,
        2,
        by.clients if by.target.unit == "client" else len(numbers),
        by,
    )


@pytest.mark.parametrize("trust", [CENTRAL, Trust(dropouts=2, colluders=1)])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_means_spreads_and_classes_come_out_right(trust: Trust, unit: str) -> None:
    numbers, outline = some_numbers(), Outline(numbers=("a", "b"), texts=())
    found = learned(numbers, measurer(4000, 400, trust, unit), outline)
    rows = found.rows(Columns(numbers=numbers, texts={}))
    centred = rows[:, :2] / found.factor
    assert float(np.abs(centred.mean(axis=0)).max()) < 0.2
    assert 0.7 < float(centred.std()) < 1.3
    assert found.classes[1] == pytest.approx(0.25, abs=0.03)
    assert LearnedRule.read(found.text()) == found


def test_missing_numbers_become_the_mean() -> None:
    numbers = some_numbers()
    numbers[::3, 0] = np.nan
    found = learned(numbers, measurer(4000, 400), Outline(numbers=("a", "b"), texts=()))
    rows = found.rows(Columns(numbers=numbers, texts={}))
    assert float(np.abs(rows[::3, 0]).max()) == 0
    assert float(abs(rows[1::3, 0].mean())) < 0.1 * found.factor  # gaps do not pull the mean of the others to zero


def test_masked_sums_are_the_open_sums() -> None:
    trust = Trust(server="secure-aggregation", dropouts=2)
    masked = SecureSumming(bytes(32), b"seed" * 8, least=8, colluders=0)
    numbers = some_numbers(200)
    one = Measurement(name="ranges", size=2 * BINS, bound=1.5, noise=3.0)
    sums = range_counts(Columns(numbers=numbers, texts={}), [0, 1])
    open_sum = measurer(200, 10, trust).noisy_sum(one, sums, 2 * BINS)
    closed = measurer(200, 10, trust, add_up=masked).noisy_sum(one, sums, 2 * BINS)
    assert np.array_equal(open_sum, closed)
    missing = measurer(200, 10, trust, fails=lambda turn, client: client == 3).noisy_sum(one, sums, 2 * BINS)
    assert not np.array_equal(open_sum, missing)  # who is missing is missing, and its noise too


def test_shares_make_up_the_planned_noise() -> None:
    """The variance of a sum of shares, over 324 numbers: within 40% but for a chance below 1e-6."""
    trust = Trust(dropouts=2, colluders=3)
    numbers = some_numbers(200)
    one = Measurement(name="ranges", size=2 * BINS, bound=1.5, noise=3.0)
    sums = range_counts(Columns(numbers=numbers, texts={}), [0, 1])
    noisy = measurer(200, 10, trust).noisy_sum(one, sums, 2 * BINS)
    exact = sums(np.arange(200)) / 2**20
    found = float(np.var(noisy - exact)) / (3.0 * 1.5) ** 2
    assert found == pytest.approx(10 / 5, rel=0.4)  # ten shares, of which five are planned for


def study(folder: Path, columns: dict[str, list[Any]], **tables: dict[str, Any]) -> dict[str, Any]:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(str(cell) for cell in row) for row in rows)]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    return {
        "data": {"source": str(folder / "data.csv"), "target": "y", "classes": 2, **tables.pop("data", {})},
        "clients": tables.pop("clients", {"kind": "equal", "count": 4}),
        "model": {"kind": "logistic", "shape": "linear"},
        "privacy": {"epsilon": 4.0, "delta": 1e-5, "neighbours": "zero-out"},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 10},
        **tables,
    }


def prepared(tables: dict[str, Any]) -> tuple[Unprepared, LearnedRule]:
    found, raw = open_any_study(tables)
    assert isinstance(raw, Unprepared)
    return raw, learned_from(planned_for(found, raw).plan, raw, Entropy.from_seed(0))


N = 800
LABELS = [row % 2 for row in range(N)]


@pytest.mark.parametrize(
    "cells",
    [[7] * N, [""] * N, [1e300] * N, [1e300 if row == 3 else row for row in range(N)], ["NA", 5] * (N // 2)],
    ids=["constant", "all missing", "huge", "one huge", "half missing"],
)
def test_poor_columns_give_finite_rows(tmp_path: Path, cells: list[Any]) -> None:
    raw, found = prepared(study(tmp_path, {"good": list(range(N)), "poor": cells, "y": LABELS}))
    loaded = raw.loaded(found)
    assert found.outline.numbers == ("good", "poor")
    assert np.isfinite(loaded.train.features).all()
    assert loaded.train.shape == raw.shape(found.outline)


def test_text_in_some_rows_is_refused_by_its_place(tmp_path: Path) -> None:
    cells = ["abc" if row == 5 else row for row in range(N)]
    with pytest.raises(BadValue, match="line 7, column 'c' must be a number, got 'abc'"):
        plan_study(study(tmp_path, {"c": cells, "y": LABELS}))


def test_categories_are_learned_and_rare_ones_join_the_others(tmp_path: Path) -> None:
    words = ["red" if row % 2 else "blue" if row % 20 else f"rare {row}" for row in range(N)]
    raw, found = prepared(study(tmp_path, {"colour": words, "size": list(range(N)), "y": LABELS}))
    assert {one.word for one in found.categories} == {"red", "blue"}
    assert found.feature_names[-2:] == ("colour=(other)", "intercept")
    rows = raw.loaded(found).train.features
    assert rows.shape[1] == found.outline.width == len(found.feature_names)
    assert not rows[:, found.feature_names.index("(unused 1)")].any() if "(unused 1)" in found.feature_names else True


def test_ten_thousand_categories_are_no_trouble(tmp_path: Path) -> None:
    words = [f"word {row % 100}-{row}" for row in range(N)]
    _, found = prepared(study(tmp_path, {"colour": words, "y": LABELS}))
    assert found.categories == ()
    assert found.others == (1.0,)


def test_a_word_of_held_out_rows_is_not_counted(tmp_path: Path) -> None:
    """Its count among the records to train on is zero: with noise it could be shown, so it gets none."""
    held = {"data": {"held_out": {"fraction": 0.5}}}
    raw, found = prepared(study(tmp_path, {"c": [f"w{row % 400}" for row in range(N)], "y": LABELS}, **held))
    assert len(raw.columns) == N
    assert len(raw.training_columns) == N // 2
    assert found.categories == ()


def test_missing_texts_are_a_category_of_their_own(tmp_path: Path) -> None:
    words = ["?" if row % 2 else "known" for row in range(N)]
    _, found = prepared(study(tmp_path, {"c": words, "y": LABELS}))
    assert {one.word for one in found.categories} == {MISSING_WORD, "known"}


def test_what_is_stated_is_not_learned(tmp_path: Path) -> None:
    columns = {"size": list(range(N)), "colour": ["red", "blue"] * (N // 2), "y": LABELS}
    data = {"scale": {"size": [0, 1000]}, "categories": {"colour": ["red", "blue"]}}
    raw, found = prepared(study(tmp_path, columns, data=data, prepare={"kind": "auto"}))
    assert found.numbers[0].range == Range(0.0, 1000.0)
    assert found.categories == ()
    assert found.feature_names == ("size", "colour=red", "colour=blue", "intercept")
    assert raw.loaded(found).train.features[:, 1:3].any(axis=1).all()


def test_published_ranges_count_as_stated_for_auto_and_not_for_private() -> None:
    tables = {
        "data": {"source": "sklearn:wine"},
        "model": {"kind": "softmax"},
        "privacy": {"epsilon": 4.0, "delta": 1e-4},
        "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 10},
        "clients": {"kind": "equal", "count": 2},
    }
    auto, private = (plan_study({**tables, "prepare": {"kind": kind}}).plan for kind in ("auto", "private"))
    assert auto.preparation
    assert private.preparation
    assert "ranges" not in auto.preparation
    assert "ranges" in private.preparation
    assert plan_study(tables).plan == auto  # no [prepare] and no feature bound: auto


def test_a_study_that_states_its_rule_plans_as_before(tmp_path: Path) -> None:
    tables = study(tmp_path, {"size": list(range(N)), "y": LABELS}, data={"feature_bound": 1.0})
    before = plan_study(tables).plan
    assert not before.preparation
    assert plan_study({**tables, "prepare": {"kind": "stated"}}).plan.hash == before.hash
    assert isinstance(open_any_study(tables)[1].train.features, np.ndarray)


def test_who_cannot_learn_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="must state here how its columns become rows"):
        open_study(study(tmp_path, {"size": list(range(N)), "y": LABELS}))


def test_a_client_whose_rows_are_all_dropped_adds_nothing(tmp_path: Path) -> None:
    columns = {
        "site": ["north"] * (N - 5) + ["south"] * 5,
        "size": [*range(N - 5), *[""] * 5],
        "y": LABELS,
    }
    data = {"client_column": "site", "fill": {"size": "drop-row"}}
    raw, found = prepared(study(tmp_path, columns, data=data, clients={"kind": "column"}))
    assert raw.train.clients == 2
    assert raw.present.size == N - 5
    assert not raw.loaded(found).train.features[-5:].any()


class TestComponents:
    outline = Outline(
        numbers=tuple(map(str, range(64))),
        texts=(),
        scale=dict.fromkeys(map(str, range(64)), (-16.0, 16.0)),
        components=10,
    )

    def found(self, epsilon: float) -> tuple[Matrix, LearnedRule]:
        numbers = load_digits().data
        rows = len(numbers)
        by = measurer(rows, rows)
        by = replace(by, target=replace(PLENTY, epsilon=epsilon))
        shape = DataShape(
            records=rows, features=11, classes=2, clients=rows, largest_client=1, smallest_client=1, bound=2**0.5
        )
        request = PrepareRequest(share=0.9, components=10)
        planned, outline = settle_preparation(request, self.outline, shape, by.target, CENTRAL)
        assert [one.name for one in planned.measurements] == ["means", "moments"]
        return numbers, learn(planned, outline, Columns(numbers=numbers, texts={}), np.zeros(rows), 2, rows, by)

    @pytest.mark.parametrize(("epsilon", "least"), [(0.5, 0.45), (1.0, 0.58), (20.0, 0.72)])
    def test_they_capture_most_of_the_variance(self, epsilon: float, least: float) -> None:
        """Exact components capture .738; pure epsilon 1 by diffprivlib 0.6.6 captures .151 of it."""
        numbers, found = self.found(epsilon)
        directions = np.array(found.components)
        assert directions @ directions.T == pytest.approx(np.eye(10), abs=1e-9)
        spread = np.cov(numbers.T)
        assert np.trace(directions @ spread @ directions.T) / np.trace(spread) > least

    def test_rows_have_as_many_entries_as_components(self) -> None:
        numbers, found = self.found(1.0)
        rows = found.rows(Columns(numbers=numbers, texts={}))
        assert rows.shape == (len(numbers), 11) == (len(numbers), found.outline.width)
        assert found.feature_names == (*(f"component {place}" for place in range(1, 11)), "intercept")
        assert float(np.linalg.norm(rows, axis=1).max()) <= found.outline.total
        assert np.array_equal(found.rows(Columns(numbers=numbers[:1], texts={}))[0], rows[0])
        assert LearnedRule.read(found.text()) == found

    def test_as_many_components_as_features_are_refused(self) -> None:
        outline = replace(self.outline, components=64)
        shape = DataShape(
            records=100, features=65, classes=2, clients=1, largest_client=100, smallest_client=100, bound=2**0.5
        )
        with pytest.raises(BadValue, match=r"prepare\.components must be below the 64 features"):
            settle_preparation(PrepareRequest(components=64), outline, shape, PLENTY, CENTRAL)

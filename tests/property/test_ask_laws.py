"""Laws of questions: what one record adds, what is published, and that no row but through noisy sums decides it."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import BadValue
from fedveil.data.records import DataShape
from fedveil.data.row_rule import Labels
from fedveil.privacy.target import Target
from fedveil.privacy.trust import CENTRAL
from fedveil.stages.ask.blocks import entry_noise, prefix_root, product_size, products, symmetric
from fedveil.stages.ask.counts import consistent, nonnegative
from fedveil.stages.ask.question import propagated
from fedveil.stages.ask.rows import Condition
from fedveil.stages.ask.stage import Ask, layout_of, read_questions, settings_of
from fedveil.stages.measured.stage import measured_plan
from fedveil.stages.prepare.columns import Columns, Outline, Words
from fedveil.stages.sums import STEPS
from fedveil.stages.synthesise.table import Table

OUTLINE = Outline(numbers=("age", "weight", "time", "dead"), texts=("sex",), categories={"sex": ("F", "M", "X")})
AGE, WEIGHT = [0.0, 100.0], [30.0, 200.0]
COX = {"kind": "regression", "name": "cox", "model": "cox", "time": "time", "event": "dead", "times": [1, 2, 4]}
EVERY: list[dict[str, Any]] = [
    {"kind": "count", "where": ["age >= 60", "sex in [F, M]"], "by": "sex", "per_site": True},
    {"kind": "histogram", "column": "age", "edges": [20, 40, 60], "by": "sex"},
    {"kind": "crosstab", "columns": ["sex", "dead"], "values": {"dead": [0, 1]}},
    {"kind": "mean", "column": "weight", "range": WEIGHT, "weight": 3},
    {"kind": "total", "column": "weight", "range": WEIGHT},
    {"kind": "quantiles", "column": "age", "range": AGE, "cells_in_range": 32},
    {"kind": "survival", "time": "time", "event": "dead", "times": [1, 2, 4], "by": "sex"},
    {"kind": "correlation", "columns": ["age", "weight"], "range": {"age": AGE, "weight": WEIGHT}},
    {"kind": "regression", "name": "linear", "column": "weight", "columns": ["age", "sex"],
     "range": {"age": AGE, "weight": WEIGHT}},
    {"kind": "regression", "name": "logistic", "model": "logistic", "column": "dead", "columns": ["age", "sex"],
     "range": {"age": AGE}},
    {"kind": "regression", "name": "poisson", "model": "poisson", "column": "dead", "columns": ["age"],
     "range": {"age": AGE, "dead": [0, 5]}},
    {"kind": "words", "column": "sex"},
    {**COX, "columns": ["age", "sex"], "range": {"age": AGE}},
]  # fmt: skip
SETTINGS = {"questions": EVERY}
cell = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.sampled_from([0.0, 1.0, 50.0, 100.0]))
record = st.tuples(cell, cell, cell, cell, st.integers(0, 4))


def table(rows: list[tuple[float, ...]], clients: int = 2) -> Table:
    numbers = np.array([row[:4] for row in rows], dtype=np.float64).reshape(-1, 4)
    words = Words(spelt=("", "F", "M", "X", "Y"), codes=np.array([row[4] for row in rows], dtype=np.int64))
    return Table(
        outline=OUTLINE,
        columns=Columns(numbers=numbers, texts={"sex": words}),
        targets=np.zeros(len(rows)),
        labels=Labels(span=(-1.0, 1.0)),
        target=None,
        owner=np.arange(len(rows)) % clients,
        clients=clients,
    )


def plan(asked: dict[str, Any] = SETTINGS, epsilon: float = 30.0, records: int = 100_000, clients: int = 2) -> Any:
    shape = DataShape(
        records=records, features=5, classes=0, clients=clients, largest_client=records, smallest_client=1, bound=1.0
    )
    return measured_plan("ask", "ask", asked, OUTLINE, shape, Target(epsilon=epsilon, delta=1e-6), CENTRAL)


PLAN = plan()


class Noisy:
    """Adds up with normal noise, and keeps what single rows add."""

    def __init__(self, rows: int, seed: int = 0, noise: float = 1.0) -> None:
        self.rows, self.noise, self.draw = rows, noise, np.random.default_rng(seed)
        self.each: list[Any] = []
        self.sums: list[Any] = []

    @property
    def present(self) -> Any:
        return np.arange(self.rows)

    def noisy_sum(self, planned: Any, contributions: Any, size: int) -> Any:
        assert size == planned.size
        self.each.append([contributions(np.array([row])) for row in range(self.rows)])
        total = contributions(self.present)
        assert total.dtype == np.int64
        assert (total == sum(self.each[-1], np.zeros(size, dtype=np.int64))).all()
        self.sums.append(total / STEPS + self.draw.normal(0, self.noise * planned.noise * planned.bound, size))
        return self.sums[-1]


class Known:
    """Gives sums that are known, and never looks at a row."""

    def __init__(self, sums: list[Any]) -> None:
        self.sums, self.present = list(sums), np.zeros(0, dtype=np.int64)

    def noisy_sum(self, planned: Any, contributions: Any, size: int) -> Any:
        return self.sums.pop(0)


@settings(max_examples=25, deadline=None)
@given(st.lists(record, min_size=2, max_size=5))
def test_every_record_adds_at_most_norm_1_and_two_differ_by_at_most_the_root_of_2(rows: list[Any]) -> None:
    by = Noisy(len(rows))
    Ask().result(SETTINGS, PLAN.sums, table(rows), 100_000, by)
    assert len(by.each) == 4  # one sum for all, and three steps
    for each in by.each:
        for one in each:
            assert np.dot(one.astype(object), one.astype(object)) <= STEPS**2
            for other in each:
                gap = (one - other).astype(object)
                assert np.dot(gap, gap) <= 2 * STEPS**2


QUIET = [one for one in EVERY if one["kind"] not in ("correlation", "regression", "words")]
ALONE = [{key: value for key, value in one.items() if key not in ("by", "per_site")} for one in QUIET]
chosen = st.lists(st.sampled_from([*QUIET, *ALONE]), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(record, min_size=2, max_size=4), chosen, st.integers(0, 2**31))
def test_with_laplace_noise_the_magnitudes_of_a_record_add_up_to_at_most_1(
    rows: list[Any], asked: list[dict[str, Any]], seed: int
) -> None:
    """So two records differ by at most 2; and answers are a function of the noisy sums alone."""
    named = [{**one, "name": f"{place} {one['kind']}"} for place, one in enumerate(asked)]
    flat = {"questions": named, "noise": "laplace"}
    planned = plan(flat, clients=1).sums
    assert planned.law == "laplace"
    by, people = Noisy(len(rows), seed), table(rows, clients=1)
    content = Ask().result(flat, planned, people, 100_000, by)
    for one in by.each[0]:
        assert np.abs(one).sum() <= STEPS
    assert Ask().result(flat, planned, table([], clients=1), 100_000, Known(by.sums)) == content


def test_few_questions_of_one_holder_get_laplace_noise_and_many_get_gaussian_noise() -> None:
    """A count costs what it costs elsewhere: one over epsilon, as a replaced record moves it by one."""
    count = {"kind": "count", "where": ["age >= 60"]}
    one = plan({"questions": [count]}, epsilon=0.5, clients=1)
    assert one.sums.law == "laplace"
    assert one.promise("server").epsilon == pytest.approx(0.5, rel=1e-3)
    layout = layout_of(one.stated, OUTLINE, 1)
    (_, expected), *_ = layout.expected(one.sums, 100_000)
    assert expected.half_width == pytest.approx(math.log(20) / 0.5, rel=2e-3)
    many = [{**count, "name": str(place)} for place in range(40)]
    assert plan({"questions": many}, epsilon=0.5, clients=1).sums.law == "gaussian"
    assert plan({"questions": [count]}, epsilon=0.5, clients=2).sums.law == "gaussian"
    again = type(one).read(one.text())
    assert again == one
    with pytest.raises(BadValue, match="Laplace shares"):
        type(one).read(one.text().replace("clients = 1", "clients = 2"))


def test_the_sensitivity_is_reached_so_the_noise_is_not_larger_than_needed() -> None:
    """Two cells of a histogram are the root of 2 apart, up to the grid."""
    asked = {"questions": [{"kind": "histogram", "column": "sex"}]}
    by = Noisy(2)
    Ask().result(asked, plan(asked).sums, table([(0, 0, 0, 0, 1), (0, 0, 0, 0, 2)]), 100, by)
    gap = (by.each[0][0] - by.each[0][1]) / STEPS
    assert math.sqrt(2) * 0.99999 < np.linalg.norm(gap) <= math.sqrt(2)


@settings(max_examples=10, deadline=None)
@given(st.lists(record, min_size=1, max_size=30), st.integers(0, 2**31))
def test_answers_are_a_function_of_the_noisy_sums_alone(rows: list[Any], seed: int) -> None:
    by = Noisy(len(rows), seed)
    content = Ask().result(SETTINGS, PLAN.sums, table(rows), 100_000, by)
    assert Ask().result(SETTINGS, PLAN.sums, table([]), 100_000, Known(by.sums)) == content
    for answer in json.loads(content)["answers"]:
        for row in answer["tables"][""]:
            assert row["low"] <= row["estimate"] <= row["high"]
            assert row.get("population_low", row["low"]) <= row["low"]
            assert row.get("population_high", row["high"]) >= row["high"]
            if answer["question"]["kind"] in ("count", "histogram", "crosstab"):
                assert row["low"] >= 0
        if answer["question"]["kind"] in ("quantiles", "survival"):
            check_monotone(answer)


def check_monotone(answer: dict[str, Any]) -> None:
    rises = answer["question"]["kind"] == "quantiles"
    for group in {row.get("sex") for row in answer["tables"][""]}:
        values = [row["estimate"] for row in answer["tables"][""] if row.get("sex") == group]
        assert values == sorted(values, reverse=not rises)


@given(st.lists(st.floats(-50, 200), min_size=2, max_size=12))
def test_counts_become_nonnegative_with_the_same_total_and_are_the_nearest_such(noisy: list[float]) -> None:
    counts, total = np.array(noisy), 100.0
    fit = nonnegative(counts, total)
    assert (fit >= 0).all()
    assert fit.sum() == pytest.approx(total)
    even = np.full(counts.size, total / counts.size)
    for other in (even, fit[::-1], (even + fit) / 2):
        assert np.linalg.norm(fit - counts) <= np.linalg.norm(other - counts) + 1e-6


def test_least_squares_uses_margins_and_a_public_total() -> None:
    fit, covariance = consistent(np.vstack([np.eye(2), [1.0, 1.0]]), np.array([4.0, 8.0, 9.0]), np.ones(3), None)
    assert fit == pytest.approx([3.0, 7.0])
    assert np.diag(covariance) == pytest.approx([2 / 3, 2 / 3])
    fit, covariance = consistent(np.eye(2), np.array([4.0, 8.0]), np.ones(2), 10)
    assert fit == pytest.approx([3.0, 7.0], abs=1e-4)
    assert np.diag(covariance) == pytest.approx([0.5, 0.5], abs=1e-4)


def test_products_and_prefix_sums_are_what_they_say() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(5, 4))
    assert symmetric(products(rows).sum(axis=0), 4) == pytest.approx(rows.T @ rows)
    assert np.linalg.norm(products(rows), axis=1) == pytest.approx(np.square(rows).sum(axis=1))
    assert entry_noise(3)[0] == pytest.approx([1, math.sqrt(0.5), math.sqrt(0.5)])
    root, norm = prefix_root(64)
    assert root @ root == pytest.approx(np.tri(64))
    assert np.linalg.norm(root, axis=0).max() <= norm < 1 + math.log(64) / 2
    assert product_size(4) == 10


def test_noise_goes_through_a_function_to_first_order() -> None:
    value, covariance = propagated(lambda x: np.array([x[0] / x[1]]), np.array([4.0, 2.0]), np.array([0.1, 0.2]))
    assert value == pytest.approx([2.0])
    assert covariance[0, 0] == pytest.approx((0.1 / 2) ** 2 + (4 / 4 * 0.2) ** 2)


def test_without_noise_every_answer_is_the_exact_one() -> None:
    draw = np.random.default_rng(3)
    age, sex = draw.uniform(20, 90, 3000), draw.integers(1, 4, 3000)
    weight = 60 + 0.5 * age + 5 * (sex == 2) + draw.normal(0, 5, 3000)
    dead = (draw.random(3000) < 1 / (1 + np.exp(-(age - 60) / 20 - (sex == 2)))).astype(float)
    time = draw.exponential(3, 3000)
    rows = list(zip(age, weight, time, dead, sex, strict=True))
    sums = type(PLAN.sums)(
        measurements=tuple(type(one)(name=one.name, size=one.size, bound=one.bound, noise=1e-3)
                           for one in PLAN.sums.measurements),
        share=0.9,
    )  # fmt: skip

    class Exact(Noisy):
        def noisy_sum(self, planned: Any, contributions: Any, size: int) -> Any:
            return contributions(self.present) / STEPS

    found = {
        one["question"]["name"]: one["tables"][""]
        for one in json.loads(Ask().result(SETTINGS, sums, table(rows), 3000, Exact(3000)))["answers"]
    }
    assert found["count 1"][0]["estimate"] == ((age >= 60) & (sex == 1))[::2].sum()
    assert found["mean 4"][0]["estimate"] == pytest.approx(weight.mean(), abs=0.01)
    assert found["total 5"][0]["estimate"] == pytest.approx(weight.sum(), rel=1e-4)
    assert found["quantiles 6"][2]["estimate"] == pytest.approx(np.median(age), abs=1.5)
    assert found["correlation 8"][0]["estimate"] == pytest.approx(np.corrcoef(age, weight)[0, 1], abs=1e-3)
    design = np.column_stack([np.ones(3000), age, sex == 2, sex == 3])
    slopes = np.linalg.lstsq(design, weight, rcond=None)[0]
    assert [row["estimate"] for row in found["linear"]] == pytest.approx(slopes, rel=0.05, abs=0.3)
    odds = {row["coefficient"]: row["odds_ratio"] for row in found["logistic"] if "odds_ratio" in row}
    assert math.log(odds["age"]) == pytest.approx(1 / 20, rel=0.2)
    assert math.log(odds["sex = M"]) == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize("place", [7, 8])
def test_whether_a_correlation_or_a_linear_model_is_shown_is_not_decided_by_the_noise_that_it_shows(place: int) -> None:
    """What is shown only where its own noise happened to be small would be biased: an earlier sum decides."""
    draw = np.random.default_rng(4)
    age = draw.uniform(0, 100, 2000)
    rows = list(zip(age, 30 + age + draw.normal(0, 5, 2000), age, age > 50, draw.integers(1, 4, 2000), strict=True))
    asked, people = {"questions": [{**EVERY[place], "name": "one"}]}, table(rows)  # type: ignore[arg-type]
    sums = plan(asked, records=2000).sums

    class Twice(Known):
        def noisy_sum(self, planned: Any, contributions: Any, size: int) -> Any:
            return contributions(np.arange(2000)) / STEPS if self.sums.pop(0) else np.zeros(size)

    def shown(first: bool) -> int:
        found = json.loads(Ask().result(asked, sums, people, 2000, Twice([first, True])))["answers"][0]
        return len(found["tables"][""])

    assert shown(True) > 0
    assert shown(False) == 0


def test_where_no_number_seems_to_be_missing_a_mean_is_over_the_public_number_of_records() -> None:
    """So its error is that of its sum alone, also far from the middle of its range; a true gap is still seen."""
    asked = {"questions": [{"kind": "mean", "column": "age", "range": AGE}]}
    made = plan(asked, records=3000, epsilon=1.0)
    (part,) = layout_of(asked, OUTLINE, 2).parts(0)
    deviation = part.noise(made.sums["questions"])

    def row(count: float, where: list[str]) -> dict[str, Any]:
        own = {"questions": [{**asked["questions"][0], "where": where}]}
        noisy = np.array([count / 2, -0.8 * 3000 / math.sqrt(2), 0.32 * 3000])
        found = Ask().result(own, made.sums, table([]), 3000, Known([noisy * part.scale / STEPS]))
        return dict(json.loads(found)["answers"][0]["tables"][""][0])

    near = 3000 - 1.5 * 2 * deviation
    assert row(near, [])["estimate"] == pytest.approx(10.0)
    assert row(near, ["dead == 1"])["estimate"] == pytest.approx(50 - 50 * 2400 / near)
    assert row(2500, [])["estimate"] == pytest.approx(50 - 50 * 2400 / 2500)


def test_settings_read_back_to_the_same_layout() -> None:
    questions = read_questions(EVERY)
    again = read_questions(settings_of(questions)["questions"])
    assert again == questions
    assert layout_of(SETTINGS, OUTLINE, 2).sought() == layout_of(settings_of(questions), OUTLINE, 2).sought()


@given(
    st.sampled_from(["age", "days in bed", "a > b", "is missing", "x==y"]), st.sampled_from(["==", "in", "is missing"])
)
def test_a_condition_reads_back_whatever_its_column_is_called(column: str, sign: str) -> None:
    condition = Condition(column, sign, () if sign == "is missing" else ("1",))
    assert Condition.read(condition.text()) == condition


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"kind": "count", "where": ["agee > 3"]}, "name a column of the data, got 'agee'. Did you mean age"),
        ({"kind": "count", "where": ["age"]}, "compare a column with a value"),
        ({"kind": "count", "where": ["sex > F"]}, "be compared by ==, != or in, since it holds texts"),
        ({"kind": "count", "where": ["age > old"]}, "be compared with a number, got 'old'"),
        ({"kind": "mean", "column": "sex", "range": [0, 1]}, "name a column of numbers, got 'sex'"),
        ({"kind": "mean", "column": "age", "range": [1, 0]}, "be at least 2 finite numbers that increase"),
        ({"kind": "mean"}, "must be complete: missing 'column'"),
        ({"kind": "median", "column": "age"}, "kind must be one of count, histogram"),
        ({"kind": "histogram", "column": "age"}, "have cells that are public: state its edges or values"),
        (
            {"kind": "histogram", "column": "sex", "values": [str(k) for k in range(10_000)]},
            "between 1 and 1000 values",
        ),
        ({"kind": "survival", "time": "time", "event": "dead", "times": [2, 1]}, "finite numbers that increase"),
        ({"kind": "quantiles", "column": "age", "range": AGE, "at": [1.5]}, "shares strictly between 0 and 1"),
        ({"kind": "correlation", "columns": ["age"]}, "name at least 2 different columns"),
        ({"kind": "regression", "model": "cox", "columns": ["age"], "times": [1, 2]}, "time must be stated"),
        ({"kind": "regression", "column": "age", "columns": ["age"]}, "not name the outcome"),
        ({"kind": "count", "wheer": []}, "Did you mean where"),
        ({"kind": "count", "weight": math.nan}, "weight"),
    ],
)
def test_a_bad_question_gets_one_sentence(question: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence.replace("(", r"\(")) as refusal:
        layout_of({"questions": [question]}, OUTLINE, 1)
    assert "\n" not in str(refusal.value)


def test_what_would_be_all_noise_is_refused_with_that_sentence() -> None:
    for question in EVERY:
        with pytest.raises(BadValue, match="not be all noise"):
            plan({"questions": [question]}, epsilon=0.01, records=60)

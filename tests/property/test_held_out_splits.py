"""Random splits of one file into a training file and a held-out file, which may share rows."""

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import BadValue
from fedveil.data.load import HeldRows
from fedveil.data.row_rule import RowRule
from fedveil.engine.held_out import planned_with
from fedveil.engine.study import planned_for
from fedveil.jobs.local import open_any_study
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, CapExceeded, Cost
from fedveil.ledger.costs import cost_of
from fedveil.stages.prepare.loading import Unprepared

MODEL = {
    "model": {"kind": "logistic", "radius": 20.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
    "algorithm": {"kind": "dpsgd", "rate": 0.2, "rounds": 3},
}


def written(path: Path, rows: list[tuple[float, str]], more: bool, shuffled: bool) -> str:
    """A file of these rows, perhaps in another order and with a column that the study does not read."""
    head = "number,size,ill" if more else "size,ill"
    told = [f"{place}," if more else "" for place in range(len(rows))]
    lines = [f"{first}{size!r},{ill}" for first, (size, ill) in zip(told, rows, strict=True)]
    path.write_text("\n".join([head, *(reversed(lines) if shuffled else lines)]) + "\n")
    return str(path)


def study(source: str, held: dict[str, Any], stated: bool) -> dict[str, Any]:
    rule = {"feature_bound": 1.0, "scale": {"size": [-1000, 1000]}} if stated else {}
    data = {"source": source, "target": "ill", "columns": ["size"], "classes": ["no", "yes"], "held_out": held, **rule}
    return {"data": data, **MODEL}


values = st.floats(-1000, 1000, allow_nan=False)
people = st.lists(st.tuples(values, st.sampled_from(["no", "yes"])), min_size=12, max_size=60, unique=True)


@settings(max_examples=60, deadline=None)
@given(rows=people, data=st.data(), more=st.booleans(), shuffled=st.booleans(), stated=st.booleans())
def test_two_files_are_refused_exactly_if_they_share_a_row(
    rows: list[tuple[float, str]], data: st.DataObject, more: bool, shuffled: bool, stated: bool
) -> None:
    cut = data.draw(st.integers(4, len(rows) - 4))
    shared = data.draw(st.one_of(st.just(0), st.integers(0, cut)))
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        train = written(base / "train.csv", rows[:cut], False, False)
        held = written(base / "held.csv", rows[cut - shared :], more, shuffled)
        found, loaded = open_any_study(study(train, {"source": held}, stated))
        assert isinstance(loaded.apart, HeldRows)
        # equal numbers are equal rows, however they are written
        same = len({(size + 0.0, ill) for size, ill in rows[:cut]} & {(s + 0.0, i) for s, i in rows[cut - shared :]})
        assert same >= shared
        if same:
            with pytest.raises(BadValue, match=rf"\[data\.held_out\] must hold no row .* '{same} such rows'"):
                planned_with(found, loaded)
        else:
            assert planned_with(found, loaded)["apart"] == "compared"
        fraction, split = open_any_study(study(train, {"fraction": 0.4}, stated))
        assert planned_with(fraction, split)["apart"] == "split"


costs = st.floats(0.01, 4.0)
caps = st.one_of(st.none(), st.floats(0.01, 10.0))


@settings(max_examples=25, deadline=None)
@given(runs=st.lists(costs, min_size=1, max_size=4), limits=st.tuples(caps, caps), torn=st.booleans())
def test_two_ledgers_are_charged_alike_or_not_at_all(
    runs: list[float], limits: tuple[float | None, float | None], torn: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        one, other = Path(name) / "one", Path(name) / "other"
        with Ledger.open(one, lambda _: "rows") as train, Ledger.open(other, lambda _: "rows") as held:
            for book, most in zip((train, held), limits, strict=True):
                if most is not None:
                    cap = Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=most, delta=0.1)
                    book.set_cap(cap, "a test")
            spent = 0.0
            for place, epsilon in enumerate(runs):
                cost = Cost(
                    adversary="final-model", unit="record", neighbours="replace-one", epsilon=epsilon, delta=1e-6
                )
                charge: dict[str, Any] = {"run": f"run-{place}", "plan": "plan", "costs": [cost], "rounds": 1}
                try:
                    if torn and place == 0:
                        held.charge(**charge)  # as a crash between the two leaves it
                        spent += epsilon
                        train.charge(**charge, beside=[held])
                    else:
                        train.charge(**charge, beside=[held])
                        spent += epsilon
                except CapExceeded:
                    if torn and place == 0:
                        return  # one of them has a charge for what never ran: that is safe
                assert train.spent("final-model").epsilon == held.spent("final-model").epsilon
                assert train.spent("final-model").epsilon == pytest.approx(spent)
                for most in limits:
                    assert most is None or spent <= most * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    rows=people,
    fraction=st.floats(0.2, 0.8),
    public=st.booleans(),
    word=st.sampled_from([None, True, False]),
    stated=st.booleans(),
)
def test_what_nobody_declared_public_is_measured_privately_or_charged_as_infinite(
    rows: list[tuple[float, str]], fraction: float, public: bool, word: bool | None, stated: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        train = written(Path(name) / "train.csv", rows, False, False)
        held: dict[str, Any] = {"fraction": fraction, "public": public}
        told = {} if word is None or (public and word) else {"evaluation": {"private": word}}
        found, loaded = open_any_study({**study(train, held, stated), **told})
        made = planned_for(found, loaded)
        plan = made.plan
        exact = plan.held_out.private and word is False
        assert plan.held_out.exact == exact
        assert math.isinf(cost_of(plan, "final-model").epsilon) == exact
        assert bool(plan.evaluation) == (not public and word is not False)
        assert not plan.evaluation or plan.evaluation.records == "held-out"


def test_a_rule_that_differs_between_the_two_does_not_hide_a_row(tmp_path: Path) -> None:
    rows = [(float(place), "yes" if place % 2 else "no") for place in range(40)]
    train = written(tmp_path / "train.csv", rows[:25], False, False)
    held = written(tmp_path / "held.csv", rows[20:], True, False)
    other = {"source": held, "scale": {"size": [-900, 900]}}
    found, loaded = open_any_study(study(train, other, True))
    assert isinstance(loaded, Unprepared) or isinstance(loaded.preparation, RowRule)
    with pytest.raises(BadValue, match="'5 such rows'"):
        planned_with(found, loaded)

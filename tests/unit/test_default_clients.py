"""Who owns what where a study does not say it."""

from pathlib import Path
from typing import Any

import pytest

from fedveil.core.errors import BadValue
from fedveil.data.spec import Split
from fedveil.planning.study import study_of

DATA = {"source": "visits.csv", "target": "ill", "classes": 2, "feature_bound": 1.0}
PRIVACY = {"epsilon": 1.0, "delta": 1e-5}


def split(algorithm: str, **more: Any) -> Split:
    tables = {"data": DATA, "model": {"kind": "logistic"}, "privacy": PRIVACY, "algorithm": {"kind": algorithm}}
    return study_of({**tables, **more}, base=Path()).data.split


@pytest.mark.parametrize("algorithm", ["dpsgd", "hidden", "auto"])
def test_the_column_of_clients_is_taken(algorithm: str) -> None:
    assert split(algorithm, data={**DATA, "client_column": "ward"}) == Split.parse({"kind": "column"})


@pytest.mark.parametrize("algorithm", ["dpsgd", "hidden", "auto", "simfl"])
def test_records_that_nobody_divided_are_one_holders(algorithm: str) -> None:
    assert split(algorithm) == Split.parse({"kind": "equal", "count": 1})


@pytest.mark.parametrize("more", [{"trust": {"server": "trusted"}}, {"privacy": {**PRIVACY, "unit": "client"}}])
def test_what_needs_several_clients_is_told_who_they_are(more: dict[str, Any]) -> None:
    each = Split.parse({"kind": "record"})
    assert split("dpsgd", clients={"kind": "record"}) == split("dpsgd", clients={"kind": "record"}, **more) == each
    with pytest.raises(BadValue, match=r"must come with a study that says who the clients are.*State \[clients\]"):
        split("dpsgd", **more)

"""Who owns what where a study does not say it."""

from pathlib import Path
from typing import Any

import pytest

from fedveil.data.spec import Split
from fedveil.study import study_of

DATA = {"source": "visits.csv", "target": "ill", "classes": 2, "feature_bound": 1.0}
PRIVACY = {"epsilon": 1.0, "delta": 1e-5}


def split(algorithm: str, **more: Any) -> Split:
    tables = {"data": DATA, "model": {"kind": "logistic"}, "privacy": PRIVACY, "algorithm": {"kind": algorithm}}
    return study_of({**tables, **more}, base=Path()).split


@pytest.mark.parametrize("algorithm", ["dpsgd", "hidden", "auto"])
def test_the_column_of_clients_is_taken(algorithm: str) -> None:
    assert split(algorithm, data={**DATA, "client_column": "ward"}) == Split.parse({"kind": "column"})


def test_records_that_nobody_divided_are_one_holders_where_clients_noise_their_own_updates() -> None:
    assert split("dpsgd") == Split.parse({"kind": "equal", "count": 1})
    assert split("hidden") == split("auto") == Split.parse({"kind": "record"})


def test_what_is_stated_stays() -> None:
    each = Split.parse({"kind": "record"})
    assert split("dpsgd", clients={"kind": "record"}) == each
    assert split("dpsgd", trust={"server": "trusted"}) == each
    assert split("dpsgd", privacy={**PRIVACY, "unit": "client"}) == each

"""A charge may differ from the account of another version in its last digits, and in nothing more."""

import copy
from dataclasses import replace

import pytest

from fedveil.certificate.certify import check_charge, read_records
from fedveil.core.errors import BadValue
from golden.golden_runs import made_run


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (1 - 1e-9, True), (1 + 1e-3, True), (1 - 1e-5, False)])
def test_only_the_last_digits_may_be_missing(factor: float, accepted: bool) -> None:
    plan, entries = read_records(made_run("dpsgd-poisson"))
    charge = next(entry for entry in entries if "costs" in entry.payload)
    payload = copy.deepcopy(dict(charge.payload))
    changed = 0
    for cost in payload["costs"]:
        if isinstance(cost.get("epsilon"), float):
            cost["epsilon"] *= factor
            changed += 1
    assert changed
    if accepted:
        assert all("charged more" in sentence for sentence in check_charge(plan, replace(charge, payload=payload)))
    else:
        with pytest.raises(BadValue, match="must be at least what the plan costs"):
            check_charge(plan, replace(charge, payload=payload))

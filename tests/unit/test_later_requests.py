"""What a plan says of requests to erase, before anything is trained."""

import pytest

from fedveil.jobs.local import plan_study
from fedveil.planning.forget_design import later_requests

STUDY = {
    "data": {"source": "sklearn:breast_cancer", "feature_bound": 2.0},
    "model": {"kind": "logistic", "radius": 10.0},
    "privacy": {"epsilon": 2.0, "delta": 1e-4},
    "schedule": {"kind": "constant", "rounds": 2, "passes": 2},
}


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"kind": "hidden", "order": "public"}, "further rounds can make the model forget a record"),
        ({"kind": "dpsgd"}, "no further round can make this run forget a record. It is proved for hidden training"),
    ],
)
def test_a_plan_says_whether_further_rounds_can_forget(algorithm: dict[str, str], said: str) -> None:
    schedule = {} if algorithm["kind"] == "dpsgd" else {"schedule": STUDY["schedule"]}
    tables = {key: value for key, value in STUDY.items() if key != "schedule"} | schedule
    assert said in later_requests(plan_study({**tables, "algorithm": algorithm}).plan)

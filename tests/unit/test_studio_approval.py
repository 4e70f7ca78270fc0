"""Whether a run is what was approved: the same bytes, or those of a tuned plan before its candidate was chosen."""

from pathlib import Path

import pytest

from fedveil.data.records import DataShape
from fedveil.planning.plan import Plan, write_plan
from fedveil.signing import Signature, SigningKey
from fedveil.studio.approval import approval_file, approval_words
from unit.test_tune_request import study

OFFICER = SigningKey(b"o" * 32)
SHAPE = DataShape(records=100, features=2, classes=2, clients=10, largest_client=10, smallest_client=10, bound=1.0)


def tuned(epsilon: float) -> Plan:
    """The plan of a study with two candidates."""
    wanted = study(
        {"space": {"model.l2": [0.0, 0.1]}, "trials": 2},
        algorithm={"kind": "dpsgd", "rate": 0.1, "rounds": 3},
        privacy={"epsilon": epsilon, "delta": 1e-5},
    )
    return wanted.planned(SHAPE, 10).plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tuned(1.0)


def told(folder: Path, approved: Plan, ran: bytes) -> str:
    path, run = folder / "study.toml", folder / "run"
    run.mkdir(exist_ok=True)
    approval_file(path).write_bytes(Signature.of(write_plan(approved).encode(), OFFICER).text())
    (run / "plan.toml").write_bytes(ran)
    return approval_words(path, run)


def test_whichever_candidate_was_chosen_the_plan_is_the_approved_one(plan: Plan, tmp_path: Path) -> None:
    texts = [write_plan(plan.with_chosen(number)).encode() for number in range(2)]
    assert texts[0] != texts[1]
    for text in texts:
        assert told(tmp_path, plan, text).startswith("Its plan was approved by")


def test_any_other_plan_is_not(plan: Plan, tmp_path: Path) -> None:
    other = tuned(2.0)
    others = [write_plan(one).encode() for one in (other, other.with_chosen(1), plan.candidates[0])]
    for text in (*others, b"\xff[", b""):
        assert "approved was another plan" in told(tmp_path, plan, text)
    assert approval_words(None, tmp_path) == "Nobody has approved this plan."

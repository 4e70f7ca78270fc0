"""A question that is lost on its way is asked again, and a site that is asked twice works once."""

from pathlib import Path

import pytest

from fedveil.engine.train import train
from fedveil.federation.site.guard import Guard
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.wire.envelope import peek
from unit.federations import Trial, study
from unit.plans import some_records
from unit.test_site_guard import ask, asked_last, stop_after


@pytest.mark.parametrize("dropouts", [0, 3])
def test_a_question_that_is_lost_without_a_word_is_asked_again(tmp_path: Path, dropouts: int) -> None:
    """Also where the others' answers would be enough: the site is there, and nobody is to be missing."""
    records = some_records(60, clients=9)
    trial, lost = Trial(tmp_path, records), list[bytes]()

    def loses(site: str, envelope: bytes) -> bool:
        found = site == "south" and peek(envelope).kind == "step" and len(lost) < 2
        lost.extend([envelope] if found else [])
        return found

    trial.carrier.loses = loses
    out = trial.run(study(trust={"server": "trusted", "dropouts": dropouts, "timeout": 120.0}))
    assert len(lost) == 2
    assert trial.now < 120.0
    alone = train(read_plan((out / "plan.toml").read_text()), records, Entropy.from_seed(3)).model
    assert trial.model().tobytes() == alone.tobytes()


def test_a_lost_question_is_not_waited_for_when_a_later_one_has_come_back(tmp_path: Path) -> None:
    """The first question of a round is lost and the second gets no good answer; the others' answers are enough."""
    trial, asked = Trial(tmp_path, some_records(60, clients=9)), list[bytes]()

    def loses(site: str, envelope: bytes) -> bool:
        mine = site == "south" and peek(envelope).kind == "step" and peek(envelope).round == 1
        asked.extend([envelope] if mine else [])
        return mine and len(asked) == 1

    def meddle(way: str, site: str, envelope: bytes) -> bytes | None:
        return None if way == "down" and envelope in asked else envelope

    trial.carrier.loses, trial.carrier.meddle = loses, meddle
    trial.run(study(trust={"server": "trusted", "dropouts": 3, "timeout": 600.0}))
    assert len(asked) == 2
    assert trial.now < 40.0  # asked again after 30 seconds, and over when that one has failed


def test_a_site_that_is_asked_twice_works_once(tmp_path: Path) -> None:
    """The second time there is nobody left who could do the work, and the answer is the same."""
    trial = Trial(tmp_path, some_records(60, clients=9))
    run = stop_after(trial, 2)
    _, content = asked_last(trial)
    first = ask(trial, run, "step", 1, content)[1].rows["total"]
    guard = trial.carrier.guards["north"]
    assert isinstance(guard, Guard)
    guard._works.update(dict.fromkeys(guard._works))
    again = ask(trial, run, "step", 1, content, 2**50 + 1)[1].rows["total"]
    assert again.tobytes() == first.tobytes()

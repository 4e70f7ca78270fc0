"""Who answered in a round: kept before it is added up, whatever happens then."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import BadValue, TooFewSurvivors
from fedveil.engine.answers import Answers
from fedveil.stages.adding import nobody_fails, plain_sum
from fedveil.sums.seam import Summed, Whole

PARTS = {client: np.array([client, 1], dtype=np.int64) for client in range(4)}


def third(turn: int, client: int) -> bool:
    return client == 3


def refusing(turn: int, parts: Mapping[int, Whole], /) -> Summed:
    raise TooFewSurvivors("lost on the way")


def answered(answers: Answers, turn: int) -> list[int]:
    return [client for client in PARTS if not answers.fails(turn, client)]


def add(answers: Answers, turn: int) -> Summed:
    return answers.add_up(turn, {client: PARTS[client] for client in answered(answers, turn)})


def test_what_was_added_up_stays_and_what_was_not_is_asked_anew(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    first = Answers.open(path, "run", third, plain_sum)
    assert add(first, 0).survivors == (0, 1, 2)
    assert path.stat().st_mode & 0o077 == 0
    again = Answers.open(path, "run", nobody_fails, plain_sum)
    assert add(again, 0).survivors == (0, 1, 2)
    assert add(again, 1).survivors == (0, 1, 2, 3)
    assert answered(Answers.open(path, "run", third, plain_sum), 1) == [0, 1, 2, 3]
    assert answered(Answers.open(path, "another run", nobody_fails, plain_sum), 0) == [0, 1, 2, 3]


def test_it_is_on_the_disk_before_the_sum_is_made(tmp_path: Path) -> None:
    def ends(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        raise KeyboardInterrupt

    path = tmp_path / "answers"
    with pytest.raises(KeyboardInterrupt):
        add(Answers.open(path, "run", third, ends), 0)
    assert answered(Answers.open(path, "run", nobody_fails, plain_sum), 0) == [0, 1, 2]


def test_a_refused_sum_may_be_asked_of_others(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    first = Answers.open(path, "run", third, refusing)
    with pytest.raises(TooFewSurvivors):
        add(first, 0)
    assert answered(Answers.open(path, "run", nobody_fails, plain_sum), 0) == [0, 1, 2, 3]


def test_a_line_that_was_cut_off_was_not_written_and_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    add(Answers.open(path, "run", third, plain_sum), 0)
    path.write_bytes(path.read_bytes() + b"[1, [2")
    again = Answers.open(path, "run", nobody_fails, plain_sum)
    assert answered(again, 0) == [0, 1, 2]
    assert add(again, 1).survivors == (0, 1, 2, 3)
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(BadValue, match="as the run wrote it"):
        Answers.open(path, "run", nobody_fails, plain_sum)

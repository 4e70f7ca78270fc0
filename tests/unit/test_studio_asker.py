"""Asking a worker: one answer to each question, whatever the worker prints, refuses or dies of."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedveil.studio.asker import Asker, Superseded
from fedveil.studio.sentences import Refused, sentence_of
from fedveil.studio.worker import QUESTIONS, answer_to

SCRIPT = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["name"] == "die":
        os._exit(3)
    if asked["name"] == "refuse":
        found = {"refused": "it must not"}
    elif asked["name"] == "wait":
        open(asked["arguments"]["path"]).read()
        found = {"answer": "waited"}
    else:
        found = {"answer": asked["arguments"]}
    sys.stdout.write(json.dumps(found) + "\\n")
    sys.stdout.flush()
"""


@pytest.fixture
def asker(tmp_path: Path) -> Iterator[Asker]:
    made = Asker(tmp_path, (sys.executable, "-S", "-c", SCRIPT))
    yield made
    made.close()


def waited(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_answers_and_refusals_come_back(asker: Asker) -> None:
    assert asker.ask("x", {"a": 1}) == {"a": 1}
    with pytest.raises(Refused, match=r"^it must not$"):
        asker.ask("refuse", {})
    assert asker.ask("x", {"b": "ü"}) == {"b": "ü"}


def test_a_worker_that_dies_is_one_sentence_and_a_new_worker(asker: Asker) -> None:
    with pytest.raises(Refused, match="its process ended") as refused:
        asker.ask("die", {})
    assert "\n" not in str(refused.value)
    assert asker.ask("x", {"a": 2}) == {"a": 2}


def test_of_questions_of_a_kind_that_wait_only_the_newest_is_asked(asker: Asker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    found: dict[str, object] = {}

    def ask(name: str, question: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                found[name] = question()
            except Superseded:
                found[name] = "superseded"

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [ask("busy", lambda: asker.ask("wait", {"path": str(gate)}))]
    with gate.open("w"):  # opens when the worker has begun to read: it is busy until this block ends
        threads.append(ask("old", lambda: asker.ask("x", {"n": 1}, "plan")))
        waited(lambda: "plan" in asker._latest)
        first = asker._latest["plan"]
        threads.append(ask("new", lambda: asker.ask("x", {"n": 2}, "plan")))
        waited(lambda: asker._latest["plan"] != first)
    for thread in threads:
        thread.join()
    assert found == {"busy": "waited", "old": "superseded", "new": {"n": 2}}


def test_a_long_answer_that_nobody_waits_for_is_broken_off(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedveil.studio.asker._LONG", 0.0)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    found: list[str] = []

    def ask() -> None:
        try:
            asker.ask("wait", {"path": str(gate)}, "plan")
        except Superseded as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    with gate.open("w"):  # the worker is busy, and would be for ever
        assert asker.ask("x", {"n": 1}, "plan") == {"n": 1}
    thread.join()
    assert found == ["A newer question was asked meanwhile."]


def test_after_the_end_nothing_is_asked(asker: Asker) -> None:
    asker.ask("x", {})
    asker.close()
    with pytest.raises(Refused, match="closing"):
        asker.ask("x", {})


def test_every_question_is_there() -> None:
    for place in QUESTIONS.values():
        module, _, function = place.partition(":")
        __import__(module)
        assert callable(getattr(sys.modules[module], function))
    assert answer_to("check", {"text": "[", "base": ".", "root": "."})["refused"].startswith(
        "The study file must be TOML"
    )


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "this machine has not enough memory for this; choose fewer rows, columns or rounds"),
        (FileNotFoundError(2, "No", "a.csv"), "a.csv cannot be used: there is no such file or folder"),
        (KeyboardInterrupt(), "stopped"),
        (RuntimeError("a\nb"), "internal error, please report it: RuntimeError: a b"),
    ],
    ids=str,
)
def test_whatever_happens_is_one_sentence(error: BaseException, sentence: str) -> None:
    assert sentence_of(error) == sentence

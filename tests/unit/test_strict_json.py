"""JSON that two readers could understand differently is refused, wherever a run's records are read."""

import pytest

from fedveil.audit.record import read_audit
from fedveil.core.errors import BadValue
from fedveil.core.strict_json import read_json, read_object
from fedveil.ledger.entry import parse

BAD = {
    "twice": '{"a": 1, "a": 2}',
    "twice, equal": '{"a": 1, "a": 1}',
    "twice, spelt differently": '{"a": 1, "\\u0061": 2}',
    "twice, deep inside": '{"x": [{"y": {"a": 1, "a": 2}}]}',
    "not a number": '{"a": NaN}',
    "infinite": '{"a": -Infinity}',
    "too large a number": '{"a": 1e999}',
    "cut short": '{"a": 1',
    "two values": "{} {}",
    "nothing": "",
    "nested too deep": "[" * 100_000,
    "a number too long": "9" * 5000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    for given in (text, text.encode()):
        with pytest.raises(BadValue, match=r"^notes\.json must "):
            read_json(given, "notes.json")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(BadValue, match="must be JSON"):
        read_json(b'{"a": "\xff"}', "notes.json")
    with pytest.raises(BadValue, match="JSON object, got list"):
        read_object("[]", "notes.json")


def test_everything_else_is_read_as_python_does() -> None:
    assert read_json('{"a": [1, 0.1, null, true, "x"], "b": {"a": -1e-300}}', "notes.json") == {
        "a": [1, 0.1, None, True, "x"],
        "b": {"a": -1e-300},
    }


def test_audits_and_entries_of_the_books_are_read_so() -> None:
    with pytest.raises(BadValue, match="'findings' twice"):
        read_audit('{"format": 1, "findings": [], "findings": []}')
    with pytest.raises(ValueError, match="not JSON"):
        parse('{"a":1,"a":1}')

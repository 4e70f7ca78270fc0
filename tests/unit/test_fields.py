"""Rules beside fields: what is refused and how, groups of settings, and the table of exclusions in the docs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from fedveil.core.errors import BadValue
from fedveil.core.fields import Exclusion, check_exclusions, check_fields, count, group, groups_of, listed, real, word
from fedveil.federation.aggregator import federate
from fedveil.models import spec as models
from fedveil.planning import plan, study, tuning
from fedveil.planning.design import read_request
from fedveil.privacy import trust
from fedveil.stages.evaluate import budget
from fedveil.stages.prepare import request
from fedveil.stages.synthesise import request as generator_request
from fedveil.stages.train import request as schedule_request
from fedveil.stages.train.registry import KINDS, exclusions_of, request_type

PAGE = Path(__file__).parents[2] / "docs" / "study-file.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    share: float = real(0, 1, open_low=True, default=0.5, hint="It is a share.")

    def __post_init__(self) -> None:
        check_fields(self, "table.inner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    times: int | None = count(1, 9)
    kind: str = word(Literal["a", "b"], default="a")
    row: tuple[float, ...] = listed(0, 1, least=0, default=())
    inner: Inner = group(Inner, short="share", default=Inner())

    def __post_init__(self) -> None:
        check_fields(self, "table")
        check_exclusions(self, "table", (Exclusion("times", "row", "Both say how often."),))


def test_values_are_plain_and_groups_are_read() -> None:
    made = Outer(times=3.0, row=(), inner={"share": 1})  # type: ignore[arg-type]
    assert (type(made.times), made.inner) == (int, Inner(share=1.0))
    assert Outer(inner=0.25).inner.share == 0.25  # type: ignore[arg-type]
    assert groups_of(Outer) == {"inner": Inner}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"times": 0}, "table.times must lie between 1 and 9, got 0."),
        ({"times": 1.5}, "table.times must be a whole number, got 1.5."),
        ({"kind": "c"}, "table.kind must be one of a, b, got 'c'."),
        ({"row": [math.nan]}, r"table.row must lie in \[0, 1\], got \[nan\]"),
        ({"row": 0.5}, "table.row must be a list of numbers, got 0.5"),
        ({"inner": {"share": math.nan}}, r"table.inner.share must lie in \(0, 1\], got nan. It is a share."),
        ({"inner": {"shar": 1}}, "Key 'shar' must be known to .table.inner., got 'shar'. Did you mean share?"),
        ({"inner": "x"}, "table.inner.share must be a number, got 'x'"),
        ({"times": 2, "row": [0.5]}, "table.times must be left out with row, got 2. Both say how often."),
    ],
)
def test_a_bad_setting_gets_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        Outer(**given)


def test_a_key_outside_its_table_is_sent_there() -> None:
    with pytest.raises(BadValue, match=r"algorithm\.bands must stand in its own table.*\[algorithm\.correlation\]"):
        read_request({"kind": "fedavg", "bands": 2})


TABLES = {  # fields are named within their tables
    "model": models,
    "trust": trust,
    "schedule": schedule_request,
    "prepare": request,
    "generator": generator_request,
    "": (plan, study, tuning, budget, federate),
}


def rows_of_the_docs() -> Iterator[str]:
    for kind in KINDS:
        for pair in exclusions_of(kind):
            one, other, why = pair.words()
            yield f"| `{kind}` | `{one}` | {other if ' ' in other else f'`{other}`'} | {why} |"
    for table, modules in TABLES.items():
        for module in modules if isinstance(modules, tuple) else (modules,):
            for pair in module.EXCLUSIONS:
                one, other, why = pair.words()
                yield f"| `{one if pair.given else f'{table}.{one}'}` | {other} | {why} |"


def test_the_docs_print_every_exclusion() -> None:
    """All of them are checked by one function; ``python tests/unit/test_fields.py`` prints the rows."""
    page, rows = PAGE.read_text(encoding="utf-8"), list(rows_of_the_docs())
    assert len(rows) >= 60
    assert [row for row in rows if row not in page] == []


def test_both_sides_of_an_exclusion_are_settings() -> None:
    for kind in KINDS:
        names = {one.name for one in fields(request_type(kind))}
        assert {pair.one for pair in exclusions_of(kind) if pair.given is None} <= names
        assert {pair.other for pair in exclusions_of(kind) if pair.when is None} <= names


if __name__ == "__main__":
    print("\n".join(dict.fromkeys(rows_of_the_docs())))

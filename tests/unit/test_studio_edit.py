"""A choice changes one value of a study's text, and every other letter stays."""

import tomllib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.core.errors import BadValue
from fedveil.privacy.guarantee import NAMELESS, Adversary, Neighbours
from fedveil.privacy.trust import Server
from fedveil.stages.train.registry import KINDS, AutoRequest
from fedveil.studio import choices
from fedveil.studio.choices import chosen, with_choice
from fedveil.studio.edit import with_value, without_table

STUDY = """# mine
[data]
source = "a.csv"   # here

[privacy]
epsilon = 1.0          # strict = "yes"
delta = 1e-5
unit = 'record' # of "them"

[data.scale]
epsilon = [0, 1]
"""


@given(value=st.one_of(st.floats(1e-4, 40), st.integers(1, 40), st.text(max_size=20), st.booleans()))
def test_only_the_value_changes(value: float | str | bool) -> None:
    changed = with_value(STUDY, "privacy", "epsilon", value)
    wanted = tomllib.loads(STUDY)
    wanted["privacy"]["epsilon"] = value
    assert tomllib.loads(changed) == wanted
    before, after = STUDY.split("\n"), changed.split("\n")
    place = before.index('epsilon = 1.0          # strict = "yes"')
    assert after[:place] == before[:place]
    assert after[place + 1 :] == before[place + 1 :]
    assert '# strict = "yes"' in changed


def test_a_key_is_added_and_taken_away_again() -> None:
    more = with_value(STUDY, "privacy", "neighbours", "zero-out")
    assert tomllib.loads(more)["privacy"]["neighbours"] == "zero-out"
    assert with_value(more, "privacy", "neighbours", None) == STUDY
    assert tomllib.loads(with_value(STUDY, "algorithm", "kind", "dpsgd"))["algorithm"] == {"kind": "dpsgd"}
    assert tomllib.loads(with_value("", "privacy", "epsilon", 1.0)) == {"privacy": {"epsilon": 1.0}}


@pytest.mark.parametrize(
    "text",
    [
        "privacy = {epsilon = 1.0}\n",
        "privacy.epsilon = 1.0\n",
        '[privacy]\n"epsilon" = 1.0\n',
        "[privacy]\nepsilon = [\n1]\n",
    ],
)
def test_what_is_written_otherwise_is_changed_there(text: str) -> None:
    assert tomllib.loads(with_value(text, "privacy", "epsilon", 2.0)) == {"privacy": {"epsilon": 2.0}}
    assert tomllib.loads(without_table(text + "[data]\nclasses = 2\n", "privacy")) == {"data": {"classes": 2}}


@pytest.mark.parametrize("text", ["privacy = 3\n", "[[privacy]]\nepsilon = 1.0\n", "[privacy\n"])
def test_what_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"be a table|must be TOML"):
        with_value(text, "privacy", "epsilon", 2.0)


def test_choices_are_read_and_written() -> None:
    assert chosen(STUDY)["trust"] == "central"
    assert chosen(STUDY)["algorithm"] == "hidden"
    trusted = with_choice(STUDY, "trust", "secure-aggregation")
    assert chosen(trusted)["trust"] == "secure-aggregation"
    assert without_table(trusted, "trust") == with_choice(trusted, "trust", "central")
    assert tomllib.loads(with_choice(trusted, "trust", "central")) == tomllib.loads(STUDY)
    assert with_choice(STUDY, "adversary", "final-model") == STUDY
    for name, value in (("seed", 1), (None, 1), ("epsilon", "much"), ("delta", None)):
        with pytest.raises(BadValue, match="must"):
            with_choice(STUDY, name, value)


def test_everything_that_a_study_may_choose_is_offered() -> None:
    assert [value for value, _ in choices.algorithms()] == [*KINDS, AutoRequest.kind]
    assert [value for value, _ in choices.OBSERVERS] == list(get_args(Adversary))
    assert [value for value, _ in choices.UNITS] == list(NAMELESS)
    assert [value for value, _ in choices.NEIGHBOURS] == list(get_args(Neighbours))
    assert [value for value, _ in choices.TRUSTS] == ["central", *get_args(Server)]

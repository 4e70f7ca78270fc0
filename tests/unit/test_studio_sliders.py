"""What a slider answers: exact where it was worked out, in between about, and never below or above its neighbours."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.studio.sentences import Refused
from fedveil.studio.state import DELTAS, EPSILONS, Sliders, frame_of, target_of

OBSERVERS = ("final-model", "server")


def answer(epsilon: float, delta: float) -> dict[str, Any]:
    """Return an answer whose numbers are powers of the target, on which interpolation is exact."""
    return {
        "target": {"epsilon": epsilon, "delta": delta, "adversary": "final-model"},
        "noise": 3 / epsilon,
        "risk": epsilon**-2 * delta**0.1,
        "observers": [{"adversary": who, "epsilon": k * epsilon} for k, who in enumerate(OBSERVERS, start=1)],
        "alone": {"known": 2 * epsilon, "poisson": None, "independent": epsilon, "bought": 2.0},
    }


@given(epsilon=st.floats(0.1, 10.0))
def test_between_two_exact_answers_powers_are_met(epsilon: float) -> None:
    sliders = Sliders()
    for knot in EPSILONS:
        sliders.keep("f", (knot, 1e-5), answer(knot, 1e-5))
    found, state = sliders.about("f", (epsilon, 1e-5))
    assert state == ("exact" if epsilon in EPSILONS else "about")
    wanted = answer(epsilon, 1e-5)
    assert found is not None
    for key in ("noise", "risk"):
        assert found[key] == pytest.approx(wanted[key])
    assert [row["epsilon"] for row in found["observers"]] == pytest.approx([epsilon, 2 * epsilon])
    assert found["alone"]["known"] == pytest.approx(2 * epsilon)
    assert found["alone"]["poisson"] is None
    assert found["target"]["epsilon"] == epsilon


def test_nothing_is_said_beyond_what_is_known() -> None:
    sliders = Sliders()
    assert sliders.about("f", (1.0, 1e-5)) == (None, "working")
    sliders.keep("f", (1.0, 1e-5), answer(1.0, 1e-5))
    assert sliders.about("f", (1.1, 1e-5)) == (None, "working")
    assert sliders.about("g", (1.0, 1e-5)) == (None, "working")
    assert sliders.about("f", (1.0, 1e-5))[1] == "exact"


def test_no_guarantee_on_one_side_is_no_number_in_between() -> None:
    sliders, one, two = Sliders(), answer(1.0, 1e-5), answer(2.0, 1e-5)
    one["observers"][1]["epsilon"] = None
    sliders.keep("f", (1.0, 1e-5), one)
    sliders.keep("f", (2.0, 1e-5), two)
    found, _ = sliders.about("f", (1.5, 1e-5))
    assert found is not None
    assert [row["epsilon"] is None for row in found["observers"]] == [False, True]


def test_what_is_missing_is_worked_out_nearest_first_and_gaps_stay_gaps() -> None:
    sliders, asked = Sliders(), []

    def ask(point: tuple[float, float]) -> dict[str, Any]:
        asked.append(point)
        if point[0] == 0.1:
            raise Refused("out of reach")
        return answer(*point)

    sliders.keep("f", (1.3, 1e-5), answer(1.3, 1e-5))
    sliders.work_out("f", (1.3, 1e-5), ask)
    assert asked[0] == (1.0, 1e-5)
    assert set(asked) == {(e, 1e-5) for e in EPSILONS} | {(1.3, d) for d in DELTAS if d != 1e-5}
    assert sliders.about("f", (0.15, 1e-5)) == (None, "working")
    assert sliders.about("f", (3.0, 1e-5))[1] == "about"
    assert sliders.about("f", (1.3, 1e-8))[1] == "about"
    assert list(sliders.missing("f", (1.3, 1e-5))) == [(0.1, 1e-5)]


def test_a_study_is_the_same_frame_whatever_its_target() -> None:
    text = "[privacy]\nepsilon = 1.0\ndelta = 1e-5\n[model]\nkind = 'logistic'\n"
    other = text.replace("1.0", "2.5").replace("1e-5", "1e-7") + "# a remark\n"
    assert frame_of(text, "a.toml") == frame_of(other, "a.toml")
    assert frame_of(text, "a.toml") != frame_of(text, "b/a.toml")
    assert frame_of(text, "a.toml") != frame_of(text.replace("logistic", "softmax"), "a.toml")
    assert target_of(other) == (2.5, 1e-7)
    assert target_of("[privacy") is None
    assert target_of("") is None
    assert math.isfinite(len(frame_of("[", "a.toml")))

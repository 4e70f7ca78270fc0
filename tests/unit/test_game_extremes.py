"""Claims at the edges of what floats hold: weak promises are not judged, and nothing overflows or stops."""

import math

import numpy as np
import pytest

from fedveil.audit.claim import Claim
from fedveil.audit.game import Seen, play, runs_needed

POINTS = {
    "beyond the squares of floats": ((400.0, 1e-5),),
    "beyond floats": ((1e5, 1e-3), (900.0, 0.5)),
    "any delta": ((0.0, 1.0),),
}


@pytest.mark.parametrize("name", POINTS)
def test_a_promise_that_nothing_can_break_is_not_judged(name: str) -> None:
    generator = np.random.default_rng(0)
    one, other = (Seen(x, x) for x in (generator.normal(mean, 1, (400, 1)) for mean in (5, 0)))
    found = play(one, other, Claim(POINTS[name]), adversary="server", delta=1e-5, alarm=1e-6)
    assert found.verdict == "not-judged"
    assert len(found.evidence) < 200


def test_a_weak_pair_does_not_hide_a_broken_one() -> None:
    generator = np.random.default_rng(0)
    one, other = (Seen(x, x) for x in (generator.normal(mean, 1, (4000, 1)) for mean in (5, 0)))
    claim = Claim(((1.0, 0.1), (800.0, 1e-9)))
    assert play(one, other, claim, adversary="server", delta=1e-9, alarm=1e-6).verdict == "broken"


def test_runs_that_would_be_needed_for_nothing_are_infinite() -> None:
    assert math.isinf(runs_needed(Claim(((0.0, 1.0),)), 1e-6))

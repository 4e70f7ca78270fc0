"""A refusal names the value, the rule, what was given and the way out; rounds refuse nonsense at birth."""

import math

import numpy as np
import pytest

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import shift_mu

NAMES = ["noise", "gap", "swap", "lipschitz", "image"]


def rounds(**changes: object) -> Rounds:
    parts: dict[str, object] = {name: np.ones(3) for name in NAMES}
    return Rounds(**(parts | {"diameter": 1.0} | changes))  # type: ignore[arg-type]


def test_what_holds_passes() -> None:
    require(True, "x", "be x", 1)
    require(np.True_, "x", "be x", 1)


@pytest.mark.parametrize("fails", [False, np.False_, math.nan > 0, None])
def test_what_does_not_hold_is_named(fails: object) -> None:
    with pytest.raises(BadValue, match=r"^rate must lie in \(0, 1\], got 64\.0\. Is it a batch size\?$") as caught:
        require(fails, "rate", "lie in (0, 1]", 64.0, "Is it a batch size?")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, FedveilError)


def test_without_a_hint_the_message_ends() -> None:
    with pytest.raises(BadValue, match=r"^n must be 1, got 2\.$"):
        require(False, "n", "be 1", 2)


@pytest.mark.parametrize("bad", [-1.0, math.nan])
@pytest.mark.parametrize("name", NAMES)
def test_a_senseless_round_is_refused(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=rf"Rounds\.{name} must be .*, got {bad}"):
        rounds(**{name: np.array([1.0, bad, 1.0])})


@pytest.mark.parametrize("name", ["noise", "gap", "swap"])
def test_what_must_be_finite_is(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Rounds\.{name} must be finite"):
        rounds(**{name: np.array([1.0, math.inf, 1.0])})


def test_other_refusals_of_rounds() -> None:
    for diameter in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=r"Rounds\.diameter must be positive"):
            rounds(diameter=diameter)
    with pytest.raises(ValueError, match=r"Rounds\.gap must have 3 entries"):
        rounds(gap=np.ones(2))
    with pytest.raises(ValueError, match="at least one round"):
        rounds(**{name: np.ones(0) for name in NAMES})
    with pytest.raises(ValueError, match="finite and positive"):
        rounds(noise=np.array([1.0, 0.0, 1.0]))


@pytest.mark.parametrize("bad", [np.ones(2), np.array([1.0, -1.0, 0.0]), np.array([1.0, math.nan, 0.0])])
def test_senseless_leaks_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="leaks must"):
        shift_mu(rounds(), bad)


def test_unknown_or_exploding_constants_are_not_followed() -> None:
    unknown = rounds(lipschitz=np.array([1.0, math.inf, 1.0]))
    assert not unknown.contracts
    assert not rounds(lipschitz=np.full(3, 1e100)).contracts
    assert rounds(lipschitz=np.zeros(3)).contracts
    leaks = np.array([1.0, 2.0, 2.0])
    boundless = rounds(lipschitz=np.full(3, math.inf), diameter=math.inf)
    assert shift_mu(boundless, leaks) == 3.0
    assert shift_mu(unknown, np.array([9.0, 0.0, 0.0])) == 1.0  # the last round's image alone

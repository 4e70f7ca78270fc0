"""Laws of the optimal shift: more noise, smaller gaps and stronger contraction never hurt."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.values import Vector
from fedveil.theory.rounds import Rounds
from fedveil.theory.shift import shift_mu, uses_mu

SLACK = 1 + 1e-9
positive = st.floats(0.05, 20.0)
constants = st.one_of(st.floats(0.0, 1.5), st.sampled_from([0.0, 1e-200, 1.0, 1e10]))
diameters = st.one_of(st.just(math.inf), st.floats(0.1, 50.0))
Plan = tuple[Vector, Vector, Vector, float]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Noise, Lipschitz constants, leaks, diameter."""
    count = draw(st.integers(1, 9))
    noise = draw(st.lists(positive, min_size=count, max_size=count))
    lipschitz = draw(st.lists(constants, min_size=count, max_size=count))
    leaks = draw(st.lists(st.one_of(st.just(0.0), positive), min_size=count, max_size=count))
    return np.array(noise), np.array(lipschitz), np.array(leaks), draw(diameters)


def mu_of(noise: Vector, lipschitz: Vector, leaks: Vector, diameter: float) -> float:
    return shift_mu(Rounds(noise, leaks, leaks, lipschitz, np.full(noise.size, math.inf), diameter), leaks)


@given(plan=plans(), place=st.integers(0, 8), factor=st.floats(1.0, 10.0))
def test_it_is_monotone_in_everything(plan: Plan, place: int, factor: float) -> None:
    noise, lipschitz, leaks, diameter = plan
    base = mu_of(*plan)
    more = np.ones(noise.size)
    more[place % noise.size] = factor
    assert mu_of(noise * more, lipschitz, leaks, diameter) <= base * SLACK
    assert mu_of(noise, lipschitz * more, leaks, diameter) >= base / SLACK - 1e-100  # the floor of the products
    assert mu_of(noise, lipschitz, leaks * more, diameter) >= base / SLACK
    assert mu_of(noise, lipschitz, leaks, diameter * factor) >= base / SLACK


@given(plan=plans(), sigma=positive, c=st.floats(0.0, 1.0))
def test_a_round_after_the_last_use_never_hurts(plan: Plan, sigma: float, c: float) -> None:
    noise, lipschitz, leaks, diameter = plan
    longer = np.append(noise, sigma), np.append(lipschitz, c), np.append(leaks, 0.0), diameter
    assert mu_of(*longer) <= mu_of(*plan) * SLACK + 1e-50  # what is left of a product too small


@given(plan=plans(), place=st.integers(0, 8), gap=positive)
def test_another_use_never_helps(plan: Plan, place: int, gap: float) -> None:
    noise, lipschitz, leaks, diameter = plan
    again = leaks.copy()
    again[place % noise.size] += gap
    assert mu_of(noise, lipschitz, again, diameter) >= mu_of(*plan) / SLACK


@given(plan=plans(), scale=st.floats(1e-6, 1e6))
def test_the_unit_of_length_does_not_matter(plan: Plan, scale: float) -> None:
    noise, lipschitz, leaks, diameter = plan
    scaled = mu_of(noise * scale, lipschitz, leaks * scale, diameter * scale)
    assert math.isclose(scaled, mu_of(*plan), rel_tol=1e-9, abs_tol=1e-100)


@given(plan=plans())
def test_hiding_never_hurts(plan: Plan) -> None:
    noise, _, leaks, _ = plan
    assert mu_of(*plan) <= math.sqrt(float(np.sum((leaks / noise) ** 2))) * SLACK


@settings(max_examples=150)
@given(plan=plans(), end=st.integers(1, 9))
def test_the_two_ways_agree(plan: Plan, end: int) -> None:
    noise, lipschitz, leaks, diameter = plan
    rounds = Rounds(noise, leaks, leaks, lipschitz, np.full(noise.size, math.inf), diameter)
    uses = np.flatnonzero(leaks > 0)
    if uses.size:
        end = max(min(end, noise.size), int(uses[-1]) + 1)
        many = float(uses_mu(rounds, uses, leaks[uses], np.array(end)))
        short = rounds.until(end)
        one = shift_mu(short, leaks[:end])
        if short.contracts or not rounds.contracts:
            assert many >= one / SLACK - 1e-100  # a map onto one point: 0, for which both stand with less
        tame = bool(np.max(lipschitz) <= 1e3)  # beyond, a difference of sums gives up digits, on the safe side
        if math.isinf(diameter) and rounds.contracts and short.contracts and tame:
            assert math.isclose(many, one, rel_tol=1e-9, abs_tol=1e-50)


@given(plan=plans())
def test_spans_are_never_above_the_sum(plan: Plan) -> None:
    noise, lipschitz, leaks, diameter = plan
    rounds = Rounds(noise, leaks, leaks, lipschitz, np.full(noise.size, math.inf), diameter)
    for before in range(noise.size):
        for after in range(before + 1, noise.size + 1):
            truth = math.fsum(((rounds.factor * noise) ** 2)[before:after])
            span = float(rounds.span(np.array(before), np.array(after)))
            assert span <= truth * (1 + 1e-15)
            if np.all(lipschitz <= 1) or np.all(lipschitz >= 1):  # else what lies between two peaks may be lost
                assert span >= truth * (1 - 1e-9)

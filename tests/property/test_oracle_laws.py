"""Laws of exact laws: processing never helps, a finer grid stays within the interval, mirrors change nothing."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.audit.exact import Chain, Instance, Line, Noise, Step, exact, released, single

EPSILONS = np.array([0.0, 0.3, 1.0, 3.0])


@st.composite
def lines(draw: st.DrawFn, half: float) -> Line:
    """Broken lines with slopes of size at most 1.5, through up to two kinks."""
    inner = sorted(draw(st.sets(st.sampled_from([-0.75, -0.5, -0.2, 0.1, 0.4, 0.8]), max_size=2)))
    knots = [-half, *(half * x for x in inner), half]
    values = [draw(st.floats(-1, 1))]
    for left, right in pairwise(knots):
        values.append(values[-1] + draw(st.floats(-1.5, 1.5)) * (right - left))
    return Line(tuple(knots), tuple(values))


@st.composite
def instances(draw: st.DrawFn, noise: Noise = "gaussian") -> Instance:
    half = draw(st.floats(0.3, 4.0))
    common = [(draw(lines(half)), draw(st.floats(0.3, 2.0))) for _ in range(draw(st.integers(0, 3)))]
    sides = [tuple(Step(line, sigma) for line, sigma in common), tuple(Step(line, sigma) for line, sigma in common)]
    sigma = draw(st.floats(0.4, 2.0))
    first, second = ((*side, Step(draw(lines(half)), sigma)) for side in sides)
    start = draw(st.floats(-1, 1)) * half
    return Instance(
        lo=-half, hi=half, start=start, first=single(first), second=single(second), noise=noise, clipped_last=True
    )


def followed(instance: Instance, step: Step) -> Instance:
    """One more round, the same on both data sets."""

    def more(chain: Chain) -> Chain:
        return (*chain, step)

    return replace(instance, first=single(more(instance.first[0][1])), second=single(more(instance.second[0][1])))


@given(instance=instances(), data=st.data())
@settings(max_examples=25)
def test_rounds_after_the_victim_never_help(instance: Instance, data: st.DataObject) -> None:
    step = Step(data.draw(lines(instance.hi)), data.draw(st.floats(0.3, 2.0)))
    before, after = exact(instance, EPSILONS, 64), exact(followed(instance, step), EPSILONS, 64)
    assert np.all(after.lower <= before.upper + 1e-12)


@given(instance=instances("laplace"), data=st.data())
@settings(max_examples=15)
def test_rounds_after_the_victim_never_help_with_laplace_noise(instance: Instance, data: st.DataObject) -> None:
    step = Step(data.draw(lines(instance.hi)), data.draw(st.floats(0.3, 2.0)))
    before, after = exact(instance, EPSILONS, 64), exact(followed(instance, step), EPSILONS, 64)
    assert np.all(after.lower <= before.upper + 1e-12)


@given(instance=st.one_of(instances(), instances("laplace"), instances().map(lambda i: replace(i, clipped_last=False))))
@settings(max_examples=25)
def test_intervals_of_a_grid_and_of_a_finer_one_meet(instance: Instance) -> None:
    coarse, fine = exact(instance, EPSILONS, 24), exact(instance, EPSILONS, 96)
    assert np.all(fine.lower <= coarse.upper + 1e-15)
    assert np.all(coarse.lower <= fine.upper + 1e-15)
    assert np.all(fine.upper - fine.lower <= coarse.upper - coarse.lower + 1e-9)


@given(instance=instances())
@settings(max_examples=15)
def test_a_mirror_changes_nothing(instance: Instance) -> None:
    def flip(chain: Chain) -> Chain:
        return tuple(
            Step(Line(tuple(-k for k in s.line.knots[::-1]), tuple(-v for v in s.line.values[::-1])), s.noise)
            for s in chain
        )

    mirrored = replace(
        instance,
        start=-instance.start,
        first=single(flip(instance.first[0][1])),
        second=single(flip(instance.second[0][1])),
    )
    ours, theirs = exact(instance, EPSILONS, 64), exact(mirrored, EPSILONS, 64)
    np.testing.assert_allclose(ours.lower, theirs.lower, rtol=1e-6, atol=1e-9)


@given(instance=st.one_of(instances(), instances("laplace")))
@settings(max_examples=25)
def test_laws_are_probabilities_and_deltas_fall(instance: Instance) -> None:
    pair = released(instance, 64)
    for law in (pair.first, pair.second):
        assert abs(float(law.masses.sum()) - 1) < 1e-9
        assert float(law.masses.min()) >= 0
    found = exact(instance, EPSILONS, 64)
    assert np.all(np.diff(found.lower) <= 1e-15)
    assert np.all(np.diff(found.upper) <= 1e-15)

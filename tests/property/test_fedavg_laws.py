"""Whatever a client computed, what it adds to a sum is whole and no longer than its bound, exactly."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedveil.stages.train.fedavg.steps import clipped

anything = arrays(np.float64, st.integers(1, 8), elements=st.floats(allow_nan=True, allow_infinity=True))
usual = arrays(np.float64, st.integers(1, 8), elements=st.floats(-10, 10))


@given(change=anything | usual, bound=st.floats(1e-3, 1e3), weight=st.floats(1e-3, 1.0))
def test_an_update_is_whole_and_bounded_in_exact_arithmetic(change: np.ndarray, bound: float, weight: float) -> None:
    unit = 2.0**-30
    found = clipped(change, bound, weight, unit)
    if found is None:
        assert not np.isfinite(change).all() or np.abs(change).max() > 1e150
        return
    assert np.array_equal(found, np.rint(found))
    length = sum(Fraction(float(x)) ** 2 for x in found) * Fraction(unit) ** 2
    assert length <= (Fraction(weight) * Fraction(bound)) ** 2


@given(change=usual)
def test_a_short_update_is_kept_but_for_a_grid_step(change: np.ndarray) -> None:
    found = clipped(change, 100.0, 1.0, 2.0**-30)
    assert found is not None
    assert np.all(np.abs(found * 2.0**-30 - change) <= 2.0**-29)

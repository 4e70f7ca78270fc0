"""What would promise too much is refused where it is born: answers that are no guarantees, masks of too few clients."""

import math

import pytest

from fedveil.privacy.guarantee import Answer
from fedveil.privacy.trust import Trust


@pytest.mark.parametrize("epsilon", [-1e-12, -1.0, math.nan])
def test_an_answer_is_no_less_than_zero(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"Answer\.epsilon must be non-negative"):
        Answer(epsilon=epsilon, delta=1e-5, certified_by=None, bounds=())


@pytest.mark.parametrize("delta", [-1e-12, 1.1, math.nan])
def test_the_delta_of_an_answer_is_a_probability(delta: float) -> None:
    with pytest.raises(ValueError, match=r"Answer\.delta must lie in \[0, 1\]"):
        Answer(epsilon=1.0, delta=delta, certified_by=None, bounds=())


@pytest.mark.parametrize(("dropouts", "most"), [(5, 1), (4, 3), (2, 7)])
def test_masks_need_more_than_half_of_all_clients_and_the_colluders(dropouts: int, most: int) -> None:
    """Else colluders could help to open two sums of one round, each with answers enough."""
    Trust(server="secure-aggregation", dropouts=dropouts, colluders=most).check(12)
    with pytest.raises(ValueError, match="more than half of 12 clients and the colluders"):
        Trust(server="secure-aggregation", dropouts=dropouts, colluders=most + 1).check(12)

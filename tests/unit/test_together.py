"""Clients of one site put together what they see: fewer shares of the noise are unknown to them."""

import math
from dataclasses import replace

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedveil.core.errors import BadValue
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, ideal
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.trust import Trust
from unit.plans import some_plan
from unit.test_trust import RECORDS, epsilons, fedavg


@pytest.mark.parametrize("plan", [some_plan(RECORDS, seeded=False), fedavg(cohort=12.0, sampling="fixed-size")])
@pytest.mark.parametrize("colluders", [0, 2])
def test_the_more_the_worse_for_that_observer_alone(plan: Plan, colluders: int) -> None:
    def found(together: int | None) -> dict[Adversary, float]:
        return epsilons(replace(plan, trust=Trust(dropouts=1, colluders=colluders, together=together)))

    alone, rest = found(None), set(ADVERSARIES) - {"curious-client"}
    assert found(1) == alone
    row = [found(count) for count in (1, 2, 4, 8, 12)]
    assert all({who: one[who] for who in rest} == {who: alone[who] for who in rest} for one in row)
    curious = [one["curious-client"] for one in row]
    assert curious == sorted(curious)
    assert curious[-1] <= alone["server"] * (1 + 1e-6)  # the victim's own share is always left
    assert curious[2] > curious[0]


@pytest.mark.parametrize("together", [2, 5, 11])
def test_every_sum_with_the_shares_that_are_left(together: int) -> None:
    """One use of a Gaussian: less noise multiplies its mu, which is read off what the server is promised."""
    trust = Trust(dropouts=2, colluders=1, together=together)
    plan = replace(some_plan(RECORDS, passes=1, noise_std=8.0, seeded=False), trust=trust)
    delta, honest = plan.target.delta, trust.honest(12)
    left = min(1.0, max(12 - 2 - together, 1) / honest)

    def above(mu: float, epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    sums = ideal(plan, "server-with-secure-aggregation", delta).epsilon
    mu = brentq(lambda mu: above(mu, sums), 1e-3, 30.0, xtol=1e-14)
    expected = brentq(lambda epsilon: above(mu / math.sqrt(left), epsilon), 1e-9, 300.0, xtol=1e-13)
    assert ideal(plan, "curious-client", delta).epsilon == pytest.approx(expected, rel=1e-7)


def test_what_is_no_number_of_clients_is_refused() -> None:
    for value in (0, -1, 1.5, math.nan):
        with pytest.raises(BadValue, match=r"trust\.together must"):
            Trust(together=value)  # type: ignore[arg-type]

"""The game against a run whose sums are masked, or whose clients may drop out: a client's releases are the same."""

from dataclasses import replace

import numpy as np
import pytest

from fedveil.jobs.attack.game import game
from fedveil.jobs.attack.releases import releases
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import promise
from fedveil.privacy.trust import Trust
from fedveil.stages.train.dpsgd.method import DpSgd
from unit.audit_plans import dpsgd_game_plan, shape


def of_four(trust: Trust | None, noise: float = 1.0) -> Plan:
    """Four clients; a run of one of them may be attacked, whoever adds up."""
    plan = dpsgd_game_plan(noise=noise)
    assert isinstance(plan.method, DpSgd)
    method = replace(plan.method, client_settings=plan.method.client_settings * 4)
    found = replace(plan, data=shape(20, 4), method=method)
    return found if trust is None else replace(found, trust=trust)


@pytest.mark.parametrize(
    "trust", [Trust(server="secure-aggregation"), Trust(server="secure-aggregation", dropouts=1), Trust(dropouts=2)]
)
def test_it_sees_the_releases_of_a_run_in_the_open(trust: Trust) -> None:
    shown = releases(of_four(None), 400, Entropy.from_seed(1))
    hidden = releases(of_four(trust), 400, Entropy.from_seed(1))
    for one, other in zip(shown, hidden, strict=True):
        assert np.array_equal(one.scores, other.scores)


def test_it_judges_what_the_masked_plan_promises() -> None:
    plan = of_four(Trust(server="secure-aggregation"))
    (found,) = game(plan, 400, Entropy.from_seed(2))
    assert found.adversary == "server"
    assert found.verdict == "consistent"
    assert found.certified == pytest.approx(promise(plan, "server").epsilon)
    # A run with a tenth of the noise, sold for the same promise, is found out.
    noisy, quiet = of_four(Trust(server="secure-aggregation"), 1.0), of_four(Trust(server="secure-aggregation"), 0.1)
    from fedveil.audit.claim import claim_of_plan

    (caught,) = game(quiet, 400, Entropy.from_seed(3), claims=lambda who: claim_of_plan(noisy, who))
    assert caught.verdict == "broken"

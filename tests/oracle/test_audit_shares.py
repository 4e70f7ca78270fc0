"""The server of a distinguishing game sees what a real one would: a sender's own share of the noise, part of the sum.

Correct plans that were once accused; false alarm 1e-6 a game, whatever the laws.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedveil.jobs.attack.game import game, scenes
from fedveil.jobs.attack.observed_runs import look, own_part
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.trust import Trust
from unit.audit_plans import game_plan, shape

TRUSTS = {
    "trusted": Trust(),
    "masked": Trust(server="secure-aggregation"),
    "with colluders and dropouts": Trust(server="trusted", dropouts=1, colluders=1),
    "one honest client": Trust(server="trusted", dropouts=3),
}


def by_parts(trust: Trust) -> Plan:
    """Forty records of four clients in one round: a record's own share would be far quieter than its client's."""
    plan = game_plan(40, rounds=1, batch=40, passes=2, order="secret", noise_std=0.05, neighbours="zero-out")
    return replace(plan, data=shape(40, 4), trust=trust)


@pytest.mark.parametrize("name", TRUSTS)
def test_shares_of_clients_are_not_taken_for_shares_of_records(name: str) -> None:
    plan = by_parts(TRUSTS[name])
    found = game(plan, 4000, Entropy.from_seed(3), adversaries=("server", "curious-client"), alarm=5e-7)
    assert "broken" not in [f.verdict for f in found]
    assert found[0].certified is not None


def test_the_part_that_a_sender_draws() -> None:
    assert own_part(by_parts(Trust(dropouts=1, colluders=1))).tolist() == [0.5, 0.5]
    assert own_part(game_plan(4, rounds=2, batch=2, passes=2)).tolist() == [0.5] * 4


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_lone_sender_and_the_sum_are_one(noise: str) -> None:
    """With one record a round the server's update is the model's change: it must not be drawn a second time."""
    plan = game_plan(4, noise=noise)
    scene, _ = scenes(plan, 50, Entropy.from_seed(4))
    alone, summed = (look(scene, who).scores for who in ("server", "server-with-secure-aggregation"))
    np.testing.assert_allclose(alone, summed, rtol=1e-9, atol=1e-9)

"""The distinguishing game on the view of a server that learns masked sums only, colludes with one client and loses one.

A wide problem holds as many games as it has parameters: record r of client 0 pushes parameter r alone, and all other
rows are zero. False alarm 1e-6 a game, whatever the laws; that the faulty twin is caught was seen at this seed.
"""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedveil.accounting.grid import choose_grid
from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import Seen, play
from fedveil.data.records import Records
from fedveil.engine.sums import summing_of
from fedveil.models.spec import ModelPlan
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.mechanism import LastIterate
from fedveil.privacy.target import Target
from fedveil.privacy.trust import Trust
from fedveil.stages.protocol import HERE, Consortium, Total
from fedveil.stages.train.hidden.asking import share_steps
from fedveil.stages.train.hidden.method import Hidden
from fedveil.stages.train.hidden.steps import Rule
from sides import asking_of, share, site_here

Vector = NDArray[np.float64]
WIDTH, CLIENTS, ROUNDS = 400, 5, 2
LOST, COLLUDER = 2, 4


def problem(present: bool) -> Records:
    rows = np.zeros((CLIENTS * WIDTH, WIDTH))
    if present:
        rows[:WIDTH] = np.eye(WIDTH)
    owner = np.repeat(np.arange(CLIENTS), WIDTH)
    return Records(features=rows, targets=np.ones(len(rows)), owner=owner, clients=CLIENTS, bound=1.0, classes=2)


def secure_plan() -> Plan:
    model = ModelPlan(kind="logistic", classes=2, radius=100.0, clip=0.05)
    constants = model.constants(1.0)
    count = CLIENTS * WIDTH
    run = LastIterate(
        rounds=1,
        passes=ROUNDS,
        batch=count,
        records=count,
        step_size=1.0,
        lipschitz=constants.lipschitz,
        smoothness=constants.smoothness,
        diameter=200.0,
        noise_std=0.05 / np.sqrt(count) * 1.2,  # each round's noise is 1.2 times what one record moves
        neighbours="zero-out",
    )
    target = Target(epsilon=10.0, delta=1e-2, neighbours="zero-out", adversary="server-with-secure-aggregation")
    method = Hidden(run=run)
    noise = float(method.noise()[0])
    return Plan(
        name="secure",
        method=method,
        data=problem(True).shape,
        model=model,
        target=target,
        grid=choose_grid(100.0, noise, noise) + 2,
        trust=Trust(server="secure-aggregation", dropouts=1, colluders=1),
    )


def server_view(plan: Plan, records: Records, entropy: Entropy, quiet: tuple[int, ...] = ()) -> Vector:
    """Sums of all rounds along each record's push, less what the colluder told; in units of the planned noise."""
    asking, site = (
        asking_of(plan, Consortium.here(records), entropy),
        site_here(plan, records, entropy, Path("unused")),
    )
    rule, add_up, state, seen = Rule.of(plan), summing_of(plan, entropy), asking.start(), []
    for turn in range(ROUNDS):
        asked, steps = asking.question(state, HERE), share_steps(plan, turn, CLIENTS)
        assert asked is not None
        parts = {client: part for client, part in site.parts(turn, asked).items() if client != LOST}
        for client in quiet:
            parts[client] = parts[client] - share(entropy, client, turn, steps, plan.dimension)
        found = add_up(turn, parts)
        assert found.survivors == (0, 1, 3, 4)
        told = share(entropy, COLLUDER, turn, steps, plan.dimension)
        seen.append((found.total - told) / rule.noise[turn])
        state = asking.advance(state, Total(found.total))
    return np.stack(seen, axis=1)


def played(quiet: tuple[int, ...]) -> Finding:
    plan = secure_plan()
    sides = []
    for present in (True, False):
        records = problem(present)
        views = [server_view(plan, records, Entropy.from_seed(1000 * present + k), quiet) for k in range(20)]
        seen = np.concatenate(views)
        sides.append(Seen(seen, seen.sum(axis=1, keepdims=True)))
    claim = claim_of_plan(plan, "server-with-secure-aggregation")
    who = "server-with-secure-aggregation"
    return play(*sides, claim, adversary=who, delta=1e-2, alarm=1e-6)


def test_the_view_of_a_colluding_server_keeps_the_certificate() -> None:
    found = played(())
    assert found.verdict == "consistent", found.evidence
    assert found.certified is not None
    assert found.measured > found.certified / 3


@pytest.mark.parametrize("quiet", [(1,), (0, 1)])
def test_a_share_left_out_breaks_it(quiet: tuple[int, ...]) -> None:
    found = played(quiet)
    assert found.verdict == "broken", found.evidence

"""Masked rounds across sites: the plain sum's bits, whatever is lost at whatever stage, and one use of every round."""

from pathlib import Path

import numpy as np
import pytest

from fedveil.core.errors import TooFewSurvivors
from fedveil.engine.train import train
from fedveil.federation.agreements.masked import STAGES
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.stages.adding import plain_sum
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, unseal
from unit.federations import SITES, Killed, Trial, study
from unit.plans import some_records

MASKED = {"server": "secure-aggregation", "dropouts": 3, "timeout": 60.0}


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, some_records(60, clients=9))


def expected(trial: Trial, lost: tuple[int, str] | None = None) -> bytes:
    """The open sum in one process."""
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    found = train(
        plan,
        trial.records,
        Entropy.from_seed(3),
        add_up=plain_sum,
        fails=lambda turn, client: (turn, SITES[client % 3]) == lost,
    )
    return bytes(found.model.tobytes())


def stage_of(trial: Trial, site: str, envelope: bytes) -> str | None:
    """The stage that a question is about."""
    if peek(envelope).kind != "masked" or peek(envelope).receiver != site:
        return None
    content = Content.read(unseal(envelope, trial.identities[site], trial.aggregator.card).body)
    return str(content.values["stage"])


@pytest.mark.parametrize("stage", STAGES)
def test_an_aggregator_killed_at_any_stage_goes_on_with_the_same_round(trial: Trial, stage: str) -> None:
    alive = [True]

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        here = way == "down" and site == "south" and peek(envelope).round == 1
        if alive and here and stage_of(trial, site, envelope) == stage:
            alive.clear()
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study(trust=MASKED))
    trial.run(study(trust=MASKED), resume=True)
    assert trial.model().tobytes() == expected(trial)


@pytest.mark.parametrize("stage", STAGES)
def test_a_site_lost_at_any_stage(trial: Trial, stage: str) -> None:
    """Before it sent its masked numbers it is not in the sum; afterwards it is, and the others open it."""

    def meddle(way: str, site: str, envelope: bytes) -> bytes | None:
        if way == "down" and site == "south" and peek(envelope).round == 1:
            reached = STAGES.index(stage_of(trial, site, envelope) or STAGES[0]) >= STAGES.index(stage)
            return None if reached and peek(envelope).kind == "masked" else envelope
        return envelope

    trial.carrier.meddle = meddle
    trial.run(study(trust=MASKED))
    inside = STAGES.index(stage) > STAGES.index("mask")
    assert trial.model().tobytes() == expected(trial, None if inside else (1, "south"))


def test_a_round_that_a_guard_has_begun_is_never_begun_again(trial: Trial) -> None:
    """All guards are restarted within a round: they have lost their masks, and the round is refused for good."""
    stop = [True]

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        if stop and way == "down" and peek(envelope).round == 1 and stage_of(trial, site, envelope) == "share":
            stop.clear()
            trial.restart_guards()
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(TooFewSurvivors, match="Round 2"):
        trial.run(study(trust=MASKED))


def test_no_answer_holds_an_update_in_the_open(trial: Trial) -> None:
    """The aggregator opens every envelope it got: no client's numbers, nor a site's sum, are in one."""
    trial.run(study(trust=MASKED))
    plan = read_plan((trial.folder / "out" / "plan.toml").read_text())
    seen: list[dict[int, bytes]] = []

    def spy(turn: int, parts: dict[int, np.ndarray]) -> object:  # type: ignore[type-arg]
        seen.append({client: part.tobytes() for client, part in parts.items()})
        return plain_sum(turn, parts)

    train(plan, trial.records, Entropy.from_seed(3), add_up=spy)  # type: ignore[arg-type]
    told = b"".join(unseal(e, trial.aggregator, trial.cards[site]).body for site, e in trial.carrier.back)
    assert len(seen) == 3
    for parts in seen:
        for part in parts.values():
            assert not any(part[at : at + 8] in told for at in range(0, len(part), 8))
    kinds = {peek(e).kind for _, e in trial.carrier.back}
    assert kinds == {"here", "accepted", "masked", "recorded"}

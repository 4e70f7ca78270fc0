"""Masked rounds across sites: the plain sum's bits, whatever is lost at whatever stage, and one use of every round."""

from pathlib import Path

import numpy as np
import pytest

from fedveil.engine.train import train
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import read_plan
from fedveil.stages.adding import plain_sum
from fedveil.wire.content import Content
from fedveil.wire.envelope import peek, unseal
from unit.federations import SITES, Killed, Trial, study
from unit.plans import some_records
from unit.test_site_guard import ask

MASKED = {"server": "secure-aggregation", "dropouts": 3, "timeout": 60.0}
STAGES = ("mask", "reveal")


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


def test_an_aggregator_killed_between_the_plan_and_the_lists_goes_on(trial: Trial) -> None:
    """Some sites have the lists and others have not; all are started again, and enrol the keys that they have drawn."""
    alive = [True]

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        if alive and (way, site, peek(envelope).kind) == ("up", SITES[0], "known"):
            alive.clear()
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study(trust=MASKED))
    trial.restart_guards()
    trial.run(study(trust=MASKED), resume=True)
    assert trial.model().tobytes() == expected(trial)
    kinds = [peek(e).kind for site, e in trial.carrier.sent if site == SITES[0]]
    assert kinds.count("propose") == kinds.count("roster") == 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_site_lost_at_any_stage(trial: Trial, stage: str) -> None:
    """Before it sent its masked numbers it is not in the sum; afterwards it is, and the others open it."""
    questions: list[str] = []

    def meddle(way: str, site: str, envelope: bytes) -> bytes | None:
        if way == "down" and site == "south" and peek(envelope).round == 1:
            questions.append(stage_of(trial, site, envelope) or "")
            return None if questions[-1] == stage else envelope
        return envelope

    trial.carrier.meddle = meddle
    trial.run(study(trust=MASKED))
    assert questions[0] == "mask"
    inside = stage != "mask"
    assert trial.model().tobytes() == expected(trial, None if inside else (1, "south"))


@pytest.mark.parametrize(("dropouts", "exchanges"), [(0, 1), (2, 1), (3, 2)])
def test_one_exchange_a_round_where_no_site_may_be_missing(trial: Trial, dropouts: int, exchanges: int) -> None:
    """Also where single clients may be: a site is missing with all of its clients."""
    trial.run(study(trust={**MASKED, "dropouts": dropouts}))
    kinds = [(peek(e).kind, peek(e).round) for site, e in trial.carrier.sent if site == "south"]
    assert [kinds.count(("masked", turn)) for turn in range(3)] == [exchanges] * 3
    assert kinds.count(("propose", 0)) == kinds.count(("roster", 0)) == 1
    assert len(kinds) == 1 + 1 + 1 + 3 * exchanges + 1  # to say who is there, to agree, the lists, and the end
    assert trial.model().tobytes() == expected(trial)


def test_guards_restarted_within_a_round_say_what_they_said(trial: Trial) -> None:
    """All lose their memory between the two exchanges of every round; the round goes on to the same bits."""
    restarts: list[int] = []

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        if way == "down" and site == "east" and stage_of(trial, site, envelope) == "reveal":
            restarts.append(peek(envelope).round)
            trial.restart_guards()
        return envelope

    trial.carrier.meddle = meddle
    trial.run(study(trust=MASKED))
    assert restarts == [0, 1, 2]
    assert trial.model().tobytes() == expected(trial)


def stopped_before(trial: Trial, stage: str, turn: int, trust: dict[str, object]) -> tuple[str, Content]:
    """Kill the aggregator when it asks the north at this stage of a round; the run, and what it asked."""

    def meddle(way: str, site: str, envelope: bytes) -> bytes:
        here = (way, site, peek(envelope).kind, peek(envelope).round) == ("down", "north", "masked", turn)
        if here and stage_of(trial, site, envelope) == stage:
            raise Killed
        return envelope

    trial.carrier.meddle = meddle
    with pytest.raises(Killed):
        trial.run(study(trust=trust))
    trial.carrier.meddle = lambda way, site, envelope: envelope
    told = trial.carrier.sent[-1][1]
    return peek(told).run, Content.read(unseal(told, trial.identities["north"], trial.aggregator.card).body)


def survivors(asked: Content, alive: list[str], stage: str = "reveal") -> Content:
    """The same question with another list of those in the sum."""
    blocks = {name: block for name, block in asked.blocks.items() if name.removeprefix("from ") in alive}
    return Content(values={"stage": stage, "alive": alive}, rows=dict(asked.rows), blocks=blocks)


def test_a_server_that_asks_twice_with_other_missing_sites_is_refused(trial: Trial) -> None:
    """For any second list; also by a guard that was restarted. The first list again gets the same answer."""
    run, asked = stopped_before(trial, "reveal", 1, MASKED)
    first = survivors(asked, ["east", "north"])
    kind, answer = ask(trial, run, "masked", 1, first, 2**50)
    assert kind == "masked"
    assert sorted(answer.blocks) == ["of east", "of north", "of south"]
    assert [len(answer.blocks[f"of {site}"]) for site in ("east", "north", "south")] == [49, 49, 32]
    others = [["east", "north", "south"], ["north", "south"]]
    for number, alive in enumerate(others * 2, 1):
        if number == 3:
            trial.restart_guards()
        kind, answer = ask(trial, run, "masked", 1, survivors(asked, alive), 2**50 + number)
        assert (kind, answer.values) == ("refused", {"code": "spent-round"})
    assert ask(trial, run, "masked", 1, first, 2**50 + 9)[1].blocks.keys() == {"of east", "of north", "of south"}


def test_no_list_without_the_site_or_with_too_few_or_of_others_is_opened(trial: Trial) -> None:
    run, asked = stopped_before(trial, "reveal", 1, MASKED)
    bad = [
        (survivors(asked, ["east", "south"]), "other-survivors"),
        (survivors(asked, ["north"]), "too-few"),
        (survivors(asked, ["east", "north", "west"]), "other-survivors"),
        (survivors(asked, ["east", "north", "south"], "agree"), "out-of-turn"),
        (survivors(asked, ["east", "north", "south"], "other"), "out-of-turn"),
        (Content(values=asked.values, rows={"cohort": np.arange(8)}, blocks=asked.blocks), "other-cohort"),
        (Content(values=asked.values, rows=asked.rows), "other-survivors"),
    ]
    for number, (question, code) in enumerate(bad):
        kind, answer = ask(trial, run, "masked", 1, question, 2**50 + number)
        assert (kind, answer.values) == ("refused", {"code": code})
    assert ask(trial, run, "masked", 1, asked, 2**51)[0] == "masked"  # none of these used the round up


def test_rounds_cannot_be_mixed(trial: Trial) -> None:
    """Neither shares of an earlier round under this one, nor this round's question for an earlier or a later one."""
    run, asked = stopped_before(trial, "reveal", 1, MASKED)
    north = [e for site, e in trial.carrier.sent if site == "north" and stage_of(trial, site, e) == "reveal"]
    before = Content.read(unseal(north[0], trial.identities["north"], trial.aggregator.card).body)
    mixed = Content(values=asked.values, rows=asked.rows, blocks=before.blocks)
    assert ask(trial, run, "masked", 1, mixed, 2**50)[1].values == {"code": "bad-share"}
    for number, turn in enumerate((0, 2)):
        answer = ask(trial, run, "masked", turn, asked, 2**50 + 1 + number)[1]
        assert answer.values == {"code": "out-of-turn"}
    assert ask(trial, run, "masked", 1, asked, 2**51)[0] == "masked"


def test_two_aggregators_of_one_run_get_one_sum(trial: Trial) -> None:
    """The second has the same keys and names another cohort's answer, or another model: the round is taken."""
    run, asked = stopped_before(trial, "reveal", 1, MASKED)
    other = Content(values={"stage": "mask"}, rows={**asked.rows, "model": np.ones(5)})
    assert ask(trial, run, "masked", 1, other, 2**50)[1].values == {"code": "changed-round"}
    assert ask(trial, run, "masked", 0, other, 2**50 + 1)[1].values == {"code": "stale-round"}


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
    assert kinds == {"here", "accepted", "known", "masked", "recorded"}

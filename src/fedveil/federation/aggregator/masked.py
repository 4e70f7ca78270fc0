"""The aggregator's part of a masked round: five questions, and a log that lets a restart continue the same round.

The log holds masked values only, so it reveals no more than the sum.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedveil.core.errors import TooFewSurvivors
from fedveil.engine.files import write_atomically
from fedveil.federation.aggregator.post import Answer
from fedveil.federation.aggregator.turn import Turn
from fedveil.federation.agreements.carried import Carried
from fedveil.federation.agreements.masked import STAGES, setting_of
from fedveil.sums.masks.refusals import Refused as Ended
from fedveil.sums.masks.server import ServerRound
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content


class Asks(Protocol):
    """Asks sites the questions of one stage and returns their answers by client."""

    def __call__(self, stage: str, questions: Mapping[str, Content], needed: int, /) -> dict[int, bytes]: ...  # noqa: D102


def masked_sum(plan: Carried, run: str, turn: Turn, ask: Asks, log: Path, keys: Mapping[int, bytes]) -> Whole:
    """Return the sum of a turn, computed behind masks; too few answers at any stage are refused.

    ``keys``: the identity keys of the clients.
    """
    members = {site: turn.clients[site] for site in turn.questions}
    cohort = tuple(sorted(client for mine in members.values() for client in mine))
    server = ServerRound(setting_of(plan, run, turn.number, cohort, keys))
    done = _read_log(log, turn.number)
    inbox: dict[int, bytes] = {}
    for number, stage in enumerate(STAGES):
        if number < len(done):
            answers = done[number]
        else:
            answers = ask(stage, _questions(turn, stage, inbox, members, cohort), turn.least)
            done.append(answers)
            _write_log(log, turn.number, done)
        for client in sorted(answers):
            try:
                server.handle(answers[client], sender=client)
            except Ended:
                continue  # treated as no answer
        try:
            inbox = server.advance()
        except Ended as error:
            raise TooFewSurvivors(f"Round {turn.number + 1} is refused at the stage {stage}: {error}") from error
    return server.result.total


def right(turn: Turn, site: str, answer: Answer) -> bool:
    """Return whether an answer holds messages of the site's own clients, and of no others."""
    own = {str(client) for client in turn.clients[site]}
    return answer.kind == "masked" and set(answer.content.blocks) <= own


def _questions(
    turn: Turn,
    stage: str,
    inbox: Mapping[int, bytes],
    members: Mapping[str, set[int]],
    cohort: tuple[int, ...],
) -> dict[str, Content]:
    """Return the questions of a stage.

    First the round's model and who takes part, later the server's word to each client.
    """
    if stage == STAGES[0]:
        row: Any = {"cohort": np.array(cohort, dtype=np.int64)}
        return {
            site: Content(values={**asked.values, "stage": stage}, rows={**asked.rows, **row}, blocks=asked.blocks)
            for site, asked in turn.questions.items()
        }
    asked: dict[str, Content] = {}
    for site, mine in members.items():
        blocks = {str(client): inbox[client] for client in sorted(mine) if client in inbox}
        if blocks:
            asked[site] = Content(values={"stage": stage}, blocks=blocks)
    return asked


def _read_log(path: Path, turn: int) -> list[dict[int, bytes]]:
    if not path.exists():
        return []
    kept = Content.read(path.read_bytes())
    if kept.values["round"] != turn:
        return []
    found: list[dict[int, bytes]] = [{} for _ in range(kept.values["stages"])]
    for name, message in kept.blocks.items():
        stage, client = name.split(" ")
        found[int(stage)][int(client)] = message
    return found


def _write_log(path: Path, turn: int, done: list[dict[int, bytes]]) -> None:
    blocks = {f"{at} {client}": message for at, stage in enumerate(done) for client, message in stage.items()}
    write_atomically(path, Content(values={"round": turn, "stages": len(done)}, blocks=blocks).write())

"""The aggregator's part of a masked round: one question where nobody may be missing, else up to three.

Who is in the sum is on the disk before anybody is asked to open it, so a restart asks for the same sum. The log holds
masked values only, and reveals no more than the sum.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from cryptography.exceptions import InvalidSignature

from fedveil.core.errors import TooFewSurvivors
from fedveil.engine.files import write_atomically
from fedveil.federation.aggregator.post import Answer
from fedveil.federation.aggregator.turn import Turn, reason
from fedveil.federation.agreements import (
    AGREE,
    MASK,
    REVEAL,
    Carried,
    Roster,
    named_blocks,
    part_in,
    reveal_question,
    setting_of,
)
from fedveil.sums.masks.amortised import MaskedPart, Parties, RoundSetting, check_reveal, open_sum
from fedveil.sums.masks.setting import Refused as Ended
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card

Right = Callable[[str, Content], bool]
Enough = Callable[[Parties], bool]


class Asks(Protocol):
    """Asks sites the questions of one stage; ``right`` checks an answer, ``enough`` says whose answers are enough.

    Refusals are among the answers.
    """

    def __call__(self, questions: Mapping[str, Content], right: Right, enough: Enough, /) -> dict[str, Answer]: ...  # noqa: D102


def masked_sum(
    plan: Carried, run: str, turn: Turn, ask: Asks, log: Path, roster: Roster, cards: Mapping[str, Card]
) -> Whole:
    """Return the sum of a turn, computed behind masks; too few answers at any stage are refused."""
    cohort = tuple(sorted(client for site in turn.questions for client in turn.clients[site]))
    round_ = MaskedRound(setting_of(plan, run, turn.number, cohort, roster), turn, cohort, ask, cards)
    parts = round_.parts(log)
    return round_.opened(parts)


class MaskedRound:
    """One masked round of an aggregator."""

    def __init__(
        self, setting: RoundSetting, turn: Turn, cohort: tuple[int, ...], ask: Asks, cards: Mapping[str, Card]
    ) -> None:
        self.setting, self.turn, self.ask, self.cards = setting, turn, ask, cards
        self.cohort = np.array(cohort, dtype=np.int64)

    def parts(self, log: Path) -> dict[str, MaskedPart]:
        """Return the masked parts of those who are in the sum, whom the log names after a restart."""
        kept = _read_log(log, self.turn.number) if self.setting.tolerated else {}
        if kept:
            return {site: part_in(content) for site, content in kept.items()}
        questions = {
            site: Content(
                values={**asked.values, "stage": MASK}, rows={**asked.rows, "cohort": self.cohort}, blocks=asked.blocks
            )
            for site, asked in self.turn.questions.items()
        }
        answers = self._asked(MASK, questions, self._is_part, self._is_enough)
        if self.setting.tolerated:
            blocks = {site: content.write() for site, content in answers.items()}
            write_atomically(log, Content(values={"round": self.turn.number}, blocks=blocks).write())
        return {site: part_in(content) for site, content in answers.items()}

    def opened(self, parts: Mapping[str, MaskedPart]) -> Whole:
        """Return the sum without masks."""
        setting, alive = self.setting, frozenset(parts)
        try:
            missing = setting.check_alive(alive)
            if not setting.tolerated:
                return open_sum(setting, parts, {})
            signatures = self._agreement(alive) if setting.agrees else {}
            reveals = self._reveals(parts, signatures, everyone=bool(missing))
            return open_sum(setting, parts, reveals)
        except Ended as error:
            raise self._refusal(REVEAL, str(error)) from error

    def _agreement(self, alive: Parties) -> dict[str, bytes]:
        """Have the sites sign who is in the sum."""
        statement = self.setting.statement(alive)

        def right(site: str, content: Content) -> bool:
            try:
                self.cards[site].verifier.verify(content.blocks.get("signature", b""), statement)
            except InvalidSignature:
                return False
            return True

        asked = reveal_question({"stage": AGREE, "alive": sorted(alive)}, self.cohort, {})
        answers = self._asked(
            AGREE, dict.fromkeys(sorted(alive), asked), right, lambda sites: len(sites) >= self.setting.quorum
        )
        return {f"by {site}": content.blocks["signature"] for site, content in answers.items()}

    def _reveals(
        self, parts: Mapping[str, MaskedPart], signatures: Mapping[str, bytes], everyone: bool
    ) -> dict[str, dict[str, bytes]]:
        """Have the sites open the sum; ``everyone``: each must, because only it knows its masks with the missing."""
        alive = sorted(parts)
        questions = {}
        for site in alive:
            sealed = {f"from {owner}": (parts[owner].sealed or {})[site] for owner in alive if owner != site}
            values = {"stage": REVEAL, "alive": alive}
            questions[site] = reveal_question(values, self.cohort, {**sealed, **signatures})

        def right(site: str, content: Content) -> bool:
            try:
                check_reveal(self.setting, parts, site, named_blocks(content, "of "))
            except Ended:
                return False
            return True

        needed = len(alive) if everyone else self.setting.threshold
        answers = self._asked(REVEAL, questions, right, lambda sites: len(sites) >= needed)
        return {site: named_blocks(content, "of ") for site, content in answers.items()}

    def _asked(self, stage: str, questions: Mapping[str, Content], right: Right, enough: Enough) -> dict[str, Content]:
        answers = self.ask(questions, right, enough)
        fine = {site: one.content for site, one in answers.items() if one.kind == "masked"}
        if not enough(frozenset(fine)):
            refused = [
                f"{site} refuses: {reason(one)}" for site, one in sorted(answers.items()) if one.kind != "masked"
            ]
            silent = [f"{site} does not answer" for site in sorted(questions) if site not in answers]
            raise self._refusal(stage, "; ".join([*refused, *silent]))
        return fine

    def _is_part(self, site: str, content: Content) -> bool:
        try:
            part_in(content).check_form(self.setting, site)
        except (Ended, Refused):
            return False
        return True

    def _is_enough(self, sites: Parties) -> bool:
        return self.setting.weight(sites) >= self.setting.least and len(sites) >= self.setting.threshold

    def _refusal(self, stage: str, why: str) -> TooFewSurvivors:
        return TooFewSurvivors(
            f"Round {self.turn.number + 1} is refused at the stage {stage}: {why}. What was charged stays charged; go"
            " on with --resume when the sites are back."
        )


def _read_log(path: Path, turn: int) -> dict[str, Content]:
    if not path.exists():
        return {}
    kept = Content.read(path.read_bytes())
    if kept.values["round"] != turn:
        return {}
    return {site: Content.read(block) for site, block in kept.blocks.items()}

"""The aggregator's part of encrypted sums: it adds what it cannot open, and has one site open the sum.

The sum is on the disk before anybody is asked to open it: a restart asks for the same one. Two sums of a round, over
different survivors, would show single clients' updates by their difference.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from fedveil.errors import BadValue, TooFewSurvivors
from fedveil.run.encrypted_setting import parameters_of
from fedveil.run.files import write_atomically
from fedveil.run.post import Answer
from fedveil.run.serving import Serving, Standing, least
from fedveil.secure.he_roles import Adder
from fedveil.summing import Whole
from fedveil.wire.content import Content


class Asks(Protocol):
    """Asks some sites one kind of thing; what came in time."""

    def __call__(self, kind: str, questions: Mapping[str, Content], adder: Adder, /) -> dict[str, Answer]: ...  # noqa: D102


def adder_of(serving: Serving, public: bytes, turn: int) -> Adder:
    """An empty sum; a key that is none of this plan's is refused."""
    return Adder.open(public, parameters_of(serving.plan), turn=turn, size=serving.plan.dimension)


def encrypted_sum(
    serving: Serving, stand: Standing, public: bytes, ask: Asks, sites: Iterable[str], log: Path
) -> Whole:
    """The sum of the next round; too few parts, or nobody who opens it, and the round is refused."""
    turn, empty = stand.round, adder_of(serving, public, stand.round)
    kept = _read_log(log, turn)
    if kept is None:
        answers = ask("encrypt", serving.questions(stand), empty)
        adder = empty
        for site in sorted(answers):
            adder = taken(adder, answers[site].content)
        needed = least(serving, turn)
        if not len(adder.senders) >= needed:
            raise TooFewSurvivors(
                f"Round {turn + 1} has the answers of {len(adder.senders)} clients and needs {needed}: nobody may open"
                " its sum. What was charged stays charged; go on with --resume when the sites are back."
            )
        kept = Content(values={"round": turn, "sites": sorted(answers)}, blocks={"sum": adder.close()})
        write_atomically(log, kept.write())
    there = list(kept.values["sites"])
    question = Content(blocks={"sum": kept.blocks["sum"]})
    for site in [*there, *sorted(set(sites) - set(there))]:
        found = ask("open", {site: question}, empty).get(site)
        if found is not None and found.kind == "opened":
            return found.content.rows["total"].astype(np.int64)
    raise TooFewSurvivors(
        f"No site has opened the sum of round {turn + 1}, and no other sum of it will be asked for. What was charged"
        " stays charged; go on with --resume when the sites are back."
    )


def taken(adder: Adder, said: Content) -> Adder:
    """With the parts of one more site."""
    for name in sorted(said.blocks, key=int):
        before = adder.senders
        adder = adder.take(said.blocks[name])
        if adder.senders - before != {int(name)}:
            raise BadValue("A part must be of the client that it is sent for.")
    return adder


def right(serving: Serving, turn: int, site: str, answer: Answer, empty: Adder) -> bool:
    """Whether an answer holds parts of the site's own clients that can be added, or a sum that was opened."""
    if answer.kind == "opened":
        total = answer.content.rows.get("total")
        return total is not None and total.dtype == np.int64 and total.shape == (serving.plan.dimension,)
    own = {str(client) for client in serving.clients(turn, site)}
    if answer.kind != "encrypted" or not answer.content.blocks or not set(answer.content.blocks) <= own:
        return False
    try:
        taken(empty, answer.content)
    except BadValue:
        return False
    return True


def _read_log(path: Path, turn: int) -> Content | None:
    if not path.exists():
        return None
    kept = Content.read(path.read_bytes())
    return kept if kept.values["round"] == turn else None

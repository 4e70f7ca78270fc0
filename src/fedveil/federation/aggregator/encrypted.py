"""The aggregator's part of encrypted sums: it adds ciphertexts that it cannot open, and has the sum opened.

The sum is on the disk before anybody is asked to open it, so a restart asks for the same one. Two sums of a round over
different clients would reveal single updates by their difference.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np

from fedveil.core.errors import BadValue, TooFewSurvivors
from fedveil.engine.files import write_atomically
from fedveil.federation.aggregator.post import Answer
from fedveil.federation.aggregator.turn import Turn, reason
from fedveil.federation.agreements import Carried, length_of, majority, parameters_of
from fedveil.sums.homomorphic.roles import Adder
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content


class Asks(Protocol):
    """Asks sites one kind of question and returns the answers that came in time.

    It stops when no site is awaited and enough has come (see :func:`weight`).
    """

    def __call__(  # noqa: D102
        self, kind: str, questions: Mapping[str, Content], needed: int, empty: Adder, /
    ) -> dict[str, Answer]: ...


def adder_of(plan: Carried, public: bytes, turn: int) -> Adder:
    """Return an empty sum; refuse a key that does not fit the plan."""
    return Adder.open(public, parameters_of(plan), turn=turn, size=length_of(plan, turn))


def weight(answer: Answer) -> int:
    """Return what an answer counts for: the number of clients whose updates are in it, or one for a consent."""
    if answer.kind == "encrypted":
        return len(answer.content.blocks)
    return int(answer.kind in ("consented", "opened"))


def encrypted_sum(plan: Carried, turn: Turn, public: bytes, ask: Asks, log: Path) -> bytes:
    """Return the sum of a turn, still encrypted; there is only one such sum.

    A round with too few updates is refused.
    """
    empty = adder_of(plan, public, turn.number)
    kept = _read_log(log, turn.number)
    if kept is None:
        needed, adder = turn.least, empty
        answers = ask("encrypt", turn.questions, needed, empty)
        for site in sorted(answers):
            adder = taken(adder, answers[site].content)
        if not len(adder.senders) >= needed:
            raise TooFewSurvivors(
                f"Round {turn.number + 1} has the answers of {len(adder.senders)} clients and needs {needed}: nobody"
                " may open its sum. What was charged stays charged; go on with --resume when the sites are back."
            )
        kept = Content(values={"round": turn.number}, blocks={"sum": adder.close()})
        write_atomically(log, kept.write())
    return kept.blocks["sum"]


def opened_outside(turn: int, kept: bytes, ask: Asks, holder: str, empty: Adder) -> Whole:
    """Ask the key holder to open the sum, and return it; nobody else can open it."""
    result = ask("open", {holder: Content(blocks={"sum": kept})}, 1, empty).get(holder)
    if result is None or result.kind != "opened":
        why = "does not answer" if result is None else f"refuses: {reason(result)}"
        raise TooFewSurvivors(
            f"The key holder {holder}, who alone can open the sum of round {turn + 1}, {why}. No other sum of it will"
            " be asked for. What was charged stays charged; go on with --resume when it is back."
        )
    return result.content.rows["total"].astype(np.int64)


def opened_by_most(turn: int, kept: bytes, ask: Asks, sites: Sequence[str], empty: Adder) -> Whole:
    """Ask a site to open the sum, after most sites have consented to this sum, and return it."""
    needed, digest = majority(len(sites)), sha256(kept).hexdigest()
    given = ask("consent", {site: Content(values={"sum": digest}) for site in sites}, needed, empty)
    words = {site: one.content.blocks["consent"] for site, one in given.items() if one.kind == "consented"}
    if not len(words) >= needed:
        missing = ", ".join(site for site in sites if site not in words)
        raise TooFewSurvivors(
            f"The sum of round {turn + 1} is opened when {needed} of {len(sites)} sites consent, and {len(words)} do;"
            f" it waits for {missing}. What was charged stays charged; go on with --resume when they are back."
        )
    question = Content(blocks={"sum": kept, **{f"by {site}": word for site, word in words.items()}})
    for site in sorted(words):
        result = ask("open", {site: question}, 1, empty).get(site)
        if result is not None and result.kind == "opened":
            return result.content.rows["total"].astype(np.int64)
    raise TooFewSurvivors(
        f"No site has opened the sum of round {turn + 1}, and no other sum of it will be asked for. What was charged"
        " stays charged; go on with --resume when the sites are back."
    )


def taken(adder: Adder, said: Content) -> Adder:
    """Return the sum with the updates of one more site."""
    for name in sorted(said.blocks, key=int):
        before = adder.senders
        adder = adder.take(said.blocks[name])
        if adder.senders - before != {int(name)}:
            raise BadValue("A part must be of the client that it is sent for.")
    return adder


def right(turn: Turn, site: str, answer: Answer, empty: Adder) -> bool:
    """Return whether an answer is acceptable.

    It must hold updates of the site's own clients that can be added, a consent, or an opened sum.
    """
    if answer.kind == "consented":
        return "consent" in answer.content.blocks
    if answer.kind == "opened":
        total = answer.content.rows.get("total")
        return total is not None and total.dtype == np.int64 and total.shape == (turn.size,)
    own = {str(client) for client in turn.clients[site]}
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

"""One loop over the rounds of every algorithm: ask, add up as the trust says, advance, show the state."""

import numpy as np

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.noise.entropy import Entropy
from fedveil.stages.adding import Adder
from fedveil.stages.protocol import HERE, Consortium, State
from fedveil.stages.train.acting import Acts, Interim, Session, Trained
from fedveil.stages.train.base import Training
from fedveil.wire.content import Content

_NUMBER = 8  # bytes
_ANEW = "Remove it to begin the run again."


def rounds(acts: Acts, stage: Training, records: Records, entropy: Entropy, session: Session) -> Trained:
    """Train by rounds of sums, as the stage's trust says that they are added up; go on from where a run stopped.

    The noise of a round depends on the key and the round alone, so what was lost is computed again to the same bytes
    and no round's noise is ever drawn anew.
    """
    if acts.asking is None or acts.answering is None or acts.noising is None:
        raise TypeError(f"{stage.method.kind} has no rounds of sums")
    asking = acts.asking(stage, Consortium.here(records), entropy)
    answering = acts.answering(stage, records, Content(rows=asking.proposal(HERE)), entropy)
    cohorts = list(stage.method.cohorts(stage.setup))[:: stage.method.window]
    adder = Adder(
        answering=answering,
        noising=acts.noising(stage, entropy),
        entropy=entropy,
        trust=stage.trust,
        cohort=cohorts.__getitem__,
        shared=stage.trust.shared,
        add_up=session.add_up,
        fails=session.fails,
    )
    state = asking.start() if session.start is None else acts.going_on(stage, session.start)
    if session.begun is not None:
        row, *memory = unpacked(session.begun.position)
        right = row.size == state.row.size and len(memory) == len(answering.memory)
        require(right, "The checkpoint", f"hold {state.row.size} numbers for this plan", row.size, _ANEW)
        state, answering.dropped = State(-(-session.begun.round // stage.method.window), row), session.begun.dropped
        answering.recall(state.round, tuple(memory))
    while state.round < asking.last:
        question = asking.question(state)
        if question is None:
            raise TypeError("a question to everybody is never empty")
        state = asking.advance(state, adder.total(state.round, question))
        done = min(state.round * stage.method.window, stage.method.total)
        session.watch(Interim(done, packed(state.row, *answering.memory), answering.dropped))
    sent = acts.sent(stage) * stage.sum_length * _NUMBER
    return Trained(model=asking.model(state), dropped=answering.dropped, bytes_up=sent, bytes_down=sent)


def packed(*rows: Vector) -> tuple[Vector, ...]:
    """Return rows with their lengths before them, to be kept as one row; nobody may change them afterwards."""
    return (np.array([len(rows), *(row.size for row in rows)], dtype=np.float64), *rows)


def unpacked(row: Vector) -> list[Vector]:
    """Return the rows that :func:`packed` was given."""
    count = int(row[0]) if row.size and 1 <= row[0] < row.size else 0
    sizes = row[1 : 1 + count]
    right = count >= 1 and bool(np.all((sizes >= 0) & (sizes <= row.size) & (sizes == np.rint(sizes))))
    ends = 1 + count + np.cumsum(sizes.astype(np.int64)) if right else np.zeros(1, dtype=np.int64)
    right = right and int(ends[-1]) == row.size
    require(right, "The checkpoint", "hold the rows of this plan", row.size, _ANEW)
    return [row[start:end].copy() for start, end in zip([1 + count, *ends[:-1].tolist()], ends.tolist(), strict=True)]

"""The last answer that took a site work, kept for the same question asked again.

An aggregator asks a silent site again, because the question may be lost. If it was only waiting its turn, the same work
would be done twice, and the next round would wait for it.
"""

import hashlib
from dataclasses import dataclass
from typing import final

from fedveil.wire.content import Content
from fedveil.wire.envelope import Opened


@final
@dataclass(slots=True)
class KeptAnswer:
    """One answer with its question; a restarted guard has none and works again, to the same bits."""

    _question: str = ""
    _answer: tuple[str, Content] | None = None

    def to(self, opened: Opened) -> tuple[str, Content] | None:
        """Return the answer to this very question, if it was the last one."""
        return self._answer if self._question == _named(opened) else None

    def keep(self, opened: Opened, kind: str, content: Content) -> tuple[str, Content]:
        """Keep an answer, and return it."""
        self._question, self._answer = _named(opened), (kind, content)
        return kind, content


def _named(opened: Opened) -> str:
    """Return what makes two questions the same: the run, the kind, the round and what was asked."""
    head = opened.head
    return f"{head.run} {head.kind} {head.round} {hashlib.sha256(opened.body).hexdigest()}"

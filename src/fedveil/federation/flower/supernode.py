"""Flower's SuperNode with shorter pauses during a run.

Flower looks for a message every three seconds and for an answer every half second, which would be most of a round. This
one looks again soon after a message, and more and more rarely while none comes, down to Flower's own rhythm. It sleeps
several times as long as its last look took, so that many nodes do not keep their link busy. Only the sleeping is
replaced; if a version of Flower sleeps elsewhere, it keeps its own rhythm.
"""

import sys
import time
from dataclasses import dataclass
from typing import Any, Final, final

_SOON: Final = 0.1  # shortest pause in seconds
_SLOWER: Final = 1.05  # after 70 looks without a message, about a minute, the pause is three seconds again
_SHARE: Final = 5.0  # a pause, as a multiple of the time that the look before it took
_BUSY: Final = 0.5  # a pause of at most this length waits for an answer: a message has come


@final
@dataclass(slots=True)
class Naps:
    """Replaces the module ``time`` in Flower's loop."""

    clock: Any = time
    last: float = _SOON
    woke: float | None = None

    def sleep(self, seconds: float) -> None:
        """Sleep at most as long as asked for."""
        waits = seconds <= _BUSY
        self.last = _SOON if waits else min(self.last * _SLOWER, seconds)
        look = 0.0 if waits or self.woke is None else self.clock.monotonic() - self.woke
        self.clock.sleep(min(max(self.last, _SHARE * look), seconds))
        self.woke = None if waits else self.clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clock, name)


def main() -> None:
    """Run ``flower-supernode`` with the same arguments, but with shorter pauses."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_client_internal.__dict__["time"] = Naps()
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()

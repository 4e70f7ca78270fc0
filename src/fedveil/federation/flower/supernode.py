"""Flower's SuperNode with shorter naps while a run goes on.

It looks for a message every three seconds and for an answer every half second, which would be most of a round. Here it
looks again soon after a message, and ever more rarely when none comes, down to Flower's own rhythm; it sleeps several
times as long as its last look took, so that many nodes do not keep their link busy. Only its sleeping is replaced;
where a version of Flower sleeps elsewhere, it simply keeps its own rhythm.
"""

import sys
import time
from dataclasses import dataclass
from typing import Any, Final, final

_SOON: Final = 0.1  # seconds
_SLOWER: Final = 1.05  # after 70 looks in vain, a minute or so, it is three seconds again
_SHARE: Final = 5.0  # a nap, in times that the look before it took
_BUSY: Final = 0.5  # a nap no longer than this waits for an answer: a message has come


@final
@dataclass(slots=True)
class Naps:
    """Stands in for the module ``time`` in Flower's loop."""

    clock: Any = time
    last: float = _SOON
    woke: float | None = None

    def sleep(self, seconds: float) -> None:
        """At most as long as asked for."""
        waits = seconds <= _BUSY
        self.last = _SOON if waits else min(self.last * _SLOWER, seconds)
        look = 0.0 if waits or self.woke is None else self.clock.monotonic() - self.woke
        self.clock.sleep(min(max(self.last, _SHARE * look), seconds))
        self.woke = None if waits else self.clock.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clock, name)


def main() -> None:
    """As ``flower-supernode``, with its own words."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_client_internal.__dict__["time"] = Naps()
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()

"""A site's node: it carries envelopes between the link's post box and the guard, and needs nothing of Flower for it.

At a link without a post box (a SuperLink that a consortium runs already) it is Flower's node (``flower_node.py``).
``python -m fedveil.federation.flower.node`` is what the command ``fedveil node`` becomes.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final, final

from fedveil.core.errors import FedveilError, why
from fedveil.federation.carrying.guard_door import hand_to_guard
from fedveil.federation.carrying.serving import say, stop_requests
from fedveil.federation.flower.channel import (
    HOLD,
    LONGEST_HOLD,
    NODE_PATH,
    SIGN,
    Channel,
    Link,
    NoPostBox,
    NotAdmitted,
    node_headers,
)

AGAIN: Final = 5.0  # seconds before the next attempt
_SOON: Final = 0.1  # seconds before the next attempt just after the link was lost
_EVERY: Final = 1.0  # seconds between two signs of life; the post box waits for five
_WORKING: Final = 3.0  # seconds after a guard's own sign in which it counts as working
_ARRIVES: Final = 5.0  # seconds in which a large message may still be on its way out of this machine
_SMALL: Final = 2**16  # bytes of a message that is on its way at once
_LOOK: Final = 0.2  # seconds between looks whether to stop


class NodeEnded(FedveilError):
    """The link did not admit Flower's node; the message holds the end of its output."""


@final
@dataclass(slots=True)
class Signs:
    """Tells the link, once a second, that this node is there; silent where the link sees that by itself.

    The link cannot tell a site that works from one that is gone, so a round would wait for either until its time is
    over. A sign is given while a message is carried, and while the guard says that it works; not while the link keeps
    this node's request open, nor in the first second of anything, so that fast rounds cost no signs.
    """

    channel: Channel
    _began: float = 0.0
    _until: float = 0.0

    def carry(self) -> None:
        """Begin to carry a message, for as long as it takes."""
        self._keep(math.inf)

    def sent(self, size: int) -> None:
        """Note that all of a message has left this process."""
        self._keep(_ARRIVES if size > _SMALL else 0.0)

    def work(self) -> None:
        """Begin to wait for the guard."""
        self._keep(_WORKING)

    def go_on(self) -> None:
        """Note that the guard still works."""
        self._until = time.monotonic() + _WORKING

    def _keep(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._until = self._began + seconds

    def give(self, stop: Callable[[], bool]) -> None:
        """Give signs until told to stop."""
        while not stop():
            time.sleep(_EVERY)
            if self._began + _EVERY <= time.monotonic() < self._until:
                with suppress(OSError, FedveilError):
                    self.channel.exchange([("", b""), (SIGN, b"")])


def run_node(
    link: Link, key: Path, guard: Path, patience: float, stop: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Run the node until told to stop: by the link's post box, or by Flower's program where the link has none.

    ``patience``: seconds to try to get admitted; then this ends, so that its supervisor can start it again.
    """
    headers = node_headers(key)
    signs = Signs(Channel(link.host, link.port, link.authority, NODE_PATH, headers, silence=_WORKING))
    channel = Channel(link.host, link.port, link.authority, NODE_PATH, headers, sent=signs.sent, began=signs.carry)
    try:
        _admitted(channel, patience, stop, tell)
    except NoPostBox:
        tell("the link has no post box; starting Flower's node")
        from fedveil.federation.flower.flower_node import run_flower_node  # few links need it

        run_flower_node(link, key, guard, patience, stop, tell)
        return
    if stop():
        return
    tell("connected")
    # A request waits in a thread of its own, because it cannot be interrupted; it ends with this process.
    carrying = Thread(target=_carry, args=(channel, signs, guard, patience, stop, tell), daemon=True)
    carrying.start()
    Thread(target=signs.give, args=(stop,), daemon=True).start()
    while carrying.is_alive() and not stop():
        carrying.join(_LOOK)
    if not stop():
        raise NodeEnded("The link does not let this node in any more; is it still registered?")


def _why(error: Exception) -> str:
    """Return why the link did not answer, in one phrase."""
    return why(error) if isinstance(error, OSError) else str(error).rstrip(".")


def _admitted(channel: Channel, patience: float, stop: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Return when the link lets this node in; try again for some time, since it may not be registered yet."""
    end, said = time.monotonic() + patience, ""
    while not stop():
        try:
            channel.exchange([("", b""), (HOLD, b"0")])
        except (OSError, NotAdmitted) as error:
            if time.monotonic() >= end:
                raise NodeEnded(f"The link did not let this node in: {_why(error)}.") from error
            if str(error) != said:
                tell("not let in; trying again")
            said = str(error)
            time.sleep(min(AGAIN, max(end - time.monotonic(), 0.1)))
        else:
            return


def _carry(
    channel: Channel,
    signs: Signs,
    guard: Path,
    patience: float,
    stop: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Carry questions to the guard and answers back, until the link has not let this node in for some time."""
    name, answer, since = "", b"", None
    while not stop():
        try:
            blocks = channel.exchange([(name, answer), (HOLD, b"%.1f" % LONGEST_HOLD)])
        except (OSError, FedveilError) as error:  # a restarted link has forgotten its nodes until a run is resumed
            if since is None:
                tell(f"the link has let go; trying again ({_why(error)})")
            since = time.monotonic() if since is None else since
            if isinstance(error, FedveilError) and time.monotonic() - since >= patience:
                return
            time.sleep(_SOON if time.monotonic() - since < AGAIN else AGAIN / 5)
            continue
        if since is not None:
            tell("connected")
        name, answer, since = "", b"", None
        if blocks:
            ((name, question),) = blocks
            signs.work()
            answer = _ask_guard(guard, question, signs.go_on, tell)
            signs.carry()


def _ask_guard(path: Path, question: bytes, sign: Callable[[], None], tell: Callable[[str], None]) -> bytes:
    """Return the guard's answer; nothing, which counts as a failure, if there is none."""
    try:
        return hand_to_guard(path, question, sign)
    except OSError as error:
        tell(f"the guard did not answer ({type(error).__name__})")
        return b""


def main() -> None:
    """Run a node until it is asked to stop: what ``fedveil node`` becomes when it has read and checked its words."""
    host, port, authority, key, guard, patience, *shown = sys.argv[1:]
    link, stopped = Link(name="link", host=host, port=int(port), authority=Path(authority)), stop_requests()
    told, code = json.dumps({"stopped": True}), 0
    try:
        run_node(link, Path(key), Path(guard), float(patience), lambda: bool(stopped), say)
    except (FedveilError, OSError) as error:
        sentence, code = " ".join(str(error).split()), 2 if isinstance(error, FedveilError) else 1
        told = json.dumps({"error": sentence, "code": code})
        say(f"fedveil: {sentence}")
    if shown:
        sys.stdout.write(f"{told}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()

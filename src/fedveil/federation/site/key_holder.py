"""A third party that holds the key of encrypted sums. It has no data, and opens one sum of a round, ever.

It sees the sums that it opens, and nothing else of the run. It must not be the aggregator, nor give it the key, because
whoever has both the key and the clients' messages can read single updates. Page: docs/homomorphic.md.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import final

from fedveil.core.files import owners_folder
from fedveil.core.importing import allowing
from fedveil.core.strict_json import read_object
from fedveil.engine.ending import destroy_secrets
from fedveil.engine.files import PUBLIC, private_folder, write_atomically
from fedveil.federation.agreements import ANY, KEY_FILE, Carried, agreed_to, answered, plan_of, vouched
from fedveil.federation.site.record import World
from fedveil.federation.site.state import SiteState, save_state
from fedveil.federation.site.sums_key import keys_at, made_at, opened_sum
from fedveil.wire.content import Content
from fedveil.wire.envelope import Opened, Refused, unseal
from fedveil.wire.keys import Card, Identity


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHolder:
    """Handles one envelope at a time and returns the sealed answer.

    ``accept``: plans by their hash, or any; ``show`` displays a plan to the operator; ``modules``: functions of its own
    installation that a plan may name. Accepting any plan needs no cap: the key is signed for one plan, to which every
    site has agreed by itself.
    """

    identity: Identity
    aggregator: Card
    folder: Path
    accept: frozenset[str]
    world: World
    show: Callable[[Carried], None]
    modules: frozenset[str] = frozenset()

    def handle(self, data: bytes) -> bytes:
        """Return the sealed answer.

        Raise :class:`Refused`, and send nothing, if the envelope itself is not in order.
        """
        opened = unseal(data, self.identity, self.aggregator)
        folder = self.folder / "runs" / opened.head.run
        owners_folder(folder)
        path = private_folder(folder / "private") / "state"
        once = self.world.random(32)
        with allowing(*self.modules):
            return answered(
                opened, path, self.identity, self.aggregator, once, lambda state: self._answer(opened, folder, state)
            )

    def _answer(self, opened: Opened, folder: Path, state: SiteState) -> tuple[str, Content]:
        asked, private = Content.read(opened.body), folder / "private"
        if opened.head.kind == "propose":
            return self._propose(asked, opened.body, folder, state)
        if not state.plan:
            raise Refused("not-accepted")
        plan, _ = agreed_to(private / "proposal", state, self.modules)
        match opened.head.kind:
            case "finish":
                # first, so that no other key is made afterwards
                save_state(private / "state", replace(state, finished=True))
                destroy_secrets(folder, (KEY_FILE,))
                return "recorded", Content()
            case _ if state.finished:
                raise Refused("finished")
            case "make-key":
                keys = made_at(private / KEY_FILE, plan)
                return "made", Content(blocks={"key": vouched(self.identity, opened.head.run, plan.hash, keys.public)})
            case "open":
                return "opened", self._open(plan, opened.head.round, asked.blocks.get("sum", b""), folder, state)
            case _:
                raise Refused("unknown-kind")

    def _propose(self, asked: Content, body: bytes, folder: Path, state: SiteState) -> tuple[str, Content]:
        """Check a proposed plan, show it to the operator and agree, or refuse with a code."""
        plan = plan_of(asked, self.modules)
        if plan.trust.key_holder != "third-party":
            raise Refused("no-third-party")
        if state.finished:  # otherwise it would make another key
            raise Refused("finished")
        agreed = state.agreed(plan.hash, hashlib.sha256(body).hexdigest())
        self.show(plan)
        if not self.accept & {plan.hash, ANY}:
            raise Refused("not-accepted")
        made_at(folder / "private" / KEY_FILE, plan)  # made now, because a holder that cannot make a key must not agree
        write_atomically(folder / "plan.toml", plan.text().encode(), mode=PUBLIC)
        write_atomically(folder / "private" / "proposal", body)
        save_state(folder / "private" / "state", agreed)
        return "accepted", Content(values={"plan": plan.hash})

    def _open(self, plan: Carried, turn: int, message: bytes, folder: Path, state: SiteState) -> Content:
        keys = keys_at(folder / "private" / KEY_FILE)
        # Recorded before it is opened, because every attempt may reveal something.
        save_state(folder / "private" / "state", state.opening(turn, hashlib.sha256(message).hexdigest()))
        result = opened_sum(plan, keys, turn, message)
        self._note(folder / "opened.jsonl", turn, len(result.values["clients"]))
        return result

    def _note(self, path: Path, turn: int, clients: int) -> None:
        """Write a line to the holder's own record for each sum that is opened, on the disk before the sum leaves."""
        before = path.read_text(encoding="ascii") if path.exists() else ""
        if any(read_object(line, path.name)["round"] == turn + 1 for line in before.splitlines()):
            return
        at = self.world.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = json.dumps({"round": turn + 1, "clients": clients, "at": at})
        write_atomically(path, f"{before}{line}\n".encode("ascii"), mode=PUBLIC)

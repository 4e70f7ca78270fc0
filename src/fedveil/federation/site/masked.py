"""A site's part of masked rounds: what it sends is a function of its keys, the round and the question.

A round is answered for one question, and its sum is opened for one list of sites; both are on the disk before the
answer leaves. A restarted guard therefore repeats what it said, and nothing else.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from cryptography.exceptions import InvalidSignature

from fedveil.core.errors import BadValue
from fedveil.engine.files import write_atomically
from fedveil.federation.agreements import (
    AGREE,
    MASK_KEY,
    REVEAL,
    Carried,
    Roster,
    cohort_in,
    named_blocks,
    part_content,
    run_bytes,
    setting_of,
)
from fedveil.federation.site.state import SiteState
from fedveil.sums.masks.amortised import Parties, RoundSetting, RunKeys
from fedveil.sums.masks.setting import BadEnvelope, BadKey, TooFew
from fedveil.sums.masks.setting import Refused as Ended
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Refused
from fedveil.wire.keys import Card, Identity

_BYTES: Final = 32


def draw_mask_key(private: Path, random: Callable[[int], bytes]) -> bytes:
    """Return the run's secret for masks; draw it once."""
    path = private / MASK_KEY
    if not path.exists():
        write_atomically(path, random(_BYTES))
    return path.read_bytes()


@final
@dataclass(slots=True)
class MaskedSite:
    """The masked rounds of one run; ``private``: where the key lies. ``cards``: of all sites, where they sign."""

    plan: Carried
    run: str
    identity: Identity
    roster: Roster
    cards: Mapping[str, Card]
    private: Path
    _keys: RunKeys | None = field(default=None, init=False)

    def setting(self, turn: int, asked: Content) -> tuple[RoundSetting, frozenset[int]]:
        """Return the setting of a round as the question names its clients, and which of them are this site's."""
        cohort = cohort_in(self.plan, turn, asked, self.roster)
        try:
            setting = setting_of(self.plan, self.run, turn, cohort, self.roster)
        except BadValue as error:
            raise Refused("other-cohort") from error
        mine = cohort & set(self.roster.clients.get(self.identity.name, ()))
        if not mine:
            raise Refused("nothing-to-send")
        return setting, mine

    def mask(self, setting: RoundSetting, mine: frozenset[int], parts: Mapping[int, Whole]) -> Content:
        """Return the total of the site's clients behind the round's masks."""
        if set(parts) != mine:
            raise Refused("other-cohort")
        total = np.zeros(setting.length, dtype=np.int64)
        for client in sorted(parts):
            total += parts[client]
        return part_content(_carried_out(lambda: self.keys.mask(setting, total)))

    def open(self, setting: RoundSetting, asked: Content, state: SiteState) -> tuple[SiteState, Content]:
        """Sign who is in the sum of a round, or open it; return the state that must be on the disk before.

        Only for the round that this site has masked last, under the very setting; and for one list of survivors, ever.
        """
        if not setting.tolerated:
            raise Refused("unknown-kind")  # nobody may be missing, and there is nothing to open
        if (state.round, state.masked) != (setting.round, setting.digest.hex()):
            raise Refused("out-of-turn")
        alive = _alive(asked, setting)
        _carried_out(lambda: setting.check_alive(alive))
        if self.identity.name not in alive:
            raise Refused("other-survivors")
        statement = setting.statement(alive)
        after = state.opening(setting.round, hashlib.sha256(statement).hexdigest())
        match asked.values.get("stage"):
            case stage if stage == AGREE and setting.agrees:
                return after, Content(blocks={"signature": self.identity.signer.sign(statement)})
            case stage if stage == REVEAL:
                self._check_agreed(setting, alive, statement, named_blocks(asked, "by "))
                sealed = named_blocks(asked, "from ")
                opened = _carried_out(lambda: self.keys.reveal(setting, alive, sealed))
                return after, Content(blocks={f"of {owner}": data for owner, data in opened.items()})
            case _:
                raise Refused("out-of-turn")

    def _check_agreed(
        self, setting: RoundSetting, alive: Parties, statement: bytes, signatures: Mapping[str, bytes]
    ) -> None:
        """Refuse to open a sum that a quorum of sites has not signed, where the setting asks for it."""
        if not setting.agrees:
            return
        agreeing = 0
        for site, signature in signatures.items():
            try:
                if site not in alive:
                    raise Refused("other-survivors")
                self.cards[site].verifier.verify(signature, statement)
            except (InvalidSignature, KeyError) as error:
                raise Refused("bad-signature") from error
            agreeing += 1
        if agreeing < setting.quorum:
            raise Refused("no-quorum")

    @property
    def keys(self) -> RunKeys:
        """The run's keys, made once in a process."""
        if self._keys is None:
            path = self.private / MASK_KEY
            if not path.exists():  # with another key, a round could be masked in two ways
                raise Refused("lost-key")
            run, secret = run_bytes(self.plan, self.run), path.read_bytes()
            self._keys = _carried_out(lambda: RunKeys(run, self.identity.name, secret, self.roster.keys))
        return self._keys


def masked_state(state: SiteState, setting: RoundSetting) -> SiteState:
    """Return the state after masking under a setting."""
    return replace(state, masked=setting.digest.hex())


def _alive(asked: Content, setting: RoundSetting) -> Parties:
    names = asked.values.get("alive")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise Refused("malformed")
    if not set(names) <= set(setting.parties):
        raise Refused("other-survivors")
    return frozenset(names)


def _carried_out(act: Callable[[], Any]) -> Any:
    """Give the refusals of the protocol the codes in which a guard answers."""
    try:
        return act()
    except TooFew as error:
        raise Refused("too-few") from error
    except BadEnvelope as error:
        raise Refused("bad-share") from error
    except BadKey as error:
        raise Refused("other-roster") from error
    except Ended as error:
        raise Refused("other-survivors") from error

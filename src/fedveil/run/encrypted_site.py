"""A site's part of encrypted sums: the run's key, which the sites share and nobody else has; parts; the opened sum.

One site makes the key and seals it for every other, by the public keys that the sites have of each other: the
aggregator carries it, and can neither read it nor put another in its place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from fedveil.errors import BadValue
from fedveil.plan import Plan
from fedveil.run.encrypted_setting import maker_of, parameters_of
from fedveil.run.files import write_atomically
from fedveil.run.summing import floors_of
from fedveil.secure.he_roles import Decryptor, Encryptor, Keys, make_keys
from fedveil.summing import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Refused, seal, unseal
from fedveil.wire.keys import Card, Identity

_KIND: Final = "sums-key"


@final
@dataclass(frozen=True, slots=True, eq=False)
class EncryptedSite:
    """One run at one site; ``path``: where the key is kept while the run goes on; ``peers``: the other sites."""

    plan: Plan
    run: str
    identity: Identity
    peers: Mapping[str, Card]
    path: Path
    random: Callable[[int], bytes]

    def make(self) -> Content:
        """The key, made once: its public half in the open, all of it sealed for each of the others."""
        if self.identity.name != maker_of([self.identity.name, *self.peers]):
            raise Refused("not-the-maker")
        if not self.path.exists():
            try:
                made = make_keys(parameters_of(self.plan))
            except BadValue as error:
                raise Refused("no-encryption") from error
            write_atomically(self.path, _written(made))
        keys = self._keys()
        return Content(blocks={"public": keys.public, **{site: self._for(site, keys) for site in self.peers}})

    def take(self, asked: Content) -> Content:
        """The maker's key; one for a run, ever."""
        maker = maker_of([self.identity.name, *self.peers])
        if maker not in self.peers:
            raise Refused("unknown-peers")
        opened = unseal(asked.blocks.get("key", b""), self.identity, self.peers[maker])
        if (opened.head.run, opened.head.kind) != (self.run, _KIND):
            raise Refused("other-key")
        keys = _read(opened.body)
        self._check(keys)
        if self.path.exists() and self.path.read_bytes() != _written(keys):
            raise Refused("other-key")
        write_atomically(self.path, _written(keys))
        return Content()

    def encrypt(self, turn: int, parts: Mapping[int, Whole]) -> Content:
        """What each client sends, for the aggregator to add and not to open."""
        one = Encryptor.open(self._keys().public, parameters_of(self.plan))
        return Content(blocks={str(client): one.encrypt(turn, client, parts[client]) for client in sorted(parts)})

    def open(self, turn: int, message: bytes) -> Content:
        """The sum of a round, of no fewer clients than the plan needs; the caller sees to it that it is one, ever."""
        floors = floors_of(self.plan)
        if not 0 <= turn < len(floors):
            raise Refused("no-such-round")
        holder = Decryptor.open(self._keys(), parameters_of(self.plan), least=floors[turn][1])
        try:
            _, found = holder.decrypt(message, turn=turn, size=self.plan.dimension)
        except BadValue as error:
            raise Refused("no-sum") from error
        return Content(values={"clients": list(found.survivors)}, rows={"total": found.total})

    def _keys(self) -> Keys:
        try:
            return _read(self.path.read_bytes())
        except FileNotFoundError as error:
            raise Refused("no-key") from error

    def _for(self, site: str, keys: Keys) -> bytes:
        head = Head(run=self.run, sender=self.identity.name, receiver=site, kind=_KIND, round=0, number=0)
        return seal(head, _written(keys), self.identity, self.peers[site], self.random(32))

    def _check(self, keys: Keys) -> None:
        parameters = parameters_of(self.plan)
        try:
            Encryptor.open(keys.public, parameters)
            Decryptor.open(keys, parameters, least=1)
        except BadValue as error:
            raise Refused("no-encryption") from error


def _written(keys: Keys) -> bytes:
    return Content(blocks={"public": keys.public, "secret": keys.secret}).write()


def _read(data: bytes) -> Keys:
    blocks = Content.read(data).blocks
    if set(blocks) != {"public", "secret"}:
        raise Refused("malformed")
    return Keys(blocks["public"], blocks["secret"])

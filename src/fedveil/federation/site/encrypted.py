"""A site's part of encrypted sums: its clients' updates, and the run's key or only its public key.

If the clients hold the key, one site makes it and seals it for every other site, by the public keys that the sites have
of each other; the aggregator carries it and can neither read nor replace it. If a third party holds the key, a site
takes the public key only, and only with that party's signature.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, final

from fedveil.core.errors import BadValue
from fedveil.engine.files import write_atomically
from fedveil.federation.agreements import Carried, check_consents, consent, maker_of, parameters_of, public_of
from fedveil.federation.site.sums_key import keys_at, made_at, opened_sum, read_keys, written
from fedveil.sums.homomorphic.roles import Decryptor, Encryptor, Keys
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content
from fedveil.wire.envelope import Head, Refused, seal, unseal
from fedveil.wire.keys import Card, Identity

_KIND: Final = "sums-key"
_DIGEST: Final = re.compile("[0-9a-f]{64}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class EncryptedSite:
    """Encrypted sums of one run at one site.

    ``path``: where the key is kept during the run; ``peers``: the other sites; ``holder``: the third party that this
    site knows, if any.
    """

    plan: Carried
    run: str
    identity: Identity
    peers: Mapping[str, Card]
    holder: Card | None
    path: Path
    random: Callable[[int], bytes]

    @property
    def outside(self) -> bool:
        """True if a third party holds the key."""
        return self.plan.trust.key_holder == "third-party"

    def answer(self, kind: str, turn: int, asked: Content, spend: Callable[[str], None]) -> tuple[str, Content]:
        """Answer all questions except those for updates.

        ``spend`` records on the disk that this is the sum of the round, or refuses a second one.
        """
        if kind == "take-key":
            return "taken", self._take_public(asked) if self.outside else self._take(asked)
        if self.outside:
            raise Refused("not-the-holder")
        match kind:
            case "make-key":
                return "made", self._make()
            case "consent":
                digest = str(asked.values.get("sum"))
                if not _DIGEST.fullmatch(digest):
                    raise Refused("malformed")
                spend(digest)  # recorded before the consent is given, which happens once
                return "consented", Content(blocks={"consent": consent(self.identity, self.run, turn, digest)})
            case _:
                message = asked.blocks.get("sum", b"")
                digest = sha256(message).hexdigest()
                given = {name[3:]: word for name, word in asked.blocks.items() if name.startswith("by ")}
                check_consents(given, self.identity.name, self.peers, self.run, turn, digest)
                spend(digest)  # recorded before it is opened, because every attempt may reveal something
                return "opened", opened_sum(self.plan, keys_at(self.path), turn, message)

    def encrypt(self, turn: int, parts: Mapping[int, Whole]) -> Content:
        """Return the encrypted update of each client, for the aggregator to add but not to open."""
        try:
            public = Content.read(self.path.read_bytes()).blocks["public"]
        except FileNotFoundError as error:
            raise Refused("no-key") from error
        one = Encryptor.open(public, parameters_of(self.plan))
        return Content(blocks={str(client): one.encrypt(turn, client, parts[client]) for client in sorted(parts)})

    def _make(self) -> Content:
        """Make the key once; return its public key, and the whole key sealed for each other site."""
        if self.identity.name != maker_of(self._sites()):
            raise Refused("not-the-maker")
        keys = made_at(self.path, self.plan)
        return Content(blocks={"public": keys.public, **{f"for {site}": self._for(site, keys) for site in self.peers}})

    def _take(self, asked: Content) -> Content:
        """Take the key from the site that made it, once in a run.

        Both must know the same sites, because most of them decide what is opened.
        """
        maker = maker_of(self._sites())
        if maker not in self.peers:
            raise Refused("unknown-peers")
        opened = unseal(asked.blocks.get("key", b""), self.identity, self.peers[maker])
        if (opened.head.run, opened.head.kind) != (self.run, _KIND):
            raise Refused("other-key")
        said = Content.read(opened.body)
        if said.values.get("sites") != self._sites():
            raise Refused("unknown-peers")
        keys = read_keys(said.blocks.get("keys", b""))
        parameters = parameters_of(self.plan)
        try:
            Decryptor.open(keys, parameters, least=1)
        except BadValue as error:
            raise Refused("no-encryption") from error
        return self._keep(keys.public, written(keys))

    def _take_public(self, asked: Content) -> Content:
        """Take the third party's public key, once in a run."""
        if self.holder is None:
            raise Refused("no-holder")
        public = public_of(asked.blocks.get("key", b""), self.holder, self.run, self.plan.hash)
        return self._keep(public, Content(blocks={"public": public}).write())

    def _keep(self, public: bytes, data: bytes) -> Content:
        try:
            Encryptor.open(public, parameters_of(self.plan))
        except BadValue as error:
            raise Refused("no-encryption") from error
        if self.path.exists() and self.path.read_bytes() != data:
            raise Refused("other-key")
        write_atomically(self.path, data)
        return Content()

    def _sites(self) -> list[str]:
        return sorted([self.identity.name, *self.peers])

    def _for(self, site: str, keys: Keys) -> bytes:
        head = Head(run=self.run, sender=self.identity.name, receiver=site, kind=_KIND, round=0, number=0)
        body = Content(values={"sites": self._sites()}, blocks={"keys": written(keys)}).write()
        return seal(head, body, self.identity, self.peers[site], self.random(32))

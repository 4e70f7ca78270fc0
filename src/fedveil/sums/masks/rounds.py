"""Whole rounds of masked sums in this process: all clients and the server, through bytes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import require
from fedveil.sums.masks.client import ClientRound, Member
from fedveil.sums.masks.server import ServerRound
from fedveil.sums.masks.setting import RUN_BYTES, Refused, RoundReused, Setting, TooFew
from fedveil.sums.seam import Summed, Whole
from fedveil.theory.neighbours import least_neighbours

Stage = Literal["advertise", "share", "mask", "agree", "reveal"]
STAGES: Final[tuple[Stage, ...]] = ("advertise", "share", "mask", "agree", "reveal")


@final
@dataclass(slots=True)
class Traffic:
    """Bytes and refusals of one round: up and down by client, and why a client was left out."""

    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


def run_round(
    setting: Setting,
    clients: Mapping[int, ClientRound],
    lost: Mapping[int, Stage] | None = None,
    traffic: Traffic | None = None,
) -> Summed:
    """Run one round with these state machines. ``lost``: the stage from which on a client is silent."""
    server, seen = ServerRound(setting), traffic if traffic is not None else Traffic()
    inbox: dict[int, bytes] = dict.fromkeys(clients, b"")
    for stage in STAGES:
        for client, message in inbox.items():
            if _silent(client, stage, lost or {}):
                continue
            try:
                machine = clients[client]
                answer = machine.open() if stage == "advertise" else machine.handle(message)
                server.handle(answer, sender=client)
            except Refused as refusal:
                seen.refused[client] = str(refusal)
                continue
            seen.up[client] = seen.up.get(client, 0) + len(answer)
        inbox = server.advance()
        for client, message in inbox.items():
            seen.down[client] = seen.down.get(client, 0) + len(message)
    return server.result


def _silent(client: int, stage: Stage, lost: Mapping[int, Stage]) -> bool:
    return client in lost and STAGES.index(stage) >= STAGES.index(lost[client])


@final
class SecureSumming:
    """Adds up the rounds of a run behind masks; gives the same integers as a plain sum over the survivors.

    ``run``: 32 public bytes; ``seed``: 32 secret bytes, from which every client's secrets follow (in a deployment each
    client has its own). ``least``: a round with fewer clients in the sum is refused. ``neighbours`` and ``threshold``:
    by default the smallest that are safe for ``colluders`` and for the dropouts that ``least`` allows.
    ``lost``: clients that fall silent, and from which stage on. ``signed``: with identity keys, as against an active
    server. ``largest``: bound on each value, noise included; a client that exceeds it counts as a dropout.
    ``traffic``: of the last round; ``uploaded``, ``downloaded``: the most bytes of any client in it.
    """

    def __init__(
        self,
        run: bytes,
        seed: bytes,
        *,
        least: int,
        colluders: int = 0,
        neighbours: int | None = None,
        threshold: int | None = None,
        lost: Mapping[int, Stage] | None = None,
        signed: bool = False,
        largest: int = 2**63 - 1,
    ) -> None:
        right = isinstance(seed, bytes) and len(seed) == RUN_BYTES
        require(right, "seed", f"be {RUN_BYTES} bytes", type(seed).__name__)  # the message must not show the seed
        require(all(stage in STAGES for stage in (lost or {}).values()), "lost", f"name stages of {STAGES}", lost)
        self._run, self._seed, self._least, self._colluders = run, seed, least, colluders
        self._neighbours, self._threshold, self._lost = neighbours, threshold, dict(lost or {})
        self._signed, self._largest = signed, largest
        self._members: dict[int, Member] = {}
        self._last = -1
        self.traffic = Traffic()

    def __call__(self, turn: int, parts: Mapping[int, Whole], /) -> Summed:
        """Return the sum of round ``turn``; rounds must be in ascending order."""
        if turn <= self._last:
            raise RoundReused(f"Round {turn} is over, or earlier than round {self._last}.")
        if len(parts) < self._least:
            raise TooFew(f"Only {len(parts)} clients answered, and the plan promises {self._least}.")
        setting = self._setting(turn, parts)
        self._last, self.traffic = turn, Traffic()
        machines = {}
        for client in setting.clients:
            try:
                machines[client] = self._member(client).join(
                    setting, self._secret(b"round", client, turn), parts[client], largest=self._largest
                )
            except Refused as refusal:  # an input that cannot be summed counts as a dropout
                self.traffic.refused[client] = str(refusal)
        return run_round(setting, machines, self._lost, self.traffic)

    @property
    def uploaded(self) -> int:
        """The most bytes that a client sent in the last round."""
        return max(self.traffic.up.values(), default=0)

    @property
    def downloaded(self) -> int:
        """The most bytes that a client was sent in the last round."""
        return max(self.traffic.down.values(), default=0)

    def _setting(self, turn: int, parts: Mapping[int, Whole]) -> Setting:
        clients = tuple(sorted(parts))
        neighbours, threshold = self._neighbours, self._threshold
        if neighbours is None or threshold is None:
            spare = len(clients) - self._least
            found = least_neighbours(len(clients), self._colluders, spare, active=self._signed)
            neighbours, threshold = found.neighbours, found.threshold
        return Setting(
            run=self._run,
            round=turn,
            clients=clients,
            neighbours=neighbours,
            threshold=threshold,
            least=self._least,
            length=self._length(parts),
            colluders=self._colluders,
            identities=tuple(self._identity(client) for client in clients) if self._signed else (),
        )

    def _length(self, parts: Mapping[int, Whole]) -> int:
        """Return the most common length; vectors of another length are client errors."""
        sizes = [getattr(values, "size", 0) for values in parts.values()]
        return max(sorted(set(sizes)), key=sizes.count)

    def _secret(self, label: bytes, client: int, turn: int = 0) -> bytes:
        address = client.to_bytes(8, "little") + turn.to_bytes(8, "little") + label
        return hashlib.blake2b(self._run + address, key=self._seed, person=b"fedveil secure", digest_size=32).digest()

    def _identity(self, client: int) -> bytes:
        private = Ed25519PrivateKey.from_private_bytes(self._secret(b"identity", client))
        return private.public_key().public_bytes_raw()

    def _member(self, client: int) -> Member:
        if client not in self._members:
            signer = self._secret(b"identity", client) if self._signed else b""
            self._members[client] = Member(client, self._run, signer=signer)
        return self._members[client]

"""Small rounds of masked sums, played message by message so that a test can look at and change each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.sums.masks.client import ClientRound
from fedveil.sums.masks.messages import Kind
from fedveil.sums.masks.rounds import STAGES
from fedveil.sums.masks.server import ServerRound
from fedveil.sums.masks.setting import Setting
from fedveil.sums.seam import Whole

RUN = bytes(range(32))
SENT = dict(zip(STAGES, (Kind.ADVERT, Kind.SHARES, Kind.MASKED, Kind.AGREE, Kind.REVEAL), strict=True))


def signer(client: int) -> bytes:
    return bytes([client + 1]) * 32


def identity(client: int) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(signer(client)).public_key().public_bytes_raw()


def some_setting(size: int = 6, *, signed: bool = False, **changes: object) -> Setting:
    usual: dict[str, object] = {
        "run": RUN,
        "round": 3,
        "clients": tuple(range(size)),
        "neighbours": size - 1,
        "threshold": size // 2 + 1,
        "least": size // 2 + 1,
        "length": 5,
        "identities": tuple(identity(client) for client in range(size)) if signed else (),
    }
    return Setting(**(usual | changes))  # type: ignore[arg-type]


def some_values(setting: Setting, seed: int = 0) -> dict[int, Whole]:
    generator = np.random.default_rng(seed)
    return {client: generator.integers(-(2**40), 2**40, setting.length) for client in setting.clients}


def machines(setting: Setting, values: Mapping[int, Whole], seed: int = 0) -> dict[int, ClientRound]:
    return {
        client: ClientRound(
            setting,
            client,
            np.random.default_rng([seed, client]).bytes(32),
            values[client],
            signer=signer(client) if setting.identities else b"",
        )
        for client in setting.clients
    }


@dataclass
class Played:
    """A round as far as it was played."""

    server: ServerRound
    clients: dict[int, ClientRound]
    up: dict[Kind, dict[int, bytes]] = field(default_factory=dict)
    down: dict[Kind, dict[int, bytes]] = field(default_factory=dict)


Silent = Callable[[str, int], bool]


def play(
    setting: Setting,
    clients: dict[int, ClientRound],
    until: Kind | None = None,
    silent: Silent = lambda stage, client: False,
    overheard: bool = False,
) -> Played:
    """Play up to the stage that begins with the server's message ``until``, which is made but not delivered.

    ``overheard``: silent clients do answer, but too late: the answer is kept and not counted.
    """
    played = Played(ServerRound(setting), clients)
    inbox: dict[int, bytes] = dict.fromkeys(clients, b"")
    for stage, kind in SENT.items():
        played.up[kind] = {}
        for client, message in inbox.items():
            late = silent(stage, client)
            if late and not overheard:
                continue
            answer = clients[client].open() if kind is Kind.ADVERT else clients[client].handle(message)
            played.up[kind][client] = answer
            if not late:
                played.server.handle(answer, sender=client)
        inbox = played.server.advance()
        if kind is not Kind.REVEAL:
            played.down[Kind(kind + 1)] = inbox
            if until == kind + 1:
                break
    return played

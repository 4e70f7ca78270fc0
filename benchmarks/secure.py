"""Masked sums: CPU of a client and of the server beside Flower's SecAgg+, bytes sent, and a round of a million values.

The job: 50 clients, 100,000 values, 15 neighbours, 5 clients lost after they have shared their secrets. On both sides a
client starts from floats (rounding to integers is charged) and the server ends with integers; messages are handed over
in this process, so no network and no serialisation of Flower's is charged. Flower's part is its own client functions,
and the lines of its server's workflow around its own primitives. Where Flower is not installed there is no row for it,
and stderr says so. CPU is process time, the least of the repeats, which take turns.
"""

import sys
import time
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import Row
from fedveil.sums.masks.client import ClientRound
from fedveil.sums.masks.rounds import STAGES
from fedveil.sums.masks.server import ServerRound
from fedveil.sums.masks.setting import Setting

CLIENTS, VALUES, NEIGHBOURS, THRESHOLD, LOST = 50, 100_000, 15, 9, 5
REPEATS = 3
CLIP, LEVELS, MODULUS = 8.0, 2**22, 2**32  # Flower's own defaults


def updates(clients: int, values: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).uniform(-1.0, 1.0, (clients, values)).astype(np.float32))


def public(signer: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(signer).public_key().public_bytes_raw()


def ours(
    vectors: list[np.ndarray], neighbours: int, threshold: int, lost: int, signed: bool = False
) -> tuple[float, float, int]:
    """CPU seconds of a client and of the server, and the bytes a client sends; ``signed``: with identity keys."""
    clients, values, step = len(vectors), vectors[0].size, LEVELS / (2 * CLIP)
    everyone = tuple(range(clients))
    least = clients - lost
    signers = [client.to_bytes(32, "big") for client in everyone] if signed else [b""] * clients
    setting = Setting(
        run=bytes(32),
        round=0,
        clients=everyone,
        neighbours=neighbours,
        threshold=threshold,
        least=least,
        length=values,
        identities=tuple(map(public, signers)) if signed else (),
    )
    sent, spent, machines = 0, 0.0, {}
    began = time.process_time()
    for client, vector in enumerate(vectors):
        whole = np.rint(vector * step).astype(np.int64)
        machines[client] = ClientRound(setting, client, client.to_bytes(32, "little"), whole, signer=signers[client])
    spent += time.process_time() - began
    began = time.process_time()
    server = ServerRound(setting)
    served, inbox = time.process_time() - began, dict.fromkeys(everyone, b"")
    for stage in STAGES:
        answers, began = {}, time.process_time()
        for client, message in inbox.items():
            if client >= lost or STAGES.index(stage) < STAGES.index("mask"):
                answers[client] = machines[client].open() if stage == "advertise" else machines[client].handle(message)
        between = time.process_time()
        for client, answer in answers.items():
            server.handle(answer, sender=client)
        inbox = server.advance()
        spent += (between - began) * clients / len(answers)
        served += time.process_time() - between
        sent += len(answers[clients - 1])
    plain = sum(np.rint(vector * step).astype(np.int64) for vector in vectors[lost:])
    assert np.array_equal(server.result.total, plain)
    return spent / clients, served, sent


def flower(vectors: list[np.ndarray]) -> tuple[float, float]:
    """CPU seconds of a client and of the server."""
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.secaggplus_constants import Key

    mod: Any = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")  # its package hides it by a function
    everyone = list(range(1, CLIENTS + 1))
    half = NEIGHBOURS // 2
    near = {c: {everyone[(i + s) % CLIENTS] for s in range(-half, half + 1)} for i, c in enumerate(everyone)}
    alive, gone = set(everyone[LOST:]), set(everyone[:LOST])
    states = {client: mod.SecAggPlusState() for client in everyone}
    parameters = {client: ndarrays_to_parameters([vectors[client - 1]]) for client in everyone}
    schedule = {
        Key.SAMPLE_NUMBER: CLIENTS,
        Key.SHARE_NUMBER: NEIGHBOURS,
        Key.THRESHOLD: THRESHOLD,
        Key.CLIPPING_RANGE: CLIP,
        Key.TARGET_RANGE: LEVELS,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1000.0,
    }
    spent, began = 0.0, time.process_time()
    keys: dict[int, Any] = {}
    for client in everyone:
        states[client].nid = client
        found = mod._setup(states[client], schedule)
        keys[client] = (found[Key.PUBLIC_KEY_1], found[Key.PUBLIC_KEY_2])
    shares = {c: mod._share_keys(states[c], {str(o): keys[o] for o in near[c]}) for c in everyone}
    spent += time.process_time() - began
    began = time.process_time()
    forward: dict[int, tuple[list[int], list[bytes]]] = {client: ([], []) for client in everyone}
    for client, found in shares.items():
        for to, text in zip(found[Key.DESTINATION_LIST], found[Key.CIPHERTEXT_LIST], strict=True):
            forward[to][0].append(client)
            forward[to][1].append(text)
    served = time.process_time() - began
    began = time.process_time()
    masked = {}
    for client in sorted(alive):
        relayed = {Key.SOURCE_LIST: forward[client][0], Key.CIPHERTEXT_LIST: forward[client][1]}
        masked[client] = mod._collect_masked_vectors(states[client], relayed, 1000, parameters[client])
    spent += (time.process_time() - began) * CLIENTS / len(alive)
    began = time.process_time()
    opened = {}
    for client in sorted(alive):
        asked = {Key.ACTIVE_NODE_ID_LIST: list(near[client] & alive), Key.DEAD_NODE_ID_LIST: list(near[client] & gone)}
        opened[client] = mod._unmask(states[client], asked)
    spent += (time.process_time() - began) * CLIENTS / len(alive)
    began = time.process_time()
    total = flower_server(masked, opened, keys, near, alive)
    served += time.process_time() - began
    expected = sum(vectors[client - 1].astype(np.float64) for client in sorted(alive))
    decoded = total[1] * (2 * CLIP / LEVELS) - len(alive) * CLIP
    assert np.abs(decoded - expected).max() < len(alive) * 2 * CLIP / LEVELS
    return spent / CLIENTS, served


def flower_server(masked: Any, opened: Any, keys: Any, near: Any, alive: set[int]) -> Any:
    """The server's two last stages, in the order of Flower's workflow."""
    from flwr.common import bytes_to_ndarray
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.common.secure_aggregation.ndarrays_arithmetic import (
        get_parameters_shape,
        parameters_addition,
        parameters_mod,
        parameters_subtraction,
    )
    from flwr.common.secure_aggregation.secaggplus_constants import Key
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

    total: Any = None
    for found in masked.values():
        vector = [bytes_to_ndarray(part) for part in found[Key.MASKED_PARAMETERS]]
        total = vector if total is None else parameters_addition(total, vector)
    total = parameters_mod(total, MODULUS)
    collected: dict[int, list[bytes]] = {client: [] for client in keys}
    for found in opened.values():
        for owner, share in zip(found[Key.NODE_ID_LIST], found[Key.SHARE_LIST], strict=True):
            collected[owner].append(share)
    for owner, shares in collected.items():
        secret = combine_shares(shares)
        if owner in alive:
            total = parameters_subtraction(total, pseudo_rand_gen(secret, MODULUS, get_parameters_shape(total)))
            continue
        for other in near[owner] - {owner}:
            shared = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(keys[other][0]))
            mask = pseudo_rand_gen(shared, MODULUS, get_parameters_shape(total))
            total = (parameters_addition if owner > other else parameters_subtraction)(total, mask)
    return parameters_mod(total, MODULUS)


def run() -> list[Row]:
    vectors = updates(CLIENTS, VALUES)
    peer = find_spec("flwr") is not None
    if not peer:
        print("secure: no rows beside Flower, which is not installed here", file=sys.stderr)
    client = server = flower_client = flower_serve = np.inf
    sent = 0
    for _ in range(REPEATS):
        mine = ours(vectors, NEIGHBOURS, THRESHOLD, LOST)
        client, server, sent = min(client, mine[0]), min(server, mine[1]), mine[2]
        if peer:
            theirs = flower(vectors)
            flower_client, flower_serve = min(flower_client, theirs[0]), min(flower_serve, theirs[1])
    rows = []
    if peer:
        name = f"Flower {version('flwr')}'s SecAgg+"
        pairs = (("client", 5, client, flower_client), ("server", 20, server, flower_serve))
        for who, times, mine_, theirs_ in pairs:
            detail = f"{1e3 * mine_:.2f} ms / {1e3 * theirs_:.1f} ms: {theirs_ / mine_:.0f} times less"
            rows.append(Row(f"CPU of a {who} over {name}, {CLIENTS} clients", 1 / times, mine_ / theirs_, detail))
    sure = ours(vectors, NEIGHBOURS, THRESHOLD, LOST, signed=True)
    keys = f"with identity keys a client {1e3 * sure[0]:.1f} ms, the server {1e3 * sure[1]:.1f} ms, {sure[2]} bytes"
    detail = f"{sent} bytes a client and round for {VALUES} values; {keys}"
    rows.append(Row("bytes a client sends over plain 32-bit floats", 2.1, sent / (4 * VALUES), detail))
    big = ours(updates(100, 1_000_000), 16, 10, 10)
    detail = f"a client {1e3 * big[0]:.0f} ms; 16 neighbours, 10 lost"
    rows.append(Row("CPU seconds of the server, 100 clients, a million values", 2.0, big[1], detail))
    return rows

"""Homomorphic sums at 100,000 values of 64 bits: CPU of each role, and bytes a value."""

import time

import numpy as np

from benchmarks import Row
from fedveil.sums.homomorphic.library import has_tenseal
from fedveil.sums.homomorphic.messages import parameters_for
from fedveil.sums.homomorphic.roles import Adder, Decryptor, Encryptor, make_keys

CLIENTS, VALUES, SENT = 50, 100_000, 5  # parameters for fifty; five are enough to time one


def run() -> list[Row]:
    if not has_tenseal():
        return []
    parameters = parameters_for(CLIENTS)
    keys = make_keys(parameters)
    encryptor = Encryptor.open(keys.public, parameters)
    adder = Adder.open(keys.public, parameters, turn=0, size=VALUES)
    decryptor = Decryptor.open(keys, parameters, least=SENT)
    rng = np.random.default_rng(0)
    parts = [rng.integers(-(2**63), 2**63 - 1, VALUES, endpoint=True) for _ in range(SENT)]
    began = time.process_time()
    messages = [encryptor.encrypt(0, client, values) for client, values in enumerate(parts)]
    encrypted = time.process_time()
    for message in messages:
        adder = adder.take(message)
    added = time.process_time()
    _, found = decryptor.decrypt(adder.close(), turn=0, size=VALUES)
    opened = time.process_time()
    exact = np.array_equal(found.total, np.add.reduce(parts))
    detail = "exact" if exact else "WRONG"
    return [
        Row("homomorphic: client, CPU seconds for 100,000 values", 1.0, (encrypted - began) / SENT, detail),
        Row("homomorphic: server, CPU seconds a client", 0.5, (added - encrypted) / SENT, detail),
        Row("homomorphic: key holder, CPU seconds a round", 2.0, opened - added if exact else float("inf"), detail),
        Row("homomorphic: bytes up a value", 45.0, len(messages[0]) / VALUES, "8 in the clear"),
        Row("homomorphic: megabytes of public key, once", 0.3, len(keys.public) / 1e6, ""),
    ]

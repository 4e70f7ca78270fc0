"""Costs, caps and a fingerprint that tests of the ledger share."""

from hashlib import sha256
from typing import Any

from fedveil.ledger.budget import Cap, Cost

MODEL = sha256(b"a model").hexdigest()


def data(key: bytes) -> str:
    return sha256(key + b"the records").hexdigest()


def cost(epsilon: float = 0.1, delta: float = 1e-6, **other: Any) -> Cost:
    given = {"adversary": "final-model", "unit": "record", "neighbours": "replace-one"} | other
    return Cost(epsilon=epsilon, delta=delta, **given)


def cap(epsilon: float = 1.0, delta: float = 1e-5, **other: Any) -> Cap:
    given = {"adversary": "final-model", "unit": "record", "neighbours": "replace-one"} | other
    return Cap(epsilon=epsilon, delta=delta, **given)

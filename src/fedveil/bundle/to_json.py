"""A model as one JSON text: every number that a program in another language needs, and the certificate."""

import json

from fedveil.bundle.bundle import Bundle
from fedveil.bundle.linear import linear_of


def to_json(bundle: Bundle) -> bytes:
    """Return the model; docs/using-the-model.md says what each entry means."""
    found = linear_of(bundle, "json")
    prepared = found.preparation
    result = {
        "format": 1,
        "study": bundle.plan.name,
        "plan": bundle.plan.hash,
        "model": bundle.plan.model.kind,
        "link": found.link,
        "classes": list(found.classes),
        "features": list(prepared.entries),
        "cut": found.cut,
        "weights": found.weights.tolist(),
        "constants": found.constants.tolist(),
        "preparation": prepared.table(),
        "certificate": bundle.certificate,
    }
    return (json.dumps(result, indent=1, allow_nan=False) + "\n").encode()

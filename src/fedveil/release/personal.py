"""A party's own model as a value: its parameters, how they came about, and what it would tell others."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fedveil.core.errors import require
from fedveil.core.strict_json import read_object
from fedveil.core.values import Indices, Matrix, Vector, number, whole
from fedveil.models.adjusted import likeliest, margins

FILE: Final = "personal.json"
KINDS: Final = ("shared", "mixture", "proximal")
STAYS: Final = "free: nothing leaves the party"
SHOWN: Final = (
    "no guarantee (epsilon infinite): it was fitted to this party's own records without noise. Whoever is shown it, or "
    "its predictions, may learn about single records; the shared model's certificate does not speak of it."
)
SAME: Final = "nothing more than the shared model's certificate says: it is the shared model"
TOLD: Final = "that this party's records chose the shared model, without noise; its parameters are the shared model's"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Personal:
    """``kind``: shared (kept as it is), mixture (``strength``: the local model's weight) or proximal (of the pull).

    ``threshold``: margin above which the second of two classes is taken. ``gain``: cross-validated, over the shared
    model, in the share of right answers (of a number: of the shared model's mean error); None where nothing was tried.
    ``margin``: what the gain had to exceed.
    """

    client: str
    kind: str
    records: int
    parameters: Vector
    strength: float | None = None
    threshold: float = 0.0
    gain: float | None = None
    margin: float = 0.0

    def __post_init__(self) -> None:
        printable = isinstance(self.client, str) and self.client.isprintable() and 0 < len(self.client) <= 200
        require(printable, "personal.client", "be one line of at most 200 characters", str(self.client)[:60])
        require(self.kind in KINDS, "personal.kind", f"be one of {', '.join(KINDS)}", self.kind)
        whole("personal.records", self.records)
        values = np.asarray(self.parameters, dtype=np.float64)
        right = values.ndim == 1 and values.size > 0 and bool(np.isfinite(values).all())
        require(right, "personal.parameters", "be a list of finite numbers", values.shape)
        object.__setattr__(self, "parameters", values)
        for name in ("threshold", "margin"):
            object.__setattr__(self, name, number(f"personal.{name}", getattr(self, name)))
            require(math.isfinite(getattr(self, name)), f"personal.{name}", "be finite", getattr(self, name))

    @property
    def own(self) -> bool:
        """True if it is another model than the shared one."""
        return self.kind != "shared" or self.threshold != 0.0

    @property
    def shown(self) -> str:
        """What it tells others, if it is shown to them."""
        return SHOWN if self.own else TOLD if self.gain is not None else SAME

    def as_json(self) -> dict[str, Any]:
        """Plain values that :meth:`read` takes, with what it tells whom in words."""
        return {
            "format": 1,
            "client": self.client,
            "kind": self.kind,
            "strength": self.strength,
            "threshold": self.threshold,
            "records": self.records,
            "gain": self.gain,
            "margin": self.margin,
            "if_it_stays": STAYS,
            "if_shown": self.shown,
            "epsilon_if_shown": None if self.own or self.gain is not None else 0.0,
            "parameters": self.parameters.tolist(),
        }

    @classmethod
    def read(cls, data: bytes) -> "Personal":
        """From the file that was written of it."""
        content = read_object(data, FILE)
        require(content.get("format") == 1, f"{FILE}: format", "be 1", content.get("format"))
        names = ("client", "kind", "strength", "threshold", "records", "gain", "margin", "parameters")
        missing = [name for name in names if name not in content]
        require(not missing, FILE, "be complete", missing)
        listed = isinstance(content["parameters"], list)
        require(listed, "personal.parameters", "be a list of finite numbers", type(content["parameters"]).__name__)
        return cls(**{name: content[name] for name in names})


def decide(scores: Matrix, threshold: float) -> Indices:
    """Return each record's class number: the likeliest; of two, the second if its margin is above the threshold."""
    if threshold == 0.0 or scores.shape[1] > 2:
        return likeliest(scores)
    return np.asarray(margins(scores) > threshold, dtype=np.int64)

"""The plan of a job that is one stage of noisy sums, frozen before anything is measured.

All sums together are one Gaussian mechanism (fedveil.stages.sums). What the stage computes from them is
post-processing; reading or certifying a plan loads none of its code. Proof: docs/theory/preparation.md.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from fedveil.core.checks import require
from fedveil.core.strict_json import read_object
from fedveil.core.tables import filled, table
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.noise_shares import check_punctual
from fedveil.stages.prepare.alone import AlonePlan, sums_answer
from fedveil.stages.sums import NoisySums

Settings = Mapping[str, Any]
_FILE: Final = re.compile(r"[a-z][a-z0-9_]{0,40}\.(json|csv|txt)")
_TAKEN: Final = ("certificate.json", "metrics.json", "preparation.json")  # of every job
COUNTS: Final = math.sqrt(2) * (1 - 2.0**-40)  # 2 over the root of 2: see MeasuredPlan.heard


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPlan(AlonePlan):
    """Which stage, its settings as canonical JSON, whom the clients trust, and the sums with their noise.

    ``file``: the name of what is released. ``counts``: nothing that a unit adds is ever negative. ``training_public``,
    ``blank_rows``: as in a plan of training.
    """

    KIND: ClassVar[str] = "measured"
    HEAD: ClassVar[tuple[str, ...]] = (
        *("name", "stage", "settings", "file", "places", "counts", "training_public", "blank_rows"),
    )

    stage: str
    settings: str
    file: str
    preparation: NoisySums
    counts: bool = False
    trust: Trust = CENTRAL
    training_public: bool = False
    blank_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("counts", "training_public", "blank_rows"):
            require(type(getattr(self, name)) is bool, f"measured.{name}", "be true or false", getattr(self, name))
        self.check_head(labels_public=self.training_public)
        canonical = canonical_text(read_object(self.settings.encode(), "measured.settings"))
        require(self.settings == canonical, "measured.settings", "be canonical JSON", self.settings[:60])
        plain = isinstance(self.file, str) and _FILE.fullmatch(self.file) is not None and self.file not in _TAKEN
        require(plain, "measured.file", "be the name of a file of its own, such as mean.json", self.file)
        require(isinstance(self.trust, Trust), "measured.trust", "be a Trust", self.trust)
        self.trust.check(self.data.clients)
        check_punctual(self.trust, "sums")
        self.preparation.check(self.data)

    @property
    def sums(self) -> NoisySums:
        """All that is measured."""
        return self.preparation

    @property
    def stated(self) -> Settings:
        """The settings of the stage."""
        found: Settings = read_object(self.settings.encode(), "measured.settings")
        return found

    def heard(self, adversary: Adversary) -> Gaussian | None:
        """Return all sums as this observer hears them; None where it knows all of the noise.

        Counts are not negative, so two units' contributions differ by at most the root of 2 times their norm, where a
        Gaussian mechanism for replaced units expects twice it.
        """
        found = self.preparation.heard(adversary, self.data, self.target, self.trust)
        if found is None or not (self.counts and self.target.neighbours == "replace-one"):
            return found
        return replace(found, noise_multiplier=found.noise_multiplier * COUNTS)

    def answer(self, adversary: Adversary, delta: float) -> Answer:
        """Return what is proved of the sums together."""
        return sums_answer(self.preparation, self.heard(adversary), adversary, self.data, self.trust, delta)

    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the [trust] table, if the noise comes in shares, and the [prepare] table."""
        return {**self.trust.tables(), "prepare": self.preparation.table()}

    @classmethod
    def read(cls, text: str) -> "MeasuredPlan":
        """Return the plan that a text describes."""
        return cls._read(text, "a plan of noisy sums", "prepare", _parts, more=("trust",))


def canonical_text(settings: Settings) -> str:
    """Return settings as the one JSON text that stands for them.

    >>> canonical_text({"b": 1, "a": [2.5]})
    '{"a":[2.5],"b":1}'
    """
    return json.dumps(dict(settings), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _parts(tables: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"preparation": NoisySums.read(table(tables["prepare"], "prepare"), None)}
    if "trust" in tables:
        found["trust"] = filled(Trust, table(tables["trust"], "trust"), "trust")
    return found

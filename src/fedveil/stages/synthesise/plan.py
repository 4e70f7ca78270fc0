"""What a generator is made from, frozen before it is measured.

The measurements are those of a preparation (fedveil.stages.sums): noisy sums over records on a grid, which
together are one Gaussian mechanism. Rows that are drawn later look at no record. Proof: docs/theory/synthetic-data.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from fedveil.core.checks import require
from fedveil.core.tables import filled, table
from fedveil.privacy.guarantee import Adversary, Answer
from fedveil.privacy.mechanism import Gaussian
from fedveil.privacy.trust import CENTRAL, Trust
from fedveil.stages.noise_shares import check_punctual
from fedveil.stages.prepare.alone import AlonePlan, sums_answer
from fedveil.stages.sums import COUNTED, SYNTHESISED, NoisySums

REPLACED: Final = math.sqrt(2) * (1 - 2.0**-40)  # 2 over the root of 2: see heard


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisPlan(AlonePlan):
    """Whom the clients trust, and the measurements with their noise. ``data.features``: how many columns.

    ``training_public``: the records are declared public. ``blank_rows``: as in a plan of training. ``settings``:
    SHA-256 of what the study states of its columns and of the generator, which decides what is counted: what was
    interrupted can only be finished as it began.
    """

    KIND: ClassVar[str] = "synthesis"
    HEAD: ClassVar[tuple[str, ...]] = ("name", "settings", "places", "training_public", "blank_rows")

    preparation: NoisySums
    settings: str
    trust: Trust = CENTRAL
    training_public: bool = False
    blank_rows: bool = False

    def __post_init__(self) -> None:
        for name in ("training_public", "blank_rows"):
            require(type(getattr(self, name)) is bool, f"synthesis.{name}", "be true or false", getattr(self, name))
        self.check_head(labels_public=self.training_public)
        hexes = isinstance(self.settings, str) and len(self.settings) == 64
        require(hexes, "synthesis.settings", "be a SHA-256", self.settings)
        for name in COUNTED:
            require(name in self.preparation, "synthesis", f"measure all of {', '.join(COUNTED)}", name)
        require(isinstance(self.trust, Trust), "synthesis.trust", "be a Trust", self.trust)
        self.trust.check(self.data.clients)
        check_punctual(self.trust, "a generator")
        self.preparation.check(self.data)

    def heard(self, adversary: Adversary) -> Gaussian | None:
        """Return all measurements as this observer hears them, as one release; None where it knows all of the noise.

        Contributions are counts, which are not negative. So two of them differ by at most the root of 2 times their
        norm, where a Gaussian mechanism for replaced units expects twice it.
        """
        found = self.preparation.heard(adversary, self.data, self.target, self.trust)
        if found is None or self.target.neighbours != "replace-one":
            return found
        return replace(found, noise_multiplier=found.noise_multiplier * REPLACED)

    @property
    def sums(self) -> NoisySums:
        """All that is measured."""
        return self.preparation

    def answer(self, adversary: Adversary, delta: float) -> Answer:
        """Return what is proved of the measurements together."""
        return sums_answer(self.preparation, self.heard(adversary), adversary, self.data, self.trust, delta)

    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the [trust] table, if the noise comes in shares, and the [prepare] table."""
        return {**self.trust.tables(), "prepare": self.preparation.table()}

    @classmethod
    def read(cls, text: str) -> "SynthesisPlan":
        """Return the plan that a text describes."""
        return cls._read(text, "the plan of a generator", "prepare", _parts, more=("trust",))


def _parts(tables: Mapping[str, Any]) -> dict[str, Any]:
    trust = filled(Trust, table(tables["trust"], "trust"), "trust") if "trust" in tables else CENTRAL
    return {"preparation": NoisySums.read(table(tables["prepare"], "prepare"), SYNTHESISED), "trust": trust}

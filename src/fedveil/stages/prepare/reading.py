"""What a study states about reading its data that is no rule for columns: labels, marks of gaps, fills.

It travels from sites to the aggregator of a deployment, so that the released model can say how new records are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.core.tables import filled, table
from fedveil.data.row_rule import READING, Labels
from fedveil.data.spec import MISSING, Fill, Source
from fedveil.data.tables import known_keys, sequence, stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """``files``: how files are read, as the study states it; ``fill`` and ``default_fill``: as in a study."""

    labels: Labels
    missing: tuple[str, ...] = MISSING
    files: Mapping[str, Any] = field(default_factory=dict)
    fill: Mapping[str, Fill] = field(default_factory=dict)
    default_fill: Fill = "refuse"

    @classmethod
    def of(cls, source: Source, target: str | None) -> "Reading":
        """Of a source as it was completed when it was read; ``target``: the column that is predicted."""
        return cls(
            labels=Labels.of(source, target),
            missing=source.reading.missing,
            files={key: value for key, value in stated(source.reading).items() if key in READING},
            fill=dict(source.features.fill),
            default_fill=source.features.default_fill,
        )

    def stated_fill(self, name: str) -> Fill | None:
        """The fill that the study states for a column; None where it states none."""
        given = self.fill.get(name, self.default_fill)
        return None if given == "refuse" and name not in self.fill else given

    def table(self) -> dict[str, Any]:
        """Plain values that :meth:`read` takes."""
        own = {"missing": list(self.missing), "files": dict(self.files), "fill": dict(self.fill)}
        return {"labels": stated(self.labels), **own, "default_fill": self.default_fill}

    @classmethod
    def read(cls, given: Any) -> "Reading":
        """Return the value that a table describes."""
        values = dict(known_keys(given, ["labels", "missing", "files", "fill", "default_fill"], "The reading"))
        values["labels"] = filled(Labels, table(values.get("labels"), "labels"), "labels")
        values["missing"] = tuple(sequence("The marks of a missing value", values.get("missing", MISSING)))
        return cls(**values)

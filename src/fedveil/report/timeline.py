"""How the seconds of a round across sites were spent, from what ``--trace`` leaves in the run's folder."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedveil.core.errors import BadValue
from fedveil.core.files import read_file
from fedveil.core.strict_json import read_object
from fedveil.report.charts import Stretch, stretches_chart
from fedveil.report.markup import Markup, folded, paragraph

FILE: Final = "timeline.json"  # the round that took the median time, as the aggregator measured it
_LARGEST: Final = 2**16  # bytes
_LONGEST: Final = 60  # letters of a name


@dataclass(frozen=True, slots=True)
class Timeline:
    """What was done in one round, from when to when, in milliseconds."""

    stretches: tuple[Stretch, ...]

    @property
    def length(self) -> float:
        """The milliseconds that the round took."""
        return max(one.end for one in self.stretches)


def timeline_in(folder: Path) -> Timeline | None:
    """Return the timeline in a run's folder; None where nobody asked for one."""
    if not (folder / FILE).exists():
        return None
    try:
        content = read_object(read_file(folder / FILE, _LARGEST).decode("utf-8"), FILE)
        stretches = tuple(
            Stretch(str(bar["what"])[:_LONGEST], 1000 * float(bar["start"]), 1000 * float(bar["seconds"]))
            for bar in content["bars"]
        )
        if not stretches or not all(math.isfinite(one.end) and one.start >= 0 and one.length >= 0 for one in stretches):
            raise ValueError("times must be finite, and none before the first")
    except (KeyError, TypeError, ValueError) as error:
        raise BadValue(f"{FILE} must be as --trace wrote it ({error}); remove it, and report again.") from error
    return Timeline(stretches)


def timeline_section(timeline: Timeline | None) -> Markup | None:
    """Return the picture of one round on its way between the aggregator and the sites."""
    if timeline is None:
        return None
    text = (
        f"The round of the median time took {timeline.length:,.0f} ms, as the aggregator measured it. Waiting for the"
        " sites holds the way to them and back, and the work of the slowest. Who was asked is not shown."
    )
    description = "; ".join(f"{one.label}: {one.length:.1f} ms, from {one.start:.1f} ms" for one in timeline.stretches)
    picture = stretches_chart("round", "A round in milliseconds", description, timeline.stretches)
    return folded("timeline", "A round on its way", paragraph(text), picture)

"""The assumptions of each guarantee: their values in a plan, and what enforces each."""

from dataclasses import dataclass
from typing import Final

from fedveil.data.records import DataShape
from fedveil.planning.plan import AnyPlan, Plan
from fedveil.planning.selection import Selection
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.target import Target
from fedveil.stages.evaluate.request import Apart
from fedveil.stages.evaluate.words import apart_rows, apart_words
from fedveil.stages.evaluate.words import assumption_rows as evaluation_rows
from fedveil.stages.measured.plan import GENERATOR, PROFILE, MeasuredPlan
from fedveil.stages.prepare.request import assumption_rows
from fedveil.stages.train.registry import assumptions_of
from fedveil.stages.train.share_words import ADDED, SUMS_ALONE, Row, words_of

_PUBLIC_SHAPE: Final = "the data's shape is public"
_IN_THE_PLAN: Final = "declared: counts and sizes are in the plan"
_PLACES: Final = "who holds which record is public"
_COLUMN: Final = "declared: the client column is public, and so is which rows name no client; those take no part"
_SENT: Final[Row] = ("it is sent what was asked", "the noised sums", "they are counted as seen by everybody")
_CENTRAL: Final[dict[Adversary, tuple[Row, ...]]] = {
    "server": (ADDED,),
    "server-with-secure-aggregation": (ADDED, SUMS_ALONE),
}
_OWN_ROWS: Final[dict[str, tuple[Row, ...]]] = {  # of a stage, besides what every stage of noisy sums assumes
    PROFILE: (
        (
            "how the data are written is public",
            "the signs between columns and in numbers; which columns are empty or hold dates",
            "declared: public, like the columns' names; whoever chose the signs or filled a column did not decide it "
            "alone",
        ),
    ),
}
_COMPUTED: Final = {
    PROFILE: "the profile",
    GENERATOR: "which pairs are measured, the model and every row drawn",
}


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: its name, its value, and what makes it true; "declared" marks what no code can enforce."""

    name: str
    value: str
    enforced_by: str


def assumptions(plan: AnyPlan, adversary: Adversary) -> tuple[Assumption, ...]:
    """Return everything that the guarantee against this observer assumes."""
    if isinstance(plan, MeasuredPlan):
        return tuple(Assumption(*row) for row in _measured(plan, adversary))
    stated = assumptions_of(plan.method, adversary, plan.setup)
    return (*_common(plan), *(Assumption(*row) for row in stated))


def _shape(data: DataShape) -> str:
    return f"{data.records} records, {data.clients} clients of {data.smallest_client} to {data.largest_client}"


def _measured(plan: MeasuredPlan, adversary: Adversary) -> list[Row]:
    """Return what a stage of noisy sums assumes that trains nothing."""
    source = "a stream cipher keyed by the operating system's entropy; each sum's noise is drawn once"
    rows: list[Row] = [(_PUBLIC_SHAPE, _shape(plan.data), _IN_THE_PLAN), *_OWN_ROWS.get(plan.stage, ())]
    if plan.evaluation:
        how = "declared: the model was released before, and what it owes to these records is charged to its own run"
        rows.append(("the model is public", plan.stated["model"], how))
    if plan.places == "client column":
        rows.append((_PLACES, "a column of the data", _COLUMN))
    elif plan.places is not None:
        rows.append((_PLACES, f"decided by {plan.places}", "declared: public; it is in the plan"))
    if plan.blank_rows:
        how = "declared: such a row stays as a record that adds nothing"
        rows.append(("rows with a missing value that were dropped", "blank records", how))
    rows += _persons(plan.target)
    rows.append(("randomness", "256-bit key", source))
    if plan.evaluation:
        return [*rows, *evaluation_rows(plan.evaluation, plan.target, plan.data.classes)]
    rows += assumption_rows(plan.sums, plan.target)
    how = "computed from the noised sums and public numbers alone, without a record: so it costs nothing more"
    rows.append((_COMPUTED.get(plan.stage, "the result"), "post-processing", how))
    words = words_of(plan.trust)
    return rows + words.closing(adversary, [plan.data.clients], _SENT) + words.if_central(*_CENTRAL.get(adversary, ()))


def _common(plan: Plan) -> list[Assumption]:
    data = plan.data
    shape = _shape(data)
    if plan.canaries:
        also = " and features" if plan.real_features < data.features else ""
        shape += f"; {plan.canaries} records{also} are canaries'"
    source = (
        "a seed that the study names: anyone can take the noise off again"
        if plan.seeded
        else "a stream cipher keyed by the operating system's entropy; each round's noise is drawn once"
    )
    return [
        Assumption(_PUBLIC_SHAPE, shape, _IN_THE_PLAN),
        *_placed(plan),
        *(Assumption(*row) for row in _persons(plan.target)),
        *_mapped(plan),
        Assumption("feature bound", f"{data.bound:.12g}", "every row is cut to it when the data are read"),
        Assumption("randomness", "256-bit key", source),
        Assumption(
            "noise grid", f"2^{plan.grid}", "state and noise are whole multiples; its share is in epsilon and delta"
        ),
        *(Assumption(*row) for row in _selected(plan.selection, plan.held_out.apart)),
        *(Assumption(*row) for row in assumption_rows(plan.preparation, plan.target)),
        *(Assumption(*row) for row in evaluation_rows(plan.evaluation, plan.target, plan.data.classes)),
        *(Assumption(*row) for row in apart_rows(plan.evaluation, plan.target, plan.held_out.apart)),
    ]


def _selected(selection: Selection, apart: Apart | None) -> list[tuple[str, str, str]]:
    """What a guarantee for the best of several trials assumes; nothing for one run."""
    if not selection:
        return []
    law = selection.law
    trials = f"{law.mean:.6g} expected, at most {selection.most}; eta {law.eta:g}, gamma {law.gamma:.6g}"
    score = ("public records", "declared: the held-out records are public, or no number of this run holds for them")
    if selection.private:
        noise = f"noise of deviation {selection.score_noise:.6g}, where one unit adds at most 1"
        score = (noise, f"part of every trial; {apart_words(apart)}, so a unit is trained on or held out, never both")
    kept = "declared: the operator publishes neither these nor when the files were written"
    return [
        ("number of trials", trials, "drawn once, by secret randomness, before the first trial"),
        ("candidates", f"{len(selection.candidates)}", "each trial draws one uniformly, whatever the data are"),
        ("score of a trial", *score),
        ("what is seen of the other trials", "nothing: no model, no score, not their number, not their time", kept),
        ("the assumptions below", "hold for every candidate", "each is carried out as a run of its own plan would be"),
    ]


def _persons(target: Target) -> list[Row]:
    """Return what is assumed about persons, where they are protected."""
    if target.unit != "person":
        return []
    how = (
        "a person's first rows are used and the others count as blank, by row numbers alone; declared: the column that "
    )
    how += "names persons is public and right, and a person whom two data holders know counts as two"
    return [("records of one person", f"at most {target.largest_person}", how)]


def _mapped(plan: Plan) -> list[Assumption]:
    """Return what is assumed about the map that records went through first, if there was one."""
    feature_map = plan.origin.feature_map
    if feature_map is None:
        return []
    how = "each record goes through it alone, before its row is cut; declared: it is public, made without the private "
    how += "records, and keeps no memory of earlier calls"
    return [Assumption("feature map", feature_map, how)]


def _placed(plan: Plan) -> list[Assumption]:
    """Return the assumptions about who holds which record, beyond row numbers, and about rows with missing values."""
    rows, origin = [], plan.origin
    name = _PLACES
    if origin.places == "client column":
        rows.append(Assumption(name, "a column of the data", _COLUMN))
    elif origin.places == "file names":
        rows.append(Assumption(name, "a file for each client", "declared: each file's name and number of rows"))
    elif origin.revealed_by_places:
        why = "NOT MET: labels decide it, and the records are not declared public, so no number of this run holds"
        rows.append(Assumption(name, "dealt by label", why))
    elif origin.places == "labels":
        why = "declared: labels decide it, and the records are public; for private records no number of this run holds"
        rows.append(Assumption(name, "dealt by label", why))
    if origin.blank_rows:
        how = "it keeps its place as a blank record, whose gradient counts as zero: that it was dropped is protected "
        how += "like any other value, and changes no size and nobody else's place"
        rows.append(Assumption("a dropped row (missing value)", "contributes zero", how))
    return rows

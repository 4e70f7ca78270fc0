"""The assumptions of each guarantee: their values in a plan, and what enforces each."""

from dataclasses import dataclass

from fedveil.planning.plan import Plan
from fedveil.planning.selection import Selection
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.evaluate.request import Apart
from fedveil.stages.evaluate.words import apart_rows, apart_words
from fedveil.stages.evaluate.words import assumption_rows as evaluation_rows
from fedveil.stages.prepare.words import assumption_rows
from fedveil.stages.train.registry import assumptions_of


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption: its name, its value, and what makes it true; "declared" marks what no code can enforce."""

    name: str
    value: str
    enforced_by: str


def assumptions(plan: Plan, adversary: Adversary) -> tuple[Assumption, ...]:
    """Return everything that the guarantee against this observer assumes."""
    stated = assumptions_of(plan.method, adversary, plan.setup)
    return (*_common(plan), *(Assumption(*row) for row in stated))


def _common(plan: Plan) -> list[Assumption]:
    data = plan.data
    shape = f"{data.records} records, {data.clients} clients of {data.smallest_client} to {data.largest_client}"
    if plan.canaries:
        also = " and features" if plan.real_features < data.features else ""
        shape += f"; {plan.canaries} records{also} are canaries'"
    source = (
        "a seed that the study names: anyone can take the noise off again"
        if plan.seeded
        else "a stream cipher keyed by the operating system's entropy; each round's noise is drawn once"
    )
    return [
        Assumption("the data's shape is public", shape, "declared: counts and sizes are in the plan"),
        *_placed(plan),
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
    name = "who holds which record is public"
    if origin.places == "client column":
        how = "declared: the client column is public, and so is which rows name no client; those take no part"
        rows.append(Assumption(name, "a column of the data", how))
    elif origin.places == "file names":
        rows.append(Assumption(name, "a file for each client", "declared: each file's name and number of rows"))
    elif origin.told_by_places:
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

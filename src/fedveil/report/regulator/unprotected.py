"""What the promise does not cover, quantity by quantity: what a plan makes public without noise."""

from fedveil.plan import Plan
from fedveil.report.view import View


def unprotected(view: View) -> list[tuple[str, str]]:
    """Return every quantity that no noise protects, with its value or the reason, as (what, remark)."""
    plan, data = view.plan, view.plan.data
    rows = [
        ("number of records", f"{data.records:,}, used as a public number"),
        ("number of clients", f"{data.clients:,}"),
        ("records of the smallest and the largest client", f"{data.smallest_client:,} and {data.largest_client:,}"),
        ("number of features, classes", f"{data.features:,}, {data.classes:,}"),
        ("names and types of the columns, names of the classes", "public; the bundle and the study name them"),
        ("what the study states", "ranges, categories, fills, scales and bounds, as far as it states them"),
        *_types(plan),
        *_places(plan),
        *_tested(view),
    ]
    if plan.baselines and not plan.training_public:
        rows.append(("metrics of baselines", "computed from the records without noise"))
    if plan.selection is None:
        rows.append(("time", "how long the run took, and its rounds' times where messages can be seen"))
    else:
        held = "NOT to be published: it tells how many trials there were, and the promise holds while nobody knows"
        rows.append(("time, and when the files were written", held))
    rows += [(row.what, f"file {row.file}: not covered") for row in view.released if not row.covered]
    return rows


def _types(plan: Plan) -> list[tuple[str, str]]:
    if plan.preparation is None:
        return []
    why = "stated (prepare.numbers, prepare.texts), or read off cells of which no single unit could change them"
    return [("which columns hold numbers, and which texts", why)]


def _places(plan: Plan) -> list[tuple[str, str]]:
    if plan.places is None:
        return [("who holds which record", "by row numbers, which tell nothing about values")]
    return [("who holds which record", f"decided by the {plan.places}, which counts as public")]


def _tested(view: View) -> list[tuple[str, str]]:
    found = view.utility
    if found is None:
        return []
    if found.public:
        return [("held-out test records", f"{found.records:,}, declared public: their metrics are exact")]
    return [
        (
            "held-out test records",
            f"{found.records:,}, not declared public: their metrics are exact, without noise: charged as infinite",
        )
    ]

"""The section about communication: bytes for each way to add up, and the bound that few bits give."""

from fedveil.plan import Plan
from fedveil.report import words
from fedveil.report.blocks import note, paragraph, section, table
from fedveil.report.communication import CodedGap, Traffic, Way, coded_gap, traffic_of, way_of
from fedveil.report.markup import Markup
from fedveil.report.view import View

_NAMES: dict[Way, str] = {
    "plain": "in the clear, 8 bytes a value",
    "compressed": "compressed",
    "secure-aggregation": "secure aggregation (masked sums)",
    "homomorphic": "homomorphic encryption",
}


def traffic(view: View) -> Markup | None:
    """Return what clients send and receive; None if one data holder has nobody to send to."""
    plan = view.plan
    if plan.data.clients == 1:
        return None
    rows, used = traffic_of(plan), way_of(plan)
    mine = next(row for row in rows if row.way == used)
    text = (
        f"A client that takes part in a round sends {words.bytes_text(mine.up)} and receives "
        f"{words.bytes_text(mine.down)}; in the whole run {mine.messages:,} updates are sent at most, "
        f"{words.bytes_text(mine.total_up)} in all. The table has the other ways beside it. These are planned "
        "bytes, not counted ones: they tell nothing about who took part."
    )
    gap = coded_gap(plan, mine)
    return section("traffic", "What is sent", paragraph(text), _table(plan, rows, used), *_gap(plan, gap))


def _table(plan: Plan, rows: tuple[Traffic, ...], used: Way) -> Markup:
    heads = ("way", "up, a client and round", "down, a client and round", "before the first round", "up, whole run")
    cells = [
        (
            _NAMES[row.way] + _which(plan, row.way, used),
            words.bytes_text(row.up),
            words.bytes_text(row.down),
            words.bytes_text(row.once) if row.once else "–",
            words.bytes_text(row.total_up),
        )
        for row in rows
    ]
    return table(f"Bytes of {plan.dimension:,} values", heads, cells, numbers=range(1, len(heads)))


def _which(plan: Plan, way: Way, used: Way) -> str:
    if way == used:
        return " – this run"
    return ", to 8 bits a value" if way == "compressed" else ""


def _gap(plan: Plan, gap: CodedGap) -> list[Markup]:
    text = (
        f"Few bits also bound how closely a model can fit its data: with {plan.data.clients:,} clients of at least "
        f"{plan.data.smallest_client:,} records that send {gap.bits:,} bits each, the expected loss on new data is "
        f"greater than that on the training data by at most {words.up(gap.one_round)} R; with all {gap.run_bits:,} "
        f"bits that one client sends in the run, by {words.up(gap.whole_run)} R."
    )
    told = (
        "This is (1/K) sqrt(2 ln 2 R² B / n) for K clients, n records each, B bits from each. It is proved for models "
        "that clients compute on their own, once, and that are averaged; for losses that are a Bregman divergence "
        "between model and record (squared distance is one; those of linear models on random features are not) and "
        "R-sub-Gaussian (losses in an interval of length 2R are); for independent records of one law. A run of many "
        "rounds is outside of it, so here it is a yardstick, not a promise."
    )
    return [paragraph(text), note(told)]

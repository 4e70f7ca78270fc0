"""What a plan's clients send and receive, in bytes, for each way to add up; and what few bits are worth.

A pure function of the plan: planned bytes, because who really took part is a secret of the run. Page:
docs/compression.md.
"""

from dataclasses import dataclass
from typing import Final, Literal

from fedveil.core.errors import require
from fedveil.planning.plan import Plan
from fedveil.report import words
from fedveil.report.markup import Markup, folded, note, paragraph, table
from fedveil.report.view import View
from fedveil.stages.train.settings import CompressionRequest
from fedveil.sums.coding import message_bytes
from fedveil.sums.homomorphic.messages import MOST_CLIENTS, parameters_for, typical_bytes, typical_key_bytes
from fedveil.theory.generalization import Network, SubGaussian, coded_bound

Way = Literal["plain", "compressed", "secure-aggregation", "homomorphic"]
WAYS: Final[tuple[Way, ...]] = ("plain", "compressed", "secure-aggregation", "homomorphic")
_NUMBER: Final = 8  # bytes of a number
_EIGHT_BITS: Final = 127  # levels on each side of zero
_NEIGHBOURS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """``up``, ``down``: bytes of a client that takes part in a round; ``once``: what every client receives before.

    ``messages``: how many updates are sent in the run, at most; ``most``: of one client.
    """

    way: Way
    up: int
    down: int
    once: int
    messages: int
    most: int
    clients: int

    @property
    def total_up(self) -> int:
        """Bytes sent by all clients in the whole run."""
        return self.up * self.messages

    @property
    def total_down(self) -> int:
        """Bytes received by all clients in the whole run."""
        return self.down * self.messages + self.once * self.clients


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedGap:
    """The B-bit bound, in units of R: for one message of a client, and for all it sends in the run."""

    bits: int
    one_round: float
    run_bits: int
    whole_run: float


def way_of(plan: Plan) -> Way:
    """Return how the clients of this plan send."""
    server = plan.trust.server
    if server in ("secure-aggregation", "homomorphic"):
        return "secure-aggregation" if server == "secure-aggregation" else "homomorphic"
    return "compressed" if _own_compression(plan).kind != "none" else "plain"


def traffic_of(plan: Plan) -> tuple[Traffic, ...]:
    """Return the traffic of every way to send that fits the plan; without a server there are no secure sums."""
    ways = WAYS if plan.method.served else WAYS[:2]
    fits = _largest_cohort(plan) <= MOST_CLIENTS
    return tuple(bytes_of(plan, way) for way in ways if fits or way != "homomorphic")


def bytes_of(plan: Plan, way: Way) -> Traffic:
    """Return the traffic of one way to send."""
    require(way in WAYS, "way", f"be one of {', '.join(WAYS)}", way)
    size, model = plan.sum_length, _NUMBER * plan.sum_length  # an adaptive bound goes down, and a vote on it up
    up, down, once = model, model, 0
    match way:
        case "compressed":
            up = _compressed_bytes(plan)
        case "secure-aggregation":
            more_up, more_down = masking_bytes(_largest_cohort(plan))
            up, down = up + more_up, down + more_down
        case "homomorphic":
            parameters = parameters_for(_largest_cohort(plan))
            up, once = typical_bytes(parameters, size), typical_key_bytes(parameters)
        case _:
            pass
    together = way in ("secure-aggregation", "homomorphic") or plan.trust.all_send
    messages, most, _ = plan.method.traffic(plan.setup, together)
    return Traffic(way=way, up=up, down=down, once=once, messages=messages, most=most, clients=plan.data.clients)


def masking_bytes(cohort: int) -> tuple[int, int]:
    """Return about how many bytes masked sums add to what a client sends and receives in a round.

    They are signed keys, shares and agreement.

    >>> masking_bytes(50), masking_bytes(3)
    ((4075, 9990), (1020, 1161))
    """
    near = min(_NEIGHBOURS, max(cohort - 1, 0))
    up = 550 + near * 235  # five headers, keys and digests; commitments with sealed shares, and opened ones
    down = 230 + near * 314 + cohort * 101  # four headers; keys and sealed shares; who agreed, signed
    return up, down


def coded_gap(plan: Plan, traffic: Traffic) -> CodedGap:
    r"""Return $\frac1K\sqrt{2 R^2 \ln 2 \cdot B/n}$ with R = 1 (theory: generalization.md, statement 7).

    B counts the content of a message, not its envelope, since masks and encryption say nothing more. n is the smallest
    client.
    """
    content = traffic.up if traffic.way == "compressed" else _NUMBER * plan.sum_length
    network = Network(nodes=plan.data.clients, samples=plan.data.smallest_client)
    bits, run = 8 * content, 8 * content * traffic.most
    one, whole = (coded_bound(SubGaussian(1.0), network, count) for count in (bits, run))
    return CodedGap(bits=bits, one_round=one, run_bits=run, whole_run=whole)


def _own_compression(plan: Plan) -> CompressionRequest:
    result: CompressionRequest = getattr(plan.method, "compression", CompressionRequest())
    return result


def _compressed_bytes(plan: Plan) -> int:
    """Return the bytes as the plan says; by default eight bits a value."""
    how = _own_compression(plan)
    if how.kind != "none":
        return message_bytes(how.kind, plan.dimension, keep=how.keep, levels=how.levels)
    return message_bytes("quantised", plan.dimension, keep=1.0, levels=_EIGHT_BITS)


def _largest_cohort(plan: Plan) -> int:
    return plan.method.traffic(plan.setup, together=True)[2]


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
    return folded("traffic", "What is sent", paragraph(text), _table(plan, rows, used), *_gap(plan, gap))


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
    sentence = (
        "This is (1/K) sqrt(2 ln 2 R² B / n) for K clients, n records each, B bits from each. It is proved for models "
        "that clients compute on their own, once, and that are averaged; for losses that are a Bregman divergence "
        "between model and record (squared distance is one; those of linear models on random features are not) and "
        "R-sub-Gaussian (losses in an interval of length 2R are); for independent records of one law. A run of many "
        "rounds is outside of it, so here it is a yardstick, not a promise."
    )
    return [paragraph(text), note(sentence)]

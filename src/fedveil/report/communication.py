"""What a plan's clients send and receive, in bytes, for each way to add up; and what few bits are worth.

A pure function of the plan: planned bytes, because who really took part is a secret of the run. Page:
docs/compression.md.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from fedveil.checks import require
from fedveil.plan import Plan
from fedveil.sums.coding.packing import message_bytes
from fedveil.sums.homomorphic.messages import typical_bytes, typical_key_bytes
from fedveil.sums.homomorphic.parameters import MOST_CLIENTS, parameters_for
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
    return "compressed" if _own_compression(plan) != "none" else "plain"


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
            up = _compressed(plan)
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


def _own_compression(plan: Plan) -> str:
    return str(getattr(plan.method, "compression", "none"))


def _compressed(plan: Plan) -> int:
    """Return the bytes as the plan says; by default eight bits a value."""
    method: Any = plan.method
    if _own_compression(plan) != "none":
        return message_bytes(method.compression, plan.dimension, keep=method.keep, levels=method.levels)
    return message_bytes("quantised", plan.dimension, keep=1.0, levels=_EIGHT_BITS)


def _largest_cohort(plan: Plan) -> int:
    return plan.method.traffic(plan.setup, together=True)[2]

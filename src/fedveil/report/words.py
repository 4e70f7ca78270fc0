"""What the numbers of a certificate mean, in sentences that a person who is not a statistician can rely on.

Two facts carry all of it. With (epsilon, delta), a test with false-positive rate a has a true-positive rate of at most
min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)) [KOV15, section 2]; so a guess between two equally likely
cases is right with probability at most (e^epsilon + delta)/(e^epsilon + 1). And the release is within
delta/(1 + e^epsilon) in total variation of one for which odds never change by more than e^epsilon [DR14, lemma 3.17].

References:
    [KOV15] Kairouz, Oh, Viswanath. The Composition Theorem for Differential Privacy. ICML 2015.
    [DR14] Dwork, Roth. The Algorithmic Foundations of Differential Privacy. 2014.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from fedveil.models.intervals import wilson as wilson

NO_GUARANTEE = "no guarantee"

OBSERVERS = {
    "final-model": "Anyone who gets the final model",
    "curious-client": "A curious participant",
    "every-model": "Someone who sees every model",
    "server-with-secure-aggregation": "The server, if it sees sums only",
    "server": "The server, if it sees every update",
}

# The same, in the middle of a sentence.
SEEN_BY = {
    "final-model": "the final model",
    "curious-client": "a curious participant",
    "every-model": "every model seen",
    "server-with-secure-aggregation": "a server that sees sums only",
    "server": "a server that sees every update",
}

BOUNDS = {
    "unhidden": "as if every model were seen",
    "linear-contraction": "product of contractions",
    "nonlinear-contraction": "sharp contraction, round by round",
    "shift": "later noise covers earlier rounds",
    "block": "blocks of rounds",
    "transport": "transport",
    "position": "nobody knows the round",
    "segments": "what lies between the models it saw",
    "renyi-diffusion": "Rényi, diffusion",
    "renyi-iteration": "Rényi, iteration",
    "loss-distribution": "exact composition of all rounds",
    "renyi": "Rényi divergences added up",
    "central-limit": "central limit",
}


def up(value: float, digits: int = 4) -> str:
    """So many significant digits, never below the value.

    >>> up(1.00001), up(0.73105), up(12345.6), up(0.0), up(1.0), up(3.2e-7), up(math.inf)
    ('1.001', '0.7311', '12350', '0', '1', '3.2e-7', 'no guarantee')
    """
    return _round(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 4) -> str:
    """So many significant digits, never above the value.

    >>> down(3.2196, 2), down(0.999999)
    ('3.2', '0.9999')
    """
    return _round(value, digits, ROUND_FLOOR)


def epsilon_text(epsilon: float | None) -> str:
    """Four digits, rounded up; without a bound there is no guarantee.

    >>> epsilon_text(1.23401), epsilon_text(None)
    ('1.235', 'no guarantee')
    """
    return NO_GUARANTEE if epsilon is None else up(epsilon)


def percent(share: float, *, most: bool = True) -> str:
    """Return a share with one decimal; a largest one is never shown too small, a least one never too large.

    >>> percent(0.731058), percent(0.26894, most=False), percent(1.0), percent(0.9999)
    ('73.2%', '26.8%', '100%', '100%')
    """
    rounding = ROUND_CEILING if most else ROUND_FLOOR
    value = (Decimal(repr(share)) * 100).quantize(Decimal("0.1"), rounding=rounding)
    return f"{value.normalize():f}%" if value == value.to_integral() else f"{value}%"


def one_in(delta: float) -> str:
    """Return a small probability as a chance, never smaller than it is.

    >>> one_in(1e-5), one_in(3.07e-6), one_in(0.4)
    ('1 in 100,000', '1 in 325,000', '1 in 2')
    """
    count = Decimal(1) / Decimal(repr(delta))
    return f"1 in {int(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(count) if count >= 1000 else int(count)):,}"


def right_guesses(epsilon: float | None, delta: float) -> float:
    """Most that a guess between two equally likely cases can be right."""
    if epsilon is None:
        return 1.0
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def detection_rate(epsilon: float | None, delta: float, alarms: float) -> float:
    """Most of the true cases that a test can find when its rate of false alarms is ``alarms``."""
    if epsilon is None:
        return 1.0
    small = math.exp(min(epsilon, 700.0)) * alarms + delta
    return min(1.0, small, 1 - math.exp(-epsilon) * max(1 - delta - alarms, 0.0))


def belief(epsilon: float) -> float:
    """From even odds, the most that an observer can come to believe (up to the failure probability)."""
    return 1 / (1 + math.exp(-epsilon))


def strength(epsilon: float | None, delta: float) -> str:
    """Return how much an observer can tell, graded by the rate of right guesses; the grades are ours.

    >>> [strength(e, 1e-5) for e in (0.1, 0.4, 1.0, 2.0)]
    ['practically cannot tell', 'can hardly tell', 'can tell only a little better than by chance', \
'can tell better than by chance, but not reliably']
    >>> [strength(e, 1e-5) for e in (4.0, 9.0, None)]
    ['may well be able to tell', 'is not kept from telling', 'is not kept from telling']
    """
    rate = right_guesses(epsilon, delta)
    grades = [
        (0.55, "practically cannot tell"),
        (0.60, "can hardly tell"),
        (0.75, "can tell only a little better than by chance"),
        (0.90, "can tell better than by chance, but not reliably"),
        (0.99, "may well be able to tell"),
    ]
    return next((words for most, words in grades if rate <= most), "is not kept from telling")


def secret(unit: str, neighbours: str) -> str:
    """What stays open: the two cases that cannot be told apart."""
    if unit == "client":
        rest = "or other records in their place" if neighbours == "replace-one" else "or left out altogether"
        return f"whether the records of any one client were used, {rest}"
    if unit == "person":
        rest = "or other records in their place" if neighbours == "replace-one" else "or left out altogether"
        return f"whether the records of any one person were used, {rest}"
    rest = "or another record in its place" if neighbours == "replace-one" else "or left out"
    return f"whether any one record was used, {rest}"


def group(unit: str) -> str:
    """What the guarantee does not say about larger groups."""
    if unit == "client":
        return (
            "The promise is for one client at a time, with all its records. For k clients together epsilon is k times "
            "as large, and delta grows too."
        )
    if unit == "person":
        return (
            "The promise is for one person at a time, with all records of that person that were used. A person whom "
            "two data holders know counts as two, and both promises add up."
        )
    return (
        "The promise is for one record at a time. A person with k records has k times the epsilon, and a larger delta."
    )


def nearest(value: float, digits: int = 4) -> str:
    """Return a number that promises nothing, to so many digits.

    >>> nearest(0.50000001), nearest(100.0), nearest(1e-7), nearest(1234567.0), nearest(6543)
    ('0.5', '100', '1e-7', '1.235e+6', '6543')
    """
    return _tidy(f"{value:.{digits}g}")


def _round(value: float, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return NO_GUARANTEE
    decimal = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    if decimal == 0:
        return "0"
    if abs(decimal) < Decimal("0.0001") or abs(decimal) >= 10**9:
        mantissa, power = f"{decimal.normalize():E}".split("E")
        return f"{mantissa}e{int(power)}"
    return f"{decimal.normalize():f}"


def _tidy(text: str) -> str:
    mantissa, mark, power = text.partition("e")
    return f"{mantissa}e{'+' if int(power) > 0 else ''}{int(power)}" if mark else text


def bytes_text(count: int) -> str:
    """Return a size with its unit.

    >>> bytes_text(0), bytes_text(1_500), bytes_text(2_000_000)
    ('0 B', '1.5 kB', '2 MB')
    """
    value, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"

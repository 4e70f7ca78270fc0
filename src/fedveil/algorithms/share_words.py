"""Assumptions of a guarantee if the clients add the noise in shares: certificate rows for any algorithm."""

from collections.abc import Sequence

import numpy as np

from fedveil.guarantee import Adversary
from fedveil.trust import Trust

Row = tuple[str, str, str]  # name, value, what enforces it
SENT_ALWAYS: Row = ("it is sent a model only when it takes part", "not used", "every model is counted as seen")


def share_rows(adversary: Adversary, trust: Trust, cohorts: Sequence[int], sent: Row) -> list[Row]:
    """Return rows for an algorithm whose updates carry a share of the noise; ``sent``: which models a client gets."""
    sizes = sorted(set(cohorts))
    rows = [_share_row(trust, sizes), answer_row(trust, sizes)]
    if trust.dropouts:
        why = "declared: who is missing depends on no record, no model, no noise and not on the order of the rounds"
        rows.append(("clients are missing by chance", f"at most {trust.dropouts} a round", why))
    if adversary == "server-with-secure-aggregation":
        rows.append(sums_row(trust))
        why = "declared: they may tell the server all they know; a site that does is all of its clients"
        rows.append(("colluding clients", f"at most {trust.colluders} a round", why))
    rows += holder_rows(adversary, trust)
    if adversary == "curious-client":
        rows.append(sent)
        if trust.key_holder == "clients":
            why = "declared: how single messages were rounded lies below the encryption's own noise, unproved"
            rows.append(("an opened ciphertext shows its sum alone", "declared", why))
        rows.append(site_row(trust))
    return rows


def answer_row(trust: Trust, sizes: Sequence[int]) -> Row:
    """Return the row that says how many clients must answer in a round."""
    least = span(tuple(float(trust.least(size)) for size in sizes))
    refused = "a round with fewer is refused, and its charge kept"
    return ("answers to a round", f"at least {least} of {span(tuple(map(float, sizes)))}", refused)


def holder_rows(adversary: Adversary, trust: Trust) -> list[Row]:
    """Return rows about the third party, if one holds the key of encrypted sums."""
    if trust.key_holder != "third-party" or adversary == "server":  # the server sees more than the holder could tell
        return []
    why = "declared: it sees every sum and who is in it, tells the server no more than that, and others nothing"
    return [("the key holder is trusted", "a third party, no client", why)]


def site_row(trust: Trust) -> Row:
    """Return the row that says how many clients may look together."""
    why = "declared: so many clients, and no more, put together what they see"
    return ("clients of one site", f"at most {trust.hand}", why)


def sums_row(trust: Trust) -> Row:
    """Return the row that says why the server learns sums only."""
    name = "the server learns sums only"
    match trust.server:
        case "secure-aggregation" if trust.identities is not None:
            how = "masks that cancel in the sum alone, also for a server that lies about who is there: clients sign by "
            how += "identity keys that their sites vouch for, and open no sum of fewer answers than stated here"
            return (name, "secure aggregation, signed", how)
        case "secure-aggregation":
            how = "masks that cancel in the sum alone, for a server that keeps to the protocol (one that lies: where "
            how += "clients have identity keys); the clients open no sum of fewer answers than stated here; "
            how += "the chance that the ring of masks betrays more, below 2^-40 a round, is in delta"
            return (name, "secure aggregation", how)
        case "homomorphic" if trust.key_holder == "clients":
            how = "the server adds what it cannot open: the clients hold the decryption key, and give it to nobody"
            return (name, "homomorphic encryption", how)
        case "homomorphic":
            how = "the server adds what it cannot open: a third party holds the decryption key, and opens sums alone"
            return (name, "homomorphic encryption", how)
        case _:
            return (name, "declared", "declared: this run added up in the open")


def drawn(trust: Trust, alone: str) -> str:
    """Return who draws what must stay secret: ``alone`` for one process; sites trust the aggregator with it."""
    if not trust.shared:
        return alone
    how = "drawn from the run's key, which is destroyed with the run; across sites the aggregator draws it and is "
    return (
        how
        + "trusted with that, each site learns its own clients' part, and whoever carries messages sees who is asked"
    )


def span(values: float | tuple[float, ...]) -> str:
    """Return one number, or the smallest and the largest of several."""
    numbers = np.atleast_1d(np.asarray(values, dtype=np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"


def _share_row(trust: Trust, sizes: Sequence[int]) -> Row:
    honest = span(tuple(float(trust.honest(size)) for size in sizes))
    value = f"the planned variance over {honest} honest clients that answer"
    how = "drawn at the client and added in whole numbers before anything leaves it; across sites each enforces its "
    how += "own clients' shares, and that there are so many others who add theirs is declared"
    return ("every client adds its share of the noise", value, how)

"""Assumptions of a guarantee that depend on who draws the noise: certificate rows for any algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from fedveil.models.spec import ModelPlan
from fedveil.privacy.guarantee import Adversary
from fedveil.privacy.trust import Trust

Row = tuple[str, str, str]  # name, value, what enforces it
SENT_ALWAYS: Row = ("it is sent a model only when it takes part", "not used", "every model is counted as seen")
ADDED: Row = ("every client adds its share of the noise", "no dropouts, no colluders", "declared")
SUMS_ALONE: Row = (
    "the server learns sums only",
    "declared",
    "declared: this run did not use secure aggregation",
)


def company_rows(model: ModelPlan, sampled: bool) -> list[Row]:
    """Return what a sampled run of a torch model assumes of torch: for other models each row is a sum of its own."""
    if model.linear or not sampled:
        return []
    how = "computed in blocks of one shape, in a slot that depends on the record alone, and rounded alone; that torch "
    how += "runs the same instructions for the same shapes on one machine is declared"
    return [("a record adds the same bits in any company", "to the last bit", how)]


@dataclass(frozen=True, slots=True)
class CentralWords:
    """One party draws the noise; what a server is promised is declared, as if the clients had added shares."""

    trust: Trust

    noise: ClassVar[str] = "drawn for every round by the run"
    draws: ClassVar[str] = (
        "drawn for each client from the run's key, never written down; whoever draws the noise is trusted with them, "
        "and may see who has something to send"
    )

    def drawn(self, alone: str) -> str:
        """Return who draws what must stay secret; ``alone``: what is said of one process."""
        return alone

    def if_central(self, *rows: Row) -> list[Row]:
        """Return rows that are said only where one party draws the noise."""
        return [*rows]

    def closing(self, adversary: Adversary, cohorts: Sequence[int], sent: Row) -> list[Row]:
        """Return the rows that follow an algorithm's own; ``sent``: which models a client gets."""
        return []

    def windows(self, adversary: Adversary, cohorts: Sequence[int]) -> list[Row]:
        """Return the rows that follow those of an algorithm whose every update carries all of its noise."""
        return []


@final
@dataclass(frozen=True, slots=True)
class ShareWords(CentralWords):
    """Every client adds a share of the noise: all that is said of it follows an algorithm's own rows."""

    noise: ClassVar[str] = "planned; made up by the clients' shares"
    draws: ClassVar[str] = (
        "each client draws for its own units, across sites from its site's key, and tells nobody; every client is "
        "sent every model and answers in every round, with its noise alone if it drew nothing"
    )

    def drawn(self, alone: str) -> str:
        """Return that sites trust the aggregator with it."""
        how = "drawn from the run's key, which is destroyed with the run; across sites the aggregator draws it and is "
        how += "trusted with that, each site learns its own clients' part, and whoever carries messages sees who is "
        return how + "asked"

    def if_central(self, *rows: Row) -> list[Row]:
        """Return no rows: they are about one party that draws the noise."""
        return []

    def closing(self, adversary: Adversary, cohorts: Sequence[int], sent: Row) -> list[Row]:
        """Return everything that is assumed of the shares."""
        return share_rows(adversary, self.trust, cohorts, sent)

    def windows(self, adversary: Adversary, cohorts: Sequence[int]) -> list[Row]:
        """Return what is assumed of who answers and who looks."""
        rows = [answer_row(self.trust, sorted(set(cohorts)))]
        if adversary == "server-with-secure-aggregation":
            rows.append(sums_row(self.trust))
        rows += holder_rows(adversary, self.trust)
        return [*rows, site_row(self.trust)] if adversary == "curious-client" else rows


_WORDS: Final = {"central": CentralWords, "shares": ShareWords, "local": ShareWords}


def words_of(trust: Trust) -> CentralWords:
    """Return what certificates say about whoever draws the noise."""
    return _WORDS[trust.noise](trust)


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

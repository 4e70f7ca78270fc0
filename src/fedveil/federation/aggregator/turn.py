"""One turn across sites: what each is asked, who may answer, and the checks of an answer and of the sum."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Final

import numpy as np

from fedveil.core.errors import FedveilError, TooFewSurvivors
from fedveil.core.values import Indices
from fedveil.federation.aggregator.post import Answer, Post
from fedveil.federation.agreements import Carried, Span, least_of
from fedveil.stages.protocol import LOOSE, TAIL, Asking, Consortium, State
from fedveil.stages.sums import STEPS, Measurement
from fedveil.sums.exact import squared_norm
from fedveil.sums.seam import Whole
from fedveil.wire.content import Content


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """``number``: counted through all stages; ``size``: of the sum; ``least``: how many clients must answer.

    ``questions``: by site; ``clients``: who may answer there; ``limit``: a norm in grid steps that the sum of some
    clients of a site exceeds with a chance below exp(-72).
    """

    number: int
    size: int
    least: int
    questions: Mapping[str, Content]
    clients: Mapping[str, set[int]]
    limit: Callable[[str, list[int]], int]

    def right(self, site: str, answer: Answer) -> bool:
        """Return whether an answer can be a sum of what the site's clients may send: shape, clients and size.

        An answer that follows the plan passes. Any other counts as no answer, and does not affect other sites.
        """
        total, clients = answer.content.rows.get("total"), answer.content.values.get("clients")
        if answer.kind != "update" or total is None or not isinstance(clients, list) or not clients:
            return False
        known = all(type(client) is int for client in clients) and set(clients) <= self.clients[site]
        shaped = total.dtype == np.int64 and total.shape == (self.size,)
        if not (known and len(set(clients)) == len(clients) and shaped):
            return False
        limit = self.limit(site, clients)
        return squared_norm(total.astype(np.int64)) <= limit * limit

    def summed(self, answers: Mapping[str, Answer]) -> Whole:
        """Return the sum; too few answers are refused, and what was charged stays charged."""
        if not count(answers) >= self.least:
            raise TooFewSurvivors(
                f"Round {self.number + 1} has the answers of {count(answers)} clients and needs {self.least}: its sum"
                " may lack noise and is not used. What was charged stays charged; go on with --resume when the sites"
                " are back."
            )
        total = np.zeros(self.size, dtype=np.int64)
        for site in sorted(answers):
            # modulo 2**64, as in every other way of adding up
            total += answers[site].content.rows["total"].astype(np.int64)
        return total


def count(answers: Mapping[str, Answer]) -> int:
    """Return how many clients have answered."""
    return sum(len(answer.content.values["clients"]) for answer in answers.values())


def turn_of(plan: Carried, span: Span, asking: Asking, state: State, members: Consortium) -> Turn:
    """Return the next turn of a stage that stands at this state."""
    turn, number = state.round, span.first + state.round
    asked = {site: asking.question(state, site) for site in members.members}
    return Turn(
        number=number,
        size=span.stage.size(turn),
        least=least_of(plan, number),
        questions={site: question for site, question in asked.items() if question is not None},
        clients={site: asking.clients(turn, site) for site in members.members},
        limit=lambda site, clients: asking.limit(turn, site, clients),
    )


def sum_limit(plan: Carried, one: Measurement, sizes: Indices, clients: list[int], times: int = 1) -> int:
    """Return a norm in grid steps that the noisy sum of these clients exceeds with a chance below exp(-72).

    ``sizes``: how many records each client of the study has; ``times``: how often the bound of a contribution a unit
    may add.
    """
    units = len(clients) if plan.target.unit == "client" else int(sizes[clients].sum())
    share = one.deviation / sqrt(plan.trust.honest(plan.data.clients))
    noise = share * sqrt(len(clients)) * (sqrt(one.size) + TAIL)
    return ceil((units * times * one.bound * STEPS + noise) * LOOSE + 2 * len(clients) * sqrt(one.size))


# Questions that every site must answer; if one does not, the run stops with a sentence that says why.

REASONS: Final = {
    "not-accepted": "its operator has not accepted this plan; start the guard there with --accept and the plan's hash",
    "over-cap": "the plan costs more than is left under the site's cap",
    "not-private": "the plan promises nothing, and the site runs no trials",
    "other-data": "the plan was made for data of another shape",
    "other-preparation": "the plan's preparation is not for its columns; state them alike at every site",
    "other-evaluation": "the plan's evaluation is not for its held-out records, or charges clients for too little",
    "other-persons": "it names no persons, or uses more records of one; state person_column and largest_person there",
    "other-generator": "the plan's generator is not for its columns; state categories there, and no feature_bound",
    "wrong-question": "what it was asked to count is not what the plan measures of its columns",
    "not-prepared": "it has not been told yet what the preparation of this run has learned",
    "wrong-sums": "what it was told of the preparation's sums is not what the plan measures",
    "other-plan": "it has agreed to another plan for this run",
    "no-encryption": "it cannot encrypt with this key; is fedveil[he] installed there?",
    "not-the-maker": "it knows sites, in its folder peers, that are not of this deployment",
    "unknown-peers": "it has no public keys of the other sites; put them into its folder peers",
    "bad-signature": "the public keys in its folder peers are not those of the other sites",
    "wrong-party": "the public keys in its folder peers are not those of the other sites",
    "not-for-me": "another site has an old public key of it in its folder peers",
    "other-key": "it has another key for the sums of this run",
    "no-holder": "it has no public key of the key holder; put it at key-holder.pub beside its own key",
    "not-the-holders": "the key of sums is not signed by the key holder that it knows by its file key-holder.pub",
    "no-third-party": "the plan does not give the key of sums to a third party",
    "no-consent": "most sites have not consented to this sum; are the public keys in its folder peers the right ones?",
    "spent-round": "it has agreed to another sum of this round, and opens no second one",
    "other-survivors": "the sites that are said to be in the sum of this round are not all of it, or it is not one",
    "too-few": "fewer clients would be in the sum than the plan promises",
    "bad-share": "the share of another site's mask that it was given is not of this round",
    "no-quorum": "too few sites have signed who is in the sum of this round",
    "no-sum": "what it was given is no sum of this round",
    "no-key": "the run's key is not there any more",
    "other-roster": "the list of the sites' clients and keys is not that of this run",
    "cannot-charge": "its ledger does not take the charge; the guard's own log says why",
    "a-choice": "the plan chooses segments by public records, which is done in one process only",
    "a-network": "the plan simulates a network, and there is a real one",
    "other-deal": "its records are not dealt into rounds as the plan says",
    "already-run": "its operator has accepted this plan for one run, and there was one; a cap there would allow more",
    "lost-memory": "it has charged this run and lost what it remembered of it; begin another run",
    "lost-key": "it has lost the key of this run's noise; begin another run",
    "not-charged": "its ledger has no charge for this run; begin another run",
    "changed-data": "its data are not those that were charged; start the guard there with the data it began with",
    "other-code": "the plan names a function that its operator has not named; start the guard there with --module",
    "finished": "it has recorded the end of this run",
    "bad-sum": "another party's sum is larger than its records and its noise can make it, or is no whole numbers",
    "changed-round": "it has answered this round to another question, and does not answer it a second time",
    "changed-answer": "it would answer this round with other numbers than before; start the guard there as it was,"
    " with the same version of fedveil on the same machine",
    "malformed": "it cannot read the message; do both sides run the same version of fedveil?",
    "no-model": "the question names a round of its records and brings no model",
    "no-roster": "it has not been given the list of the sites' keys of this run",
    "no-such-round": "the plan has no such round",
    "not-by-parts": "the plan does not let every site add its own share of the noise; add a [trust] table",
    "not-in-the-open": "the plan adds up behind masks or encryption, and it was asked for an open sum",
    "not-the-holder": "a third party holds the key of sums, not this site",
    "nothing-to-send": "none of its clients takes part in this round",
    "other-cohort": "the clients named for this round are not those of the plan",
    "out-of-turn": "the question does not fit its part in this round: who leads it, or which round it has masked last",
    "replayed": "it has seen this message before",
    "stale-round": "it has gone beyond this round, and does not go back",
    "unknown-kind": "it does not know this kind of question; do both sides run the same version of fedveil?",
    "unknown-method": "the algorithm has no part for a site; do both sides run the same version of fedveil?",
    "wrong-shape": "the model in the question is not a finite row of the plan's length",
}


class SiteRefused(FedveilError):
    """A site does not agree to the plan, or does not answer; the message says which site and why."""


def ask_all(
    post: Post, kind: str, asked: Mapping[str, Content], timeout: float, wanted: str, turn: int = 0, who: str = "Site"
) -> dict[str, Answer]:
    """Return an answer from every site; raise :class:`SiteRefused` if one is missing.

    ``who``: what the message calls a site.
    """
    result = post.ask(kind, turn, asked, timeout, lambda _, answer: answer.kind in (wanted, "refused"), never)
    for site in sorted(asked):
        if site not in result:
            raise SiteRefused(
                f"{who} {site} did not answer within {timeout:.0f} seconds. Is its guard running, and its node? "
                "Go on with --resume."
            )
        answer = result[site]
        if answer.kind == "refused":
            raise SiteRefused(f"{who} {site} refuses: {reason(answer)}. Go on with --resume.")
    return result


def reason(answer: Answer) -> str:
    """Return in words why a site has refused; a guard sends a code only."""
    code = answer.content.values.get("code")
    return REASONS.get(str(code), ascii(str(code)[:40]))


def never(answers: Mapping[str, Answer]) -> bool:
    """Return False: nothing less than an answer from everyone is enough."""
    return False

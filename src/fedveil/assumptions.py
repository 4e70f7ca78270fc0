"""What each guarantee rests on: every assumption, its value in this plan, and what enforces it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.account.hidden import per_round
from fedveil.guarantee import Adversary
from fedveil.method.dpsgd import DpSgd
from fedveil.method.hidden import Hidden
from fedveil.method.parts import cohorts
from fedveil.plan import Plan
from fedveil.trust import Trust


@dataclass(frozen=True, slots=True)
class Assumption:
    """Its name, its value, and what makes it true; "declared" marks what no code can enforce."""

    name: str
    value: str
    enforced_by: str


def assumptions(plan: Plan, adversary: Adversary) -> tuple[Assumption, ...]:
    """All that the guarantee against this observer assumes."""
    if not isinstance(plan.method, Hidden):
        stated = plan.method.assumptions(adversary, plan.data, plan.model, plan.target)
        rows = [*_common(plan), *(Assumption(*row) for row in stated)]
    else:
        rows = [*_common(plan), *_records(plan), *_noise(plan)]
        if adversary in ("final-model", "curious-client"):
            rows += [*_steps(plan), *_hiding(plan)]
        if adversary == "every-model":
            rows += _order(plan)  # where noise differs between rounds, not to know a unit's own round counts
        rows += _observer(plan, adversary)
    if plan.trust is None:
        return tuple(rows)
    kept = _by_parts(plan, plan.trust, adversary)
    replaced = {row.name for row in kept}
    return (*(_drawn(row) for row in rows if row.name not in replaced), *kept)


def _drawn(row: Assumption) -> Assumption:
    """What is secret from an observer, with who is trusted to have drawn it where the clients are on many machines."""
    if row.name not in ("secret order", "random stopping", "secret cohorts"):
        return row
    how = "drawn from the run's key, which is destroyed with the run; across sites the aggregator draws it and is "
    how += "trusted with that, each site learns its own clients' part, and whoever carries messages sees who is asked"
    return replace(row, enforced_by=how)


def _by_parts(plan: Plan, trust: Trust, adversary: Adversary) -> list[Assumption]:
    """What stands in place of a declaration where the clients add the noise, and what is declared even so."""
    if isinstance(plan.method, DpSgd) and not plan.method.network.together:
        return []  # it runs as without: nobody waits, and nothing is added up by parts
    sizes = sorted(set(cohorts(plan.method, plan.data, plan.target)))
    local = isinstance(plan.method, DpSgd)
    rows = [] if local else [_share_row(trust, sizes)]
    least = _range(tuple(float(trust.least(size)) for size in sizes))
    refused = "a round with fewer is refused, and its charge kept"
    rows.append(Assumption("answers to a round", f"at least {least} of {_range(tuple(map(float, sizes)))}", refused))
    if not local and trust.dropouts:
        why = "declared: who is missing depends on no record, no model, no noise and not on the order of the rounds"
        rows.append(Assumption("clients are missing by chance", f"at most {trust.dropouts} a round", why))
    if adversary == "server-with-secure-aggregation":
        rows.append(_sums_row(trust))
        if not local:
            why = "declared: they may tell the server all they know; a site that does is all of its clients"
            rows.append(Assumption("colluding clients", f"at most {trust.colluders} a round", why))
    if trust.key_holder == "third-party" and adversary != "server":  # that one sees more than the holder could tell
        why = "declared: it sees every sum and who is in it, tells the server no more than that, and others nothing"
        rows.append(Assumption("the key holder is trusted", "a third party, no client", why))
    if adversary == "curious-client":
        if not local:
            rows.append(_sent_row(plan, trust))
            if trust.key_holder == "clients":
                why = "declared: how single messages were rounded lies below the encryption's own noise, unproved"
                rows.append(Assumption("an opened ciphertext shows its sum alone", "declared", why))
        why = "declared: so many clients, and no more, put together what they see"
        rows.append(Assumption("clients of one site", f"at most {trust.hand}", why))
    return rows


def _share_row(trust: Trust, sizes: Sequence[int]) -> Assumption:
    honest = _range(tuple(float(trust.honest(size)) for size in sizes))
    value = f"the planned variance over {honest} honest clients that answer"
    how = "drawn at the client and added in whole numbers before anything leaves it; across sites each enforces its "
    how += "own clients' shares, and that there are so many others who add theirs is declared"
    return Assumption("every client adds its share of the noise", value, how)


def _sums_row(trust: Trust) -> Assumption:
    name = "the server learns sums only"
    match trust.server:
        case "secure-aggregation" if trust.identities is not None:
            how = "masks that cancel in the sum alone, also for a server that lies about who is there: clients sign by "
            how += "identity keys that their sites vouch for, and open no sum of fewer answers than stated here"
            return Assumption(name, "secure aggregation, signed", how)
        case "secure-aggregation":
            how = "masks that cancel in the sum alone, for a server that keeps to the protocol (one that lies: where "
            how += "clients have identity keys); the clients open no sum of fewer answers than stated here; "
            how += "the chance that the ring of masks betrays more, below 2^-40 a round, is in delta"
            return Assumption(name, "secure aggregation", how)
        case "homomorphic" if trust.key_holder == "clients":
            how = "the server adds what it cannot open: the clients hold the decryption key, and give it to nobody"
            return Assumption(name, "homomorphic encryption", how)
        case "homomorphic":
            how = "the server adds what it cannot open: a third party holds the decryption key, and opens sums alone"
            return Assumption(name, "homomorphic encryption", how)
        case _:
            return Assumption(name, "declared", "declared: this run added up in the open")


def _sent_row(plan: Plan, trust: Trust) -> Assumption:
    name = "it is sent a model only when it takes part"
    if isinstance(plan.method, Hidden) and (plan.deal == "records" or trust.key_holder == "clients"):
        return Assumption(name, "not used", "every model is counted as seen")
    if isinstance(plan.method, Hidden):
        return Assumption(name, "declared", "declared: so in this process")
    return Assumption(name, "not used", "every model is counted as seen")


def _common(plan: Plan) -> list[Assumption]:
    data = plan.data
    shape = f"{data.records} records, {data.clients} clients of {data.smallest_client} to {data.largest_client}"
    if plan.canaries is not None:
        shape += f"; {plan.canaries} records and features are canaries'"
    source = (
        "a seed that the study names: anyone can take the noise off again"
        if plan.seeded
        else "a stream cipher keyed by the operating system's entropy; each round's noise is drawn once"
    )
    return [
        Assumption("the data's shape is public", shape, "declared: counts and sizes are in the plan"),
        *_placed(plan),
        Assumption("feature bound", f"{data.bound:.12g}", "every row is cut to it when the data are read"),
        Assumption("randomness", "256-bit key", source),
        Assumption(
            "noise grid", f"2^{plan.grid}", "state and noise are whole multiples; its share is in epsilon and delta"
        ),
    ]


def _placed(plan: Plan) -> list[Assumption]:
    """What else says who holds which record, and what became of rows with missing values; row numbers say nothing."""
    rows = []
    name = "who holds which record is public"
    if plan.places == "client column":
        how = "declared: the client column is public, and so is which rows name no client; those take no part"
        rows.append(Assumption(name, "a column of the data", how))
    elif plan.places == "file names":
        rows.append(Assumption(name, "a file for each client", "declared: each file's name and number of rows"))
    elif plan.told_by_places:
        why = "NOT MET: labels decide it, and the records are not declared public, so no number of this run holds"
        rows.append(Assumption(name, "dealt by label", why))
    elif plan.places == "labels":
        why = "declared: labels decide it, and the records are public; for private records no number of this run holds"
        rows.append(Assumption(name, "dealt by label", why))
    if plan.blank_rows:
        how = "it keeps its place as a blank record, whose gradient counts as zero: that it was dropped is protected "
        how += "like any other value, and changes no size and nobody else's place"
        rows.append(Assumption("a dropped row (missing value)", "contributes zero", how))
    return rows


def _records(plan: Plan) -> list[Assumption]:
    run = plan.run
    once = "at most one round of each pass" if run.rounds > 1 else "every round"
    return [
        Assumption(
            "gradient bound", f"{run.lipschitz:.12g}", "every record's gradient is clipped to it before it is averaged"
        ),
        Assumption("a unit takes part in", once, "the rounds are slices of one permutation"),
        Assumption(
            "fixed divisor", f"{_range(run.batch)} units", "averages divide by the planned batch, whoever answers"
        ),
    ]


def _noise(plan: Plan) -> list[Assumption]:
    run = plan.run
    law = "normal" if run.noise == "gaussian" else "Laplace"
    how = "drawn for every round by the run" if plan.trust is None else "planned; made up by the clients' shares"
    return [Assumption(f"noise per unit ({law})", f"{_range(run.noise_std)}", how)]


def _steps(plan: Plan) -> list[Assumption]:
    run = plan.run
    if run.smoothness is None or not run.convex:
        return [Assumption("convexity", "not used", "only bounds that do without it are offered")]
    largest = float(np.max(per_round(run.step_size, run)))
    limit = f"{largest:.6g} <= {2 / run.smoothness:.6g}" if largest <= 2 / run.smoothness else f"{largest:.6g}"
    held = "checked when the plan was made" if largest <= 2 / run.smoothness else "not met: the growth is charged"
    rows = [
        Assumption("step_size <= 2/smoothness", limit, held),
        Assumption("smoothness", f"{run.smoothness:.12g}", "derived from the loss and the feature bound"),
    ]
    if run.strong_convexity:
        rows.append(Assumption("strong convexity", f"{run.strong_convexity:.12g}", "the l2 term of the loss"))
    if run.diameter is not None:
        rows.append(Assumption("diameter", f"{run.diameter:.12g}", "the model is projected before every step"))
    return rows


def _hiding(plan: Plan) -> list[Assumption]:
    rows = [
        Assumption(
            "intermediate models stay hidden",
            f"{plan.run.total} rounds",
            "they are kept in memory and in private checkpoints only; whoever copies those voids it",
        )
    ]
    rows += _order(plan)
    if plan.run.stopping == "random":
        rows.append(Assumption("random stopping", "uniform", "drawn from the run's key, never written down"))
    return rows


def _order(plan: Plan) -> list[Assumption]:
    if plan.run.order != "secret":
        return []
    how = "drawn from the run's key, never written down"
    return [Assumption("secret order", f"{plan.run.rounds} rounds a pass", how)]


def _observer(plan: Plan, adversary: Adversary) -> list[Assumption]:
    match adversary:
        case "final-model" | "every-model":
            return [Assumption("the server is trusted", "declared", "declared: it sees more than this observer")]
        case "curious-client":
            held = plan.participation.largest_client
            return [
                Assumption("a single client, not the victim's", f"at most {held} units", "the plan's data shape"),
                Assumption("it is sent a model only when it takes part", "declared", "declared: so in this process"),
                Assumption("the server is trusted", "declared", "declared: it sees more than this observer"),
            ]
        case "server-with-secure-aggregation":
            return [
                Assumption(
                    "the server learns sums only", "declared", "declared: this run did not use secure aggregation"
                ),
                Assumption("every client adds its share of the noise", "no dropouts, no colluders", "declared"),
            ]
        case _:
            return [Assumption("every client adds its share of the noise", "before it sends", "declared")]


def _range(values: float | tuple[float, ...]) -> str:
    numbers = np.atleast_1d(np.asarray(values, dtype=np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"

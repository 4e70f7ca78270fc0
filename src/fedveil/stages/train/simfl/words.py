"""SimFL in words: what its guarantee assumes, and what a reader should know."""

from collections.abc import Sequence

from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.base import Setup
from fedveil.stages.train.share_words import Row
from fedveil.stages.train.simfl.method import SimFL, named


def assumption_rows(method: SimFL, adversary: Adversary, setup: Setup) -> Sequence[Row]:
    """Return the assumptions: clipping, noise, sampling, and what this observer has seen."""
    divisor = f"{method.divisor(setup.data):.12g} records"
    everyone = "drawn for every party and round, also when none of its records joins"
    rows = [
        ("gradient bound", f"{method.clip:.12g}", "every record's gradient is clipped to it before it is added"),
        ("fixed divisor", divisor, "sums divide by it, however many records join"),
        ("noise of a party's sum", f"{method.noise_std:.12g}", everyone),
    ]
    if method.rate < 1:
        how = "drawn by the party from the run's key, never told to anybody"
        rows.append(("secret records", f"{method.rate:.6g} of them, poisson", how))
    return [*rows, *_observer_rows(method, adversary, setup.data.clients)]


def _observer_rows(method: SimFL, adversary: Adversary, parties: int) -> list[Row]:
    honest = ("every party adds its noise", "no colluders", "declared: so in this process")
    match adversary:
        case "curious-client":
            turns = "party k leads rounds k, k + parties, ..."
            return [*((named(g), method.received(g[0], parties), turns) for g in method.groups(parties)), honest]
        case "server":
            note = "there is none: this is the guarantee against whoever reads every message between the parties"
            return [("no server", "declared", note)]
        case "server-with-secure-aggregation":
            note = "there is none: this is the guarantee against whoever learns the sum of every round, no more"
            return [("no server", "declared", note), honest]
        case _:
            return [("messages between parties stay between them", "declared", "declared"), honest]


def fact_rows(method: SimFL, setup: Setup) -> Sequence[tuple[str, str]]:
    """Return facts about turns, steps and noise."""
    parties = setup.data.clients
    joined = "all" if method.rate == 1 else f"{100 * method.rate:.4g}% of the"
    return [
        ("server", "none: the parties lead in turn"),
        ("rounds", f"{method.rounds:,}, each party leads {method.leads(parties - 1, parties):,} or one more"),
        ("a round uses", f"{joined} records of {parties:,} parties"),
        ("step", f"{method.step_size:.4g}, momentum {method.momentum:.4g}"),
        ("noise multiplier of a party", f"{method.noise_multiplier:.4g}"),
    ]

"""A regulator's questions, answered from the records of one run.

The points are those of Near, Darais, Lefkovitz and Howarth, "Guidelines for Evaluating Differential Privacy
Guarantees" (NIST Special Publication 800-226); the answers are worked out from plan, certificate and metrics, and say
so where only people can answer.
"""

from fedveil.algorithms.registry import title_of
from fedveil.plan import Plan
from fedveil.report import words
from fedveil.report.regulator.about import About
from fedveil.report.regulator.attacker import Gain
from fedveil.report.run_sections import is_declared
from fedveil.report.view import View
from fedveil.target import Target

_GROUP = "Two records of one person have twice the epsilon."


def answers(view: View, about: About, found: Gain) -> list[tuple[str, str]]:
    """Return each point with its answer, in the order in which the guidelines build on each other."""
    return [
        ("Privacy parameters", _parameters(view, found)),
        ("Unit of privacy and neighbours", unit_text(view.plan.target)),
        ("Trust model", view.plan.trust.told),
        ("Algorithm and its correctness", _correctness(view)),
        ("Arithmetic and side channels", side_channels(view.plan)),
        ("Composition over releases", composition_text()),
        ("Utility", utility_text(view)),
        ("Bias", _bias(view)),
        ("Security and access control", _people(about, "access", "Who can read the raw data is not decided here.")),
        ("Data collection", _people(about, "collection", "The promise begins when the records are read.")),
        ("What is not promised", not_promised(view)),
    ]


def _parameters(view: View, found: Gain) -> str:
    seen = view.target
    if seen.epsilon is None:
        return f"None: nothing is promised, because {view.plan.exposed_by or 'no bound applies'}."
    text = f"Epsilon {words.up(seen.epsilon)} at delta {words.plain(seen.delta, 12)}, against "
    text += words.SEEN_BY[seen.adversary]
    if found.mu is not None:
        text += f"; at every delta listed no worse than a Gaussian mechanism of mu {words.up(found.mu)}"
    others = [s for s in view.observers if s is not seen]
    listed = "; ".join(f"{words.SEEN_BY[s.adversary]}: {words.epsilon_text(s.epsilon)}" for s in others)
    return f"{text}. The other observers: {listed}." if others else f"{text}."


def unit_text(target: Target) -> str:
    """Return what is protected, and between which two data sets nobody can tell."""
    what = words.secret(target.unit, target.neighbours)
    sizes = "The number of units is public in both."
    rest = "All records of a client count as one." if target.unit == "client" else _GROUP
    return f"One {target.unit} ({target.neighbours}): nobody can tell {what}. {sizes} {rest}"


def _correctness(view: View) -> str:
    plan, seen = view.plan, view.target
    text = f"{title_of(plan.method.kind).capitalize()}; proved by the bound {seen.certified_by or 'none'}. "
    text += "Training and accounting read one frozen plan, numbers are rounded to the cautious side, and `fedveil "
    text += "certify` works the certificate out again without data or training code. "
    audit = view.audit
    if audit is None:
        return f"{text}This run was not attacked; `fedveil audit` does that."
    return text + ("Attacks BROKE the promise." if audit.broken else "Attacks on this run did not contradict it.")


def side_channels(plan: Plan) -> str:
    """Return how floating point, randomness and time are dealt with."""
    source = (
        "a seed that is known, so nothing is promised" if plan.seeded else "a stream cipher with a 256-bit secret key"
    )
    return (
        f"Noise is drawn on a grid of step 2^{plan.grid} and added in whole numbers, so its last bits tell nothing; "
        f"what the grid costs is in epsilon and delta. Randomness comes from {source}. Running times are not protected."
    )


def composition_text() -> str:
    """Return how runs on the same data add up."""
    return (
        "All rounds, and what was learned before training, are composed into the one certificate. Runs on the same "
        "data are added up in the ledger of the data set, which refuses a run beyond the budget; releases outside of "
        "it are not counted."
    )


def utility_text(view: View) -> str:
    """Return how good the model is, beside the best constant answer."""
    found = view.utility
    if found is None:
        return _counted(view) or "Not measured: no test records were set aside."
    score = next(((k, v) for k, v in found.scores[0].values.items() if k in ("accuracy", "mae")), None)
    text = "" if score is None else f"{score[0]} {words.plain(score[1])} on {found.records:,} held-out records"
    if score is not None and found.constant is not None and score[0] in found.constant.values:
        text += f"; {found.constant.name} gets {words.plain(found.constant.values[score[0]])}"
    text = text or f"Measured on {found.records:,} held-out records"
    return f"{text}. {found.useless}" if found.useless else f"{text}."


def _counted(view: View) -> str | None:
    """What noisy counts say, with intervals; None where nothing was counted."""
    found = view.counted
    if found is None:
        return None
    known = [one for one in found.estimates if one.value is not None and one.interval is not None][:3]
    told = "; ".join(
        f"{one.name} {words.plain(one.value or 0.0)} ({words.plain(one.interval[0])} to {words.plain(one.interval[1])})"
        for one in known
        if one.interval is not None
    )
    what = f"{found.units:,} clients" if found.unit == "client" else f"{found.units:,} {found.on} records"
    text = f"Measured privately on {what}, within the same promise: {told or 'nothing that noise leaves standing'}."
    return f"{text} {found.unclear}" if found.unclear else text


def _bias(view: View) -> str:
    found = view.utility
    text = "Noise and clipping hurt rare groups most. "
    if view.counted is not None and any(one.name.startswith("recall") for one in view.counted.estimates):
        return text + "The report lists recall and precision by class, from noisy counts, with intervals."
    if found is None or not (found.per_client or found.quality):
        return text + "This run measured nothing by group."
    return (
        text + "The report lists recall and precision by class and the score by client, as far as they were measured."
    )


def _people(about: About, name: str, otherwise: str) -> str:
    return about.said(name) if getattr(about, name) else f"To be answered by people. {otherwise}"


def not_promised(view: View) -> str:
    """Return what a reader might believe and must not."""
    declared = sum(1 for row in view.target.assumptions if is_declared(row))
    return (
        "What the records have in common is learned, on purpose. Groups of people have a multiple of epsilon. "
        f"{declared} assumptions of the main promise are declared and kept by people, and the quantities listed as "
        "unprotected are public."
    )

"""A regulator's questions, answered from the records of one run.

The points are those of Near, Darais, Lefkovitz and Howarth, "Guidelines for Evaluating Differential Privacy
Guarantees" (NIST Special Publication 800-226); the answers are worked out from plan, certificate and metrics, and say
so where only people can answer.
"""

from fedveil.planning.plan import Plan
from fedveil.privacy.target import Target
from fedveil.report import words
from fedveil.report.regulator.about import About
from fedveil.report.regulator.exposure import Gain
from fedveil.report.run_sections import is_declared
from fedveil.report.view import View
from fedveil.stages.train.registry import title_of

_GROUP = "Two records of one person have twice the epsilon."


def answers(view: View, about: About, gained: Gain) -> list[tuple[str, str]]:
    """Return each point with its answer, in the order in which the guidelines build on each other."""
    return [
        ("Privacy parameters", _parameters(view, gained)),
        ("Unit of privacy and neighbours", unit_text(view.plan.target)),
        ("Trust model", view.plan.trust.sentences),
        ("Algorithm and its correctness", _correctness(view)),
        ("Arithmetic and side channels", side_channels(view.plan)),
        ("Composition over releases", composition_text()),
        ("Utility", utility_text(view)),
        ("Bias", _bias(view)),
        ("Security and access control", _people(about, "access", "Who can read the raw data is not decided here.")),
        ("Data collection", _people(about, "collection", "The promise begins when the records are read.")),
        ("What is not promised", not_promised(view)),
    ]


def _parameters(view: View, gained: Gain) -> str:
    seen = view.target
    if seen.epsilon is None:
        return f"None: nothing is promised, because {view.plan.exposed_by or 'no bound applies'}."
    text = f"Epsilon {words.up(seen.epsilon)} at delta {words.nearest(seen.delta, 12)}, against "
    text += words.SEEN_BY[seen.adversary]
    if gained.mu is not None:
        text += f"; at every delta listed no worse than a Gaussian mechanism of mu {words.up(gained.mu)}"
    others = [s for s in view.observers if s is not seen]
    listed = "; ".join(f"{words.SEEN_BY[s.adversary]}: {words.epsilon_text(s.epsilon)}" for s in others)
    return f"{text}. The other observers: {listed}." if others else f"{text}."


def unit_text(target: Target) -> str:
    """Return what is protected, and between which two data sets nobody can tell."""
    what = words.secret(target.unit, target.neighbours)
    sizes = "The number of units is public in both."
    rest = "All records of a client count as one." if target.unit == "client" else _GROUP
    if target.unit == "person":
        rest = f"At most {target.largest_person} records of a person are used, and they are protected together."
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
    utility = view.utility
    if utility is None:
        return _noisy_counts(view) or "Not measured: no test records were set aside."
    score = next(((k, v) for k, v in utility.scores[0].values.items() if k in ("accuracy", "mae")), None)
    text = "" if score is None else f"{score[0]} {words.nearest(score[1])} on {utility.records:,} held-out records"
    if score is not None and utility.constant is not None and score[0] in utility.constant.values:
        text += f"; {utility.constant.name} gets {words.nearest(utility.constant.values[score[0]])}"
    text = text or f"Measured on {utility.records:,} held-out records"
    return f"{text}. {utility.useless}" if utility.useless else f"{text}."


def _noisy_counts(view: View) -> str | None:
    """What noisy counts say, with intervals; None where nothing was counted."""
    evaluation = view.counted
    if evaluation is None:
        return None
    known = [one for one in evaluation.estimates if one.value is not None and one.interval is not None][:3]
    estimates = "; ".join(
        f"{one.name} {words.nearest(one.value or 0.0)} ({' to '.join(words.nearest(end) for end in one.interval)})"
        for one in known
        if one.interval is not None
    )
    what = (
        f"{evaluation.units:,} clients"
        if evaluation.unit == "client"
        else f"{evaluation.units:,} {evaluation.on} records"
    )
    text = (
        f"Measured privately on {what}, within the same promise: {estimates or 'nothing that noise leaves standing'}."
    )
    return f"{text} {evaluation.unclear}" if evaluation.unclear else text


def _bias(view: View) -> str:
    utility = view.utility
    text = "Noise and clipping hurt rare groups most. "
    if view.counted is not None and any(one.name.startswith("recall") for one in view.counted.estimates):
        return text + "The report lists recall and precision by class, from noisy counts, with intervals."
    if utility is None or not (utility.per_client or utility.quality):
        return text + "This run measured nothing by group."
    return (
        text + "The report lists recall and precision by class and the score by client, as far as they were measured."
    )


def _people(about: About, name: str, otherwise: str) -> str:
    return about.answer(name) if getattr(about, name) else f"To be answered by people. {otherwise}"


def not_promised(view: View) -> str:
    """Return what a reader might believe and must not."""
    declared = sum(1 for row in view.target.assumptions if is_declared(row))
    return (
        "What the records have in common is learned, on purpose. Groups of people have a multiple of epsilon. "
        f"{declared} assumptions of the main promise are declared and kept by people, and the quantities listed as "
        "unprotected are public."
    )

"""What the records of a run answer of other frameworks: EDPB Opinion 28/2024, the AI Act's Annex IV, ISO/IEC 20889.

None of these is a legal opinion. A row states what follows from plan, certificate, metrics and audit; where only people
can answer, it says so, and whose answer it is.
"""

from fedveil.report import words
from fedveil.report.regulator.about import About
from fedveil.report.regulator.exposure import Gain
from fedveil.report.view import View
from fedveil.stages.train.registry import title_of

Rows = list[tuple[str, str]]
_NOISE = "contributions are clipped, noise is added before anybody sees a sum, and the accountant charges all of it."
_PEOPLE = "For people to answer: this is not in the records of a run."


def anonymity_rows(view: View, about: About, gained: Gain) -> Rows:
    """Return the points of EDPB Opinion 28/2024 on when a model may be called anonymous, as far as a run answers."""
    seen = view.target
    if seen.epsilon is None or not view.private:
        likelihood = "Nothing is promised, so the model must be treated as personal data."
    else:
        likelihood = (
            f"At most {words.percent(words.right_guesses(seen.epsilon, seen.delta))} of guesses whether one "
            f"{view.plan.target.unit} was used are right, from even odds, by any means and whatever else is known; one "
            f"secret bit of a record is guessed right with at most {words.percent(gained.bit)}. Whether that is "
            "insignificant is for the controller to argue and for the authority to judge."
        )
    return [
        ("Likelihood of extracting or obtaining personal data", likelihood),
        ("Means reasonably likely to be used", "The promise bounds every observer, whatever it knows and computes."),
        ("Selection and preparation of sources", about.answer("collection")),
        ("Privacy measures in training", f"{title_of(view.plan.method.kind).capitalize()}: {_NOISE}"),
        ("Measures on outputs", "None: the promise is about the model itself, so its outputs need none."),
        ("Resistance to attacks", _attacks(view)),
        ("Documentation", "Plan, ledger, certificate and report; fedveil certify recomputes every number."),
        ("Impact assessment and advice of the officer", _PEOPLE),
    ]


def technical_rows(view: View, about: About) -> Rows:
    """Return the items of Annex IV of Regulation (EU) 2024/1689 that a run can fill, and those it cannot."""
    plan = view.plan
    scored = "see How well it does" if view.utility is not None or view.counted is not None else "not measured"
    return [
        ("1. General description", f"{about.answer('intended_use')} Version: plan {view.plan_hash[:16]}."),
        ("2(a) Methods of development", f"{title_of(plan.method.kind).capitalize()}, as the plan states it."),
        ("2(b) Design and assumptions", f"{len(view.target.assumptions)} assumptions, each with what keeps it."),
        (
            "2(d) Data requirements",
            f"{plan.data.records:,} records of {plan.data.holders}. {about.answer('description')}",
        ),
        ("2(e) Human oversight", _PEOPLE),
        ("2(g) Validation and testing", f"{scored}; attacks: {_attacks(view)}"),
        ("2(h) Cybersecurity", "Signed envelopes between sites; what is not protected is listed in this card."),
        ("3. Monitoring and limits", "Accuracy by class is in the report; what the promise does not say is listed."),
        ("4. Appropriateness of metrics", _PEOPLE),
        ("5. Risk management", _PEOPLE),
        ("6. Changes over the lifecycle", view.total),
        ("7 to 9. Standards, declaration, post-market plan", _PEOPLE),
    ]


def terms_rows(view: View) -> Rows:
    """Return this run in the terms of ISO/IEC 20889, Privacy enhancing data de-identification terminology."""
    server = view.observer("server")
    local = server is not None and server.epsilon is not None
    model = "in the local model, since every update carries its own noise" if local else "in the server model"
    return [
        ("Formal privacy measurement model", f"differential privacy {model}"),
        ("De-identification technique", "randomisation: noise addition to clipped sums"),
        ("Singling out, linking, inference", "bounded alike: by the epsilon and delta of the certificate"),
        ("Data principal", f"the holder of one {view.plan.target.unit}"),
        ("Privacy guarantee", words.epsilon_text(view.target.epsilon)),
    ]


def _attacks(view: View) -> str:
    audit = view.audit
    if audit is None:
        return "not attacked yet; fedveil audit DIR does it."
    return "attacked, and the promise was BROKEN." if audit.broken else "attacked; nothing contradicts the promise."

"""What people read of a job: how it is called, what each observer sees of it, and what leaves it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fedveil.planning.plan import AnyPlan, Plan
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.measured.plan import ASK, EVALUATION, GENERATOR, PROFILE, MeasuredPlan
from fedveil.stages.sums import FILE as PREPARATION

MODEL: Final = "model.npz"
ROWS: Final = "synthetic.csv"  # drawn from a generator
SEES: Final[Mapping[Adversary, str]] = {
    "final-model": "the released model",
    "curious-client": "the models it was sent, its own noise, and the released model",
    "every-model": "the model after every round",
    "server-with-secure-aggregation": "the noised sum of every round, and who took part in it",
    "server": "every client's own noised update",
}


def sees(what: str) -> Mapping[Adversary, str]:
    """Return in words what each observer sees of a job that releases ``what``.

    >>> sees("the profile")["every-model"]
    'the profile: there is nothing else to see'
    """
    return {
        "final-model": what,
        "curious-client": f"{what}, and its own part of the noise",
        "every-model": f"{what}: there is nothing else to see",
        "server-with-secure-aggregation": f"the noised sums from which {what} is made",
        "server": "every unit's own part of the sums, with its part of the noise",
    }


def _nothing(digests: Mapping[str, str], covered: bool) -> list[dict[str, Any]]:
    """Return no rows: nothing leaves besides the result."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """``kind``: what people call the job; ``what``: what leaves it; ``besides``: what else does, by its digest.

    ``resume``: how a job that did not finish goes on.
    """

    kind: str
    what: str
    sees: Mapping[Adversary, str]
    resume: str = "go on with --resume"
    besides: Callable[[Mapping[str, str], bool], list[dict[str, Any]]]


_GENERATOR: Final = {
    **sees("the generator"),
    "final-model": "the generator, and as many rows drawn from it as it likes",
    "server": "every client's own part of the sums, with its part of the noise",
}
_MEASURED: Final = {
    PROFILE: ("a profile", "the profile", sees("the profile")),
    GENERATOR: ("a generator", "the generator", _GENERATOR),
    ASK: ("answers to questions", "the answers", sees("the answers")),
    EVALUATION: ("an evaluation", "the evaluation of a model", sees("the evaluation")),
}
_DRAWN: Final = {
    GENERATOR: lambda digests, covered: [
        {"what": "rows drawn from it, as many as wanted", "file": ROWS, "covered": covered}
    ]
}
_OTHER: Final = ("noisy sums", "the result", sees("the result"))


def words_of(plan: AnyPlan) -> Words:
    """Return the words of a plan's job."""
    if isinstance(plan, MeasuredPlan):
        kind, what, seen = _MEASURED.get(plan.stage, _OTHER)
        return Words(kind=kind, what=what, sees=seen, besides=_DRAWN.get(plan.stage, _nothing))
    return Words(
        kind="a run",
        what=_model_words(plan),
        sees=SEES,
        resume="go on with: fedveil run --resume",
        besides=lambda digests, covered: _released_besides(plan, digests, covered),
    )


def released_rows(plan: AnyPlan, digests: Mapping[str, str], covered: bool) -> tuple[dict[str, Any], ...]:
    """Return everything that leaves the job, each with what is promised for it; ``digests``: SHA-256 by file."""
    words = words_of(plan)
    first = {"what": words.what, "file": plan.output, "sha256": digests[plan.output], "covered": covered}
    return (first, *words.besides(digests, covered))


def _model_words(plan: Plan) -> str:
    if plan.selection:
        return "the final model of the best trial, and which of the candidates it was"
    more = ", a generator, and rows drawn from it, as many as wanted" if plan.model.generates else ""
    return f"the final model{more}"


def _released_besides(plan: Plan, digests: Mapping[str, str], covered: bool) -> list[dict[str, Any]]:
    """Return what leaves a run besides its model."""
    rows: list[dict[str, Any]] = []
    if plan.preparation:
        what = "the learned preparation, which is part of the model"
        rows.append({"what": what, "file": PREPARATION, "sha256": digests[PREPARATION], "covered": covered})
    if plan.evaluation:
        count = plan.evaluation.shape(plan.data).records
        what = f"a private evaluation: noisy counts of {count} {plan.evaluation.records} records by their scores"
        if not plan.data.classes:
            what = f"a private evaluation: noisy sums of the errors on {count} {plan.evaluation.records} records"
        rows.append({"what": what, "file": "metrics.json", "covered": covered})
    if plan.selection.private:
        rows.append({"what": "the noisy score of the selected trial", "file": "metrics.json", "covered": covered})
    elif plan.held_out.exact:
        what = f"metrics on {plan.held_out.records} held-out records that were not declared public"
        how = "no guarantee holds for the held-out records and their clients: charged as infinite"
        note = f"computed without noise: {how}"
        rows.append({"what": what, "file": "metrics.json", "covered": False, "note": note})
    if plan.held_out.baselines:
        held = "these were declared public" if plan.origin.public else "no guarantee holds: charged as infinite"
        note = f"computed from the training records without noise; {held}"
        what = "metrics of baselines trained without privacy"
        rows.append({"what": what, "file": "metrics.json", "covered": False, "note": note})
    return rows

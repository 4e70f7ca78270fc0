"""All attacks that apply to a finished run, each next to what the run was certified for.

What is computed from the plan, the released model and the canaries' coins may be published. Membership inference and
leakage are computed from records without noise: they go into the public record only if the plan declares the training
records public; otherwise they are for the data holder only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import CHOOSING, FEWEST, MOST, runs_needed
from fedveil.audit.record import Audit
from fedveil.audit.training_log import Joined, judge_draws
from fedveil.certificate.certify import Certificate, certify_written
from fedveil.core.errors import BadValue, CannotCertify, require
from fedveil.data.canaries import Canaries
from fedveil.data.records import Records
from fedveil.jobs.attack.forgotten import forgotten_game, goes_on_from
from fedveil.jobs.attack.game import MIDDLE, Sitting, hiding_rows, played
from fedveil.jobs.attack.leakage import leakage
from fedveil.jobs.attack.membership import attacked, blanked, watched
from fedveil.jobs.attack.one_run import one_run
from fedveil.jobs.attack.releases import WIDTH, plays_torch, rows_each, view_of
from fedveil.jobs.forget import gone_from
from fedveil.jobs.local import Given, Wanted, open_any_study, records_of
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.privacy.guarantee import Adversary, finite_or_none
from fedveil.stages.train.observation import DrawnRounds, attack_view
from fedveil.version import __version__

# How many runs of the distinguishing game a plan allows within memory and time, computed beforehand.

BYTES = 2 * 10**9
NUMBERS = 2 * 10**10  # most rows times features to process, about ten minutes
_WORD = 8
_TORCH = 16  # how much longer a row takes through torch


def most_runs(plan: Plan) -> int:
    """Return how many runs on each of two data sets are possible; 0 if not even the data sets fit."""
    return _hidden(plan) if plan.method.hides else _releases(plan)


def words_of_time(plan: Plan, runs: int) -> str:
    """Return about how long so many runs take at most, in words."""
    seconds = 600 * runs * _work_of_run(plan) / NUMBERS
    return f"about {seconds:,.0f} s at most" if seconds < 120 else f"about {seconds / 60:,.0f} minutes at most"


def _work_of_run(plan: Plan) -> float:
    """Return how many numbers one run on each of the two data sets processes."""
    if not plan.method.hides:
        return NUMBERS / max(1, _releases(plan))
    run, data = plan.run, plan.data
    return 2 * (run.passes * data.records * data.features + run.total * plan.dimension)


def _hidden(plan: Plan) -> int:
    """Return the number for a hidden plan, from the memory of each run of a block.

    Kept for each run: model and noise of every round, for both data sets and once more while they are joined; the place
    of every record, its row number and norm. The largest block is the one that chooses.
    """
    run, data = plan.run, plan.data
    fixed = 4 * _WORD * data.records * data.features
    each = CHOOSING * (6 * _WORD * run.total * plan.dimension + 7 * _WORD * data.records)
    return int(min(MOST, max(0, BYTES - fixed) // each, NUMBERS // _work_of_run(plan)))


def _releases(plan: Plan) -> int:
    """Return the number for a plan that hides nothing.

    A wide problem is held in memory completely, and copied; every release of each run is kept.
    """
    method, rows = plan.method, WIDTH * rows_each(plan)
    again = view_of(plan).work(plan) * (1 if plan.model.linear else _TORCH)
    room = BYTES - 3 * _WORD * rows * WIDTH
    rounds = (
        int(np.max([p.rounds for p in method.client_settings])) if hasattr(method, "client_settings") else method.total
    )
    problems = NUMBERS // (2 * rounds * rows * WIDTH * again)
    return int(min(MOST, max(0, room) // (6 * _WORD * rounds), problems * WIDTH))


# The real sampler of a plan, drawn many times and held against the law that is accounted for.

CELLS = 2_000_000  # units times rounds that are drawn
_FEWEST, _MOST = 4, 400  # passes


def sampler_finding(plan: Plan, entropy: Entropy, *, alarm: float = 1e-6) -> Finding | None:
    """Test the draws of this plan; return None if nobody draws, or if even a few passes are too many to test.

    Nothing is measured of epsilon: draws that are not those accounted for leave the certificate without its ground.
    """
    view = attack_view(plan.method.kind)
    how = None if view is None else view.drawn(plan, entropy)
    if how is None or how.rate == 1 or how.rounds * how.units * _FEWEST > CELLS:
        return None
    passes = min(_MOST, CELLS // (how.rounds * how.units))
    order = "independent" if how.rate is None else "poisson"
    judged = judge_draws(joined_of(how, passes), order=order, rate=how.rate, alarm=alarm)  # type: ignore[arg-type]
    seen = None if view is None else view.releases
    who: Adversary = "every-model" if plan.method.hides else "server" if seen is None else seen.seen_by
    certified = promise(plan, who).epsilon if plan.private else None
    return Finding(
        attack="the draws of the sampler",
        adversary=who,
        kind="lower-bound",
        certified=certified,
        measured=0.0,
        delta=plan.target.delta,
        alarm=alarm,
        verdict=judged.verdict,
        evidence=f"{passes} passes of {how.units} units: {judged.evidence}",
        details={"tests": dict(judged.tests)},
    )


def joined_of(how: DrawnRounds, passes: int) -> Joined:
    """Return who joined which round of so many passes."""
    result = np.zeros((passes * how.rounds, how.units), dtype=np.bool_)
    for turn in range(result.shape[0]):
        result[turn, how.batch(turn)] = True
    return result.reshape(passes, how.rounds, how.units)


Watch = Callable[[str], None]
_SEARCHED = 3  # victims of a torch model, of whom each takes seconds of gradient matching


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried: runs of the distinguishing game on each data set, shadow runs; chances of false alarms.

    ``alarm`` is for each game; ``canary_alarm`` for canaries and membership, which use a single run.
    """

    runs: int = 4000
    shadows: int = 32
    processes: int = 1
    alarm: float = 1e-6
    canary_alarm: float = 0.05

    def __post_init__(self) -> None:
        require(FEWEST <= self.runs <= MOST, "runs", f"lie between {FEWEST} and {MOST}", self.runs)
        require(self.shadows == 0 or 8 <= self.shadows <= 99_999, "shadows", "be 0 or at least 8", self.shadows)
        for name in ("alarm", "canary_alarm"):
            require(0 < getattr(self, name) < 0.5, name, "lie strictly between 0 and 0.5", getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """``public``: what may be published; ``private``: what was computed from records that are not public."""

    certificate: Certificate
    public: Audit
    private: Audit | None
    skipped: tuple[str, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """All findings against the certificate."""
        return (*self.public.broken, *(self.private.broken if self.private else ()))


def audit_run(
    folder: Path,
    effort: Effort,
    entropy: Entropy,
    *,
    study: Wanted | None = None,
    data: Given = None,
    watch: Watch | None = None,
) -> Audited:
    """Attack the run in ``folder``; with its ``study`` (or ``data``) also by attacks that need records."""
    certificate = checked(folder)
    plan, tell, skipped = certificate.plan, watch or (lambda _: None), list[str]()
    findings: list[Finding] = []
    hidden_state = None
    canaries = _canaries(folder, plan, effort, tell, skipped)  # first, because it may refuse and takes no time
    tell("working out what was promised")
    runs, why = playable(plan, effort)
    skipped += [f"the distinguishing game: {why}"] if why else []
    if runs:
        how_long = words_of_time(plan, runs)
        tell(f"playing the distinguishing game, at most {runs:,} runs on each of two data sets, {how_long}")
        sitting = Sitting(processes=effort.processes, watch=tell)
        observers = [*ADVERSARIES, MIDDLE] if plan.method.hides else [view_of(plan).seen_by]
        games = played(plan, runs, entropy, observers, alarm=effort.alarm, sitting=sitting)
        findings += [finding for name, finding in games.items() if name != MIDDLE]
        hidden_state = _hiding(plan, games) if plan.method.hides else None
    if runs and goes_on_from(plan):
        findings.append(forgotten_game(plan, runs, entropy, alarm=effort.alarm, watch=tell))
    findings += canaries
    draws = sampler_finding(plan, entropy, alarm=effort.alarm)
    if draws is not None and draws.verdict == "broken":  # right draws measure no epsilon: there is nothing to say
        findings.append(draws)
    named: dict[str, Any] = {"plan": plan.hash, "run": certificate.run}
    public = Audit(**named, findings=tuple(findings), hidden_state=hidden_state)
    if study is None and data is None:
        skipped.append("membership inference and leakage need the records: give --study")
        return Audited(certificate=certificate, public=public, private=None, skipped=tuple(skipped))
    more = _with_records(plan, _records(folder, plan, study, data), effort, entropy, tell, skipped)
    if plan.origin.public:
        together = replace(public, findings=(*public.findings, *more.findings), leakage=more.leakage)
        return Audited(certificate=certificate, public=together, private=None, skipped=tuple(skipped))
    own = replace(more, plan=plan.hash, run=certificate.run)
    return Audited(certificate=certificate, public=public, private=own, skipped=tuple(skipped))


def _canaries(folder: Path, plan: Plan, effort: Effort, tell: Watch, skipped: list[str]) -> list[Finding]:
    if not plan.canaries:
        skipped.append("no canaries: add [audit] canaries = 100 to a study to audit a single run")
        return []
    tell("scoring the canaries")
    return [one_run(folder, alarm=effort.canary_alarm)]


def checked(folder: Path) -> Certificate:
    """Return the recomputed certificate of the run; refuse a run that is incomplete or was changed by hand."""
    require(folder.is_dir(), "The run", "be a folder that a run left", str(folder))
    result, changes = certify_written(folder, __version__)
    if changes:
        raise CannotCertify(f"The certificate in {folder} does not match the run's records: {'; '.join(changes)}.")
    return result


def playable(plan: Plan, effort: Effort) -> tuple[int, str]:
    """Return how many runs of the game to make, and why not as many as requested.

    The number is 0 if the game is not known or does not fit. Refuse a request for so few runs that even a perfect
    attack could not contradict what the plan promises.
    """
    unknown = _unknown(plan)
    if unknown:
        return 0, unknown
    who = plan.target.adversary if plan.method.hides else view_of(plan).seen_by
    needed = runs_needed(claim_of_plan(plan, who), effort.alarm)
    if needed > MOST:  # also if nothing is promised: then there is nothing to contradict, only to measure
        needed = FEWEST
    hint = f"With fewer not even a perfect attack could contradict the promise at false alarm {effort.alarm:g}."
    require(effort.runs >= needed, "runs", f"be at least {needed:.0f}", effort.runs, hint)
    fitting = most_runs(plan)
    if fitting < needed:
        return 0, f"the plan is too large for the {needed:,.0f} runs it takes, {fitting:,} fit"
    if fitting < effort.runs:
        return fitting, f"{fitting:,} runs instead of {effort.runs:,}, as the plan is large"
    return effort.runs, ""


def _unknown(plan: Plan) -> str:
    """Return why the game is not known for a plan; an empty string if it is known."""
    kind, method = plan.method.kind, plan.method
    if plan.selection:
        return "the released model is the best of several trials, and the game plays one run of a plan"
    if attack_view(kind) is None:
        return f"it is not known for {kind} training"
    if not plan.model.linear and not plays_torch(plan):
        return f"for {kind} it knows losses of linear scores, not torch models"
    if method.hides:
        return "" if plan.run.stopping == "end" else "it is not known for random stopping"
    if method.noiseless:
        return "nothing is hidden where no noise is added"
    if plan.model.linear and plan.model.loss.outputs != 1:
        return f"for {kind} it knows losses of one score, not {plan.model.kind}"
    if getattr(method, "sampling", "") == "fixed-size":
        return "it is not known for batches or cohorts of fixed size"
    return "" if getattr(method, "clipping", "individual") == "individual" else "it is not known for clipped batches"


def _hiding(plan: Plan, games: Mapping[str, Finding]) -> dict[str, Any]:
    rows = hiding_rows(plan, games)
    shown = [
        {"sees": sees, "certified": finite_or_none(row.certified), "measured": finite_or_none(row.measured)}
        for sees, row in rows
    ]
    return {"runs": max(row.details["runs"] for _, row in rows), "delta": plan.target.delta, "rows": shown}


def _records(folder: Path, plan: Plan, study: Wanted | None, data: Given) -> Records:
    """Return the records of the run as it trained on them, with every canary out, from its study or given as rows.

    Rows follow from what the run learned about its columns, where it learned that. What is computed from them is
    published if the run's plan says that its records are public; a study of other records must not be published on
    that basis.
    """
    if study is None:
        records: Records = data[0] if isinstance(data, tuple) else data
    else:
        found, opened = open_any_study(study, data)
        records = blanked(records_of(folder, opened).train, gone_from(folder))
        hint = "Give the study of this very run."
        same = found.data.public == plan.origin.public
        require(same, "data.public", f"be {plan.origin.public} as in the run", found.data.public, hint)
    if plan.canaries:
        columns, target = plan.real_features < plan.data.features, plan.target
        slots = Canaries(count=plan.canaries, neighbours=target.neighbours, unit=target.unit, columns=columns)
        records = slots.blank(records)
    require(records.shape == plan.data, "The study's records", f"be those of the run, {plan.data}", records.shape)
    return records


def _with_records(
    plan: Plan, records: Records, effort: Effort, entropy: Entropy, tell: Watch, skipped: list[str]
) -> Audit:
    """Run membership inference and leakage; the findings are as private as the records."""
    findings: tuple[Finding, ...] = ()
    shown = None
    try:
        if effort.shadows:
            shadows = watched(plan, records, effort.shadows + 1, entropy, tell)
            findings = attacked(plan, shadows, alarm=effort.canary_alarm)
    except BadValue as error:
        skipped.append(f"membership inference: {error}")
    try:
        if plan.origin.public:
            victims = 10 if plan.model.linear else _SEARCHED
            shown = leakage(plan, records, entropy, public=True, victims=victims, watch=tell)
        else:
            skipped.append("leakage shows records as they are: only for studies that declare them public")
    except BadValue as error:
        skipped.append(f"leakage: {error}")
    return Audit(plan=plan.hash, run="-", findings=findings, leakage=shown)

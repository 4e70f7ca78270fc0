"""All attacks on a finished run that apply to it, each beside what the run was certified for.

What is computed from the plan, the released model and the canaries' coins may be published. Membership inference and
leakage are computed from records without noise: they go into the public record only where the plan declares the
training records public; otherwise they are the data holder's alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.attack.game import game, what_hiding_buys
from fedveil.attack.leakage import LINEAR, leakage
from fedveil.attack.membership import attacked, watched
from fedveil.attack.one_run import one_run
from fedveil.attack.releases import SEEN_BY
from fedveil.audit.claim import claim_of_plan
from fedveil.audit.finding import Finding
from fedveil.audit.game import runs_needed
from fedveil.audit.record import Audit
from fedveil.certify import Certificate, certify, differences
from fedveil.checks import require
from fedveil.data.records import Records
from fedveil.errors import BadValue, CannotCertify
from fedveil.guarantee import finite_or_none
from fedveil.job import Given, Wanted, open_study
from fedveil.plan import Plan
from fedveil.train.entropy import Entropy
from fedveil.version import __version__

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is tried: runs of the distinguishing game on each data set, shadow runs; chances of false alarms.

    ``alarm`` is for each game; ``canary_alarm`` for canaries and membership, of which there is one run's worth only.
    """

    runs: int = 4000
    shadows: int = 32
    alarm: float = 1e-6
    canary_alarm: float = 0.05

    def __post_init__(self) -> None:
        require(40 <= self.runs <= 10_000_000, "runs", "lie between 40 and 10000000", self.runs)
        require(self.shadows == 0 or 8 <= self.shadows <= 99_999, "shadows", "be 0 or at least 8", self.shadows)
        for name in ("alarm", "canary_alarm"):
            require(0 < getattr(self, name) < 0.5, name, "lie strictly between 0 and .5", getattr(self, name))


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
    """Attack the run that ``folder`` holds; with its ``study`` (or ``data``) also by what needs records."""
    certificate = checked(folder)
    plan, tell, skipped = certificate.plan, watch or (lambda _: None), list[str]()
    findings: list[Finding] = []
    hidden_state = None
    if _playable(plan):
        _check_runs(plan, effort)
        tell(f"playing the distinguishing game, {effort.runs:,} runs on each of two data sets")
        findings += game(plan, effort.runs, entropy, alarm=effort.alarm)
        if plan.method.kind == "hidden" and plan.run.stopping == "end":
            tell("measuring what hiding buys")
            hidden_state = _hiding(plan, effort, entropy)
    else:
        skipped.append("the distinguishing game knows linear models of hidden, dpsgd and fedavg training")
    if getattr(plan, "canaries", None) is not None:
        tell("scoring the canaries")
        findings.append(one_run(folder, alarm=effort.canary_alarm))
    else:
        skipped.append("no canaries: add [audit] canaries = 100 to a study to audit a single run")
    named: dict[str, Any] = {"plan": plan.hash, "run": certificate.run}
    public = Audit(**named, findings=tuple(findings), hidden_state=hidden_state)
    if study is None and data is None:
        skipped.append("membership inference and leakage need the records: give --study")
        return Audited(certificate=certificate, public=public, private=None, skipped=tuple(skipped))
    more = _with_records(plan, _records(plan, study, data), effort, entropy, tell, skipped)
    if plan.training_public:
        together = replace(public, findings=(*public.findings, *more.findings), leakage=more.leakage)
        return Audited(certificate=certificate, public=together, private=None, skipped=tuple(skipped))
    own = replace(more, plan=plan.hash, run=certificate.run)
    return Audited(certificate=certificate, public=public, private=own, skipped=tuple(skipped))


def checked(folder: Path) -> Certificate:
    """The run's certificate, worked out anew; refuses a run that is incomplete or was changed by hand."""
    require(folder.is_dir(), "The run", "be a folder that a run left", str(folder))
    found = certify(folder, __version__)
    try:
        stated = (folder / "certificate.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"The run's record certificate.json must be readable: {error}.") from error
    changes = [change for change in differences(found, stated) if change != "version differs"]
    if changes:
        raise CannotCertify(f"The certificate in {folder} does not match the run's records: {'; '.join(changes)}.")
    return found


def _playable(plan: Plan) -> bool:
    linear = plan.model.kind != "torch"
    if plan.method.kind == "hidden":
        return linear and plan.run.stopping == "end"
    single = linear and plan.model.loss.outputs == 1 and getattr(plan.method, "sampling", "") != "fixed-size"
    return plan.method.kind in SEEN_BY and single and getattr(plan.method, "clipping", "individual") == "individual"


def _check_runs(plan: Plan, effort: Effort) -> None:
    """Refuse a game that could not contradict what the plan promises to its own observer."""
    who = plan.target.adversary if plan.method.kind == "hidden" else SEEN_BY[plan.method.kind]
    needed = runs_needed(claim_of_plan(plan, who), effort.alarm)
    if needed < math.inf:
        hint = f"With fewer not even a perfect attack could contradict the promise at false alarm {effort.alarm:g}."
        require(effort.runs >= needed, "runs", f"be at least {needed:.0f}", effort.runs, hint)


def _hiding(plan: Plan, effort: Effort, entropy: Entropy) -> dict[str, Any]:
    rows = what_hiding_buys(plan, effort.runs, entropy, alarm=effort.alarm)
    shown = [
        {"sees": sees, "certified": finite_or_none(found.certified), "measured": finite_or_none(found.measured)}
        for sees, found in rows
    ]
    return {"runs": effort.runs, "delta": plan.target.delta, "rows": shown}


def _records(plan: Plan, study: Wanted | None, data: Given) -> Records:
    """The records of the study, which must have the shape that the run had."""
    records = open_study(study, data)[1].train if study is not None else _first(data)
    counts = records.shape.records, records.shape.clients
    wanted = plan.data.records - (getattr(plan, "canaries", None) or 0), plan.data.clients
    require(counts == wanted, "The study's records", f"be those of the run, {wanted[0]} of {wanted[1]} clients", counts)
    return records


def _first(data: Given) -> Records:
    found = data[0] if isinstance(data, tuple) else data
    assert found is not None  # noqa: S101  asked for before
    return found


def _with_records(
    plan: Plan, records: Records, effort: Effort, entropy: Entropy, tell: Watch, skipped: list[str]
) -> Audit:
    """Membership and leakage; what they find is as private as the records."""
    findings: tuple[Finding, ...] = ()
    shown = None
    same = records.shape == plan.data
    if not same:
        skipped.append("membership inference and leakage: the run had canaries, attack one without")
    elif effort.shadows and plan.model.kind in LINEAR and plan.data.classes:
        tell(f"training {effort.shadows} shadow models")
        findings = attacked(plan, watched(plan, records, effort.shadows + 1, entropy), alarm=effort.canary_alarm)
    elif effort.shadows:
        skipped.append("membership inference knows linear classifiers")
    if same and plan.training_public and plan.model.kind in (*LINEAR, "torch"):
        tell("reconstructing records from gradients")
        shown = leakage(plan, records, entropy, public=True)
    elif same:
        skipped.append("leakage shows records as they are: only for studies that declare them public")
    return Audit(plan=plan.hash, run="-", findings=findings, leakage=shown)

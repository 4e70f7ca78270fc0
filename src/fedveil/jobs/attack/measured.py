"""Audit a job that trains nothing: answers, a profile, an evaluation, a generator, or a stage of somebody's own.

All of these release functions of noisy sums, so two attacks fit them all. The game: victims whose contributions are as
long as the plan allows, the real noise and adder, and an attacker who knows everybody else. Membership: the stage runs
once more on the real records, some of them in by fair coins, and the attacker weighs every noisy sum by what a record
would add to it. Of a generator also the rows are attacked, by the distance to the nearest drawn row.
Theory page: distinguishing-game.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedveil.audit.claim import Claim, claim_of_alone
from fedveil.audit.finding import Finding
from fedveil.audit.game import FEWEST, MOST, Seen, play
from fedveil.audit.membership import Shadows, lira_online, membership_finding
from fedveil.audit.one_run import finding_of_scores
from fedveil.audit.record import Audit
from fedveil.certificate.certify import MeasuredCertificate, certify_measured
from fedveil.core.errors import BadValue, require
from fedveil.core.values import Indices, Vector
from fedveil.engine.here import Here
from fedveil.engine.measured import generator_program, measured_generator, own_program, planned_synthesis
from fedveil.engine.run import Rows
from fedveil.jobs.ask import open_questions
from fedveil.jobs.attack.generator import Measuring, generator_game
from fedveil.jobs.attack.pace import Pace
from fedveil.jobs.synthesis import open_synthesis
from fedveil.noise.entropy import Entropy
from fedveil.stages.measured.plan import ASK, GENERATOR, MeasuredPlan
from fedveil.stages.measuring import Measures, Program
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.sums import STEPS, Measurement, Sums
from fedveil.stages.synthesise.quality import draw_codes, nearest
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import table_of
from fedveil.version import __version__

_WIDTH = 200  # games that one noisy sum plays at once, each in numbers of its own
_MOST_RECORDS = 1000  # with coins: membership shows hardly more with more of them
_DRAWN = 2000  # rows that each shadow generator draws
Watch = Callable[[str], None]
Coins = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredAudit:
    """``public``: may be published; ``private``: what was computed from records; ``skipped``: what was not, and why."""

    public: Audit
    private: Audit | None
    skipped: tuple[str, ...]


@dataclass(slots=True)
class _Watched:
    """Gives the noisy sums of another, and keeps each with what was contributed."""

    inner: Measures
    seen: list[tuple[Measurement, Sums, Vector]] = field(default_factory=list)

    @property
    def present(self) -> Indices:
        return self.inner.present

    def noisy_sum(self, planned: Measurement, contributions: Sums, size: int) -> Vector:
        noisy = self.inner.noisy_sum(planned, contributions, size)
        self.seen.append((planned, contributions, noisy))
        return noisy


def audit_measured(
    folder: Path,
    runs: int,
    entropy: Entropy,
    *,
    study: Path | None = None,
    shadows: int = 32,
    alarm: float = 1e-6,
    canary_alarm: float = 0.05,
    watch: Watch = lambda _: None,
) -> MeasuredAudit:
    """Attack what a stage of noisy sums released; with its ``study`` (or question file) also by its records."""
    require(FEWEST <= runs <= MOST, "runs", f"lie between {FEWEST} and {MOST}", runs)
    for name, chance in (("alarm", alarm), ("canary_alarm", canary_alarm)):
        require(0 < chance < 0.5, name, "lie strictly between 0 and .5", chance)
    certificate = certify_measured(folder, __version__)
    plan = certificate.plan
    watch(f"playing the distinguishing game on {len(plan.sums.measurements)} noisy sums, {runs:,} runs at once")
    findings = [sums_game(plan, runs, entropy, alarm=alarm)]
    if plan.stage == GENERATOR:
        watch("playing the distinguishing game on the counts and on the choice of pairs")
        findings += generator_game(plan, runs, entropy, alarm=alarm)
    public, skipped = _record(certificate, findings), list[str]()
    if study is None:
        skipped.append("membership inference needs the records: give --study")
        return MeasuredAudit(public=public, private=None, skipped=tuple(skipped))
    try:
        more = _with_records(plan, study, shadows, entropy, canary_alarm, watch)
    except BadValue as error:
        skipped.append(f"membership inference: {error}")
        return MeasuredAudit(public=public, private=None, skipped=tuple(skipped))
    if plan.training_public:
        return MeasuredAudit(public=_record(certificate, [*findings, *more]), private=None, skipped=tuple(skipped))
    return MeasuredAudit(public=public, private=_record(certificate, more), skipped=tuple(skipped))


def _record(certificate: MeasuredCertificate, findings: list[Finding]) -> Audit:
    return Audit(plan=certificate.plan.hash, run=certificate.run, findings=tuple(findings))


def sums_game(
    plan: MeasuredPlan, runs: int, entropy: Entropy, *, alarm: float = 1e-6, by: Measuring = lambda inner: inner
) -> Finding:
    """Return what the game on all noisy sums of a plan finds; ``by``: tests pass their own, with too little noise."""
    first, second = (_sums_seen(plan, present, runs, entropy, by) for present in (True, False))
    claim = claim_of_alone(plan, "final-model")
    found = play(first, second, claim, adversary="final-model", delta=plan.target.delta, alarm=alarm)
    return replace(found, attack="distinguishing-game on the sums")


def _sums_seen(plan: MeasuredPlan, present: bool, runs: int, entropy: Entropy, by: Measuring) -> Seen:
    """Return the likelihood ratio of each run: victims are there, or else absent or replaced by their opposites.

    Victim k has the numbers 2k and 2k + 1 of every sum to itself. Counts never point apart: there the opposite counts
    elsewhere.
    """
    replaced = plan.target.neighbours == "replace-one"
    games = min(_WIDTH, plan.data.clients) if plan.target.unit == "client" else _WIDTH
    owner = np.arange(games) % plan.data.clients
    blocks = []
    for block in range(-(-runs // games)):
        key = Entropy(entropy.words(f"sums {present}", block, 4).tobytes(), private=entropy.private)
        measures = by(Here(plan, key).measures(plan.stage, Rows(owner, plan.data.clients, np.arange(games)), {}))
        ratios = np.zeros(games)
        for one in plan.sums.measurements:
            elsewhere = replaced and one.counts
            absent = [0, 1] if elsewhere else [-1 if replaced else 0, 0]
            own = np.kron(np.eye(games, dtype=np.int64), np.array([[1, 0] if present else absent]))  # a victim a row
            noisy = measures.noisy_sum(replace(one, size=2 * games), _Added(int(one.bound * STEPS) * own), 2 * games)
            ratios += (noisy[::2] - noisy[1::2] * elsewhere) / (one.noise**2 * one.bound)
        blocks.append(ratios)
    scores = np.concatenate(blocks)[:runs, None]
    return Seen(scores[:, :0], scores)


@dataclass(frozen=True, slots=True, eq=False)
class _Added:
    """Adds up what some rows contribute."""

    own: NDArray[np.int64]

    def __call__(self, rows: Indices, /) -> NDArray[np.int64]:
        return np.asarray(self.own[rows].sum(axis=0), dtype=np.int64)


def _with_records(
    plan: MeasuredPlan, study: Path, shadows: int, entropy: Entropy, alarm: float, watch: Watch
) -> list[Finding]:
    """Attack the records themselves; the findings are as private as they are."""
    require(plan.target.unit == "record", "privacy.unit", "be record for this attack", plan.target.unit)
    claim = claim_of_alone(plan, "final-model")
    if plan.stage == GENERATOR:
        own, request, found = open_synthesis(study)
        _check_same(planned_synthesis(own, request, found), plan)
        program: Program[bytes] = generator_program(plan, request, table_of(found))
    elif plan.stage == ASK:
        asked = open_questions(study)
        found = asked.here
        _check_same(asked.plan(), plan)
        program = own_program(plan, table_of(found))
    else:
        raise BadValue(f"It knows answers and generators, not the stage {plan.stage}; its sums were attacked.")
    watch("looking for records in the noisy sums")
    findings = [sums_membership(plan, program, found, entropy, claim, alarm=alarm)]
    if plan.stage == GENERATOR and shadows:
        findings += rows_membership(plan, request, found, shadows, entropy, claim, alarm=alarm, watch=watch)
    return findings


def _check_same(found: MeasuredPlan, plan: MeasuredPlan) -> None:
    hint = "Give the file of this very job, with its data."
    require(found.hash == plan.hash, "--study", "be the study of this folder", found.name, hint)


def _tossed(found: Unprepared, entropy: Entropy, name: str) -> tuple[Indices, Coins]:
    """Return some records by lot, and a fair coin for each."""
    words = entropy.words(f"lots {name}", 0, found.present.size)
    chosen = np.sort(found.present[np.argsort(words)[:_MOST_RECORDS]])
    return chosen, entropy.words(f"coins {name}", 0, chosen.size) < np.uint64(2**63)


def sums_membership(
    plan: MeasuredPlan, program: Program[bytes], found: Unprepared, entropy: Entropy, claim: Claim, *, alarm: float
) -> Finding:
    """Run the stage with some records in by coins, and guess them from the noisy sums that it asks for.

    The attacker knows every record, but not the coins. All that is released is computed from these sums.
    """
    chosen, coins = _tossed(found, entropy, "sums")
    always = np.setdiff1d(found.present, chosen)
    there = np.union1d(always, chosen[coins])
    rows = Rows(found.train.owner, found.train.clients, there)
    watched = _Watched(Here(plan, entropy).measures(plan.stage, rows, {}))
    program(watched)
    scores = np.zeros(chosen.size)
    for one, added, noisy in watched.seen[: len(plan.sums.measurements)]:  # a stage may compute its result twice
        rest = noisy - (added(always) + 0.5 * added(chosen)) / STEPS
        scores += [rest @ added(chosen[k : k + 1]) / STEPS / (one.noise * one.bound) ** 2 for k in range(chosen.size)]
    name, delta = "membership in the noisy sums", plan.target.delta
    return finding_of_scores(scores, coins, claim, delta=delta, alarm=alarm, attack=name, things="records", details={})


def rows_membership(
    plan: MeasuredPlan,
    request: GeneratorRequest,
    found: Unprepared,
    shadows: int,
    entropy: Entropy,
    claim: Claim,
    *,
    alarm: float,
    watch: Watch,
) -> list[Finding]:
    """Guess from drawn rows who was in: by the distance to the nearest one, and by its law over shadow generators."""
    table, (chosen, _) = table_of(found), _tossed(found, entropy, "rows")
    always, runs = np.setdiff1d(found.present, chosen), shadows + 1
    words = entropy.words("shadow coins", 0, runs * chosen.size).reshape(runs, chosen.size)
    coins = words < np.uint64(2**63)
    coins[:-1] = words[:-1].argsort(axis=0).argsort(axis=0) < shadows // 2
    near, pace = np.empty((runs, chosen.size)), Pace(runs)
    for run in range(runs):
        watch(f"fitting shadow generator {run + 1} of {runs}{pace.left(run)}")
        key = Entropy(entropy.words("shadow generator", run, 4).tobytes(), private=entropy.private)
        there = np.union1d(always, chosen[coins[run]])
        one = measured_generator(plan, request, found, key, there)
        seed = int(entropy.words("drawn rows", run, 1)[0])
        drawn = draw_codes(one, _DRAWN, np.random.default_rng(seed))
        near[run] = -nearest(drawn, table.codes(one.columns)[chosen], most=chosen.size)
    kept, delta = Shadows(near[:-1], coins[:-1]), plan.target.delta
    scores = {"nearest drawn row": near[-1], "shadow generators": lira_online(kept, near[-1])}
    return [
        membership_finding(name, score, coins[-1], claim, delta=delta, alarm=alarm) for name, score in scores.items()
    ]

"""Compare several algorithms, or several degrees of trust, on one study and one target.

Every model that is trained here saw the private data, so each is a release and all of them are paid for. Comparisons
are for public data, or for a rehearsal with a seed on data that stay where they are.

>>> from fedveil.jobs.compare import compare
>>> comparison = compare("study.toml", runs=3)  # doctest: +SKIP
>>> comparison.best.label  # doctest: +SKIP
'hidden'
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.core.tables import read_tables
from fedveil.core.values import Vector
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.held_out import ledgers_beside
from fedveil.engine.here import Here
from fedveil.engine.measure import centralised
from fedveil.engine.run import Data, Released, run_stages
from fedveil.engine.study import learned_from, open_data, planned_for
from fedveil.engine.train import train
from fedveil.jobs.local import Given, Wanted, open_any_study
from fedveil.ledger.budget import Cost
from fedveil.ledger.place import books_of, caps_of, open_books
from fedveil.ledger.transaction import Transaction, costs_of
from fedveil.models.metrics import evaluate_classes, evaluate_numbers, majority, no_better, scores
from fedveil.noise.entropy import Entropy
from fedveil.planning.design import Planned, read_request
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import Study
from fedveil.planning.tuning import NOT_TUNED
from fedveil.privacy.guarantee import Adversary, finite_or_none
from fedveil.stages.evaluate.request import EvaluationRequest
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.train.acting import Trained
from fedveil.stages.train.correlation import CORRELATED, DRAWN, INDEPENDENT
from fedveil.stages.train.registry import DEFAULT, KINDS, AutoRequest, facts_of, weighed_for
from fedveil.stages.train.request import AlgorithmRequest, NoiseCanMove, NoiseComesInKinds, ScheduleRequest

# The result of a comparison: what every candidate promised, how it did, and what all of them cost together.

View = Literal["algorithms", "trust", "noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one run costs its clients and its server, on average.

    ``gradients``: how many gradients of records one run computes, all clients together; ``dispersal``: how many of them
    a client computes, on average, between two of its messages (van Dijk and Nguyen, section 2.6): how far its model
    may move before others learn of it. None where that is not known.
    """

    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    gradients: int | None = None
    dispersal: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; values that are not finite become null."""
        return {**asdict(self), "dispersal": finite_or_none(self.dispersal)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One algorithm against one observer: its promise and its scores, or why it cannot run the study.

    ``areas``: the AUC of each run, of a model of classes; ``useless``: whether no run did better than the best constant
    answer.
    """

    label: str
    algorithm: str
    adversary: Adversary
    explained: str = ""
    refused: str | None = None
    epsilon: float | None = None
    rounds: int = 0
    noise: str = ""
    noise_on_average: float | None = None
    scores: tuple[float, ...] = ()
    areas: tuple[float, ...] = ()
    useless: bool = False
    model_spread: float | None = None
    work: Work = Work()

    @property
    def mean(self) -> float | None:
        """Mean of the runs' scores."""
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def auc(self) -> float | None:
        """Mean of the runs' AUC."""
        return float(np.mean(self.areas)) if self.areas else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the runs' scores."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; values that are not finite become null."""
        return {
            "label": self.label,
            "algorithm": self.algorithm,
            "adversary": self.adversary,
            "explained": self.explained,
            "refused": self.refused,
            "epsilon": finite_or_none(self.epsilon),
            "rounds": self.rounds,
            "noise": self.noise,
            "noise_on_average": finite_or_none(self.noise_on_average),
            "mean": finite_or_none(self.mean),
            "spread": finite_or_none(self.spread),
            "auc": finite_or_none(self.auc),
            "scores": [finite_or_none(score) for score in self.scores],
            "model_spread": finite_or_none(self.model_spread),
            **self.work.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All entries, and what they cost together. ``reference``: the score of a model trained without privacy.

    ``counted``: scores are noisy counts, a stage of every plan. ``baseline``: the score of the best constant answer on
    the held-out records, called ``constant``.
    """

    study: Study
    view: View
    runs: int
    metric: str
    entries: tuple[Entry, ...]
    costs: tuple[Cost, ...]
    records: int
    clients: int
    test_records: int
    test_public: bool
    counted: bool = False
    reference: float | None = None
    charged: bool = False
    baseline: float | None = None
    constant: str = ""

    @property
    def trained(self) -> int:
        """Number of models trained on the data, including the reference."""
        return sum(self.runs for entry in self.entries if entry.refused is None) + (self.reference is not None)

    @property
    def private(self) -> bool:
        """True if all noise was secret and covers everything, and nothing was trained without noise."""
        secret = self.study.seed is None and not self.study.data.origin.revealed_by_places
        return secret and self.reference is None and not self.exposed

    @property
    def exposed(self) -> bool:
        """True if scores on held-out records that are not public are published without noise."""
        return self.test_records > 0 and not self.test_public and not self.counted

    @property
    def best(self) -> Entry | None:
        """The entry with the highest mean score."""
        ranked = [entry for entry in self.entries if entry.mean is not None]
        return max(ranked, key=lambda entry: entry.mean or -math.inf, default=None)

    @property
    def warning(self) -> str:
        """The warning that a reader of the numbers must see first."""
        target = self.study.target
        spent = next(cost for cost in self.costs if cost.adversary == target.adversary)
        text = f"{self.trained} models were trained on the same records and each is a release. "
        if self.study.seed is not None:
            return text + "NOT PRIVATE: the noise came from the study's seed. For public data or a rehearsal only."
        if self.study.data.origin.revealed_by_places:
            return text + "NOT PRIVATE: the split depends on labels, and data.public does not declare them public."
        loose = target.loose_delta(self.clients if target.unit == "client" else self.records)
        text += "" if loose is None else f"{loose} "
        if self.reference is not None:
            text += "NOT PRIVATE: one of them, the reference, was trained without noise. "
        if self.exposed:
            text += "NOT PRIVATE: their scores are exact, on held-out records that were not declared public. "
        if math.isinf(spent.epsilon):
            return text + f"Together they promise nothing against {target.adversary}."
        return (
            text + f"Together the private ones cost epsilon {spent.epsilon:.6g}, delta {spent.delta:.6g} against "
            f"{target.adversary}" + ("; the ledger was charged." if self.charged else "; no ledger was charged.")
        )

    @property
    def no_better(self) -> list[str]:
        """Which entries do no better, in any of their runs, than the best constant answer."""
        return [entry.label for entry in self.entries if entry.useless]

    def text(self) -> str:
        """Return the content of the file compare.json."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return the whole comparison as plain values."""
        target = self.study.target
        return {
            "format": 1,
            "study": self.study.name,
            "view": self.view,
            "private": self.private,
            "warning": self.warning,
            "target": {name: getattr(target, name) for name in ("epsilon", "delta", "adversary", "unit", "neighbours")},
            "runs": self.runs,
            "models_trained": self.trained,
            "total_cost": [cost.written() for cost in self.costs],
            "ledger_charged": self.charged,
            "metric": self.metric,
            "reference": finite_or_none(self.reference),
            "baseline": finite_or_none(self.baseline),
            "constant": self.constant,
            "no_better": self.no_better,
            "records": self.records,
            "clients": self.clients,
            "test_records": self.test_records,
            "test_public": self.test_public,
            "counted": self.counted,
            "entries": [entry.as_json() for entry in self.entries],
        }


# The candidates of a comparison: algorithms by name, or observers of one algorithm; each planned or refused.

_WORDS: Final = {
    INDEPENDENT: "new noise in every round",
    CORRELATED: "later rounds take off noise of earlier ones; who takes part when is known",
    DRAWN: "the same, with records that draw their rounds within classes",
    DEFAULT: "models before the last one are hidden, which covers for noise",
}


def by_noise(study: Study) -> list[tuple[Entry, tuple[Study, ...]]]:
    """Return a row for every observer and kind of noise, each for the study's target against that observer."""
    rows: list[tuple[Entry, tuple[Study, ...]]] = []
    for adversary in ADVERSARIES:
        for name, request in _requests(study, adversary):
            schedule = study.schedule if request.kind == study.algorithm.kind else ScheduleRequest()
            target = replace(study.target, adversary=adversary)
            one = replace(study, algorithm=request, schedule=schedule, baselines=False, target=target)
            label = f"{name}, {adversary}"
            said = _WORDS[name] if adversary == ADVERSARIES[0] else ""
            entry = Entry(label=label, algorithm=request.kind, adversary=adversary, explained=said)
            rows.append((entry, (one,)))
    return rows


def _requests(study: Study, adversary: Adversary) -> Iterator[tuple[str, AlgorithmRequest]]:
    """Yield each kind of noise with the algorithm that has it; what the study says of its own algorithm stays.

    Against a server, noise that the server would add is added by the clients.
    """
    own = study.algorithm
    usual = (read_request({"kind": kind}) for kind in weighed_for(study.target.unit))
    base = next(request for request in (own, *usual) if isinstance(request, NoiseComesInKinds))
    for name, request in base.noises.items():
        if adversary.startswith("server") and isinstance(request, NoiseCanMove):
            yield name, request.noised_by_clients()
        else:
            yield name, request
    yield DEFAULT, own if own.kind == DEFAULT else read_request({"kind": DEFAULT})


LOCAL = "local noise"
# The target's observer decides who adds the noise.
TRUST: tuple[tuple[str, Adversary, str], ...] = (
    (LOCAL, "server", "nobody is trusted: the server sees every client's own noised update"),
    ("shared noise", "server-with-secure-aggregation", "the server sees noised sums, to which all clients add"),
    ("central noise, all models", "every-model", "the server is trusted; every model it makes is seen"),
    ("central noise, last model", "final-model", "the server is trusted; only the last model is seen"),
)


def candidates(study: Study, view: View, algorithms: Sequence[str]) -> list[tuple[Entry, tuple[Study, ...]]]:
    """Return every row with the studies that could fill it; of several, the best is taken (:func:`planned_entry`)."""
    mine = study.algorithm.kind
    if view == "noise":
        named = next(iter(algorithms), None)
        hint = "The kinds of noise decide which algorithms are compared."
        require(named is None, "algorithms", "be left out when noise is compared", named, hint)
        return by_noise(study)
    wanted = list(algorithms) or (list(KINDS) if view == "algorithms" else [mine])
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    require(twice is None, "algorithms", "be named once each", twice)
    rows: list[tuple[Entry, tuple[Study, ...]]] = []
    for text in wanted:
        request, target = _requested(text, study), study.target
        kind = request.kind
        schedule = study.schedule if kind == mine else ScheduleRequest()  # a schedule is of its own kind
        one = replace(study, algorithm=request, schedule=schedule, baselines=False)
        if view == "algorithms":
            rows.append((Entry(label=text, algorithm=kind, adversary=target.adversary), (one,)))
            continue
        for word, adversary, explained in TRUST:
            label = word if len(wanted) == 1 else f"{text}, {word}"
            entry = Entry(label=label, algorithm=kind, adversary=adversary, explained=explained)
            # Against the server itself, noise that the server would add is added by the clients.
            noised = request
            if adversary in ("server", "server-with-secure-aggregation") and isinstance(request, NoiseCanMove):
                noised = request.noised_by_clients()
            seen = replace(one, algorithm=noised, target=replace(target, adversary=adversary))
            others = _others(seen, kind) if word == LOCAL and ":" not in text else ()
            rows.append((entry, (seen, *others)))
    return rows


def _others(study: Study, kind: str) -> tuple[Study, ...]:
    """Return the study with each algorithm that could do better where every client noises its own updates.

    Hiding buys nothing against who sees every update, so the algorithm that exploits it may not be the best one there.
    """
    weighed = weighed_for(study.target.unit)
    if kind not in (*weighed, AutoRequest.kind):
        return ()
    found = []
    for other in weighed:
        if other != kind:
            request = read_request({"kind": other})
            request = request.noised_by_clients() if isinstance(request, NoiseCanMove) else request
            found.append(replace(study, algorithm=request, schedule=ScheduleRequest()))
    return tuple(found)


def _requested(text: str, study: Study) -> AlgorithmRequest:
    """Return the request for ``kind``, as the study states it or by default, or for ``kind:key=value:...``."""
    kind, *settings = text.split(":")
    if not settings and kind == study.algorithm.kind:
        return study.algorithm
    values: dict[str, Any] = {"kind": kind}
    for setting in settings:
        key, equals, value = setting.partition("=")
        require(bool(key and equals and value), "algorithms", "have settings like key=value", setting)
        values[key] = _value(value)
    return read_request(values)


def _value(text: str) -> Any:
    """Return a number, a list or true as in a study file; anything else is a text."""
    try:
        return read_tables(f"x = {text}", "A setting")["x"]
    except BadValue:
        return text


def planned_entry(entry: Entry, studies: Sequence[Study], loaded: Loaded | Unprepared) -> tuple[Entry, Plan | None]:
    """Return the entry with its plan, or with the reason why there is none.

    Of several studies the one of least expected risk is taken, by the yardstick that all designs share.
    """
    found = [_planned_one(entry, study, loaded) for study in studies]
    able = [(one, planned) for one, planned in found if planned is not None]
    if not able:
        return found[0][0], None
    known = [pair for pair in able if pair[1].draft.risk is not None]
    chosen, planned = min(known, key=lambda pair: pair[1].draft.risk or 0.0) if len(known) > 1 else able[0]
    if len(able) > 1:
        told = ", ".join(f"{one.plan.method.kind} {_risk(one)}" for _, one in able)
        own = planned.plan.method.kind
        chosen = replace(chosen, explained=f"{chosen.explained}; {own} here, by expected risk ({told})")
    return chosen, planned.plan


def _risk(planned: Planned) -> str:
    return "unknown" if planned.draft.risk is None else f"{planned.draft.risk:.3g}"


def _planned_one(entry: Entry, study: Study, loaded: Loaded | Unprepared) -> tuple[Entry, Planned | None]:
    """Plan one study for an entry; what it learns about its columns is part of its plan, and of its target."""
    try:
        planned = planned_for(study, loaded)
        plan = planned.plan
        found = math.inf if plan.origin.revealed_by_places else promise(plan, entry.adversary).epsilon
    except (FedveilError, ValueError) as error:
        return replace(entry, refused=" ".join(str(error).split())), None
    facts = facts_of(plan.method, plan.setup)
    noise = "; ".join(f"{name} {value}" for name, value in facts if name.startswith("noise"))
    average = plan.method.average_noise(loaded.train.sizes, plan.setup)
    passes, updates = planned.draft.passes, plan.method.traffic(plan.setup, together=False)[0]
    gradients = None if passes is None else passes * plan.data.records
    entry = replace(
        entry,
        algorithm=plan.method.kind,
        epsilon=found,
        rounds=plan.method.total,
        noise=noise,
        noise_on_average=average,
        work=Work(
            gradients=None if gradients is None else round(gradients),
            dispersal=None if gradients is None or not updates else gradients / updates,
        ),
    )
    return entry, planned


# Carry out a comparison: plan all, charge all, train all, measure.


def charge(comparison: Comparison, loaded: Loaded | Unprepared, plans: Sequence[Plan]) -> str:
    """Charge everything or nothing, under one name, before the first model is trained; return the name."""
    study, name = comparison.study, f"compare-{os.urandom(12).hex()}"
    with _opened(study, loaded, plans, name) as transaction:
        transaction.charge_together(
            [(plan, comparison.runs) for plan in plans],
            study.target,
            extra={"comparison": [plan.hash for plan in plans], "runs": comparison.runs},
            caps=caps_of(study.books, study.target),
        )
    return name


def record(comparison: Comparison, loaded: Loaded | Unprepared, plans: Sequence[Plan], name: str) -> None:
    """Record the outcome by the hash of compare.json; the models themselves are not kept."""
    with _opened(comparison.study, loaded, plans, name) as transaction:
        transaction.release(comparison.text().encode(), also=["compare.json"])


@contextmanager
def _opened(study: Study, loaded: Loaded | Unprepared, plans: Sequence[Plan], name: str) -> Iterator[Transaction]:
    """Open the ledger of the training data, and that of a held-out source that exact scores are released about."""
    if books_of(study, None) is None:
        raise BadValue("The study must name a ledger to be charged.")
    with (
        open_books(study, None, loaded.fingerprint) as ledger,
        ledgers_beside(study, plans[0], loaded, ledger.path) as beside,
    ):
        yield Transaction(ledger, name, beside=beside)


def compare(
    study: Wanted,
    data: Given = None,
    *,
    algorithms: Sequence[str] = (),
    view: View = "algorithms",
    runs: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    watch: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Train every algorithm ``runs`` times for the study's own target.

    What a study leaves to be learned about its columns is learned anew for each model, as in a run of its own: it is
    part of each plan, and so of what each model costs.

    ``algorithms``: kinds, or kinds with settings as ``hidden:order=public``; none means all (for ``trust``, the study's
    own). A study with books (docs/ledger.md) is charged for everything before anything is trained. ``watch`` is called
    with what comes next.
    """
    require(view in get_args(View), "view", f"be one of {', '.join(get_args(View))}", view)
    require(isinstance(runs, int) and 1 <= runs <= 1000, "runs", "lie between 1 and 1000", runs)
    found, loaded = open_any_study(study, data)
    rule = "be of classes or of a number to be compared"
    require(not found.model.survival, "model.kind", rule, found.model.kind)
    # canaries are for a run that is audited, and a search is for one that is tuned
    evaluation = EvaluationRequest(private=False) if found.exact else found.evaluation
    found = replace(found, canaries=0, tune=NOT_TUNED, evaluation=evaluation)
    planned: list[tuple[Entry, Plan | None]] = []
    for entry, one in candidates(found, view, algorithms):
        watch(f"planning {entry.label}")
        planned.append(planned_entry(entry, one, loaded))
    plans = [plan for _, plan in planned if plan is not None]
    counted = bool(plans) and all(plan.evaluation for plan in plans)
    _check_scored(found, loaded, counted or not plans)
    comparison = Comparison(
        study=found,
        view=view,
        runs=runs,
        metric="accuracy" if loaded.train.classes else "r2",
        entries=tuple(entry for entry, _ in planned),
        costs=costs_of([(plan, runs) for plan in plans], found.target),
        records=len(loaded.train),
        clients=loaded.train.clients,
        test_records=0 if loaded.test is None else len(loaded.test),
        test_public=loaded.test_public,
        counted=counted,
        charged=books_of(found, None) is not None and bool(plans),
    )
    name = charge(comparison, loaded, plans) if comparison.charged else None
    entries, constants = [], []
    for entry, plan in planned:
        watch(f"training {entry.label}")
        if plan is not None:
            entry, noisy = _measured(entry, plan, loaded, found.seed, runs, clock)
            constants += noisy
        entries.append(entry)
    baseline, constant = _noisy_constant(constants) if counted else _constant(loaded)
    comparison = replace(
        comparison,
        entries=tuple(entries),
        reference=None if counted else _reference(found, plans, loaded),  # its score is exact
        baseline=baseline,
        constant=constant,
    )
    if name is not None:
        record(comparison, loaded, plans, name)
    return comparison


def _check_scored(study: Study, loaded: Loaded | Unprepared, counted: bool) -> None:
    """Refuse private held-out records that no plan counts with noise, unless the study asks for exact scores."""
    hint = (
        "Declare them public ([data.held_out] public = true), or write [evaluation] private = false: exact scores are "
        "then published, and the ledger says no guarantee for every observer."
    )
    free = loaded.test is None or loaded.test_public or study.exact or counted
    why = study.uncounted or "a client may own records of both kinds"
    rule = "be public where algorithms are compared on it and noisy counts cannot score them"
    require(free, "[data.held_out]", rule, f"private records, and {why}", hint)


@dataclass(frozen=True, slots=True, eq=False)
class _Noting(Here):
    """The adder of one process, which notes what each training was."""

    trained: list[Trained]

    def train(self, plan: Plan, data: Data, released: Released) -> Vector:
        """Train on all records, and return the last model."""
        self.trained.append(train(plan, data.train(released), self.entropy, public=data.public_test(released)))
        return self.trained[-1].model


def _measured(
    entry: Entry, plan: Plan, given: Loaded | Unprepared, seed: int | None, runs: int, clock: Callable[[], float]
) -> tuple[Entry, list[dict[str, Any]]]:
    """Train and measure; a refusal of the data is reported like a refusal of the plan.

    Return also what noisy counts say of the best constant answer, once a run, where they score the models.
    """
    found: list[Trained] = []
    scored: list[dict[str, Any]] = []
    began = clock()
    try:
        for run in range(runs):
            entropy = Entropy.from_system() if seed is None else Entropy.from_seed(seed + run)
            data = open_data(given, entropy)
            released = run_stages(plan, data, _Noting(plan, entropy, found))
            test = data.loaded(released).test
            if plan.evaluation:
                said = released["evaluation"]
                scored.append({**said, "score": said["accuracy" if plan.data.classes else "r2"]})
            elif test is not None:
                scored.append(_score(plan, released["training"], test))
    except (FedveilError, ValueError) as error:
        return replace(entry, refused=" ".join(str(error).split())), []
    seconds, spread = (clock() - began) / runs, None
    if runs > 1 and not isinstance(
        given, Unprepared
    ):  # weights of rows that were made by different rules do not compare
        spread = float(np.sqrt(np.mean(np.var([one.model for one in found], axis=0, ddof=1))))
    constants = [one["baseline"] for one in scored if plan.evaluation]
    entry = replace(
        entry,
        scores=tuple(one["score"] for one in scored if one["score"] is not None),
        areas=tuple(one["auc"] for one in scored if one.get("auc") is not None),
        useless=bool(scored) and all(no_better(one) is not None for one in scored),
        model_spread=spread,
        work=replace(
            entry.work,
            bytes_up=round(sum(one.bytes_up for one in found) / runs),
            bytes_down=round(sum(one.bytes_down for one in found) / runs),
            seconds=seconds,
        ),
    )
    return entry, constants


def _loaded(given: Loaded | Unprepared, plan: Plan, entropy: Entropy) -> Loaded:
    """The records; where the rule for rows is to be learned, by this plan's noisy sums with this randomness."""
    return given.loaded(learned_from(plan, given, entropy)) if isinstance(given, Unprepared) else given


def _score(plan: Plan, model: Vector, held: Records) -> dict[str, Any]:
    """Return all metrics, and the one that algorithms are compared by as ``score``."""
    held, loss = held.present(), plan.model.loss
    found = scores(loss, model, held.features, held.targets)
    if not plan.data.classes:
        more = evaluate_numbers(loss.predict(model, held.features), held.targets)
        return {**more, "score": found["r2"]}
    names = [str(k) for k in range(held.classes)]
    return {**evaluate_classes(loss, model, held.features, held.targets, names), **found, "score": found["accuracy"]}


def _constant(loaded: Loaded | Unprepared) -> tuple[float | None, str]:
    """Return the best constant answer on the held-out records, by the same metric, and what it is called."""
    if loaded.test is None:
        return None, ""
    held = loaded.test.present()
    if not held.classes:
        return evaluate_numbers(held.targets, held.targets)["baseline"]["r2"], "always the median"
    known = loaded.reading if isinstance(loaded, Unprepared) else loaded.preparation
    names = [str(k) for k in range(held.classes)] if known is None else known.labels.classes
    found = majority(held.targets.astype(np.int64), names)
    return found["accuracy"], f"always {found['class']!r}"


def _noisy_constant(constants: Sequence[dict[str, Any]]) -> tuple[float | None, str]:
    """Return the same by noisy counts, on average over all models that they scored."""
    if not constants or "class" not in constants[0]:
        return (0.0, "always the mean") if constants else (None, "")
    known = [one["accuracy"] for one in constants if one["accuracy"] is not None]
    return (float(np.mean(known)) if known else None), f"always {constants[0]['class']!r}"


def _reference(study: Study, plans: Sequence[Plan], given: Loaded | Unprepared) -> float | None:
    """Train on pooled data without noise, if the study asks for baselines and says that its records are public."""
    if not (study.baselines and study.data.public) or given.test is None or not plans:
        return None
    seed = study.seed
    loaded = _loaded(given, plans[0], Entropy.from_system() if seed is None else Entropy.from_seed(seed))
    assert loaded.test is not None  # noqa: S101  as it was given
    score: float = _score(plans[0], centralised(plans[0].model, loaded.train.present()), loaded.test)["score"]
    return score

"""The candidates of a comparison: algorithms by name, or observers of one algorithm; each planned or refused."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from fedveil.core.errors import BadValue, FedveilError, require
from fedveil.core.tables import read_tables
from fedveil.data.load import Loaded
from fedveil.engine.study import planned_for
from fedveil.jobs.compare.result import Entry, View
from fedveil.planning.design import Planned, read_request
from fedveil.planning.plan import Plan
from fedveil.planning.promises import ADVERSARIES, promise
from fedveil.planning.study import Study
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.train.auto import AutoRequest
from fedveil.stages.train.correlation import CORRELATED, DRAWN, INDEPENDENT
from fedveil.stages.train.registry import DEFAULT, KINDS, facts_of, weighed_for
from fedveil.stages.train.request import AlgorithmRequest, NoiseCanMove, NoiseComesInKinds, ScheduleRequest

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
    held = 0 if loaded.test is None else len(loaded.test)
    try:
        if isinstance(loaded, Unprepared):
            planned = planned_for(study, loaded)
        else:
            planned = study.planned(loaded.train.shape, held, loaded.test_public)
        plan = planned.plan
        found = math.inf if plan.origin.told_by_places else promise(plan, entry.adversary).epsilon
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
        gradients=None if gradients is None else round(gradients),
        dispersal=None if gradients is None or not updates else gradients / updates,
    )
    return entry, planned

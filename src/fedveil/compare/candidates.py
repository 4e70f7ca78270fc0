"""The candidates of a comparison: algorithms by name, or observers of one algorithm; each planned or refused."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedveil.algorithms.registry import KINDS
from fedveil.algorithms.request import AlgorithmRequest, NoiseCanMove
from fedveil.algorithms.schedule_request import ScheduleRequest
from fedveil.checks import require
from fedveil.compare.result import Entry, View
from fedveil.data.load import Loaded
from fedveil.design import read_request
from fedveil.errors import FedveilError
from fedveil.guarantee import Adversary
from fedveil.plan import Plan
from fedveil.promises import promise
from fedveil.study import Study

# The target's observer decides who adds the noise.
TRUST: tuple[tuple[str, Adversary, str], ...] = (
    ("local noise", "server", "nobody is trusted: the server sees every client's own noised update"),
    ("shared noise", "server-with-secure-aggregation", "the server sees noised sums, to which all clients add"),
    ("central noise, all models", "every-model", "the server is trusted; every model it makes is seen"),
    ("central noise, last model", "final-model", "the server is trusted; only the last model is seen"),
)


def candidates(study: Study, view: View, algorithms: Sequence[str]) -> list[tuple[Entry, Study]]:
    """Return every study to try, with its label."""
    mine = study.algorithm.kind
    wanted = list(algorithms) or (list(KINDS) if view == "algorithms" else [mine])
    twice = next((name for name in wanted if wanted.count(name) > 1), None)
    require(twice is None, "algorithms", "be named once each", twice)
    rows = []
    for text in wanted:
        request, target = _requested(text, study), study.target
        kind = request.kind
        schedule = study.schedule if kind == mine else ScheduleRequest()  # a schedule is of its own kind
        one = replace(study, algorithm=request, schedule=schedule, baselines=False)
        if view == "algorithms":
            rows.append((Entry(label=text, algorithm=kind, adversary=target.adversary), one))
            continue
        for word, adversary, explained in TRUST:
            label = word if len(wanted) == 1 else f"{text}, {word}"
            entry = Entry(label=label, algorithm=kind, adversary=adversary, explained=explained)
            # Against the server itself, noise that the server would add is added by the clients.
            noised = request
            if adversary in ("server", "server-with-secure-aggregation") and isinstance(request, NoiseCanMove):
                noised = request.noised_by_clients()
            rows.append((entry, replace(one, algorithm=noised, target=replace(target, adversary=adversary))))
    return rows


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
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def planned_entry(entry: Entry, study: Study, loaded: Loaded) -> tuple[Entry, Plan | None]:
    """Return the entry with its plan, or with the reason why there is none."""
    held = 0 if loaded.test is None else len(loaded.test)
    try:
        plan = study.planned(loaded.train.shape, held, loaded.test_public).plan
        found = math.inf if plan.told_by_places else promise(plan, entry.adversary).epsilon
    except (FedveilError, ValueError) as error:
        return replace(entry, refused=" ".join(str(error).split())), None
    facts = plan.method.facts(plan.data, plan.target)
    noise = "; ".join(f"{name} {value}" for name, value in facts if name.startswith("noise"))
    average = plan.method.average_noise(loaded.train.sizes, plan.data, plan.target, plan.trust)
    return replace(entry, epsilon=found, rounds=plan.method.total, noise=noise, noise_on_average=average), plan

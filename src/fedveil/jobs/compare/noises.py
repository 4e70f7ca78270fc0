"""Independent, correlated and hidden noise at one target, for each observer: the candidates of such a comparison.

Page: docs/correlated-noise.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from fedveil.jobs.compare.result import Entry
from fedveil.planning.design import read_request
from fedveil.planning.promises import ADVERSARIES
from fedveil.planning.study import Study
from fedveil.privacy.guarantee import Adversary
from fedveil.stages.train.correlated_request import CORRELATED, DRAWN, INDEPENDENT
from fedveil.stages.train.registry import DEFAULT, weighed_for
from fedveil.stages.train.request import AlgorithmRequest, NoiseCanMove, NoiseComesInKinds
from fedveil.stages.train.schedule_request import ScheduleRequest

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

"""Choose how a plan's rounds are added up: in the open, by masked sums, or by homomorphic encryption."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib import import_module
from typing import Any, Protocol

from fedveil.core.errors import NotAvailable
from fedveil.data.records import DataShape
from fedveil.noise.entropy import Entropy
from fedveil.planning.plan import Plan
from fedveil.privacy.trust import Trust
from fedveil.stages.adding import plain_sum
from fedveil.stages.stage import Stage
from fedveil.stages.sums import ALL
from fedveil.sums.seam import Summed, Summing, Whole


class Added(Protocol):
    """What adding up must know of a plan, of training or of a generator."""

    @property
    def hash(self) -> str: ...  # noqa: D102
    @property
    def trust(self) -> Trust: ...  # noqa: D102
    @property
    def data(self) -> DataShape: ...  # noqa: D102
    @property
    def stages(self) -> tuple[Stage, ...]: ...  # noqa: D102


_LABELS = {"training": "", "evaluation": " of the evaluation"}  # of randomness; any other stage: of the preparation
Floors = list[tuple[int, int]]  # of each sum: how many clients take part in it, and how many must


def stage_summing(plan: Added, stage: Stage, entropy: Entropy) -> Summing:
    """Return what adds up the sums of a stage by parts; every way gives the same whole numbers.

    Masks and keys are the stage's own. A stage of noisy sums has room for every sum that a shipped stage may have,
    since these are numbered by their names.
    """
    sizes = [stage.cohort(turn) for turn in range(stage.turns)]
    if stage.name != "training":
        sizes = sizes[:1] * max(len(ALL), len(sizes))
    floors = [(size, max(1, plan.trust.least(size))) for size in sizes]
    return SERVERS[plan.trust.server](plan, entropy, floors, _LABELS.get(stage.name, " of the preparation"))


def summing_of(plan: Plan, entropy: Entropy) -> Summing:
    """Return what adds up the rounds of a plan's training."""
    return stage_summing(plan, plan.training, entropy)


def check_ready(plan: Added) -> None:
    """Refuse, before it is charged, a plan that cannot be added up here (a missing library, a number of clients)."""
    for stage in plan.stages:
        stage_summing(plan, stage, Entropy.from_system())


def _trusted(plan: Added, entropy: Entropy, floors: Floors, label: str) -> Summing:
    return plain_sum


def _secure(plan: Added, entropy: Entropy, floors: Floors, label: str) -> Summing:
    part = _part("fedveil.sums.masks.rounds", plan)
    seed = entropy.words(f"secure aggregation{label}", 0, 4).tobytes()
    told, signed = plan.trust.colluders, plan.trust.identities is not None

    def make(most: int, least: int) -> Summing:
        made: Summing = part.SecureSumming(
            _name(plan, entropy, label), seed, least=least, colluders=told, signed=signed
        )
        return made

    return _by_floor(floors, make)


def _homomorphic(plan: Added, entropy: Entropy, floors: Floors, label: str) -> Summing:
    part = _part("fedveil.sums.homomorphic.rounds", plan)
    return _by_floor(floors, lambda most, least: part.HomomorphicSumming(most, least=least))


def _name(plan: Added, entropy: Entropy, label: str) -> bytes:
    """32 public bytes that name the run's sums and order its rings.

    They are salted for each run. The plan is known long before, and colluders who knew the ring in advance could
    surround a victim in it.
    """
    salt = entropy.words(f"secure aggregation's salt{label}", 0, 4).tobytes()
    return sha256(bytes.fromhex(plan.hash) + salt).digest()


def _by_floor(floors: Floors, make: Callable[[int, int], Summing]) -> Summing:
    """Return one sum for all rounds, or one for each minimum number of answers below which clients open nothing."""
    made = {least: make(max(most for most, _ in floors), least) for _, least in floors}

    def add_up(turn: int, parts: Mapping[int, Whole], /) -> Summed:
        return made[floors[turn][1]](turn, parts)

    return add_up


def _part(name: str, plan: Added) -> Any:
    """Import a way of adding up when it is needed, because it brings libraries that are not always installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotAvailable(f'trust.server = "{plan.trust.server}" cannot run here: {error}.') from error


SERVERS: dict[str, Callable[[Added, Entropy, Floors, str], Summing]] = {
    "trusted": _trusted,
    "secure-aggregation": _secure,
    "homomorphic": _homomorphic,
}
